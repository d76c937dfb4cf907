"""Items as columns: nothing of an item is lost, and what is read is the caller's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdi.errors import BufferContractError
from hpcdi.store.memory import LARGE_BYTES
from hpcdi.store.rows import LARGE_ROW_BYTES
from hpcdi.types import Array
from hpcdi.utils.nested import flatten, narrowed
from hpcdi.worker.replay_buffer import AdvancedReplayBuffer, NaiveReplayBuffer
from hpcdi.worker.replay_buffer.items import ItemStore

ALL = slice(None)
SIZE = 6


def buffer_of(size: int = SIZE) -> Any:
    return NaiveReplayBuffer({"replay_buffer_size": size}, rng=np.random.default_rng(0))


def in_order(buffer: Any, **options: Any) -> dict[str, Any]:
    """All items as flat columns, the oldest first."""
    sample = buffer.sample_batch(buffer.count(), 0, sample_range=ALL, **options)
    order = np.argsort(sample.drawn.unique_ids)
    return {name: column[order] for name, column in flatten(sample.columns).items()}


def same(left: Any, right: Any) -> bool:
    """Value, dtype and shape."""
    left, right = np.asarray(left), np.asarray(right)
    return left.dtype == right.dtype and left.shape == right.shape and np.array_equal(left, right)


FIELDS: dict[str, tuple[str, tuple[int, ...]]] = {
    "flag": ("?", ()), "tiny": ("i1", ()), "x": ("f8", ()), "vector": ("f4", (3,)),
    "bytes": ("u1", (5,)), "complex": ("c16", ()), "half": ("f2", (1, 1)), "none": ("f8", (0,)),
    "swapped": (">i4", (2,)), "image": ("u1", (24, 24)), "matrix": ("f8", (9, 9)),
}  # fmt: skip
assert np.prod(FIELDS["image"][1]) > LARGE_ROW_BYTES  # two are arrays of their own


def item(n: int, names: Any = FIELDS) -> dict[str, Any]:
    """An item that can be told from all others, unless it is small."""
    rng, made = np.random.default_rng(n), {}
    for name in names:
        dtype, shape = FIELDS[name]
        made[name] = np.asarray(rng.integers(0, 100, shape)).astype(dtype)
    return {k: v if v.ndim else v[()] for k, v in made.items()}


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """The first half of the columns a level deeper than the rest."""
    names = list(flat)
    inner = {name: flat[name] for name in names[: len(names) // 2]}
    outer = {name: flat[name] for name in names[len(names) // 2 :]}
    return {"inner": {"most": inner}, **outer} if inner else outer


def stacked(items: list[dict[str, Any]]) -> dict[str, Array]:
    return {name: np.stack([each[name] for each in items]) for name in items[0]}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, unique=True),
    st.sampled_from(["single", "list", "columns"]), st.integers(1, 2 * SIZE + 1), st.booleans(),
)  # fmt: skip
def test_columns_of_any_kinds_side_by_side(
    names: list[str], way: str, pushed: int, deep: bool
) -> None:
    """All are as if they had been pushed singly; they come back in the machine's byte order."""
    buffer, items = buffer_of(), [item(n, names) for n in range(pushed)]
    shaped = [nested(each) for each in items] if deep else items
    if way == "columns":
        columns = {k: v.astype(FIELDS[k][0]) for k, v in stacked(items).items()}
        buffer.push(nested(columns) if deep else columns, columns=True)
    else:
        for data in [shaped] if way == "list" else shaped:
            buffer.push(data)
    kept, found = stacked(items[-SIZE:]), in_order(buffer)
    assert [name.rpartition("/")[2] for name in found] == names
    for path, column in found.items():
        assert same(column, kept[path.rpartition("/")[2]])
        assert column.flags.writeable
    drawn = [flatten(each) for each in buffer.sample(buffer.count(), 0)]
    rows = {tuple(np.asarray(value).tobytes() for value in each.values()) for each in drawn}
    assert rows == {tuple(v.tobytes() for v in row) for row in zip(*kept.values(), strict=True)}


@pytest.mark.parametrize("names", [["image"], ["x"], ["x", "flag"], [*FIELDS]])
def test_n_bytes_are_those_of_all_slots(names: list[str]) -> None:
    buffer = buffer_of(100)
    assert buffer.n_bytes == 0
    buffer.push(item(0, names))
    row = sum(np.asarray(value).nbytes for value in item(0, names).values())
    assert 100 * row <= buffer.n_bytes <= 100 * (row + 16)  # records are aligned
    before = buffer.n_bytes
    buffer.push([item(n, names) for n in range(300)])
    assert buffer.n_bytes == before


# --------------------------------------------------------------------- one item: quick and slow


