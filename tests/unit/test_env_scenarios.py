"""What differs by episode, by evaluation and by environment: seeds, arguments, folders, lives."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv

from hpcdi.config.env import seeds_of
from hpcdi.env.arguments import is_numbered, make_numbered, numbered
from hpcdi.env.create import create_env_manager, get_env_cls
from hpcdi.env.manager import EnvManager
from hpcdi.env.probe import look_at
from hpcdi.env.vector import VectorEnvs
from hpcdi.errors import ConfigError

pytestmark = pytest.mark.usefixtures("env_helpers")


class Seeded(gymnasium.Env[Any, Any]):
    """Observes the seed of its episode, which lasts two steps, and an argument."""

    action_space = spaces.Discrete(2)

    def __init__(self, level: int = 0, size: int = 2) -> None:
        self.observation_space = spaces.Box(-1, 5e9, (size,), np.float32)
        self._level = level

    def _seen(self) -> Any:
        seen = np.full(self.observation_space.shape or (), self._level, np.float32)
        seen[0] = -1 if self._seed is None else self._seed
        return seen

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._seed, self._left = seed, 2
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._left -= 1
        return self._seen(), 0.0, not self._left, False, {}


class Born(Seeded):
    """Observes how many were made before it, in its process, and leaks."""

    born: ClassVar[int] = 0
    kept: ClassVar[list[bytearray]] = []

    def __init__(self) -> None:
        super().__init__(level=Born.born)
        Born.born += 1
        if folder := os.environ.get("HPCDI_ENV_FOLDER"):
            (Path(folder) / "made").touch()

    def step(self, action: Any) -> Any:
        Born.kept.append(bytearray(2 << 20))
        return super().step(action)


class Failing(Seeded):
    """One of some number fails in steps of its second episode, and of all later ones."""

    def __init__(self, index: int, broken: int) -> None:
        super().__init__()
        self._fails, self._episodes = index == broken, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._episodes += 1
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        if self._fails and self._episodes > 1:
            raise RuntimeError("broken")
        return super().step(action)


def manager(*, evaluate: bool = False, **env: Any) -> EnvManager:
    cfg = {
        "type": "gymnasium", "env_id": f"{__name__}:Seeded", "collector_env_num": 2,
        "evaluator_env_num": 2, "evaluator_episode_num": 2, **env,
    }  # fmt: skip
    return create_env_manager(cfg, evaluate=evaluate, seed=np.random.SeedSequence(3))


def seeds_seen(envs: EnvManager, steps: int) -> list[list[float]]:
    """The seeds of the episodes that begin, of each environment."""
    seen: list[list[float]] = [[] for _ in range(envs.env_num)]
    for step in range(steps):
        if step % 2 == 0:
            for env, row in enumerate(envs.observation["observation"]):
                seen[env].append(row[0])
        envs.step({"action": np.zeros(envs.rows, np.int64)})
    return seen


def test_seeds_are_named_one_by_one_or_by_ranges() -> None:
    assert seeds_of("3..5") == (3, 4, 5)
    assert seeds_of([7, "10..11", 1]) == (7, 10, 11, 1)
    assert seeds_of(()) == seeds_of("") == ()
    for wrong in (["-1"], "a..b", ["3.5"], "5..3", [0, "1..0"], "0..", "..", [3, "7.. "]):
        with pytest.raises(ValueError, match="is "):
            seeds_of(wrong)
    with pytest.raises(ValueError, match="more than 10,000,000 seeds"):
        seeds_of("0..4294967295")
    with pytest.raises(ConfigError, match=r"seeds: is 'x'"):
        manager(seeds="x")
    with pytest.raises(ConfigError, match="vectorization"):
        manager(seeds="0..3", vectorization="sync")


@pytest.mark.parametrize("kind", ["base", "subprocess"])
def test_scenarios_are_drawn_evenly_in_orders_that_differ(kind: str) -> None:
    with manager(seeds="10..13", manager={"type": kind}) as envs:
        envs.launch()
        first, second = seeds_seen(envs, 16)
    assert sorted(first[:4]) == sorted(first[4:]) == [10, 11, 12, 13]
    assert sorted(second[:4]) == [10, 11, 12, 13]
    assert Counter(first) == dict.fromkeys([10, 11, 12, 13], 2)
    assert first != second


def test_each_evaluation_plays_the_set_once_in_order() -> None:
    with manager(evaluate=True, seeds="10..13", eval_seeds=[4, 5, 6, 7]) as envs:
        envs.launch()
        for _ in range(2):
            envs.reset()
            assert seeds_seen(envs, 4) == [[4, 6], [5, 7]]


def seeds_played(envs: EnvManager) -> list[int]:
    """The seeds of the episodes that end, until all are done."""
    played: list[int] = []
    for _ in range(100):
        if envs.done:
            return played
        step = envs.step({"action": np.zeros(envs.rows, np.int64)})
        assert step.seeds is not None
        played += step.seeds[step.ended & step.live, 0].tolist()
    raise AssertionError(f"only {played} were played")


@pytest.mark.parametrize("kind", ["base", "subprocess"])
@pytest.mark.parametrize(("episodes", "broken"), [(1, 1), (2, 1), (2, 0), (3, 2)])
def test_what_a_retired_environment_has_left_of_an_evaluation_others_play(
    kind: str, episodes: int, broken: int
) -> None:
    """Also where they had played theirs; the mean was over the others' seeds alone."""
    given, count = list(range(10, 10 + 3 * episodes)), 3
    env = {"env_id": f"{__name__}:Failing", "evaluator_env_num": count, "collector_env_num": 1}
    env |= {"eval_kwargs": {"index": "{index}", "broken": 1 + broken}, "eval_seeds": given}
    env |= {"kwargs": {"index": 0, "broken": -1}, "evaluator_episode_num": episodes}
    settings = {"type": kind, "max_retry": 1, "retry_type": "reset"}
    with manager(evaluate=True, **env, manager=settings) as envs:
        envs.retires = envs.hands_over = True
        envs.launch()
        for retired in (0, 1, 1):
            envs.reset()
            assert envs.health["envs_retired"] == retired
            assert sorted(seeds_played(envs)) == given
            assert len(envs.take_episodes().returns) == len(given)


