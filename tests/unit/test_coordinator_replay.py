"""The replay manager and its partitions: rows for blocks, batches for requests."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from fakes.replay import (
    BLOCK_BYTES,
    CAPACITY,
    admitted,
    block,
    demand,
    give,
    lent,
    make_buffer,
    make_partition,
    make_replay,
    read_all,
    serve,
)
from hpcdi.comm.messages import AdmitBlock, Batches, BlockReady, BlockStored
from hpcdi.config.compiled import compile_config
from hpcdi.errors import BufferContractError
from hpcdi.replay.manager import ReplayManager, blocks_of, create_replay
from hpcdi.replay.partition import MAX_UNREAD, Partition, item_rows
from hpcdi.replay.placer import ring_rows
from hpcdi.store.state_file import load_state, save_state
from hpcdi.types import SequenceRule

# ------------------------------------------------------------------------------------------- rows


def test_item_rows_leave_out_tail_rows() -> None:
    ready = block(1, [2, 3, 1], tail=1)
    ready.items["policy_version"] = [7, 8, 9]
    rows, versions = item_rows(ready, first_row=10)
    assert rows.tolist() == [10, 11, 13, 14, 15, 17]  # 12, 16 and 18 hold last observations
    assert versions.tolist() == [7, 7, 8, 8, 8, 9]
    assert rows.dtype == versions.dtype == np.int64


@pytest.mark.parametrize(
    ("lengths", "tail", "expected"),
    [
        ([], 1, []), ([0], 1, []), ([0, 2, 0], 1, [1, 2]), ([4], 0, [0, 1, 2, 3]),
        ([1, 1], 0, [0, 1]),
    ],
)  # fmt: skip
def test_item_rows_of_odd_blocks(lengths: list[int], tail: int, expected: list[int]) -> None:
    assert item_rows(block(1, lengths, tail), 0)[0].tolist() == expected


def test_ring_rows() -> None:
    """A quarter more than the items, and two full blocks."""
    assert ring_rows(100, 20) == 165
    assert ring_rows(1, 1) == 3


def test_drawing_begins_though_items_become_as_short_as_they_can_be() -> None:
    """The ring was of the first block's rows for an item: it never held `min_fill` of others."""
    partition = make_partition(min_fill=98)
    give(partition, block(1, [19]))
    for number in range(2, 40):
        give(partition, block(number, [1] * 10))
    partition.demand(demand(1, 4))
    assert serve(partition) is not None, partition.blocked


@pytest.mark.parametrize("first", [1, 19])  # episodes are short from the start, or become so
def test_a_buffer_of_short_episodes_is_full(first: int) -> None:
    """It held 62 % of its items, for ever, where the first block had long ones."""
    partition, ring, held = make_partition(), 0, []
    for number in range(300):
        lengths = [19] if number == 0 and first == 19 else [1] * 10
        order = give(partition, block(number, lengths))
        assert order.ring_rows >= ring, "it never shrinks"
        ring = order.ring_rows
        held.append(partition.buffer.count())
    assert ring <= ring_rows(CAPACITY, 20, 2.05)
    assert min(held[12:]) >= 0.95 * CAPACITY


def test_a_ring_is_full_again_when_episodes_have_become_short() -> None:
    partition = make_partition()
    for number in range(300):
        give(partition, block(number, [19] if number < 50 else [1] * 10))
    assert partition.buffer.count() >= 0.95 * CAPACITY


def test_a_ring_has_room_for_sequences_of_the_worst_items() -> None:
    rule = SequenceRule(length=40, stride=20, ahead=5, burn_in=10, item_len=80)
    assert rule.most_rows == 31
    assert rule.counts(np.array([30, 31])).tolist() == [1, 2]
    assert SequenceRule().most_rows == 2
    assert ring_rows(1000, 250, rule.apart, 900, rule.most_rows) >= 900 * 31


def test_place_orders_consecutive_rows_of_one_ring() -> None:
    partition = make_partition()
    first, second = partition.place(block(1, [5, 5])), partition.place(block(2, [6]))
    assert (first.first_row, second.first_row) == (0, 12)
    assert first.ring_rows == second.ring_rows == ring_rows(CAPACITY, 20)
    assert (first.block_id, first.shard.path) == (1, "data/1.h5")


