"""Messages as bytes: whatever a message may hold comes back as it was."""

from __future__ import annotations

import dataclasses
import sys
import threading
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdi.comm.messages import Batches, CollectSetting, Message, PolicyUpdate
from hpcdi.comm.wire import INLINE_BYTES, decode, encode, frame_sizes
from hpcdi.errors import CommError
from hpcdi.types import ITEM_DTYPE, Array

CLASSES = Message.__subclasses__()
DTYPES = (
    "?", "u1", "<i4", "<i8", ">f4", "<f8", "<c16", "S3", "<U2", "M8[s]",
    ITEM_DTYPE, np.dtype([("a", "u1"), ("b", "<f8", (2,))]),
)  # fmt: skip
SHAPES = ((), (0,), (1,), (3,), (2, 3), (0, 4), (2, 0, 2), (700, 5))
EDGES = (INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 5 * INLINE_BYTES)


def fill(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> Array:
    """An array that is nowhere the same."""
    count = int(np.prod(shape))
    if dtype.kind == "U":  # most bytes are no characters
        return np.resize(np.array(["a", "bc", "", "é"], dtype), count).reshape(shape)
    size = count * dtype.itemsize
    raw = np.random.default_rng(seed).integers(0, 256 if dtype.kind != "b" else 2, size, np.uint8)
    return np.frombuffer(raw.tobytes(), dtype).reshape(shape).copy()


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """Arrays of many dtypes, sizes and layouts in memory."""
    if draw(st.booleans()):
        array = fill(np.dtype("u1"), (draw(st.sampled_from(EDGES)),), draw(st.integers(0, 9)))
    else:
        dtype = np.dtype(draw(st.sampled_from(DTYPES)))
        array = fill(dtype, draw(st.sampled_from(SHAPES)), draw(st.integers(0, 9)))
    layout = draw(st.sampled_from(["plain", "transposed", "every second", "backwards", "fixed"]))
    if layout == "transposed":
        return array.T
    if layout == "every second" and array.ndim:
        return np.repeat(array, 2, axis=0)[::2]
    if layout == "backwards" and array.ndim:
        return array[::-1]
    array.flags.writeable = layout != "fixed"
    return array


INTEGERS = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.floats(allow_nan=False)
TEXTS = st.text(max_size=8)
ANYTHING = st.one_of(
    st.none(), st.booleans(), INTEGERS, NUMBERS, TEXTS, arrays(),
    st.lists(INTEGERS, max_size=3), st.lists(NUMBERS, max_size=3).map(tuple),
)  # fmt: skip


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field of a message."""
    if hint == Array:
        return arrays()
    if dataclasses.is_dataclass(hint):
        return of_class(typing.cast(type, hint))
    if typing.get_origin(hint) is tuple:
        return st.lists(of_type(typing.get_args(hint)[0]), max_size=3).map(tuple)
    if typing.get_origin(hint) is dict:
        return st.dictionaries(TEXTS, of_type(typing.get_args(hint)[1]), max_size=3)
    if typing.get_origin(hint) is types.UnionType:
        given = [known for known in typing.get_args(hint) if known is not types.NoneType]
        return st.none() | st.one_of([of_type(known) for known in given])
    return {str: TEXTS, int: INTEGERS, float: NUMBERS, bool: st.booleans(), Any: ANYTHING}[hint]


def of_class(cls: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{f.name: of_type(hints[f.name]) for f in dataclasses.fields(cls)})


def in_native_order(array: Array) -> Array:
    """numpy pickles a strided array of the other byte order in the machine's order."""
    return array.astype(array.dtype.newbyteorder("="))


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are alike in type, shape and every bit."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        one, other = in_native_order(one), in_native_order(other)
        alike: bool = one.dtype == other.dtype and one.shape == other.shape
        return alike and one.tobytes() == other.tobytes()
    if type(one) is not type(other):
        return False
    if dataclasses.is_dataclass(one):
        names = [f.name for f in dataclasses.fields(one)]
        return all(is_same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(is_same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)


def arrays_in(value: Any) -> Iterator[Array]:
    """All arrays of a message."""
    if isinstance(value, np.ndarray):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from arrays_in(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from arrays_in(item)


def transported(message: Message) -> Message:
    """What a receiver makes of a message's bytes, which lie in memory of its own."""
    encoded = encode(message)
    head = encoded.head.copy()
    frames = [np.frombuffer(frame, np.uint8).copy() for frame in encoded.frames]
    assert frame_sizes(head) == [len(frame) for frame in frames]
    return decode(head, frames)


@given(st.one_of([of_class(cls) for cls in CLASSES]))
@settings(max_examples=300, deadline=None)
def test_every_message_comes_back_as_it_was(message: Message) -> None:
    copy = transported(message)
    assert is_same(copy, message)
    sent = list(arrays_in(message))
    assert not any(np.shares_memory(a, b) for a in arrays_in(copy) for b in sent if b.size)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@given(data=st.data())
@settings(max_examples=5, deadline=None)
def test_each_class_comes_back(cls: type[Message], data: st.DataObject) -> None:
    message = data.draw(of_class(cls))
    assert is_same(transported(message), message)


@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES])
def test_small_arrays_ride_in_the_head(size: int) -> None:
    message = PolicyUpdate(3, np.arange(size, dtype=np.uint8))
    encoded = encode(message)
    assert encoded.frames == ()
    assert frame_sizes(encoded.head) == []
    assert size < len(encoded.head) < size + 1000


@pytest.mark.parametrize("size", [INLINE_BYTES + 1, 8 << 20])
def test_large_arrays_are_frames_and_are_not_copied(size: int) -> None:
    message = PolicyUpdate(3, np.zeros(size, dtype=np.uint8))
    encoded = encode(message)
    assert frame_sizes(encoded.head) == [size]
    assert len(encoded.head) < 1000
    assert np.shares_memory(np.frombuffer(encoded.frames[0], np.uint8), message.data)
    frame = np.zeros(size, dtype=np.uint8)
    received = decode(encoded.head.copy(), [frame])
    assert isinstance(received, PolicyUpdate)
    assert np.shares_memory(received.data, frame)


def test_frames_and_inline_arrays_may_stand_in_any_order() -> None:
    large, small = np.arange(9000).reshape(3, 3000), np.arange(6, dtype=np.float32)
    message = Batches("buffer", large, small, large * 2, 5)
    assert frame_sizes(encode(message).head) == [large.nbytes, large.nbytes]
    assert is_same(transported(message), message)


@pytest.mark.parametrize("size", [3, INLINE_BYTES])
def test_what_was_read_only_stays_so(size: int) -> None:
    data = np.zeros(size, dtype=np.float64)
    assert next(arrays_in(transported(PolicyUpdate(0, data)))).flags.writeable
    data.flags.writeable = False
    assert not next(arrays_in(transported(PolicyUpdate(0, data)))).flags.writeable


@pytest.mark.parametrize(
    "value",
    [lambda: 0, threading.Lock(), (n for n in ()), dataclasses],
    ids=["function", "lock", "generator", "module"],
)
def test_what_has_no_bytes_is_refused_by_name(value: Any) -> None:
    with pytest.raises(CommError, match=r"a CollectSetting cannot be sent: it holds a ") as caught:
        encode(CollectSetting("task", {"eps": value}))
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_messages_are_frozen_and_drawn(cls: type[Message]) -> None:
    """None can be changed on its way, and the module's drawing says who sends each."""
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    drawing = sys.modules[cls.__module__].__doc__ or ""
    assert cls.__name__ in drawing.split()
