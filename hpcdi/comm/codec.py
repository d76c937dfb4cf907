"""Messages, and other trees of plain data and arrays, as bytes: the only codec of this program.

A message is a small head, and frames: the bytes of its large arrays, sent from and received into
the arrays' memory, without a copy. The head is JSON for everything but arrays, and the bytes of
small arrays; of frequent messages without large arrays it is a record (see `records`)::

    head   count, size of the JSON | each array: size, is it a frame? | JSON | small arrays
    head   0, size of the record | record
    frame  one array's bytes

Decoding makes nothing but numbers, texts, containers, arrays, tensors, paths, and `sendable`
dataclasses: unlike a pickle, bytes of another process run no code here. Integers of any size,
tuples, keys other than texts, and NaN survive the round trip; msgspec, JSON alone and MessagePack
change some of these.
"""

from __future__ import annotations

import dataclasses
import json
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path, PurePath
from typing import Any, TypeVar

import numpy as np

from hpcdi.comm.records import ALIGNMENT, RecordForm
from hpcdi.dataclass import dataclass
from hpcdi.errors import CommError
from hpcdi.types import Array, BlockSchema, ColumnSpec, Lockstep, RowView, ShardRef
from hpcdi.utils.nested import PARSE_ERRORS, parse_json

C = TypeVar("C", bound=type)

INLINE_BYTES = 32 << 10
"""Arrays up to this size are part of the head: one MPI message instead of two."""

LARGEST_FRAME_BYTES = 1 << 36
"""64 GB. A head that announces more is damaged: no policy or block is that large."""

_FIRST_OF_JSON = 32
_PREFIX = struct.Struct("<IQ")  # number of arrays, bytes of the JSON
_ENTRY = struct.Struct("<QB")  # bytes of an array, 1 where it is a frame of its own
_DAMAGE = (struct.error, *PARSE_ERRORS)
"""Errors of decoding bytes that `encode` did not make."""
_EMPTY = np.empty(0, np.uint8)
_ATOMS = frozenset((type(None), bool, int, float, str))
_CLASSES: dict[str, type] = {}
_NUMBERS: dict[type, int] = {}
"""Of the classes whose messages become records: the first byte of each. JSON has none below 32."""


@dataclass(frozen=True)
class Encoded:
    """A message ready to be sent: `head`, then each of `frames`."""

    head: Array
    frames: tuple[memoryview, ...]


def sendable(cls: C) -> C:
    """Let objects of a dataclass be encoded (a decorator). Names of such classes are unique.

    Raises:
        TypeError: another class has this name.
    """
    registered = _CLASSES.get(cls.__name__, cls)
    # a module that is imported anew may register its class again
    if (registered.__module__, registered.__qualname__) != (cls.__module__, cls.__qualname__):
        raise TypeError(f"{registered.__module__} has a sendable class {cls.__name__}, too")
    _CLASSES[cls.__name__] = cls
    return cls


for _part_of_messages in (ShardRef, BlockSchema, ColumnSpec, RowView, Lockstep):
    sendable(_part_of_messages)


def recorded(*classes: type) -> None:
    """Let messages of these sendable classes become records, see `records`; called once.

    Raises:
        ValueError: there are too many.
    """
    if len(classes) >= _FIRST_OF_JSON:
        raise ValueError(f"{len(classes)} forms of records, of {_FIRST_OF_JSON - 1}")
    _NUMBERS.update((cls, number) for number, cls in enumerate(classes, 1))


