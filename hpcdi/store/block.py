"""A block: rows of transitions and their table of items.

Blocks lie in shards (`shard_file`), in which every column is one HDF5 dataset (no padding, no
compression): its bytes are the numpy arrays' bytes, and any HDF5 tool reads it.

Rows of an item are consecutive: `item_len` transitions, then `tail_rows` rows that are no
transitions but hold the observation after the last one. Items never cross blocks.
"""

from __future__ import annotations

import math
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.dataclass import dataclass
from hpcdi.errors import ShardError
from hpcdi.store.checksum import crc32_of_array
from hpcdi.types import ITEM_DTYPE, ITEM_NAMES, NUMBERS, Array, Columns, RowView
from hpcdi.utils.nested import column_rows


@dataclass(frozen=True)
class Block:
    """Rows and items that are published together.

    Attributes:
        columns: column name -> [rows, ...] array; '/' in a name makes an HDF5 group.
        items: [items] array of `ITEM_DTYPE`.
        facts: what is known of the whole block (collector rank, task, seed...): JSON scalars.
        views: columns that readers derive from stored ones.
        tail_rows: rows after each item's transitions that are not transitions (0 or 1).
    """

    columns: Columns
    items: Array
    facts: dict[str, Any] = field(default_factory=dict)
    views: tuple[RowView, ...] = ()
    tail_rows: int = 0

    @property
    def rows(self) -> int:
        """Rows of every column."""
        return column_rows(self.columns)

    @property
    def transitions(self) -> int:
        """Rows that are transitions."""
        return int(self.items["item_len"].sum())

    def datasets(self) -> Columns:
        """All that is stored, in order: the row columns, then the item table's columns."""
        items = {name: self.items[name] for name in ITEM_NAMES}
        return {k: np.ascontiguousarray(v) for k, v in {**self.columns, **items}.items()}


def transition_rows(items: Array) -> Array:
    """Row of each transition, item after item: int64 [transitions]; `items` as in `Block`."""
    return rows_from(items["item_start"], items["item_len"])


def rows_from(starts: Array, counts: Array) -> Array:
    """Rows [start, start + count) of each start [m], one after the other: int64 [rows]."""
    counts = counts.astype(np.int64)
    before = np.cumsum(counts) - counts
    rows: Array = np.repeat(starts - before, counts) + np.arange(int(counts.sum()))
    return rows


def row_bytes(columns: Columns) -> int:
    """Bytes of one row over all columns."""
    return sum(column.itemsize * math.prod(column.shape[1:]) for column in columns.values())


def block_rows(block_bytes: int, bytes_of_row: int, partition_size: int) -> int:
    """Rows of a full block.

    As many as `block_bytes` hold, but at most a quarter of a learner's partition of the replay
    buffer (in items), so that evicting one block never takes most of the data with it.
    """
    return max(1, min(block_bytes // max(bytes_of_row, 1), partition_size // 4))


def checksum(datasets: Columns) -> int:
    """crc32 of the bytes of all arrays, in order."""
    crc = 0
    for array in datasets.values():
        crc = crc32_of_array(array, crc)
    return crc


def row_columns(datasets: Columns) -> Columns:
    """The row columns among all stored arrays."""
    return {name: array for name, array in datasets.items() if name not in ITEM_NAMES}


def check_block(block: Block, path: str) -> None:
    """Check that a block can be stored at `path`.

    Raises:
        ShardError: columns differ in length or hold no numbers, or have names of the item table.
    """
    lengths = {name: len(column) for name, column in block.columns.items()}
    if len(set(lengths.values())) > 1:
        raise ShardError(path, f"columns differ in length: {lengths}")
    taken = sorted(block.columns.keys() & set(ITEM_NAMES))
    if taken:
        raise ShardError(path, f"the names {taken} belong to the item table; rename those columns")
    for name, column in block.columns.items():
        if column.dtype.kind not in NUMBERS:
            raise ShardError(path, f"column {name!r} is {column.dtype}; a shard holds numbers only")
    if block.items.dtype != ITEM_DTYPE:
        raise ShardError(path, f"the item table has dtype {block.items.dtype}, not {ITEM_DTYPE}")


def check_items(block: Block, rows: int, path: str | Path) -> None:
    """Check that all items lie within a block's rows.

    Raises:
        ShardError: they do not.
    """
    starts, lengths = (block.items[name].astype(np.int64) for name in ("item_start", "item_len"))
    ends = starts + lengths + block.tail_rows
    if block.tail_rows < 0 or (lengths < 0).any() or (starts < 0).any() or (ends > rows).any():
        raise ShardError(path, f"its table names rows that it does not have (it has {rows})")
