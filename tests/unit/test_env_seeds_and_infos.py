"""By which seeds episodes begin, and what is kept of infos: what steps say, whatever they step."""

from __future__ import annotations

from functools import partial
from threading import Event
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from fakes.env_managers import MODES, made, vector_manager
from hpcdi.config.env import GymnasiumConfig
from hpcdi.env.create import make_env_manager
from hpcdi.env.manager import EnvManager
from hpcdi.env.seeds import ScenarioSeeds, SeedStreams
from hpcdi.types import NO_SEED
from hpcdi.worker.dict_envs import DictManager

pytestmark = pytest.mark.usefixtures("env_helpers")
KEPT = ("at", "deep/half", "is_success", "text", "deep/none", "none")


class Telling(gymnasium.Env[Any, Any]):
    """Episodes of two to five steps, by its generator; infos tell of each step and of the end."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._at, self._length = 0, int(self.np_random.integers(2, 6))
        self._seen = self.np_random.random(2).astype(np.float32)
        return self._seen, {"at": -1}

    def step(self, action: Any) -> Any:
        self._at += 1
        is_over = self._at == self._length
        info: dict[str, Any] = {"at": self._at, "deep": {"half": self._at / 2}, "text": "1"}
        if is_over:
            info["is_success"] = self._length > 3
        return self._seen, 0.0, is_over, False, info


def beginning(seed: int, resets: int) -> list[float]:
    env = Telling()
    env.reset(seed=seed)
    for _ in range(resets):
        env.reset()
    seen: list[float] = env._seen.tolist()
    return seen


@pytest.mark.parametrize("form", [*MODES, "pool", "forkserver"])
def test_each_step_says_how_its_episode_began_and_what_its_info_has(form: str) -> None:
    with made(form, [Telling] * 3) as manager:
        manager.kept = KEPT
        manager.launch()
        at, ended = np.zeros(3), 0
        for _ in range(30):
            seen = manager.observation["observation"].copy()
            step = manager.step({"action": np.zeros(3, np.int64)})
            assert step.seeds is not None
            infos = {name.removeprefix("info/"): column for name, column in step.infos.items()}
            assert tuple(infos) == KEPT
            for env in np.flatnonzero(step.live):
                at[env] += 1
                assert seen[env].tolist() == beginning(*step.seeds[env].tolist())
                assert (infos["at"][env], infos["deep/half"][env]) == (at[env], at[env] / 2)
                success = infos["is_success"][env]
                assert success == (at[env] > 3) if step.ended[env] else np.isnan(success)
                assert all(np.isnan(infos[name][env]) for name in KEPT[3:])
            at[step.ended] = 0
            ended += int(step.ended.sum())
        assert ended > 10


def test_scenarios_begin_by_seeds_of_their_own() -> None:
    with made("pool", [Telling] * 2) as manager:
        manager.seeds = ScenarioSeeds((7, 12, 90), np.random.SeedSequence(0), 2)
        manager.launch()
        found = set()
        for _ in range(30):
            seen = manager.observation["observation"].copy()
            step = manager.step({"action": np.zeros(2, np.int64)})
            assert step.seeds is not None
            for env in range(2):
                assert seen[env].tolist() == beginning(*step.seeds[env].tolist())
            found |= {tuple(row) for row in step.seeds.tolist()}
    assert found == {(7, 0), (12, 0), (90, 0)}


def test_seeds_are_ints_of_c() -> None:
    """As simulators take them, such as ale-py's vector environments."""
    streams = SeedStreams(np.random.SeedSequence(0), 1000)
    drawn = [*streams.all(), *map(streams.one, range(1000))]
    assert 0 <= min(drawn) < max(drawn) < 2**31
    assert len(set(drawn)) > 1990


def test_environments_that_share_a_generator_have_no_seed() -> None:
    with made("pool", [Telling]) as manager:
        manager.launch()
        manager._backend.seed_taken = lambda *_, **__: NO_SEED
        manager.reset()
        step = manager.step({"action": np.zeros(1, np.int64)})
    assert step.seeds is None


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("a", "a"), "twice"),
        (("a", "a/b"), "others"),
        *[((name,), "no name") for name in ("/a", "a/", "a//b", "a/.", "a/./b", "")],
    ],
)
def test_names_that_mean_nothing_are_refused(names: tuple[str, ...], said: str) -> None:
    problems = GymnasiumConfig(env_id="CartPole-v1", keep_infos=names).problems()
    assert any(said in problem.message for problem in problems)


