"""Consecutive slots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from hpcdi.types import Array

_BLOCK_ROWS = 4096


class Span(NamedTuple):
    """Consecutive slots, and how far the first of them is from the first item meant."""

    start: int
    stop: int
    offset: int


def blocks(spans: Iterable[Span]) -> Iterator[tuple[slice, slice]]:
    """Slots and rows of spans, a part at a time: its records fit into the cache."""
    for span in spans:
        for start in range(span.start, span.stop, _BLOCK_ROWS):
            stop, ahead = min(start + _BLOCK_ROWS, span.stop), span.offset - span.start
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