def test_a_block_that_is_announced_twice_is_an_error() -> None:
    """Its first rows would be learnt from as if they were the second ones."""
    partition = make_partition()
    partition.place(block(1, [5]))
    with pytest.raises(BufferContractError, match="block 1 was announced twice"):
        partition.place(block(1, [5]))


@pytest.mark.parametrize("length", [1, 2, 3, 17])
def test_all_items_fit_however_short_they_are(length: int) -> None:
    """Each item costs a row more than it has transitions."""
    partition = make_partition()
    lengths = [length] * (20 // (length + 1))
    for k in range(60):
        give(partition, block(k, lengths))
    assert partition.buffer.count() >= CAPACITY - sum(lengths)


def test_all_sequences_fit_also_where_the_first_episodes_are_short() -> None:
    """The ring takes its size from the first block, in which sequences end with episodes."""
    replay = ReplayManager(make_buffer, BLOCK_BYTES, rule=SequenceRule(length=40, stride=40))
    replay.open(1)
    for number in range(1, 10):
        read_all(replay, replay.assign(block(number, [5, 5, 5])))
    for number in range(10, 100):
        read_all(replay, replay.assign(block(number, [80])))
    assert replay.count() >= CAPACITY - 2


def test_all_sequences_fit_where_none_begins_in_a_burn_in() -> None:
    """One of each 81 rows, as in the paper: the ring had the 40 of a stride for it, for ever."""
    collect = {"n_sample": 80, "unroll_len": 80, "stride": 40}
    policy = {
        "type": "r2d2",
        "collect": collect,
        "learn": {"burn_in": 40, "batch_size": 8},
        "other": {"replay_buffer": {"replay_buffer_size": 400}},
    }
    config = compile_config({"env": {"env_id": "CartPole-v1"}, "policy": policy}).config
    replay = create_replay(config)
    replay.open(1)
    for number in range(1, 10):
        read_all(replay, replay.assign(block(number, [5, 5, 5])))
    for number in range(10, 900):
        read_all(replay, replay.assign(block(number, [80])))
    assert replay.count() >= 400 - 2


@pytest.mark.parametrize(("burn_in", "warm_up"), [(0, 99 * 40 + 1), (40, 99 * 80 + 1)])
def test_learning_begins_after_as_many_transitions_as_fill_the_buffer(
    burn_in: int, warm_up: int
) -> None:
    """As if sequences were a stride apart, samples of all until then were due at once."""
    collect = {"n_sample": 80, "unroll_len": 80, "stride": 40}
    policy = {
        "type": "r2d2",
        "collect": collect,
        "learn": {"burn_in": burn_in, "batch_size": 8},
        "other": {"replay_buffer": {"min_fill": 100, "replay_buffer_size": 400}},
    }
    config = compile_config({"env": {"env_id": "CartPole-v1"}, "policy": policy}).config
    assert config.policy.warm_up == warm_up
    replay = create_replay(config)
    replay.open(1)
    for number in range(1, math.ceil(warm_up / 80) + 1):
        assert replay.count() < 100
        read_all(replay, replay.assign(block(number, [80])))
    assert replay.count() >= 100


@pytest.mark.parametrize(
    ("rule", "apart"),
    [
        (SequenceRule(item_len=9), 1), (SequenceRule(80, 40, 5, 40), 40),
        (SequenceRule(80, 40, 5, 40, 80), 81), (SequenceRule(80, 40, 5, 40, 120), 60.5),
        (SequenceRule(40, 40, 0, 0, 80), 40.5), (SequenceRule(40, 40, 0, 0, 90), 40),
        (SequenceRule(8, 1, 0, 4, 8), 2.25),
    ],
)  # fmt: skip
def test_rows_from_one_sequence_to_the_next(rule: SequenceRule, apart: float) -> None:
    assert rule.apart == apart


def test_a_block_larger_than_the_ring_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(BufferContractError, match="raise replay_buffer_size or lower"):
        make_partition().place(block(1, [500]))


# ----------------------------------------------------------------------------------------- serving


def test_items_can_be_drawn_once_the_learner_holds_them() -> None:
    partition = make_partition()
    partition.place(block(1, [8, 8]))
    partition.demand(demand(2, 4))
    assert serve(partition) is None
    assert partition.admit(admitted(1)) == 16
    partition.buffer.update_priorities(np.arange(16), np.arange(1.0, 17.0))
    batches = serve(partition, 77)
    assert isinstance(batches, Batches)
    assert batches.env_steps == 77
    assert partition.samples_drawn == 8
    transitions = item_rows(block(1, [8, 8]), 0)[0]
    for array, dtype in [
        (batches.rows, np.int64), (batches.unique_ids, np.int64), (batches.weights, np.float32),
    ]:  # fmt: skip
        assert (array.shape, array.dtype) == ((2, 4), dtype)
        assert array.flags.c_contiguous
    assert np.array_equal(batches.rows, transitions[batches.unique_ids])
    by_priority = batches.weights.ravel()[batches.unique_ids.ravel().argsort()]
    assert (np.diff(by_priority) <= 0).all()
    assert by_priority[-1] < by_priority[0]


def test_a_demand_is_served_once() -> None:
    partition = make_partition()
    give(partition, block(1, [10]))
    partition.demand(demand(1, 4))
    assert serve(partition) is not None
    assert serve(partition) is None
    partition.demand(demand(0, 4, ids=[1]))  # priorities alone ask for nothing
    assert serve(partition) is None


def test_a_demand_waits_until_there_is_enough() -> None:
    partition = make_partition(min_fill=12)
    partition.demand(demand(1, 4))
    for block_id, served in [(1, False), (2, False), (3, True)]:
        give(partition, block(block_id, [4]))
        assert (serve(partition) is not None) is served


def test_no_more_batches_at_once_than_items_fill() -> None:
    """The request waits for the rest: a buffer smaller than a request must not block it."""
    partition = make_partition()
    give(partition, block(1, [10]))
    partition.demand(demand(5, 4))
    shapes = []
    for block_id in (2, 3, 4):
        batches = serve(partition)
        shapes.append(batches.rows.shape if batches is not None else None)
        give(partition, block(block_id, [10]))
    assert shapes == [(2, 4), (3, 4), None]


def test_a_full_buffer_serves_a_request_larger_than_itself() -> None:
    partition = make_partition(replay_buffer_size=10)
    give(partition, block(1, [10]))
    partition.demand(demand(16, 4))
    batches = serve(partition)
    assert batches is not None
    assert batches.rows.shape == (2, 4)


def test_a_second_request_adds_to_one_that_waits() -> None:
    partition = make_partition()
    partition.demand(demand(2, 4, train_iter=1))
    partition.demand(demand(3, 4, train_iter=5))
    give(partition, block(1, [19]))
    give(partition, block(2, [19]))
    batches = serve(partition)
    assert batches is not None
    assert batches.rows.shape == (5, 4)


def test_batches_of_a_group_span_all_strata() -> None:
    """Each batch has items from all over the priority mass, not a slice of it each."""
    partition = make_partition(alpha=1.0)
    for k in range(5):
        give(partition, block(k, [19]))
    partition.demand(demand(8, 10))
    batches = serve(partition)
    assert batches is not None
    for ids in batches.unique_ids:  # 95 items of equal mass: each tenth of them gives one
        tenths = np.sort(ids) // 9.5
        assert np.abs(tenths - np.arange(10)).max() <= 1


def test_weights_of_several_learners_are_those_of_one_with_all_items() -> None:
    """Each learner draws as many: an item of a likelier part weighs less, and 1 is the most."""
    replay = make_replay(alpha=1.0, beta=0.5, anneal_step=0)
    replay.open(1, 2)
    for number, part in enumerate(replay.partitions.values()):
        give(part, block(number, [10]))
        priorities = np.full(10, 2.0)
        if number:
            priorities[0] = 0.02
        part.buffer.update_priorities(np.arange(10), priorities)
        part.demand(demand(50, 10))
    first, second = (batches for _, batches in replay.serve(0, []))
    rarest = 0.02 / 18.02
    np.testing.assert_allclose(first.weights, (rarest / 0.1) ** 0.5, rtol=1e-6)
    chances = np.where(second.unique_ids == 0, rarest, 2 / 18.02)
    np.testing.assert_allclose(second.weights, (rarest / chances) ** 0.5, rtol=1e-6)


def test_each_batch_anneals_beta() -> None:
    partition = make_partition(beta=0.0, anneal_step=10)
    give(partition, block(1, [19]))
    partition.demand(demand(4, 2))
    serve(partition)
    assert partition.buffer.beta == pytest.approx(0.4)


def test_staleness_follows_the_policy_version() -> None:
    partition = make_partition(max_staleness=10)
    give(partition, block(1, [6], version=5))
    give(partition, block(2, [6], version=20))
    partition.demand(demand(1, 6, train_iter=21))
    batches = serve(partition)
    assert batches is not None
    assert batches.rows.min() >= 7  # the first block's items are over ten iterations old
    assert partition.buffer.count() == 6


def test_staleness_is_counted_where_a_batch_is_learnt_from() -> None:
    """Two batches wait at the learner: what is drawn now is learnt from two iterations later."""
    partition = make_partition(max_staleness=3)
    give(partition, block(1, [6], version=0))
    partition.demand(demand(2, 3, train_iter=0))
    assert serve(partition) is not None
    assert not partition.is_learnt
    give(partition, block(2, [6], version=1))
    partition.demand(demand(1, 3, train_iter=1, left=1))
    assert serve(partition) is not None
    assert partition.buffer.count() == 12, "it is learnt from at 2"
    partition.demand(demand(2, 3, train_iter=2, left=1))
    batches = serve(partition)
    assert batches is not None
    assert batches.rows.min() >= 7, "the second is learnt from at 4"
    for train_iter, left in ((3, 2), (4, 1), (4, 0)):  # an update may be no iteration
        partition.demand(demand(0, 3, train_iter=train_iter, left=left))
        assert partition.is_learnt is (left == 0)


# ---------------------------------------------------------------------------------- blocks that go


def test_rows_that_are_given_away_take_their_items_with_them() -> None:
    partition = make_partition()
    for k in range(1, 10):
        give(partition, block(k, [17]))  # 18 rows: nine blocks fill 162 of 165 rows
    assert partition.buffer.count() == CAPACITY
    assert partition.take_freed() == []
    order = partition.place(block(10, [17]))
    assert order.first_row == 0
    assert partition.take_freed() == ["data/1.h5"]
    assert partition.take_freed() == []
    for k in range(11, 15):
        partition.place(block(k, [17]))
    # of blocks 6 to 9, 68 items are left; 10 to 14 have rows, but their learner has not read them
    assert partition.buffer.count() == 68
    assert partition.take_freed() == [f"data/{k}.h5" for k in (2, 3, 4, 5)]


def test_a_block_that_failed_costs_its_rows_only() -> None:
    partition = make_partition()
    give(partition, block(1, [9]))
    partition.place(block(2, [9]))
    assert partition.admit(admitted(2, error="torn")) == 0
    order = give(partition, block(3, [9]))
    assert order.first_row == 20  # its rows come up again when the ring has gone round
    assert partition.buffer.count() == 18
    partition.demand(demand(8, 8))
    batches = serve(partition)
    assert batches is not None
    assert not np.isin(batches.rows, np.arange(10, 20)).any()
    for k in range(4, 30):
        give(partition, block(k, [9]))
    assert "data/2.h5" in partition.take_freed()


def test_a_learner_that_reads_slower_than_blocks_come_still_gets_items() -> None:
    """Else it reads for ever what has gone already, while its orders pile up."""
    replay = make_replay()
    orders = deque[AdmitBlock](order for _, order in replay.open(1))
    freed = set[str]()
    for k in range(100):
        orders += [order for _, order in replay.assign(block(k, [17]))]
        assert len(orders) <= MAX_UNREAD
        if k % 2:
            orders += replay.admit(1, admitted(orders.popleft().block_id))
        freed.update(replay.take_freed())
    assert replay.count() > CAPACITY / 2
    assert replay.figures().blocks_skipped > 40
    assert replay.blocks_lost == 0
    held = {b["path"] for b in replay.partitions[1].state_dict()["blocks"]}
    assert not freed & held
    waiting = 100 - len(freed) - len(held)
    assert 0 < waiting <= CAPACITY // 18


def test_while_there_is_no_learner_the_oldest_blocks_give_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hpcdi.replay.manager.EARLY_ITEMS", 17 * 3)
    replay = make_replay()
    for k in range(1, 6):
        assert replay.assign(block(k, [17])) == []
    assert replay.take_freed() == ["data/1.h5", "data/2.h5"]
    assert replay.figures().blocks_skipped == 2
    assert [order.block_id for _, order in replay.open(1)] == [3, 4, 5]


@pytest.mark.parametrize("block_id", [1, 99])
def test_a_late_word_about_a_block_that_has_gone_is_passed_over(block_id: int) -> None:
    partition = make_partition()
    for k in range(1, 20):
        partition.place(block(k, [17]))
    assert partition.admit(admitted(block_id)) == 0
    assert partition.buffer.count() == 0


def test_a_block_with_more_transitions_than_the_buffer_gives_the_last_ones() -> None:
    partition = make_partition(replay_buffer_size=16)
    assert give(partition, block(1, [10, 11])).ring_rows >= 23
    assert partition.buffer.count() == 16
    partition.demand(demand(4, 4))
    batches = serve(partition)
    assert batches is not None
    assert set(batches.rows.reshape(-1).tolist()) == {*range(5, 10), *range(11, 22)}


def test_priorities_of_items_that_have_gone_are_counted() -> None:
    partition = make_partition(replay_buffer_size=10)
    give(partition, block(1, [4]))
    give(partition, block(2, [8]))  # the first two items give way
    assert partition.demand(demand(1, 4, ids=[0, 1, 2, 11, 12])) == 3
    assert partition.demand(demand(1, 4)) == 0


def test_a_learner_s_priorities_are_those_of_the_items_that_it_names() -> None:
    partition = make_partition(alpha=1.0)
    give(partition, block(1, [8]))
    ids = [5, 0, 1, 2, 3, 4, 6, 7]
    weighed = dataclasses.replace(demand(4, 8, ids), priorities=np.array([1.0] + 7 * [1e-9]))
    partition.demand(weighed)
    drawn: list[int] = []
    while len(drawn) < 32:
        batches = serve(partition)
        assert batches is not None
        drawn += batches.unique_ids.reshape(-1).tolist()
    assert set(drawn) == {5}


# ------------------------------------------------------------------------------------- the manager


def test_blocks_before_a_learner_wait_for_it() -> None:
    replay = make_replay()
    assert replay.assign(block(1, [5])) == replay.assign(block(2, [5])) == []
    orders = [order for rank, order in replay.open(3) if rank == 3]
    assert [(order.block_id, order.first_row) for order in orders] == [(1, 0), (2, 6)]
    assert replay.open(4) == []
    for order in orders:
        replay.admit(3, admitted(order.block_id))
    assert (replay.count(), replay.items_admitted, replay.blocks_lost) == (10, 10, 0)


def test_learners_get_blocks_in_turn() -> None:
    replay = make_replay()
    replay.open(1, 2)
    turns = [replay.assign(block(k, [5])) for k in range(5)]
    assert [[(rank, order.first_row) for rank, order in turn] for turn in turns] == [
        [(1, 0)], [(2, 0)], [(1, 6)], [(2, 6)], [(1, 12)],
    ]  # fmt: skip
    replay.admit(2, admitted(1))
    assert [p.buffer.count() for p in replay.partitions.values()] == [0, 5]
    assert (replay.capacity(), replay.count()) == (2 * CAPACITY, 5)


def test_the_manager_counts_what_is_lost_and_drawn() -> None:
    replay = make_replay()
    replay.open(1)
    for k in range(3):
        replay.assign(block(k, [5]))
        replay.admit(1, admitted(k, error="torn" if k == 1 else ""))
    replay.partitions[1].demand(demand(2, 3))
    serve(replay.partitions[1])
    assert (replay.items_admitted, replay.blocks_lost, replay.samples_drawn()) == (10, 1, 6)


def test_a_snapshot_names_the_shards_that_wait_for_a_slow_learner_or_for_a_first_one() -> None:
    """Else nobody would read them after a restart: their numbers are not above the newest one."""
    replay = make_replay()
    for k in range(2):
        replay.assign(block(k, [5]))
    early = {"data/0.h5", "data/1.h5"}
    assert set(blocks_of(replay.state_dict())) == early
    replay.open(1)
    for k in range(2, MAX_UNREAD + 3):
        replay.assign(block(k, [5]))
    assert replay.partitions[1].backlog.paths == [f"data/{MAX_UNREAD + k}.h5" for k in range(3)]
    named = blocks_of(replay.state_dict())
    assert sorted(named) == [f"data/{k}.h5" for k in range(MAX_UNREAD + 3)]


def test_state_can_be_stored_and_taken_back(tmp_path: Path) -> None:
    replay = make_replay()
    replay.open(1)
    for k in range(3):
        replay.assign(block(k, [5]))
    replay.admit(1, admitted(0))
    save_state(tmp_path / "replay.h5", "replay", 1, replay.state_dict())
    state = load_state(tmp_path / "replay.h5", "replay", 1)["partitions"]["rank1"]
    assert [(b["block_id"], b["path"], b["first_row"], b["end_id"]) for b in state["blocks"]] == [
        (0, "data/0.h5", 0, 5), (1, "data/1.h5", 6, -1), (2, "data/2.h5", 12, -1),
    ]  # fmt: skip
    again = make_buffer("again")
    again.load_state_dict(state["buffer"])
    left, right = replay.partitions[1].buffer.draw(5, 0), again.draw(5, 0)
    assert left is not None
    assert right is not None
    assert left.slots.tolist() == right.slots.tolist()
    assert state["rows"].tolist() == [0, 1, 2, 3, 4]


# --------------------------------------------------------------------------- blocks that are open


def piece(block_id: int, lengths: list[int], first_row: int, capacity: int) -> BlockReady:
    """What has come to an open block."""
    ready = block(block_id, lengths, tail=0)
    shard = dataclasses.replace(ready.shard, path=f"piece {block_id} {first_row}", crc32=0)
    return dataclasses.replace(ready, shard=shard, first_row=first_row, capacity=capacity)


def take(part: Partition, ready: BlockReady) -> AdmitBlock:
    (order,) = part.offer(ready)
    part.admit(admitted(ready.block_id))
    return order


def test_an_open_block_grows_where_it_lies_and_gets_its_name_when_it_is_stored() -> None:
    part = make_partition()
    orders = [take(part, piece(1, [3, 4], 0, 20)), take(part, piece(1, [5], 7, 20))]
    assert [order.first_row for order in orders] == [0, 7]
    assert part.buffer.count() == 12
    other = take(part, piece(2, [2], 0, 20))
    assert other.first_row == 20, "the first one keeps room for what may still come"
    (unstored, _) = part.state_dict()["blocks"]
    assert (unstored["path"], unstored["rows"]) == ("", 12)
    stored = dataclasses.replace(block(1, [3, 4, 5], tail=0).shard, path="data/x.h5", crc32=9)
    assert part.stored(BlockStored(1, stored))
    (first, _) = part.state_dict()["blocks"]
    assert (first["path"], first["crc32"], first["first_id"], first["end_id"]) == (
        "data/x.h5", 9, 0, 12,
    )  # fmt: skip
    assert not part.stored(BlockStored(77, stored)), "it has no such block"


def test_a_block_that_is_stored_before_its_last_piece_was_read_has_all_of_it() -> None:
    part = make_partition()
    take(part, piece(1, [3, 4], 0, 20))
    stored = dataclasses.replace(block(1, [3, 4, 5], tail=0).shard, path="data/x.h5", crc32=9)
    assert part.stored(BlockStored(1, stored))
    take(part, piece(1, [5], 7, 12))
    (whole,) = part.state_dict()["blocks"]
    assert (whole["path"], whole["rows"], whole["end_id"]) == ("data/x.h5", 12, 12)


def test_a_block_is_being_read_until_the_last_of_its_pieces_was_read() -> None:
    """Where collecting and learning take turns, a batch was drawn before the others came."""
    part = make_partition()
    for first, length in ((0, 3), (3, 4), (7, 5)):
        part.offer(piece(1, [length], first, 20))
    for is_read in (False, False, True):
        assert not part.backlog.is_idle
        part.admit(admitted(1))
        assert part.backlog.is_idle == is_read
    assert part.buffer.count() == 12


def test_rows_that_a_sealed_block_does_not_need_are_the_next_ones() -> None:
    part = make_partition()
    take(part, piece(1, [3], 0, 20))
    take(part, piece(1, [4], 3, 7))  # the last: no more will come
    assert take(part, piece(2, [2], 0, 20)).first_row == 7
    assert take(part, piece(3, [2], 0, 2)).first_row == 27


def test_a_block_that_is_stored_after_its_rows_have_gone_is_free() -> None:
    replay = ReplayManager(make_buffer, BLOCK_BYTES)
    replay.open(1)
    numbers = itertools.count(1)
    for number in itertools.islice(numbers, 12):
        read_all(replay, replay.assign(piece(number, [20], 0, 20)))
    assert replay.take_freed() == []
    replay.stored(BlockStored(1, block(1, [20], tail=0).shard))
    assert replay.take_freed() == ["data/1.h5"]
    replay.stored(BlockStored(12, block(12, [20], tail=0).shard))
    assert replay.take_freed() == [], "its rows are drawn"
    assert [name for name in blocks_of(replay.state_dict()) if name] == ["data/12.h5"]


def test_a_block_of_which_a_piece_was_dropped_loses_all_that_are_not_read_yet() -> None:
    """What came behind the gap would be taken for an announcement that comes twice."""
    replay = make_replay()
    replay.open(1)
    part = replay.partitions[1]
    take(part, piece(1, [5], 0, 20))
    for number in range(2, 2 + MAX_UNREAD):  # the learner reads, so that what follows waits
        part.offer(piece(number, [2], 0, 2))
    part.offer(piece(1, [5], 5, 20))
    part.offer(piece(7, [10], 0, 20))
    for number in range(8, 13):  # the first one's second piece goes, and all of the seventh
        part.offer(block(number, [19]))
    part.offer(piece(7, [10], 10, 20))
    part.offer(piece(1, [10], 10, 20))
    assert part.backlog.cut == {1, 7}
    assert replay.figures().blocks_skipped == 2
    replay.stored(BlockStored(1, block(1, [20], tail=0).shard))
    replay.stored(BlockStored(7, block(7, [20], tail=0).shard))
    assert replay.take_freed() == ["data/7.h5"]
    assert part.state_dict()["blocks"][0]["path"] == "data/1.h5", "what was read of it is drawn"
    assert not part.backlog.cut
    waiting = deque(range(2, 2 + MAX_UNREAD))
    while waiting:
        waiting += [order.block_id for order in replay.admit(1, admitted(waiting.popleft()))]
    for number in range(13, 20):
        take(part, block(number, [19]))
    assert "data/1.h5" in replay.take_freed(), "its rows were overwritten"


def test_a_block_that_was_stored_before_its_last_piece_was_dropped_is_free() -> None:
    for first in (1, 2):  # a block of which something was read, and one of which nothing was
        replay = make_replay()
        replay.open(1)
        part = replay.partitions[1]
        take(part, piece(1, [5], 0, 20))
        for number in range(3, 3 + MAX_UNREAD):
            part.offer(piece(number, [2], 0, 2))
        part.offer(piece(first, [15], 5 * (first == 1), 20))
        replay.stored(BlockStored(first, block(first, [20], tail=0).shard))
        for number in range(8, 13):
            part.offer(block(number, [19]))
        assert replay.take_freed() == ["data/2.h5"] * (first == 2)
        is_sealed = part.state_dict()["blocks"][0]["path"] == "data/1.h5"
        assert is_sealed == (first == 1)
        assert not part.backlog.cut


def test_a_block_that_was_cut_before_there_was_a_learner_is_not_learnt_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hpcdi.replay.manager.EARLY_ITEMS", 30)
    replay = make_replay()
    replay.assign(piece(1, [5], 0, 20))
    replay.assign(block(2, [28]))
    [(_, order)] = replay.open(1)
    assert order.block_id == 2
    assert replay.assign(piece(1, [5], 5, 20)) == replay.assign(piece(1, [10], 10, 20)) == []
    replay.stored(BlockStored(1, block(1, [20], tail=0).shard))
    assert replay.take_freed() == ["data/1.h5"]


# ------------------------------------------------------------ blocks that shared memory lends


def stored(block_id: int, lengths: list[int]) -> BlockStored:
    return BlockStored(block_id, block(block_id, lengths).shard)


def test_a_lent_block_whose_memory_has_gone_is_read_from_its_shard() -> None:
    replay = make_replay()
    replay.open(1)
    [(_, order)] = replay.assign(lent(1, [5]))
    assert order.shard.is_shared
    replay.stored(stored(1, [5]))
    [again] = replay.admit(1, admitted(1, "is not lent any more"))
    assert (again.shard.path, again.first_row) == ("data/1.h5", order.first_row)
    assert replay.admit(1, admitted(1)) == []
    assert (replay.count(), replay.blocks_lost) == (5, 0)
    [(_, order)] = replay.assign(lent(2, [5]))
    replay.admit(1, admitted(2, "cannot be mapped"))
    assert replay.blocks_lost == 1, "it is in no shard either"


def test_a_block_that_was_read_after_younger_ones_leaves_without_them() -> None:
    """Its items have ids above theirs, and its rows are overwritten before theirs."""
    replay, short = make_replay(), [1] * 10
    replay.open(1)
    read_all(replay, replay.assign(block(1, [19])))
    replay.assign(lent(2, short))
    replay.stored(stored(2, short))
    for number in (3, 4):
        read_all(replay, replay.assign(block(number, short)))
    [again] = replay.admit(1, admitted(2, "is not lent any more"))
    replay.admit(1, admitted(again.block_id))
    for number in range(5, 9):
        read_all(replay, replay.assign(block(number, short)))
    assert replay.count() == 19 + 7 * 10, "the ring is full"
    # it gets more rows, and the 13th block the rows of the second
    for number in range(9, 20):
        read_all(replay, replay.assign(block(number, short)))
        assert replay.count() == {9: 99, 13: 90}.get(number, 100), number


def test_a_lent_block_that_was_stored_while_it_waited_is_read_from_its_shard() -> None:
    replay = make_replay()
    replay.assign(lent(1, [5]))  # before there is a learner
    replay.stored(stored(1, [5]))
    assert blocks_of(replay.state_dict()) == ["data/1.h5"]
    replay.open(1)
    for number in range(2, MAX_UNREAD + 3):
        replay.assign(lent(number, [5]))
    last = MAX_UNREAD + 2
    replay.stored(stored(last, [5]))
    assert sorted(filter(None, blocks_of(replay.state_dict()))) == [
        "data/1.h5", f"data/{last}.h5"
    ], "the others are not in shards yet"  # fmt: skip
    orders = [order for number in range(1, last + 1) for order in replay.admit(1, admitted(number))]
    assert {order.block_id: order.shard.is_shared for order in orders} == {
        last - 1: True, last: False
    }  # fmt: skip


def test_a_dead_learner_s_lent_blocks_are_stored_for_the_others() -> None:
    replay = make_replay()
    replay.open(1, 2)
    for number in range(1, 2 * MAX_UNREAD + 3):
        replay.assign(lent(number, [2]))
    for number in range(1, 2 * MAX_UNREAD + 3):
        replay.stored(stored(number, [2]))
    orders = replay.lose(1)
    assert {rank for rank, _ in orders} <= {2}
    for number in range(1, 2 * MAX_UNREAD + 3):
        for order in replay.admit(2, admitted(number)):
            assert not order.shard.is_shared
    names = [f"data/{number}.h5" for number in range(1, 2 * MAX_UNREAD + 3)]
    assert sorted(filter(None, blocks_of(replay.state_dict()))) == sorted(names)


def test_what_is_read_again_after_a_learner_s_death_is_counted_once() -> None:
    replay = make_replay()
    replay.open(1, 2)
    for number in range(1, 5):
        read_all(replay, replay.assign(block(number, [3, 2])))
    assert replay.items_admitted == 20
    read_all(replay, replay.lose(1))
    assert (replay.count(), replay.items_admitted) == (20, 20)


def test_a_block_of_which_a_piece_was_not_read_is_read_anew_as_a_whole() -> None:
    """All of its items are in the index after a resume."""
    replay = make_replay()
    replay.open(1)
    part = replay.partitions[1]
    take(part, piece(1, [3, 4], 0, 20))
    whole = block(1, [3, 4, 5], tail=0)
    part.stored(BlockStored(1, whole.shard))
    part.offer(piece(1, [5], 7, 12))
    state = replay.state_dict()
    assert [b["path"] for b in state["partitions"]["rank1"]["blocks"]] == [whole.shard.path]
    again = make_replay()
    again.load_state_dict(state, {whole.shard.path: whole})
    [(rank, order)] = again.open(1)
    assert order.block_id == 1
    again.admit(rank, admitted(1))
    assert again.count() == 12