@pytest.mark.parametrize("kind", ["base", "subprocess"])
def test_an_evaluation_plays_as_many_episodes_without_a_set_of_seeds(kind: str) -> None:
    env = {"env_id": f"{__name__}:Failing", "collector_env_num": 1}
    env |= {"eval_kwargs": {"index": "{index}", "broken": 1}, "kwargs": {"index": 0, "broken": -1}}
    settings = {"type": kind, "max_retry": 1, "retry_type": "renew"}
    with manager(evaluate=True, **env, manager=settings, evaluator_episode_num=3) as envs:
        envs.retires = envs.hands_over = True
        envs.launch()
        envs.max_steps = 1  # what is cut begins no other episode, but for those of others
        for _ in range(2):
            envs.reset()
            while not envs.done:
                envs.step({"action": np.zeros(envs.rows, np.int64)})
            assert len(envs.take_episodes().lengths) == 6
        assert envs.health["envs_retired"] == 1


def test_a_seed_whose_episode_has_failed_is_played_again() -> None:
    """It was left out, and another came twice."""
    env = {"env_id": f"{__name__}:FailingOnce", "eval_seeds": [4, 5, 6], "collector_env_num": 1}
    for retry in ("reset", "renew"):
        FailingOnce.failures = 0
        settings = {"type": "base", "retry_type": retry}
        with manager(evaluate=True, **env, manager=settings) as envs:
            envs.hands_over = True
            envs.launch()
            envs.reset(quota=[2, 1])
            assert sorted(seeds_played(envs)) == [4, 5, 6]
        assert FailingOnce.failures == 1


class BlowsUp(Seeded):
    """Ends once by a NaN, in the last step of an episode, of the seed that it is told."""

    failures: ClassVar[int] = 0

    def __init__(self, bad: int = -1) -> None:
        super().__init__()
        self._bad = bad

    def step(self, action: Any) -> Any:
        seen, *others = super().step(action)
        if self._seed == self._bad and not self._left and not BlowsUp.failures:
            BlowsUp.failures += 1
            seen[1] = np.nan
        return seen, *others


@pytest.mark.parametrize("bad", range(10, 16))
def test_a_seed_whose_last_step_has_failed_is_played_again(bad: int) -> None:
    """As of a simulation that blows up, and says that it has ended."""
    env = {"env_id": f"{__name__}:BlowsUp", "eval_seeds": "10..15", "collector_env_num": 1}
    env |= {"evaluator_episode_num": 3, "eval_kwargs": {"bad": bad}}
    BlowsUp.failures = 0
    with manager(evaluate=True, **env, manager={"type": "base"}) as envs:
        envs.hands_over = True
        envs.launch()
        envs.reset()
        assert sorted(seeds_played(envs)) == [*range(10, 16)]
    assert BlowsUp.failures == 1


