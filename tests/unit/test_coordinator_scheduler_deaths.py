"""What rank 0 does when a worker has died. Rank 1 learns in a `Run`; 1, 2 and 3 in a `Group`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from fakes.replay import CAPACITY, admitted, block, demand, make_replay, read_all, rollout
from fakes.scheduler import COLLECTORS, EVERY_S, LEARNERS, Group, Run, evaluates, reason_of
from hpcdi.comm.messages import (
    BlockAdmitted,
    BlockStored,
    CloseTask,
    DataDemand,
    Goodbye,
    LearnResult,
    Leave,
    RankLost,
    Regroup,
    SnapshotPart,
    Stop,
    TakeSnapshot,
    TaskReturned,
    WorkerFailed,
)
from hpcdi.config.schema import SurvivalConfig
from hpcdi.errors import EXIT_REQUEUE
from hpcdi.roles.coordinator.scheduler import Outcome, Phase
from hpcdi.roles.coordinator.snapshots import SnapshotClock
from hpcdi.roles.coordinator.workers import Order
from hpcdi.types import SHARED

FAILED = WorkerFailed("collector", "host", "ValueError: no", "Traceback", 1)


def run_of(collectors: int = 3, **rules: str) -> Run:
    run = Run(collectors)
    faults = run.scheduler.workers.faults
    faults.rules, faults.is_possible = SurvivalConfig(**rules), True
    return run


def starting(*come: int) -> Run:
    """A run of a learner and three collectors, of which these ranks have come."""
    run = Run(3, ready=False)
    run.scheduler.workers.faults.is_possible = True
    for rank in come:
        run.ready(rank)
    return run


# --------------------------------------------------------------------------------------- collectors


def test_the_run_goes_on_without_a_collector() -> None:
    run = run_of()
    run.progress(3, 10)
    assert run.hear(3, RankLost()) == []
    assert run.scheduler.phase is Phase.RUNNING
    assert run.scheduler.workers.policy_versions == {}
    assert run.scheduler.workers.not_ended == [1, 2, 4]
    assert run.scheduler.workers.lost == {3: "collector"}
    run.result(2)
    assert run.tasks[2] is not None  # the others get tasks as before
    assert all(order.rank != 3 for order in run.tick(EVERY_S))


def test_a_death_that_is_told_twice_is_one() -> None:
    """By MPI, and by a look at the processes of rank 0's host."""
    run = run_of()
    run.hear(3, RankLost())
    assert run.hear(3, RankLost()) == []
    assert run.scheduler.phase is Phase.RUNNING
    assert run.scheduler.workers.lost == {3: "collector"}


def test_what_comes_after_a_death_counts_no_more() -> None:
    """The blocks that are in shards were taken over with it; others do its task."""
    run = run_of()
    run.hear(3, RankLost())
    before = run.scheduler.groups.env_steps
    run.progress(3, 10)
    run.published(3, 10, 1)
    run.ready(3)
    assert run.scheduler.groups.env_steps == before
    assert run.scheduler.workers.lost == {3: "collector"}


def test_an_evaluation_is_given_to_another_at_once() -> None:
    run = run_of()
    run.learn_info(10)
    run.tick(EVERY_S)
    run.result(2, EVERY_S)
    task: Any = run.tasks[2]
    assert task.eval_flag
    run.hear(2, RankLost(), EVERY_S + 0.1)
    run.tick(EVERY_S + 0.2)  # a collector is told to make room
    orders = run.result(3, EVERY_S + 0.3)
    assert [order.rank for order in orders if evaluates(order)] == [3]


def test_the_space_for_collect_tasks_shrinks_with_the_collectors() -> None:
    run = Run(3, collector_task_space=3)
    run.hear(4, RankLost())
    run.result(2)
    given = run.scheduler.commander.get_collector_task(0.0)
    assert given is None  # two tasks for two collectors


def test_the_last_collector_ends_the_run() -> None:
    run = run_of(2)
    run.hear(2, RankLost())
    orders = run.hear(3, RankLost())
    assert [order for order in orders if isinstance(order.message, Stop)]
    assert reason_of(run) == (
        "rank 3 (collector, host host) has died, and the run cannot go on without it: "
        "it was the last collector"
    )


def test_the_first_collector_is_not_the_last_while_others_have_not_come_yet() -> None:
    """On a busy node one may collect, and die, before the others have started."""
    run = starting(1, 2)
    run.hear(2, RankLost())
    assert run.scheduler.phase is Phase.STARTING
    assert [order.rank for order in run.ready(3)] == [3], "it works from now on"
    run.hear(3, TaskReturned(run.tasks[3].task_id, "no environment"))
    assert run.scheduler.phase is Phase.STARTING
    run.ready(4)
    assert run.scheduler.phase is Phase.RUNNING
    run.hear(4, RankLost())
    assert "it was the last collector" in reason_of(run)


