"""The manager of vector environments: autoreset modes, seeds, both forms of data, misuse."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from fakes.env_managers import (
    LENGTH,
    MODES,
    by_id,
    count,
    launched,
    live_rows,
    seen,
    stepped,
    steps_of,
    vector_manager,
)
from hpcdi.env.create import create_env_manager
from hpcdi.env.manager import EnvManager
from hpcdi.env.toy import CountEnv
from hpcdi.errors import ConfigError, EnvError, UnknownTypeError
from hpcdi.types import Array
from hpcdi.worker.dict_envs import BaseEnvTimestep, DictManager


@pytest.mark.parametrize(
    ("mode", "pattern"),
    [
        ("next_step", [True, True, True, False, True, True, True, False]),
        ("same_step", [True] * 8),
        ("disabled", [True] * 8),
    ],
)
def test_only_the_dummy_step_of_next_step_is_not_live(mode: str, pattern: list[bool]) -> None:
    with launched(count(mode)) as manager:
        live = np.array([step.live for _, step in steps_of(manager, 8)])
        assert not manager.done, "there is no quota"
    assert live.tolist() == [[alive, alive] for alive in pattern]


@pytest.mark.parametrize("mode", [*MODES, "vector_entry_point"])
def test_each_environment_does_its_quota_of_episodes_and_no_more(mode: str) -> None:
    """A fixed quota for each environment: short episodes must not be counted more often."""
    with launched(by_id("CartPole-v1", mode), env_num=3, episode_num=2) as manager:
        taken = []
        for _ in range(400):
            if manager.done:
                break
            taken += steps_of(manager, 1)
        assert manager.done
        _, returns, lengths, _ = manager.take_episodes()
    live = np.array([step.live for _, step in taken])
    ends = np.array([(step.terminated | step.truncated) & step.live for _, step in taken])
    assert ends.sum(axis=0).tolist() == [2, 2, 2]
    assert (len(lengths), lengths.sum()) == (6, live.sum())
    assert returns.tolist() == lengths.tolist()  # CartPole pays 1 a step
    assert len(set(live.sum(axis=0))) > 1, "the seed should give episodes of different lengths"
    for env in range(3):
        assert not live[np.flatnonzero(ends[:, env])[-1] + 1 :, env].any()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_short_episodes_beyond_the_quota_do_not_count(mode: AutoresetMode) -> None:
    """The first environment would do ten episodes while the second does its two."""

    def make(_env_num: int) -> SyncVectorEnv:
        return SyncVectorEnv([lambda: CountEnv(1), lambda: CountEnv(5)], autoreset_mode=mode)

    with launched(make, episode_num=2) as manager:
        steps_of(manager, 12)
        assert manager.done
        _, returns, lengths, _ = manager.take_episodes()
    assert (returns.tolist(), lengths.tolist()) == ([1, 1, 15, 15], [1, 1, 5, 5])


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_next_number_of_episodes_are_whole_ones(mode: AutoresetMode) -> None:
    """Environments that are done first must not begin in the middle of an episode."""

    def make(_env_num: int) -> SyncVectorEnv:
        envs = [lambda: CountEnv(3), lambda: CountEnv(7)]
        return SyncVectorEnv(envs, autoreset_mode=mode)

    with launched(make, episode_num=1) as manager:
        for number in range(3):
            assert manager.restart_count() is (number > 0), "whether it has reset them"
            assert not manager.done
            while not manager.done:
                steps_of(manager, 1)
            _, returns, lengths, _ = manager.take_episodes()
            assert (returns.tolist(), lengths.tolist()) == ([6, 28], [3, 7])


def test_episodes_that_are_running_go_on() -> None:
    with launched(count("next_step"), episode_num=1) as manager:
        steps_of(manager, LENGTH - 1)
        assert not manager.restart_count()
        steps_of(manager, 1)
        assert manager.done
        assert manager.take_episodes().lengths.tolist() == [LENGTH, LENGTH]


@pytest.mark.parametrize("mode", [*MODES, "vector_entry_point"])
def test_truncation_is_not_termination(mode: str) -> None:
    with launched(by_id("CartPole-v1", mode, max_episode_steps=2)) as manager:
        (_, first), (_, second) = steps_of(manager, 2)
    assert not (first.terminated | first.truncated).any()
    assert second.truncated.all()
    assert not second.terminated.any()


class BothEndsEnv(gymnasium.Env[Array, np.int64]):
    """Each episode is one step, which terminates and truncates; float64 observations."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.random(1), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        return np.full(1, 0.1), 0.5, True, True, {}


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_terminated_and_truncated_are_both_kept_and_float64_becomes_float32(
    mode: AutoresetMode,
) -> None:
    def make(env_num: int) -> SyncVectorEnv:
        return SyncVectorEnv([BothEndsEnv] * env_num, autoreset_mode=mode)

    with launched(make) as manager:
        assert seen(manager).dtype == np.float32
        ((_, step),) = steps_of(manager, 1)
        assert seen(manager).dtype == np.float32
    assert step.terminated.all()
    assert step.truncated.all()
    assert step.successor["observation"].dtype == np.float32
    assert step.successor["observation"].tolist() == [[np.float32(0.1)]] * 2
    assert step.reward.dtype == np.float32


