"""Environments of `hpcdi.env.toy` whose rewards are to be known."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import hpcdi.env.toy  # noqa: F401  (registers them)


@pytest.mark.parametrize("right", [True, False])
def test_a_cue_is_shown_once_and_asked_for_at_the_end(right: bool) -> None:
    env = gymnasium.make("hpcdi/MemoryLen-v0", length=3)
    cues = set()
    for seed in range(8):
        observation, _ = env.reset(seed=seed)
        cue, seen = observation[1], []
        cues.add(float(cue))
        action = int((cue > 0) == right)
        for step in range(4):
            observation, reward, terminated, truncated, _ = env.step(action)
            seen.append(observation[1])
            assert (terminated, truncated) == (step == 3, False)
            assert reward == ((1 if right else -1) if step == 3 else 0)
        assert seen == [0, 0, 0, 0]
    assert cues == {-1.0, 1.0}


def test_a_goal_is_reached_in_eight_steps_by_who_goes_there() -> None:
    env = gymnasium.make("hpcdi/Reach-v0", dimensions=6)
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        total, steps, is_there = 0.0, 0, False
        while not is_there:
            way = observation["desired_goal"] - observation["achieved_goal"]
            observation, reward, is_there, truncated, _ = env.step(np.clip(4 * way, -1, 1))
            total, steps = total + float(reward), steps + 1
            assert not truncated
        assert (total, steps <= 8) == (1 - steps, True)


def test_a_lock_opens_by_one_way_in_each_turn() -> None:
    env = gymnasium.make("hpcdi/Lock-v0", turns=6)
    lock, right = env.unwrapped, list[int]()
    for left in range(6, 0, -1):  # the way of each turn, found by trying
        lock.left = left  # type: ignore[attr-defined]
        ended = []
        for action in range(4):
            observation, _ = env.reset()
            assert observation == 6 - left
            _, reward, terminated, truncated, info = env.step(action)
            assert (reward, truncated) == (info["opened"], False)
            ended.append(terminated and not reward)
        assert sum(ended) == 3
        right.append(ended.index(False))
    assert len(set(right)) > 1
    lock.left = 6  # type: ignore[attr-defined]
    env.reset()
    paid = [env.step(action)[1:3] for action in right]
    assert paid == [(0.0, False)] * 5 + [(1.0, True)]
