"""Nested dictionaries of arrays as flat columns, and back.

``{"obs": {"image": a, "speed": b}, "done": c}`` is ``{"obs/image": a, "obs/speed": b, "done": c}``:
the names that HDF5 gives to groups and datasets.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from hpcdi.errors import BufferContractError
from hpcdi.types import Array, Columns


def flatten(
    tree: Mapping[str, Any], prefix: str = "", *, keep_empty: bool = False
) -> dict[str, Any]:
    """Leaves of a nested mapping by their '/'-joined path, in order.

    Args:
        tree: the mapping.
        prefix: goes before every path.
        keep_empty: an empty mapping is a leaf too; else nothing is left of it.

    Raises:
        ValueError: a key contains '/'.
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if "/" in str(key):
            raise ValueError(f"a key must not contain '/': {key!r}")
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and (value or not keep_empty):
            flat.update(flatten(value, f"{path}/", keep_empty=keep_empty))
        else:
            flat[path] = value
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dictionary of '/'-joined paths."""
    if not any("/" in path for path in flat):
        return dict(flat)
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, leaf = path.split("/")
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[leaf] = value
    return tree


def stack_columns(items: Iterable[Mapping[str, Any]]) -> Columns:
    """Columns of a list of items (nested dicts of scalars or arrays): one row an item.

    Raises:
        ValueError: an item has other keys, or an array another shape, than the first one.
    """
    flat = [flatten(item) for item in items]
    if not flat:
        return {}
    names = list(flat[0])
    for position, item in enumerate(flat):
        if item.keys() != flat[0].keys():
            odd = sorted(item.keys() ^ flat[0].keys())
            raise ValueError(f"item {position} differs from item 0 in the keys {odd}")
    try:
        return {name: np.stack([np.asarray(item[name]) for item in flat]) for name in names}
    except ValueError as error:
        raise ValueError(f"items of one list differ in shape: {error}") from error


def split_columns(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List of nested dicts, one a row: the inverse of `stack_columns`."""
    rows = len(next(iter(columns.values()))) if columns else 0
    return [
        unflatten({name: column[row] for name, column in columns.items()}) for row in range(rows)
    ]


def column_rows(columns: Columns) -> int:
    """Rows of columns: the length of the first."""
    return len(next(iter(columns.values()))) if columns else 0


def concatenate_columns(parts: Iterable[Columns]) -> Columns:
    """Columns of several parts with the same names, one after the other; empty parts are passed."""
    filled = [part for part in parts if part]
    if len(filled) < 2:
        return filled[0] if filled else {}
    return {name: np.concatenate([part[name] for part in filled]) for name in filled[0]}


def to_tensors(tree: Any) -> Any:
    """Numbers and arrays of a nested mapping as torch tensors of their own, float32."""
    import torch

    if isinstance(tree, Mapping):
        return {key: to_tensors(value) for key, value in tree.items()}
    return torch.tensor(np.asarray(tree), dtype=torch.float32)


def share_tensors(columns: Columns, *, pin_memory: bool = False) -> dict[str, Any]:
    """Columns as torch tensors of the same memory; or of page-locked memory, for copies to a GPU.

    Raises:
        BufferContractError: page-locked memory needs a GPU, and there is none.
    """
    torch = sys.modules.get("torch") or import_module("torch")
    if pin_memory and not torch.cuda.is_available():
        raise BufferContractError("pin_memory needs a CUDA device, and torch sees none")
    tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
    return {n: t.pin_memory() for n, t in tensors.items()} if pin_memory else tensors


def narrowed(integers: Array) -> Array:
    """Integers in the smallest dtype that holds all of them: a copy."""
    if not integers.size:
        return integers.copy()
    ends = np.min_scalar_type(integers.min()), np.min_scalar_type(integers.max())
    smallest = np.result_type(*ends)
    return integers.astype(smallest if smallest.kind != "f" else integers.dtype)


def column_objection(columns: Columns, like: Columns) -> str | None:
    """Why columns have not the names, dtypes and row shapes of `like`; None where they have."""
    odd = sorted(columns.keys() ^ like.keys())
    if odd:
        return f"only one of them has {odd}"
    for name, column in columns.items():
        first = like[name]
        if column.dtype != first.dtype or column.shape[1:] != first.shape[1:]:
            return (
                f"column {name!r} is {column.dtype}{column.shape[1:]}, "
                f"not {first.dtype}{first.shape[1:]}"
            )
    return None
