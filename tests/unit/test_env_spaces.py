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
from fakes.named_masks import ACTS, LEGAL, OF_LEGAL
from hpcdi.env.contract import MaskLayout, Space, read_spaces, with_ordered_masks
from hpcdi.env.create import create_env_manager, get_env_cls, make_env_manager
from hpcdi.env.probe import look_at
from hpcdi.env.wrappers import ActionMasks
from hpcdi.errors import ConfigError, EnvError, EnvValueError
from hpcdi.policy.spaces import as_stored
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
        acts.put(actions, row, value)
        for field in acts.fields:
            if field.start is not None:
                actions[field.name][row] -= field.start
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
    assert read_spaces(spaces.Box(0, 1, (1,)), space).action_kind == "discrete"


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("f8", [0.1, -1.0], [0.1, 1.0]), (">f8", [1 / 3, -1.0], [1 / 3 + 1e-9, 1.0]),
        ("i8", [2**60 + 1, -1], [2**60 + 1, 1]), ("f4", [0.1, -1.0], [0.1, 1.0]),
        ("?", [1, 0], [1, 1]), ("u1", [7, 0], [7, 255]),
    ],
)  # fmt: skip
def test_an_action_is_within_its_box_where_float32_has_no_number_there(
    dtype: str, low: Any, high: Any
) -> None:
    """A frozen component was always given beside its one value."""
    bounds = np.array([low, high], dtype)
    for limits in (bounds, bounds[:, 0]):
        space: Any = spaces.Box(*map(np.array, limits), dtype=bounds.dtype)  # type: ignore[arg-type]
        acts = Space.of_actions(space)
        for number in (-1.0, 1.0):
            leaf = acts.leaves[0]
            drawn = np.full((1, *leaf.shape), number, np.float32)
            columns = {**acts.zeros(1)}
            columns["action"][...] = as_stored(drawn, leaf)
            out_of = acts.out_of(columns, 0)
            for value in (acts.value(columns, 0), acts.value(columns, ...)[0], out_of()):
                assert (space.low <= value).all() and (value <= space.high).all()  # noqa: PT018


def test_bytes_of_numbers_are_stored_in_the_order_of_this_machine() -> None:
    """torch takes no other."""
    space = spaces.Dict({kind: spaces.Box(-5, 5, (3,), np.dtype(f">{kind}")) for kind in ORDERED})  # type: ignore[arg-type]
    seen, acts = Space.of_observations(space), Space.of_actions(space)
    assert [leaf.dtype for leaf in seen.leaves] == ["float32", "float32", "int32"]
    assert [leaf.dtype for leaf in acts.leaves] == ["float32", "float64", "int32"]
    rows, value = seen.zeros(1), {kind: np.arange(3, dtype=f">{kind}") for kind in ORDERED}
    seen.put(rows, 0, value)
    assert all(
        column.dtype.isnative and column[0].tolist() == [0, 1, 2] for column in rows.values()
    )
    assert space.contains(acts.value(acts.zeros(1), 0))


