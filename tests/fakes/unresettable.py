"""An environment whose reset raises."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class Unresettable(CartPoleEnv):
    """CartPole that cannot begin."""

    def reset(self, **_given: Any) -> Any:
        """Raises."""
        raise ValueError("planted: no reset")


gymnasium.register("test/Unresettable-v0", entry_point=Unresettable)
