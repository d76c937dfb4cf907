"""Gathering rows until they make a block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdi.errors import BufferContractError
from hpcdi.store.block import Block, row_bytes
from hpcdi.types import ITEM_DTYPE, Array, Columns, RowView
from hpcdi.utils.nested import column_objection


@dataclass(frozen=True)
class Segment:
    """Rows of one or more items that were made together.

    Attributes:
        columns: name -> [rows, ...].
        items: [items] of `ITEM_DTYPE`; ``item_start`` counts from the segment's first row,
            ``item_id`` is given by the builder.
        views: columns that readers derive.
        tail_rows: rows after each item's transitions that are not transitions.
    """

    columns: Columns
    items: Array
    views: tuple[RowView, ...] = ()
    tail_rows: int = 0


class BlockBuilder:
    """Fills blocks from segments; an item never crosses a block.

    Args:
        capacity_of: rows of a full block, given the bytes of a row; see `block_rows`.
        first_item_id: ids count up from here; unique in the run by the caller's choice.
        facts: gives what is known of a block as it is sealed.
    """

    def __init__(
        self,
        capacity_of: Callable[[int], int],
        first_item_id: int,
        facts: Callable[[], dict[str, Any]],
    ) -> None:
        self._capacity_of = capacity_of
        self._next_item_id = first_item_id
        self._facts = facts
        self._columns: Columns = {}
        self._items: list[Array] = []
        self._used = 0
        self._like: Segment | None = None
        self._capacity = 0  # rows of a full block; follows from the first segment

    @property
    def is_empty(self) -> bool:
        """Whether no row is waiting to be sealed."""
        return self._used == 0

    def append(self, segment: Segment) -> list[Block]:
        """Add a segment; gives the blocks that are full by it.

        Raises:
            BufferContractError: the segment has other columns, views or tail rows than the first
                one, or an item is larger than a block; nothing of it is taken then.
        """
        self._check(segment)
        items = segment.items.copy()
        items["item_id"] = np.arange(self._next_item_id, self._next_item_id + len(items))
        self._next_item_id += len(items)
        first, full = 0, []
        while first < len(items):
            count = self._fitting(items[first:], segment.tail_rows)
            if count:
                self._take(segment, items[first : first + count])
                first += count
            elif (block := self.seal()) is not None:
                full.append(block)
        return full

    def seal(self) -> Block | None:
        """The block as it is; None where it is empty."""
        if self._used == 0 or self._like is None:
            return None
        columns = {name: column[: self._used] for name, column in self._columns.items()}
        items = np.concatenate(self._items)
        self._columns, self._items, self._used = {}, [], 0
        return Block(columns, items, self._facts(), self._like.views, self._like.tail_rows)

    def _fitting(self, items: Array, tail_rows: int) -> int:
        """How many of `items`, in order, fit into what is left of the block."""
        ends = items["item_start"] + items["item_len"] + tail_rows - items["item_start"][0]
        return int(np.searchsorted(ends, self._capacity - self._used, side="right"))

    def _take(self, segment: Segment, items: Array) -> None:
        if not self._columns:
            self._columns = {
                name: np.empty((self._capacity, *column.shape[1:]), dtype=column.dtype)
                for name, column in segment.columns.items()
            }
        start = int(items["item_start"][0])
        end = int(items["item_start"][-1] + items["item_len"][-1]) + segment.tail_rows
        for name, column in segment.columns.items():
            self._columns[name][self._used : self._used + end - start] = column[start:end]
        placed = items.copy()
        placed["item_start"] += self._used - start
        self._items.append(placed)
        self._used += end - start

    def _check(self, segment: Segment) -> None:
        if segment.items.dtype != ITEM_DTYPE:
            raise BufferContractError(f"the item table has dtype {segment.items.dtype}")
        if self._like is None:
            self._like = segment
            self._capacity = self._capacity_of(row_bytes(segment.columns))
        largest = int(segment.items["item_len"].max(initial=0)) + segment.tail_rows
        if largest > self._capacity:
            raise BufferContractError(
                f"an item of {largest} rows does not fit into a block of {self._capacity}; raise "
                "system.storage.block_bytes or the replay buffer's size, or lower "
                "policy.collect.n_sample"
            )
        if (segment.views, segment.tail_rows) != (self._like.views, self._like.tail_rows):
            raise BufferContractError("a segment has other views or tail rows than the first one")
        objection = column_objection(segment.columns, self._like.columns)
        if objection:
            raise BufferContractError(f"a segment differs from the first one: {objection}")
