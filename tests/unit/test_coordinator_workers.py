"""The table of workers: who is free, who does what, what takes too long, who can be spared."""

from __future__ import annotations

import dataclasses

import pytest

from fakes.replay import make_groups
from hpcdi.comm.messages import CloseTask, CollectTask, KillFrozen, LearnTask, WorkerReady
from hpcdi.errors import EXIT_REQUEUE, CommError, WorkerSilentError
from hpcdi.roles.context import OWN_END_S
from hpcdi.roles.coordinator.workers import (
    QUIET_S,
    FaultPolicy,
    Notice,
    Order,
    RankQuiet,
    State,
    TaskLate,
    Timeouts,
    Workers,
)
from hpcdi.worker.coordinator.resource_manager import NaiveResourceManager

COLLECT_S, LEARN_S, SILENCE_S = 30.0, 600.0, 900.0
TIMEOUTS = Timeouts(collector_task_s=COLLECT_S, learner_task_s=LEARN_S, silence_s=SILENCE_S)
LEARN = LearnTask("l")


def collect(name: str, *, eval_flag: bool = False) -> CollectTask:
    return CollectTask(name, eval_flag=eval_flag, setting={})


def table(collectors: int = 0, learners: int = 0) -> Workers:
    """All have reported; learners have the first ranks."""
    ranks = range(1, learners + collectors + 1)
    workers = Workers(ranks, make_groups(learners), timeouts=TIMEOUTS)
    for rank in ranks:
        role = "learner" if rank <= learners else "collector"
        workers.report(rank, WorkerReady(role, f"host{rank}", rank))
    return workers


def learn(workers: Workers, now: float = 0.0) -> None:
    """All learners begin their task."""
    for worker in workers:
        if worker.role == "learner":
            worker.start(LEARN, now)


def closed(workers: Workers, now: float) -> list[str]:
    """Tasks that are ordered to end, to make room."""
    orders = [order.message for order in workers.close_oldest(now)]
    return [message.task_id for message in orders if isinstance(message, CloseTask)]


def late(workers: Workers, now: float) -> list[tuple[int, Notice]]:
    notices = workers.notices(now, ())
    return [(rank, notice) for rank, notice in notices if isinstance(notice, TaskLate)]


def quiet(workers: Workers, now: float, *waiting: int) -> list[tuple[int, Notice]]:
    notices = workers.notices(now, waiting)
    return [(rank, notice) for rank, notice in notices if isinstance(notice, RankQuiet)]


# ---------------------------------------------------------------------------------- who is there


def test_who_is_who() -> None:
    groups = make_groups()
    workers = Workers([2, 3, 9], groups)
    assert workers.not_ended == [2, 3, 9]
    assert workers.why_not_without(9) == "it had not reported yet", "it may be the learner"
    workers.report(2, WorkerReady("learner", "a", 1))
    workers.report(3, WorkerReady("collector", "b", 1))
    assert groups.main.learners.ranks == [2]
    assert [str(workers[rank]) for rank in (3, 9)] == ["rank 3 (collector, host b)", "rank 9"]
    assert workers.why_not_without(9) == "", "it is a collector, and rank 3 is another"
    assert not workers.all_reported


@pytest.mark.parametrize("rank", [0, 3])
def test_who_is_no_worker_has_no_record(rank: int) -> None:
    with pytest.raises(CommError, match=f"rank {rank} is no worker of this run; its workers are 1"):
        table(collectors=1)[rank].hear("LearnInfo", 1.0)


# ----------------------------------------------------------------------------------------- tasks


def test_who_has_worked_last_goes_first() -> None:
    workers = table(collectors=3)
    assert [workers.start_collector(collect(name), 0.0).rank for name in "ab"] == [1, 2]
    workers.finish(2, "b")
    workers.finish(1, "a")
    assert [workers.start_collector(collect(name), 1.0).rank for name in "cde"] == [1, 2, 3]
    assert workers.free_collectors == []


def test_roles_are_kept_apart() -> None:
    workers = table(collectors=1, learners=1)
    learn(workers)
    assert [worker.rank for worker in workers.free_collectors] == [2]


def test_the_end_of_a_task_that_was_not_given_out_frees_nobody() -> None:
    """A result that comes twice makes no new worker."""
    workers = table(collectors=1)
    workers.start_collector(collect("a"), 0.0)
    assert workers.finish(1, "a") == collect("a")
    workers.start_collector(collect("b"), 0.0)
    assert workers.finish(1, "a") is None
    assert workers.free_collectors == []