EVERY_FORM = [*MODES, "vector_entry_point"]


# ------------------------------------------------------------------------------------------- seeds


def first_observations(form: str, seed: int, resets: int = 0) -> list[list[float]]:
    with launched(by_id("CartPole-v1", form), seed=seed) as manager:
        for _ in range(resets):
            manager.reset()
        observations: list[list[float]] = seen(manager).tolist()
    return observations


@pytest.mark.parametrize("form", EVERY_FORM)
def test_seeds(form: str) -> None:
    """Same seed, same data; other seeds, environments and resets: other data."""
    first = first_observations(form, 0)
    assert first_observations(form, 0) == first
    assert first_observations(form, 0, resets=1) == first_observations(form, 0, resets=1)
    others = [*first_observations(form, 1), *first_observations(form, 0, resets=1)]
    assert len({tuple(observation) for observation in [*first, *others]}) == 6


def test_seed_takes_effect_at_the_next_reset() -> None:
    with launched(by_id("CartPole-v1", "same_step"), seed=0) as manager:
        manager.seeds.seed(5, None)
        manager.reset()
        again = seen(manager).tolist()
    with launched(by_id("CartPole-v1", "same_step"), seed=5) as manager:
        assert seen(manager).tolist() == again


# --------------------------------------------------------------------------- per-environment form


def actions_at(step: int, env_num: int) -> Array:
    """Actions that any order of calls gives alike."""
    return np.random.default_rng(step).integers(0, 2, env_num)


@pytest.mark.parametrize("form", EVERY_FORM)
@pytest.mark.parametrize("episode_num", [None, 2])
def test_the_per_environment_form_equals_the_array_form(form: str, episode_num: int | None) -> None:
    make = by_id("CartPole-v1", form, max_episode_steps=12)
    with launched(make, 3, episode_num) as manager:
        taken = [(seen(manager).copy(), stepped(manager, actions_at(t, 3))) for t in range(60)]
        _, returns, lengths, _ = manager.take_episodes()
    rows: list[list[Any]] = [[], [], []]
    told: list[float] = []
    with launched(make, 3, episode_num) as own:
        manager = DictManager(own)
        for t in range(60):
            ready = manager.ready_obs
            steps = manager.step({env: actions_at(t, 3)[env] for env in ready})
            assert steps.keys() == ready.keys()
            for env, timestep in steps.items():
                rows[env].append(row_of(ready[env], timestep))
                told += [timestep.info["eval_episode_return"]] if timestep.done else []
        again = manager.take_episodes()
    assert rows == [live_rows(taken, env) for env in range(3)]
    assert told == returns.tolist()
    assert again.lengths.tolist() == lengths.tolist()


