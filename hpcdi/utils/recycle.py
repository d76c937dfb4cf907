"""Memory for large results, used again when nobody holds the last ones."""

from __future__ import annotations

import math
import sys

import numpy as np

from hpcdi.types import Array

LARGE_BYTES = 1 << 18
"""Below this, the allocator keeps memory by itself."""


def _unheld() -> int:
    """References to an array that only a list, a loop and the question hold: Python's affair."""
    for slab in [np.empty(0)]:
        count = sys.getrefcount(slab)
    return count


_UNHELD = _unheld()


class Recycler:
    """Gives arrays whose memory was touched before, so that writing to them costs no page faults.

    The system gives large arrays back page by page, and zeroes each page when it is touched: half
    the time of gathering a batch of frames. An array is given again once nothing refers to it any
    more: not the caller, not a view, not a tensor that shares its memory.

    Args:
        keep: as many arrays are remembered, the newest; of those that are held, none is given.
    """

    def __init__(self, keep: int = 4) -> None:
        self._keep = keep
        self._slabs: list[Array] = []
        self._counted = getattr(
            sys, "_is_gil_enabled", lambda: True
        )()  # reference counts are exact

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """An array of undefined content, of the caller alone."""
        n_bytes = math.prod(shape) * dtype.itemsize
        if n_bytes < LARGE_BYTES or not self._counted:
            return np.empty(shape, dtype)
        for slab in self._slabs:
            if slab.nbytes == n_bytes and sys.getrefcount(slab) == _UNHELD:
                return slab.view(dtype).reshape(shape)
        slab = np.empty(n_bytes, np.uint8)
        self._slabs = [*self._slabs[-self._keep + 1 :], slab]
        return slab.view(dtype).reshape(shape)

    def take(self, column: Array, rows: Array) -> Array:
        """``column[rows]``, rows of any shape, each at least 0 and below the column's length."""
        out = self.empty((*rows.shape, *column.shape[1:]), column.dtype)
        return column.take(rows, axis=0, out=out, mode="clip")