ORDERED = ("f4", "f8", "i4")

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
    [(1, "environment 1, at the beginning of an episode: "
      "its mask of actions .info.*has 4 entries, and its actions, Discrete.5., need 5"),
     (2, "environment 1 failed beginning an episode.*"
      "environment 1 has no legal action: its mask of actions, of length 5, allows none")],
)  # fmt: skip
def test_a_wrong_mask_names_environment_and_length(forgets: int, said: str) -> None:
    fns = [masked, partial(masked, forgets=forgets)]
    settings = {"type": "base", "max_retry": 0, "retry_waiting_time": 0}
    with (
        pytest.raises(EnvError, match=said),
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
    two = MaskLayout(spaces.MultiDiscrete([2, 3]))
    assert two.flat((np.array([1, 0]), np.array([0, 1, 1]))).tolist() == [1, 0, 0, 1, 1]
    assert MaskLayout(spaces.Discrete(2)).flat([True, False]).tolist() == [1, 0]


@pytest.mark.parametrize("vectorization", ["auto", "sync"])
@pytest.mark.parametrize("where", ["info", "legal", "action_mask"])
def test_masks_by_name_belong_to_the_parts_of_the_action_of_these_names(
    where: str, vectorization: str
) -> None:
    """The mask of a move was that of an attack, and nothing said so."""
    cfg = {
        "type": "gymnasium", "env_id": "fakes.named_masks:Named", "kwargs": {"where": where},
        "action_mask": "" if where == "action_mask" else where, "collector_env_num": 2,
        "vectorization": vectorization, "manager": {"max_retry": 0},
    }  # fmt: skip
    with create_env_manager(cfg, evaluate=False, seed=np.random.SeedSequence(0)) as envs:
        envs.launch()
        dicts = DictManager(envs)
        for _ in range(20):
            dicts.step(dicts.random_action())
        assert envs.observation["action_mask"].tolist() == [[False, True, True, False, True]] * 2


def test_masks_of_a_vector_environment_are_by_name_too() -> None:
    observation = spaces.Dict(
        [("at", spaces.Discrete(1)), ("action_mask", spaces.Dict(**OF_LEGAL))]
    )
    seen = Space.of_observations(with_ordered_masks(observation, ACTS))
    columns = seen.zeros(2)
    of_both = {name: np.stack([mask, mask]) for name, mask in LEGAL.items()}
    seen.put(columns, ..., {"at": np.zeros(2, np.int64), "action_mask": of_both})
    assert columns["action_mask"].tolist() == [[False, True, True, False, True]] * 2


def test_masks_of_nested_actions_go_by_name_and_by_position() -> None:
    acts = spaces.Tuple((spaces.Dict(b=spaces.Discrete(2), a=spaces.MultiDiscrete([2, 1])), ACTS))
    layout = MaskLayout(acts)
    first = {"a": [[1, 0], [1]], "b": (0, 1)}  # by the order of its space, b comes first
    assert layout.flat((first, LEGAL)).tolist() == [0, 1, 1, 0, 1, 0, 1, 1, 0, 1]
    assert layout.flat({"1": LEGAL, "0": first}).tolist() == layout.flat([first, LEGAL]).tolist()
    assert layout.flat(np.ones(10)).tolist() == [1] * 10
    of_number = MaskLayout(spaces.Dict({"1": spaces.Discrete(2)}))
    assert of_number.flat({1: [0, 1]}).tolist() == of_number.flat({"1": [0, 1]}).tolist() == [0, 1]
    unmasked = spaces.Dict({**ACTS.spaces, "aim": spaces.Box(0, 1)})
    assert MaskLayout(unmasked).flat(LEGAL).tolist() == [0, 1, 1, 0, 1]


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (
            {"moves": [1] * 3, "attack": [1] * 2},
            r"parts of the names \['moves', 'attack'\], .*have",
        ),
        ({"move": [1] * 3}, "parts of the names"),
        ({"move": [1] * 2, "attack": [1] * 3}, r"\(info\['attack'\]\) has 3 entries, .*need 2"),
        ([[1] * 3, [1] * 2], r"\(info\['attack'\]\) has 3 entries, .*need 2"),
        ({"move": [1, 2, 0], "attack": [1] * 2}, r"info\['move'\]: .* other numbers than 0 and 1"),
        ({"move": [1] * 3, "attack": None}, r"info\['attack'\]: None, and must be 0 or 1"),
        ({"move": [1] * 3, "attack": []}, r"\(info\['attack'\]\) has 0 entries, .*need 2"),
    ],
)
def test_a_mask_that_is_not_of_its_actions_is_refused(mask: Any, said: str) -> None:
    with pytest.raises(EnvValueError, match=said):
        MaskLayout(ACTS, "info").flat(mask)


def test_a_space_of_masks_that_is_not_of_its_actions_is_refused() -> None:
    for children, said in (
        ({"moves": OF_LEGAL["move"], "attack": OF_LEGAL["attack"]}, "parts of the names"),
        ({"move": OF_LEGAL["attack"], "attack": OF_LEGAL["move"]}, "3 entries, and .* needs 2"),
    ):
        masked = spaces.Dict({"at": spaces.Discrete(1), "action_mask": spaces.Dict(children)})
        with pytest.raises(EnvError, match=said):
            read_spaces(masked, ACTS)
    # a Dict's keys are sorted
    for of_masks in (spaces.Dict(OF_LEGAL), spaces.Tuple([OF_LEGAL["attack"], OF_LEGAL["move"]])):
        masked = spaces.Dict({"at": spaces.Discrete(1), "action_mask": of_masks})
        with pytest.raises(EnvError, match=r"2 entries, and that part of its actions.* needs 3"):
            read_spaces(masked, spaces.MultiDiscrete([3, 2]))
    with pytest.raises(EnvValueError, match="have no names"):
        MaskLayout(spaces.MultiDiscrete([3, 2])).flat(LEGAL)