def row_of(observation: Array, timestep: BaseEnvTimestep) -> Any:
    info = timestep.info
    assert timestep.done == (info["terminated"] or info["truncated"])
    assert timestep.done == ("eval_episode_return" in info)
    return (
        observation.tolist(), timestep.reward, info["terminated"], info["truncated"],
        timestep.obs.tolist(),
    )  # fmt: skip


def test_environments_that_are_done_are_not_ready() -> None:
    with launched(count("disabled"), episode_num=1) as own:
        manager = DictManager(own)
        for _ in range(3):
            manager.step({0: 0, 1: 1})
        assert manager.done
        assert manager.ready_obs == {}
        assert manager.step({}) == {}


def test_every_waiting_environment_needs_an_action() -> None:
    with launched(count("same_step"), env_num=3) as manager:
        with pytest.raises(EnvError, match=r"\[0, 2\] wait for an action"):
            DictManager(manager).step({1: 0})
        assert seen(manager).tolist() == [[0, 0]] * 3, "nothing may have been stepped"


@pytest.mark.parametrize("stranger", [-1, 2])
def test_an_action_for_an_environment_that_there_is_not(stranger: int) -> None:
    with (
        launched(count("same_step")) as manager,
        pytest.raises(EnvError, match=rf"no environments \[{stranger}\], only 2"),
    ):
        DictManager(manager).step({0: 0, 1: 0, stranger: 1})


# ------------------------------------------------------------------------------------------ misuse


def count_manager() -> EnvManager:
    return create_env_manager(
        {
            "type": "gymnasium",
            "import_names": ["hpcdi.env.toy"],
            "env_id": "hpcdi/Count-v0",
            "collector_env_num": 3,
            "collector_episode_num": 4,
            "evaluator_env_num": 2,
        },
        evaluate=False,
        seed=np.random.SeedSequence(0),
    )


def test_nothing_can_be_stepped_before_launch_or_after_close() -> None:
    manager = count_manager()
    for _ in range(2):
        for call in (
            lambda: manager.step({"action": np.zeros(3, np.int64)}), manager.reset,
            lambda: manager.ready, lambda: DictManager(manager).ready_obs,
            lambda: DictManager(manager).step({0: 0, 1: 0, 2: 0}),
        ):  # fmt: skip
            with pytest.raises(EnvError, match=r"launch\(\) them first"):
                call()
        manager.launch()
        manager.close()


def test_options_of_single_environments_are_refused() -> None:
    with pytest.raises(EnvError, match="reset_param"):
        count_manager().launch({0: {"low": 1}})


# ------------------------------------------------------------------------------- by configuration


def test_managers_are_built_of_mappings_for_collecting_and_evaluating() -> None:
    assert count_manager().env_num == 3
    cfg = {
        "type": "gym", "import_names": ["hpcdi.env.toy"], "env_id": "hpcdi/Count-v0",
        "kwargs": {"length": 2}, "evaluator_env_num": 2, "evaluator_episode_num": 3,
    }  # fmt: skip
    with create_env_manager(cfg, evaluate=True, seed=np.random.SeedSequence(0)) as manager:
        manager.launch()
        steps_of(manager, 20)
        assert manager.done
        assert manager.take_episodes().lengths.tolist() == [2] * 6


def test_what_cannot_be_built_says_so() -> None:
    seed = np.random.SeedSequence(0)
    with pytest.raises(UnknownTypeError, match="did you mean 'gymnasium'"):
        create_env_manager({"type": "gymnasum"}, evaluate=False, seed=seed)
    with pytest.raises(ConfigError, match=r"env_nun: unknown key; did you mean"):
        create_env_manager(
            {"type": "gym", "env_id": "CartPole-v1", "evaluator_env_nun": 2},
            evaluate=False, seed=seed,
        )  # fmt: skip
    with pytest.raises(ConfigError, match=r"manager.type: no environment manager of type 'bas'"):
        create_env_manager(
            {"type": "gym", "env_id": "CartPole-v1", "manager": {"type": "bas"}},
            evaluate=False, seed=seed,
        )  # fmt: skip


# ------------------------------------------------------------------- vector environments of others


