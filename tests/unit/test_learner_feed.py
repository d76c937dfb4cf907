"""Where batches come from: blocks in, batches out, in one thread against real shards."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fakes.feed_world import RING_ROWS, World
from hpcdi.comm.messages import AdmitBlock, BlockAdmitted, RowsRequest
from hpcdi.errors import BufferContractError, CommError
from hpcdi.roles.learner.feed import Prefetch
from hpcdi.store import shards
from hpcdi.store.layout import RunLayout
from hpcdi.transport.mpi import MpiTransport
from hpcdi.types import BLOCK_ID_BITS, Columns, ColumnSpec, RowView, ShardRef


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# -------------------------------------------------------------------------------- blocks and rows


def test_a_block_is_read_and_told(world: World) -> None:
    told = world.admit(0, 4)
    assert (told.block_id, told.error) == (1, "")
    assert 5.0 <= told.latency_s < 60.0


def test_batches_are_tensors_of_the_rows_that_were_drawn(world: World) -> None:
    world.admit(0, 4)
    world.admit(8, 4)
    world.fill([[1, 8], [2, 2]], ids=[[5, 6], [7, 7]])
    first, second = world.next(), world.next()
    assert first.columns["obs"].tolist() == [[1, 101], [8, 108]]
    assert first.columns["next_obs"].tolist() == [[2, 102], [9, 109]]
    assert first.columns["done"].tolist() == [False, True]
    assert first.columns["weight"].tolist() == [0.5, 0.5]
    dtypes = {name: tensor.dtype for name, tensor in first.columns.items()}
    assert dtypes == {
        "obs": torch.float32, "next_obs": torch.float32, "done": torch.bool,
        "ahead": torch.uint16, "weight": torch.float32,
    }  # fmt: skip
    assert (first.unique_ids.tolist(), first.env_steps) == ([5, 6], 70)
    assert second.columns["obs"].tolist() == [[2, 102]] * 2


def test_rows_are_gathered_before_they_are_overwritten(world: World) -> None:
    """Orders come in this order on one link, and are carried out as they come."""
    world.admit(0, 4)
    world.fill([[0, 1]])
    world.give(world.block(world.rows(50, 4), first_row=0))
    world.fill([[0, 1]])
    assert world.next().columns["obs"].tolist() == [[0, 100], [1, 101]]
    assert world.next().columns["obs"].tolist() == [[50, 150], [51, 151]]


def test_a_batch_before_any_block(world: World) -> None:
    with pytest.raises(BufferContractError, match="before any block was admitted"):
        world.fill([[0, 1]])


def test_a_block_before_any_task(world: World) -> None:
    world.feed.open("")
    with pytest.raises(CommError, match="rank 0 sent data before a learner task"):
        world.admit(0, 4)


# ------------------------------------------------------------------------ blocks that fail


def test_a_torn_block_costs_its_rows_only(world: World) -> None:
    world.admit(0, 4)
    order = world.block(world.rows(4, 4), 4)
    path = world.layout.inside(order.shard.path)
    image = bytearray(path.read_bytes())
    image[order.shard.columns[0].offset] ^= 1
    path.write_bytes(image)
    told = world.give(order)
    assert told.block_id == order.block_id
    assert told.error.startswith(f"{path}: checksum differs")
    world.admit(8, 4)
    world.fill([[0, 8]])
    assert world.next().columns["obs"].tolist() == [[0, 100], [8, 108]]


def test_a_block_that_is_missing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "PAUSES_S", ())
    order = world.block(world.rows(0, 4), 0)
    path = world.layout.inside(order.shard.path)
    path.unlink()
    assert world.give(order).error.startswith(f"{path}: ")
    assert world.admit(0, 4).error == "", "the first block that can be read makes the ring"


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"obs": np.zeros((2, 2), dtype=np.float32)}, r"only one of them has \['ahead', 'done'\]"),
        (
            {
                "obs": np.zeros((2, 3), dtype=np.float32),
                "done": np.zeros(2, dtype=bool),
                "ahead": np.zeros(2, dtype=np.uint16),
            },
            r"column 'obs' is float32\(3,\), not float32\(2,\)",
        ),
    ],
)
def test_a_block_of_another_shape(world: World, columns: Columns, error: str) -> None:
    world.admit(0, 4)
    assert re.search(error, world.give(world.block(columns, 4)).error)


def test_a_block_that_points_out_of_the_run(world: World, tmp_path: Path) -> None:
    order = world.block(world.rows(0, 2), 0)
    foreign = type(order.shard)(**{**vars(order.shard), "path": "../../etc/passwd"})
    told = world.give(type(order)(**{**vars(order), "shard": foreign}))
    assert "leads out of the run folder" in told.error


# --------------------------------------------------------------- blocks whose collectors are asked


class Lending:
    """Collectors 2 and 3 that lend by messages, and a learner that asks them."""

    def __init__(self, root: Path) -> None:
        self.collectors = {rank: MpiTransport(RunLayout(root)) for rank in (2, 3)}
        self.world = World(root, transport=MpiTransport(RunLayout(root)))

    def order(self, rank: int, first_row: int) -> AdmitBlock:
        """Lend rows that shall go to `first_row`; the learner asks for them."""
        columns = self.world.rows(first_row, 4)
        block_id = (rank << BLOCK_ID_BITS) + first_row
        name = self.collectors[rank].lend(f"block {block_id}", columns)
        assert name is not None
        specs = tuple(ColumnSpec(n, c.dtype.str, c.shape, 0) for n, c in columns.items())
        views = (RowView("next_obs", "obs", "ahead"),)
        ref = ShardRef.of(name, 1, 4, 0, specs, views)
        order = AdmitBlock(block_id, first_row, RING_ROWS, ref, time.time())
        self.world.feed.admit(order)
        return order

    def answer(self, number: int) -> None:
        """Let a collector answer the request of this number."""
        rank, request = self.world.asked[number]
        assert isinstance(request, RowsRequest)
        self.world.feed.take(self.collectors[rank].answer(request))

    def told(self) -> list[tuple[int, str]]:
        """Row and error of each block that was reported."""
        found = [m for m in self.world.sent if isinstance(m, BlockAdmitted)]
        return [(m.block_id & ((1 << BLOCK_ID_BITS) - 1), m.error) for m in found]


def test_blocks_are_taken_in_the_order_of_rank_0_however_they_come(tmp_path: Path) -> None:
    """Else the rows of one that comes late would overwrite those that took its place."""
    lending = Lending(tmp_path)
    lending.order(2, 0)
    lending.order(3, 4)
    stored = lending.world.block(lending.world.rows(8, 4), 8)
    lending.world.feed.admit(stored)  # is on disk, and waits for those before it
    assert [rank for rank, _ in lending.world.asked] == [2, 3]
    lending.answer(1)
    assert lending.told() == []
    lending.answer(0)
    assert lending.told() == [(0, ""), (4, ""), (stored.block_id, "")]
    lending.answer(0)  # again
    lending.world.fill([[1, 5]])
    assert lending.world.next().columns["obs"].tolist() == [[1, 101], [5, 105]]


def test_a_collector_that_dies_or_does_not_answer_costs_its_own_blocks(tmp_path: Path) -> None:
    lending = Lending(tmp_path)
    lending.order(2, 0)
    lending.order(3, 4)
    lending.order(3, 8)
    lending.answer(2)
    lending.world.feed.lose(2)
    [(row, error)] = lending.told()
    assert (row, error.endswith("its collector has died")) == (0, True)
    lending.world.feed.look(time.monotonic())
    assert len(lending.told()) == 1, "3 has time"
    lending.world.feed.look(time.monotonic() + 11)
    _, (row, error), last = lending.told()
    assert (row, error.endswith("its collector has not sent it within 10 s")) == (4, True)
    assert last == (8, ""), "which came in time"
    lending.answer(1)  # too late
    assert len(lending.told()) == 3


# ------------------------------------------------------------------------------------- demands


def test_it_asks_for_all_first_and_again_when_a_quarter_is_taken(tmp_path: Path) -> None:
    world = World(tmp_path, prefetch=8)
    world.admit(0, 4)
    for train_iter in range(12):
        world.learn(train_iter)
    assert [demand.batches for demand in world.demands()] == [8, 2, 2, 2, 2, 2]
    assert [demand.train_iter for demand in world.demands()] == [0, 2, 4, 6, 8, 10]
    first = world.demands()[0]
    assert (first.task_id, first.batch_size) == ("task", 2)


@given(st.integers(1, 40), st.integers(1, 60))
def test_never_more_than_prefetch_under_way(prefetch: int, batches: int) -> None:
    """And never so few that the computing thread must wait for a whole round trip."""
    ahead = Prefetch(prefetch)
    for _ in range(batches):
        ahead.under_way += ahead.missing(0.0)
        assert 0 < ahead.under_way <= prefetch
        assert ahead.under_way > prefetch - max(1, prefetch // 4)
        ahead.take(0.0)


@pytest.mark.parametrize(("iteration_s", "expected"), [(0.001, 16), (0.1, 5), (0.4, 2), (60.0, 2)])
def test_batches_that_take_long_are_not_many_under_way(iteration_s: float, expected: int) -> None:
    """At the end of a run all that have come are done still."""
    ahead = Prefetch(16)
    now = 0.0
    for _ in range(40):
        ahead.under_way += ahead.missing(now)
        now += 1000.0  # waiting for data is not computing
        ahead.take(now)
        now += iteration_s
    assert ahead.under_way + ahead.missing(now) == expected


def test_feedback_goes_with_the_next_demand(tmp_path: Path) -> None:
    world = World(tmp_path, prefetch=2)
    world.admit(0, 4)
    world.learn(0).feedback(np.array([0.5, 1.5]))
    second = world.learn(1)
    second.feedback(np.array([2.5, 3.5]))
    second.feedback(np.array([4.5, 5.5]))  # a second epoch over the same batch
    world.learn(2)
    world.learn(3)
    first, *others = world.demands()
    assert (first.unique_ids.size, first.unique_ids.dtype) == (0, np.int64)
    assert [demand.priorities.tolist() for demand in others] == [
        [0.5, 1.5], [2.5, 3.5, 4.5, 5.5], []
    ]  # fmt: skip
    assert [demand.unique_ids.tolist() for demand in others] == [[0, 1], [0, 1, 0, 1], []]
