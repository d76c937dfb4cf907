"""Items in columns: dicts of numbers and arrays, nested as they like; a row is an item."""

from __future__ import annotations

import copy
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from hpcdi.errors import BufferContractError
from hpcdi.store.memory import Span, copy_rows, rows_in, slots_of
from hpcdi.store.rows import RECORDS, Records, RowField, RowStore, fields_of, member
from hpcdi.types import NUMBERS, Array, Columns
from hpcdi.utils.nested import flatten, is_tensor, stack_columns, unflatten
from hpcdi.worker.replay_buffer.frames import FrameStore

LARGE_INTEGER = 2**53
"""Below this, a Python integer is exact as a double: columns take it as it is."""
_PLAIN = (bool, int, float, complex)
_ANY = 0.0
_LARGEST = float(np.finfo(np.float32).max)
_FITTING: dict[str, dict[type, float]] = {
    "float64": {float: _ANY, np.float64: _ANY, np.float32: _ANY, int: LARGE_INTEGER},
    "float32": {float: _LARGEST, np.float64: _LARGEST, np.float32: _ANY, int: LARGE_INTEGER},
    "int64": {np.int64: _ANY, np.int32: _ANY, int: LARGE_INTEGER},
    "int32": {np.int32: _ANY},
    "bool": {bool: _ANY, np.bool_: _ANY},
}
"""Types of single numbers that a column takes as they are, by its dtype, up to which size."""


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


