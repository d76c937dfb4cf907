"""CartPole whose steps take as long as asked: a simulator, for benchmarks."""

from __future__ import annotations

import time
from typing import Any

import gymnasium


class SlowCartPole(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole.

    Args:
        step_s: seconds that a step takes.
    """

    def __init__(self, step_s: float = 0.0) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._step_s = step_s

    def step(self, action: Any) -> Any:
        """Step, after a while."""
        time.sleep(self._step_s)
        return self.env.step(action)


gymnasium.register("hpcdi/SlowCartPole-v0", entry_point="slow_env:SlowCartPole")