class FailingOnce(Seeded):
    """Fails in the first step of the seed 5, once."""

    failures: ClassVar[int] = 0

    def step(self, action: Any) -> Any:
        if self._seed == 5 and not FailingOnce.failures:
            FailingOnce.failures += 1
            raise RuntimeError("once")
        return super().step(action)


def test_without_a_set_seeds_are_as_before() -> None:
    with manager(evaluate=True, seeds="10..13") as envs:
        envs.launch()
        assert envs.observation["observation"][:, 0].min() > 1_000  # any seed


def test_evaluations_have_other_arguments_and_the_same_spaces() -> None:
    given = {"kwargs": {"level": 1}, "eval_kwargs": {"level": 7}}
    for evaluate, level in ((False, 1), (True, 7)):
        with manager(evaluate=evaluate, **given) as envs:
            envs.launch()
            assert envs.observation["observation"][:, 1].tolist() == [level, level]
    cfg = {"type": "gymnasium", "env_id": f"{__name__}:Seeded", "eval_kwargs": {"size": 3}}
    with pytest.raises(ConfigError, match=r"eval_kwargs: leads to other spaces"):
        look_at(get_env_cls(cfg).parse_config(cfg))


@pytest.mark.parametrize("numbered_ones", ["kwargs", "eval_kwargs"])
def test_evaluations_are_vectorised_or_not_by_their_own_arguments(numbered_ones: str) -> None:
    """Where each is made by itself for its number, it is a single one."""
    given: dict[str, dict[str, Any]] = {
        "kwargs": {}, "eval_kwargs": {"sutton_barto_reward": False},
    }  # fmt: skip
    given[numbered_ones] = {"sutton_barto_reward": "{index}"}
    cfg = {"type": "gymnasium", "env_id": "CartPole-v1", **given}
    assert look_at(get_env_cls(cfg).parse_config(cfg)).spaces.observation[0].shape == (4,)


def test_what_only_evaluations_cannot_take_is_said_of_their_arguments() -> None:
    cfg = {"type": "gymnasium", "env_id": f"{__name__}:Seeded", "eval_kwargs": {"sise": 3}}
    with pytest.raises(ConfigError, match=r"env\.eval_kwargs: .*'sise'"):
        look_at(get_env_cls(cfg).parse_config(cfg))


def test_environments_are_made_anew_after_some_episodes() -> None:
    born = {"env_id": f"{__name__}:Born", "collector_env_num": 1, "seeds": "0..7"}
    Born.born = 0
    with manager(**born, manager={"renew_after": "2 episodes"}) as envs:
        envs.launch()
        seen = []
        for _ in range(5):
            seen.append(envs.observation["observation"][0].tolist())
            for _ in range(2):
                step = envs.step({"action": np.zeros(1, np.int64)})
                assert step.live.all()
            assert step.terminated.all()
            assert step.successor["observation"][0, 0] == seen[-1][0], "of the old one"
    assert [level for _, level in seen] == [0, 0, 1, 1, 2]
    assert len({seed for seed, _ in seen}) == 5, "no scenario is left out or comes twice"
    Born.kept.clear()


def test_a_process_that_has_grown_is_made_anew_in_its_own_folder(tmp_path: Path) -> None:
    given = {"type": "subprocess", "renew_after": "6 MiB", "folder": str(tmp_path / "envs")}
    with manager(env_id=f"{__name__}:Born", collector_env_num=2, manager=given) as envs:
        envs.launch()
        before = envs.child_pids
        for _ in range(8):
            envs.step({"action": np.zeros(2, np.int64)})
        assert not set(before) & set(envs.child_pids)
        assert envs.failures == 0
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.glob("envs/*/made")) == [
        "envs/000000/made", "envs/000001/made",
    ]  # fmt: skip


def test_renewals_are_of_episodes_or_of_a_process() -> None:
    with pytest.raises(ConfigError, match=r"renew_after: MiB are those of a child process"):
        manager(manager={"renew_after": "5 MiB"})
    for wrong in ("often", "1.2.3 episodes", ". episodes", "0 episodes"):
        with pytest.raises(ConfigError, match=r"renew_after: is a number above 0 and one of"):
            manager(manager={"renew_after": wrong})


