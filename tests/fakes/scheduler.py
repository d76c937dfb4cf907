"""Schedulers under test: with one learner, with several, with a record of the run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fakes.replay import make_groups, rollout
from hpcdi.comm.messages import (
    AdmitBlock,
    CollectProgress,
    CollectResult,
    CollectTask,
    DataDemand,
    LearnInfo,
    LearnTask,
    Message,
    WorkerReady,
)
from hpcdi.config.compiled import compile_config
from hpcdi.roles.coordinator.commander import Commander
from hpcdi.roles.coordinator.scheduler import Scheduler
from hpcdi.roles.coordinator.snapshots import SnapshotClock
from hpcdi.roles.coordinator.view import RunRecord
from hpcdi.roles.coordinator.workers import Order, Timeouts, Workers
from hpcdi.types import Array

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

    def __init__(
        self, collectors: int = 2, *, learners: int = 1, ready: bool = True, **commander: Any
    ) -> None:
        self.seen: list[tuple[int, Message]] = []
        self.ranks = list(range(1, learners + collectors + 1))
        self.groups = make_groups(learners)
        self.main = self.groups.main
        self.scheduler = Scheduler(
            Commander(experiment(**commander), self.groups),
            SnapshotClock(math.inf),
            Workers(self.ranks, self.groups, timeouts=TIMEOUTS),
            observe=lambda rank, message: self.seen.append((rank, message)),
        )
        self.tasks: dict[int, CollectTask | LearnTask] = {}
        self.blocks = 0
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
        role = "learner" if rank <= self.main.learners.size else "collector"
        return self.hear(rank, WorkerReady(role, "host", 100 + rank), now)

    def learn_info(self, train_iter: int, now: float = 0.0) -> list[Order]:
        return self.hear(1, LearnInfo(self.tasks[1].task_id, train_iter, {"loss": 0.5}, {}), now)

    def ask(self, batches: int, train_iter: int = 0) -> list[Order]:
        """The learner wants batches of four."""
        return self.ask_by(1, train_iter, batches)

    def ask_by(self, rank: int, train_iter: int, batches: int = 1, *, left: int = 0) -> list[Order]:
        """One of the learners wants batches of four, and has yet to learn from `left` of them."""
        none: Array = np.zeros(0)
        task_id = self.tasks[rank].task_id
        waiting = self.scheduler.groups.partitions[rank]._demand
        owed = waiting.batches if waiting is not None else 0
        return self.hear(
            rank,
            DataDemand(
                task_id, batches, 4, train_iter, none.astype(np.int64), none, left + owed + batches
            ),
        )

    def progress(self, rank: int, steps: int, now: float = 0.0, version: int = 0) -> list[Order]:
        task_id = self.tasks[rank].task_id
        returns, lengths = np.array([9.0]), np.array([steps])
        return [
            *self.published(rank, steps, 1, now),
            *self.hear(rank, CollectProgress(task_id, returns, lengths, version, {}), now),
        ]

    def published(self, rank: int, steps: int, episodes: int, now: float = 0.0) -> list[Order]:
        """A small block, that claims so many steps; what learners are to read is left out."""
        self.blocks += 1
        ready = rollout(rank, self.blocks, 0, [1])
        ready.items["item_len"] = steps
        orders = self.hear(rank, dataclasses.replace(ready, episodes=episodes), now)
        return [order for order in orders if not isinstance(order.message, AdmitBlock)]

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


def reason_of(run: Any) -> str:
    outcome = run.scheduler.outcome
    return "" if outcome is None else outcome.reason


LEARNERS, COLLECTORS = (1, 2, 3), (4, 5)


class Group:
    """A scheduler with three learners."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Any]] = []
        self.groups = make_groups(len(LEARNERS))
        self.main = self.groups.main
        self.scheduler = Scheduler(
            Commander(experiment(), self.groups),
            SnapshotClock(math.inf),
            Workers([*LEARNERS, *COLLECTORS], self.groups, timeouts=TIMEOUTS),
            observe=lambda rank, message: self.seen.append((rank, message)),
        )

    def hear(self, rank: int, message: Any, now: float = 0.0) -> list[Order]:
        return self.scheduler.handle(message, rank, now)

    def ready(self, *ranks: int) -> list[Order]:
        orders = []
        for rank in ranks:
            role = "learner" if rank in LEARNERS else "collector"
            orders += self.hear(rank, WorkerReady(role, "host", rank))
        return orders

    def task(self) -> LearnTask:
        orders = self.ready(*LEARNERS)
        (task,) = {order.message for order in orders if isinstance(order.message, LearnTask)}
        return task


INF = float("inf")


class Curves:
    """Keeps the points that it is given, and sees that they are numbers."""

    def __init__(self) -> None:
        self.points: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: float, global_step: int) -> None:
        assert isinstance(value, float | int)
        assert isinstance(global_step, int)
        self.points.append((tag, value, global_step))

    def of(self, tag: str) -> list[tuple[float, int]]:
        return [(value, step) for name, value, step in self.points if name == tag]


class Shown(Run):
    """A run whose scheduler tells a record everything, as the coordinator's does."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.curves, self.looked = Curves(), 0.0
        self.record = RunRecord(self.curves)
        self.scheduler._observe = self.record.observe

    def look(self, now: float) -> None:
        self.looked = now
        self.record.look(self.scheduler, now)

    def collected(
        self, steps: int, *returns: float, version: int = 0, figures: Figures | None = None
    ) -> None:
        lengths = np.full(len(returns), 20, np.int64)
        task_id = self.tasks[2].task_id
        self.published(2, steps, len(returns))
        self.hear(
            2,
            CollectProgress(
                task_id, np.array(returns), lengths, version, {"env": 0.75},
                episode_figures=columns_of(figures),
            ),
        )  # fmt: skip

    def evaluated(self, *returns: float, version: int = 7, figures: Figures | None = None) -> None:
        lengths, said = np.ones(len(returns), np.int64), columns_of(figures)
        result = CollectResult(
            "eval", True, version, 50, 1.5, np.array(returns), lengths, episode_figures=said
        )
        self.hear(3, result)
        self.look(self.looked)


Figures = Mapping[str, Sequence[float]]


def columns_of(figures: Figures | None) -> dict[str, Array]:
    """What environments say of episodes, as messages have it."""
    return {name: np.array(values) for name, values in (figures or {}).items()}


def busy() -> Shown:
    """12,345 steps and 600 iterations after two seconds of looking, 2,000 and 300 a second."""
    run = Shown()
    run.collected(8345, 10.0, 20.0)
    run.learn_info(300)
    run.look(1000.0)
    run.collected(4000, 30.0, version=590)
    run.learn_info(600)
    run.look(1002.0)
    return run