class InPlaceEnv(VectorEnv[Array, Array, Array]):
    """Writes each observation over the one before, as its own state; never ends."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, env_num: int) -> None:
        self.num_envs = env_num
        self.single_observation_space = gymnasium.spaces.Box(0, np.inf, (1,), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self._state = np.zeros((env_num, 1), dtype=np.float32)

    def reset(self, **_kwargs: Any) -> tuple[Array, dict[str, Any]]:
        self._state[:] = 0
        return self._state, {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        self._state += 1
        no = np.zeros(self.num_envs, dtype=bool)
        return self._state, np.ones(self.num_envs), no, no, {}


def test_what_was_observed_stays_when_the_environment_writes_over_it() -> None:
    """A collector records an observation after the step that follows it."""
    with launched(InPlaceEnv) as manager:
        before = seen(manager)
        step = manager.step({"action": np.zeros(2, np.int64)})
    assert before.tolist() == [[0.0]] * 2
    assert step.successor["observation"].tolist() == [[1.0]] * 2


class PaintingEnv(InPlaceEnv):
    """Draws one array of all, or a tensor, or only the first."""

    render_mode = "rgb_array"

    def __init__(self, env_num: int, drawn: Any) -> None:
        super().__init__(env_num)
        self._drawn = drawn

    def render(self) -> Any:
        return self._drawn


@pytest.mark.parametrize("form", [np.asarray, torch.as_tensor, list])
def test_pictures_of_all_come_as_one_array_as_well(form: Callable[[Array], Any]) -> None:
    drawn = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
    with launched(partial(PaintingEnv, drawn=form(drawn))) as manager:
        pictures = manager.pictures()
    np.testing.assert_array_equal(pictures, drawn)
    with (
        launched(partial(PaintingEnv, drawn=form(drawn[:1]))) as manager,
        pytest.raises(EnvError, match="environment 1 draws no pictures"),
    ):
        manager.pictures()


PAIR = gymnasium.spaces.Tuple([gymnasium.spaces.Box(0, 99, (1,), np.float32)] * 2)


class PairEnv(InPlaceEnv):
    """Tuples {its number, steps}; the info, always the same array, tells the steps, too.

    The first ends after two steps, the other after three.
    """

    def __init__(self, env_num: int, form: str) -> None:
        super().__init__(env_num)
        self.single_observation_space = PAIR  # type: ignore[assignment]
        self._form, self._told = form, np.zeros(env_num)
        mode = AutoresetMode.DISABLED if form == "disabled" else AutoresetMode.SAME_STEP
        self.metadata = {"autoreset_mode": mode}

    def _seen(self) -> Any:
        return np.arange(self.num_envs, dtype=np.float32)[:, None], self._state.copy()

    def reset(self, *, options: Any = None, **_kwargs: Any) -> Any:
        self._state[(options or {}).get("reset_mask", ...)] = 0
        self._told[:] = -1
        return self._seen(), {}

    def step(self, actions: Array) -> Any:
        self._state += 1
        self._told[:] = self._state[:, 0]
        over, last, info = self._told == [2, 3], self._seen(), {"at": self._told}
        if self._form != "disabled" and over.any():
            final: Any = {"at": self._told.copy(), "_at": over}
            if self._form == "infos":
                each = [
                    {"at": at} if ended else None for at, ended in zip(last[1], over, strict=True)
                ]
                final = np.array(each, object)
            info = {"final_obs": last, "final_info": "none" if self._form == "wrong" else final}
            self._state[over] = 0
        return self._seen(), over * 1.0, over, ~over & over, info


def test_last_observations_may_be_one_of_each_in_a_tuple() -> None:
    class Listing(PairEnv):
        def __init__(self, env_num: int) -> None:
            super().__init__(env_num, "arrays")
            self.single_observation_space = gymnasium.spaces.Box(-1, 9, (2,))

        def _seen(self) -> Any:
            return np.concatenate(super()._seen(), axis=1)

        def step(self, actions: Array) -> Any:
            *made, info = super().step(actions)
            if "final_obs" in info:
                info["final_obs"] = tuple(info["final_obs"])
            return *made, info

    with vector_manager(lambda: Listing(2), 2) as envs:
        envs.launch()
        for _ in range(3):
            step = envs.step({"action": np.zeros(2, np.int64)})
        assert step.successor["observation"][1].tolist() == [1, 3]


@pytest.mark.parametrize("form", ["disabled", "arrays", "infos"])
def test_the_last_tuple_and_info_are_those_of_the_episode(form: str) -> None:
    with vector_manager(lambda: PairEnv(2, form), 2) as envs:
        envs.kept = ("at",)
        envs.launch()
        for ended in ([False, False], [True, False], [False, True]):
            step = envs.step({"action": np.zeros(2, np.int64)})
            assert step.ended.tolist() == ended
            for env in np.flatnonzero(ended):
                last = [step.successor[f"observation/{part}"][env, 0] for part in (0, 1)]
                assert (last, step.infos["info/at"][env]) == ([env, 2 + env], 2 + env)
        infos = envs.take_episodes().infos
    assert infos == [{"at": 2.0}, {"at": 3.0}]


def test_infos_without_masks_are_numbers_of_all_environments() -> None:
    class Telling(PairEnv):
        def step(self, actions: Array) -> Any:
            *made, _ = super().step(actions)
            half = {"half": self._told / 2}
            odd = {"text": "a", "other": np.zeros(5), "ragged": [[1.0], 2.0], 7: "seven"}
            masked = {"masked": self._told, "_masked": self._told == 2, "none": None}
            return *made, {"at": self._told.copy(), "deep": half, 8: {"a/b": half}, **odd, **masked}

    with vector_manager(lambda: Telling(2, "disabled"), 2) as envs:
        envs.kept = ("at", "deep/half", "masked", "8/a/b/half")
        envs.launch()
        for _ in range(3):
            step = envs.step({"action": np.zeros(2, np.int64)})
        for name in ("deep/half", "8/a/b/half"):
            assert step.infos[f"info/{name}"].tolist() == [0.5, 1.5]
        infos = envs.take_episodes().infos
    both = ({"deep/half": half, "8/a/b/half": half} for half in (1.0, 1.5))
    last = ({"at": 2.0, "masked": 2.0}, {"at": 3.0})
    assert infos == [own | halves for own, halves in zip(last, both, strict=True)]


def test_last_infos_of_another_form_are_refused() -> None:
    action = {"action": np.zeros(2, np.int64)}
    with launched(lambda env_num: PairEnv(env_num, "wrong")) as envs:
        envs.step(action)
        with pytest.raises(EnvError, match="final_info: the text 'none', and must be a mapping of"):
            envs.step(action)


@pytest.mark.parametrize("metadata", [{}, {"autoreset_mode": "NextStep"}])
def test_an_environment_must_say_how_it_resets(metadata: dict[str, Any]) -> None:
    class SilentEnv(InPlaceEnv):
        pass

    SilentEnv.metadata = metadata
    manager = vector_manager(lambda: SilentEnv(2), 2)
    with pytest.raises(EnvError, match="does not say how it resets"):
        manager.launch()


def test_same_step_needs_the_last_observation_in_info() -> None:
    class LostEnv(InPlaceEnv):
        metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

        def step(self, actions: Array) -> Any:
            observation, reward, no, _, info = super().step(actions)
            return observation, reward, ~no, no, info

    with (
        launched(LostEnv) as manager,
        pytest.raises(EnvError, match="its info has no 'final_obs'"),
    ):
        steps_of(manager, 1)


class Refuses(gymnasium.Env[Any, Any]):
    """Allows one action in each step, the last of its mask, and refuses all others."""

    def __init__(self, length: int, acts: gymnasium.Space[Any], entries: int) -> None:
        self._length, self.action_space = length, acts
        self.observation_space = gymnasium.spaces.Dict(
            observation=gymnasium.spaces.Box(0, 9, (1,), np.float32),
            action_mask=gymnasium.spaces.MultiBinary(entries),
        )
        # of a choice among three, and where there is another one, among two
        self._mask = np.array([0, 0, 1, 0, 1][:entries], np.int8)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self._at = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._at += 1
        parts = action.values() if isinstance(action, dict) else [action]
        if [*np.concatenate([np.ravel(part) for part in parts])] not in ([2], [2, 1]):
            raise ValueError(f"{action} is not legal")
        return self._seen(), 1.0, self._at == self._length, False, {}

    def _seen(self) -> dict[str, Any]:
        return {"observation": np.zeros(1, np.float32), "action_mask": self._mask}


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize(
    ("acts", "entries", "action"),
    [
        (gymnasium.spaces.Discrete(3), 3, {"action": 2}),
        (gymnasium.spaces.MultiDiscrete([3, 2]), 5, {"action": [2, 1]}),
        (
            gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(3), b=gymnasium.spaces.Discrete(2)),
            5, {"action/a": 2, "action/b": 1},
        ),
    ],
)  # fmt: skip
def test_those_that_have_done_their_episodes_are_stepped_by_legal_actions(
    mode: AutoresetMode, acts: Any, entries: int, action: dict[str, Any]
) -> None:
    def make() -> VectorEnv[Any, Any, Any]:
        envs = [partial(Refuses, length, acts, entries) for length in (2, 5)]
        return SyncVectorEnv(envs, autoreset_mode=mode)

    with vector_manager(make, 2) as envs:
        envs.launch()
        envs.reset(quota=1)
        for _ in range(5):
            given = {name: np.array([part, part]) for name, part in action.items()}
            for column in given.values():
                column[~envs.ready] = 0
            envs.step(given)
        assert (envs.done, envs.failures) == (True, 0)
        assert sorted(envs.take_episodes().lengths.tolist()) == [2, 5]


class RefusesZeros(CountEnv):
    """Its actions are between 1 and 2."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.action_space: Any = gymnasium.spaces.Box(1.0, 2.0, (1,), np.float32)

    def step(self, action: Any) -> Any:
        if action not in self.action_space:
            raise ValueError(f"{action} is out of bounds")
        return super().step(action)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_those_that_have_done_their_episodes_are_stepped_by_actions_within_bounds(
    mode: AutoresetMode,
) -> None:
    def make() -> VectorEnv[Any, Any, Any]:
        envs = [partial(RefusesZeros, length) for length in (2, 5)]
        return SyncVectorEnv(envs, autoreset_mode=mode)

    with vector_manager(make, 2) as envs:
        envs.launch()
        envs.reset(quota=1)
        for _ in range(5):
            envs.step({"action": np.where(envs.ready, 1.5, 0.0)[:, None].astype(np.float32)})
        assert (envs.done, envs.failures) == (True, 0)


