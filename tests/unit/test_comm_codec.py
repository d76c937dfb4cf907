"""Messages and values as bytes: what comes back is what went, and nothing else can come."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import pickle
import sys
import threading
import types
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.messages import ANYTHING, INTEGERS, NUMBERS, TEXTS, arrays, is_same
from fakes.replay import block
from hpcdi.comm import codec
from hpcdi.comm.codec import (
    INLINE_BYTES,
    decode,
    encode,
    frame_sizes,
    from_bytes,
    sendable,
    to_bytes,
)
from hpcdi.comm.messages import (
    AdmitBlock,
    Batches,
    BlockReady,
    CloseTask,
    CollectSetting,
    Heartbeat,
    LearnInfo,
    Message,
    PolicyUpdate,
)
from hpcdi.errors import CommError
from hpcdi.types import Array, BlockSchema, ColumnSpec, ShardRef

KEYS = st.one_of(st.text(max_size=4), st.integers(), st.tuples(st.integers(), st.booleans()))
NESTED = st.recursive(
    ANYTHING | st.binary(max_size=9),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=8,
)  # fmt: skip


@given(NESTED)
def test_what_went_comes_back(value: Any) -> None:
    assert is_same(from_bytes(to_bytes(value).copy()), value)


@pytest.mark.parametrize(
    "value",
    [
        math.inf, -math.inf, -0.0, 2**200, "\ud800 lone", "ü\0\n", Path("a/b"), 1 - 2j,
        np.float32(0.1), np.int64(-3), np.bool_(True), np.datetime64("2026-11-22"),
        np.str_("ü"), np.str_(""), np.bytes_(b""),
        CloseTask("task"), [CloseTask("a"), {"b": (CloseTask("c"),)}], {}, (), [["l", 1]], "l",
    ],
)  # fmt: skip
def test_odd_ones_come_back(value: Any) -> None:
    again = from_bytes(to_bytes(value))
    assert again == value
    assert type(again) is type(value)
    assert math.copysign(1, again) == math.copysign(1, value) if value == 0.0 else True


def test_what_is_no_number_comes_back() -> None:
    assert math.isnan(from_bytes(to_bytes(math.nan)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int64", "uint8", "complex64"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = (
        torch.randint(0, 2, shape)
        .to(getattr(torch, dtype))
        .requires_grad_(dtype in ("float32", "bfloat16"))
    )
    again = from_bytes(to_bytes({"t": tensor, "u": tensor.T if shape == (2, 3) else tensor}))
    assert again["t"].dtype == tensor.dtype
    assert torch.equal(again["t"], tensor.detach())
    assert again["u"].shape == (tensor.T.shape if shape == (2, 3) else tensor.shape)


def test_other_mappings_come_back_as_dicts() -> None:
    assert from_bytes(to_bytes(Counter("aab"))) == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype([("a", "i1"), ("b", "f8")], align=True),
        np.dtype([(("title", "a"), "i4"), ("b", [("x", "i1"), ("y", "f8")], (2,))]),
    ],
    ids=["aligned", "with a title and records within"],
)
def test_arrays_of_records_keep_their_fields(dtype: Any) -> None:
    again = from_bytes(to_bytes(np.zeros(3, dtype)))
    assert again.dtype == dtype
    assert again.dtype.names == dtype.names


def test_arrays_in_files_come_back_as_arrays(tmp_path: Path) -> None:
    lying = np.memmap(tmp_path / "array", np.int32, "w+", shape=(3, 2))
    lying[:] = 7
    again = from_bytes(to_bytes(lying))
    assert type(again) is np.ndarray
    assert np.array_equal(again, lying)


class Unknown:
    pass


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Unknown(), "it holds a test_comm_codec.Unknown"),
        ({"deep": [(Unknown,)]}, "it holds a builtins.type"),
        ({1, 2}, "it holds a builtins.set"),
        (np.ma.masked_array([1, 2], [True, False]), r"it holds a numpy\.ma.*MaskedArray"),
        (np.array([None, 1]), "it holds an array of Python objects"),
        (CollectSetting("task", {"eps": threading.Lock()}), "it holds a _thread.lock"),
    ],
)
def test_what_has_no_bytes_is_refused(value: Any, said: str) -> None:
    with pytest.raises(CommError, match=f"a {type(value).__name__} cannot be encoded: {said}"):
        to_bytes(value)


def test_what_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(CommError, match="it holds itself"):
        to_bytes(endless)


# ---------------------------------------------------------------------------------- who reads it


def head_of(body: bytes) -> Array:
    """A head without arrays around any text in the place of its JSON."""
    return np.frombuffer(codec._PREFIX.pack(0, len(body)) + body, np.uint8)


class Evil:
    """Its pickle would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_that_comes_is_run(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    body = pickle.dumps(Evil(trap))
    with pytest.raises(CommError, match="received a damaged message"):
        decode(head_of(body), ())
    pickle.loads(body)
    assert trap.exists(), "the trap works where pickles are read"


@pytest.mark.parametrize("name", ["Path", "Unknown", "object", "eval", "Message"])
def test_classes_that_are_not_sendable_are_refused(name: str) -> None:
    with pytest.raises(CommError, match=f"received a {name}, which is not"):
        decode(head_of(json.dumps(["c", name, "a"]).encode()), ())


def test_a_name_means_one_class() -> None:
    def make(module: str) -> type:
        @dataclass(frozen=True)
        class Twin:
            number: int

        Twin.__module__ = module
        return Twin

    one = sendable(make("one"))
    try:
        assert from_bytes(to_bytes(one(3))) == one(3)
        with pytest.raises(TypeError, match="one has a sendable class Twin, too"):
            sendable(make("two"))
    finally:
        del codec._CLASSES["Twin"]


def test_no_pickle_in_the_whole_package() -> None:
    """But for a process's own children, whose environments come to them by their parent's pipe."""
    root = Path(codec.__file__).parents[1]
    words = (
        "import pickle",
        "dist.broadcast_object_list",
        "all_gather_object",
        ".bcast(",
        ".isend(",
    )
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if any(word in path.read_text() for word in words)
    }
    assert found == {"env/child_process.py"}