def encode(message: Any, inline_bytes: int = INLINE_BYTES) -> Encoded:
    """Encodes a message; frames are views of its arrays, not copies.

    Args:
        message: of type `Message`, or any value of atoms, containers, arrays, tensors, paths and
            `sendable` dataclasses.
        inline_bytes: arrays up to this size go into the head, larger ones into frames.

    Raises:
        CommError: the message holds something that cannot be encoded.
    """
    number = _NUMBERS.get(type(message))
    if number is not None:
        record = _form(number).encode(message, inline_bytes)
        if record is not None:
            return Encoded(np.frombuffer(record, dtype=np.uint8), ())
    views: list[memoryview] = []
    try:
        body = _to_json(_tree(message, views)).encode("ascii")
    except (CommError, RecursionError) as error:
        reason = "it holds itself" if isinstance(error, RecursionError) else error
        raise CommError(
            f"a {type(message).__name__} cannot be encoded: {reason}. Numbers, texts, arrays, and "
            "containers of these can be"
        ) from error
    frames: list[memoryview] = []
    head = bytearray(_PREFIX.pack(len(views), len(body)))
    for view in views:
        head += _ENTRY.pack(len(view), len(view) > inline_bytes)
    head += body
    for view in views:
        if len(view) > inline_bytes:
            frames.append(view)
        else:
            head += bytes(-len(head) % ALIGNMENT)
            head += view
    return Encoded(np.frombuffer(head, dtype=np.uint8), tuple(frames))


def frame_sizes(head: Array) -> list[int]:
    """Returns the number of bytes of each frame that follows a head.

    Raises:
        CommError: the head is damaged.
    """
    try:
        sizes = [size for size, is_frame in _entries(head.data) if is_frame]
    except _DAMAGE as error:
        raise CommError(f"received the damaged head of a message: {error}") from error
    if sizes and max(sizes) > LARGEST_FRAME_BYTES:
        raise CommError(
            f"received a message that announces {max(sizes)} bytes in one piece, more than "
            f"{LARGEST_FRAME_BYTES >> 30} GB: its head is damaged"
        )
    return sizes


def decode(head: Array, frames: Sequence[Array]) -> Any:
    """Decodes a message from its head and frames; its arrays are views of them.

    Raises:
        CommError: it is damaged, or of a class that is not `sendable` here.
    """
    view = head.data
    try:
        count, body_size = _PREFIX.unpack_from(view)
        if not count and body_size and view[_PREFIX.size] < _FIRST_OF_JSON:
            return _form(view[_PREFIX.size]).decode(view)
        return _decoded(view, count, body_size, frames)
    except _DAMAGE as error:
        raise CommError(f"received a damaged message ({type(error).__name__}: {error})") from error


def _decoded(view: memoryview, count: int, body_size: int, frames: Sequence[Array]) -> Any:
    """Returns what a head of JSON, and frames, hold."""
    start = _PREFIX.size + count * _ENTRY.size
    at = start + body_size
    remaining = iter(frames)
    buffers: list[memoryview] = []
    for size, is_frame in _entries(view):
        if not is_frame:
            at += -at % ALIGNMENT
        buffer = next(remaining, _EMPTY).data if is_frame else view[at : at + size]
        if len(buffer) != size:
            raise ValueError(f"an array has {len(buffer)} of {size} bytes")
        buffers.append(buffer)
        at += 0 if is_frame else size
    return _value(parse_json(bytes(view[start : start + body_size])), buffers)


@cache
def _form(number: int) -> RecordForm:
    """Returns the form of the records that begin with a number.

    Raises:
        LookupError: there is none.
    """
    cls = next((one for one, n in _NUMBERS.items() if n == number), None)
    if cls is None:
        raise LookupError(f"there are no records of form {number}")
    return RecordForm(number, cls, _to_text, _from_text, _descr_of, _dtype_of)


def to_bytes(value: Any) -> Array:
    """Encodes a value as one array of bytes, uint8 [n]; see `encode`."""
    return encode(value, sys.maxsize).head


def from_bytes(encoded: Array) -> Any:
    """Decodes what `to_bytes` encoded; arrays in it are views of the bytes."""
    return decode(encoded, ())


def _entries(head: memoryview) -> Iterator[tuple[int, int]]:
    """Returns number of bytes, and whether it is a frame, of each array."""
    count, body_size = _PREFIX.unpack_from(head)
    if _PREFIX.size + count * _ENTRY.size + body_size > len(head):
        raise ValueError(f"{len(head)} bytes do not hold {count} entries and {body_size} bytes")
    return _ENTRY.iter_unpack(head[_PREFIX.size :][: count * _ENTRY.size])


