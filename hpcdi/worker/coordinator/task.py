"""Tasks as the coordinator sees them: who is free, who does what, and what takes too long."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TypeAlias

from hpcdi.comm.messages import CollectTask, LearnTask, WorkerReady
from hpcdi.errors import WorkerSilentError
from hpcdi.worker.adapter import LearnerAggregator
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


Notice: TypeAlias = TaskLate | RankQuiet

QUIET_S = 60.0
"""After so long without a word one wonders whether a rank hangs."""


@dataclass
class RunningTask:
    """A task that was given to a worker.

    Attributes:
        task: what was ordered.
        rank: who does it.
        started: when it was ordered (the scheduler's clock).
        heard: when its worker said something about it, at last.
        has_begun: its worker has said something about it.
        closing: when it was told to end; None: it was not.
        is_told: whether `TaskBook.late` has told of it.
        is_quiet: whether `TaskBook.quiet` has told of it, since it was heard.
    """

    task: Task
    rank: int
    started: float
    heard: float
    has_begun: bool = False
    closing: float | None = None
    is_told: bool = False
    is_quiet: bool = False


class TaskBook:
    """Who is free, and who does what.

    Args:
        collector_timeout_s: seconds that a collector may take to end a task when it is told to;
            then another is asked.
        learner_timeout_s: seconds that a learner may take until it asks for its first data.
        learners: the group of learners, who do a task together; one is a group, too.
    """

    def __init__(
        self,
        collector_timeout_s: float,
        learner_timeout_s: float,
        learners: LearnerAggregator,
    ) -> None:
        self.learners = learners
        self._collector_timeout_s = collector_timeout_s
        self._learner_timeout_s = learner_timeout_s
        self._resources = NaiveResourceManager()
        self._running: dict[tuple[str, int], RunningTask] = {}

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
            self._running[task.task_id, rank] = RunningTask(task, rank, now, now)
        return sorted(ranks)

    def begun(self, task_id: str, rank: int, now: float) -> RunningTask | None:
        """A worker has said something about its task; gives what is known of it."""
        running = self._running.get((task_id, rank))
        if running is not None:
            running.has_begun, running.heard, running.is_quiet = True, now, False
        return running

    def quiet(self, now: float, waiting: Container[int]) -> list[tuple[int, RankQuiet]]:
        """Ranks that have not been heard of for long, each told once, but for those `waiting`."""
        quiet = []
        for running in self._running.values():
            waited_s = now - running.heard
            if waited_s >= QUIET_S and not running.is_quiet and running.rank not in waiting:
                running.is_quiet = True
                quiet.append((running.rank, RankQuiet(running.task.task_id, waited_s)))
        return quiet

    def finish(self, task_id: str, kind: str, rank: int) -> None:
        """A task has ended: its worker is free. Of a task that was not given out: nothing."""
        running = self._running.pop((task_id, rank), None)
        if running is not None:
            self._resources.release(kind, str(rank))

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

    def check_learners(self, now: float) -> None:
        """See that learners have begun their tasks.

        Raises:
            WorkerSilentError: one has not, for too long.
        """
        for running in self._running.values():
            waited_s = now - running.started
            is_waiting = isinstance(running.task, LearnTask) and not running.has_begun
            if is_waiting and waited_s > self._learner_timeout_s:
                raise WorkerSilentError(running.rank, waited_s, "that it was ready")

    def _is_late(self, running: RunningTask, now: float) -> bool:
        """Whether a task need not be waited for: it is open, or was told to end too long ago."""
        return running.closing is None or now - running.closing >= self._collector_timeout_s
