"""Questions to arrays of truths, asked in each step: their bytes answer quickest.

Of 64 truths `array.any()` takes 2 µs, `numpy.count_nonzero` 0.3, and these 0.1.
"""

from __future__ import annotations

from hpcdi.types import Array


def any_of(truths: Array) -> bool:
    """Returns whether one of an array of bool holds."""
    return truths.tobytes() != bytes(truths.size)


def all_of(truths: Array) -> bool:
    """Returns whether all of an array of bool hold."""
    return 0 not in truths.tobytes()
