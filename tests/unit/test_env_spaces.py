"""Spaces of every kind: into arrays and back, the same in every manager; masks of actions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from fakes.echo_env import NESTED, EchoEnv
from fakes.env_managers import vector_manager
from fakes.key_env import KeyEnv
from hpcdi.env.contract import Space, read_spaces
from hpcdi.env.create import create_env_manager, get_env_cls, make_env_manager
from hpcdi.env.probe import get_spaces
from hpcdi.env.wrappers import ActionMasks, flat_mask
from hpcdi.errors import ConfigError, EnvError
from hpcdi.types import Leaf
from hpcdi.worker.dict_envs import DictManager

pytestmark = pytest.mark.usefixtures("env_helpers")


def test_leaves_say_what_there_is() -> None:
    found = read_spaces(NESTED, NESTED)
    names = ["arm/angle", "gear/0", "gear/1", "slots"]
    assert [leaf.name for leaf in found.observation] == names
    assert found.observation[0] == Leaf("arm/angle", (2,), "float32")
    assert found.action[0] == Leaf("arm/angle", (2,), "float64", low=(-1, -1), high=(1, 1))
    assert found.action[1] == Leaf("gear/0", (), "int64", (3,), (-1,))
    assert found.observation[2] == Leaf("gear/1", (2, 2), "int8", (2, 2, 2, 2))
    assert found.observation[3] == Leaf("slots", (2,), "int64", (2, 5), (1, 0))
    assert found.action_kind == "mixed"
    assert found.observation_bytes == 8 + 8 + 4 + 16


def test_a_value_comes_out_as_it_went_in() -> None:
    seen, acts = Space.of_observations(NESTED), Space.of_actions(NESTED)
    NESTED.seed(0)
    rows, actions = seen.zeros(3), acts.zeros(3)
    for row in range(3):
        value = NESTED.sample()
        seen.put(rows, row, value)
        acts.put(actions, row, acts.from_zero(value))
        assert actions["action/gear/0"][row] == value["gear"][0] + 1
        assert NESTED.contains(acts.value(actions, row))
        for form, array in ((seen, rows), (acts, actions)):
            out = form.value(array, row)
            assert isinstance(out["gear"], tuple)
            np.testing.assert_allclose(out["arm"]["angle"], value["arm"]["angle"], rtol=1e-6)
            assert out["gear"][0] == value["gear"][0]
            assert out["slots"].tolist() == value["slots"].tolist()


def managers() -> dict[str, Callable[[], Any]]:
    def vector(mode: AutoresetMode) -> Any:
        return vector_manager(lambda: SyncVectorEnv([EchoEnv] * 2, autoreset_mode=mode), 2)

    return {
        "base": lambda: make_env_manager({"type": "base"}, [EchoEnv] * 2),
        "subprocess": lambda: make_env_manager({"type": "subprocess"}, [EchoEnv] * 2),
        **{mode.value: partial(vector, mode) for mode in AutoresetMode},
    }


@pytest.mark.parametrize("kind", managers())
def test_every_manager_gives_actions_and_observations_their_own_form(kind: str) -> None:
    acts = Space.of_actions(NESTED)
    with managers()[kind]() as envs:
        envs.launch()
        assert next(iter(envs.observation)) == "observation/arm/angle"
        ended = 0
        for step in range(6):
            chosen = DictManager(envs).random_action()
            columns = acts.zeros(2)
            for env, action in chosen.items():
                acts.put(columns, env, action)
            made = envs.step(columns)
            assert made.failed is None, step
            for env in np.flatnonzero(made.live):
                after = Space.of_observations(NESTED).value(made.successor, env)
                own = acts.value(columns, env)
                assert after["gear"][0] == own["gear"][0]
                assert (after["gear"][1] == own["gear"][1]).all()
                assert after["slots"].tolist() == own["slots"].tolist()
                np.testing.assert_allclose(after["arm"]["angle"], own["arm"]["angle"], rtol=1e-6)
            ended += int((made.terminated & made.live).sum())
        assert ended >= 2
        dicts = DictManager(envs)
        timestep = dicts.step(dicts.random_action())[0]
        assert set(timestep.obs) == {"arm", "gear", "slots"}


def test_a_discrete_action_is_counted_from_zero() -> None:
    space = spaces.Discrete(3, start=5)
    acts, columns = Space.of_actions(space), {"action": np.array([0, 2])}
    assert [int(acts.value(columns, row)) for row in (0, 1)] == [5, 7]
    assert acts.value(columns, ...).tolist() == [5, 7]
    assert acts.from_zero(np.int64(6)) == 1
    assert read_spaces(spaces.Box(0, 1, (1,)), space).action_kind == "discrete"


# -------------------------------------------------------------------------------------------- masks


def masked(**kwargs: Any) -> Any:
    return ActionMasks(KeyEnv(**kwargs), "legal" if kwargs.get("masks") == "key" else "info")


@pytest.mark.parametrize("masks", ["info", "key"])
@pytest.mark.parametrize("kind", ["base", "subprocess"])
def test_masks_are_a_field_and_random_actions_heed_them(masks: str, kind: str) -> None:
    make = partial(masked, masks=masks)
    with make_env_manager({"type": kind, "max_retry": 0}, [make] * 2) as envs:
        envs.launch()
        assert list(envs.observation)[-1] == "action_mask"
        assert envs.observation["action_mask"].dtype == bool
        dicts = DictManager(envs)
        for _ in range(40):  # an action that is not possible fails the environment
            dicts.step(dicts.random_action())
        assert set(dicts.ready_obs[0]) == {"place", "map", "hands", "action_mask"}


@pytest.mark.parametrize(
    ("forgets", "said"),
    [(1, "its mask of actions .info.*has 4 entries, and its actions, Discrete.5., need 5"),
     (2, "environment 1 has no legal action: its mask of actions, of length 5, allows none")],
)  # fmt: skip
def test_a_wrong_mask_names_environment_and_length(forgets: int, said: str) -> None:
    fns = [masked, partial(masked, forgets=forgets)]
    settings = {"type": "base", "max_retry": 0, "retry_waiting_time": 0}
    with (
        pytest.raises(EnvError, match=rf"environment 1 failed beginning an episode.*{said}"),
        make_env_manager(settings, fns) as envs,
    ):
        envs.launch()


TWO = spaces.MultiBinary(3), spaces.MultiBinary(3)
MASKS = (
    spaces.MultiBinary(6), spaces.MultiBinary((2, 3)), spaces.Box(0, 1, (2, 3), np.float32),
    spaces.Tuple(TWO), spaces.Dict(b=TWO[0], a=spaces.Tuple(TWO[1:])),
)  # fmt: skip


class OfMask(EchoEnv):
    """Two choices of three each, of which the third is legal; masks are of a space."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.action_space = spaces.MultiDiscrete([3, 3])
        self._mask = MASKS[number]
        box = spaces.Box(0, 1, (1,), np.float32)
        self.observation_space = spaces.Dict({"observation": box, "action_mask": self._mask})

    def reset(self, **_given: Any) -> Any:
        entries = np.array([0, 0, 1] * 2)
        mask = spaces.unflatten(self._mask, entries)
        return {"observation": np.zeros(1, np.float32), "action_mask": mask}, {}

    def step(self, action: Any) -> Any:
        assert action.tolist() == [2, 2]
        return self.reset()[0], 0.0, False, False, {}