def test_a_task_has_begun_with_the_first_message_about_it() -> None:
    workers = table(collectors=1)
    workers.start_collector(collect("a"), 3.0)
    assert workers[1].begin("b") is None
    assert not workers[1].has_begun
    assert workers[1].begin("a") == collect("a")
    assert (workers[1].started, workers[1].has_begun) == (3.0, True)


def test_the_task_of_a_dead_worker_is_returned() -> None:
    workers = table(collectors=2)
    workers.start_collector(collect("a"), 0.0)
    workers.start_collector(collect("b"), 0.0)
    assert workers.lose(1) == collect("a")
    assert workers.lose(1) is None
    assert workers.lost == {1: "collector"}
    assert workers.finish(1, "a") is None
    workers.finish(2, "b")
    assert workers.start_collector(collect("c"), 0.0).rank == 2
    assert workers.free_collectors == []


def test_a_worker_that_pauses_gets_no_task() -> None:
    workers = table(collectors=2)
    workers.start_collector(collect("a"), 0.0)
    workers.pause(1, 10.0)
    assert (workers[1].state, workers[1].task) == (State.PAUSED, None)
    assert [worker.rank for worker in workers.free_collectors] == [2]
    assert workers.why_not_without(1) == ""
    assert workers.end_pauses(9.0 + TIMEOUTS.rest_s) == []
    assert workers.end_pauses(10.0 + TIMEOUTS.rest_s) == [1]
    assert [worker.rank for worker in workers.free_collectors] == [2, 1]


# ----------------------------------------------------------------------------------- making room


def test_the_oldest_makes_room_and_one_at_a_time() -> None:
    workers = table(collectors=3)
    for name, started in [("a", 2.0), ("b", 1.0), ("c", 3.0)]:
        workers.start_collector(collect(name), started)
    assert closed(workers, 10.0) == ["b"]
    assert workers[2].closing_since == 10.0
    assert closed(workers, 10.0 + COLLECT_S - 0.1) == []
    workers.finish(2, "b")
    assert closed(workers, 11.0) == ["a"]


def test_a_late_one_is_given_up_and_another_is_asked() -> None:
    workers = table(collectors=2)
    for name, started in [("a", 0.0), ("b", 1.0)]:
        workers.start_collector(collect(name), started)
    closed(workers, 10.0)
    assert closed(workers, 10.0 + COLLECT_S) == ["b"]
    assert closed(workers, 1000.0) == []  # nobody is left to ask


def test_evaluations_never_make_room() -> None:
    workers = table(collectors=2)
    workers.start_collector(dataclasses.replace(collect("evaluation"), eval_flag=True), 0.0)
    assert closed(workers, 10.0) == []
    workers.start_collector(collect("a"), 5.0)
    assert closed(workers, 10.0) == ["a"]


def test_learners_never_make_room() -> None:
    workers = table(learners=1)
    learn(workers)
    assert closed(workers, 10.0) == []


@pytest.mark.parametrize("has_begun", [True, False])
def test_lateness_is_reported_once(has_begun: bool) -> None:
    """Also of a collector that goes on reporting progress, and of one that never did."""
    workers = table(collectors=1)
    workers.start_collector(collect("a"), 0.0)
    closed(workers, 10.0)
    if has_begun:
        workers[1].begin("a")
    assert late(workers, 10.0 + COLLECT_S - 0.1) == []
    assert late(workers, 12.0 + COLLECT_S) == [(1, TaskLate("a", 2.0 + COLLECT_S))]
    if has_begun:
        workers[1].begin("a")
    assert late(workers, 20.0 + COLLECT_S) == []


def test_a_task_that_is_to_end_is_not_late_by_a_suspension() -> None:
    workers = table(collectors=2)
    for name in "ab":
        workers.start_collector(collect(name), 0.0)
    assert closed(workers, 10.0) == ["a"]
    workers.excuse(1e4, 1e4 + 11.0)
    assert late(workers, 1e4 + 11.0) == []
    assert closed(workers, 1e4 + 11.0) == [], "nor is another one asked"
    assert late(workers, 1e4 + 10.0 + COLLECT_S) == [(1, TaskLate("a", COLLECT_S))]


