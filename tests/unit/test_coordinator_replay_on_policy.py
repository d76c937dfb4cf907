"""On-policy over ranks: which items make a batch, when it goes, who waits for whom meanwhile."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.collector_channels import FOREVER_S, Counter, Learner, policy_update, values_of
from fakes.collectors import Port, collector, do, registered_probes
from fakes.feed_world import World
from fakes.replay import (
    BLOCK_BYTES,
    admitted,
    ask_all,
    demand,
    make_buffer,
    on_policy_replay,
    read_all,
    rollout,
    serve,
)
from fakes.scheduler import EVERY_S, Run
from fakes.worker_world import COLLECTOR, LEARNER, Script, end, experiment
from hpcdi.comm.messages import (
    Batches,
    BlockReady,
    CloseTask,
    DataDemand,
    LearnTask,
)
from hpcdi.comm.pump import LocalPump
from hpcdi.config.algorithms import IMPALAConfig, PPOConfig
from hpcdi.config.compiled import compile_config
from hpcdi.config.policy import OtherConfig, PolicyConfig
from hpcdi.config.replay import AdvancedBufferConfig
from hpcdi.errors import ConfigError
from hpcdi.replay.manager import ReplayManager, create_replay
from hpcdi.replay.partition import (
    AsynchronousPartition,
    OnPolicyPartition,
    Partition,
    item_rows,
    on_policy_buffer,
)
from hpcdi.roles.collector import base_parallel_collector as parallel
from hpcdi.roles.collector.base_parallel_collector import LOST_ROLLOUT_S, StalenessGate
from hpcdi.roles.collector.channels import DataPublisher
from hpcdi.roles.collector.mpi_fs_collector import MPIFileSystemCollector
from hpcdi.roles.coordinator.workers import Order
from hpcdi.roles.learner.role import Learner as LearnerRole
from hpcdi.store.layout import RunLayout
from hpcdi.types import BLOCK_ID_BITS

A, B = 2, 3  # collector ranks
PPO = {
    "type": "ppo", "model": {"obs_shape": 2, "action_shape": 2, "action_space": "discrete"},
    "collect": {"n_sample": 5}, "learn": {"batch_size": 4},
}  # fmt: skip


class Part:
    """A partition whose learner reads blocks at once, and the rows of what it was given."""

    def __init__(
        self, kind: type[OnPolicyPartition] = OnPolicyPartition, *, bound: int = 0
    ) -> None:
        self.partition = kind(make_buffer("rank1", max_staleness=bound), BLOCK_BYTES)

    def give(self, ready: BlockReady, error: str = "") -> list[int]:
        (order,) = self.partition.offer(ready)
        self.partition.admit(admitted(ready.block_id, error))
        return [int(row) for row in item_rows(ready, order.first_row)[0]]

    def ask(self, train_iter: int) -> None:
        self.partition.demand(demand(1, 0, train_iter=train_iter))

    def serve(self, *collecting: int) -> list[int] | None:
        """Rows of the batch."""
        batches = serve(self.partition, 77, collecting)
        if batches is None:
            return None
        assert isinstance(batches, Batches)
        assert (len(batches.rows), batches.env_steps) == (1, 77)
        assert batches.weights.tolist() == [[1.0] * batches.rows.shape[1]]
        assert len(set(batches.unique_ids[0].tolist())) == batches.rows.shape[1]
        rows: list[int] = batches.rows[0].tolist()
        assert rows == sorted(rows), "sequences of a memory are whole"
        return rows


# ------------------------------------------------------------------------------------ the partition


def test_a_batch_is_all_that_all_collecting_ranks_have_given() -> None:
    part = Part()
    part.ask(0)
    assert part.serve(A, B) is None
    rows = part.give(rollout(A, 1, 0))
    assert part.serve(A, B) is None
    rows += part.give(rollout(B, 1, 0, [1, 4]))
    assert part.serve(A, B) == rows == [0, 1, 2, 4, 5, 7, 9, 10, 11, 12]
    assert part.partition.samples_drawn == 10
    assert part.partition.buffer.count() == 0


def test_each_item_is_drawn_once() -> None:
    part = Part()
    for version in range(20):
        rows = part.give(rollout(A, version, version)) + part.give(rollout(B, version, version))
        assert part.serve(A, B) is None, "nobody asks"
        part.ask(version)
        assert part.serve(A, B) == sorted(rows)
        assert part.serve(A, B) is None
        assert part.partition.buffer.count() == 0


@pytest.mark.parametrize("kind", [OnPolicyPartition, AsynchronousPartition])
def test_where_rollouts_overflow_the_buffer_whole_pieces_of_trajectories_go(
    kind: type[OnPolicyPartition],
) -> None:
    part = Part(kind)
    part.ask(0)
    size = part.partition.buffer.capacity
    lengths = [7, 4, 6, 5, 9, 7]
    ready = rollout(A, 0, 0, lengths)
    for number in range(3 * size // sum(lengths)):
        part.give(dataclasses.replace(ready, block_id=ready.block_id + number))
        # items that can be drawn: the newest pieces that fit whole
        pieces = np.cumsum((lengths * (number + 1))[::-1])
        assert part.partition.buffer.count() == pieces[pieces <= size].max()
    assert len(part.serve(A) or ()) == pieces[pieces <= size].max()
    assert part.partition.buffer.count() == 0


def test_nothing_goes_while_nobody_collects() -> None:
    part = Part()
    part.ask(0)
    rows = part.give(rollout(A, 1, 0))
    assert part.serve() is None
    assert part.serve(A) == rows


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_what_an_older_policy_made_is_dropped(bound: int) -> None:
    part = Part(bound=bound)
    stale = part.give(rollout(A, 1, 9 - bound))
    rows = part.give(rollout(A, 2, 10 - bound))
    part.ask(10)
    assert part.serve(A) == rows
    assert not set(stale) & set(rows)
    assert part.partition.buffer.count() == 0


def test_a_rank_whose_piece_is_too_old_is_waited_for() -> None:
    part = Part()
    part.give(rollout(A, 1, 4))
    rows = part.give(rollout(B, 1, 5))
    part.ask(5)
    assert part.serve(A, B) is None
    rows += part.give(rollout(A, 2, 5))
    assert part.serve(A, B) == rows


def test_nothing_is_drawn_of_stale_pieces_alone() -> None:
    part = Part()
    part.give(rollout(A, 1, 4))
    part.ask(5)
    assert part.serve(A) is None
    assert part.partition.blocked == "learner waits for the collectors' rollouts"


def test_several_pieces_of_a_rank_go_together() -> None:
    """A block that is too large for one, or a piece that was taken for lost."""
    part = Part()
    part.ask(0)
    rows = part.give(rollout(A, 1, 0)) + part.give(rollout(A, 2, 0, [5]))
    assert part.serve(A, B) is None
    rows += part.give(rollout(B, 1, 0))
    assert part.serve(A, B) == rows


def test_with_a_bound_of_one_each_batch_still_has_a_piece_of_every_rank() -> None:
    """Each rank gives two pieces by a policy; one that has been learnt from counts no more."""
    part = Part(bound=1)
    part.ask(0)
    first = part.give(rollout(A, 1, 0)) + part.give(rollout(B, 1, 0))
    assert part.serve(A, B) == first
    part.ask(1)
    second = part.give(rollout(A, 2, 0))
    assert part.serve(A, B) is None
    second += part.give(rollout(B, 2, 0))
    assert part.serve(A, B) == second
    part.ask(2)
    part.give(rollout(A, 3, 0))  # two iterations old
    assert part.serve(A, B) is None
    third = part.give(rollout(A, 4, 1)) + part.give(rollout(B, 3, 2))
    assert part.serve(A, B) == third


def test_a_rank_that_stops_collecting_is_not_waited_for() -> None:
    part = Part()
    part.ask(0)
    rows = part.give(rollout(A, 1, 0))
    assert part.serve(A, B) is None
    assert part.serve(A) == rows


def test_what_a_rank_gave_before_it_stopped_is_learnt_from() -> None:
    part = Part()
    part.ask(0)
    rows = part.give(rollout(B, 1, 0, [1])) + part.give(rollout(A, 1, 0))
    assert part.serve(A) == rows


def test_a_late_piece_of_a_rank_that_stopped_is_dropped_or_learnt_from_by_its_age() -> None:
    for bound, expected in ((0, False), (1, True)):
        part = Part(bound=bound)
        part.ask(0)
        part.give(rollout(A, 1, 0))
        assert part.serve(A) is not None
        late = part.give(rollout(B, 1, 0))
        rows = part.give(rollout(A, 2, 1))
        part.ask(1)
        assert part.serve(A) == (late + rows if expected else rows)


def test_a_lost_block_is_waited_for_until_another_comes() -> None:
    part = Part()
    part.ask(0)
    rows = part.give(rollout(B, 1, 0))
    part.give(rollout(A, 1, 0), error="torn")
    assert part.serve(A, B) is None
    rows += part.give(rollout(A, 2, 0))
    assert part.serve(A, B) == rows


def test_an_empty_block_is_no_piece() -> None:
    part = Part()
    part.ask(0)
    part.give(rollout(A, 1, 0, []))
    assert part.serve(A) is None


def test_a_piece_that_the_learner_has_not_read_is_no_piece_yet() -> None:
    part = Part()
    part.ask(0)
    ready = rollout(A, 1, 0)
    part.partition.offer(ready)
    assert part.serve(A) is None
    part.partition.admit(admitted(ready.block_id))
    assert part.serve(A) == [0, 1, 2, 4, 5]


def test_rollouts_from_before_a_restart_are_freed() -> None:
    """Nobody learns from them any more; their shards stayed in the run folder for ever."""
    managers = [ReplayManager(make_buffer, BLOCK_BYTES, OnPolicyPartition) for _ in range(2)]
    before, after = managers
    before.open(1)
    ready = rollout(A, 1, 0)
    before.assign(ready)
    after.load_state_dict(before.state_dict(), {ready.shard.path: ready})
    assert after.open(1) == []
    assert after.take_freed() == [ready.shard.path]


def test_rollouts_of_learners_that_have_all_died_are_freed() -> None:
    """They stayed on disk, named by each snapshot, until a resume threw them away."""
    replay = ReplayManager(make_buffer, BLOCK_BYTES, OnPolicyPartition)
    replay.open(1)
    ready = rollout(A, 1, 0)
    replay.assign(ready)
    assert replay.lose(1) == []
    assert replay.take_freed() == [ready.shard.path]


def test_shards_that_were_learnt_from_are_freed_when_their_rows_are_needed() -> None:
    part = Part()
    freed: list[str] = []
    for number in range(40):
        part.give(rollout(A, number, number, [17]))
        part.ask(number)
        assert part.serve(A) is not None
        freed += part.partition.take_freed()
    assert freed == [f"data/{(A << BLOCK_ID_BITS) + k}.h5" for k in range(len(freed))]
    assert len(freed) > 20


def test_shards_that_a_dead_learner_has_learnt_from_are_freed() -> None:
    replay = on_policy_replay(1, 2)
    for rank in (A, B):
        read_all(replay, replay.assign(rollout(rank, 1, 0)))
    ask_all(replay, 0)
    assert len(replay.serve(0, (A, B))) == 2
    assert replay.lose(1) == []
    assert replay.take_freed() == [rollout(A, 1, 0).shard.path]


def test_rollouts_that_were_dropped_unread_are_no_load() -> None:
    """A learner that had once read slowly got none any more, and all others waited for it."""
    part = AsynchronousPartition(make_buffer("rank1"), BLOCK_BYTES)
    ready = [rollout(A, number, 0) for number in range(39)]
    orders = [order for each in ready for order in part.offer(each)]
    assert part.backlog.dropped == 15
    assert part.load == 39 - 15, "4 that are read, and 20 that fit into the buffer"
    for order in orders:
        part.admit(admitted(order.block_id))
        orders += part.orders()
    assert part.load == len(orders) == 39 - 15
    part.demand(demand(1, 0))
    assert serve(part) is not None
    assert part.load == 0


# ------------------------------------------------------------------------------------- its settings


@pytest.mark.parametrize(
    ("given", "bound", "size"),
    [
        ({}, 0, 3 * 2 * 40), ({"max_staleness": 0}, 0, 3 * 2 * 40),
        ({"max_staleness": 1}, 1, 4 * 2 * 40), ({"max_staleness": 5}, 5, 8 * 2 * 40),
        ({"replay_buffer_size": 9000}, 0, 9000),
    ],
)  # fmt: skip
def test_the_buffer_has_room_for_all_pieces_under_way(
    given: dict[str, Any], bound: int, size: int
) -> None:
    cfg = AdvancedBufferConfig(**{"replay_buffer_size": 10, "min_fill": 700, **given})
    made = on_policy_buffer(cfg, rollouts=2, rollout_rows=40)
    assert (made.max_staleness, made.replay_buffer_size, made.min_fill) == (bound, size, 1)
    assert cfg.staleness_bound == made.staleness_bound == bound


def test_no_limit_of_a_replay_buffer_holds_a_batch_back() -> None:
    """A batch is all that there is: a rule that wants more than it is would wait for ever."""
    control = {
        "sample_min_limit_ratio": 2.0,
        "push_sample_rate_limit": {"min": 3.0, "max": 3.0},
    }
    policy = {"other": {"replay_buffer": {"thruput_controller": control}}}
    replay = create_replay(experiment(policy={**PPO, **policy}))
    assert replay.open(1) == []
    for version in range(3):
        read_all(replay, replay.assign(rollout(A, version, version)))
        replay.partitions[1].demand(demand(1, 0, train_iter=version))
        batches = serve(replay.partitions[1], 0, [A])
        assert batches is not None
        assert batches.rows.shape == (1, 5)


def test_the_manager_of_an_experiment_is_of_its_kind() -> None:
    on = create_replay(experiment(policy=PPO), collectors=2)
    off = create_replay(experiment(), collectors=2)
    on.open(1)
    off.open(1)
    assert isinstance(on.partitions[1], OnPolicyPartition)
    assert type(off.partitions[1]) is Partition
    small = {**PPO, "other": {"replay_buffer": {"replay_buffer_size": 1}}}
    tight = create_replay(experiment(policy=small), collectors=2)
    tight.open(1)
    assert tight.capacity() == 3 * 3 * 5 * 2, "3 rounds of 3 ranks, of 5 steps of 2 environments"


def test_where_staleness_is_corrected_a_batch_is_all_that_has_come() -> None:
    """Of any version, of any rank, in order, each once; requests ahead are kept."""
    impala = {**PPO, "type": "impala", "learn": {"batch_size": 8}}
    impala["collect"] = {"n_sample": 5, "unroll_len": 5}
    replay = create_replay(experiment(policy=impala), collectors=2)
    replay.open(1)
    part = replay.partitions[1]
    assert isinstance(part, AsynchronousPartition)
    part.demand(demand(2, 0, train_iter=50))
    assert serve(part, 0, [A, B]) is None
    read_all(replay, replay.assign(rollout(A, 1, 3)))
    assert serve(part, 0, [A, B]) is None, "5 transitions are fewer than batch_size"
    assert "5 items" in part.blocked
    read_all(replay, replay.assign(rollout(A, 2, 50)))
    batch = serve(part, 0, [A, B])
    assert batch is not None
    assert batch.rows.tolist() == [[0, 1, 2, 4, 5, 7, 8, 9, 11, 12]]
    assert part.waits, "it has asked for two"
    assert serve(part, 0, [A, B]) is None
    read_all(replay, replay.assign(rollout(B, 1, 51, [8])))
    batch = serve(part, 0, [A, B])
    assert batch is not None
    assert batch.rows.tolist() == [list(range(14, 22))]
    assert not part.waits


# ------------------------------------------------------------------------------------ the scheduler


def on_policy_run() -> Run:
    """The learner is rank 1, collectors are 2 and 3; blocks are read when the test says so."""
    run = Run(ready=False)
    run.main.replay = ReplayManager(
        lambda name: make_buffer(name, max_staleness=0), BLOCK_BYTES, OnPolicyPartition
    )
    for rank in run.ranks:
        run.ready(rank)
    return run


def hear_rollout(run: Run, ready: BlockReady, now: float = 0.0) -> list[Order]:
    """Orders when the learner has read it."""
    run.hear(ready.block_id >> BLOCK_ID_BITS, ready, now)
    return run.hear(1, admitted(ready.block_id), now)


def ask(run: Run, train_iter: int) -> list[Order]:
    none = np.zeros(0)
    task_id = run.tasks[1].task_id
    message = DataDemand(task_id, 1, 0, train_iter, none.astype(np.int64), none, 1)
    return run.hear(1, message)


def rows_of(orders: list[Order]) -> list[list[int]]:
    return [
        sorted(order.message.rows[0].tolist())
        for order in orders
        if isinstance(order.message, Batches)
    ]


def test_the_last_piece_lets_the_batch_go_at_once() -> None:
    run = on_policy_run()
    assert ask(run, 0) == []
    assert hear_rollout(run, rollout(2, 1, 0)) == []
    assert rows_of(hear_rollout(run, rollout(3, 1, 0))) == [[0, 1, 2, 4, 5, 7, 8, 9, 11, 12]]


def test_a_request_that_comes_last_is_served_at_once() -> None:
    run = on_policy_run()
    hear_rollout(run, rollout(2, 1, 0))
    hear_rollout(run, rollout(3, 1, 0))
    assert rows_of(ask(run, 0)) == [[0, 1, 2, 4, 5, 7, 8, 9, 11, 12]]


def test_an_evaluation_that_takes_a_collector_away_lets_the_batch_go() -> None:
    run = on_policy_run()
    run.learn_info(1)
    ask(run, 1)
    hear_rollout(run, rollout(3, 1, 1))
    assert run.tick(EVERY_S - 0.1) == []
    orders = run.tick(EVERY_S)
    assert [order for order in orders if order.rank == 2] == [
        Order(2, CloseTask(run.tasks[2].task_id))
    ]
    assert rows_of(orders) == [[0, 1, 2, 4, 5]]
    # while it evaluates, the other goes on alone
    assert [order.rank for order in run.result(2, EVERY_S)] == [2]
    evaluation: Any = run.tasks[2]
    assert evaluation.eval_flag
    ask(run, 2)
    assert rows_of(hear_rollout(run, rollout(3, 2, 2))) == [[7, 8, 9, 11, 12]]
    # when it collects again, it is waited for again
    run.result(2, EVERY_S + 1, returns=(1.0,))
    again: Any = run.tasks[2]
    assert not again.eval_flag
    ask(run, 3)
    assert rows_of(hear_rollout(run, rollout(3, 3, 3))) == []
    assert run.tick(EVERY_S + 1) == []
    assert len(rows_of(hear_rollout(run, rollout(2, 1, 3)))) == 1


def test_while_the_only_collector_evaluates_nothing_is_served() -> None:
    run = Run(collectors=1, ready=False)
    run.main.replay = on_policy_run().main.replay
    for rank in run.ranks:
        run.ready(rank)
    run.learn_info(1)
    ask(run, 1)
    assert run.tick(EVERY_S) == [Order(2, CloseTask(run.tasks[2].task_id))]
    assert hear_rollout(run, rollout(2, 1, 1, [2])) == []  # what was open when it was told to end
    run.result(2, EVERY_S)
    assert run.tick(EVERY_S + 3) == []
    assert run.result(2, EVERY_S + 4, returns=(1.0,)) == [Order(2, run.tasks[2])]
    assert rows_of(run.tick(EVERY_S + 4)) == [[0, 1]], "it collects again: its piece may go"


# ---------------------------------------------------------------------------------- the collector


def gate(
    *, on_policy: bool = True, bound: float = math.inf, corrects: bool = False
) -> StalenessGate:
    cls: type[PolicyConfig] = IMPALAConfig if corrects else PPOConfig
    other = OtherConfig(replay_buffer=AdvancedBufferConfig(max_staleness=bound))
    return StalenessGate(cls(on_policy=on_policy, other=other), now=100.0, patience_s=300.0)


def test_who_corrects_for_staleness_never_waits_for_a_policy() -> None:
    free = gate(corrects=True)
    for _ in range(100):
        free.sent_rollout(3)
    assert free.may_act(3, 100.0)
    assert free.rollout_is_old(1e9)


def test_slow_environments_give_whole_pieces_on_policy() -> None:
    """Else a batch would be smaller than was asked for, and advantages cut short."""
    assert not gate().rollout_is_old(1e9)
    assert gate(on_policy=False).rollout_is_old(1e9)
    assert not gate(on_policy=False).rollout_is_old(101.0)


@pytest.mark.parametrize(
    ("on_policy", "bound", "pieces", "expected"),
    [
        (True, math.inf, 0, True), (True, math.inf, 1, False), (True, 0, 1, False),
        (True, 1, 1, True), (True, 1, 2, False), (True, 3, 3, True), (True, 3, 4, False),
        (False, math.inf, 50, True), (False, 0, 50, True),
    ],
)  # fmt: skip
def test_a_policy_makes_one_piece_more_than_the_bound(
    on_policy: bool, bound: float, pieces: int, expected: bool
) -> None:
    made = gate(on_policy=on_policy, bound=bound)
    for _ in range(pieces):
        assert made.may_act(7, 100.0)
        made.sent_rollout(7)
    assert made.may_act(7, 100.0) is expected
    assert made.may_act(8, 100.0), "a newer policy may always act"


def test_a_piece_that_was_lost_is_given_again() -> None:
    made = gate()
    made.sent_rollout(7)
    assert not made.may_act(7, 100.0 + LOST_ROLLOUT_S - 0.1)
    assert made.may_act(7, 100.0 + LOST_ROLLOUT_S)
    made.cut_at = 100.0 + LOST_ROLLOUT_S  # it has given one more
    made.sent_rollout(7)
    assert not made.may_act(7, 101.0 + LOST_ROLLOUT_S)
    made.sent_rollout(8)
    assert not made.may_act(8, 101.0 + LOST_ROLLOUT_S)
    assert made.may_act(9, 101.0 + LOST_ROLLOUT_S)


@pytest.mark.parametrize(
    ("waited_s", "patience_s"), [(1.0, LOST_ROLLOUT_S), (20.0, 60.0), (250.0, 150.0)]
)
def test_where_learning_takes_long_a_piece_is_lost_later(
    waited_s: float, patience_s: float
) -> None:
    made = gate()
    made.sent_rollout(7)  # at 100 s
    made.cut_at = 100.0 + waited_s
    assert made.may_act(8, made.cut_at)
    made.sent_rollout(8)
    assert not made.may_act(8, made.cut_at + patience_s - 0.1)
    assert made.may_act(8, made.cut_at + patience_s)


class Clock:
    """Stands still but for those who wait."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def wait_s(self, seconds: float) -> None:
        self.now += max(seconds, 0.5)