def test_a_folder_stands_in_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen = make_numbered(lambda: numbered({"save": "{folder}/x", "n": "{index}"}), 3, "envs")
    assert seen == {"save": f"{tmp_path}/envs/000003/x", "n": 3}
    assert is_numbered(["{folder}"])
    assert "HPCDI_ENV_FOLDER" not in os.environ


def test_a_folder_in_arguments_without_one_is_refused() -> None:
    """It was nothing: files lay at the root."""
    kwargs = {"save": ["{folder}/x"]}
    with (
        pytest.raises(ConfigError, match=r"env.manager.folder: is empty, .* '\{folder\}/x'"),
        manager(kwargs=kwargs) as envs,
    ):
        envs.launch()


class Endless(Born):
    """Its episodes are cut."""

    def step(self, action: Any) -> Any:
        return self._seen(), 0.0, False, False, {}


@pytest.mark.parametrize("kind", ["Born", "Endless"])
@pytest.mark.parametrize("quota", [1, 3])
def test_those_of_evaluations_are_made_anew_too(kind: str, quota: int) -> None:
    """None was, where an evaluation had ended with its last episode, or an episode was cut."""
    given = {"env_id": f"{__name__}:{kind}", "evaluator_env_num": 1}
    Born.born = 0
    with manager(
        evaluate=True, **given, manager={"renew_after": "2 episodes"}, evaluator_episode_num=quota
    ) as envs:
        envs.hands_over, envs.max_steps = True, 2
        envs.launch()
        seen = []
        for _ in range(6 // quota):
            envs.reset(quota=quota)
            while not envs.done:
                seen.append(envs.observation["observation"][0, 1])
                envs.step({"action": np.zeros(1, np.int64)})
    assert seen == [0.0] * 4 + [1.0] * 4 + [2.0] * 4, "two episodes of two steps each"
    Born.kept.clear()


class Grows(Failing):
    """Leaks; one of some number fails, and is retired."""

    def step(self, action: Any) -> Any:
        Born.kept.append(bytearray(4 << 20))
        return super().step(action)


def test_a_process_that_has_grown_is_made_anew_though_another_is_retired() -> None:
    children = {
        "type": "subprocess", "renew_after": "6 MiB", "max_retry": 0, "retry_waiting_time": 0.0,
    }  # fmt: skip
    kwargs = {"index": "{index}", "broken": 0}
    with manager(env_id=f"{__name__}:Grows", kwargs=kwargs, manager=children) as envs:
        envs.retires = True
        envs.launch()
        for _ in range(4):
            envs.step({"action": np.zeros(2, np.int64)})
        before = envs.child_pids
        for _ in range(6):
            envs.step({"action": np.zeros(2, np.int64)})
        assert len(before) == len(envs.child_pids) == 1
        assert before != envs.child_pids


def test_seeds_of_evaluations_leave_collectors_as_they_are() -> None:
    """The look at one said single ones, and collectors stepped a vector."""
    cfg = {"type": "gymnasium", "env_id": "CartPole-v1"}
    for given, vectors in (
        ({"eval_seeds": "0..3"}, [True, False]), ({"seeds": "0..3"}, [False, True]),
    ):  # fmt: skip
        config = get_env_cls(cfg).parse_config({**cfg, **given})
        for evaluate, is_vector in zip((False, True), vectors, strict=True):
            assert get_env_cls(cfg).is_vector(config, evaluate=evaluate) == is_vector
            seed = np.random.SeedSequence(0)
            envs = create_env_manager(config, evaluate=evaluate, seed=seed)
            assert isinstance(envs._backend, VectorEnvs) == is_vector


class Wide(CartPoleEnv):
    """Its vector form has other observations."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Box(-9, 9, (5,), np.float32)


def test_single_ones_of_evaluations_are_looked_at_beside_a_vector_of_collectors() -> None:
    """What could not be made so ended the run at its first evaluation."""
    for single in (None, Wide):
        gymnasium.register("test/V-v0", single, vector_entry_point=CartPoleVectorEnv)
        try:
            cfg = {"type": "gymnasium", "env_id": "test/V-v0"}
            seen = look_at(get_env_cls(cfg).parse_config(cfg))
            scenarios = get_env_cls(cfg).parse_config({**cfg, "eval_seeds": "0..3"})
            if single is None:
                with pytest.raises(ConfigError, match="entry_point is not specified"):
                    look_at(scenarios)
            else:  # collectors take single ones, too: the vector is another environment
                assert look_at(scenarios).spaces == seen.spaces
                assert seen.observation_space == single().observation_space
        finally:
            gymnasium.registry.pop("test/V-v0")