def test_the_run_goes_on_without_a_collector_that_has_not_come() -> None:
    """The learner has: so the one that is missing collects, and others are here."""
    run = starting(1, 2, 3)
    run.hear(4, RankLost())
    assert run.scheduler.phase is Phase.RUNNING
    assert run.scheduler.workers.lost == {4: "collector"}
    run.hear(3, RankLost())
    assert run.scheduler.phase is Phase.RUNNING
    run.hear(2, RankLost())
    assert "it was the last collector" in reason_of(run)


def test_a_rank_that_has_not_come_may_be_the_learner() -> None:
    run = starting(2, 3)
    run.hear(1, RankLost())
    assert "it had not reported yet" in reason_of(run)


def test_the_learner_that_is_expected_is_no_collector() -> None:
    run = Run(1, ready=False)
    run.ready(2)
    run.hear(2, RankLost())
    assert "it was the last collector" in reason_of(run)


def test_who_does_not_want_it_has_the_run_end() -> None:
    run = run_of(on_collector_death="abort")
    run.hear(3, RankLost())
    assert "on_collector_death is 'abort'" in reason_of(run)


def test_nobody_waits_for_the_goodbye_of_the_dead() -> None:
    run = run_of(2)
    run.hear(2, RankLost())
    run.learn_info(10**9)
    run.scheduler.stop(Outcome("done", "enough", 0), 0.0)
    run.hear(1, Goodbye())
    assert not run.scheduler.finished
    run.hear(3, RankLost())  # dies as the run ends
    assert run.scheduler.finished


@pytest.mark.parametrize("is_possible", [True, False])
def test_one_that_raises_dies_alone_where_that_is_wanted_and_possible(is_possible: bool) -> None:
    run = run_of(on_worker_error="continue")
    run.scheduler.workers.faults.is_possible = is_possible
    orders = run.hear(3, FAILED)
    alone = Order(3, Leave(1, alone=True))
    assert (orders == [alone]) is is_possible
    assert run.scheduler.is_on is is_possible


def test_one_that_raises_ends_the_run_where_nothing_else_is_said() -> None:
    run = run_of()
    run.hear(3, FAILED)
    assert reason_of(run) == "ValueError: no"


# ----------------------------------------------------------------------------------------- learners


def group_of(**settings: Any) -> Group:
    group = Group()
    group.scheduler.workers.faults.is_possible = True
    for name, value in settings.items():
        setattr(group.scheduler.workers.faults, name, value)
    return group


def test_the_other_learners_form_their_group_anew() -> None:
    group = group_of()
    group.task()
    group.ready(*COLLECTORS)
    orders = group.hear(1, RankLost())
    regroup = Regroup(1, (2, 3), ("host", "host"))
    assert [order for order in orders if isinstance(order.message, Regroup)] == [
        Order(2, regroup), Order(3, regroup),
    ]  # fmt: skip
    (again, *_) = group.hear(3, RankLost())
    assert again == Order(2, Regroup(2, (2,), ("host",)))
    group.hear(2, RankLost())
    assert "it was the last learner" in str(group.scheduler.outcome)


def test_who_cannot_go_on_without_the_dead_says_who_has_died() -> None:
    """Its error is what its group was told: an address of gloo's."""
    group = group_of()
    group.task()
    group.hear(2, RankLost())
    error = "GroupBrokenError: Connection closed by peer"
    group.hear(1, WorkerFailed("learner", "host", error, "", EXIT_REQUEUE))
    said = (
        "rank 2 (learner, host host) has died, and the others could not go on without it: " + error
    )
    outcome = group.scheduler.outcome
    assert (outcome.state, outcome.reason, outcome.exit_code) == ("stopped", said, EXIT_REQUEUE)
    assert outcome.failure[1].error == said


@pytest.mark.parametrize(("rank", "role"), [(1, "learner"), (4, "collector")])
def test_an_error_of_ones_own_is_not_put_down_to_an_earlier_death(rank: int, role: str) -> None:
    group = group_of()
    group.task()
    group.hear(2, RankLost())
    group.scheduler.workers.faults.is_possible = False
    error = "StoreError: the disk is full"
    group.hear(rank, WorkerFailed(role, "host", error, "", EXIT_REQUEUE))
    assert group.scheduler.outcome.reason == error


def test_learners_on_gpus_are_not_regrouped() -> None:
    group = group_of(learners_on_gpu=True)
    group.task()
    group.hear(2, RankLost())
    assert "learners on GPUs" in str(group.scheduler.outcome)


def test_iterations_are_counted_without_the_dead() -> None:
    group = group_of()
    task, none = group.task(), np.zeros(0)
    ids = none.astype(np.int64)
    for rank, train_iter in ((1, 30), (2, 25)):
        group.hear(rank, DataDemand(task.task_id, 1, 4, train_iter, ids, none, 1))
    group.hear(3, RankLost())
    group.hear(1, DataDemand(task.task_id, 1, 4, 33, ids, none, 1))
    assert group.main.train_iter == 25


