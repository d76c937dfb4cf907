"""Consecutive slots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from hpcdi.types import Array

_BLOCK_ROWS = 4096  # of records: so few that they stay in the cache from member to member
_PART_BYTES = 1 << 22  # copied at once: twice as quick as much larger or smaller parts
_MANY_BYTES, _THREADS = 1 << 28, 2  # from there on, two threads are quicker than one


class Span(NamedTuple):
    """Consecutive slots, and how far the first of them is from the first item meant."""

    start: int
    stop: int
    offset: int


def copy_rows(pairs: Sequence[tuple[Array, Array]], spans: Iterable[Span]) -> None:
    """Copy the rows that belong into spans of slots, for each pair of a column and its rows."""
    row_bytes = max((rows[:1].nbytes for _, rows in pairs), default=1)
    are_dense = all(column.flags.c_contiguous for column, _ in pairs)
    size = max(1, _PART_BYTES // max(1, row_bytes)) if are_dense else _BLOCK_ROWS

    def copy(part: tuple[slice, slice]) -> None:
        here, there = part
        for column, rows in pairs:
            column[here] = rows[there]

    if sum(rows.nbytes for _, rows in pairs) < _MANY_BYTES:
        for part in _blocks(spans, size):
            copy(part)
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(copy, _blocks(spans, size)))  # raises what one of them raised


def _blocks(spans: Iterable[Span], size: int) -> Iterator[tuple[slice, slice]]:
    """Slots and rows of spans, at most `size` at a time."""
    for span in spans:
        for start in range(span.start, span.stop, size):
            stop, ahead = min(start + size, span.stop), span.offset - span.start
            yield slice(start, stop), slice(start + ahead, stop + ahead)


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
