"""An environment for runs that must not be solved before they have been started again.

It cannot be stepped faster than by the clock either, so that several runs leave each other room.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import gymnasium

PACE_S = 2e-3


class Paced(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole, at most 500 steps a second; every return is above 2000 once it may be.

    Args:
        run_dir: the run folder.
        restarts: so often the run must have been started again.
        seen: a file that must be there, too; empty: none.
    """

    def __init__(self, run_dir: str, restarts: int, seen: str = "") -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        file = Path(run_dir) / "run.json"
        known = json.loads(file.read_text()).get("restarts", 0) if file.exists() else 0
        self._is_again, self._seen, self._reward = known >= restarts, seen, 1.0

    def reset(self, **options: Any) -> Any:
        may_be_solved = self._is_again and (not self._seen or Path(self._seen).exists())
        self._reward = 1000.0 if may_be_solved else 1.0
        return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        time.sleep(PACE_S)
        observation, _, terminated, truncated, info = self.env.step(action)
        return observation, self._reward, terminated, truncated, info


gymnasium.register("hpcdi/Paced-v0", entry_point="fakes.paced_env:Paced")
