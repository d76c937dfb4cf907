"""Segments: rows of items on their way into a block, read from where they were recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import numpy as np

from hpcdi.dataclass import dataclass
from hpcdi.types import Array, Columns, GameCounts, RowView
from hpcdi.utils.nested import column_rows


class Gather(Mapping[str, Array]):
    """Columns that are gathered only when they are read, straight into the array of the reader.

    Their sources must not change before.

    Args:
        tails: int64 [tails], ascending: rows behind an item's last transition; None: there are
            none.
        after: name -> [tails, ...]: values of these rows; other columns have 0 there.
    """

    def __init__(self, tails: Array | None = None, after: Columns | None = None) -> None:
        self._tails = np.zeros(0, np.int64) if tails is None else tails
        self._after = after or {}
        self._sources: dict[str, tuple[Array, Array]] = {}

    def add(self, columns: Columns, rows: Array) -> Self:
        """Add columns of which these rows are gathered, int64 [rows]; returns itself."""
        self._sources |= {name: (column, rows) for name, column in columns.items()}
        return self

    def write(self, name: str, out: Array, start: int = 0) -> None:
        """Write a column's rows from `start` on, as many as there is place for in `out`."""
        column, rows = self._sources[name]
        stop = start + len(out)
        column.take(rows[start:stop], axis=0, out=out, mode="clip")  # other modes copy twice
        first, last = np.searchsorted(self._tails, (start, stop))
        tails = self._tails[first:last] - start
        out[tails] = self._after[name][first:last] if name in self._after else 0

    def like(self) -> Columns:
        """Returns columns without rows of the same names, dtypes and row shapes."""
        return {name: column[:0] for name, (column, _) in self._sources.items()}

    @property
    def rows(self) -> int:
        """Rows of every column."""
        return len(next(iter(self._sources.values()))[1]) if self._sources else 0

    def __getitem__(self, name: str) -> Array:
        column, rows = self._sources[name]
        out = np.empty((len(rows), *column.shape[1:]), column.dtype)
        self.write(name, out)
        return out

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


@dataclass(frozen=True)
class Segment:
    """Rows of one or more items that are appended together: item after item, without gaps.

    Attributes:
        columns: name -> [rows, ...]; a `Gather` is read before more is recorded.
        items: [items] of `ITEM_DTYPE`; ``item_start`` counts from the segment's first row,
            ``item_id`` is set by the builder.
        views: columns that readers derive.
        tail_rows: rows after each item's transitions that are not transitions; others, which only
            views refer to, may follow.
        ended: bool [items]; which items end with their episode; None: none does.
        env_steps: int64 [items]; environment steps that each was made of, where its rows are no
            transitions but samples of a policy of dicts; None: as many as it has transitions.
        games: of each item the results of the game that ended with it, and of games without an
            item; None: there are no games.
        stacks: columns that are stacks, of which each part is to be stored once, as `share_frames`
            does.
    """

    columns: Mapping[str, Array]
    items: Array
    views: tuple[RowView, ...] = ()
    tail_rows: int = 0
    ended: Array | None = None
    env_steps: Array | None = None
    games: Sequence[Sequence[GameCounts]] | None = None
    stacks: tuple[str, ...] = ()

    @property
    def all_env_steps(self) -> int:
        """Environment steps of all items."""
        return int((self.items["item_len"] if self.env_steps is None else self.env_steps).sum())

    @property
    def rows(self) -> int:
        """Rows of every column."""
        columns = self.columns
        return columns.rows if isinstance(columns, Gather) else column_rows(dict(columns))

    def like(self) -> Columns:
        """Returns columns without rows of the same names, dtypes and row shapes."""
        columns = self.columns
        if isinstance(columns, Gather):
            return columns.like()
        return {name: column[:0] for name, column in columns.items()}

    def write(self, name: str, out: Array, start: int) -> None:
        """Write a column's rows from `start` on, as many as there is place for in `out`."""
        if isinstance(self.columns, Gather):
            self.columns.write(name, out, start)
        else:
            out[...] = self.columns[name][start : start + len(out)]

    def copy(self) -> Segment:
        """Returns a copy of the segment and its arrays."""
        if isinstance(self.columns, Gather):
            columns = dict(self.columns)
        else:
            columns = {name: column.copy() for name, column in self.columns.items()}
        return dataclasses.replace(self, columns=columns)
