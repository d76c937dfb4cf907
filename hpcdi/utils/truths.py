"""Questions to arrays of truths, asked in each step: a search in their bytes is the quickest.

Of 64 truths `array.any()` takes 2 µs, `numpy.count_nonzero` 0.3, and these less than 0.1.
"""

from __future__ import annotations

from hpcdi.types import Array


def any_of(truths: Array) -> bool:
    """Returns whether one of an array of bool holds; of 0 and 1 in memory, as numpy makes it."""
    return True in truths.tobytes()


def all_of(truths: Array) -> bool:
    """Returns whether all of an array of bool hold."""
    return False not in truths.tobytes()