class ByOneSeed(PairEnv):
    """Resets by gymnasium's base, which takes one seed for all; its environments never end."""

    def __init__(self, env_num: int) -> None:
        super().__init__(env_num, "disabled")
        self.masks: list[list[bool]] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        VectorEnv.reset(self, seed=seed)
        self.masks.append([*(options or {}).get("reset_mask", np.ones(self.num_envs, bool))])
        return super().reset(options=options)


def test_single_environments_are_reset_by_the_one_seed_that_they_share() -> None:
    """A list of seeds, with None of those that go on, ended evaluations whose episodes were cut."""
    made: list[ByOneSeed] = []

    def make() -> ByOneSeed:
        made.append(ByOneSeed(2))
        return made[-1]

    with vector_manager(make, 2) as envs:
        envs.launch()
        envs.reset({1: None})
        envs.reset({0: {"seed": 7}})
        assert made[0].np_random_seed == 7
        envs.max_steps = 1
        envs.step({"action": np.zeros(2, np.int64)})
        assert envs.take_episodes().lengths.tolist() == [1, 1]
    assert made[0].masks == [[True, True], [False, True], [True, False], [True, True]]


class RunsAway(VectorEnv[Array, Array, Array]):
    """The first never ends and returns NaN from its fourth step on; the other ends after two."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 (gymnasium's own way)
    num_envs = 2
    single_observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    single_action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self._at = np.zeros((2, 1), np.float32)
        return self._at.copy(), {}

    def step(self, actions: Array) -> Any:
        self._at += 1
        self._at[self._at[:, 0] > [99, 2]] = 0
        seen = np.where((self._at > 3) & [[True], [False]], np.nan, self._at)
        return seen, np.ones(2), self._at[:, 0] == [99, 2], np.zeros(2, bool), {}


@pytest.mark.parametrize("quota", [2, None])
def test_one_that_waits_after_a_cut_takes_no_episode_with_it(quota: int | None) -> None:
    """Nobody plays it until all are reset."""
    with vector_manager(RunsAway, 2) as envs:
        envs.launch()
        envs.max_steps = 3
        envs.reset(quota=quota)
        for _ in range(8):
            envs.step({"action": np.zeros(2, np.int64)})
        assert (envs.done, envs.failures) == (quota == 2, 0)
        ended = envs.take_episodes()
    lasts = (0, 3) if quota else (1, 2)
    assert [*zip(ended.rows, ended.lengths, strict=True)] == [(1, 2), (0, 3), (1, 2), lasts]


@pytest.mark.parametrize("is_cut", [True, False])
def test_an_episode_is_dropped_where_another_s_beginning_takes_it(is_cut: bool) -> None:
    """It went on in the returns, though all environments were made anew."""
    resets = itertools.count()

    class FailsTwice(CountEnv):
        def reset(self, **given: Any) -> Any:
            if next(resets) in (1, 2):
                raise RuntimeError("planted")
            return super().reset(**given)

    fns = [partial(FailsTwice, 9), partial(CountEnv, 3)]
    make = partial(SyncVectorEnv, fns, autoreset_mode=AutoresetMode.DISABLED)
    with vector_manager(make, 2, retry_waiting_time=0.0) as envs:
        envs.launch()
        envs.max_steps = 4 if is_cut else None
        _, last = steps_of(envs, 4)[-1]
        if is_cut:
            assert last.failed is not None
            assert (last.failed.tolist(), last.live.tolist()) == ([False, True], [True, False])
        else:
            envs.reset({0: None})
            assert envs.resets.tolist() == [1, 1]
        steps_of(envs, 3)
        ended = envs.take_episodes()
        assert envs.health["episodes_dropped"] == 1
    assert ended.returns[ended.rows == 1].tolist() == [6.0, 6.0]


def test_what_was_acted_on_stays_where_all_are_reset_after_a_cut() -> None:
    with vector_manager(partial(InPlaceEnv, 2), 2) as envs:
        envs.launch()
        envs.max_steps = 2
        envs.reset(quota=3)
        for acted_on in (0, 1, 0, 1):
            before = seen(envs)
            envs.step({"action": np.zeros(2, np.int64)})
            assert before.tolist() == [[acted_on]] * 2


class SaysMuch(gymnasium.Env[Array, np.int64]):
    """Infos of which gymnasium's vector environments would change, lose or refuse something."""

    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    INFOS = (
        {"drag": 0, "final_score": 0.25, "path": np.zeros(1), "late": None, "force": np.ones(3)},
        {"drag": 0.75, "final_score": 0.5, "path": np.zeros(2), "late": 0.5, "force": np.ones(3)},
    )

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self._at, self._number = 0, self._number if seed is None else seed
        return np.zeros(1, np.float32), {}

    def step(self, action: np.int64) -> Any:
        self._at += 1
        info = {**self.INFOS[self._number], "deep": {"at": self._at}, 7: {"a/b": self._at}}
        return np.zeros(1, np.float32), 0.0, self._at == 2, False, info


