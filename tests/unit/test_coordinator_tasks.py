"""Who is free, who does what, and what takes too long."""

from __future__ import annotations

import dataclasses

import pytest

from hpcdi.comm.messages import CollectTask, LearnTask, WorkerReady
from hpcdi.errors import WorkerSilentError
from hpcdi.worker.adapter import LearnerAggregator
from hpcdi.worker.coordinator.counters import Timeouts
from hpcdi.worker.coordinator.resource_manager import NaiveResourceManager
from hpcdi.worker.coordinator.task import QUIET_S, RankQuiet, TaskBook, TaskLate

COLLECT_S, LEARN_S, SILENCE_S = 30.0, 600.0, 900.0
TIMEOUTS = Timeouts(collector_task_s=COLLECT_S, learner_task_s=LEARN_S, silence_s=SILENCE_S)


def collect(name: str, *, eval_flag: bool = False) -> CollectTask:
    return CollectTask(name, "buffer", "policy", eval_flag=eval_flag, setting={})


def book(collectors: int = 0, learners: int = 0) -> TaskBook:
    """Learners have the first ranks."""
    made = TaskBook(TIMEOUTS, LearnerAggregator({"learner": range(max(learners, 1))}))
    for rank in range(1, learners + collectors + 1):
        role = "learner" if rank <= learners else "collector"
        made.add_worker(rank, WorkerReady(role, "host", rank))
    return made


# --------------------------------------------------------------------------------------- the book


def test_who_has_worked_last_goes_first() -> None:
    tasks = book(collectors=3)
    assert [tasks.give("collector", collect(name), 0.0) for name in "ab"] == [[1], [2]]
    tasks.finish("b", "collector", 2)
    tasks.finish("a", "collector", 1)
    assert [tasks.give("collector", collect(name), 1.0) for name in "cde"] == [[1], [2], [3]]
    assert not tasks.has_free("collector")


def test_kinds_are_kept_apart() -> None:
    tasks = book(collectors=1, learners=1)
    assert tasks.give("learner", LearnTask("l", "p", "b"), 0.0) == [1]
    assert not tasks.has_free("learner")
    assert tasks.has_free("collector")
    with pytest.raises(LookupError, match="no learner is free"):
        tasks.give("learner", LearnTask("m", "p", "b"), 0.0)


def test_the_end_of_a_task_that_was_not_given_out_frees_nobody() -> None:
    """A result that comes twice, or from a library caller on rank 0, makes no new worker."""
    tasks = book(collectors=1)
    tasks.give("collector", collect("a"), 0.0)
    tasks.finish("unknown", "collector", 0)
    assert not tasks.has_free("collector")
    tasks.finish("a", "collector", 1)
    tasks.give("collector", collect("b"), 0.0)
    tasks.finish("a", "collector", 1)
    assert not tasks.has_free("collector")


def test_begun() -> None:
    tasks = book(collectors=1)
    tasks.give("collector", collect("a"), 3.0)
    running = tasks.begun("a", 1)
    assert running is not None
    assert (running.task, running.rank, running.started) == (collect("a"), 1, 3.0)
    assert running.has_begun
    assert tasks.begun("b", 1) is None


# ----------------------------------------------------------------------------------- making room


def test_the_oldest_makes_room_and_one_at_a_time() -> None:
    tasks = book(collectors=3)
    for name, started in [("a", 2.0), ("b", 1.0), ("c", 3.0)]:
        tasks.give("collector", collect(name), started)
    chosen = tasks.choose_to_close(10.0)
    assert chosen is not None
    assert (chosen.task.task_id, chosen.closing) == ("b", 10.0)
    assert tasks.choose_to_close(10.0 + COLLECT_S - 0.1) is None
    tasks.finish("b", "collector", 2)
    following = tasks.choose_to_close(11.0)
    assert following is not None
    assert following.task.task_id == "a"


def test_a_late_one_is_given_up_and_another_is_asked() -> None:
    tasks = book(collectors=2)
    for name, started in [("a", 0.0), ("b", 1.0)]:
        tasks.give("collector", collect(name), started)
    tasks.choose_to_close(10.0)
    chosen = tasks.choose_to_close(10.0 + COLLECT_S)
    assert chosen is not None
    assert chosen.task.task_id == "b"
    assert tasks.choose_to_close(1000.0) is None  # nobody is left to ask