FIRST = {
    "float64": np.float64(0.5), "float32": np.float32(0.5), "int64": 7, "int32": np.int32(7),
    "uint8": np.uint8(7), "bool": True, "vector": np.zeros(3, np.float32),
}  # fmt: skip
VALUES = st.one_of(
    st.integers(-(2**70), 2**70), st.integers(-300, 300), st.integers(2**53 - 9, 2**63 + 9),
    st.floats(-1e30, 1e30), st.booleans(), st.just(10**400), st.none(), st.just("text"),
    st.builds(np.int64, st.integers(-(2**63), 2**63 - 1)), st.builds(np.int8, st.integers(-9, 9)),
    st.builds(np.float32, st.floats(-9, 9, width=32)), st.builds(np.float64, st.floats(-9, 9)),
    st.sampled_from([np.bool_(True), np.arange(3.0), np.arange(3, dtype=">f4"), np.array(4.0)]),
    st.sampled_from([np.arange(3, dtype=np.float32)[::-1], np.zeros(4, np.float32), [1, 2, 3]]),
)  # fmt: skip


def outcome(push: Callable[[], None], buffer: Any) -> tuple[bool, bytes, int]:
    """Whether it was taken, and what the buffer holds then."""
    try:
        push()
        taken = True
    except BufferContractError:
        taken = False
    return taken, in_order(buffer)["a"].tobytes(), buffer.push_count


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(FIRST)), VALUES)
def test_an_item_alone_is_taken_as_one_in_a_list_is(name: str, value: Any) -> None:
    alone, listed = buffer_of(2), buffer_of(2)
    for buffer in (alone, listed):
        buffer.push([{"a": FIRST[name], "b": 1.0}] * 2)
    before = outcome(lambda: None, alone)
    after = outcome(lambda: alone.push({"a": value, "b": 1.0}), alone)
    assert after == outcome(lambda: listed.push([{"a": value, "b": 1.0}]), listed)
    assert after[0] or after[1:] == before[1:]
    if after[0] and name in ("int64", "int32", "uint8"):
        assert in_order(alone)["a"][-1] == value  # integers are never wrapped


def test_an_integer_is_rounded_once() -> None:
    value = 2**60 + 2**36 + 1  # as a double first, it would be rounded down
    alone, listed = buffer_of(), buffer_of()
    for buffer in (alone, listed):
        buffer.push({"a": np.float32(0)})
    alone.push({"a": value})
    listed.push([{"a": value}])
    assert in_order(alone)["a"][1] == in_order(listed)["a"][1] == np.float32(2**60 + 2**37)


REFUSED: list[Any] = [3, "text", None, (1, 2), {}, {"a": 1.0, "c": 1.0}, {"a": 1.0}, {1: 2, 3: 4},
                      {"a": {"b": 1.0}, "b": 1.0}, {"a": 10**400, "b": 1.0}]  # fmt: skip


@pytest.mark.parametrize("data", REFUSED, ids=repr)
def test_what_is_no_such_item_is_refused_and_changes_nothing(data: Any) -> None:
    buffer = buffer_of(2)
    buffer.push([{"a": 1.5, "b": 2.5}] * 2)
    with pytest.raises(BufferContractError):
        buffer.push(data)
    assert buffer.push_count == 2
    assert {name: c.tolist() for name, c in in_order(buffer).items()} == {
        "a": [1.5, 1.5], "b": [2.5, 2.5]
    }  # fmt: skip


def test_keys_that_are_no_texts_come_back() -> None:
    buffer = buffer_of()
    buffer.push({1: 2.0})
    assert buffer.sample(1, 0) == [{1: 2.0}]


BAD_COLUMNS: list[Any] = [
    {"a": np.zeros(3), "a/b": np.zeros(3)}, {"a/b": np.zeros(3), "c": {"d": np.zeros(3)}},
    {"a": [[1], [2, 3]]}, {"a": np.zeros(3), "b": np.zeros(2)}, {"a": np.array(["x"])}, {"a": 3},
    [1, 2], {},
]  # fmt: skip