class Reusing(gymnasium.Env[Any, Any]):
    """Episodes of three steps; writes to one info, and to what is in it, at each step and reset."""

    observation_space = spaces.Box(0, 9, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, held: Any = None) -> None:
        self._info: dict[str, Any] = {"deep": {}, "held": held}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        return self._told(success=False)

    def step(self, action: Any) -> Any:
        self._t += 1
        is_over = self._t == 3
        seen, info = self._told(success=is_over)
        return seen, 0.0, is_over, False, info

    def _told(self, *, success: bool) -> Any:
        self._info["t"] = self._info["deep"]["t"] = self._t
        self._info["success"] = success
        return np.array([self._t], np.float32), self._info


class BothReusing:
    """A game of two players of `Reusing`."""

    agents = 2
    observation_space = (Reusing.observation_space,) * 2
    action_space = (Reusing.action_space,) * 2

    def __init__(self) -> None:
        self._env = Reusing()
        self._infos = [self._env._info] * 2

    def reset(self, seed: int | None = None) -> Any:
        return [self._env.reset(seed=seed)[0]] * 2

    def step(self, _actions: Any) -> Any:
        seen, reward, over, _, _ = self._env.step(0)
        return [seen] * 2, np.full(2, reward), over, self._infos

    def close(self) -> None:
        pass


class AllReusing(VectorEnv[Any, Any, Any]):
    """Two of `Reusing`, whose infos have one array of both."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012
    num_envs = 2
    single_observation_space, single_action_space = (
        Reusing.observation_space, Reusing.action_space,
    )  # fmt: skip

    def __init__(self) -> None:
        self._t = np.zeros((2, 2), np.int64)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self._t[:] = 0
        return self._t[:, :1].astype(np.float32), {"t": self._t}

    def step(self, actions: Any) -> Any:
        self._t += 1
        is_over, no = self._t[:, 0] == 3, np.zeros(2, bool)
        return self._t[:, :1].astype(np.float32), np.zeros(2), is_over, no, {"t": self._t}


def last_infos(manager: EnvManager) -> Any:
    """Infos of the step that ends an episode of three."""
    with manager:
        dicts = DictManager(manager)
        dicts.launch()
        for _ in range(3):
            timesteps = dicts.step(dict.fromkeys(dicts.ready_obs, 0))
        assert timesteps[0].done
        return timesteps[0].info


@pytest.mark.parametrize(
    ("form", "held"), [("pool", None), ("forkserver", None), ("pool", Event())]
)
def test_an_info_of_an_end_is_not_that_of_the_reset_after_it(form: str, held: Any) -> None:
    """One of an `Event` cannot be copied deeply."""
    info = last_infos(made(form, [partial(Reusing, held)]))
    assert (info["success"], info["t"]) == (True, 3)
    assert info["deep"] == {"t": 3} or held is not None
    assert info["held"] is held


def test_infos_of_a_game_s_end_are_not_those_of_the_reset_after_it() -> None:
    with make_env_manager({"type": "base"}, [BothReusing], battle=True) as manager:
        manager.keeps_infos = True
        manager.launch()
        for _ in range(3):
            manager.step({"action": np.zeros(2, np.int64)})
        assert [(one["success"], one["deep"]) for one in manager.infos[0]] == [(True, {"t": 3})] * 2


@pytest.mark.parametrize("form", ["single", "game", "vector"])
def test_an_info_of_a_step_stays_as_it_was(form: str) -> None:
    made_of = {
        "single": lambda: make_env_manager(None, [Reusing] * 2),
        "game": lambda: make_env_manager(None, [BothReusing], battle=True),
        "vector": lambda: vector_manager(AllReusing, 2),
    }
    with made_of[form]() as manager:
        manager.keeps_infos = True
        manager.launch()
        steps = []
        for _ in range(5):
            manager.step({"action": np.zeros(2, np.int64)})
            infos = manager.infos[0]
            steps.append(infos[1] if form == "game" else infos)
        found = [np.max(info["t"] if form == "vector" else info["deep"]["t"]) for info in steps]
        assert found == [1, 2, 3, 1, 2]


def test_infos_of_ends_of_a_vector_environment_are_not_those_of_the_reset_after_it() -> None:
    info = last_infos(vector_manager(AllReusing, 2))
    assert info["t"].tolist() == [3, 3]
