"""An environment whose masks of legal actions are by name, in another order than its action's."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

ACTS = spaces.Dict({"move": spaces.Discrete(3), "attack": spaces.Discrete(2)})  # are sorted
LEGAL = {"move": np.array([1, 0, 1], np.int8), "attack": np.array([0, 1], np.int8)}
OF_LEGAL = {name: spaces.MultiBinary(len(mask)) for name, mask in LEGAL.items()}


class Named(gymnasium.Env[Any, Any]):
    """Moves and attacks; an illegal one raises.

    Args:
        where: its masks are: "info", or the key of its observations.
    """

    action_space: Any = ACTS

    def __init__(self, where: str) -> None:
        self.observation_space = box = spaces.Box(0, 1, (1,), np.float32)
        self._where = where
        if where != "info":
            self.observation_space = spaces.Dict([("at", box), (where, spaces.Dict(**OF_LEGAL))])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        at = np.zeros(1, np.float32)
        if self._where == "info":
            return at, {"action_mask": LEGAL}
        return {"at": at, self._where: LEGAL}, {}

    def step(self, action: Any) -> Any:
        assert all(LEGAL[name][choice] for name, choice in action.items()), "it is not legal"
        observation, info = self.reset()
        return observation, 0.0, False, False, info


class Nameless(Named):
    """The same, with actions that have no names: a move, and an attack."""

    action_space: Any = spaces.MultiDiscrete([3, 2])