def test_the_task_has_ended_when_only_the_dead_ones_word_was_missing() -> None:
    group = group_of()
    task = group.task()
    group.ready(*COLLECTORS)
    group.hear(1, LearnResult(task.task_id, 50))
    group.hear(3, LearnResult(task.task_id, 50))
    orders = group.hear(2, RankLost())
    closed = {order.rank for order in orders if isinstance(order.message, CloseTask)}
    assert closed == set(COLLECTORS), "one of them evaluates before the end"


def test_a_snapshot_without_a_learners_part_is_given_up() -> None:
    clock = SnapshotClock(math.inf, lambda: ("s1", "snapshots/.s1"))
    assert isinstance(clock.take(LEARNERS, 0.0), TakeSnapshot)
    clock.part(1, SnapshotPart("s1", {}, 5, 0.0))
    clock.lose(1)  # its part is there
    assert clock.take_complete() == []
    clock.lose(2)
    (given_up,) = clock.take_complete()
    assert given_up.error == "rank 2 died before its part was written"


def filled(*sizes: int) -> Any:
    """A replay manager with two learners that hold blocks of these many items, in turn."""
    replay = make_replay()
    replay.open(1, 2)
    for number, size in enumerate(sizes, start=1):
        read_all(replay, replay.assign(block(number, [size])))
    return replay


def test_the_others_read_what_the_dead_one_held() -> None:
    replay = filled(10, 10, 10, 10)
    held = replay.partitions[2].buffer.count()
    assert 0 < held < 40
    replay.partitions[2].demand(demand(2, 4))
    replay.partitions[1].demand(demand(2, 4))
    drawn = sum(batches.rows.size for _, batches in replay.serve(0, []))
    orders = replay.lose(2)
    assert {rank for rank, _ in orders} == {1}
    read_all(replay, orders)
    assert replay.count() == 40
    assert replay.samples_drawn() == drawn
    assert replay.lose(2) == []


def test_they_read_the_newest_that_they_have_room_for() -> None:
    sizes = [17] * (2 * CAPACITY // 17)
    replay = filled(*sizes)
    own = replay.partitions[1].buffer.count()
    room = CAPACITY - own
    orders = replay.lose(2)
    assert sum(17 for _ in orders) <= room
    for rank, order in orders:
        replay.admit(rank, admitted(order.block_id))
    assert replay.partitions[1].buffer.count() >= own  # nothing of its own has given way
    assert len(replay.take_freed()) + len(orders) >= len(sizes) // 2


def test_a_lent_block_counts_when_it_is_stored_and_not_if_its_collector_dies_before() -> None:
    run = Run()
    blocks = [rollout(2, number, 0) for number in (1, 2, 3)]
    for ready in blocks:
        shard = dataclasses.replace(ready.shard, path=f"{SHARED}/proc/1/fd/3#7")
        run.hear(2, dataclasses.replace(ready, shard=shard, capacity=shard.rows))
    assert (run.main.env_steps, run.scheduler.announced) == (0, {})
    run.hear(2, BlockStored(blocks[0].block_id, blocks[0].shard))
    assert (run.main.env_steps, run.scheduler.announced) == (5, {2: 1})
    run.hear(2, blocks[1])  # it was found in a shard
    run.hear(2, RankLost())
    assert (run.main.env_steps, run.scheduler.announced) == (10, {2: 2})
    assert run.scheduler.unwritten == 1


@pytest.mark.parametrize("hears_first", ["the learner", "of the death"])
def test_a_block_that_died_with_its_collector_is_counted_once(hears_first: str) -> None:
    """Its learner could not read it: nobody has lost what was written."""
    run = Run()
    learner, collector = 1, 2
    for number in (1, 2):
        ready = rollout(collector, number, 0)
        shard = dataclasses.replace(ready.shard, path=f"{SHARED}/proc/1/fd/{number}#7")
        run.hear(collector, dataclasses.replace(ready, shard=shard, capacity=shard.rows))
    stored = rollout(collector, 1, 0)
    run.hear(collector, BlockStored(stored.block_id, stored.shard))
    died = rollout(collector, 2, 0).block_id
    news = [(learner, BlockAdmitted(died, 0.0, "is not lent any more")), (collector, RankLost())]
    for rank, message in news if hears_first == "the learner" else reversed(news):
        run.hear(rank, message)
    assert (run.scheduler.unwritten, run.main.replay.blocks_lost) == (1, 0)
    for why in ("is not lent any more", "its checksum is wrong"):  # then it was read from its shard
        run.hear(learner, BlockAdmitted(stored.block_id, 0.0, why))
    assert (run.scheduler.unwritten, run.main.replay.blocks_lost) == (1, 1)
