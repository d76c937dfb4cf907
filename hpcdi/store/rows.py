"""Rows in columns: what replay buffers and learners' rings hold.

Items are dicts of numbers and arrays, nested as they like; a column has one row an item. All small
columns lie together in one record a row, so that a gather costs one cache miss a row instead of one
a column (2 to 4 x as fast at a million rows); large ones, such as images, are arrays of their own.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from hpcdi.errors import BufferContractError
from hpcdi.store.block import Block, transition_rows
from hpcdi.store.frames import FrameStore
from hpcdi.store.memory import BLOCK_ROWS, Recycler, Span, copy_rows, rows_in, slots_of
from hpcdi.types import NUMBERS, Array, Columns, RowView
from hpcdi.utils.nested import column_objection, column_rows, flatten, stack_columns, unflatten

_RECORDS = "/"  # no column has that name
SEQUENCE_LEN = "sequence_len"
"""Column: transitions of the sequence that begins in a row; 0 where none begins."""
_FITTING: dict[str, tuple[type, ...]] = {
    "float64": (float, np.float64, np.float32, int),
    "float32": (float, np.float64, np.float32, int),
    "int64": (np.int64, np.int32, int), "int32": (np.int32,), "bool": (bool, np.bool_),
}  # fmt: skip
"""Types of single numbers that a column takes as they are, by its dtype."""

_PLAIN = (bool, int, float, complex)

LARGE_INTEGER = 2**53
"""Below this, a Python integer is exact as a double: columns take it as it is."""
LARGE_ROW_BYTES = 256
"""A column whose rows are larger is an array of its own."""


class Form(Enum):
    """What the values of a column were in the items, and are again when they are read as items."""

    ARRAY = "array"
    """Numpy's arrays and numbers."""
    TENSOR = "tensor"
    PLAIN = "plain"
    """Python's own numbers."""

    @classmethod
    def of(cls, value: Any) -> Form:
        """The form of a value."""
        if is_tensor(value):
            return cls.TENSOR
        return cls.PLAIN if type(value) in _PLAIN else cls.ARRAY