# ----------------------------------------------------------------------------------------- messages


CLASSES = Message.__subclasses__()
RECORDED = list(codec._NUMBERS)


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
    return {
        str: TEXTS, bytes: st.binary(max_size=20), int: INTEGERS, float: NUMBERS,
        bool: st.booleans(), Any: ANYTHING,
    }[hint]  # fmt: skip


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


@pytest.mark.parametrize("cls", RECORDED, ids=lambda cls: cls.__name__)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_damaged_records_are_refused_or_are_messages(
    cls: type[Message], data: st.DataObject
) -> None:
    head = encode(data.draw(of_class(cls))).head.copy()
    if data.draw(st.booleans()):
        head = head[: data.draw(st.integers(0, len(head) - 1))]
    for _ in range(data.draw(st.integers(1, 4)) if len(head) else 0):
        head[data.draw(st.integers(0, len(head) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CommError):
        frame_sizes(head)
        decode(head, ())


def test_a_record_of_an_unknown_form_is_refused() -> None:
    with pytest.raises(CommError, match="there are no records of form 31"):
        decode(head_of(bytes([31]) + bytes(200)), ())


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_every_message_comes_back_as_it_was(cls: type[Message], data: st.DataObject) -> None:
    message = data.draw(of_class(cls))
    copy = transported(message)
    assert is_same(copy, message)
    sent = list(arrays_in(message))
    assert not any(np.shares_memory(a, b) for a in arrays_in(copy) for b in sent if b.size)


def is_record(encoded: codec.Encoded) -> bool:
    arrays, _ = codec._PREFIX.unpack_from(encoded.head)
    return not arrays and bool(encoded.head[codec._PREFIX.size] < codec._FIRST_OF_JSON)


def test_frequent_messages_are_records_that_share_their_schema() -> None:
    blocks = [transported(block(number, [3, 4])) for number in (1, 2)]
    one, other = (ready.shard for ready in blocks if isinstance(ready, BlockReady))
    assert one.schema is other.schema
    assert one.columns[0] == ColumnSpec("obs", "<f4", (9, 4), 0)
    for message in (*blocks, AdmitBlock(1, 2, 3, one, 0.5), Heartbeat("step")):
        assert is_record(encode(message))
        assert is_same(transported(message), message)


@pytest.mark.parametrize(
    "changed",
    [
        {"tail_rows": np.int64(1)}, {"tail_rows": 2**80}, {"sealed_at": 3}, {"episodes": True},
        {"task_id": "a\0b"}, {"items": [1, 2]}, {"items": np.zeros(INLINE_BYTES + 1, np.uint8)},
        {"shard": None}, {"shard": ShardRef("p", 1, 2**80, 0, BlockSchema((), (), ()), b"")},
        {"shard": ShardRef("p", 1, 1, 0, None, b"")},
    ],
    ids=str,
)  # fmt: skip
def test_what_a_record_cannot_hold_comes_back_all_the_same(changed: dict[str, Any]) -> None:
    message = dataclasses.replace(block(1, [3]), **changed)
    assert not is_record(encode(message))
    assert is_same(transported(message), message)


def test_the_rest_of_a_record_is_of_any_kind() -> None:
    games = (("main", "past", 1, 0, 2),)
    for message in (
        dataclasses.replace(block(1, []), games=games, task_id="\ud800 lone"),
        CollectSetting("t", {"eps": 0.5, "k": 1}, {"gravity": ([1.0, 2.0], 0.5)}),
        CollectSetting("t", {1: 0.5}),  # type: ignore[dict-item]
        LearnInfo("t", 3, {"loss": math.inf, "": -0.0}, {}, cpu=0.5),
    ):
        assert is_same(transported(message), message)
    assert is_record(encode(message))


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
    message = Batches(large, small, large * 2, 5)
    assert frame_sizes(encode(message).head) == [large.nbytes, large.nbytes]
    assert is_same(transported(message), message)


@pytest.mark.parametrize("size", [3, INLINE_BYTES])
def test_what_was_read_only_stays_so(size: int) -> None:
    data = np.zeros(size, dtype=np.float64)
    assert next(arrays_in(transported(PolicyUpdate(0, data)))).flags.writeable
    data.flags.writeable = False
    assert not next(arrays_in(transported(PolicyUpdate(0, data)))).flags.writeable


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_messages_are_frozen_and_drawn(cls: type[Message]) -> None:
    """None can be changed on its way, and the module's drawing says who sends each."""
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    drawing = sys.modules[cls.__module__].__doc__ or ""
    assert cls.__name__ in drawing.split()
