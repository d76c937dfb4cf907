"""What a column of a buffer is, and what fits into it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from hpcdi.errors import BufferContractError
from hpcdi.types import NUMBERS, Array, Columns
from hpcdi.utils.nested import flatten

_FITTING: dict[str, tuple[type, ...]] = {
    "float64": (float, np.float64, np.float32, int),
    "float32": (float, np.float64, np.float32, int),
    "int64": (np.int64, np.int32, int), "int32": (np.int32,), "bool": (bool, np.bool_),
}  # fmt: skip
"""Types of single numbers that a column takes as they are, by its dtype."""

LARGE_INTEGER = 2**53
"""Below this, a Python integer is exact as a double: columns take it as it is."""


class Field(NamedTuple):
    """A column: what its rows are, and whether they came as torch tensors."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_tensor: bool

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def fitting(self) -> tuple[type, ...]:
        """Types of single numbers that it takes as they are."""
        return () if self.shape else _FITTING.get(self.dtype.name, ())


def memory(shape: tuple[int, ...], dtype: Any, given: Array | None) -> Array:
    """A given array, whatever it holds, if it fits; else zeros."""
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
    """See that no column is where others are nested.

    Raises:
        BufferContractError: one is.
    """
    names = list(names)
    for name in names:
        below = [other for other in names if other.startswith(f"{name}/")]
        if below:
            raise BufferContractError(f"{name!r} is a column, so {below} cannot lie in it")


def check_range(name: str, column: Array, dtype: np.dtype[Any]) -> None:
    """See that numbers fit into a column of fewer bits: casting them would not tell.

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
    """Whether a leaf is a number or an array of numbers; of a mapping: all leaves are, by name."""
    if isinstance(tree, Mapping):
        are_names = all(isinstance(key, str) for key in tree)
        return bool(tree) and are_names and all(is_columnar(value) for value in tree.values())
    try:
        return np.asarray(tree).dtype.kind in NUMBERS
    except (ValueError, TypeError, RuntimeError):  # ragged lists; tensors elsewhere or with a graph
        return False


def is_tensor(value: Any) -> bool:
    """Whether a leaf is a torch tensor; asked without importing torch."""
    return type(value).__module__ == "torch"
