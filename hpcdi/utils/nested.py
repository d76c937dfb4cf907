"""Nested dictionaries: as flat columns of arrays and back, as tensors, as JSON.

``{"obs": {"image": a, "speed": b}, "done": c}`` is ``{"obs/image": a, "obs/speed": b, "done": c}``:
the names of HDF5 groups and datasets.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import numbers
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from hpcdi.errors import BufferContractError, EnvError
from hpcdi.types import NUMBERS, Array, Columns

PARSE_ERRORS = (
    LookupError,
    TypeError,
    ValueError,
    RuntimeError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    SyntaxError,  # numpy reads a shape in a dtype's text as Python
)
"""Errors of parsing what hpcdi has not written, or not so."""
_NO_ARRAYS = (bool, int, float, str, type(None))


def flatten(
    tree: Mapping[str, Any], prefix: str = "", *, keep_empty: bool = False
) -> dict[str, Any]:
    """Returns the leaves of a nested mapping by '/'-joined path, in order.

    Args:
        tree: the mapping.
        prefix: put before every path.
        keep_empty: keep an empty mapping as a leaf instead of dropping it.

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


def unflatten(flat: Mapping[str, Any], separator: str = "/") -> dict[str, Any]:
    """Returns the nested dictionary of paths that are joined by a separator.

    A path that goes on from another one stays a key: ``{"a": 1, "a/b": 2}`` stays as it is.
    """
    if not any(separator in path for path in flat):
        return dict(flat)
    tree: dict[str, Any] = {}
    for (parents, leaf), value in zip(_places(tuple(flat), separator), flat.values(), strict=True):
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[leaf] = value
    return tree


@functools.lru_cache(maxsize=64)
def _places(paths: tuple[str, ...], separator: str) -> list[tuple[list[str], str]]:
    """Returns for each path the keys of the mappings around its value, and its own key."""
    known, places = set(paths), list[tuple[list[str], str]]()
    for path in paths:
        *parents, leaf = path.split(separator)
        above = itertools.accumulate(parents, lambda one, two: f"{one}{separator}{two}")
        places.append(([], path) if known.intersection(above) else (parents, leaf))
    return places


def stack_columns(items: Iterable[Mapping[str, Any]], prefix: str = "") -> Columns:
    """Stacks items (nested dicts of scalars or arrays) into columns with one row per item.

    Args:
        items: all with the same keys.
        prefix: put before every column's name.

    Raises:
        ValueError: an item differs from the first one in its keys or an array's shape; or a key
            contains '/'.
    """
    rows = list(items)
    keys = rows[0].keys() if rows else ()
    for position, item in enumerate(rows):
        if item.keys() != keys:
            odd = sorted(f"{prefix}{key}" for key in item.keys() ^ keys)
            raise ValueError(f"item {position} differs from item 0 in the keys {odd}")
    columns: Columns = {}
    for key in keys:
        if "/" in str(key):
            raise ValueError(f"a key must not contain '/': {key!r}")
        name, values = f"{prefix}{key}", [item[key] for item in rows]
        if isinstance(values[0], Mapping):
            _check_alike(name, values)
            columns |= stack_columns(values, f"{name}/")
            continue
        try:
            column = columns[name] = np.array(values)
        except ValueError as error:
            raise ValueError(f"items of one list differ in shape: {name!r}: {error}") from error
        if column.dtype == object:
            _check_alike(name, values)
    return columns


def _check_alike(name: str, values: list[Any]) -> None:
    if len({isinstance(value, Mapping) for value in values}) > 1:
        raise ValueError(f"some items have a mapping in {name!r}, others have none")


