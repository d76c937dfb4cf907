"""DI-engine's bound of an item's staleness as ours."""

from __future__ import annotations

import math


def oldest_kept(max_staleness: float) -> float:
    """Returns the last staleness at which an item is kept.

    Args:
        max_staleness: DI-engine's: the first at which it is dropped.
    """
    return math.ceil(max_staleness) - 1 if math.isfinite(max_staleness) else max_staleness