def test_evaluations_never_make_room() -> None:
    tasks = book(collectors=2)
    tasks.give("collector", dataclasses.replace(collect("evaluation"), eval_flag=True), 0.0)
    assert tasks.choose_to_close(10.0) is None
    tasks.give("collector", collect("a"), 5.0)
    chosen = tasks.choose_to_close(10.0)
    assert chosen is not None
    assert chosen.task.task_id == "a"


def test_learners_never_make_room() -> None:
    tasks = book(learners=1)
    tasks.give("learner", LearnTask("l", "p", "b"), 0.0)
    assert tasks.choose_to_close(10.0) is None


@pytest.mark.parametrize("has_begun", [True, False])
def test_lateness_is_told_once(has_begun: bool) -> None:
    """Also of a collector that goes on telling its progress, and of one that never said a word."""
    tasks = book(collectors=1)
    tasks.give("collector", collect("a"), 0.0)
    tasks.choose_to_close(10.0)
    if has_begun:
        tasks.begun("a", 1)
    assert tasks.late(10.0 + COLLECT_S - 0.1) == []
    assert tasks.late(12.0 + COLLECT_S) == [(1, TaskLate("a", 2.0 + COLLECT_S))]
    if has_begun:
        tasks.begun("a", 1)
    assert tasks.late(20.0 + COLLECT_S) == []


def test_open_tasks_are_never_late() -> None:
    tasks = book(collectors=1, learners=1)
    tasks.give("collector", collect("a"), 0.0)
    tasks.give("learner", LearnTask("l", "p", "b"), 0.0)
    assert tasks.late(1e9) == []


def test_a_learner_that_never_begins_is_named() -> None:
    tasks = book(learners=2)
    assert tasks.give("learner", LearnTask("l", "p", "b"), 5.0) == [1, 2]
    tasks.begun("l", 1)
    tasks.check(5.0 + LEARN_S)
    with pytest.raises(WorkerSilentError) as caught:
        tasks.check(6.0 + LEARN_S)
    assert (caught.value.rank, caught.value.waited_s) == (2, 1.0 + LEARN_S)


def test_a_collector_may_take_its_time_to_begin() -> None:
    tasks = book(collectors=1)
    tasks.give("collector", collect("a"), 0.0)
    tasks.check(SILENCE_S)


def test_a_worker_that_says_nothing_for_too_long_ends_the_run() -> None:
    tasks = book(collectors=2)
    tasks.give("collector", collect("a"), 0.0)
    tasks.heard(1, "Heartbeat", 10.0)
    tasks.heard(2, "Heartbeat", 500.0)
    tasks.check(10.0 + SILENCE_S)
    with pytest.raises(WorkerSilentError, match=r"rank 1 .* its last message: Heartbeat"):
        tasks.check(11.0 + SILENCE_S)


def test_what_a_dead_worker_did_is_given_back() -> None:
    tasks = book(collectors=2)
    tasks.give("collector", collect("a"), 0.0)
    tasks.give("collector", collect("b"), 0.0)
    assert [running.task.task_id for running in tasks.lose(1)] == ["a"]
    assert tasks.lose(1) == []
    assert tasks.collecting() == [2]
    tasks.finish("b", "collector", 2)
    assert tasks.give("collector", collect("c"), 0.0) == [2]
    assert not tasks.has_free("collector")


# ------------------------------------------------------------------------------ resource manager


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
    assert manager.free_count("collector") == 0
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


# ------------------------------------------------------------------------------------ quiet ranks


def test_a_rank_that_says_nothing_is_told_once_until_it_is_heard_again() -> None:
    tasks = book(collectors=2)
    tasks.give("collector", collect("a"), 0.0)
    assert tasks.quiet(QUIET_S - 0.1, ()) == []
    assert tasks.quiet(QUIET_S, ()) == [(1, RankQuiet("a", QUIET_S))]
    assert tasks.quiet(2 * QUIET_S, ()) == []
    tasks.heard(1, "CollectProgress", 100.0)
    assert tasks.quiet(101.0, ()) == []
    assert tasks.quiet(100.0 + QUIET_S, ()) == [(1, RankQuiet("a", QUIET_S))]
    tasks.finish("a", "collector", 1)
    assert tasks.quiet(1e6, ()) == []


def test_a_rank_that_waits_for_data_may_be_quiet() -> None:
    tasks = book(learners=1)
    tasks.give("learner", LearnTask("l", "p", "b"), 0.0)
    (rank,) = [rank for rank, _ in tasks.quiet(QUIET_S, ())]
    tasks.heard(1, "DataDemand", 0.0)
    assert tasks.quiet(QUIET_S, (rank,)) == []
    assert len(tasks.quiet(QUIET_S, ())) == 1, "it does not wait any more"
