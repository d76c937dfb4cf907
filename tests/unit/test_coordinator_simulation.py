"""Whole runs with simulated workers: whatever happens in whatever order, every run ends well."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from test_coordinator_desk import make_desk
from test_coordinator_partition import block
from test_coordinator_scheduler import EVERY_S, STOP_VALUE, TIMEOUTS, experiment

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
    Stop,
    StopRequest,
    WorkerFailed,
    WorkerReady,
)
from hpcdi.worker.adapter import LearnerAggregator
from hpcdi.worker.coordinator.base_parallel_commander import create_parallel_commander
from hpcdi.worker.coordinator.lifecycle import Order
from hpcdi.worker.coordinator.scheduler import Scheduler
from hpcdi.worker.coordinator.snapshots import SnapshotClock

LEARNER, COLLECTORS = 1, (2, 3, 4)
RANKS = (LEARNER, *COLLECTORS)
ITERATIONS = 14
MAX_ENV_STEP = 400


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
                self.said.append(BlockAdmitted("buffer", message.block_id, 0.0))
            case Batches():
                self.learn(len(message.rows))

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

    def work(self, chance: int) -> None:
        if self.task.eval_flag:
            if chance < 3:
                self.end_task(np.array([STOP_VALUE + 5]) if chance == 0 else np.array([1.0, 2.0]))
            return
        self.steps += 1
        none = np.zeros(0)
        if chance < 6:
            self.blocks += 1
            self.said.append(block(1000 * self.rank + self.blocks, [3, 4]))
        self.said.append(
            CollectProgress(self.task.task_id, 7, none, none.astype(np.int64), self.steps, {})
        )

    def end_task(self, returns: Any = None) -> None:
        if self.task is not None:
            returns = np.zeros(0) if returns is None else returns
            lengths = np.ones(len(returns), np.int64)
            ended, self.task = self.task, None
            self.said.append(
                CollectResult(ended.task_id, ended.eval_flag, 1, 7, 1.0, returns, lengths)
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
                    self.task.task_id, "buffer", self.under_way, 4, self.iterations, ids,
                    np.ones(len(ids)),
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


class World:
    """Rank 0's scheduler, the workers, and a clock."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(
            create_parallel_commander(experiment(max_env_step=MAX_ENV_STEP)), make_desk(),
            LearnerAggregator({"learner": [1]}), SnapshotClock(math.inf), RANKS,
            TIMEOUTS,
        )  # fmt: skip
        self.now = 0.0
        self.workers: dict[int, Any] = {rank: SimulatedCollector(rank) for rank in COLLECTORS}
        self.workers[LEARNER] = SimulatedLearner(LEARNER)
        self.sent: dict[int, list[Message]] = {rank: [] for rank in RANKS}

    def post(self, orders: list[Order]) -> None:
        for order in orders:
            self.sent[order.rank].append(order.message)
            self.workers[order.rank].inbox.append(order.message)

    def hear(self, rank: int, _chance: int = 0) -> None:
        if self.workers[rank].said and not self.scheduler.finished:
            message = self.workers[rank].said.popleft()
            self.post(self.scheduler.handle(message, rank, self.now))

    def step(self, rank: int, chance: int) -> None:
        self.workers[rank].step(chance)

    def wait(self, _rank: int, chance: int) -> None:
        self.now += chance * EVERY_S / 10
        self.post(self.scheduler.tick(self.now))

    def fail(self, rank: int, chance: int) -> None:
        if chance < 4:
            self.workers[rank].fail()

    def signal(self, rank: int, chance: int) -> None:
        if chance == 0:
            self.workers[rank].said.append(StopRequest("SIGINT", 130))

    def finish(self, mute: set[int]) -> None:
        """A signal at the latest; then everybody but `mute` goes on until the end.

        Time stands still where nobody is mute: an orderly end waits for no deadline.
        """
        self.post(self.scheduler.handle(StopRequest("SIGTERM", 85), 0, self.now))
        for _ in range(400):
            if self.scheduler.finished:
                break
            for rank in RANKS:
                if rank not in mute:
                    self.step(rank, 9)
                self.hear(rank)
            self.wait(0, 1 if mute else 0)
        for worker in self.workers.values():
            while worker.inbox:
                worker.step(9)


events = st.lists(
    st.tuples(
        st.sampled_from(["step"] * 5 + ["hear"] * 6 + ["wait", "wait", "fail", "signal"]),
        st.sampled_from(RANKS),
        st.integers(0, 9),
    ),
    min_size=50,  # of its own accord hypothesis makes lists of about five
    max_size=200,
)


def check_end(world: World) -> None:
    """Over, with one outcome, and everybody told to stop at most once and to leave once."""
    assert world.scheduler.finished
    outcome = world.scheduler.life.outcome
    assert outcome is not None
    for rank in RANKS:
        kinds = Counter(type(message) for message in world.sent[rank])
        assert (kinds[Leave], kinds[Stop] <= 1) == (1, True)
        assert world.sent[rank][-1] == Leave(outcome.exit_code)
        tasks = [m for m in world.sent[rank] if isinstance(m, CollectTask | LearnTask)]
        assert len({task.task_id for task in tasks}) == len(tasks)
        told = [isinstance(m, Stop) for m in world.sent[rank]]
        after = world.sent[rank][told.index(True) :] if any(told) else []
        assert not any(task in after for task in tasks)
    failed = any(worker.state == "failed" for worker in world.workers.values())
    assert (outcome.state == "failed") <= failed


@settings(max_examples=50, deadline=None)
@given(events, st.sets(st.sampled_from(RANKS), max_size=2))
def test_every_run_ends(events: list[tuple[str, int, int]], mute: set[int]) -> None:
    world = World()
    for kind, rank, chance in events:
        getattr(world, kind)(rank, chance)
    world.finish(mute)
    check_end(world)


def test_the_simulation_reaches_every_end() -> None:
    """A fair run with nothing planted ends by each of its three goals, for some seed."""
    ends = Counter[str]()
    for seed in range(12):
        rng, world = np.random.default_rng(seed), World()
        while world.scheduler.life.is_on and world.now < 500:
            for rank in RANKS:
                for _ in range(int(rng.integers(0, 4))):
                    world.step(rank, int(rng.integers(0, 10)))
                    world.hear(rank)
            world.wait(0, int(rng.integers(0, 4)))
        world.finish(set())
        check_end(world)
        outcome = world.scheduler.life.outcome
        assert outcome is not None
        assert outcome.state == "done"
        ends[outcome.reason.split(":")[0]] += 1
    assert ends.keys() == {
        "stop value reached", "max_env_step reached", "the learner has done its iterations",
    }  # fmt: skip