@pytest.mark.parametrize(
    ("vectorization", "autoreset"), [("auto", None), ("sync", None), ("sync", "same_step")]
)
def test_infos_are_the_same_where_environments_step_together(
    vectorization: str, autoreset: str | None
) -> None:
    cfg = {
        "type": "gymnasium", "env_id": f"{__name__}:SaysMuch", "collector_env_num": 2,
        "vectorization": vectorization, "autoreset": autoreset,
        "keep_infos": ["drag", "final_score", "late", "force", "deep/at", "7/a/b"],
    }  # fmt: skip
    with create_env_manager(cfg, evaluate=False, seed=np.random.SeedSequence(0)) as envs:
        envs.seeds.all = lambda: [0, 1]  # type: ignore[method-assign]
        envs.launch()
        for _ in range(2):
            step = envs.step({"action": np.zeros(2, np.int64)})
        kept = [step.infos[f"info/{name}"] for name in cfg["keep_infos"]]
        np.testing.assert_array_equal(
            kept, [[0.0, 0.75], [0.25, 0.5], [np.nan, 0.5], [np.nan] * 2, [2.0, 2.0], [2.0, 2.0]]
        )
        assert kept[0].dtype == np.float64
        first = {"drag": 0.0, "final_score": 0.25, "deep/at": 2.0, "7/a/b": 2.0}
        second = {"drag": 0.75, "final_score": 0.5, "late": 0.5, "deep/at": 2.0, "7/a/b": 2.0}
        # an array of one number is that number: only one of the two has it
        assert envs.take_episodes().infos == [{**first, "path": 0.0}, second]


