"""Tasks as the coordinator sees them: who is free, who does what, and what takes too long."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TypeAlias

from hpcdi.comm.messages import CollectTask, LearnTask, WorkerFailed, WorkerReady
from hpcdi.errors import WorkerSilentError
from hpcdi.worker.adapter import LearnerAggregator
from hpcdi.worker.coordinator.counters import Timeouts
from hpcdi.worker.coordinator.resource_manager import NaiveResourceManager

Task: TypeAlias = CollectTask | LearnTask


@dataclass(frozen=True)
class TaskLate:
    """A collector has been told to end a task and has not done so."""

    task_id: str
    waited_s: float


@dataclass(frozen=True)
class RankQuiet:
    """A rank with something to do has said nothing of it for long."""

    task_id: str
    waited_s: float


@dataclass(frozen=True)
class DiesAlone:
    """A rank has raised, and the others go on without it."""

    failure: WorkerFailed


@dataclass(frozen=True)
class ComesBack:
    """A collector without environments has paused for long enough: it may make them anew."""


Notice: TypeAlias = TaskLate | RankQuiet | DiesAlone | ComesBack

QUIET_S = 60.0
"""After so long without a word one wonders whether a rank hangs."""


@dataclass
class RunningTask:
    """A task that was given to a worker.

    Attributes:
        task: what was ordered.
        rank: who does it.
        started: when it was ordered (the scheduler's clock).
        has_begun: its worker has said something about it.
        closing: when it was told to end; None: it was not.
        is_told: whether `TaskBook.late` has told of it.
    """

    task: Task
    rank: int
    started: float
    has_begun: bool = False
    closing: float | None = None
    is_told: bool = False


class TaskBook:
    """Who is free, and who does what.

    Args:
        timeouts: how long a collector may take to end a task when it is told to, before another is
            asked; a learner, until it asks for its first data; a worker with a task, between two
            words of any kind.
        learners: the group of learners, who do a task together; one is a group, too.
    """

    def __init__(self, timeouts: Timeouts, learners: LearnerAggregator) -> None:
        self.learners = learners
        self._timeouts = timeouts
        self._resources = NaiveResourceManager()
        self._running: dict[tuple[str, int], RunningTask] = {}
        self._heard: dict[int, tuple[float, str]] = {}  # rank -> when at last, and what it said
        self._told_quiet: set[int] = set()  # ranks whose silence has been told

    def add_worker(self, rank: int, ready: WorkerReady) -> None:
        """A worker is there, and free."""
        if ready.role == "learner":
            self.learners.join(rank, ready)
        self._resources.update(ready.role, str(rank), {"gpu": ready.gpus, "cpu": ready.cpus})

    def has_free(self, kind: str) -> bool:
        """Whether a "collector" is free, or the whole group of "learner"s."""
        return self._resources.free_count(kind) >= self._hands(kind)

    def _hands(self, kind: str) -> int:
        return self.learners.size if kind == "learner" else 1

    def give(self, kind: str, task: Task, now: float) -> list[int]:
        """Give a task to those who are free for it; gives their ranks in order."""
        assign = (
            self._resources.assign_learner
            if kind == "learner"
            else self._resources.assign_collector
        )
        ranks = []
        for _ in range(self._hands(kind)):
            assigned = assign(task)
            if assigned is None:
                raise LookupError(f"no {kind} is free")
            ranks.append(int(assigned[f"{kind}_id"]))
        for rank in ranks:
            self._running[task.task_id, rank] = RunningTask(task, rank, now)
        return sorted(ranks)

    def begun(self, task_id: str, rank: int) -> RunningTask | None:
        """A worker has said something about its task; gives what is known of it."""
        running = self._running.get((task_id, rank))
        if running is not None:
            running.has_begun = True
        return running

    def heard(self, rank: int, said: str, now: float) -> None:
        """A worker has said something, be it that it is alive."""
        self._heard[rank] = (now, said)
        self._told_quiet.discard(rank)

    def _heard_of(self, running: RunningTask) -> tuple[float, str]:
        """When a worker was heard of at last since it has its task, and what it said."""
        return max((running.started, "nothing"), self._heard.get(running.rank, (0.0, "")))

    def notices(self, now: float, waiting: Container[int]) -> list[tuple[int, Notice]]:
        """What people should know of ranks that do not do what they should, each told once.

        Args:
            now: the scheduler's clock.
            waiting: ranks that have asked for something and are not answered yet.
        """
        return [*self.late(now), *self.quiet(now, waiting)]

    def quiet(self, now: float, waiting: Container[int]) -> list[tuple[int, RankQuiet]]:
        """Ranks that have not been heard of for long, each told once, but for those `waiting`."""
        quiet = []
        for running in self._running.values():
            since, _ = self._heard_of(running)
            is_told, waited_s = running.rank in self._told_quiet, now - since
            if waited_s >= QUIET_S and not is_told and running.rank not in waiting:
                self._told_quiet.add(running.rank)
                quiet.append((running.rank, RankQuiet(running.task.task_id, waited_s)))
        return quiet

    def finish(self, task_id: str, kind: str, rank: int) -> Task | None:
        """A task has ended: its worker is free. Of a task that was not given out: nothing."""
        running = self._running.pop((task_id, rank), None)
        if running is None:
            return None
        self._resources.release(kind, str(rank))
        return running.task

    def lose(self, rank: int) -> list[RunningTask]:
        """A worker has died; gives what it was doing."""
        lost = [task for task in self._running.values() if task.rank == rank]
        for running in lost:
            del self._running[running.task.task_id, rank]
        for kind in ("collector", "learner"):
            self._resources.delete(kind, str(rank))
        return lost

    def collecting(self) -> list[int]:
        """Ranks that collect and have not been told to end."""
        return [
            t.rank
            for t in self._running.values()
            if isinstance(t.task, CollectTask) and not t.task.eval_flag and t.closing is None
        ]

    def choose_to_close(self, now: float) -> RunningTask | None:
        """The collect task that should make room, the oldest; None while one is making room."""
        running = self._running.values()
        collecting = [
            t for t in running if isinstance(t.task, CollectTask) and not t.task.eval_flag
        ]
        open_tasks = [task for task in collecting if task.closing is None]
        if not open_tasks or any(not self._is_late(task, now) for task in collecting):
            return None
        oldest = min(open_tasks, key=lambda task: task.started)
        oldest.closing = now
        return oldest

    def close_surplus(self, space: int, now: float) -> list[RunningTask]:
        """Collect tasks to end where more are under way than there is `space` for, newest first."""
        staying = [
            (running, running.task.eval_flag)
            for running in self._running.values()
            if isinstance(running.task, CollectTask) and running.closing is None
        ]
        newest_first = sorted(
            (running for running, is_evaluation in staying if not is_evaluation),
            key=lambda running: running.started,
            reverse=True,
        )
        surplus = newest_first[: max(len(staying) - space, 0)]
        for task in surplus:
            task.closing = now
        return surplus

    def late(self, now: float) -> list[tuple[int, TaskLate]]:
        """Collect tasks that were told to end too long ago, each told once, with their rank."""
        late = []
        for running in self._running.values():
            if running.closing is None or running.is_told:
                continue
            if self._is_late(running, now):
                running.is_told = True
                waited_s = now - running.closing
                late.append((running.rank, TaskLate(running.task.task_id, waited_s)))
        return late

    def check(self, now: float) -> None:
        """See that learners have begun their tasks, and that all workers are heard of.

        Raises:
            WorkerSilentError: one has not, or is not, for too long.
        """
        for running in self._running.values():
            heard_at, said = self._heard_of(running)
            silent_s = now - heard_at
            if silent_s > self._timeouts.silence_s:
                raise WorkerSilentError(running.rank, silent_s, said)
            waited_s = now - running.started
            is_waiting = isinstance(running.task, LearnTask) and not running.has_begun
            if is_waiting and waited_s > self._timeouts.learner_task_s:
                raise WorkerSilentError(running.rank, waited_s, "that it was ready")

    def _is_late(self, running: RunningTask, now: float) -> bool:
        """Whether a task need not be waited for: it is open, or was told to end too long ago."""
        return running.closing is None or now - running.closing >= self._timeouts.collector_task_s