def test_open_tasks_are_never_late() -> None:
    workers = table(collectors=1, learners=1)
    workers.start_collector(collect("a"), 0.0)
    learn(workers)
    assert late(workers, 1e9) == []


# ---------------------------------------------------------------------------------------- silence


def test_a_learner_that_never_begins_is_named() -> None:
    workers = table(learners=2)
    learn(workers, 5.0)
    workers[1].begin("l")
    workers.check(5.0 + LEARN_S)
    with pytest.raises(WorkerSilentError) as caught:
        workers.check(6.0 + LEARN_S)
    assert (caught.value.rank, caught.value.waited_s) == (2, 1.0 + LEARN_S)


def test_a_collector_may_take_its_time_to_begin() -> None:
    workers = table(collectors=1)
    workers.start_collector(collect("a"), 0.0)
    workers.check(SILENCE_S)


def test_a_worker_that_sends_nothing_for_too_long_ends_the_run() -> None:
    workers = table(collectors=2)
    for name in "ab":
        workers.start_collector(collect(name), 0.0)
    workers[1].hear("Heartbeat", 10.0)
    workers[2].hear("Heartbeat", 500.0)
    workers.check(10.0 + SILENCE_S)
    with pytest.raises(WorkerSilentError, match=r"rank 1 .* its last message: Heartbeat") as caught:
        workers.check(11.0 + SILENCE_S)
    assert caught.value.exit_code == EXIT_REQUEUE


def survivors(host: str = "", **of_rank: str) -> Workers:
    """A run that goes on without a dead rank: a learner, and collectors that have tasks."""
    faults = FaultPolicy(is_possible=True)
    workers = Workers(range(1, 5), make_groups(), faults, TIMEOUTS, (host, ""))
    for rank in range(1, 5):
        role = "learner" if rank == 1 else "collector"
        host, _, space = of_rank.get(f"rank{rank}", "here").partition("/")
        workers.report(rank, WorkerReady(role, host, 100 + rank, pid_space=space))
        workers[rank].hear("Heartbeat", 0.0)
    workers.start_collector(collect("a"), 0.0)
    return workers


def let_all_speak_but(silent: set[int], workers: Workers, now: float) -> None:
    for worker in workers:
        if worker.rank not in silent:
            worker.hear("Heartbeat", now)


def test_a_frozen_worker_is_killed_by_a_rank_of_its_host() -> None:
    """With a task or without one; rank 0 does it where it is on that host."""
    for host, killer in (("here", 0), ("elsewhere", 1)):
        workers = survivors(host)
        let_all_speak_but({2, 4}, workers, SILENCE_S)
        assert workers.check(SILENCE_S) == []
        orders = [Order(killer, KillFrozen(2, 102)), Order(killer, KillFrozen(4, 104))]
        assert workers.check(SILENCE_S + 1) == orders
        assert workers.check(SILENCE_S + 2) == [], "they are about to die"
        workers.lose(2)
        workers.lose(4)
        assert workers.check(SILENCE_S + 1 + 2 * OWN_END_S) == []


def test_who_could_not_be_heard_was_not_silent() -> None:
    """Rank 0 was suspended, as the whole job was; from then on silences count again."""
    workers = survivors()
    workers.excuse(10 * SILENCE_S, 11 * SILENCE_S - 1)
    assert workers.check(11 * SILENCE_S - 1) == []
    with pytest.raises(WorkerSilentError):
        workers.check(12 * SILENCE_S)


def test_a_learner_that_was_suspended_before_it_began_is_not_late() -> None:
    workers = table(learners=1)
    learn(workers)
    workers.excuse(10 * LEARN_S, 10 * LEARN_S + 2)
    assert workers.check(10 * LEARN_S + 2) == []
    with pytest.raises(WorkerSilentError, match="that it was ready"):
        workers.check(11 * LEARN_S + 2)


def test_a_frozen_worker_that_cannot_be_killed_ends_the_run() -> None:
    workers = survivors()
    let_all_speak_but({3}, workers, SILENCE_S)
    assert workers.check(SILENCE_S + 1)
    workers.check(SILENCE_S + 1 + OWN_END_S)
    with pytest.raises(WorkerSilentError, match="rank 3"):
        workers.check(SILENCE_S + 2 + OWN_END_S)