@pytest.mark.parametrize("mode", ["vector_entry_point", "next_step", "same_step", "disabled"])
def test_an_evaluation_is_cut_in_vectors_too(mode: str) -> None:
    """As that of `policy.eval.max_steps`, with the settings of an evaluating collector."""
    make = by_id("CartPole-v1", mode)
    with vector_manager(lambda: make(2), 2, 3) as envs:
        envs.retires = envs.hands_over = True
        envs.max_steps = 12
        envs.launch()
        for number in range(200):
            if not envs.done:
                envs.step({"action": np.array([number % 2, 1])})
        assert len(envs.take_episodes().lengths) == 6


class Begins(CountEnv):
    """Its episodes are cut; an observation says which step it is, of which length of episodes.

    Args:
        length: of an episode.
        nan: episode and step of an observation that is NaN; None: there is none.
    """

    def __init__(self, length: int, nan: tuple[int, int] | None = None) -> None:
        super().__init__(length)
        self._steps, self._nan, self._episodes, self._at = length, nan, 0, 0

    def _seen(self) -> Array:
        is_nan = self._nan == (self._episodes, self._at)
        return np.array([np.nan if is_nan else self._at, self._steps], np.float32)

    def reset(self, **_given: Any) -> Any:
        self._episodes, self._at = self._episodes + 1, 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._at += 1
        return self._seen(), 1.0, False, self._at == self._steps, {}


