"""The small columns of items, together: drawing an item costs one miss of the cache, not many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcdi.types import Array, Columns
from hpcdi.worker.replay_buffer.fields import Field, arrays_as_bytes, memory

LARGE_ROW_BYTES = 256
"""A column whose rows are larger is an array of its own."""


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

    def take(self, slots: Array) -> Columns:
        """Columns at slots of any shape: arrays of the caller's own."""
        drawn, found = self._bytes.take(slots).view(self._rows), {}
        for name, member, dtype, shape in self._how:
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
