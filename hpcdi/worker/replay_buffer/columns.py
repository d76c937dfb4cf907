"""Items as columns: dicts of numbers and arrays, nested as they like.

All small columns of an item lie together in one record, so that drawing an item costs one miss of
the cache instead of one a column (2 to 4 x as fast at a million items); large ones, as images, are
arrays of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.errors import BufferContractError
from hpcdi.types import NUMBERS, Array, Columns
from hpcdi.utils.nested import flatten, stack_columns, unflatten
from hpcdi.utils.recycle import Recycler
from hpcdi.worker.replay_buffer.fields import (
    LARGE_INTEGER,
    Field,
    arrays_of,
    check_names,
    check_range,
    is_columnar,
    is_tensor,
    memory,
)
from hpcdi.worker.replay_buffer.frames import FrameStore
from hpcdi.worker.replay_buffer.records import Records, unpacked
from hpcdi.worker.replay_buffer.spans import Span, copy_rows, rows_in, slots_of

_RECORDS = "/"  # no column has that name


class ColumnStore:
    """Items in slots; names, dtypes and row shapes are those of the first items.

    Args:
        capacity: slots.
        frames: columns whose leading axis stacks frames; each frame is stored once.
    """

    kind = "columns"

    def __init__(self, capacity: int, frames: tuple[str, ...] = ()) -> None:
        self._capacity = capacity
        self._fields: dict[str, Field] = {}
        self._columns: Columns = {}
        self._records: Records | None = None  # holds the small columns
        self._frames = FrameStore(capacity, frames) if frames else None
        self._quick: list[tuple[str, Array | None, Any, Any, Any]] = []  # see `put_one`
        self._recycler = Recycler()

    @staticmethod
    def fits(tree: Any) -> bool:
        """Whether an item can be held: a mapping whose leaves are numbers or arrays of numbers."""
        return isinstance(tree, Mapping) and is_columnar(tree)

    def put_one(self, item: Any, slot: int) -> bool:
        """Put an item into a slot, if it is plainly like the first one; else give False."""
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
                {n: Field(c.dtype, c.shape[1:], is_tensor(leaves.get(n))) for n, c in flat.items()}
            )
        self._compare(flat)
        return flat

    def put(self, start: int, stop: int, prepared: Columns, offset: int) -> None:
        """Put prepared items, from row `offset`, into slots [start, stop)."""
        here, there = slice(start, stop), slice(offset, offset + stop - start)
        for name, column in self._columns.items():
            column[here] = prepared[name][there]
        if self._frames is not None:
            self._frames.put(start, stop, prepared, offset)

    def drop(self, slots: Array) -> None:
        """Columns keep their memory."""

    def read(self, slots: Array) -> list[dict[str, Any]]:
        """Items of slots [m], each a dict of its own."""
        columns: dict[str, Any] = dict(self.read_columns(slots))
        for name, field in self._fields.items():
            if field.is_tensor:
                columns[name] = sys.modules["torch"].from_numpy(columns[name])
        names = list(columns)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return [unflatten(row) for row in rows] if self._is_nested else rows

    def read_columns(self, slots: Array) -> Columns:
        """Columns at slots of any shape, by '/'-joined name: arrays of the caller's own."""
        packed = self._records.take(slots) if self._records is not None else {}
        found: Columns = {}
        for name, column in self._columns.items():
            found[name] = packed[name] if name in packed else self._recycler.take(column, slots)
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
            "tensors": [name for name, field in self._fields.items() if field.is_tensor],
        }
        if self._records is not None:
            state |= self._records.state_of(rows_in(spans, self._records.array, shared))
        if self._frames is not None:
            state["frames"] = self._frames.state_of(slots_of(spans))
        return state

    def restore(
        self,
        state: Mapping[str, Any],
        spans: Iterable[Span],
        shared: bool = False,
        spare: Any = None,
    ) -> None:
        """Put the items of a `state_of` into spans of slots.

        Args:
            state: the items.
            spans: of slots, as many as there are items.
            shared: keep the state's arrays, where they hold all slots in order, without a copy.
            spare: a store that nobody needs any more: its memory is used where it fits.

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
        tensors = frozenset(state["tensors"])
        given = spare._memory if isinstance(spare, ColumnStore) else {}
        if shared and [span[:2] for span in spans] == [(0, self._capacity)]:
            whole = {**columns, _RECORDS: state.get("records")}
            given |= {n: c for n, c in whole.items() if c is not None and c.flags.writeable}
        self._allocate(
            {
                n: Field(columns[n].dtype, columns[n].shape[1:], n in tensors)
                for n in state["order"]
            },
            given,
        )
        pairs = [(column, columns[name]) for name, column in self._alone.items()]
        pairs += self._records.pairs(state, columns) if self._records is not None else []
        copy_rows([pair for pair in pairs if not np.may_share_memory(*pair)], spans)

    @property
    def _memory(self) -> Columns:
        """The arrays that all columns lie in."""
        records = {} if self._records is None else {_RECORDS: self._records.array}
        return self._alone | records

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
        """Whether columns are plainly like those that are held; if not, they may fit still."""
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
