"""A replay manager after a restart: the very same draws, or the same data shared anew."""

from __future__ import annotations

import dataclasses
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.replay import (
    BLOCK_BYTES,
    CAPACITY,
    OF_RANK_3,
    admitted,
    ask_all,
    block,
    demand,
    lent,
    make_buffer,
    make_replay,
    on_policy_replay,
    read_all,
    rollout,
    serve,
)
from hpcdi.comm.messages import BlockReady
from hpcdi.replay.manager import ReplayManager, blocks_of
from hpcdi.store.state_file import load_state, save_state
from hpcdi.types import SequenceRule


class Data:
    """A replay manager, and all blocks that were published for it."""

    def __init__(self, *learners: int, **settings: Any) -> None:
        self.replay = make_replay(**settings)
        self.replay.open(*learners)
        self.published: dict[str, BlockReady] = {}

    def give(self, number: int, lengths: list[int], *, read: bool = True) -> None:
        ready = block(number, lengths)
        self.published[ready.shard.path] = ready
        orders = self.replay.assign(ready)
        if read:
            read_all(self.replay, orders)


def through_file(path: Path, replay: ReplayManager) -> dict[str, Any]:
    save_state(path / "replay.h5", "replay", 1, replay.state_dict())
    return load_state(path / "replay.h5", "replay", 1)


def rows_drawn(replay: ReplayManager, rank: int, rounds: int = 3) -> list[list[int]]:
    drawn = []
    for _ in range(rounds):
        replay.partitions[rank].demand(demand(2, 4))
        batches = serve(replay.partitions[rank])
        assert batches is not None
        drawn += batches.rows.tolist()
    return drawn