def split_columns(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns a nested dict per row: the inverse of `stack_columns`."""
    if len(columns) == 1:  # a fast path: an action alone, at every step of a serial collector
        ((name, column),) = columns.items()
        rows = [{name: value} for value in column]
    else:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return list(map(unflatten, rows)) if "/" in "".join(columns) else rows


def dotted(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the leaves of nested settings by dotted name, in order.

    An empty mapping is a leaf, and one within that has a key which is no text, as ``kwargs`` may,
    or a text with a dot, as ``schedule`` has.
    """
    for name, value in tree.items():
        is_section = isinstance(value, Mapping) and value
        if is_section and all(isinstance(key, str) and "." not in key for key in value):
            yield from dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def under(columns: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the column of a name, or those of its parts: ``action``, or ``action/arm``, ..."""
    if name in columns:
        return {name: columns[name]}
    return {path: column for path, column in columns.items() if path.startswith(f"{name}/")}


def take_rows(columns: Columns, rows: Array | Sequence[int] | int | slice) -> Columns:
    """Returns rows of columns: copies by numbers or a mask [rows], views by a number or a slice."""
    return {name: column[rows] for name, column in columns.items()}


def column_rows(columns: Columns) -> int:
    """Returns the number of rows."""
    return len(next(iter(columns.values()))) if columns else 0


def concatenate_columns(parts: Iterable[Columns]) -> Columns:
    """Concatenates columns with the same names; parts without columns are skipped."""
    filled = [part for part in parts if part]
    if len(filled) < 2:
        return filled[0] if filled else {}
    return {name: np.concatenate([part[name] for part in filled]) for name in filled[0]}


def is_tensor(value: object) -> bool:
    """True for a torch tensor; does not import torch."""
    return type(value).__module__ == "torch" and type(value).__name__ == "Tensor"


def is_like_tensor(value: object) -> bool:
    """True for tensors, also of other classes; files and sockets have a ``detach``, too."""
    return hasattr(value, "detach") and hasattr(value, "cpu")


def as_array(value: Any) -> Array:
    """Returns a number, an array or a tensor as an array; numpy has no bfloat16."""
    if not is_like_tensor(value):
        return np.asarray(value)
    tensor = value.detach().cpu()
    is_short = tensor.is_floating_point() and tensor.element_size() < 4
    is_missing = is_short and not hasattr(np, str(tensor.dtype)[len("torch.") :])
    array: Array = (tensor.float() if is_missing else tensor).numpy()
    return array


def to_tensors(tree: object, *, as_floats: bool = True, path: str = "") -> Any:
    """Copies arrays, nested in mappings, lists and tuples, to torch tensors.

    A list or tuple of numbers alone becomes one tensor; another tuple becomes a list, a named one
    stays a tuple. Texts, truth values and None stay.

    Args:
        tree: the arrays, in any memory layout and byte order.
        as_floats: numbers become tensors, too, all of them float32. Else doubles become float32,
            other dtypes stay, and so does what is no array.
        path: of the tree, for messages.

    Raises:
        EnvError: `as_floats`, and a value is neither a number nor one of these.
    """
    if isinstance(tree, np.ndarray):
        return _tensor(tree, as_floats, path)
    if tree is None or isinstance(tree, bool | str):
        return tree
    if not as_floats and (type(tree) in _NO_ARRAYS or is_tensor(tree)):  # most values
        return tree
    if isinstance(tree, Mapping):
        return {
            key: to_tensors(value, as_floats=as_floats, path=f"{path}/{key}")
            for key, value in tree.items()
        }
    if not isinstance(tree, list | tuple):
        return _tensor(as_array(tree), True, path) if as_floats else tree
    if not hasattr(tree, "_fields") and all(isinstance(one, numbers.Real) for one in tree):
        if as_floats:
            return _tensor(np.asarray(tree), True, path)
        if not tree:
            return []
        import torch

        return torch.tensor(tree)
    values = [
        to_tensors(value, as_floats=as_floats, path=f"{path}[{place}]")
        for place, value in enumerate(tree)
    ]
    return type(tree)(*values) if hasattr(tree, "_fields") else values


def to_ndarrays(tree: object) -> Any:
    """Returns tensors and numbers, nested in mappings, lists and tuples, as arrays.

    A list or tuple of numbers alone becomes one array; another tuple becomes a list, a named one
    stays a tuple. What else there is stays, truth values among it.
    """
    if tree is None or isinstance(tree, np.ndarray | bool | str):
        return tree
    if is_like_tensor(tree):
        return as_array(tree)
    if isinstance(tree, Mapping):
        return {key: to_ndarrays(value) for key, value in tree.items()}
    if not isinstance(tree, list | tuple):
        return np.array(tree) if isinstance(tree, numbers.Real | np.generic) else tree
    is_named = hasattr(tree, "_fields")
    if tree and not is_named and all(isinstance(one, numbers.Real) for one in tree):
        return np.array(tree)
    values = [to_ndarrays(value) for value in tree]
    return type(tree)(*values) if is_named else values


def _tensor(array: Array, as_floats: bool, path: str) -> Any:
    """Copies an array to a tensor; see `to_tensors`."""
    import torch

    dtype = array.dtype
    if dtype.kind not in NUMBERS:
        if not as_floats:
            return array
        name = f" in {path.removeprefix('/')!r}" if path else ""
        raise EnvError(
            f"an environment returned {array.tolist()!r:.60}{name}; tensors hold numbers alone: "
            "leave it out of what it returns, or make it numbers in a wrapper"
        )
    if not dtype.isnative:
        dtype = dtype.newbyteorder("=")
    if as_floats:
        return torch.tensor(np.asarray(array, dtype, order="C"), dtype=torch.float32)
    return torch.from_numpy(array.astype(np.float32 if dtype == np.float64 else dtype, order="C"))


def share_tensors(columns: Columns, *, pin_memory: bool = False) -> dict[str, Any]:
    """Returns columns as torch tensors that share their memory, or as copies in pinned memory.

    Raises:
        BufferContractError: pinned memory needs a CUDA device, and there is none.
    """
    torch = sys.modules.get("torch") or import_module("torch")
    if pin_memory and not torch.cuda.is_available():
        raise BufferContractError("pin_memory needs a CUDA device, and torch sees none")
    tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
    return {n: t.pin_memory() for n, t in tensors.items()} if pin_memory else tensors


def narrowed(integers: Array) -> Array:
    """Copies integers to the smallest dtype that holds all of them."""
    if not integers.size:
        return integers.copy()
    limits = np.min_scalar_type(integers.min()), np.min_scalar_type(integers.max())
    smallest = np.result_type(*limits)  # of -1 and 2 ** 63 a float: no integer holds both
    return integers.astype(smallest if smallest.kind != "f" else integers.dtype)


def column_objection(columns: Columns, like: Columns) -> str | None:
    """Returns how columns differ from `like` in names, dtypes or row shapes, or None."""
    odd = sorted(columns.keys() ^ like.keys())
    if odd:
        return f"only one of them has {odd}"
    for name, column in columns.items():
        wanted = like[name]
        if column.dtype != wanted.dtype or column.shape[1:] != wanted.shape[1:]:
            return (
                f"column {name!r} is {column.dtype}{column.shape[1:]}, "
                f"not {wanted.dtype}{wanted.shape[1:]}"
            )
    return None


def parse_json(text: str | bytes, *, is_file: bool = False) -> Any:
    """Returns the value of a JSON text.

    Args:
        text: UTF-8.
        is_file: refuse numbers that are not finite, which `jsonable` never writes.

    Raises:
        ValueError: it is no JSON, nested deeper than Python reads, or such a number is in it.
    """
    try:
        if is_file:
            return json.loads(text, parse_constant=_finite_number, parse_float=_finite_number)
        return json.loads(text)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def _finite_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"holds the number {text}")
    return number


def jsonable(value: Any) -> Any:
    """Returns plain data for JSON: numpy scalars as numbers, nan and inf as None, else text."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, float | np.floating):  # item() of a long double is one again
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    is_scalar = getattr(value, "ndim", None) == 0
    return jsonable(value.item()) if is_scalar else str(value)