def test_the_wait_for_a_policy_does_not_cut_the_next_piece_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A learner may take longer over an update than a piece may wait."""
    clock = Clock()
    monkeypatch.setattr(parallel, "time", clock)
    monkeypatch.setattr(parallel, "wait_s", clock.wait_s)
    wait = [None] * 50  # of half a second each
    with registered_probes():
        port = Port(versions=[0, *wait, 1, *wait, 2])
        with collector("test_columnar", port, collector_episode_num=30) as made:
            made._gate = gate()
            made._gate._max_rollouts = 1
            monkeypatch.setattr(parallel, "LOST_ROLLOUT_S", math.inf)
            port.after_segment = lambda: made.stop() if len(port.segments) == 3 else None
            do(made, port, "task")
    lengths = [int(segment.items["item_len"].sum()) for segment in port.segments]
    assert len(set(lengths)) == 1, lengths
    assert [int(s.items["policy_version"][0]) for s in port.segments] == [0, 1, 2]


def test_one_policy_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(parallel, "time", clock)
    monkeypatch.setattr(parallel, "wait_s", clock.wait_s)
    with registered_probes():
        port = Port(versions=[0, None, None, 1, None, 2, *[None] * 60, 3])
        with collector("test_columnar", port, collector_episode_num=100) as made:
            made._gate._max_rollouts = 1
            port.after_segment = lambda: made.stop() if len(port.segments) == 5 else None
            do(made, port, "task")
    versions = [int(segment.items["policy_version"][0]) for segment in port.segments]
    assert versions == [0, 1, 2, 2, 2], "ten seconds without one, twice: a rollout may be lost"


def ppo_publisher(root: Path, announced: list[BlockReady]) -> DataPublisher:
    storage = {"seal_seconds": FOREVER_S, "fsync": False, "block_bytes": 4096}
    config = experiment(
        policy={**PPO, "collect": {"n_sample": 100}}, system={"storage": storage},
        env={"collector_env_num": 8},
    )  # fmt: skip
    made = DataPublisher(config, RunLayout(root), 3, announced.append)
    made.begin("task")
    return made


def test_a_piece_is_one_block_and_goes_at_once(tmp_path: Path) -> None:
    """However large: 1,600 rows, each a transition and its bootstrap row, are the most."""
    announced: list[BlockReady] = []
    counter = Counter()
    with ppo_publisher(tmp_path, announced) as made:
        for items in (1, 7, 400):
            made.put(counter.segment(items))
            assert made._builder.is_empty
    assert [len(ready.items) for ready in announced] == [1, 7, 400]
    assert values_of(tmp_path, announced) == list(range(counter.made))


def test_policies_are_asked_for_without_a_pause_where_data_are_used_once(tmp_path: Path) -> None:
    for policy, every_s in ((PPO, 0.0), ({"collect": {"collector": {}}}, 3.0)):
        script = Script(tmp_path, experiment(policy=policy), COLLECTOR)
        worker = MPIFileSystemCollector({}, script.context)
        assert worker._policies["main"]._every_s == every_s
        worker._data.close()
        end(worker)


def test_a_subscriber_without_a_pause_requests_again_at_once() -> None:
    learner = Learner(every_s=0.0)
    learner.policies.newer_than(-1)
    learner.policies.take(learner.asked[-1], policy_update(1))
    assert learner.policies.newer_than(1) is None
    assert len(learner.requests) == 2


# ------------------------------------------------------------------------------------- the learner


def test_the_feed_asks_only_when_it_has_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, prefetch=1, batch_size=0)
    world.admit(0, 4)
    world.feed.ask(3, 0.0)
    world.feed.ask(3, 0.0)
    assert [(d.batches, d.batch_size, d.train_iter) for d in world.demands()] == [(1, 0, 3)]
    world.fill([[0, 1, 2]])
    assert len(world.next().unique_ids) == 3
    assert len(world.demands()) == 1
    world.feed.ask(4, 0.0)
    assert [d.train_iter for d in world.demands()] == [3, 4]


@pytest.mark.parametrize(("policy", "size", "ahead"), [(PPO, 0, 1), ({}, 64, 9)])
def test_a_learner_asks_for_one_batch_of_everything(
    tmp_path: Path, policy: dict[str, Any], size: int, ahead: int
) -> None:
    policy = policy or {"learn": {"batch_size": 64}}
    script = Script(tmp_path, experiment(policy=policy, system={"prefetch": 9}), LEARNER)
    learner = LearnerRole(dataclasses.replace(script.context, make_pump=LocalPump))
    script.tell(LearnTask("task"))
    learner.turn(0.0)
    script.look()
    learner.close()
    (demand,) = script.all_of(DataDemand)
    assert (demand.batches, demand.batch_size) == (ahead, size)


# ---------------------------------------------------------------------------------- configurations


@pytest.mark.parametrize(
    ("policy", "path", "message"),
    [
        ({"type": "ppo", "on_policy": False}, "policy.on_policy", "leave this true"),
        ({"type": "dqn", "on_policy": True}, "policy.on_policy", "leave this false"),
        ({"type": "ppo", "priority": True}, "policy.priority", "PPO uses all its data alike"),
        ({"type": "ppo", "nstep": 3}, "policy.nstep", "is not PPO's"),
    ],
)
def test_what_contradicts_the_algorithm_is_refused(
    policy: dict[str, Any], path: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        compile_config({"env": {"env_id": "CartPole-v1"}, "policy": policy})
    (problem,) = caught.value.problems
    assert problem.path == path
    assert message in problem.message


def test_rules_of_a_replay_buffer_do_not_concern_data_that_are_used_once() -> None:
    """A minibatch of PPO may be larger than the buffer's setting, which is raised to what fits."""
    buffer = {"replay_buffer_size": 1}
    cfg = {"env": {"env_id": "CartPole-v1"}, "policy": {"other": {"replay_buffer": buffer}}}
    assert compile_config({**cfg, "policy": {**cfg["policy"], "type": "ppo"}}).config.policy
    with pytest.raises(ConfigError) as caught:
        compile_config(cfg)
    assert {problem.path for problem in caught.value.problems} == {
        "policy.learn.batch_size", "policy.other.replay_buffer.replay_buffer_size",
    }  # fmt: skip
