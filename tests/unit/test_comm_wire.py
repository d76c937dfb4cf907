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

from fakes.messages import ANYTHING, INTEGERS, NUMBERS, TEXTS, arrays, is_same
from hpcdi.comm.messages import Batches, CollectSetting, Message, PolicyUpdate
from hpcdi.comm.wire import INLINE_BYTES, decode, encode, frame_sizes
from hpcdi.errors import CommError
from hpcdi.types import Array

CLASSES = Message.__subclasses__()


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
