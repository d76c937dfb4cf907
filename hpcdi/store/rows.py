"""Rows in columns: what learners' rings and replay buffers hold.

All small columns lie together in one record a row, so that a gather costs one cache miss a row
instead of one a column (2 to 4 x as fast at a million rows); large ones, such as images, are arrays
of their own. Columns that can be derived from others, such as the next observation or a stack of
frames, are views (`RowView`): what they are made of is stored once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcdi.errors import BufferContractError
from hpcdi.store.block import Block, transition_rows
from hpcdi.store.memory import BLOCK_ROWS, Recycler, Span, copy_rows
from hpcdi.types import NUMBERS, Array, Columns, RowView
from hpcdi.utils.nested import column_objection, column_rows

RECORDS = "/"
"""Key that stands for all small columns; no column has this name."""
SEQUENCE_LEN = "sequence_len"
"""Column: rows of an item from one in which a sequence may begin; 0 where none does."""
STATES = "state/"
"""What the names of columns begin with that hold a memory's state before each row."""
LARGE_ROW_BYTES = 256
"""A column whose rows are larger is an array of its own."""


class RowField(NamedTuple):
    """Dtype and shape of a column's rows."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.dtype.itemsize * math.prod(self.shape)


def array_for(shape: tuple[int, ...], dtype: np.dtype[Any], ready: Array | None) -> Array:
    """Returns `ready`, with whatever is in it, if it fits; else zeros, which take no memory yet."""
    if ready is not None and ready.shape == shape and ready.dtype == dtype:
        return ready
    return np.zeros(shape, dtype)


def arrays_as_bytes(record: np.dtype[Any]) -> np.dtype[Any]:
    """Returns a record dtype whose array members are raw bytes: each is then copied at once."""
    fields = {name: record.fields[name] for name in record.names or ()} if record.fields else {}
    types = [dtype if not dtype.shape else f"V{dtype.itemsize}" for dtype, *_ in fields.values()]
    offsets = [offset for _, offset, *_ in fields.values()]
    return np.dtype(
        {"names": list(fields), "formats": types, "offsets": offsets, "itemsize": record.itemsize}
    )


class Records:
    """Small columns in one record per slot; a member's name is a number, not its column's name.

    Args:
        capacity: slots.
        fields: dtypes and row shapes of the columns, by name.
        ready: an array to use for the records, without a copy, if it fits.
    """

    def __init__(
        self, capacity: int, fields: Mapping[str, RowField], ready: Array | None = None
    ) -> None:
        names = sorted(fields, key=lambda name: -fields[name].dtype.alignment)  # no gaps between
        self.members = {name: member(k) for k, name in enumerate(names)}
        members = [(m, fields[name].dtype, fields[name].shape) for name, m in self.members.items()]
        self.array = array_for((capacity,), np.dtype(members, align=True), ready)
        self._bytes = self.array.view(f"V{self.array.itemsize}")  # a gather copies whole records
        self._as_bytes = arrays_as_bytes(self.array.dtype)
        self._columns = [(n, m, fields[n].dtype, fields[n].shape) for n, m in self.members.items()]

    @staticmethod
    def among(fields: Mapping[str, RowField]) -> dict[str, RowField]:
        """Returns those columns that should lie together in records."""
        small = {n: field for n, field in fields.items() if 0 < field.row_bytes <= LARGE_ROW_BYTES}
        return small if len(small) > 1 else {}

    def column(self, name: str) -> Array:
        """A view of a column, [capacity, ...]."""
        return self.array[self.members[name]]

    def take(self, slots: Array, names: Collection[str]) -> Columns:
        """Returns copies of those columns that have one of some names, at slots of any shape."""
        records, columns = self._bytes.take(slots).view(self._as_bytes), {}
        for name, member, dtype, shape in self._columns:
            if name not in names:
                continue
            column = records[member].copy()  # even of one row: torch needs contiguous memory
            columns[name] = column.view(dtype).reshape(*slots.shape, *shape) if shape else column
        return columns


def member(number: int) -> str:
    """Name of a member of records."""
    return f"c{number}"


class RowStore:
    """Rows in slots; names, dtypes and row shapes are those of the first ones.

    A learner's ring writes blocks at rows that rank 0 chose, and gathers batches with their views.
    Memory is used as rows are written.

    Args:
        capacity: slots.
        views: columns that `gather` derives from others.

    Attributes:
        recycler: makes the arrays of large results.
    """

    def __init__(self, capacity: int, *, views: Sequence[RowView] = ()) -> None:
        self._capacity = capacity
        self._views = tuple(views)
        self._stacked: frozenset[str] = frozenset()  # columns that only stacks of frames read
        self._fields: dict[str, RowField] = {}
        self._columns: Columns = {}
        self._records: Records | None = None  # holds the small columns
        self.recycler = Recycler()

    def write(self, first_row: int, columns: Columns) -> None:
        """Put a block's rows at `first_row`; the first block declares the columns.

        Raises:
            BufferContractError: the block has other columns, dtypes or row shapes than the first
                one, or does not fit there.
        """
        if self._fields and not self._are_alike(columns):
            like = {n: np.empty((0, *f.shape), f.dtype) for n, f in self._fields.items()}
            objection = column_objection(columns, like)
            if objection:
                raise BufferContractError(f"a block differs from the first one: {objection}")
        end = first_row + column_rows(columns)
        if first_row < 0 or end > self._capacity:
            raise BufferContractError(
                f"rows {first_row} to {end} are not in a ring of {self._capacity}"
            )
        if not self._fields:
            self._allocate(fields_of(columns))
        self._copy(first_row, end, columns, 0)

    def grow(self, capacity: int) -> None:
        """Have more slots, column by column; what is written stays."""
        if capacity <= self._capacity:
            return
        before, self._capacity = self._capacity, capacity
        if not self._fields:
            return
        columns, records, self._columns = self._alone, self._records, {}
        self._allocate(self._fields)
        if records is not None and self._records is not None:
            self._records.array[:before] = records.array
        for name in list(columns):
            self._columns[name][:before] = columns.pop(name)

    def _copy(self, start: int, stop: int, columns: Columns, offset: int) -> None:
        """Copy rows of columns, from row `offset`, into slots [start, stop)."""
        if stop - start > BLOCK_ROWS:
            pairs = [(column, columns[name]) for name, column in self._columns.items()]
            copy_rows(pairs, [Span(start, stop, offset)])
        else:
            here, there = slice(start, stop), slice(offset, offset + stop - start)
            for name, column in self._columns.items():
                column[here] = columns[name][there]

    def gather(self, rows: Array, length: int = 1) -> Columns:
        """Returns copies of all columns, views included, at `rows` (int64 [m]): [m, ...].

        Args:
            rows: rows of transitions; with a `length` above 1, first rows of sequences.
            length: rows of a sequence; above 1 columns are [m, length, ...], but for a memory's
                states ``state/<name>``, which are those before the sequences: [m, 1, ...].

        Raises:
            BufferContractError: a row, or one that a view refers to, is not in the ring.
        """
        _check_rows(rows, self._capacity)
        if length == 1:
            columns = self.read_columns(rows, without=self._stacked)
            return with_views(columns, self._views, rows, self._take, self._capacity)
        every = sequence_rows(rows, self._take(SEQUENCE_LEN, rows), length)
        _check_rows(every, self._capacity)
        gathered: Columns = {}
        for at, is_state in ((every, False), (rows[:, None], True)):
            others = {name for name in self._columns if name.startswith(STATES) is not is_state}
            views = [view for view in self._views if view.name.startswith(STATES) is is_state]
            columns = self.read_columns(at, without=self._stacked | others)
            gathered |= with_views(columns, views, at, self._take, self._capacity)
        return gathered

    def _take(self, name: str, rows: Array) -> Array:
        """One column at rows of any shape."""
        if self._records is not None and name in self._records.members:
            return self._records.take(rows, (name,))[name]
        return self.recycler.take(self._columns[name], rows)

    def read_columns(self, slots: Array, without: Collection[str] = ()) -> Columns:
        """Returns copies of the stored columns at slots of any shape, by '/'-joined name."""
        wanted = {n: column for n, column in self._columns.items() if n not in without}
        small = self._records.take(slots, wanted) if self._records is not None else {}
        return {
            name: small[name] if name in small else self.recycler.take(column, slots)
            for name, column in wanted.items()
        }

    def column(self, name: str) -> Array | None:
        """Returns the column itself, [capacity, ...], to be read only; None if there is none."""
        return self._columns.get(name)

    @property
    def n_bytes(self) -> int:
        """Bytes of all slots, used or not."""
        n_bytes = sum(column.nbytes for column in self._alone.values())
        return n_bytes + (self._records.array.nbytes if self._records is not None else 0)

    @property
    def _alone(self) -> Columns:
        """Columns that are no members of records."""
        small = self._records.members if self._records is not None else {}
        return {name: column for name, column in self._columns.items() if name not in small}

    def _allocate(self, fields: dict[str, RowField], ready: Columns | None = None) -> None:
        """Make the columns, in `ready` arrays that fit; memory is used as rows are written."""
        ready = ready or {}
        self._fields = fields
        self._stacked = stacked_by(self._views, {n: field.shape for n, field in fields.items()})
        small = Records.among(fields)
        if small:
            self._records = Records(self._capacity, small, ready.get(RECORDS))
        for name, field in fields.items():
            if self._records is not None and name in small:
                self._columns[name] = self._records.column(name)
            else:
                shape = (self._capacity, *field.shape)
                self._columns[name] = array_for(shape, field.dtype, ready.get(name))

    def _are_alike(self, columns: Mapping[str, Any]) -> bool:
        """Quick check: True if columns surely fit those stored; where False, they may still fit."""
        if not self._fields or len(columns) != len(self._fields):
            return False
        rows = -1
        for name, (dtype, shape) in self._fields.items():
            column = columns.get(name)
            if type(column) is not np.ndarray or column.dtype is not dtype:
                return False
            column_shape = column.shape
            if not column_shape or column_shape[1:] != shape or rows not in (-1, column_shape[0]):
                return False
            rows = column_shape[0]
        return True


def fields_of(columns: Columns) -> dict[str, RowField]:
    """Returns dtype and row shape of each column.

    Raises:
        BufferContractError: they differ in length, hold no numbers, or there are none.
    """
    lengths = {name: column.shape[:1] for name, column in columns.items()}
    if len(set(lengths.values())) != 1 or () in lengths.values():
        raise BufferContractError(f"columns must be of one length, not {lengths}")
    for name, column in columns.items():
        if column.dtype.kind not in NUMBERS:
            raise BufferContractError(f"{name!r} is {column.dtype}, a column holds numbers")
    return {name: RowField(column.dtype, column.shape[1:]) for name, column in columns.items()}


def with_views(
    columns: Columns,
    views: Sequence[RowView],
    rows: Array,
    take: Callable[[str, Array], Array],
    capacity: int,
) -> Columns:
    """Returns columns at `rows` [m] with their views, without the offsets of stacked frames.

    Args:
        columns: stored columns at `rows`; those that only stacks of frames read may be left out.
        views: to be added.
        rows: int64 [m].
        take: reads a stored column at other rows.
        capacity: number of rows in the store.

    Raises:
        BufferContractError: a view refers to a row outside the store.
    """
    by_name = {view.name: view for view in views}

    def read(view: RowView, at: Array, offsets: Array) -> Array:
        at = at.reshape(*at.shape, *(1,) * (offsets.ndim - at.ndim)) + offsets
        _check_rows(at, capacity)
        source = by_name.get(view.column)  # a view of a view, such as a stack of next frames
        if source is None:
            return take(view.column, at)
        return read(source, at, take(source.offset, at))

    derived = {view.name: read(view, rows, columns[view.offset]) for view in views}
    for view in views:
        if view.offset in columns and columns[view.offset].ndim > rows.ndim:
            del columns[view.offset]
    return columns | derived


def stacked_by(views: Iterable[RowView], shapes: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
    """Stored columns that only stacks of frames read, by the row shapes of all columns."""
    return frozenset(view.column for view in views if shapes.get(view.offset))


def _check_rows(rows: Array, capacity: int) -> None:
    if rows.size and not 0 <= rows.min() <= rows.max() < capacity:
        raise BufferContractError(
            f"rows {rows.min()} to {rows.max()} are not in a ring of {capacity}"
        )


def sequence_rows(starts: Array, lengths: Array, length: int) -> Array:
    """Rows of sequences, int64 [sequences, length]; a shorter one repeats its last row.

    Args:
        starts: first row of each, int64 [sequences].
        lengths: rows that each may have, [sequences].
        length: rows of a full one.
    """
    last = np.maximum(lengths.astype(np.int64), 1) - 1
    rows: Array = starts[:, None] + np.minimum(np.arange(length), last[:, None])
    return rows


def transitions(block: Block) -> Columns:
    """Returns a block's transitions, without tail rows, item after item, views included: copies."""
    return rows_of(block, transition_rows(block.items))


def rows_of(block: Block, rows: Array) -> Columns:
    """Returns some rows [m] of a block, views included: copies."""

    def take(name: str, at: Array) -> Array:
        return block.columns[name].take(at, axis=0)

    stacked = stacked_by(block.views, {n: column.shape[1:] for n, column in block.columns.items()})
    columns = {name: take(name, rows) for name in block.columns if name not in stacked}
    return with_views(columns, block.views, rows, take, block.rows)
