"""Learners and collectors that a test moves step by step."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fakes.replay import block
from fakes.scheduler import STOP_VALUE
from hpcdi.comm.messages import (
    AdmitBlock,
    Batches,
    BlockAdmitted,
    CloseTask,
    CollectProgress,
    CollectResult,
    CollectTask,
    DataDemand,
    Goodbye,
    LearnInfo,
    LearnResult,
    LearnTask,
    Leave,
    Message,
    SnapshotPart,
    Stop,
    TakeSnapshot,
    WorkerFailed,
    WorkerReady,
)
from hpcdi.types import BLOCK_ID_BITS

LEARNER, COLLECTORS = 1, (2, 3, 4)
RANKS = (LEARNER, *COLLECTORS)
ITERATIONS = 14


@dataclass
class SimulatedWorker:
    """Does one thing at a step, as a real one would; `chance` (0 to 9) says which."""

    rank: int
    inbox: deque[Message] = field(default_factory=deque)
    said: deque[Message] = field(default_factory=deque)
    task: Any = None
    state: str = "unborn"
    heard: Counter[type] = field(default_factory=Counter)

    def step(self, chance: int) -> None:
        if self.state == "unborn":
            self.state = "on"
            role = "learner" if self.rank == LEARNER else "collector"
            self.said.append(WorkerReady(role, "host", self.rank))
        elif self.inbox:
            message = self.inbox.popleft()
            self.heard[type(message)] += 1
            self.take(message)
        elif self.state == "on" and self.task is not None:
            self.work(chance)

    def fail(self) -> None:
        """It raises, says so, and does nothing more but wait until it may leave."""
        if self.state == "on":
            self.state = "failed"
            self.said.append(WorkerFailed("some role", "host", "ValueError: planted", "Traceback"))

    def take(self, message: Message) -> None:
        assert self.heard[Leave] == (1 if isinstance(message, Leave) else 0)  # nothing after it
        if self.state == "failed":
            return
        match message:
            case CollectTask() | LearnTask():
                assert self.task is None, "a task for a worker that has one"
                self.task = message
            case CloseTask() if self.task is not None and message.task_id == self.task.task_id:
                self.end_task()
            case Stop():
                self.end_task()
                self.said.append(Goodbye())
                self.state = "gone"
            case AdmitBlock():
                self.said.append(BlockAdmitted(message.block_id, 0.0))
            case Batches():
                self.learn(len(message.rows))
            case TakeSnapshot():
                self.said.append(SnapshotPart(message.name, {}, 0, 0.0))

    def work(self, chance: int) -> None:
        raise NotImplementedError

    def end_task(self) -> None:
        raise NotImplementedError

    def learn(self, iterations: int) -> None:
        raise AssertionError("a collector was sent batches")


@dataclass
class SimulatedCollector(SimulatedWorker):
    blocks: int = 0
    steps: int = 0
    task_s: float = 1.0  # that each task takes; the next evaluation comes as much later

    def work(self, chance: int) -> None:
        if self.task.eval_flag:
            if chance < 3:
                self.end_task(np.array([STOP_VALUE + 5]) if chance == 0 else np.array([1.0, 2.0]))
            return
        self.steps += 1
        none = np.zeros(0)
        if chance < 6:
            self.blocks += 1
            self.said.append(block((self.rank << BLOCK_ID_BITS) + self.blocks, [3, 4]))
        self.said.append(
            CollectProgress(self.task.task_id, none, none.astype(np.int64), self.steps, {})
        )

    def end_task(self, returns: Any = None) -> None:
        if self.task is not None:
            returns = np.zeros(0) if returns is None else returns
            lengths = np.ones(len(returns), np.int64)
            ended, self.task = self.task, None
            self.said.append(
                CollectResult(ended.task_id, ended.eval_flag, 1, 7, self.task_s, returns, lengths)
            )


@dataclass
class SimulatedLearner(SimulatedWorker):
    goal: int = ITERATIONS
    iterations: int = 0
    under_way: int = 0

    def work(self, chance: int) -> None:
        if self.under_way == 0:
            self.under_way = 1 + chance % 3
            ids = np.arange(5 * chance)
            self.said.append(
                DataDemand(
                    self.task.task_id, self.under_way, 4, self.iterations, ids,
                    np.ones(len(ids)), self.under_way,
                )
            )  # fmt: skip

    def learn(self, iterations: int) -> None:
        if self.task is None:
            return
        self.under_way -= iterations
        assert self.under_way >= 0
        self.iterations += iterations
        self.said.append(LearnInfo(self.task.task_id, self.iterations, {"loss": 1.0}, {}))
        if self.iterations >= self.goal:
            self.said.append(LearnResult(self.task.task_id, self.iterations))
            self.task = None

    def end_task(self) -> None:
        self.task = None