def seen_mask(of_masks: Any, acts: Any, mask: Any) -> list[int]:
    """A mask as it lies in the column of an observation."""
    observation = spaces.Dict({"at": spaces.Discrete(1), "action_mask": of_masks})
    seen = Space.of_observations(with_ordered_masks(observation, acts))
    columns = seen.zeros(1)
    seen.put(columns, 0, {"at": 0, "action_mask": mask})
    return columns["action_mask"][0].astype(int).tolist()


def test_spaces_of_masks_are_in_the_order_of_actions_wherever_these_have_names() -> None:
    """Names within a Tuple for a Dict were sorted, and of numbers "10" came before "2"."""
    named = spaces.Dict([("b", spaces.Discrete(2)), ("a", spaces.Discrete(3))])
    of_named = spaces.Dict(b=spaces.MultiBinary(2), a=spaces.MultiBinary(3))
    mask, one = {"a": np.array([1, 0, 0]), "b": np.array([0, 1])}, np.ones(1)
    last = spaces.MultiBinary(1)
    for acts in (
        spaces.Dict([("x", named), ("y", spaces.Discrete(1))]),
        spaces.Tuple([named, spaces.Discrete(1)]),
    ):
        assert seen_mask(spaces.Tuple([of_named, last]), acts, (mask, one)) == [0, 1, 1, 0, 0, 1]
    of_numbers = spaces.Dict({"0": of_named, "1": last})
    assert seen_mask(of_numbers, acts, {"0": mask, "1": one}) == [0, 1, 1, 0, 0, 1]
    eleven = range(11)
    own = {str(k): np.eye(1, 2, k % 3 % 2)[0] for k in eleven}
    many = spaces.Tuple([spaces.Discrete(2)] * 11)
    of_many = spaces.Dict({str(k): spaces.MultiBinary(2) for k in eleven})
    assert seen_mask(of_many, many, own) == np.concatenate([*own.values()]).tolist()


def test_masks_under_a_key_are_of_any_space() -> None:
    parts = [spaces.MultiDiscrete([2, 2]), spaces.MultiDiscrete([2] * 3)]
    acts = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)])
    layout = MaskLayout(acts, "legal", spaces.Tuple(parts))
    assert layout.flat((np.array([0, 1]), np.array([1, 0, 1]))).tolist() == [0, 1, 1, 0, 1]


def config(**settings: Any) -> Any:
    given = {"type": "gymnasium", "env_id": "fakes.key_env:KeyEnv", **settings}
    return get_env_cls(given).parse_config(given)


def test_the_configuration_says_where_masks_are() -> None:
    assert not look_at(config()).spaces.is_masked
    assert look_at(config(action_mask="info")).spaces.is_masked
    by_key = look_at(config(action_mask="legal", kwargs={"masks": "key"})).spaces
    assert by_key.is_masked
    assert [leaf.name for leaf in by_key.observation] == ["hands/0", "hands/1", "map", "place"]
    with pytest.raises(ConfigError, match=r"env.action_mask: .*'lawful': no key"):
        look_at(config(action_mask="lawful"))
    with pytest.raises(ConfigError, match=r"masks are of discrete actions"):
        look_at(config(env_id="Pendulum-v1", action_mask="info"))


@pytest.mark.parametrize("space", [spaces.Dict({}), spaces.Box(0, 1, (0,)), spaces.Tuple(())])
def test_spaces_without_a_number_are_refused(space: Any) -> None:
    two = spaces.Discrete(2)
    for observation, action, said in ((space, two, "observations"), (two, space, "actions")):
        with pytest.raises(EnvError, match=f"its {said}, .* hold no number"):
            read_spaces(observation, action)
