"""An environment that needs a Dict observation and masks: a key, a door, and a map of bytes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class KeyEnv(gymnasium.Env[Any, Any]):
    """Two rooms in a row of `width` places each: find the key, then open the door of its colour.

    Observation: ``place`` (Discrete), ``map`` (bytes [2, width]: where the key lies), ``hands``
    (Tuple of MultiBinary: has the key; Box: share of the time that is left). Who has the key opens
    door 0 or 1, the one that the key's row on the map says: +1, the other one: -1. Actions: left,
    right, take, open 0, open 1; those that are not possible are masked, and taking one raises.

    Args:
        masks: "info", "key" (an observation ``legal``) or "" (nowhere).
        forgets: return a mask that is too short (1), or of which nothing is true (2).
        hides: show the map in an episode's first observation alone, so that it must be remembered.
    """

    WIDTH, LIMIT = 4, 12

    def __init__(self, masks: str = "info", forgets: int = 0, hides: bool = False) -> None:
        hands = spaces.Tuple([spaces.MultiBinary(1), spaces.Box(0, 1, (1,), np.float64)])
        seen = {
            "place": spaces.Discrete(self.WIDTH, start=1),
            "map": spaces.Box(0, 255, (2, self.WIDTH), np.uint8),
            "hands": hands,
        }
        if masks == "key":
            seen["legal"] = spaces.MultiBinary(5)
        self.observation_space = spaces.Dict(seen)
        self.action_space = spaces.Discrete(5)
        self._masks, self._forgets, self._hides = masks, forgets, hides

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._place, self._key = (int(self.np_random.integers(self.WIDTH)) for _ in range(2))
        self._door, self._has_key, self._steps = int(self.np_random.integers(2)), False, 0
        return self._observe()

    def step(self, action: Any) -> Any:
        assert self._legal()[action], f"{action} is not possible"
        self._steps += 1
        opened = action >= 3
        if action < 2:
            self._place += 1 if action else -1
        elif action == 2:
            self._has_key = True
        reward = (1.0 if action - 3 == self._door else -1.0) if opened else 0.0
        return self._observe()[0], reward, opened, self._steps == self.LIMIT, self._observe()[1]

    def _legal(self) -> list[bool]:
        at = self._place
        return [
            at > 0, at < self.WIDTH - 1, at == self._key and not self._has_key,
            self._has_key, self._has_key,
        ]  # fmt: skip

    def _observe(self) -> tuple[dict[str, Any], dict[str, Any]]:
        shown = np.zeros((2, self.WIDTH), np.uint8)
        shown[self._door, self._key] = 0 if self._hides and self._steps else 255
        left = np.array([1 - self._steps / self.LIMIT])
        seen = {
            "place": np.int64(self._place + 1),
            "map": shown,
            "hands": (np.array([self._has_key], np.int8), left),
        }
        mask = np.array(self._legal(), np.int8)
        mask = [mask, mask[:-1], mask * 0][self._forgets]
        if self._masks == "key":
            seen["legal"] = mask
        return seen, {"action_mask": mask} if self._masks == "info" else {}