class ItemStore(RowStore):
    """Items in slots; names, dtypes and row shapes are those of the first items.

    Args:
        capacity: slots.
        frames: columns whose leading axis stacks frames; each frame is stored once, wherever it
            occurs in the items of an environment.
    """

    kind = "columns"

    def __init__(self, capacity: int, frames: tuple[str, ...] = ()) -> None:
        super().__init__(capacity)
        self._forms: dict[str, Form] = {}
        self._frames = FrameStore(capacity, frames) if frames else None
        self._framed = frames
        self._apart: Columns = {}
        """Columns of large rows, which items get one by one; those of a single array, too."""
        self._is_nested = False
        self._quick: list[tuple[str, Array | None, np.dtype[Any], tuple[int, ...], Any]] = []
        """Of each column, see `put_one`; the last is the types of single numbers it takes."""

    @staticmethod
    def fits(tree: Any) -> bool:
        """True for items that can be held: dicts whose leaves are numbers or arrays of them."""
        return type(tree) is dict and is_columnar(tree)

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
            else:
                limit = fitting.get(type(value))
                if limit is None or (limit and (value > limit or value < -limit)):
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
        check_dicts(items)
        try:
            return self.prepare_columns(stack_columns(items), items[0])
        except (ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise BufferContractError(str(error)) from error

    def prepare_columns(
        self, columns: Mapping[str, Any], like: Mapping[str, Any] | None = None
    ) -> Columns:
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
        fields = fields_of(flat)
        if not self._fields:
            _check_names(flat)
            leaves = flatten(like) if like is not None else {}
            if self._frames is not None:
                self._frames.declare(flat)
            self._declare(fields, {name: Form.of(leaves.get(name)) for name in flat})
        self._compare(flat)
        return flat

    def put(self, start: int, stop: int, prepared: Columns, offset: int) -> None:
        """Put prepared items, from row `offset`, into slots [start, stop)."""
        self._copy(start, stop, prepared, offset)
        if self._frames is not None:
            self._frames.put(start, stop, prepared, offset)

    def drop(self, slots: Array) -> None:
        """Columns keep their memory."""

    def read(self, slots: Array) -> list[dict[str, Any]]:
        """Items of slots [m], each a dict of its own."""
        together = self.read_columns(slots, without=self._apart)
        columns = [self._values(name, slots, together.get(name)) for name in self._fields]
        names = list(self._fields)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        return [unflatten(row) for row in rows] if self._is_nested else rows

    def _values(self, name: str, slots: Array, column: Array | None) -> Sequence[Any]:
        """One column's values in items of slots [m].

        Large rows have memory of their own: an item that is kept or pickled is then no larger than
        it looks.

        Args:
            name: of the column.
            slots: of the items.
            column: the values [m, ...]; None: they are to be read row by row.
        """
        form = self._forms[name]
        if column is None:
            apart = self._apart[name]
            rows: Sequence[Any] = [apart[slot].copy() for slot in slots.tolist()]
        elif form is Form.PLAIN:
            return list(column.tolist())
        elif name in self._framed:
            rows = [row.copy() for row in column]
        elif form is Form.ARRAY or column.ndim > 1:
            rows = list(column)
        else:
            rows = [column[k, ...] for k in range(len(column))]  # arrays of single numbers
        return rows if form is Form.ARRAY else list(map(sys.modules["torch"].from_numpy, rows))

    def read_columns(self, slots: Array, without: Collection[str] = ()) -> Columns:
        """Columns at slots of any shape, by '/'-joined name: arrays of the caller's own."""
        columns = super().read_columns(slots, without)
        if self._frames is not None:
            columns |= self._frames.read(slots)
            columns = {name: columns[name] for name in self._fields if name in columns}
        return columns

    @property
    def n_bytes(self) -> int:
        """Bytes of all slots, used or not, and of frames."""
        return super().n_bytes + (self._frames.n_bytes if self._frames is not None else 0)

    def state_of(self, spans: Iterable[Span], shared: bool = False) -> dict[str, Any]:
        """Items of spans of slots, in order, as columns: copies, or if `shared` also views."""
        spans = list(spans)
        state: dict[str, Any] = {
            "columns": unflatten({n: rows_in(spans, c, shared) for n, c in self._alone.items()}),
            "order": list(self._fields),
            "framed": list(self._framed),
            "tensors": [name for name, form in self._forms.items() if form is Form.TENSOR],
            "plain": [name for name, form in self._forms.items() if form is Form.PLAIN],
        }
        if self._records is not None:
            state["records"] = rows_in(spans, self._records.array, shared)
            state["members"] = list(self._records.members)
        if self._frames is not None:
            state["frames"] = self._frames.state_of(slots_of(spans))
        return state

    def restore(
        self,
        state: Mapping[str, Any],
        spans: Iterable[Span],
        shared: bool = False,
        by_age: Array | None = None,
    ) -> None:
        """Put the items of a `state_of` into spans of slots.

        Args:
            state: the items.
            spans: of slots, as many as there are items.
            shared: keep the state's arrays, where they hold all slots in order, without a copy.
            by_age: their slots [m], that of the oldest item first; None: spans are in that order.

        Raises:
            BufferContractError: its frames are of other columns.
        """
        columns, spans = flatten(state["columns"]) | columns_of_records(state), list(spans)
        framed = tuple(state["framed"])
        if framed != self._framed:
            raise BufferContractError(
                f"the saved buffer stores frames of {list(framed)}, this one of "
                f"{list(self._framed)}"
            )
        if self._frames is not None:
            self._frames.restore(state["frames"], slots_of(spans), by_age)
            columns |= dict.fromkeys(framed, self._frames.read(np.zeros(0, np.int64))[framed[0]])
        forms = dict.fromkeys(state["order"], Form.ARRAY)
        forms |= dict.fromkeys(state["tensors"], Form.TENSOR)
        forms |= dict.fromkeys(state["plain"], Form.PLAIN)
        ready: Columns = {}
        if shared and [span[:2] for span in spans] == [(0, self._capacity)]:
            whole = {**columns, RECORDS: state.get("records")}
            ready = {n: c for n, c in whole.items() if c is not None and c.flags.writeable}
        fields = {n: RowField(columns[n].dtype, columns[n].shape[1:]) for n in state["order"]}
        self._declare(fields, forms, ready)
        pairs = [(column, columns[name]) for name, column in self._alone.items()]
        if self._records is not None:
            pairs += self._record_pairs(self._records, state, columns)
        copy_rows([pair for pair in pairs if not np.may_share_memory(*pair)], spans)

    @staticmethod
    def _record_pairs(
        records: Records, state: Mapping[str, Any], columns: Columns
    ) -> list[tuple[Array, Array]]:
        """Each small column here, and its saved rows; all at once where the records agree."""
        rows = state.get("records")
        is_alike = rows is not None and state["members"] == list(records.members)
        if not is_alike or rows.dtype != records.array.dtype:  # type: ignore[union-attr]
            return [(records.column(name), columns[name]) for name in records.members]
        n_bytes = f"V{records.array.itemsize}"
        return [(records.array.view(n_bytes), rows.view(n_bytes))]  # type: ignore[union-attr]

    def _declare(
        self, fields: dict[str, RowField], forms: dict[str, Form], ready: Columns | None = None
    ) -> None:
        """Make the columns, in `ready` arrays where they fit."""
        self._allocate({n: f for n, f in fields.items() if n not in self._framed}, ready)
        self._fields, self._forms = fields, forms
        self._apart = {name: column for name, column in self._alone.items() if column.ndim > 1}
        self._is_nested = any("/" in name for name in fields)
        if not self._is_nested:
            self._quick = [
                (
                    n,
                    self._columns.get(n),
                    *field,
                    {} if field.shape else _FITTING.get(field.dtype.name, {}),
                )
                for n, field in fields.items()
            ]

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
                    f"{name!r} is {column.dtype}{column.shape[1:]}, in the first items it was "
                    f"{field.dtype}{field.shape}; a column keeps the kind of its first numbers: "
                    "make it the same from the first item on, e.g. a reward 0.0 instead of 0"
                )
            _check_range(name, column, field.dtype)


