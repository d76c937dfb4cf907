"""Environments whose right data are known: name this module in `import_names` to use them."""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np

from hpcdi.types import Array
from hpcdi.utils.backoff import wait_s

EXIT_CODE = 7
"""Exit code of a process that `exit_at` ends."""


class _ToyEnv(gymnasium.Env[Any, Any]):
    """An environment that says how its episodes begin (`_begin`), and what is seen (`_observe`)."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode."""
        super().reset(seed=seed, options=options)
        self._begin()
        return self._observe(), {}

    def _begin(self) -> None:
        raise NotImplementedError

    def _observe(self) -> Any:
        raise NotImplementedError


class CountEnv(_ToyEnv):
    """Counts its steps; every number in its data can be foretold.

    The observation is ``[steps of this episode, number of the episode]``, the reward of a step its
    number (1, 2, ...). Episodes end after `length` steps, those with an even number by termination,
    the others by truncation. Actions change nothing.

    Args:
        length: steps of an episode.
        fail_at: raise at this step of the environment's life; 0: never.
        hang_at: sleep for ever in this step of its life; 0: never.
        exit_at: end the process in this step of its life; 0: never.
    """

    def __init__(
        self, length: int = 5, fail_at: int = 0, hang_at: int = 0, exit_at: int = 0
    ) -> None:
        self.observation_space = gymnasium.spaces.Box(0, np.inf, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._length = length
        self._faults = {"fail": fail_at, "hang": hang_at, "exit": exit_at}
        self._episode, self._steps, self._life = -1, 0, 0

    def _begin(self) -> None:
        """Begin the next episode."""
        self._episode += 1
        self._steps = 0

    def step(self, _action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Count one step."""
        self._steps += 1
        self._life += 1
        for fault, at in self._faults.items():
            if self._life == at:
                _strike(fault, at)
        ended = self._steps == self._length
        terminated = ended and self._episode % 2 == 0
        return self._observe(), float(self._steps), terminated, ended and not terminated, {}

    def _observe(self) -> Array:
        return np.array([self._steps, self._episode], dtype=np.float32)


class MemoryLenEnv(_ToyEnv):
    """Shows a cue at the start of an episode, and asks for it at the end (as bsuite's memory_len).

    The observation is ``[share of the episode that is left, the cue]``: -1 or 1 in the first step,
    0 afterwards. The reward of the last step is 1 for action 0 after -1 and action 1 after 1, else
    -1; all others are 0. Who remembers nothing has a mean return of 0.

    Args:
        length: steps from the first to the last one.
    """

    def __init__(self, length: int = 30) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._length, self._steps, self._cue = length, 0, 0

    def _begin(self) -> None:
        """Begin the next episode."""
        self._steps, self._cue = 0, int(self.np_random.integers(2))

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Only the last action counts."""
        self._steps += 1
        ended = self._steps > self._length
        reward = (1.0 if int(action) == self._cue else -1.0) if ended else 0.0
        return self._observe(), reward, ended, False, {}

    def _observe(self) -> Array:
        cue = 2.0 * self._cue - 1 if self._steps == 0 else 0.0
        return np.array([1 - self._steps / (self._length + 1), cue], dtype=np.float32)


class BitFlipEnv(_ToyEnv):
    """Flips one of n bits a step, until they are those of the goal (Andrychowicz et al. 2017, 3.1).

    The reward is 1 in the step that reaches the goal, which ends the episode, else 0; an episode
    has at most n steps. The best possible mean return is 1, and who acts at random sees next to no
    reward where n is 15 or more.

    Args:
        bits: n.
    """

    def __init__(self, bits: int = 15) -> None:
        names = ("observation", "achieved_goal", "desired_goal")
        spaces: dict[str, Any] = {name: gymnasium.spaces.MultiBinary(bits) for name in names}
        self.observation_space: Any = gymnasium.spaces.Dict(spaces)
        self.action_space = gymnasium.spaces.Discrete(bits)
        self._bits, self._steps = np.zeros(bits, np.int8), 0
        self._goal = self._bits

    def _begin(self) -> None:
        """Draw bits and a goal, which differ."""
        self._steps = 0
        self._bits = self._goal
        while (self._bits == self._goal).all():
            self._bits, self._goal = self.np_random.integers(0, 2, (2, len(self._bits)), np.int8)

    def step(self, action: np.int64) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        """Flip a bit."""
        self._steps += 1
        self._bits[int(action)] ^= 1
        terminated = bool(self.compute_terminated(self._bits, self._goal, {}))
        truncated = self._steps == len(self._bits) and not terminated
        return self._observe(), float(terminated), terminated, truncated, {}

    def compute_reward(self, achieved: Array, desired: Array, _info: object) -> Any:
        """1 where a goal [..., bits] is reached, else 0."""
        return self.compute_terminated(achieved, desired, _info).astype(np.float32)

    def compute_terminated(self, achieved: Array, desired: Array, _info: object) -> Any:
        """Whether a goal [..., bits] is reached."""
        return (achieved == desired).all(axis=-1)

    def _observe(self) -> dict[str, Array]:
        bits = self._bits.copy()
        return {"observation": bits, "achieved_goal": bits, "desired_goal": self._goal}


class ReachEnv(_ToyEnv):
    """Moves a point to a goal in a cube of many dimensions; only to be there is no loss.

    Each component of an action, between -1 and 1, moves the point by at most 0.25 a step, within
    -1..1. The reward is 0 in the step that comes within 0.2 of the goal in all components, which
    ends the episode, else -1; an episode has at most 20 steps, of which 8 are enough. The best
    possible mean return in 6 dimensions is -3.97 (the steps of who goes straight there, less 1).

    Args:
        dimensions: of the cube.
    """

    def __init__(self, dimensions: int = 6) -> None:
        box = gymnasium.spaces.Box(-1, 1, (dimensions,), np.float32)
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space: Any = gymnasium.spaces.Dict(dict.fromkeys(names, box))
        self.action_space = box
        self._at = self._goal = np.zeros(dimensions, np.float32)
        self._steps = 0

    def _begin(self) -> None:
        """Draw a place and a goal, which is not there."""
        self._steps = 0
        self._at = self._goal
        while self.compute_terminated(self._at, self._goal, {}):
            drawn = self.np_random.uniform(-1, 1, (2, len(self._at))).astype(np.float32)
            self._at, self._goal = drawn

    def step(self, action: Array) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        """Move."""
        self._steps += 1
        self._at = np.clip(self._at + 0.25 * np.clip(action, -1, 1), -1, 1).astype(np.float32)
        terminated = bool(self.compute_terminated(self._at, self._goal, {}))
        return self._observe(), float(terminated) - 1, terminated, self._steps == 20, {}

    def compute_reward(self, achieved: Array, desired: Array, info: object) -> Any:
        """0 where a goal [..., dimensions] is reached, else -1."""
        return self.compute_terminated(achieved, desired, info).astype(np.float32) - 1

    def compute_terminated(self, achieved: Array, desired: Array, _info: object) -> Any:
        """Whether a goal [..., dimensions] is reached."""
        return (np.abs(achieved - desired) < 0.2).all(axis=-1)

    def _observe(self) -> dict[str, Array]:
        at, goal = self._at.copy(), self._goal.copy()
        return {"observation": at, "achieved_goal": at, "desired_goal": goal}


class DeepSeaEnv(_ToyEnv):
    """Sinks a step a row; the treasure is where nothing but right was chosen (bsuite's deep_sea).

    The observation is one-hot, of size x size places. Going right costs 0.01 / size a step, and in
    the last place on the right the reward is 1: the best possible return is 0.99, that of the left
    is 0, and who acts at random finds the treasure in one of 2 ** size episodes.

    Args:
        size: rows, columns, and steps of an episode.
    """

    def __init__(self, size: int = 20) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 1, (size * size,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._size, self._row, self._column = size, 0, 0

    def _begin(self) -> None:
        """Begin at the top on the left."""
        self._row = self._column = 0

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Sink to the left (0) or to the right (1)."""
        reward = -0.01 / self._size * int(action)
        found = int(action) == 1 and self._row == self._column == self._size - 1
        self._column = min(max(self._column + (1 if action else -1), 0), self._size - 1)
        self._row += 1
        return self._observe(), reward + found, self._row == self._size, False, {}

    def _observe(self) -> Array:
        place = np.zeros(self._size * self._size, np.float32)
        if self._row < self._size:
            place[self._row * self._size + self._column] = 1
        return place


class LockEnv(_ToyEnv):
    """A lock of several turns, each right in one of four ways; a wrong one ends the episode.

    The observation is the number of the turn, the reward 1 in the last right one, else 0; the infos
    say it as ``opened``. Who turns at random opens it in one of 4 ** `turns` episodes: a task for a
    curriculum of the attribute ``left``, the turns that are left where an episode begins.

    Args:
        turns: of the lock.
    """

    def __init__(self, turns: int = 12) -> None:
        self.observation_space: Any = gymnasium.spaces.Discrete(turns)
        self.action_space = gymnasium.spaces.Discrete(4)
        self.left = self._turns = turns
        self._at = 0

    def _begin(self) -> None:
        """Begin `left` turns before the end."""
        self._at = self._turns - self.left

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Turn."""
        is_right = int(action) == (7 * self._at + self._at // 4) % 4
        self._at += 1
        opens = is_right and self._at == self._turns
        ends = opens or not is_right
        return self._observe(), float(opens), ends, False, {"opened": float(opens)}

    def _observe(self) -> np.int64:
        return np.int64(min(self._at, self._turns - 1))


def _strike(fault: str, at: int) -> None:
    """Do what a broken environment does."""
    if fault == "fail":
        raise RuntimeError(f"planted failure at step {at}")
    if fault == "exit":
        os._exit(EXIT_CODE)
    while True:
        wait_s(60.0)


gymnasium.register("hpcdi/Count-v0", entry_point="hpcdi.env.toy:CountEnv")
gymnasium.register("hpcdi/BitFlip-v0", entry_point="hpcdi.env.toy:BitFlipEnv")
gymnasium.register("hpcdi/DeepSea-v0", entry_point="hpcdi.env.toy:DeepSeaEnv")
gymnasium.register("hpcdi/Lock-v0", entry_point="hpcdi.env.toy:LockEnv")
gymnasium.register("hpcdi/MemoryLen-v0", entry_point="hpcdi.env.toy:MemoryLenEnv")
gymnasium.register("hpcdi/Reach-v0", entry_point="hpcdi.env.toy:ReachEnv")
