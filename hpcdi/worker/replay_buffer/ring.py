"""Where a buffer's items lie: columns for arrays and numbers, a list for anything else."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hpcdi.errors import BufferContractError
from hpcdi.types import Array, Columns
from hpcdi.utils.nested import flatten, split_columns, stack_columns, unflatten

_NUMBERS = "biufc"  # kinds of dtype: truth values, integers, floats, complex numbers


class ItemStore(Protocol):
    """Items in numbered slots; `prepare` may refuse, `put` not: a refused push changes nothing."""

    kind: str

    def prepare(self, items: Sequence[Mapping[str, Any]]) -> Any:
        """Items in the form that `put` takes.

        Raises:
            BufferContractError: they differ from what the store holds.
        """
        ...

    def put(self, slots: Array, prepared: Any) -> None:
        """Put prepared items into slots [m]."""
        ...

    def read(self, slots: Array) -> list[dict[str, Any]]:
        """Items of slots [m], each a dict of its own."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """A copy of all slots."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the slots of a `state_dict`."""
        ...


class ColumnStore:
    """Items as columns; names, dtypes and row shapes are those of the first items.

    Args:
        capacity: slots.
    """

    kind = "columns"

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._columns: Columns = {}

    def prepare(self, items: Sequence[Mapping[str, Any]]) -> Columns:
        """See `ItemStore.prepare`."""
        try:
            return self.check(stack_columns(items))
        except ValueError as error:
            raise BufferContractError(str(error)) from error

    def check(self, columns: Mapping[str, Array]) -> Columns:
        """The same columns [m, ...], where they fit those that are held.

        Raises:
            BufferContractError: other names, dtypes, row shapes or lengths, or no numbers.
        """
        if not columns or len({len(column) for column in columns.values()}) > 1:
            lengths = {name: len(column) for name, column in columns.items()}
            raise BufferContractError(f"columns must be of one length, not {lengths}")
        for name, column in columns.items():
            if column.dtype.kind not in _NUMBERS:
                raise BufferContractError(f"{name!r} is {column.dtype}, a column holds numbers")
        if not self._columns:
            self._columns = {
                name: np.zeros((self._capacity, *column.shape[1:]), dtype=column.dtype)
                for name, column in columns.items()
            }
        if columns.keys() != self._columns.keys():
            odd = sorted(columns.keys() ^ self._columns.keys())
            raise BufferContractError(f"items differ from the first ones in the keys {odd}")
        for name, column in columns.items():
            held = self._columns[name]
            fits = np.can_cast(column.dtype, held.dtype, "same_kind")
            if column.shape[1:] != held.shape[1:] or not fits:
                raise BufferContractError(
                    f"{name!r} is {column.dtype}{column.shape[1:]}, "
                    f"in the first items it was {held.dtype}{held.shape[1:]}"
                )
        return dict(columns)

    def put(self, slots: Array, prepared: Columns) -> None:
        """See `ItemStore.put`."""
        for name, column in prepared.items():
            self._columns[name][slots] = column

    def read(self, slots: Array) -> list[dict[str, Any]]:
        """See `ItemStore.read`."""
        return split_columns(self.read_columns(slots))

    def read_columns(self, slots: Array) -> Columns:
        """Columns of slots [m]: fresh arrays."""
        return {name: np.take(column, slots, axis=0) for name, column in self._columns.items()}

    def state_dict(self) -> dict[str, Any]:
        """See `ItemStore.state_dict`."""
        return unflatten({name: column.copy() for name, column in self._columns.items()})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the slots of a `state_dict`."""
        self._columns = {name: array.copy() for name, array in flatten(state).items()}


class ObjectStore:
    """Items as they are.

    Args:
        capacity: slots.
    """

    kind = "objects"

    def __init__(self, capacity: int) -> None:
        self._items: list[dict[str, Any] | None] = [None] * capacity

    def prepare(self, items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """See `ItemStore.prepare`: anything fits."""
        return [dict(item) for item in items]

    def put(self, slots: Array, prepared: list[dict[str, Any]]) -> None:
        """See `ItemStore.put`."""
        for slot, item in zip(slots, prepared, strict=True):
            self._items[slot] = item

    def read(self, slots: Array) -> list[dict[str, Any]]:
        """See `ItemStore.read`."""
        return [dict(self._items[slot] or {}) for slot in slots]

    def state_dict(self) -> dict[str, Any]:
        """See `ItemStore.state_dict`."""
        return {"items": copy.deepcopy(self._items)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the slots of a `state_dict`."""
        self._items = copy.deepcopy(state["items"])


def store_for(items: Sequence[Mapping[str, Any]], capacity: int) -> ColumnStore | ObjectStore:
    """The store that fits the first item: columns where all leaves are numbers or arrays."""
    return ColumnStore(capacity) if _is_columnar(items[0]) else ObjectStore(capacity)


def store_of_kind(kind: str, capacity: int) -> ColumnStore | ObjectStore:
    """An empty store, "columns" or "objects"."""
    return ColumnStore(capacity) if kind == ColumnStore.kind else ObjectStore(capacity)


def _is_columnar(tree: Any) -> bool:
    """Whether a leaf is a number or an array of numbers; of a mapping: all of its leaves are."""
    if isinstance(tree, Mapping):
        return bool(tree) and all(_is_columnar(value) for value in tree.values())
    try:
        return np.asarray(tree).dtype.kind in _NUMBERS
    except ValueError:  # a list of lists of different lengths
        return False
