"""An environment that draws, whose class takes no ``render_mode``."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdi.env.toy import CountEnv
from hpcdi.types import Array


class Draws(CountEnv):
    """Counts, and draws a bar as long as the count."""

    _drawn = 0

    def step(self, action: Any) -> Any:
        """Count."""
        self._drawn += 1
        return super().step(action)

    def render(self) -> Array:
        """Draw."""
        picture = np.zeros((32, 48, 3), np.uint8)
        picture[:, : 8 * self._drawn] = 200
        return picture
