"""The manager over gymnasium's vector environments, as arrays: every autoreset mode, one story."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from fakes.env_managers import (
    LENGTH,
    MODES,
    by_id,
    count,
    count_rows,
    launched,
    live_rows,
    steps_of,
)
from hpcdi.env.toy import CountEnv
from hpcdi.types import Array


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_the_transitions_of_the_environment(mode: str) -> None:
    with launched(count(mode)) as manager:
        taken = steps_of(manager, 4 * (LENGTH + 1))
    for env in range(2):
        rows = live_rows(taken, env)
        assert rows[: 4 * LENGTH] == count_rows(4)


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
    assert live.tolist() == [[alive, alive] for alive in pattern]


@pytest.mark.parametrize(
    ("mode", "after_end"), [("next_step", [3, 0]), ("same_step", [0, 1]), ("disabled", [0, 1])]
)
def test_observation_after_an_end_is_what_is_acted_on_next(mode: str, after_end: list[int]) -> None:
    with launched(count(mode)) as manager:
        steps_of(manager, LENGTH)
        assert manager.observation.tolist() == [after_end, after_end]


@pytest.mark.parametrize("mode", MODES)
def test_episodes_that_ended_are_told_once_with_return_and_length(mode: str) -> None:
    with launched(count(mode), env_num=3) as manager:
        steps_of(manager, LENGTH - 1)
        returns, lengths = manager.take_episodes()
        assert (returns.tolist(), lengths.tolist()) == ([], [])
        steps_of(manager, 1)
        returns, lengths = manager.take_episodes()
        assert (returns.tolist(), lengths.tolist()) == ([6.0] * 3, [3] * 3)
        assert manager.take_episodes()[0].size == 0


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
        returns, lengths = manager.take_episodes()
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
        returns, lengths = manager.take_episodes()
    assert (returns.tolist(), lengths.tolist()) == ([1, 1, 15, 15], [1, 1, 5, 5])


@pytest.mark.parametrize("mode", MODES)
def test_without_a_quota_it_is_never_done(mode: str) -> None:
    with launched(count(mode)) as manager:
        steps_of(manager, 20)
        assert not manager.done


@pytest.mark.parametrize("mode", MODES)
def test_reset_begins_episodes_and_counters_anew(mode: str) -> None:
    with launched(count(mode), episode_num=1) as manager:
        steps_of(manager, LENGTH)
        assert manager.done
        manager.reset()
        assert not manager.done
        assert manager.take_episodes()[0].size == 0
        (_, step), *_ = steps_of(manager, 1)
        assert step.live.all()
        assert step.reward.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_next_number_of_episodes_are_whole_ones(mode: AutoresetMode) -> None:
    """Environments that are done first must not begin in the middle of an episode."""

    def make(_env_num: int) -> SyncVectorEnv:
        envs = [lambda: CountEnv(3), lambda: CountEnv(7)]
        return SyncVectorEnv(envs, autoreset_mode=mode)

    with launched(make, episode_num=1) as manager:
        for _ in range(3):
            manager.restart_count()
            assert not manager.done
            while not manager.done:
                steps_of(manager, 1)
            returns, lengths = manager.take_episodes()
            assert (returns.tolist(), lengths.tolist()) == ([6, 28], [3, 7])


def test_episodes_that_are_running_go_on() -> None:
    with launched(count("next_step"), episode_num=1) as manager:
        steps_of(manager, LENGTH - 1)
        manager.restart_count()
        steps_of(manager, 1)
        assert manager.done
        assert manager.take_episodes()[1].tolist() == [LENGTH, LENGTH]


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
        assert manager.observation.dtype == np.float32
        ((_, step),) = steps_of(manager, 1)
        assert manager.observation.dtype == np.float32
    assert step.terminated.all()
    assert step.truncated.all()
    assert step.successor.dtype == np.float32
    assert step.successor.tolist() == [[np.float32(0.1)]] * 2
    assert step.reward.dtype == np.float32
