"""Blocks, demands and answers of a learner, and the replay parts of rank 0 that take them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdi.comm.messages import (
    AdmitBlock,
    Batches,
    BlockAdmitted,
    BlockReady,
    DataDemand,
)
from hpcdi.config.fields import Parser
from hpcdi.config.replay import AdvancedBufferConfig
from hpcdi.replay.index import ReplayIndex, Slots
from hpcdi.replay.manager import ReplayManager
from hpcdi.replay.monitor import Monitor
from hpcdi.replay.partition import OnPolicyPartition, Partition
from hpcdi.roles.coordinator.groups import EvaluationClock, Group, Groups, Learners
from hpcdi.types import BLOCK_ID_BITS, ITEM_DTYPE, MAIN, SHARED, ColumnSpec, Interval, ShardRef

EVERY_5_S = Interval("seconds", 5.0)
CAPACITY = 100
BLOCK_BYTES = 16 * 20
"""Blocks of up to 20 rows: a row is 16 bytes."""
OF_RANK_3 = 3 << BLOCK_ID_BITS
"""Ids of blocks that rank 3 has collected begin here; those below are of data that is given."""


def block(block_id: int, lengths: Sequence[int], tail: int = 1, version: int = 0) -> BlockReady:
    """The announcement of a block with items of these lengths."""
    items = np.zeros(len(lengths), ITEM_DTYPE)
    items["item_len"] = lengths
    ends = np.cumsum(np.array(lengths, dtype=np.int64) + tail)
    items["item_start"] = np.concatenate([[0], ends[:-1]]) if len(lengths) else 0
    items["policy_version"] = version
    rows = int(ends[-1]) if len(lengths) else 1
    columns = (ColumnSpec("obs", "<f4", (rows, 4), 0), ColumnSpec("item_len", "<i4", (9,), 0))
    shard = ShardRef.of(f"data/{block_id}.h5", 1000, rows, block_id, columns)
    return BlockReady("task", block_id, shard, items, tail, 0.0)


def lent(block_id: int, lengths: list[int]) -> BlockReady:
    """A sealed block in its collector's memory."""
    ready = block(block_id, lengths)
    shard = dataclasses.replace(ready.shard, path=f"{SHARED}/proc/1/fd/{block_id}#7", crc32=0)
    return dataclasses.replace(ready, shard=shard, capacity=shard.rows)


def make_buffer(name: str, **settings: Any) -> ReplayIndex:
    parser = Parser()
    cfg = parser.parse(AdvancedBufferConfig, {"replay_buffer_size": CAPACITY, **settings})
    assert parser.problems == []
    monitor = Monitor(cfg.monitor, None, name)
    return ReplayIndex(Slots(cfg.replay_buffer_size), cfg, monitor, rng=np.random.default_rng(0))


def make_partition(**settings: Any) -> Partition:
    return Partition(make_buffer("rank1", **settings), BLOCK_BYTES)


def admitted(block_id: int, error: str = "") -> BlockAdmitted:
    return BlockAdmitted(block_id, 0.01, error)


def demand(
    batches: int, size: int, ids: Sequence[int] = (), train_iter: int = 0, *, left: int = 0
) -> DataDemand:
    """Of a learner that has got all it has asked for, and has yet to learn from `left` batches."""
    given = np.array(ids, dtype=np.int64), np.full(len(ids), 2.0)
    return DataDemand("task", batches, size, train_iter, *given, left + batches)


def give(partition: Partition, ready: BlockReady) -> AdmitBlock:
    """A block that its learner has read at once."""
    order = partition.place(ready)
    partition.admit(admitted(ready.block_id))
    return order


def serve(
    partition: Partition, env_steps: int = 0, collecting: Sequence[int] = ()
) -> Batches | None:
    """As many batches as can be drawn, as the replay manager does it for a group of one."""
    ready = partition.ready(collecting, partition.newest_version)
    return partition.serve(ready, env_steps) if ready else None


def make_replay(**settings: Any) -> ReplayManager:
    return ReplayManager(lambda name: make_buffer(name, **settings), BLOCK_BYTES)


def read_all(replay: ReplayManager, orders: list[tuple[int, AdmitBlock]]) -> None:
    """Learners read what they are told to, and what they are told to read then."""
    for rank, order in orders:
        more = replay.admit(rank, admitted(order.block_id))
        orders += [(rank, further) for further in more]


def make_group(
    name: str = MAIN, learners: int = 1, every: Interval = EVERY_5_S, **settings: Any
) -> Group:
    """A player's record; its replay buffer is small."""
    return Group(name, make_replay(**settings), EvaluationClock(every), Learners(learners))


def make_groups(learners: int = 1, **settings: Any) -> Groups:
    """Those of a run whose only player is the main one."""
    return Groups([make_group(MAIN, learners, **settings)])


def rollout(rank: int, number: int, version: int, lengths: Sequence[int] = (3, 2)) -> BlockReady:
    return block((rank << BLOCK_ID_BITS) + number, lengths, version=version)


def on_policy_replay(*learners: int) -> ReplayManager:
    replay = ReplayManager(
        lambda name: make_buffer(name, max_staleness=0), BLOCK_BYTES, OnPolicyPartition
    )
    replay.open(*learners)
    return replay


def ask_all(replay: ReplayManager, train_iter: int) -> None:
    for partition in replay.partitions.values():
        partition.demand(demand(1, 0, train_iter=train_iter))