# ----------------------------------------------------------------------------------- value to JSON


_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def _tree(value: Any, views: list[memoryview]) -> Any:
    """Returns a value as JSON can have it: ``[tag, ...]`` for all but atoms and dicts by texts."""
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
    """Appends an array's bytes to `views`; returns their index."""
    if array.dtype.hasobject:
        raise CommError("it holds an array of Python objects")
    contiguous = np.ascontiguousarray(array)
    raw = contiguous.reshape(-1).view(np.uint8) if contiguous.nbytes else _EMPTY
    views.append(raw.data)
    return len(views) - 1


@cache
def _names_of(name: str) -> tuple[str, ...]:
    """Returns the names of the fields of a sendable class."""
    cls: Any = _CLASSES[name]
    return tuple(field.name for field in dataclasses.fields(cls))


@lru_cache(maxsize=256)
def _descr_of(dtype: np.dtype[Any]) -> Any:
    """Returns a dtype as in the header of numpy's files: a text, or a list with each field."""
    return np.lib.format.dtype_to_descr(dtype)


def _to_text(value: Any) -> bytes | None:
    """Returns a value as JSON; None: it holds arrays, or something that cannot be encoded."""
    views: list[memoryview] = []
    try:
        text = _to_json(_tree(value, views)).encode("ascii")
    except (CommError, RecursionError):
        return None
    return None if views else text


# ----------------------------------------------------------------------------------- JSON to value


def _from_text(text: bytes) -> Any:
    return _value(parse_json(text), ())


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


def _scalar(tree: list[Any], buffers: Sequence[memoryview]) -> Any:
    _, number, descr = tree
    dtype = _dtype_of(descr)
    if not dtype.itemsize:  # an empty text
        return np.zeros((), dtype)[()]
    return np.frombuffer(buffers[number], dtype)[0]


def _object(tree: list[Any], buffers: Sequence[memoryview]) -> Any:
    name, cls = tree[1], _CLASSES.get(tree[1])
    if cls is None:
        raise CommError(f"received a {name}, which is not a class that may be sent")
    return cls(*_values(tree[2:], buffers))


def _tensor(tree: list[Any], buffers: Sequence[memoryview]) -> Any:
    import torch

    _, number, dtype, shape = tree
    kind, buffer = getattr(torch, dtype), buffers[number]
    if not len(buffer):
        return torch.empty(0, dtype=kind).reshape(shape)
    return torch.from_numpy(np.frombuffer(buffer, np.uint8).copy()).view(kind).reshape(shape)


_READERS: dict[str, Callable[[list[Any], Sequence[memoryview]], Any]] = {
    "l": lambda tree, buffers: _values(tree[1:], buffers),
    "t": lambda tree, buffers: tuple(_values(tree[1:], buffers)),
    "d": lambda tree, buffers: dict(_values(pair, buffers) for pair in tree[1:]),
    "a": _array,
    "c": _object,
    "n": _scalar,
    "b": lambda tree, buffers: bytes(buffers[tree[1]]),
    "p": lambda tree, _buffers: Path(tree[1]),
    "x": lambda tree, _buffers: complex(*tree[1:]),
    "T": _tensor,
}


def _dtype_of(descr: Any) -> np.dtype[Any]:
    if isinstance(descr, str):
        return _simple_dtype(descr)
    return np.lib.format.descr_to_dtype(_with_tuples(descr))


@lru_cache(maxsize=256)
def _simple_dtype(descr: str) -> np.dtype[Any]:
    if re.fullmatch(r"[<>|=]?a\d*", descr):  # deprecated: numpy only warns of it
        raise ValueError(f"there is no dtype {descr!r}")
    return np.dtype(descr)


def _with_tuples(descr: Any) -> Any:
    """Returns the description of a record dtype with the tuples that JSON has made lists."""
    return [
        (
            tuple(name) if isinstance(name, list) else name,  # with a title
            _with_tuples(inner) if isinstance(inner, list) else inner,
            *map(tuple, shape),
        )
        for name, inner, *shape in descr
    ]
