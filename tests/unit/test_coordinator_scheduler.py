"""The scheduler: messages and time in, orders out. Rank 1 learns, the others collect."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from test_coordinator_desk import make_desk

import hpcdi.worker  # noqa: F401  (registers the components that a configuration names)
from hpcdi.comm.messages import (
    CloseTask,
    CollectProgress,
    CollectResult,
    CollectTask,
    DataDemand,
    LearnInfo,
    LearnTask,
    Message,
    WorkerReady,
)
from hpcdi.config.load import compile_config
from hpcdi.errors import WorkerSilentError
from hpcdi.types import Array
from hpcdi.worker.adapter import LearnerAggregator
from hpcdi.worker.coordinator.base_parallel_commander import create_parallel_commander
from hpcdi.worker.coordinator.counters import Timeouts
from hpcdi.worker.coordinator.lifecycle import Order, Phase
from hpcdi.worker.coordinator.scheduler import Scheduler
from hpcdi.worker.coordinator.snapshots import SnapshotClock
from hpcdi.worker.coordinator.task import TaskLate

EVERY_S = 5.0
STOP_VALUE = 195.0
TIMEOUTS = Timeouts(start_s=300.0, stop_s=20.0, collector_task_s=30.0, learner_task_s=600.0)


def experiment(**commander: Any) -> Any:
    other = {
        "commander": {"eval_interval": EVERY_S, **commander},
        "eps": {"type": "linear", "start": 1.0, "end": 0.0, "decay": 1000},
    }
    env = {"env_id": "CartPole-v1", "stop_value": STOP_VALUE}
    return compile_config({"env": env, "policy": {"other": other}}).config


class Run:
    """A scheduler under test, with what it observed and the tasks that it gave out."""

    def __init__(self, collectors: int = 2, *, ready: bool = True, **commander: Any) -> None:
        self.seen: list[tuple[int, Message]] = []
        self.ranks = list(range(1, collectors + 2))
        self.scheduler = Scheduler(
            create_parallel_commander(experiment(**commander)), make_desk(),
            LearnerAggregator({"learner": [1]}), SnapshotClock(math.inf), self.ranks, TIMEOUTS,
            lambda rank, message: self.seen.append((rank, message)),
        )  # fmt: skip
        self.tasks: dict[int, CollectTask | LearnTask] = {}
        for rank in self.ranks if ready else ():
            self.ready(rank)

    def hear(self, rank: int, message: Message, now: float = 0.0) -> list[Order]:
        return self.note(self.scheduler.handle(message, rank, now))

    def tick(self, now: float) -> list[Order]:
        return self.note(self.scheduler.tick(now))

    def note(self, orders: list[Order]) -> list[Order]:
        for order in orders:
            if isinstance(order.message, CollectTask | LearnTask):
                self.tasks[order.rank] = order.message
        return orders

    def ready(self, rank: int, now: float = 0.0) -> list[Order]:
        role = "learner" if rank == 1 else "collector"
        return self.hear(rank, WorkerReady(role, "host", 100 + rank), now)

    def learn_info(self, train_iter: int, now: float = 0.0) -> list[Order]:
        return self.hear(1, LearnInfo(self.tasks[1].task_id, train_iter, {"loss": 0.5}, {}), now)

    def ask(self, batches: int, train_iter: int = 0) -> list[Order]:
        """The learner wants batches of four."""
        none: Array = np.zeros(0)
        task_id = self.tasks[1].task_id
        return self.hear(
            1, DataDemand(task_id, "buffer", batches, 4, train_iter, none.astype(np.int64), none)
        )

    def progress(self, rank: int, steps: int, now: float = 0.0, version: int = 0) -> list[Order]:
        task_id = self.tasks[rank].task_id
        returns, lengths = np.array([9.0]), np.array([steps])
        return self.hear(
            rank, CollectProgress(task_id, steps, returns, lengths, version, {}), now
        )  # fmt: skip

    def result(self, rank: int, now: float = 0.0, returns: tuple[float, ...] = ()) -> list[Order]:
        """What a collector says at the end of its task."""
        task: Any = self.tasks[rank]
        return self.hear(
            rank,
            CollectResult(
                task.task_id, task.eval_flag, 7, 10, 1.0, np.array(returns),
                np.ones(len(returns), np.int64),
            ),
            now,
        )  # fmt: skip


def evaluates(order: Order) -> bool:
    return isinstance(order.message, CollectTask) and order.message.eval_flag


def evaluating() -> Run:
    """A run in which rank 2 evaluates."""
    run = Run()
    run.learn_info(10)
    run.tick(EVERY_S)
    run.result(2, EVERY_S)
    assert isinstance(run.tasks[2], CollectTask)
    assert run.tasks[2].eval_flag
    return run


# ------------------------------------------------------------------------------------------- tasks


def test_collectors_wait_for_the_learner() -> None:
    run = Run(ready=False)
    assert run.ready(2) == run.ready(3) == []
    orders = run.ready(1)
    assert orders == [Order(rank, run.tasks[rank]) for rank in (1, 2, 3)]
    learn: Any = run.tasks[1]
    for rank in (2, 3):
        task: Any = run.tasks[rank]
        assert (task.eval_flag, task.setting) == (False, {"eps": 1.0})
        assert (task.buffer_id, task.policy_id) == (learn.buffer_id, learn.policy_id)
        assert task.publish_above == float("inf")
    assert run.scheduler.life.phase is Phase.RUNNING


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


def test_a_learner_that_never_begins_ends_the_run() -> None:
    run = Run()
    run.tick(TIMEOUTS.learner_task_s)
    with pytest.raises(WorkerSilentError, match="rank 1 has been silent for 601 s"):
        run.tick(TIMEOUTS.learner_task_s + 1)


def test_a_learner_that_has_asked_for_data_may_take_its_time() -> None:
    run = Run()
    run.ask(1)
    assert run.tick(1e6) == []
