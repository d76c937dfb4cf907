"""A curve as a line of bars."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcdi.utils.console import can_show

_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-=^"
_WIDTH = 32


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """Values in order as a line of bars, each the mean of a part of them; NaN is a blank."""
    bars = _BARS if can_show(_BARS) else _ASCII_BARS
    count = min(width, len(values))
    parts = [
        values[len(values) * k // count : len(values) * (k + 1) // count] for k in range(count)
    ]
    finite = [[value for value in part if math.isfinite(value)] for part in parts]
    means = [sum(part) / len(part) if part else math.nan for part in finite]
    known = [mean for mean in means if mean == mean]
    if not known:
        return " " * width
    low, high = min(known), max(known)
    scale = (len(bars) - 1) / (high - low) if high > low else 0.0
    line = "".join(" " if m != m else bars[round((m - low) * scale)] for m in means)
    return f"{line:{width}}"
