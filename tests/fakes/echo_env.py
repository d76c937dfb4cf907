"""An environment whose observations and actions have parts of every kind."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

NESTED = spaces.Dict({
    "arm": spaces.Dict({"angle": spaces.Box(-1, 1, (2,), np.float64)}),
    "gear": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary((2, 2))]),
    "slots": spaces.MultiDiscrete([2, 5], start=[1, 0]),
})  # fmt: skip


class EchoEnv(gymnasium.Env[Any, Any]):
    """Its observation is the action before; the reward counts steps; an episode has three."""

    def __init__(self) -> None:
        self.observation_space = self.action_space = NESTED

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        space = spaces.Dict(NESTED.spaces)
        space.seed(int(self.np_random.integers(2**31)))
        return space.sample(), {}

    def step(self, action: Any) -> Any:
        assert NESTED.contains(action), action
        self._steps += 1
        return action, float(self._steps), self._steps == 3, False, {}