class Field(NamedTuple):
    """A column: what its rows are."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    form: Form

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def fitting(self) -> tuple[type, ...]:
        """Types of single numbers that it takes as they are."""
        return () if self.shape else _FITTING.get(self.dtype.name, ())


def memory(shape: tuple[int, ...], dtype: Any, given: Array | None) -> Array:
    """A given array, whatever it holds, if it fits; else zeros, which take no memory yet."""
    if given is not None and given.shape == shape and given.dtype == dtype:
        return given
    return np.zeros(shape, dtype)


def arrays_of(columns: Mapping[str, Any]) -> Columns:
    """Columns by '/'-joined name, as arrays in the machine's byte order.

    Raises:
        BufferContractError: one is no array, or a name has '/' where it is nested.
    """
    is_nested = any(isinstance(column, Mapping) for column in columns.values())
    try:
        named = flatten(columns) if is_nested else columns
        flat = {name: np.asarray(column) for name, column in named.items()}
    except (ValueError, TypeError, RuntimeError) as error:
        raise BufferContractError(f"columns must be arrays of numbers: {error}") from error
    return {n: c.astype(c.dtype.newbyteorder("="), copy=False) for n, c in flat.items()}


def arrays_as_bytes(record: np.dtype[Any]) -> np.dtype[Any]:
    """The same record, but that its arrays are bytes: each is copied at once then."""
    fields = {name: record.fields[name] for name in record.names or ()} if record.fields else {}
    types = [dtype if not dtype.shape else f"V{dtype.itemsize}" for dtype, *_ in fields.values()]
    offsets = [offset for _, offset, *_ in fields.values()]
    return np.dtype({
        "names": list(fields), "formats": types, "offsets": offsets, "itemsize": record.itemsize,
    })  # fmt: skip


def check_names(names: Iterable[str]) -> None:
    """Check that no column is where others are nested.

    Raises:
        BufferContractError: one is.
    """
    names = list(names)
    for name in names:
        below = [other for other in names if other.startswith(f"{name}/")]
        if below:
            raise BufferContractError(f"{name!r} is a column, so {below} cannot lie in it")


def check_range(name: str, column: Array, dtype: np.dtype[Any]) -> None:
    """Check that numbers fit into a column of fewer bits: casting would not raise.

    Raises:
        BufferContractError: they do not.
    """
    if dtype.kind not in "iuf" or np.can_cast(column.dtype, dtype) or not column.size:
        return
    if dtype.kind == "f":
        finite = column[np.isfinite(column)]
        low, high = finite.min(initial=0.0), finite.max(initial=0.0)
        ends: Any = np.finfo(dtype)
    else:
        low, high, ends = int(column.min()), int(column.max()), np.iinfo(dtype)
    if low < ends.min or high > ends.max:
        raise BufferContractError(f"{name!r} is {low} to {high}, more than {dtype} holds")


def is_columnar(tree: Any) -> bool:
    """True for a number, an array or a tensor of numbers, and a mapping of names to such.

    Only for what a column returns unchanged: lists, tuples and other containers are none.
    """
    if isinstance(tree, Mapping):
        are_names = all(isinstance(key, str) for key in tree)
        return bool(tree) and are_names and all(is_columnar(value) for value in tree.values())
    is_plain = type(tree) in _PLAIN or isinstance(tree, np.generic)
    if not is_plain and not (type(tree) is np.ndarray and tree.ndim) and not is_tensor(tree):
        return False
    try:
        return np.asarray(tree).dtype.kind in NUMBERS
    except (TypeError, RuntimeError):  # tensors elsewhere, with a graph, or of a dtype of torch's
        return False


def is_tensor(value: Any) -> bool:
    """True for a torch tensor; does not import torch."""
    return type(value).__module__ == "torch" and type(value).__name__ == "Tensor"


class Records:
    """One record a slot, whose members are columns under other names.

    Args:
        capacity: slots.
        fields: what the columns are, by name.
        given: records to hold, without a copy, if they fit.
    """

    def __init__(
        self, capacity: int, fields: Mapping[str, Field], given: Array | None = None
    ) -> None:
        names = sorted(fields, key=lambda name: -fields[name].dtype.alignment)  # no gaps between
        self.members = {name: _member(k) for k, name in enumerate(names)}
        members = [(m, fields[name].dtype, fields[name].shape) for name, m in self.members.items()]
        self.array = memory((capacity,), np.dtype(members, align=True), given)
        self._bytes = self.array.view(f"V{self.array.itemsize}")
        self._rows = arrays_as_bytes(self.array.dtype)
        self._how = [(n, m, fields[n].dtype, fields[n].shape) for n, m in self.members.items()]

    @staticmethod
    def among(fields: Mapping[str, Field]) -> dict[str, Field]:
        """Those columns that are better off together."""
        small = {n: field for n, field in fields.items() if field.row_bytes <= LARGE_ROW_BYTES}
        return small if len(small) > 1 else {}

    def column(self, name: str) -> Array:
        """A view of a column, [capacity, ...]."""
        return self.array[self.members[name]]

    def take(self, slots: Array, only: str = "") -> Columns:
        """Columns, or `only` one, at slots of any shape: arrays of the caller's own."""
        drawn, found = self._bytes.take(slots).view(self._rows), {}
        for name, member, dtype, shape in self._how:
            if only and name != only:
                continue
            own = drawn[member].copy()  # of one row too: torch needs it
            found[name] = own.view(dtype).reshape(*slots.shape, *shape) if shape else own
        return found

    def state_of(self, rows: Array) -> dict[str, Any]:
        """Records, and whose members are what."""
        return {"records": rows, "members": list(self.members)}

    def pairs(self, state: Mapping[str, Any], columns: Columns) -> list[tuple[Array, Array]]:
        """Each of the columns here, and its rows; all at once where the state's records agree."""
        rows = state.get("records")
        if rows is None or state["members"] != list(self.members) or rows.dtype != self.array.dtype:
            return [(self.column(name), columns[name]) for name in self.members]
        return [(self._bytes, rows.view(self._bytes.dtype))]


