"""One learner's part of the replay buffer: rows for its blocks, batches for its requests."""

from __future__ import annotations

import numpy as np
import pytest

from fakes.replay import CAPACITY, admitted, block, demand, give, make_partition, serve
from hpcdi.comm.messages import Batches
from hpcdi.errors import BufferContractError
from hpcdi.worker.coordinator.replay import item_rows, ring_rows

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


def test_place_orders_consecutive_rows_of_one_ring() -> None:
    partition = make_partition()
    first, second = partition.place(block(1, [5, 5])), partition.place(block(2, [6]))
    assert (first.first_row, second.first_row) == (0, 12)
    assert first.ring_rows == second.ring_rows == ring_rows(CAPACITY, 20)
    assert (first.block_id, first.buffer_id, first.shard.path) == (1, "buffer", "data/1.h5")


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
    batches = serve(partition, 77)
    assert isinstance(batches, Batches)
    assert (batches.buffer_id, batches.env_steps) == ("buffer", 77)
    assert partition.samples_drawn == 8
    transitions = item_rows(block(1, [8, 8]), 0)[0]
    for array, dtype in [
        (batches.rows, np.int64), (batches.unique_ids, np.int64), (batches.weights, np.float32),
    ]:  # fmt: skip
        assert (array.shape, array.dtype) == ((2, 4), dtype)
        assert array.flags.c_contiguous
    assert np.array_equal(batches.rows, transitions[batches.unique_ids])


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
