"""Environments whose right data are known: name this module in `import_names` to use them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from hpcdi.types import Array


class CountEnv(gymnasium.Env[Array, np.int64]):
    """Counts its steps; every number in its data can be foretold.

    The observation is ``[steps of this episode, number of the episode]``, the reward of a step its
    number (1, 2, ...). Episodes end after `length` steps, those with an even number by termination,
    the others by truncation. Actions change nothing.

    Args:
        length: steps of an episode.
        fail_at: raise at this step of the environment's life; 0: never.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium's own way)

    def __init__(self, length: int = 5, fail_at: int = 0) -> None:
        self.observation_space = gymnasium.spaces.Box(0, np.inf, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._length, self._fail_at = length, fail_at
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
        if self._life == self._fail_at:
            raise RuntimeError(f"planted failure at step {self._life}")
        ended = self._steps == self._length
        terminated = ended and self._episode % 2 == 0
        return self._observe(), float(self._steps), terminated, ended and not terminated, {}

    def _observe(self) -> Array:
        return np.array([self._steps, self._episode], dtype=np.float32)


gymnasium.register("hpcdi/Count-v0", entry_point="hpcdi.env.toy:CountEnv")
