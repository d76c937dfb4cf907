"""Values as JSON, and the bytes of the arrays in them.

Whoever reads them can make nothing but numbers, texts, containers, arrays, and the dataclasses that
are `sendable`: unlike a pickle, what comes from another process runs no code here.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path, PurePath
from typing import Any, TypeVar

import numpy as np

from hpcdi.errors import CommError
from hpcdi.types import Array, ColumnSpec, Lockstep, RowView, ShardRef

C = TypeVar("C", bound=type)

_ATOMS = frozenset((type(None), bool, int, float, str))
_CLASSES: dict[str, type] = {}


def sendable(cls: C) -> C:
    """Let the objects of a dataclass be sent; its name must be the only one of its kind.

    Raises:
        TypeError: another class has that name.
    """
    known = _CLASSES.get(cls.__name__, cls)
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise TypeError(f"{known.__module__} has a sendable class {cls.__name__}, too")
    _CLASSES[cls.__name__] = cls
    return cls


for _shared in (ShardRef, ColumnSpec, RowView, Lockstep):
    sendable(_shared)


def flatten(value: Any) -> tuple[bytes, list[memoryview]]:
    """A value as JSON (ASCII), and the bytes of its arrays, in the order of their numbers there.

    Raises:
        CommError: there is something in it that has no bytes.
    """
    views: list[memoryview] = []
    try:
        return _ENCODE(_tree(value, views)).encode("ascii"), views
    except RecursionError:
        raise CommError("it holds itself") from None


def restore(body: bytes, buffers: Sequence[memoryview]) -> Any:
    """The value of what `flatten` gave; its arrays are views of the buffers.

    Raises:
        CommError: it names a class that is not `sendable` here.
    """
    return _value(json.loads(body), buffers)


_ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def _tree(value: Any, views: list[memoryview]) -> Any:
    """What JSON can say: atoms and texts' dicts as they are, all else as a list behind its tag."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict or isinstance(value, Mapping):
        if all(type(key) is str for key in value):
            return {key: _tree(item, views) for key, item in value.items()}
        return ["d", *([_tree(k, views), _tree(v, views)] for k, v in value.items())]
    if kind is list or kind is tuple:
        return ["l" if kind is list else "t", *(_tree(item, views) for item in value)]
    if kind is np.ndarray:
        descr, shape = _descr_of(value.dtype), list(value.shape)
        return ["a", _add(value, views), descr, shape, bool(value.flags.writeable)]
    if kind.__name__ in _CLASSES and _CLASSES[kind.__name__] is kind:
        fields = [_tree(getattr(value, name), views) for name in _names_of(kind.__name__)]
        return ["c", kind.__name__, *fields]
    return _rare(value, views)


def _rare(value: Any, views: list[memoryview]) -> Any:
    if isinstance(value, np.memmap | np.recarray):
        return _tree(value.view(np.ndarray), views)
    if isinstance(value, np.generic):
        return ["n", _add(np.asarray(value), views), _descr_of(value.dtype)]
    if isinstance(value, bytes | bytearray):
        return ["b", _add(np.frombuffer(value, np.uint8), views)]
    if isinstance(value, PurePath):
        return ["p", str(value)]
    if isinstance(value, complex):
        return ["x", value.real, value.imag]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return ["T", _add(flat, views), str(value.dtype).removeprefix("torch."), [*value.shape]]
    raise CommError(f"it holds a {type(value).__module__}.{type(value).__qualname__}")


def _add(array: Array, views: list[memoryview]) -> int:
    """Number of an array's bytes, which are added to the others."""
    if array.dtype.hasobject:
        raise CommError("it holds an array of Python objects")
    whole = np.ascontiguousarray(array)
    raw = whole.reshape(-1).view(np.uint8) if whole.nbytes else _EMPTY
    views.append(raw.data)
    return len(views) - 1


def _value(tree: Any, buffers: Sequence[memoryview]) -> Any:
    kind = type(tree)
    if kind is list:
        return _READERS[tree[0]](tree, buffers)
    if kind is dict:
        return {key: _value(item, buffers) for key, item in tree.items()}
    return tree


def _values(trees: Iterable[Any], buffers: Sequence[memoryview]) -> list[Any]:
    return [_value(tree, buffers) for tree in trees]


def _array(tree: list[Any], buffers: Sequence[memoryview]) -> Array:
    _, number, descr, shape, is_writeable = tree
    dtype, buffer = _dtype_of(descr), buffers[number]
    flat = np.frombuffer(buffer, dtype) if len(buffer) else np.empty(0, dtype)
    array = flat.reshape(shape)
    if not is_writeable:
        array.flags.writeable = False
    return array


def _object(tree: list[Any], buffers: Sequence[memoryview]) -> Any:
    name, cls = tree[1], _CLASSES.get(tree[1])
    if cls is None:
        raise CommError(f"a {name} has come, and that is nothing that may be sent")
    return cls(*_values(tree[2:], buffers))


def _tensor(tree: list[Any], buffers: Sequence[memoryview]) -> Any:
    import torch

    _, number, dtype, shape = tree
    kind, buffer = getattr(torch, dtype), buffers[number]
    if not len(buffer):
        return torch.empty(shape, dtype=kind)
    return torch.from_numpy(np.frombuffer(buffer, np.uint8).copy()).view(kind).reshape(shape)


_EMPTY = np.empty(0, np.uint8)
_READERS: dict[str, Callable[[list[Any], Sequence[memoryview]], Any]] = {
    "l": lambda tree, buffers: _values(tree[1:], buffers),
    "t": lambda tree, buffers: tuple(_values(tree[1:], buffers)),
    "d": lambda tree, buffers: dict(_values(pair, buffers) for pair in tree[1:]),
    "a": _array,
    "c": _object,
    "n": lambda tree, buffers: np.frombuffer(buffers[tree[1]], _dtype_of(tree[2]))[0],
    "b": lambda tree, buffers: bytes(buffers[tree[1]]),
    "p": lambda tree, _buffers: Path(tree[1]),
    "x": lambda tree, _buffers: complex(*tree[1:]),
    "T": _tensor,
}


@cache
def _names_of(name: str) -> tuple[str, ...]:
    """Fields of a sendable class."""
    cls: Any = _CLASSES[name]
    return tuple(field.name for field in dataclasses.fields(cls))


@lru_cache(maxsize=256)
def _descr_of(dtype: np.dtype[Any]) -> Any:
    """A dtype as numpy spells it in the header of its files: a text, or a list for each field."""
    return np.lib.format.dtype_to_descr(dtype)


def _dtype_of(descr: Any) -> np.dtype[Any]:
    return _simple_dtype(descr) if isinstance(descr, str) else _record_dtype(descr)


@lru_cache(maxsize=256)
def _simple_dtype(descr: str) -> np.dtype[Any]:
    return np.dtype(descr)


def _record_dtype(descr: Any) -> np.dtype[Any]:
    """JSON knows no tuples; numpy wants them for fields and their shapes."""
    fields = [
        (name, inner if isinstance(inner, str) else _record_dtype(inner), *map(tuple, shape))
        for name, inner, *shape in descr
    ]
    return np.dtype(fields)