def unpacked(state: Mapping[str, Any]) -> Columns:
    """Columns of a `state_of`, as views; empty where there is none."""
    return {name: state["records"][_member(k)] for k, name in enumerate(state.get("members", ()))}


def _member(number: int) -> str:
    return f"c{number}"


class RowStore:
    """Items in slots; names, dtypes and row shapes are those of the first items.

    A replay buffer puts items into slots in turn; a learner's ring writes blocks at rows that rank
    0 chose, and gathers batches with their views. Memory is used as rows are written.

    Args:
        capacity: slots.
        frames: columns whose leading axis stacks frames; each frame is stored once, wherever it
            occurs in the items of an environment.
        views: columns that `gather` derives from others.
        batches_ahead: large results whose memory is used again once nobody holds them.

    Attributes:
        recycler: makes the arrays of large results.
    """

    kind = "columns"

    def __init__(
        self,
        capacity: int,
        frames: tuple[str, ...] = (),
        *,
        views: Sequence[RowView] = (),
        batches_ahead: int = 4,
    ) -> None:
        self._capacity = capacity
        self._views = tuple(views)
        self._stacked: frozenset[str] = frozenset()  # columns that only stacks of frames read
        self._fields: dict[str, Field] = {}
        self._columns: Columns = {}
        self._records: Records | None = None  # holds the small columns
        self._frames = FrameStore(capacity, frames) if frames else None
        self._quick: list[tuple[str, Array | None, Any, Any, Any]] = []  # see `put_one`
        self.recycler = Recycler(batches_ahead)

    @staticmethod
    def fits(tree: Any) -> bool:
        """True for items that can be held: mappings whose leaves are numbers or arrays of them."""
        return isinstance(tree, Mapping) and is_columnar(tree)

    def put_one(self, item: Any, slot: int) -> bool:
        """Put an item into a slot, if it is plainly like the first one; else returns False."""
        quick = self._quick
        if not isinstance(item, dict) or len(item) != len(quick) or not quick:
            return False
        values = []
        for name, _, dtype, shape, fitting in quick:
            value = item.get(name)
            if type(value) is np.ndarray:
                if value.dtype is not dtype or value.shape != shape:
                    return False
            elif type(value) not in fitting or _is_huge(value):
                return False
            values.append(value)
        for (_, column, _, _, _), value in zip(quick, values, strict=True):
            if column is not None:
                column[slot] = value
        if self._frames is not None:
            self._frames.put_one(item, slot)
        return True

    def prepare(self, items: Sequence[Any]) -> Columns:
        """Items in the form that `put` takes.

        Raises:
            BufferContractError: they differ from the first ones, or from each other.
        """
        if not all(isinstance(item, Mapping) for item in items):
            raise BufferContractError("items must be dicts, as the first ones are")
        try:
            return self.check(stack_columns(items), items[0])
        except (ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise BufferContractError(str(error)) from error

    def check(self, columns: Mapping[str, Any], like: Mapping[str, Any] | None = None) -> Columns:
        """The same columns [m, ...], flat, where they fit those that are held.

        Args:
            columns: by '/'-joined name, or nested.
            like: an item of them, where they were made of items.

        Raises:
            BufferContractError: other names, dtypes, row shapes or lengths, or no numbers.
        """
        if self._are_alike(columns):
            return dict(columns)
        flat = arrays_of(columns)
        if not flat or len({len(c) if c.ndim else -1 for c in flat.values()} | {-1}) != 2:
            lengths = {name: column.shape[:1] for name, column in flat.items()}
            raise BufferContractError(f"columns must be of one length, not {lengths}")
        for name, column in flat.items():
            if column.dtype.kind not in NUMBERS:
                raise BufferContractError(f"{name!r} is {column.dtype}, a column holds numbers")
        if not self._fields:
            check_names(flat)
            leaves = flatten(like) if like is not None else {}
            if self._frames is not None:
                self._frames.declare(flat)
            self._allocate(
                {n: Field(c.dtype, c.shape[1:], Form.of(leaves.get(n))) for n, c in flat.items()}
            )
        self._compare(flat)
        return flat

    def put(self, start: int, stop: int, prepared: Columns, offset: int) -> None:
        """Put prepared items, from row `offset`, into slots [start, stop)."""
        if stop - start > BLOCK_ROWS:
            pairs = [(column, prepared[name]) for name, column in self._columns.items()]
            copy_rows(pairs, [Span(start, stop, offset)])
        else:
            here, there = slice(start, stop), slice(offset, offset + stop - start)
            for name, column in self._columns.items():
                column[here] = prepared[name][there]
        if self._frames is not None:
            self._frames.put(start, stop, prepared, offset)

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
        self.put(first_row, end, self.check(columns), 0)

    def gather(self, rows: Array, length: int = 1) -> Columns:
        """Columns at `rows` (int64 [m]), views included; arrays of the caller's own, [m, ...].

        Args:
            rows: of transitions or, with a `length` above 1, of sequences: where they begin.
            length: transitions of a sequence: columns are [m, length, ...] then.

        Raises:
            BufferContractError: a row, or one that a view refers to, is not in the ring.
        """
        _check_rows(rows, self._capacity)
        if length > 1:
            rows = sequence_rows(rows, self._take(SEQUENCE_LEN, rows), length)
            _check_rows(rows, self._capacity)
        found = self.read_columns(rows, without=self._stacked)
        return with_views(found, self._views, rows, self._take, self._capacity)

    def _take(self, name: str, rows: Array) -> Array:
        """One column at rows of any shape."""
        if self._records is not None and name in self._records.members:
            return self._records.take(rows, name)[name]
        return self.recycler.take(self._columns[name], rows)

    def drop(self, slots: Array) -> None:
        """Columns keep their memory."""

    def read(self, slots: Array) -> list[dict[str, Any]]:
        """Items of slots [m], each a dict of its own."""
        columns: dict[str, Any] = dict(self.read_columns(slots))
        for name, field in self._fields.items():
            if field.form is Form.TENSOR:
                columns[name] = sys.modules["torch"].from_numpy(columns[name])
            elif field.form is Form.PLAIN:
                columns[name] = columns[name].tolist()
        names = list(columns)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return [unflatten(row) for row in rows] if self._is_nested else rows

    def read_columns(self, slots: Array, without: Collection[str] = ()) -> Columns:
        """Columns at slots of any shape, by '/'-joined name: arrays of the caller's own."""
        packed = self._records.take(slots) if self._records is not None else {}
        found: Columns = {}
        for name, column in self._columns.items():
            if name not in without:
                found[name] = packed[name] if name in packed else self.recycler.take(column, slots)
        if self._frames is not None:
            found |= self._frames.read(slots)
            found = {name: found[name] for name in self._fields}
        return found

    def column(self, name: str) -> Array | None:
        """The column itself, [capacity, ...], not to be written; None where there is none."""
        return self._columns.get(name)

    @property
    def n_bytes(self) -> int:
        """Bytes of all slots, used or not, and of frames."""
        n_bytes = sum(column.nbytes for column in self._alone.values())
        n_bytes += self._records.array.nbytes if self._records is not None else 0
        return n_bytes + (self._frames.n_bytes if self._frames is not None else 0)

    def state_of(self, spans: Iterable[Span], shared: bool = False) -> dict[str, Any]:
        """Items of spans of slots, in order, as columns: copies, or if `shared` also views."""
        spans = list(spans)
        state: dict[str, Any] = {
            "columns": unflatten({n: rows_in(spans, c, shared) for n, c in self._alone.items()}),
            "order": list(self._fields),
            "framed": list(self._framed),
            "tensors": [n for n, field in self._fields.items() if field.form is Form.TENSOR],
            "plain": [n for n, field in self._fields.items() if field.form is Form.PLAIN],
        }
        if self._records is not None:
            state |= self._records.state_of(rows_in(spans, self._records.array, shared))
        if self._frames is not None:
            state["frames"] = self._frames.state_of(slots_of(spans))
        return state

    def restore(
        self, state: Mapping[str, Any], spans: Iterable[Span], shared: bool = False
    ) -> None:
        """Put the items of a `state_of` into spans of slots.

        Args:
            state: the items.
            spans: of slots, as many as there are items.
            shared: keep the state's arrays, where they hold all slots in order, without a copy.

        Raises:
            BufferContractError: its frames are of other columns.
        """
        columns, spans = flatten(state["columns"]) | unpacked(state), list(spans)
        framed = tuple(state["framed"])
        if framed != self._framed:
            raise BufferContractError(
                f"the saved buffer stores frames of {list(framed)}, this one of "
                f"{list(self._framed)}"
            )
        if self._frames is not None:
            self._frames.restore(state["frames"], slots_of(spans))
            columns |= dict.fromkeys(framed, self._frames.read(np.zeros(0, np.int64))[framed[0]])
        forms = dict.fromkeys(state["tensors"], Form.TENSOR)
        forms |= dict.fromkeys(state["plain"], Form.PLAIN)
        given: Columns = {}
        if shared and [span[:2] for span in spans] == [(0, self._capacity)]:
            whole = {**columns, _RECORDS: state.get("records")}
            given = {n: c for n, c in whole.items() if c is not None and c.flags.writeable}
        self._allocate(
            {
                n: Field(columns[n].dtype, columns[n].shape[1:], forms.get(n, Form.ARRAY))
                for n in state["order"]
            },
            given,
        )
        pairs = [(column, columns[name]) for name, column in self._alone.items()]
        pairs += self._records.pairs(state, columns) if self._records is not None else []
        copy_rows([pair for pair in pairs if not np.may_share_memory(*pair)], spans)

    @property
    def _alone(self) -> Columns:
        """Columns that are no members of records."""
        small = self._records.members if self._records is not None else {}
        return {name: column for name, column in self._columns.items() if name not in small}

    @property
    def _framed(self) -> tuple[str, ...]:
        return self._frames.names if self._frames is not None else ()

    def _allocate(self, fields: dict[str, Field], given: Columns | None = None) -> None:
        """Make the columns, in `given` arrays that fit; memory is used as rows are written."""
        given = given or {}
        self._fields = fields
        self._stacked = stacked_by(self._views, {n: field.shape for n, field in fields.items()})
        alone = {n: f for n, f in fields.items() if n not in self._framed}
        small = Records.among(alone)
        if small:
            self._records = Records(self._capacity, small, given.get(_RECORDS))
        for name, field in alone.items():
            if self._records is not None and name in small:
                self._columns[name] = self._records.column(name)
            else:
                shape = (self._capacity, *field.shape)
                self._columns[name] = memory(shape, field.dtype, given.get(name))
        if not self._is_nested:
            self._quick = [
                (name, self._columns.get(name), field.dtype, field.shape, field.fitting)
                for name, field in fields.items()
            ]

    @property
    def _is_nested(self) -> bool:
        return any("/" in name for name in self._fields)

    def _are_alike(self, columns: Mapping[str, Any]) -> bool:
        """True for columns plainly like those that are held; others may fit still."""
        if not self._fields or len(columns) != len(self._fields):
            return False
        rows = -1
        for name, (dtype, shape, _) in self._fields.items():
            column = columns.get(name)
            if type(column) is not np.ndarray or column.dtype is not dtype:
                return False
            given = column.shape
            if not given or given[1:] != shape or rows not in (-1, given[0]):
                return False
            rows = given[0]
        return True

    def _compare(self, columns: Columns) -> None:
        odd = sorted(columns.keys() ^ self._fields.keys())
        if odd:
            raise BufferContractError(f"items differ from the first ones in the keys {odd}")
        for name, column in columns.items():
            field = self._fields[name]
            if column.dtype is field.dtype and column.shape[1:] == field.shape:
                continue
            fits = np.can_cast(column.dtype, field.dtype, "same_kind")
            if column.shape[1:] != field.shape or not fits:
                raise BufferContractError(
                    f"{name!r} is {column.dtype}{column.shape[1:]}, "
                    f"in the first items it was {field.dtype}{field.shape}"
                )
            check_range(name, column, field.dtype)


def _is_huge(value: Any) -> bool:
    return type(value) is int and not -LARGE_INTEGER <= value < LARGE_INTEGER


@dataclass(frozen=True)
class Placement:
    """Rows assigned to a block, and the blocks evicted for it, oldest first."""

    first_row: int
    evicted: tuple[int, ...]


class RowPlacer:
    """Assigns blocks consecutive rows of a ring of `capacity` rows; the oldest are evicted."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._head = 0
        self._blocks: deque[tuple[int, int, int]] = deque()  # block id, first row, end row

    def state_dict(self) -> dict[str, int]:
        """``capacity``, and ``head``: the row after those of the block that was placed last."""
        return {"capacity": self.capacity, "head": self._head}

    def restore(self, head: int, blocks: Iterable[tuple[int, int, int]]) -> None:
        """Continue where another placer was.

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


def with_views(
    found: Columns,
    views: Sequence[RowView],
    rows: Array,
    take: Callable[[str, Array], Array],
    capacity: int,
) -> Columns:
    """Columns at `rows` [m] and, beside them, their views; without the offsets of stacks.

    Args:
        found: stored columns at `rows`; of those that only stacks of frames read, none is needed.
        views: to be added.
        rows: int64 [m].
        take: reads a stored column at other rows.
        capacity: rows that there are.

    Raises:
        BufferContractError: a view refers to a row that is not there.
    """
    by_name = {view.name: view for view in views}

    def read(view: RowView, at: Array, offsets: Array) -> Array:
        at = at.reshape(*at.shape, *(1,) * (offsets.ndim - at.ndim)) + offsets
        _check_rows(at, capacity)
        other = by_name.get(view.column)
        if other is None:
            return take(view.column, at)
        return read(other, at, take(other.offset, at))

    derived = {view.name: read(view, rows, found[view.offset]) for view in views}
    for view in views:
        if view.offset in found and found[view.offset].ndim > rows.ndim:
            del found[view.offset]
    return found | derived


def stacked_by(views: Iterable[RowView], shapes: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
    """Stored columns that only stacks of frames read, by the row shapes of all columns."""
    return frozenset(view.column for view in views if shapes.get(view.offset))


def _check_rows(rows: Array, capacity: int) -> None:
    if rows.size and not 0 <= rows.min() <= rows.max() < capacity:
        raise BufferContractError(
            f"rows {rows.min()} to {rows.max()} are not in a ring of {capacity}"
        )


def sequence_rows(starts: Array, lengths: Array, most: int) -> Array:
    """Rows of sequences, int64 [sequences, most]; a shorter one repeats its last row.

    Args:
        starts: their first rows, [sequences].
        lengths: of each, [sequences].
        most: the most that one has.
    """
    last = np.maximum(lengths.astype(np.int64), 1) - 1
    rows: Array = starts[:, None] + np.minimum(np.arange(most), last[:, None])
    return rows


def sequences(columns: Columns, most: int) -> Columns:
    """Sequences among transitions, item after item, as columns [sequences, most, ...].

    Sequences of one transition are the transitions as they are, [transitions, ...].
    """
    if most == 1:
        return columns
    lengths = columns[SEQUENCE_LEN]
    starts = lengths.nonzero()[0]
    rows = sequence_rows(starts, lengths[starts], most)
    return {name: column[rows] for name, column in columns.items()}


def transitions(block: Block) -> Columns:
    """A block's transitions alone, item after item, views included: fresh arrays."""

    def take(name: str, rows: Array) -> Array:
        return block.columns[name].take(rows, axis=0)

    rows = transition_rows(block.items)
    stacked = stacked_by(block.views, {n: column.shape[1:] for n, column in block.columns.items()})
    found = {name: take(name, rows) for name in block.columns if name not in stacked}
    return with_views(found, block.views, rows, take, block.rows)
