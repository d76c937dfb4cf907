"""CartPole whose steps take as long as asked: a simulator, for benchmarks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium

_SETTLED = 100


class SlowCartPole(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole.

    Args:
        step_s: seconds that a step takes.
        first: a file: whoever makes it is slow, alone among all that have its name; that is the
            first that comes to its hundredth step, and so is in use.
    """

    def __init__(self, step_s: float = 0.0, first: str = "") -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._step_s, self._slow_s = (0.0, step_s) if first else (step_s, 0.0)
        self._first, self._steps = Path(first), 0

    def step(self, action: Any) -> Any:
        """Step, after a while."""
        self._steps += 1
        if self._slow_s and self._steps == _SETTLED and not self._first.exists():
            self._first.touch()
            self._step_s = self._slow_s
        if self._step_s:
            time.sleep(self._step_s)
        return self.env.step(action)


gymnasium.register("hpcdi/SlowCartPole-v0", entry_point="slow_env:SlowCartPole")