def test_while_the_job_is_suspended_nobody_that_was_killed_need_die() -> None:
    workers = survivors()
    let_all_speak_but({3}, workers, SILENCE_S)
    assert workers.check(SILENCE_S + 1)
    workers.excuse(1e4, 1e4 + SILENCE_S + 2)
    assert workers.check(1e4 + SILENCE_S + 2) == []
    with pytest.raises(WorkerSilentError, match="rank 3"):
        workers.check(1e4 + SILENCE_S + 2 + OWN_END_S)


@pytest.mark.parametrize(
    ("frozen", "of_rank", "why"),
    [
        ({2}, {"rank2": "alone"}, "nobody of ours is on its host"),
        ({2}, {"rank2": "here/7"}, "its process has another number there: it is in a container"),
        ({1}, {}, "it is the only learner"),
        ({2, 3}, {"rank2": "node", "rank3": "node"}, "its whole host is frozen"),
    ],
)
def test_a_frozen_worker_that_nobody_can_kill_ends_the_run(
    frozen: set[int], of_rank: dict[str, str], why: str
) -> None:
    workers = survivors(**of_rank)
    let_all_speak_but(frozen, workers, SILENCE_S)
    with pytest.raises(WorkerSilentError, match=f"rank {min(frozen)} "):
        workers.check(SILENCE_S + 1)


def test_a_message_from_before_the_task_does_not_count() -> None:
    workers = table(collectors=1)
    workers[1].hear("WorkerReady", 3.0)
    workers.start_collector(collect("a"), 5.0)
    with pytest.raises(WorkerSilentError, match="its last message: nothing") as caught:
        workers.check(6.0 + SILENCE_S)
    assert caught.value.waited_s == 1.0 + SILENCE_S


def test_a_quiet_rank_is_reported_once_until_it_is_heard_again() -> None:
    workers = table(collectors=2)
    workers.start_collector(collect("a"), 0.0)
    assert quiet(workers, QUIET_S - 0.1) == []
    assert quiet(workers, QUIET_S) == [(1, RankQuiet("a", QUIET_S))]
    assert quiet(workers, QUIET_S + 1) == []
    workers[1].hear("CollectProgress", 100.0)
    assert quiet(workers, 101.0) == []
    assert quiet(workers, 100.0 + QUIET_S) == [(1, RankQuiet("a", QUIET_S))]
    workers.finish(1, "a")
    assert quiet(workers, 1e6) == []


def test_a_rank_that_waits_for_data_may_be_quiet() -> None:
    workers = table(learners=1)
    learn(workers)
    assert len(quiet(workers, QUIET_S)) == 1
    workers[1].hear("DataDemand", 0.0)
    assert quiet(workers, QUIET_S, 1) == []
    assert len(quiet(workers, QUIET_S)) == 1, "it does not wait any more"


# ------------------------------------------------------------------------ the seeds' public class


def test_the_seeds_resource_manager() -> None:
    manager = NaiveResourceManager()
    assert manager.assign_collector({}) is None
    assert manager.assign_learner({}) is None
    manager.update("collector", "3", {"gpu": 0, "cpu": 2})
    manager.update("learner", "1", {"gpu": 1, "cpu": 4})
    assert manager.assign_collector({"any": "task"}) == {
        "collector_id": "3", "resource_info": {"gpu": 0, "cpu": 2},
    }  # fmt: skip
    assert manager.assign_collector({}) is None
    assert manager.assign_learner() == {
        "learner_id": "1", "resource_info": {"gpu": 1, "cpu": 4},
    }  # fmt: skip
    assert manager.have_assigned("collector", "3")
    assert not manager.have_assigned("collector", "1")
    manager.update("collector", "3", {"gpu": 0, "cpu": 1})
    assert not manager.have_assigned("collector", "3")
    assert manager.assign_collector() == {
        "collector_id": "3", "resource_info": {"gpu": 0, "cpu": 1},
    }  # fmt: skip


def test_a_worker_can_be_forgotten() -> None:
    manager = NaiveResourceManager()
    for rank in ("1", "2"):
        manager.update("collector", rank, {})
    manager.assign_collector()
    assert manager.delete("collector", "1")
    assert manager.delete("collector", "2")
    assert not manager.delete("collector", "2")
    assert not manager.delete("learner", "1")
    assert manager.assign_collector() is None
    assert not manager.have_assigned("collector", "1")
