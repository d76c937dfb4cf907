"""An environment of everything: a Dict with masks, Discrete from 1, and a cue to remember."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Cards(gymnasium.Env[Any, Any]):
    """The suit that was shown first is asked for four steps later; some cards may not be played."""

    def __init__(self, kind: str = "discrete") -> None:
        self.observation_space = spaces.Dict(
            {
                "suit": spaces.Discrete(3, start=1),
                "pair": spaces.Tuple(
                    (spaces.Box(-9, 9, (2,), np.float32), spaces.MultiDiscrete([2, 3]))
                ),
                "action_mask": spaces.MultiBinary(4 if kind == "discrete" else 7),
            }
        )
        self.action_space = (
            spaces.Discrete(4, start=2) if kind == "discrete" else spaces.MultiDiscrete([4, 3])
        )
        self._is_one = kind == "discrete"

    def _seen(self) -> dict[str, Any]:
        rng = self.np_random
        self._mask = np.ones(4 if self._is_one else 7, np.int8)
        self._mask[int(rng.integers(4))] = 0
        if not self._is_one:
            self._mask[4 + int(rng.integers(3))] = 0
        shown = self._suit if self._at == 0 else int(rng.integers(1, 4))
        pair = rng.normal(5, 2, 2).astype(np.float32), rng.integers(0, [2, 3])
        return {"suit": shown, "pair": pair, "action_mask": self._mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._suit, self._at = int(self.np_random.integers(1, 4)), 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        first = int(action) - 2 if self._is_one else int(action[0])
        assert self._mask[first]
        self._at += 1
        reward = 1.0 + 0.25 * first + (0.5 if first == self._suit else 0.0)
        return self._seen(), reward, self._at == 5, False, {}
