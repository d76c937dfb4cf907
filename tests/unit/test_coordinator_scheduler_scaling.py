"""How many collectors work: spare ones, those that pause, more and fewer by order."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.scheduler import EVERY_S, TIMEOUTS, Run, evaluates, reason_of
from hpcdi.comm.messages import (
    CloseTask,
    CollectTask,
    RankLost,
    ScaleCollectors,
    TaskReturned,
)
from hpcdi.roles.coordinator.workers import ComesBack, Order


def spare() -> Run:
    """Ranks 2 and 3 collect, 4 and 5 wait."""
    run = Run(4, collector_task_space=2)
    assert sorted(run.tasks) == [1, 2, 3]
    return run


def scale(run: Run, count: int, now: float = 0.0) -> list[Order]:
    run.hear(0, ScaleCollectors(count), now)
    return run.tick(now)


def given(orders: list[Order]) -> list[int]:
    return [order.rank for order in orders if isinstance(order.message, CollectTask)]


def closed(orders: list[Order]) -> list[int]:
    return [order.rank for order in orders if isinstance(order.message, CloseTask)]


def give_back(run: Run, rank: int, now: float) -> list[Order]:
    return run.hear(rank, TaskReturned(run.tasks[rank].task_id, "all are retired"), now)


def test_a_spare_collector_takes_the_place_of_one_that_dies() -> None:
    run = spare()
    run.scheduler.workers.faults.is_possible = True
    assert given(run.hear(2, RankLost())) == [4]
    assert run.scheduler.collectors == {"working": 2, "there": 3, "wanted": 2}
    assert given(run.hear(3, RankLost())) == [5]
    assert given(run.hear(4, RankLost())) == []
    assert run.scheduler.collectors == {"working": 1, "there": 1, "wanted": 2}


def test_it_takes_the_place_of_one_without_environments_too() -> None:
    run = spare()
    assert given(give_back(run, 3, 0.0)) == [4]
    assert run.scheduler.is_on


def test_who_has_worked_goes_before_who_waits() -> None:
    run = spare()
    run.result(2)
    task: Any = run.tasks[2]
    assert not task.eval_flag
    assert sorted(run.tasks) == [1, 2, 3], "its environments are made"


def test_more_are_wanted() -> None:
    run = spare()
    assert given(scale(run, 3)) == [4]
    assert given(scale(run, 9)) == [5]
    assert run.scheduler.collectors == {"working": 4, "there": 4, "wanted": 9}


def test_fewer_are_wanted_the_newest_tasks_end() -> None:
    run = Run(3)
    run.result(2, 1.0)  # its task is the newest now
    assert closed(scale(run, 2, 2.0)) == [2]
    assert closed(run.tick(3.0)) == [], "it has been told"
    assert given(run.result(2, 3.0)) == []
    assert closed(scale(run, 1, 4.0)) in ([3], [4])
    orders = scale(run, 3, 5.0)
    assert (closed(orders), given(orders)) == ([], [2]), "it may work again"


def test_one_works_whatever_is_wanted() -> None:
    run = Run(2)
    assert len(closed(scale(run, 0))) == 1
    assert run.scheduler.collectors_wanted == 1


def test_an_evaluation_has_its_place_among_the_tasks_and_is_not_closed() -> None:
    run = spare()
    run.learn_info(10)
    assert closed(run.tick(EVERY_S)) == [2]  # makes room for an evaluation
    orders = run.result(2, EVERY_S)
    assert [order.rank for order in orders if evaluates(order)] == [2]
    assert closed(scale(run, 1, EVERY_S)) == [3]
    assert given(run.result(3, EVERY_S + 1)) == []
    assert given(run.result(2, EVERY_S + 2, returns=(1.0,))) == [2]


def test_a_collector_pauses_longer_each_time_and_comes_back() -> None:
    run, now = Run(2), 0.0
    run.ask(1)
    for pause_s in (TIMEOUTS.rest_s, 2 * TIMEOUTS.rest_s, 4 * TIMEOUTS.rest_s):
        give_back(run, 2, now)
        assert run.scheduler.collectors["there"] == 1
        run.tasks.pop(2)
        run.progress(3, 1, now + pause_s - 1)
        assert given(run.tick(now + pause_s - 1)) == []
        now += pause_s
        assert given(run.tick(now)) == [2]
        assert run.seen[-1] == (2, ComesBack())
    assert run.scheduler.collectors["there"] == 2


def test_the_dead_do_not_come_back() -> None:
    run = Run(2)
    run.scheduler.workers.faults.is_possible = True
    run.ask(1)
    give_back(run, 2, 0.0)
    run.hear(2, RankLost())
    assert given(run.tick(10 * TIMEOUTS.rest_s)) == []
    assert run.scheduler.is_on


def test_without_any_that_could_work_the_run_ends() -> None:
    run = Run(2)
    give_back(run, 2, 0.0)
    give_back(run, 3, 0.0)
    assert reason_of(run) == "no collector has environments left; rank 3: all are retired"


@pytest.mark.parametrize("dies", [True, False])
def test_on_policy_there_is_a_collector_to_each_learner(dies: bool) -> None:
    run = Run(3, learners=2)
    workers = run.scheduler.workers
    workers.faults.is_possible = workers.faults.each_learner_needs_a_collector = True
    scale(run, 1)
    assert run.scheduler.collectors_wanted == 2
    run.hear(3, RankLost() if dies else TaskReturned(run.tasks[3].task_id, "why"))
    assert run.scheduler.is_on
    run.hear(4, RankLost() if dies else TaskReturned(run.tasks[4].task_id, "why"))
    assert (
        "must be a collector to each learner" if dies else "only 1 collector has environments"
    ) in reason_of(run)
