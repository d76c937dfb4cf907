"""Large columns go to a file, and come from one, without a copy."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes.buffers import advanced
from hpcdi.errors import SnapshotError
from hpcdi.store.memory import Span
from hpcdi.store.rows import LARGE_ROW_BYTES
from hpcdi.store.state_file import save_state
from hpcdi.types import Columns
from hpcdi.worker.replay_buffer import (
    AdvancedReplayBuffer,
    EpisodeReplayBuffer,
    NaiveReplayBuffer,
)
from hpcdi.worker.replay_buffer.items import ItemStore

SIZE = 6
PUSHED = (0, 1, SIZE - 1, SIZE, SIZE + 2, 3 * SIZE)


def buffer_of(first: int, pushed: int) -> Any:
    """A buffer whose first item has the id `first`, to which `pushed` items came."""
    buffer = NaiveReplayBuffer({"replay_buffer_size": SIZE}, rng=np.random.default_rng(0))
    if first:
        buffer.push(rows(0, first), columns=True)
        buffer.clear()
    if pushed:
        buffer.push(rows(first, first + pushed), columns=True)
    return buffer


def rows(start: int, stop: int) -> Columns:
    number = np.arange(start, stop)
    image = np.repeat(number.astype(np.int32)[:, None], LARGE_ROW_BYTES, axis=1)
    return {"number": number, "twice": 2 * number, "image": image}


def numbers(buffer: Any) -> dict[int, int]:
    """The number of each item by its unique id; its columns agree."""
    sample = buffer.sample_batch(buffer.count(), 0) if buffer.count() else None
    if sample is None:
        return {}
    number = sample.columns["number"]
    assert (sample.columns["twice"] == 2 * number).all()
    assert (sample.columns["image"] == number[:, None]).all()
    return dict(zip(sample.drawn.unique_ids.tolist(), number.tolist(), strict=True))


@pytest.mark.parametrize("first", [0, 4])
@pytest.mark.parametrize("pushed", PUSHED)
class TestFiles:
    """Wherever the oldest item lies."""

    def test_a_file_gives_the_same_items(self, tmp_path: Path, first: int, pushed: int) -> None:
        buffer, other = buffer_of(first, pushed), buffer_of(0, 3)
        buffer.save_data(tmp_path / "buffer.h5")
        other.load_data(tmp_path / "buffer.h5")
        before = numbers(buffer)
        assert numbers(other) == before
        other.push(rows(100, 103), columns=True)
        assert numbers(buffer) == before
        buffer.push(rows(100, 103), columns=True)
        assert numbers(buffer) == numbers(other)


def test_arrays_without_numbers_are_saved_beside_others(tmp_path: Path) -> None:
    buffer, other = NaiveReplayBuffer({}), NaiveReplayBuffer({})
    buffer.push({"none": np.zeros((0, 2)), "n": 1.0})
    buffer.save_data(tmp_path / "buffer.h5")
    other.load_data(tmp_path / "buffer.h5")
    (item,) = other.sample(1, 0) or ()
    assert (item["none"].shape, item["n"]) == ((0, 2), 1.0)


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    buffer = buffer_of(0, 3)
    save_state(tmp_path / "buffer.h5", buffer.kind, 1, buffer.state_dict().own)
    with pytest.raises(SnapshotError, match="of format 1; this hpcdi reads format 6"):
        buffer.load_data(tmp_path / "buffer.h5")


@pytest.mark.parametrize("shared", [False, True])
def test_large_columns_are_shared_only_where_it_is_allowed(shared: bool) -> None:
    whole, store, other = [Span(0, SIZE, 0)], ItemStore(SIZE), ItemStore(SIZE)
    store.put(0, SIZE, store.prepare_columns(rows(0, SIZE)), 0)
    state = store.state_of(whole, shared)
    assert np.shares_memory(state["columns"]["image"], store.column("image")) == shared
    other.restore(state, whole, shared)
    assert (other.column("image") is state["columns"]["image"]) == shared
    assert np.shares_memory(state["records"], store.column("number")) == shared
    assert np.shares_memory(state["records"], other.column("number")) == shared
    assert (other.column("twice") == store.column("twice")).all()


def test_a_part_of_the_slots_is_never_shared() -> None:
    """The rest of them needs room."""
    part, store, other = [Span(0, 2, 0)], ItemStore(SIZE), ItemStore(SIZE)
    store.put(0, 2, store.prepare_columns(rows(0, 2)), 0)
    other.restore(store.state_of(part, shared=True), part, shared=True)
    assert len(other.column("image")) == SIZE
    assert not np.shares_memory(other.column("image"), store.column("image"))


@pytest.mark.parametrize("pushed", [3, SIZE])
def test_nothing_of_a_torn_file_gets_into_a_buffer(tmp_path: Path, pushed: int) -> None:
    path, buffer = tmp_path / "buffer.h5", buffer_of(0, pushed)
    buffer.save_data(path)
    image = np.ascontiguousarray(rows(0, pushed)["image"]).tobytes()
    content = path.read_bytes()
    assert content.count(image) == 1
    path.write_bytes(content.replace(image, image[:-1] + b"!"))
    other = buffer_of(4, SIZE)
    before = numbers(other)
    with pytest.raises(SnapshotError, match="'ring/items/columns/image' is wrong"):
        other.load_data(path)
    assert numbers(other) == before


# ------------------------------------------------------------------------ the predecessor's state


@pytest.mark.parametrize("columnar", [True, False])
@pytest.mark.parametrize("pushed", [3, 6])
def test_a_state_knows_the_predecessors_keys(pushed: int, columnar: bool) -> None:
    buffer = advanced(4)
    for n in range(pushed):
        buffer.push({"n": n, "priority": n + 1.0, **({} if columnar else {"text": "x"})})
    buffer.sample(2, 0)
    state = buffer.state_dict()
    items = [None] * 4
    for n in range(max(0, pushed - 4), pushed):
        items[n % 4] = n
    assert [one and one["n"] for one in state["data"]] == [one and one for one in items]
    assert (state["tail"], state["valid_count"]) == (pushed % 4, min(pushed, 4))
    assert (state["push_count"], state["next_unique_id"]) == (pushed, pushed)
    assert state["use_count"].sum() == 2
    assert state["max_priority"] == pushed
    assert state["anneal_step"] == 100_000
    assert state["beta"] == pytest.approx(buffer.beta)
    leaves = [0.0 if one is None else (one + 1.0) ** 0.6 for one in items]
    assert state["sum_tree"] == pytest.approx(leaves)
    assert min(state["min_tree"]) == pytest.approx(min(leaf for leaf in leaves if leaf))
    assert "data" in state
    assert "sum_tree" not in NaiveReplayBuffer({}).state_dict()
    assert state.get("nothing") is None


def test_a_state_that_was_changed_is_loaded_as_it_is() -> None:
    buffer = advanced(4)
    buffer.push([{"n": n} for n in range(3)])

    def loaded(state: Any) -> Any:
        other = advanced(4)
        other.load_state_dict(state)
        return other

    state = buffer.state_dict()
    state["beta"] = 0.9
    assert (loaded(state).beta, loaded(copy.deepcopy(state)).beta) == (0.9, 0.9)
    assert (state["tail"], state.get("push_count"), "'beta': 0.9" in repr(state)) == (3, 3, True)
    state = buffer.state_dict()
    state.update(data=[{"n": 9}], tail=0)
    assert [one["n"] for one in loaded(state).sample(1, 0)] == [9]
    state = buffer.state_dict()
    state |= {"max_priority": 7.0}
    assert loaded(state).state_dict()["max_priority"] == 7.0
    assert buffer.state_dict().pop("tail") == 3
    assert buffer.state_dict().setdefault("tail", 9) == 3
    assert buffer.state_dict().popitem()[1] is not None
    assert (buffer.state_dict() | {})["tail"] == ({} | buffer.state_dict())["tail"] == 3
    del state["beta"]
    assert "beta" not in state
    state.clear()
    assert dict(state) == {}


@pytest.mark.parametrize("form", ["naive", "advanced", "objects", "episodes"])
@pytest.mark.parametrize("copies", [lambda state: state, copy.deepcopy, dict])
def test_items_of_a_state_may_be_changed_in_place(form: str, copies: Any) -> None:
    made: Any = {"advanced": AdvancedReplayBuffer, "episodes": EpisodeReplayBuffer}
    cls = made.get(form, NaiveReplayBuffer)
    buffer, other = (cls({"replay_buffer_size": 4}) for _ in range(2))
    more = {"text": "x"} if form == "objects" else {}
    items: list[Any] = [{"n": n, "o": np.full(2, n), **more} for n in range(3)]
    buffer.push([[item] for item in items] if form == "episodes" else items)
    state = buffer.state_dict()
    for held in state["data"][:3]:
        for item in held if form == "episodes" else [held]:
            item["n"] += 100
            item["o"] = item["o"].astype(np.float32)
    assert state["data"] is state["data"], "made once"
    other.load_state_dict(copies(state))
    again = other.state_dict()["data"][:3]
    drawn = [held[0] if form == "episodes" else held for held in again]
    assert [item["n"] for item in drawn] == [100, 101, 102]
    assert {item["o"].dtype.name for item in drawn} == {"float32"}


def test_a_state_that_was_read_is_the_state_as_it_was_saved() -> None:
    buffer, state = advanced(4), None
    nan = float("nan")
    items = [{"n": nan, "o": np.array([n, nan]), "t": torch.tensor([nan])} for n in range(3)]
    buffer.push(items)
    state = buffer.state_dict()
    assert (len(state["data"]), len(dict(state)), state["beta"]) == (4, len(state), buffer.beta)
    assert state.own["rng"] == buffer.state_dict().own["rng"]
    state["sum_tree"][0] += 1
    assert state.own is None


def test_items_that_cannot_be_compared_are_loaded_as_they_are() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise ValueError("the truth of more than one element")

        __hash__ = None  # type: ignore[assignment]

    buffer = NaiveReplayBuffer({"replay_buffer_size": 4})
    buffer.push([{"odd": Odd(), "n": n, "objects": np.array([n, None])} for n in range(3)])
    state = buffer.state_dict()
    state["data"][0]["n"] = 7
    buffer.load_state_dict(state)
    assert sorted(item["n"] for item in buffer.sample(3, 0) or []) == [1, 2, 7]


def test_states_are_equal_where_their_values_are() -> None:
    buffer, same, other = advanced(4), advanced(4), advanced(4)
    for one, count in ((buffer, 3), (same, 3), (other, 2)):
        one.push([{"n": np.full(2, n)} for n in range(count)])
    assert buffer.state_dict() == same.state_dict()
    assert buffer.state_dict() == dict(same.state_dict())
    assert (buffer.state_dict() != same.state_dict()) is False
    assert buffer.state_dict() != other.state_dict()
    assert buffer.state_dict() != 3


def test_states_of_the_predecessor_are_read() -> None:
    items = [
        {"n": n, "priority": n + 1.0, "replay_unique_id": f"x_{n}", "use": 1} for n in range(5)
    ]
    ring = [items[4], items[1], items[2], items[3]]
    buffer = advanced(4)
    buffer.load_state_dict({"data": ring, "tail": 1, "beta": 0.7, "max_priority": 9.0})
    assert [one["n"] for one in buffer.state_dict()["data"]] == [1, 2, 3, 4]
    assert (buffer.count(), buffer.beta) == (4, pytest.approx(0.7))
    assert buffer.state_dict()["max_priority"] == 9.0
    naive = NaiveReplayBuffer({"replay_buffer_size": 4})
    naive.push({"n": 0})
    naive.load_state_dict({"data": [{"n": 1}, {"n": 2}]})
    assert naive.count() == 3, "data alone are pushed"


def test_draws_follow_numpys_seed() -> None:
    def drawn(name: str = "buffer") -> list[int]:
        np.random.seed(3)
        before = np.random.get_state()[1].copy()
        buffer = NaiveReplayBuffer({}, instance_name=name)
        assert (np.random.get_state()[1] == before).all(), "it stays as it is"
        buffer.push([{"n": n} for n in range(100)])
        return [one["n"] for one in buffer.sample(20, 0) or ()]

    assert drawn() == drawn()
    assert drawn() != drawn("other")


@pytest.mark.parametrize("cls", [NaiveReplayBuffer, AdvancedReplayBuffer, EpisodeReplayBuffer])
def test_draws_follow_a_seed_that_is_set_after_the_buffer_was_made(cls: Any) -> None:
    def drawn() -> list[Any]:
        buffer = cls({})
        buffer.push([[{"n": n}] if cls is EpisodeReplayBuffer else {"n": n} for n in range(100)])
        np.random.seed(3)
        return [one[0] if isinstance(one, list) else one["n"] for one in buffer.sample(20, 0)]

    first = drawn()
    np.random.seed(4)
    assert drawn() == first
    saved = NaiveReplayBuffer({})
    saved.push([{"n": n} for n in range(100)])
    np.random.seed(5)
    state, there = saved.state_dict(), NaiveReplayBuffer({})
    there.load_state_dict(state)
    np.random.seed(6)
    assert there.sample(9, 0) == saved.sample(9, 0), "the state's goes before"