def columns_of_records(state: Mapping[str, Any]) -> Columns:
    """The small columns of an `ItemStore.state_of`, as views; empty where there are none."""
    return {name: state["records"][member(k)] for k, name in enumerate(state.get("members", ()))}


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


def is_columnar(tree: Any) -> bool:
    """True for a number, an array or a tensor of numbers, and a dict of names to such.

    Only for what a column returns unchanged: lists, tuples, dicts of other classes (EasyDict) and
    other containers are none, nor are names with a slash, which joins those of nested dicts.
    """
    if type(tree) is dict:
        are_names = all(isinstance(key, str) and "/" not in key for key in tree)
        return bool(tree) and are_names and all(is_columnar(value) for value in tree.values())
    is_plain = type(tree) in _PLAIN or isinstance(tree, np.generic)
    if not is_plain and not (type(tree) is np.ndarray and tree.ndim) and not is_tensor(tree):
        return False
    try:
        return np.asarray(tree).dtype.kind in NUMBERS
    except (TypeError, RuntimeError):  # tensors elsewhere, with a graph, or of a dtype of torch's
        return False


def _check_names(names: Collection[str]) -> None:
    """Check that no column is where others are nested.

    Raises:
        BufferContractError: one is.
    """
    for name in names:
        below = [other for other in names if other.startswith(f"{name}/")]
        if below:
            raise BufferContractError(f"{name!r} is a column, so {below} cannot lie in it")


def _check_range(name: str, column: Array, dtype: np.dtype[Any]) -> None:
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


def without(item: Mapping[str, Any], *names: str) -> Any:
    """Returns a copy of an item, without some of its keys; a dict stays one of its class."""
    kept: Any = copy.copy(item) if isinstance(item, dict) else dict(item)
    for name in names:
        if name in kept:  # older EasyDicts raise an AttributeError in spite of a default
            kept.pop(name)
    return kept


def check_dicts(items: Iterable[object]) -> None:
    """Check that items are dicts.

    Raises:
        BufferContractError: one is none.
    """
    for item in items:
        if not isinstance(item, Mapping):
            raise BufferContractError(f"items must be dicts, and one is {type(item).__name__}")
