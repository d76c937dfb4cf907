"""Memory of columns: runs of rows, copies of them, and large arrays that are used again."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from hpcdi.types import Array

LARGE_BYTES = 1 << 18
"""Below this, the allocator keeps memory by itself."""
BLOCK_ROWS = 4096
"""Records that are copied at once: so few that they stay in the cache from member to member."""
_PART_BYTES = 1 << 22
"""Of columns that is copied at once: twice as quick as much larger or smaller parts."""


def _unheld() -> int:
    """Reference count of an array that only a list and a loop variable hold; Python's choice."""
    for slab in [np.empty(0)]:
        count = sys.getrefcount(slab)
    return count


_UNHELD = _unheld()


class Recycler:
    """Returns arrays whose memory was touched before, so that writing to them costs no page faults.

    The system takes large arrays back page by page, and zeroes each page when it is touched: half
    the time of gathering a batch of frames. Memory is used again once nothing refers to it any
    more: not the caller, not a view, not a tensor that shares its memory.

    Args:
        keep: arrays that are remembered, the newest ones; those that somebody holds are not reused.
        make: returns so many bytes, of any content; None: the system's memory.
        threads: that read large results; by default one, since others compute meanwhile.
    """

    def __init__(
        self, keep: int = 4, make: Callable[[int], Array] | None = None, threads: int = 1
    ) -> None:
        self._keep, self._make, self._threads = keep, make or _bytes, threads
        self._pool: ThreadPoolExecutor | None = None
        self._slabs: list[Array] = []
        has_gil = getattr(sys, "_is_gil_enabled", lambda: True)
        self._counted = has_gil()  # reference counts are exact

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """Returns an array of undefined content that only the caller holds."""
        n_bytes = math.prod(shape) * dtype.itemsize
        if n_bytes < LARGE_BYTES or not self._counted:
            return np.empty(shape, dtype)
        for slab in self._slabs:
            if slab.nbytes == n_bytes and sys.getrefcount(slab) == _UNHELD:
                return slab.view(dtype).reshape(shape)
        slab = self._make(n_bytes)
        self._slabs = [*self._slabs, slab][-self._keep :]
        return slab.view(dtype).reshape(shape)

    def close(self) -> None:
        """End the threads; the next large result would start them again."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def take(self, column: Array, rows: Array) -> Array:
        """``column[rows]``, rows of any shape, each at least 0 and below the column's length."""
        out = self.empty((*rows.shape, *column.shape[1:]), column.dtype)
        if self._threads == 1 or out.nbytes < _PART_BYTES:
            return column.take(rows, axis=0, out=out, mode="clip")
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "takes-rows")

        def take(part: slice) -> None:
            column.take(rows[part], axis=0, out=out[part], mode="clip")

        size = -(-len(rows) // self._threads)
        list(self._pool.map(take, (slice(n, n + size) for n in range(0, len(rows), size))))
        return out


def _bytes(count: int) -> Array:
    return np.empty(count, np.uint8)


class Span(NamedTuple):
    """Consecutive slots, and how far the first of them is from the first item meant."""

    start: int
    stop: int
    offset: int


def copy_rows(pairs: Sequence[tuple[Array, Array]], spans: Iterable[Span]) -> None:
    """Copy the rows that belong into spans of slots, for each pair of a column and its rows."""
    row_bytes = max((rows[:1].nbytes for _, rows in pairs), default=1)
    are_dense = all(column.flags.c_contiguous for column, _ in pairs)
    size = max(1, _PART_BYTES // max(1, row_bytes)) if are_dense else BLOCK_ROWS
    for span in spans:
        ahead = span.offset - span.start
        for start in range(span.start, span.stop, size):
            stop = min(start + size, span.stop)
            for column, rows in pairs:
                column[start:stop] = rows[start + ahead : stop + ahead]


def rows_in(spans: Iterable[Span], column: Array, shared: bool = False) -> Array:
    """A column's rows in spans, in order: a copy, or if `shared` and it is one span, a view."""
    parts = [column[span.start : span.stop] for span in spans]
    if shared and len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else column[:0].copy()


def slots_of(spans: Iterable[Span]) -> Array:
    """All slots of spans, in order."""
    parts = [np.arange(span.start, span.stop) for span in spans]
    return np.concatenate([np.zeros(0, np.int64), *parts])
