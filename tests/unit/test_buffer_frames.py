"""Stacks of frames: what is read is what was pushed, and a stream stores each frame once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdi.errors import BufferContractError
from hpcdi.types import Array
from hpcdi.worker.replay_buffer import AdvancedReplayBuffer, NaiveReplayBuffer
from hpcdi.worker.replay_buffer.frames import FrameStore

STACK = 4
BOTH = ("obs", "next_obs")
KINDS = {"naive": NaiveReplayBuffer, "advanced": AdvancedReplayBuffer}
PALETTES = {
    "uint8": np.arange(6, dtype=np.uint8),
    "float32": np.array([0.0, -0.0, np.nan, np.inf, 1.0, 2.0], np.float32),
    ">i2": np.array([0, 1, 256, 257, -1, -256], ">i2"),
}


def buffer_of(capacity: int, frames: Any = BOTH, kind: str = "naive") -> Any:
    cfg = {"replay_buffer_size": capacity, "frames": list(frames)}
    return KINDS[kind](cfg, rng=np.random.default_rng(0))


def image(value: Any) -> Array:
    """A frame that is plain but for one corner."""
    frame = np.full((2, 3), value)
    frame[0, 0] = 0
    return frame


def pair(obs: Any, after: Any, n: int, env: int = 0) -> dict[str, Any]:
    """A transition of frames whose values are given."""
    stacks = [np.stack([image(value) for value in values]) for values in (obs, after)]
    return {"obs": stacks[0], "next_obs": stacks[1], "n": n, "env_id": env}


def stream(start: int, stop: int, env: int = 0, episode: int = 1000) -> list[dict[str, Any]]:
    """Transitions [start, stop) of an environment whose frames are all different."""
    made = []
    for n in range(start, stop):
        first = n - n % episode  # frames before it are not shown: padded
        apart = 10_000 * env + 1_000_000 * (n // episode)
        seen = [np.int32(apart + max(first, n + k)) for k in range(1 - STACK, 2)]
        if n % episode == 0:
            seen = [seen[-1] - 1] * STACK + seen[-1:]
        made.append(pair(seen[:-1], seen[1:], n, env))
    return made


def used(buffer: Any) -> int:
    """Frames that are stored; all of them are of items that are here, and nothing else is lost."""
    store = buffer._ring.store._frames
    count, free = store._pool._taken, store._pool._free
    held = store._places[buffer._ring.slots()]
    assert set(range(count)) - set(free) == set(held.reshape(-1).tolist())
    assert len(set(free)) == len(free)
    assert store._pool.used == count - len(free)
    return count - len(free)


def same(left: Any, right: Any) -> bool:
    return left.dtype == right.dtype and left.tobytes() == right.tobytes()


def stacked(items: list[dict[str, Any]]) -> dict[str, Array]:
    return {name: np.stack([item[name] for item in items]) for name in items[0]}


def push(buffer: Any, items: list[dict[str, Any]], way: str) -> None:
    if way == "columns" and items:
        buffer.push(stacked(items), columns=True)
    else:
        for data in [items] if way == "list" else items:
            buffer.push(data)


def check(buffer: Any, pushed: list[dict[str, Any]]) -> None:
    """The newest items are here, bit for bit, as columns and as dicts."""
    count = min(len(pushed), buffer.replay_buffer_size)
    assert buffer.count() == count
    if count == 0:
        return
    sample = buffer.sample_batch(count, 0, sample_range=slice(None))
    ids = sample.drawn.unique_ids.tolist()
    assert sorted(ids) == list(range(len(pushed) - count, len(pushed)))
    for row, number in enumerate(ids):
        item = pushed[number]
        assert sample.columns.keys() - {"weight"} == item.keys()
        assert sample.columns["n"][row] == item["n"]
        assert all(same(sample.columns[name][row], item[name]) for name in BOTH)
    for drawn in buffer.sample(count, 0, slice(None)):
        assert all(same(drawn[name], pushed[int(drawn["n"])][name]) for name in BOTH)
    assert used(buffer) <= 2 * STACK * count


hows = st.sampled_from(["next", "next", "start", "jump", "two steps"])
steps = st.tuples(st.integers(0, 2), hows, st.integers(0, 5))  # environment, how, colour
ways = st.sampled_from(["single", "list", "columns", "reload"])
pushes = st.lists(st.tuples(ways, st.lists(steps)), max_size=8)


def played(todo: list[Any], state: dict[int, list[Any]], palette: Array, n: int) -> Iterator[Any]:
    """Transitions of environments, each of which goes on from where it was."""
    for env, how, colour in todo:
        new, newer = palette[colour], palette[(colour + 1) % len(palette)]
        before = state.get(env, [new] * STACK)
        if how == "start":
            before = [new] * STACK
        after = [*before[1:], new]
        shown = after
        if how == "jump":
            before, shown = [newer, new] * (STACK // 2), [new, new, newer, newer]
        elif how == "two steps":
            shown = [*before[2:], new, newer]
        yield pair(before, shown, n, env)
        state[env] = after
        n += 1


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(
    todo=pushes,
    capacity=st.sampled_from([1, 2, 3, 7]),
    frames=st.sampled_from([BOTH, BOTH[::-1], BOTH[:1], BOTH[1:]]),
    palette=st.sampled_from(sorted(PALETTES)),
    knows_env=st.booleans(),
)
def test_what_is_pushed_is_what_is_read(
    kind: str, todo: Any, capacity: int, frames: Any, palette: str, knows_env: bool
) -> None:
    buffer, pushed, state = buffer_of(capacity, frames, kind), list[dict[str, Any]](), {}
    for way, part in todo:
        items = list(played(part, state, PALETTES[palette], len(pushed)))
        if not knows_env:
            items = [{k: v for k, v in item.items() if k != "env_id"} for item in items]
        if way == "reload":
            saved, buffer = buffer.state_dict(), buffer_of(capacity, frames, kind)
            buffer.load_state_dict(saved)
        push(buffer, items, way)
        pushed += items
        check(buffer, pushed)


def test_more_at_once_than_fit_and_the_first_is_like_the_one_whose_slot_it_takes() -> None:
    buffer = buffer_of(4)
    pushed = [pair([1] * 4, [1] * 4, 0, env=7)]
    buffer.push(pushed[0])
    more = [pair([8] * 4, [9] * 4, n) for n in (1, 2, 3)]
    more += [pair([1] * 4, [1] * 4, 4, env=7)]
    more += [pair([n] * 4, [-n] * 4, n) for n in (5, 6, 7)]
    buffer.push(more)
    check(buffer, pushed + more)


@pytest.mark.parametrize("order", ["in turn", "one by one", "any"])
def test_many_at_once_of_several_environments(order: str) -> None:
    streams = [stream(0, 90, env, episode=25) for env in range(3)]
    items = [item for each in streams for item in each]
    if order == "in turn":
        items = [item for step in zip(*streams, strict=True) for item in step]
    elif order == "any":
        turns = np.random.default_rng(5).permutation(np.repeat(np.arange(3), 90))
        iterators = [iter(each) for each in streams]
        items = [next(iterators[env]) for env in turns]
    pushed = [{**item, "n": n} for n, item in enumerate(items)]
    buffer = buffer_of(200)
    push(buffer, pushed[:70], "columns")
    push(buffer, pushed[70:], "columns")
    check(buffer, pushed)
    assert used(buffer) <= 200 + 4 * STACK + 10 * 3  # one each, and more where episodes begin


def test_an_order_of_items_that_shares_nothing() -> None:
    buffer, items, order = buffer_of(40), stream(0, 40), np.random.default_rng(3).permutation(40)
    mixed = [{**items[k], "n": n} for n, k in enumerate(order)]
    buffer.push(mixed)
    check(buffer, mixed)
    assert used(buffer) > 2 * 40  # it costs memory


def test_frames_of_nested_items() -> None:
    buffer, items = buffer_of(8, ["obs/image"]), stream(0, 20)
    buffer.push([{"obs": {"image": i["obs"], "speed": i["n"] / 2}, "n": i["n"]} for i in items])
    for drawn in buffer.sample(8, 0):
        assert same(drawn["obs"]["image"], items[drawn["n"]]["obs"])
        assert drawn["obs"]["speed"] == drawn["n"] / 2
    assert used(buffer) == 8 + STACK - 1


@pytest.mark.parametrize("way", ["single", "list", "columns"])
@pytest.mark.parametrize("envs", [1, 3])
def test_a_steady_stream_costs_a_frame_a_transition(way: str, envs: int) -> None:
    """And no more, however often the ring has wrapped."""
    buffer, most = buffer_of(60), 60 + envs * STACK
    streams = [stream(0, 240 // envs, env) for env in range(envs)]
    items = [item for together in zip(*streams, strict=True) for item in together]
    for start in range(0, 240, 40):
        push(buffer, items[start : start + 40], way)
        assert used(buffer) <= most
    assert used(buffer) == most


def test_an_episode_costs_a_frame_more() -> None:
    buffer = buffer_of(100)
    buffer.push(stream(0, 350, episode=10))
    assert used(buffer) == 100 + 10


def test_the_pool_does_not_grow_over_many_times_the_capacity() -> None:
    buffer, rng, sizes = buffer_of(30), np.random.default_rng(1), []
    for _ in range(20):
        buffer.push([pair(rng.integers(0, 99, 4), rng.integers(0, 99, 4), 0) for _ in range(30)])
        sizes.append(len(buffer._ring.store._frames._pool.frames))
        assert used(buffer) <= 30 * 2 * STACK
    assert len(set(sizes)) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pushed", [0, 5, 20, 67])
def test_a_saved_buffer_draws_the_same(kind: str, pushed: int, tmp_path: Path) -> None:
    """Empty, partly filled, full, wrapped; its frames are stored once, and pushing goes on."""
    buffer, other, items = buffer_of(20, kind=kind), buffer_of(20, kind=kind), stream(0, 200)
    buffer.push(items[:pushed])
    other.push([pair([1, 2, 3, 4], [9] * 4, 0)])  # must be gone afterwards
    buffer.save_data(tmp_path / "buffer.h5")
    other.load_data(tmp_path / "buffer.h5")
    assert not pushed or used(other) == used(buffer) <= min(pushed, 20) + STACK
    for each in (buffer, other):
        check(each, items[:pushed])
        for item in items[pushed:]:
            each.push(item)
        check(each, items)
        assert used(each) == 20 + STACK
    left, right = buffer.sample_batch(9, 0).columns, other.sample_batch(9, 0).columns
    assert all(np.array_equal(left[name], right[name]) for name in ("n", *BOTH))


def test_a_buffer_of_framed_columns_only(tmp_path: Path) -> None:
    buffer, other = buffer_of(4, ["obs"]), buffer_of(4, ["obs"])
    buffer.push([{"obs": item["obs"]} for item in stream(0, 6)])
    buffer.save_data(tmp_path / "buffer.h5")
    other.load_data(tmp_path / "buffer.h5")
    found = {drawn["obs"].tobytes() for drawn in other.sample(4, 0)}
    assert found == {item["obs"].tobytes() for item in stream(2, 6)}


@pytest.mark.parametrize("frames", [(), BOTH[:1], BOTH[::-1]])
def test_a_saved_buffer_of_other_frames_is_refused(frames: Any) -> None:
    buffer, other = buffer_of(6, frames), buffer_of(6)
    for each in (buffer, other):
        each.push(stream(0, 3))
    with pytest.raises(BufferContractError, match=r"saved buffer stores frames of \[.*this one of"):
        other.load_state_dict(buffer.state_dict())
    check(other, stream(0, 3))


GOOD = stream(0, 1)[0]
BAD_FIRST: dict[str, tuple[Mapping[str, Any], str]] = {
    "missing": ({"obs": GOOD["obs"], "n": 0}, "'next_obs' should be a stack.* missing"),
    "no stack": ({**GOOD, "obs": np.zeros(4)}, r"'obs' should be a stack.* shape \(4,\)"),
    "two shapes": ({**GOOD, "next_obs": np.zeros((4, 9, 3), np.int32)}, "differ in shape or dtype"),
    "two dtypes": ({**GOOD, "next_obs": GOOD["obs"] * 0.5}, "differ in shape or dtype"),
    "two environments": ({**GOOD, "env_id": np.array([1, 2])}, "'env_id' is .*no whole number"),
    "half an environment": ({**GOOD, "env_id": 0.5}, "'env_id' is float64.*no whole number"),
}


@pytest.mark.parametrize("name", BAD_FIRST)
def test_what_cannot_be_stored_as_frames_is_refused(name: str) -> None:
    buffer, (item, words) = buffer_of(4), BAD_FIRST[name]
    with pytest.raises(BufferContractError, match=words):
        buffer.push(dict(item))
    buffer.push(stream(0, 2))  # it says nothing of what may follow
    check(buffer, stream(0, 2))


BAD_LATER: list[dict[str, Any]] = [
    {**GOOD, "obs": np.zeros((3, 2, 3), np.int32)}, {**GOOD, "obs": np.full((4, 2, 3), 2**40)},
    {**GOOD, "next_obs": GOOD["next_obs"] * 0.5}, {"n": 1, "env_id": 0},
]  # fmt: skip


@pytest.mark.parametrize("wrong", BAD_LATER)
@pytest.mark.parametrize("as_list", [False, True])
def test_a_refused_push_changes_nothing(wrong: Any, as_list: bool) -> None:
    buffer, items = buffer_of(6), stream(0, 20)
    buffer.push(items[:11])
    before = used(buffer), buffer.push_count
    with pytest.raises(BufferContractError):
        buffer.push([items[11], wrong] if as_list else wrong)
    assert (used(buffer), buffer.push_count) == before
    check(buffer, items[:11])
    buffer.push(items[11:])
    check(buffer, items)


def test_a_store_reads_slots_of_any_shape_and_its_state_has_each_frame_once() -> None:
    store, other, columns = FrameStore(8, BOTH), FrameStore(8, BOTH), stacked(stream(0, 8))
    store.declare(columns)
    store.put(0, 5, columns, 0)
    store.put(5, 8, columns, 5)
    slots = np.array([[7, 0, 3], [3, 2, 1]])
    found = store.read(slots)
    assert all(np.array_equal(found[name], columns[name][slots]) for name in BOTH)
    state = store.state_of(slots[0])  # not all of them, and other slots of the other store
    assert len(state["frames"]) == len(np.unique(state["frames"].reshape(-1, 6), axis=0))
    other.restore(state, np.array([2, 3, 4]))
    state["frames"][:] = 0  # a copy
    found = other.read(np.array([2, 3, 4]))
    assert all(np.array_equal(found[name], columns[name][slots[0]]) for name in BOTH)