@settings(max_examples=30)
@given(lengths=st.lists(st.integers(4, 17), min_size=3, max_size=25))
@pytest.mark.slow
def test_as_many_learners_draw_what_they_would_have_drawn(
    lengths: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also where the ring has gone round, and after new priorities."""
    data = Data(1, 2)
    for number, length in enumerate(lengths):
        data.give(number, [length])
    data.replay.partitions[1].demand(demand(0, 4, ids=[0, 1]))
    state = through_file(tmp_path_factory.mktemp("state"), data.replay)
    for path in data.published.keys() - set(blocks_of(state)):
        del data.published[path]  # as `resume_from` does: blocks that gave way do not come back
    again = make_replay()
    again.load_state_dict(state, data.published)
    orders = again.open(1, 2)
    held = {b["block_id"]: b for s in state["partitions"].values() for b in s["blocks"]}
    assert {order.block_id: order.first_row for _, order in orders} == {
        block_id: b["first_row"] for block_id, b in held.items()
    }
    for part in again.partitions.values():
        part.demand(demand(1, 4))
    assert again.serve(0, ()) == []  # nothing is in the learners' memory yet
    assert again.blocked.endswith("blocks are read first")
    again = make_replay()
    again.load_state_dict(state, data.published)
    read_all(again, again.open(2, 5))  # other ranks than before, as after a death
    pairs = ((2, 1), (5, 2))
    for rank, before in pairs:
        assert rows_drawn(again, rank) == rows_drawn(data.replay, before)
    for number in range(100, 130):  # and goes on in the same way
        for replay in (data.replay, again):
            read_all(replay, replay.assign(block(number, [9])))
    for rank, before in pairs:
        assert rows_drawn(again, rank) == rows_drawn(data.replay, before)


@pytest.mark.parametrize("is_there", [False, True])
def test_items_of_a_block_that_is_gone_leave_the_index(is_there: bool, tmp_path: Path) -> None:
    data = Data(1)
    for number in range(4):
        data.give(number, [5])
    state = through_file(tmp_path, data.replay)
    gone = data.published.pop("data/1.h5")  # removed meanwhile
    if is_there:  # with other rows under its name
        shard = dataclasses.replace(gone.shard, crc32=gone.shard.crc32 + 1)
        data.published["data/1.h5"] = dataclasses.replace(gone, shard=shard)
    again = make_replay()
    again.load_state_dict(state, data.published)
    orders = again.open(1)
    assert [order.block_id for _, order in orders] == [0, 2, 3]
    again.admit(1, admitted(0))
    again.admit(1, admitted(2, error="torn"))
    assert not again.serve(0, ())
    again.admit(1, admitted(3))
    assert again.count() == 10
    assert {row for rows in rows_drawn(again, 1, 20) for row in rows} == {*range(5), *range(18, 23)}
    for number in range(10, 60):  # the ring comes round to their rows
        read_all(again, again.assign(block(number, [9])))
    assert again.count() > CAPACITY / 2


def test_what_was_not_read_and_what_came_later_is_admitted_like_new_blocks(tmp_path: Path) -> None:
    data = Data(1)
    data.give(0, [5])
    for number in range(1, 8):  # more than may be unread: some wait
        data.give(number, [5], read=False)
    state = through_file(tmp_path, data.replay)
    data.published["data/9.h5"] = block(9, [7])
    again = make_replay()
    again.load_state_dict(state, data.published)
    read_all(again, again.open(1))
    assert again.count() == 8 * 5 + 7


@pytest.mark.parametrize("learners", [(1,), (1, 2, 3)])
def test_another_number_of_learners_shares_the_data(
    learners: tuple[int, ...], tmp_path: Path
) -> None:
    data = Data(1, 2)
    for number in range(6):
        data.give(OF_RANK_3 + number, [5, 5])
    again = make_replay()
    again.load_state_dict(through_file(tmp_path, data.replay), data.published)
    orders = deque(again.open(*learners))
    for part in again.partitions.values():
        part.demand(demand(1, 4))
    while again.count() < 60:
        assert not again.serve(0, ()), "what was read before is read again first"
        rank, order = orders.popleft()
        orders += [(rank, more) for more in again.admit(rank, admitted(order.block_id))]
    assert len(again.serve(0, ())) == len(learners)
    counts = {part.buffer.count() for part in again.partitions.values()}
    assert counts == {60 // len(learners)}


@pytest.mark.parametrize("how", ["resumed by another number", "a learner died"])
def test_what_was_to_be_read_again_when_a_snapshot_was_taken_is_counted_once(
    how: str, tmp_path: Path
) -> None:
    data = Data(1, 2)
    for number in range(6):
        data.give(OF_RANK_3 + number, [5, 5])
    replay = data.replay
    if how == "a learner died":
        assert replay.lose(2)
    else:
        replay = make_replay()
        replay.load_state_dict(through_file(tmp_path, data.replay), data.published)
        assert replay.open(1)
    again = make_replay()
    again.load_state_dict(through_file(tmp_path, replay), data.published)
    read_all(again, again.open(1))
    assert (again.count(), again.items_admitted) == (60, 60)


@pytest.mark.parametrize("learners", [(1,), (1, 2)])
@pytest.mark.parametrize("how", ["at once", "after another snapshot"])
def test_what_was_read_while_it_was_lent_is_counted_once(
    how: str, learners: tuple[int, ...], tmp_path: Path
) -> None:
    """In the snapshot such a block has no path; of an open one only a part was read."""
    replay, whole = make_replay(), [block(OF_RANK_3 + 1, [5]), block(OF_RANK_3 + 2, [5])]
    grown = block(OF_RANK_3 + 3, [3, 4])
    replay.open(1)
    opened = lent(OF_RANK_3 + 3, [3])
    opened = dataclasses.replace(opened, capacity=20)
    for ready in (whole[0], lent(OF_RANK_3 + 2, [5]), opened):
        read_all(replay, replay.assign(ready))
    assert replay.items_admitted == replay.steps_admitted == 13
    published = {ready.shard.path: ready for ready in (*whole, grown)}
    again = make_replay()
    again.load_state_dict(through_file(tmp_path, replay), published)
    orders = again.open(*learners)
    if how != "at once":
        state = through_file(tmp_path, again)
        again = make_replay()
        again.load_state_dict(state, published)
        orders = again.open(*learners)
    read_all(again, orders)
    assert (again.count(), again.items_admitted, again.steps_admitted) == (17, 17, 17)


def test_a_snapshot_before_its_learners_start_keeps_what_was_restored(tmp_path: Path) -> None:
    """In a league those of another player may learn already, or its own be gone before."""
    data = Data(1)
    for number in range(4):
        data.give(number, [5, 5])
    data.replay.partitions[1].demand(demand(0, 4, ids=range(5)))
    again = data.replay
    for _ in range(2):
        state = through_file(tmp_path, again)
        assert sorted(blocks_of(state)) == sorted(data.published)
        again = make_replay()
        again.load_state_dict(state, data.published)
    read_all(again, again.open(2))
    assert (again.count(), again.items_admitted) == (40, 40)
    assert rows_drawn(again, 2) == rows_drawn(data.replay, 1)


def test_what_a_dead_learner_had_read_of_an_open_block_is_counted_once() -> None:
    replay = make_replay()
    replay.open(1, 2)
    ready = dataclasses.replace(lent(OF_RANK_3 + 3, [3]), capacity=20)
    ((rank, _),) = orders = replay.assign(ready)
    read_all(replay, orders)
    piece = dataclasses.replace(lent(OF_RANK_3 + 3, [4]), first_row=ready.shard.rows, capacity=20)
    orders = replay.lose(rank)
    orders += replay.assign(piece)
    read_all(replay, orders)
    assert (replay.count(), replay.items_admitted) == (7, 7)


@pytest.mark.parametrize("how", ["a resume by two", "a death of two"])
def test_sequences_are_shared_anew_as_a_whole(how: str, tmp_path: Path) -> None:
    """A sequence has many rows: as many items as the buffer holds may wait, not as many rows."""
    rule = SequenceRule(length=40, stride=20)

    def made() -> ReplayManager:
        return ReplayManager(make_buffer, BLOCK_BYTES, rule=rule)

    replay, published = made(), dict[str, BlockReady]()
    replay.open(*((1,) if how.startswith("a resume") else (1, 2)))
    for number in range(25):  # each of four sequences, in 82 rows
        ready = published[f"data/{number}.h5"] = block(number, [40, 40])
        read_all(replay, replay.assign(ready))
    assert replay.count() == CAPACITY
    if how.startswith("a resume"):
        again = made()
        again.load_state_dict(through_file(tmp_path, replay), published)
        replay, orders = again, again.open(1, 2)
    else:
        orders = replay.lose(2)
    read_all(replay, orders)
    assert (replay.count(), replay.figures().blocks_skipped) == (CAPACITY, 0)


def drawn_from(beta: float) -> Data:
    """Two learners' items, a batch of each drawn; the largest priority is 7."""
    data = Data(1, 2, beta=beta, anneal_step=10)
    for number in range(6):
        data.give(number, [5, 5])
    for part in data.replay.partitions.values():
        part.buffer.update_priorities(np.arange(1), np.array([7.0]))
        part.demand(demand(4, 2))
        assert serve(part) is not None
    return data


@pytest.mark.parametrize("learners", [(1, 2), (1,), (1, 2, 3)])
def test_weights_are_annealed_on_whatever_learners_there_are(
    learners: tuple[int, ...], tmp_path: Path
) -> None:
    """By the exponent that is configured now; and new items have the largest priority so far."""
    data = drawn_from(beta=0.5)
    again = make_replay(beta=0.0, anneal_step=10)
    again.load_state_dict(through_file(tmp_path, data.replay), data.published)
    again.open(*learners)
    for part in again.partitions.values():
        assert part.buffer.beta == pytest.approx(0.4)
        assert part.buffer.max_priority == 7


def test_weights_are_annealed_on_after_the_death_of_all_learners(tmp_path: Path) -> None:
    """In the run they learn no more; where it is resumed they do."""
    data = drawn_from(beta=0.0)
    for rank in (1, 2):
        data.replay.lose(rank)
    again = make_replay(beta=0.0, anneal_step=10)
    again.load_state_dict(through_file(tmp_path, data.replay), data.published)
    again.open(1, 2)
    for part in again.partitions.values():
        assert part.buffer.beta == pytest.approx(0.4)
        assert part.buffer.max_priority == 7


def test_what_dead_learners_had_waits_for_those_of_a_resumed_run(tmp_path: Path) -> None:
    data = drawn_from(beta=0.0)
    for rank in (1, 2):
        data.replay.lose(rank)
    assert data.replay.take_freed() == []
    again = make_replay()
    again.load_state_dict(through_file(tmp_path, data.replay), data.published)
    read_all(again, again.open(1, 2))
    assert (again.count(), again.items_admitted) == (60, 60)


def test_a_buffer_of_another_size_takes_what_fits(tmp_path: Path) -> None:
    data = Data(1)
    for number in range(6):
        data.give(number, [5, 5])
    again = make_replay(replay_buffer_size=40)
    again.load_state_dict(through_file(tmp_path, data.replay), data.published)
    read_all(again, again.open(1))
    assert 30 <= again.count() <= 40


def test_on_policy_pieces_are_made_anew(tmp_path: Path) -> None:
    replay = on_policy_replay(1)
    ready = rollout(4, 1, 3)
    replay.assign(ready)
    replay.admit(1, admitted(ready.block_id))
    again = on_policy_replay()
    again.load_state_dict(through_file(tmp_path, replay), {ready.shard.path: ready})
    assert again.open(1) == []
    assert again.count() == 0
    ask_all(again, 3)
    fresh = rollout(4, 2, 3, [2])
    again.assign(fresh)
    again.admit(1, admitted(fresh.block_id))
    ((rank, batch),) = again.serve(0, [4])
    assert rank == 1
    assert np.array_equal(np.sort(batch.rows[0]), [0, 1])
