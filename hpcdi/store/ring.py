"""A learner's rows in RAM, and where the next block goes.

Who decides and who stores are two: rank 0 runs a `RowPlacer` for each learner, so that it can take
a block's items out of its index *before* their rows are used again; the learner's `RowRing` does as
it is told. Rows are plain arrays, so a batch is one gather a column.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hpcdi.errors import BufferContractError
from hpcdi.store.block import Block, transition_rows
from hpcdi.types import Array, Columns, RowView
from hpcdi.utils.nested import column_objection
from hpcdi.utils.recycle import Recycler

_BATCHES_AHEAD = 16
"""Large columns of batches that wait at once; the memory of so many is used again."""


@dataclass(frozen=True)
class Placement:
    """Rows given to a block, and the blocks that gave way, oldest first."""

    first_row: int
    evicted: tuple[int, ...]


class RowPlacer:
    """Gives blocks consecutive rows in a ring of `capacity` rows; the oldest blocks give way."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._head = 0
        self._blocks: deque[tuple[int, int, int]] = deque()  # block id, first row, end row

    def state_dict(self) -> dict[str, int]:
        """``capacity``, and ``head``: the row after those of the block that was placed last."""
        return {"capacity": self.capacity, "head": self._head}

    def restore(self, head: int, blocks: Iterable[tuple[int, int, int]]) -> None:
        """Take up where another placer was.

        Args:
            head: its `head`.
            blocks: id, first row and end row of each block that has rows, the oldest first.
        """
        self._head, self._blocks = head, deque(blocks)

    def place(self, block_id: int, rows: int) -> Placement:
        """Place a block; a block never wraps around the end.

        Raises:
            BufferContractError: the block is larger than the ring, or has no rows.
        """
        if rows < 1:
            raise BufferContractError(f"block {block_id} has no rows to place")
        if rows > self.capacity:
            raise BufferContractError(
                f"a block of {rows} rows does not fit into a ring of {self.capacity}; raise "
                "replay_buffer_size or lower system.storage.block_bytes"
            )
        evicted: list[int] = []
        if self._head + rows > self.capacity:
            evicted += self._evict(self._head, self.capacity)
            self._head = 0
        first = self._head
        self._head += rows
        evicted += self._evict(first, self._head)
        self._blocks.append((block_id, first, self._head))
        return Placement(first, tuple(evicted))

    def _evict(self, start: int, end: int) -> list[int]:
        """Drop the blocks that reach into rows [start, end); they are the oldest ones."""
        evicted = []
        while self._blocks and self._blocks[0][1] < end and self._blocks[0][2] > start:
            evicted.append(self._blocks.popleft()[0])
        return evicted


class RowRing:
    """Columns of `capacity` rows; memory is touched, and so used, as rows are written.

    Args:
        capacity: rows.
        like: columns whose dtypes and row shapes every block must have.
        views: columns that are read at other rows of stored ones.
    """

    def __init__(self, capacity: int, like: Columns, views: tuple[RowView, ...] = ()) -> None:
        self.capacity = capacity
        self._columns: Columns = {
            name: np.empty((capacity, *column.shape[1:]), dtype=column.dtype)
            for name, column in like.items()
        }
        self._views = views
        self._recycler = Recycler(_BATCHES_AHEAD)

    @property
    def n_bytes(self) -> int:
        """Bytes of all columns, used or not."""
        return sum(column.nbytes for column in self._columns.values())

    def write(self, first_row: int, columns: Columns) -> None:
        """Put a block's rows at `first_row`.

        Raises:
            BufferContractError: the block has other columns, dtypes or row shapes than the ring.
        """
        objection = column_objection(columns, self._columns)
        if objection:
            raise BufferContractError(f"a block differs from the first one: {objection}")
        for name, column in columns.items():
            if first_row < 0 or first_row + len(column) > self.capacity:
                raise BufferContractError(
                    f"rows {first_row} to {first_row + len(column)} are not in a ring of "
                    f"{self.capacity}"
                )
            self._columns[name][first_row : first_row + len(column)] = column

    def gather(self, rows: Array) -> Columns:
        """Columns at `rows` (int64 [m]), views included; arrays of the caller's own, [m, ...].

        Raises:
            BufferContractError: a row, or one that a view names, is not in the ring.
        """
        take = self._recycler.take
        self._check(rows)
        batch = {name: take(column, rows) for name, column in self._columns.items()}
        for view in self._views:
            at = rows + batch[view.offset]
            self._check(at)
            batch[view.name] = take(self._columns[view.column], at)
        return batch

    def _check(self, rows: Array) -> None:
        if rows.size and not 0 <= rows.min() <= rows.max() < self.capacity:
            raise BufferContractError(
                f"rows {rows.min()} to {rows.max()} are not in a ring of {self.capacity}"
            )


def transitions(block: Block) -> Columns:
    """A block's transitions alone, item after item, views included: fresh arrays."""
    ring = RowRing(max(block.rows, 1), block.columns, block.views)
    ring.write(0, block.columns)
    return ring.gather(transition_rows(block.items))
