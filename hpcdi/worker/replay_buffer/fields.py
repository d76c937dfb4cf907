"""What a column of a buffer is, and what fits into it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hpcdi.utils.nested import flatten

NUMBERS = "biufc"  # kinds of dtype: truth values, integers, floats, complex numbers
_FITTING: dict[str, tuple[type, ...]] = {
    "float64": (float, np.float64, np.float32, int),
    "float32": (float, np.float64, np.float32, int),
    "int64": (np.int64, np.int32, int), "int32": (np.int32,), "bool": (bool, np.bool_),
}  # fmt: skip
"""Types of single numbers that a column takes as they are, by its dtype."""

LARGE_INTEGER = 2**63
"""From here on, no column takes a Python integer."""


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


def joined(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns by '/'-joined name; nested mappings are joined, names that are joined stay."""
    if any(isinstance(value, Mapping) for value in columns.values()):
        return flatten(columns)
    return dict(columns)


def is_columnar(tree: Any) -> bool:
    """Whether a leaf is a number or an array of numbers; of a mapping: all of its leaves are."""
    if isinstance(tree, Mapping):
        return bool(tree) and all(is_columnar(value) for value in tree.values())
    try:
        return np.asarray(tree).dtype.kind in NUMBERS
    except (ValueError, TypeError, RuntimeError):  # ragged lists; tensors elsewhere or with a graph
        return False


def is_tensor(value: Any) -> bool:
    """Whether a leaf is a torch tensor; asked without importing torch."""
    return type(value).__module__ == "torch"
