"""A walk on a line, which interrupts its process once, as Ctrl-C does."""

from __future__ import annotations

import os
import signal
from typing import Any

import gymnasium
import numpy as np

SMALL = {
    "env.collector_env_num": 2,
    "env.evaluator_env_num": 2,
    "policy.model": {"encoder_hidden_size_list": [8]},
    "policy.collect.n_sample": 16,
    "policy.learn.batch_size": 16,
    "policy.learn.epoch_per_collect": 1,
    "policy.eval.every": "64 env_steps",
}
"""Settings of a short run of it by PPO, by their paths."""


class Walk(gymnasium.Env[Any, Any]):
    """Actions are 3 (left) and 4 (right); the right end pays 1."""

    interrupts_at = 0
    """Steps of all of this process's until it is interrupted; 0: never."""

    def __init__(self, length: int = 5) -> None:
        self.observation_space = gymnasium.spaces.Box(-length, length, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2, start=3)
        self._length, self._at, self._steps = length, 0, 0
        self.level = 1  # means nothing

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._at, self._steps = int(self.np_random.integers(-1, 2)), 0
        return np.array([self._at], np.float32), {}

    def step(self, action: Any) -> Any:
        assert action in (3, 4)
        if Walk.interrupts_at:
            Walk.interrupts_at -= 1
            if not Walk.interrupts_at:
                os.kill(os.getpid(), signal.SIGINT)
        self._at += 2 * (int(action) - 3) - 1
        self._steps += 1
        is_over, is_long = abs(self._at) == self._length, self._steps >= 50
        reward = 1.0 if self._at == self._length else -0.01
        return np.array([self._at], np.float32), reward, is_over, is_long, {}