@pytest.mark.parametrize("number", range(len(MASKS)))
@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_masks_are_of_any_form_where_environments_step_together_too(
    vectorization: str, number: int
) -> None:
    cfg = {
        "type": "gymnasium", "env_id": f"{__name__}:OfMask", "kwargs": {"number": number},
        "vectorization": vectorization, "collector_env_num": 2,
    }  # fmt: skip
    with create_env_manager(cfg, evaluate=False, seed=np.random.SeedSequence(0)) as envs:
        envs.launch()
        dicts = DictManager(envs)
        for _ in range(3):
            dicts.step(dicts.random_action())
            assert envs.observation["action_mask"].tolist() == [[False, False, True] * 2] * 2
        assert dicts.ready_obs[1]["action_mask"].tolist() == [False, False, True] * 2


def test_masks_in_parts_are_one() -> None:
    assert flat_mask((np.array([1, 0]), np.array([0, 1, 1]))).tolist() == [1, 0, 0, 1, 1]
    assert flat_mask([True, False]).tolist() == [1, 0]


def config(**settings: Any) -> Any:
    given = {"type": "gymnasium", "env_id": "fakes.key_env:KeyEnv", **settings}
    return get_env_cls(given).parse_config(given)


def test_the_configuration_says_where_masks_are() -> None:
    assert not get_spaces(config()).is_masked
    assert get_spaces(config(action_mask="info")).is_masked
    by_key = get_spaces(config(action_mask="legal", kwargs={"masks": "key"}))
    assert by_key.is_masked
    assert [leaf.name for leaf in by_key.observation] == ["hands/0", "hands/1", "map", "place"]
    with pytest.raises(ConfigError, match=r"env.action_mask: .*'lawful': no key"):
        get_spaces(config(action_mask="lawful"))
    with pytest.raises(ConfigError, match=r"masks are of discrete actions"):
        get_spaces(config(env_id="Pendulum-v1", action_mask="info"))


@pytest.mark.parametrize("space", [spaces.Dict({}), spaces.Box(0, 1, (0,)), spaces.Tuple(())])
def test_spaces_without_a_number_are_refused(space: Any) -> None:
    two = spaces.Discrete(2)
    for observation, action, said in ((space, two, "observations"), (two, space, "actions")):
        with pytest.raises(EnvError, match=f"its {said}, .* hold no number"):
            read_spaces(observation, action)