@pytest.mark.parametrize("columns", BAD_COLUMNS, ids=repr)
def test_what_are_no_columns_is_refused(columns: Any) -> None:
    buffer = buffer_of()
    with pytest.raises(BufferContractError):
        buffer.push(columns, columns=True)
    buffer.push({"a": np.arange(3)}, columns=True)
    assert in_order(buffer)["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("said", ["collect_iter", "policy_iter"])
def test_columns_say_of_their_items_what_items_do(said: str) -> None:
    by_items, by_columns = (
        AdvancedReplayBuffer({"replay_buffer_size": 4}, rng=np.random.default_rng(0))
        for _ in range(2)
    )
    columns = {"obs": {"n": np.arange(6)}, said: np.arange(6) + 3, "priority": np.arange(6) + 1.0}
    by_columns.push(columns, columns=True)
    by_items.push([{"obs": {"n": n}, said: n + 3, "priority": n + 1.0} for n in range(6)])
    left, right = by_items.sample(4, 20, ALL), by_columns.sample(4, 20, ALL)
    assert left is not None
    assert left == right
    assert {d["staleness"] + d["obs"]["n"] for d in left} == {17}
    assert {round(d["priority"], 4) - d["obs"]["n"] for d in left} == {1}
    assert by_items.push_count == by_columns.push_count == 6


@pytest.mark.parametrize("steps", [1, 3])
def test_columns_of_sequences_are_as_old_as_their_oldest_step(steps: int) -> None:
    made_at = np.arange(4)[:, None] + 5 + np.arange(steps)
    by_columns, by_items = AdvancedReplayBuffer({}), AdvancedReplayBuffer({})
    by_columns.push({"n": np.arange(4), "collect_iter": made_at}, columns=True)
    by_items.push([{"n": n, "collect_iter": made_at[n]} for n in range(4)])
    for buffer in (by_columns, by_items):
        drawn = buffer.sample(4, 20, ALL)
        assert drawn is not None
        assert {d["staleness"] + d["n"] for d in drawn} == {15}


# -------------------------------------------------------------------------- whose memory it is


def test_tensors_come_back_as_tensors() -> None:
    buffer = buffer_of(3)
    for n in range(5):
        image = torch.full((20, 20), n, dtype=torch.uint8)
        buffer.push({"small": torch.full((2,), n * 1.0), "large": {"image": image}, "n": n})
    for drawn in buffer.sample(3, 0):
        assert type(drawn["small"]) is type(drawn["large"]["image"]) is torch.Tensor
        assert drawn["small"].tolist() == [drawn["n"]] * 2
        assert (drawn["large"]["image"] == int(drawn["n"])).all()
        drawn["large"]["image"][:] = 99  # the caller's own
        drawn["small"][:] = 99
    found = in_order(buffer, tensors=True)
    assert all(type(column) is torch.Tensor for column in found.values())
    assert (found["small"].dtype, found["large/image"].dtype) == (torch.float32, torch.uint8)
    assert found["n"].tolist() == found["small"][:, 0].tolist() == [2, 3, 4]
    assert found["large/image"][:, 0, 0].tolist() == [2, 3, 4]


@pytest.mark.parametrize("count", [1, 3])
def test_every_number_can_be_a_tensor(count: int) -> None:
    buffer, columns = buffer_of(), stacked([item(n) for n in range(count)])
    buffer.push({k: v.astype(FIELDS[k][0]) for k, v in columns.items()}, columns=True)
    tensors = in_order(buffer, tensors=True)
    assert all(np.array_equal(columns[name], tensors[name].numpy()) for name in FIELDS)


def test_no_result_shares_memory_with_the_store() -> None:
    store = ItemStore(4)
    store.put(0, 4, store.prepare_columns(stacked([item(n) for n in range(4)])), 0)
    read = store.read_columns(np.arange(4))
    for name in FIELDS:
        assert not np.shares_memory(read[name], store.column(name))
        for row in store.read(np.array([2])):
            assert not np.shares_memory(row[name], store.column(name))


HOLD: dict[str, Callable[[Array], Any]] = {
    "the array": lambda array: array, "a view": lambda array: array[1:, ..., ::2],
    "a tensor": torch.from_numpy, "a row of a tensor": lambda array: torch.from_numpy(array)[1],
}  # fmt: skip


@pytest.mark.parametrize("row_bytes", [100, 300, LARGE_BYTES // 4 + 8])
@pytest.mark.parametrize("how", HOLD)
def test_what_is_held_stays_as_it_was(row_bytes: int, how: str) -> None:
    """However much is drawn and pushed afterwards; memory of what is not held is used again."""
    buffer, rng = buffer_of(16), np.random.default_rng(0)
    buffer.push({"a": rng.integers(0, 255, (16, row_bytes), np.uint8)}, columns=True)
    held: list[tuple[Any, Any]] = []
    for _ in range(9):
        part = HOLD[how](buffer.sample_batch(8, 0).columns["a"])
        held.append((part, np.asarray(part).copy()))
        buffer.sample_batch(8, 0).columns["a"][:] = 7
        buffer.push({"a": rng.integers(0, 255, (4, row_bytes), np.uint8)}, columns=True)
        assert all(np.array_equal(np.asarray(part), copy) for part, copy in held)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device to pin memory for")
@pytest.mark.parametrize("kind", [NaiveReplayBuffer, AdvancedReplayBuffer])
def test_without_a_device_memory_cannot_be_pinned(kind: Any) -> None:
    buffer = kind({"replay_buffer_size": 3}, None, "exp", "mine")
    buffer.push({"a": 1.0})
    with pytest.raises(BufferContractError, match="exp/mine: pin_memory needs a CUDA device"):
        buffer.sample_batch(1, 0, pin_memory=True)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_narrowed_integers_are_the_same(values: list[int]) -> None:
    integers = np.array(values, np.int64)
    assert narrowed(integers).tolist() == values
    assert narrowed(integers).dtype.kind in "iu"
