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


class CountEnv(gymnasium.Env[Array, np.int64]):
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

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium's own way)

    def __init__(
        self, length: int = 5, fail_at: int = 0, hang_at: int = 0, exit_at: int = 0
    ) -> None:
        self.observation_space = gymnasium.spaces.Box(0, np.inf, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._length = length
        self._faults = {"fail": fail_at, "hang": hang_at, "exit": exit_at}
        self._episode, self._steps, self._life = -1, 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin the next episode."""
        super().reset(seed=seed, options=options)
        self._episode += 1
        self._steps = 0
        return self._observe(), {}

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


class MemoryLenEnv(gymnasium.Env[Array, np.int64]):
    """Shows a cue at the start of an episode, and asks for it at the end (as bsuite's memory_len).

    The observation is ``[share of the episode that is left, the cue]``: -1 or 1 in the first step,
    0 afterwards. The reward of the last step is 1 for action 0 after -1 and action 1 after 1, else
    -1; all others are 0. Who remembers nothing has a mean return of 0.

    Args:
        length: steps between the first and the last one.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium's own way)

    def __init__(self, length: int = 30) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._length, self._steps, self._cue = length, 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin the next episode."""
        super().reset(seed=seed, options=options)
        self._steps, self._cue = 0, int(self.np_random.integers(2))
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Only the last action counts."""
        self._steps += 1
        ended = self._steps > self._length
        reward = (1.0 if int(action) == self._cue else -1.0) if ended else 0.0
        return self._observe(), reward, ended, False, {}

    def _observe(self) -> Array:
        cue = 2.0 * self._cue - 1 if self._steps == 0 else 0.0
        return np.array([1 - self._steps / (self._length + 1), cue], dtype=np.float32)


def _strike(fault: str, at: int) -> None:
    """Do what a broken environment does."""
    if fault == "fail":
        raise RuntimeError(f"planted failure at step {at}")
    if fault == "exit":
        os._exit(EXIT_CODE)
    while True:
        wait_s(60.0)


gymnasium.register("hpcdi/Count-v0", entry_point="hpcdi.env.toy:CountEnv")
gymnasium.register("hpcdi/MemoryLen-v0", entry_point="hpcdi.env.toy:MemoryLenEnv")
