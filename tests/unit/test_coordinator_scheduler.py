"""The scheduler: messages and time in, orders out. Rank 1 learns, the others collect."""

from __future__ import annotations

from typing import Any

from fakes.scheduler import EVERY_S, TIMEOUTS, Run, evaluates, evaluating
from hpcdi.comm.messages import CloseTask
from hpcdi.roles.coordinator.scheduler import Phase
from hpcdi.roles.coordinator.workers import Order, TaskLate

# ------------------------------------------------------------------------------------------- tasks


def test_collectors_wait_for_the_learner() -> None:
    run = Run(ready=False)
    assert run.ready(2) == run.ready(3) == []
    orders = run.ready(1)
    assert orders == [Order(rank, run.tasks[rank]) for rank in (1, 2, 3)]
    for rank in (2, 3):
        task: Any = run.tasks[rank]
        assert (task.eval_flag, task.setting) == (False, {"eps": 1.0})
        assert task.publish_above == float("inf")
    assert run.scheduler.phase is Phase.RUNNING


def test_each_collector_gets_its_task_as_it_comes() -> None:
    run = Run(ready=False)
    for rank in (1, 2, 3):
        assert run.ready(rank) == [Order(rank, run.tasks[rank])]
    assert run.tick(1.0) == []


def test_only_as_many_collect_tasks_as_there_is_space_for() -> None:
    run = Run(collectors=3, collector_task_space=2)
    assert sorted(run.tasks) == [1, 2, 3]
    assert run.result(2, 1.0) == [Order(2, run.tasks[2])]  # its environments are made
    assert sorted(run.tasks) == [1, 2, 3]


def test_a_task_that_ended_is_followed_by_the_next() -> None:
    run = Run()
    before = run.tasks[3]
    assert run.result(3) == [Order(3, run.tasks[3])]
    assert run.tasks[3].task_id != before.task_id


# ------------------------------------------------------------------------------------- evaluations


def test_nothing_is_evaluated_before_something_is_learnt() -> None:
    run = Run()
    assert run.tick(500.0) == []


def test_the_oldest_task_makes_room_for_an_evaluation() -> None:
    run = Run()
    run.learn_info(10)
    assert run.tick(EVERY_S - 0.1) == []
    assert run.tick(EVERY_S) == [Order(2, CloseTask(run.tasks[2].task_id))]
    assert run.tick(EVERY_S + 1) == []  # one is making room
    orders = run.result(2, EVERY_S + 2)
    assert orders == [Order(2, run.tasks[2])]
    evaluation: Any = run.tasks[2]
    assert evaluation.eval_flag
    assert evaluation.setting == {}
    assert evaluation.publish_above == float("-inf")  # the first one is the best so far
    assert run.tick(500.0) == []  # one at a time


def test_whoever_is_free_first_evaluates() -> None:
    run = Run()
    run.learn_info(10)
    run.tick(EVERY_S)
    orders = run.result(3, EVERY_S + 1)  # rank 2 was asked, rank 3 ended by itself
    assert orders == [Order(3, run.tasks[3])]
    assert evaluates(orders[0])
    orders = run.result(2, EVERY_S + 2)
    assert orders == [Order(2, run.tasks[2])]
    assert not evaluates(orders[0])


def test_the_next_evaluation_is_counted_from_the_start_of_the_last() -> None:
    run = evaluating()
    orders = run.result(2, EVERY_S + 1, returns=(50.0, 70.0))
    assert [evaluates(order) for order in orders] == [False]
    assert run.tick(2 * EVERY_S - 0.1) == []
    assert [order.message for order in run.tick(2 * EVERY_S)] == [CloseTask(run.tasks[3].task_id)]
    run.result(3, 2 * EVERY_S)
    evaluation: Any = run.tasks[3]
    assert (evaluation.eval_flag, evaluation.publish_above) == (True, 60.0)


def test_another_collector_is_asked_where_one_is_late() -> None:
    run = Run()
    run.learn_info(10)
    run.tick(EVERY_S)
    late = EVERY_S + TIMEOUTS.collector_task_s
    late_task = run.tasks[2].task_id
    assert run.tick(late - 0.1) == []
    assert run.tick(late) == [Order(3, CloseTask(run.tasks[3].task_id))]
    assert run.seen[-1] == (2, TaskLate(late_task, TIMEOUTS.collector_task_s))
    for now in (late + 1, late + 2):  # it goes on saying what it does
        run.progress(2, 5, now)
        run.tick(now)
    assert [message for _, message in run.seen if isinstance(message, TaskLate)] == [
        TaskLate(late_task, TIMEOUTS.collector_task_s)
    ]
    assert evaluates(run.result(3, late + 3)[0])
    assert not evaluates(run.result(2, late + 4)[0])


def test_a_learner_that_has_asked_for_data_may_take_its_time() -> None:
    run = Run()
    run.ask(1)
    assert run.tick(0.0) == run.tick(1e6) == []