@pytest.mark.parametrize("mode", MODES)
def test_the_end_of_an_episode_stays_where_another_s_beginning_fails(mode: str) -> None:
    """In that step its last observation was the first one of the environments made anew."""
    made: list[Any] = []
    length = 3 if mode == "next_step" else 2  # so it ends when the other one begins

    def make() -> Any:
        made.append(mode)
        fns = [partial(Begins, 2, (2, 0) if len(made) == 1 else None), partial(Begins, length)]
        return SyncVectorEnv(fns, autoreset_mode=AutoresetMode[mode.upper()])

    with vector_manager(make, 2, retry_waiting_time=0.0) as manager:
        manager.launch()
        taken = [step for _, step in steps_of(manager, 3)]
        assert len(made) == 2
        ended = next(step for step in taken if step.truncated[1])
        assert ended.live[1]
        assert ended.successor["observation"][1].tolist() == [length, length]


@pytest.mark.parametrize("at", [0, 1])
def test_what_nobody_plays_in_an_evaluation_takes_no_episode_with_it(at: int) -> None:
    """A vector goes on with environments that have done their number of episodes."""
    fns = [partial(Begins, 2, (2, at)), partial(Begins, 5)]
    make = partial(SyncVectorEnv, fns, autoreset_mode=AutoresetMode.SAME_STEP)
    with vector_manager(make, 2, 1) as manager:
        manager.launch()
        steps_of(manager, 5)
        assert manager.done
        assert manager.health["env_failures"] == 0
        assert manager.take_episodes().lengths.tolist() == [2, 5]
