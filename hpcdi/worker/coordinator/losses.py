"""What the scheduler does with a worker less: one has died, or can do nothing for a while."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import starmap

from hpcdi.comm.fault_messages import Regroup, TaskReturned
from hpcdi.comm.messages import CollectTask, LearnResult, Leave, Message, WorkerFailed
from hpcdi.errors import EXIT_FAILED
from hpcdi.worker.coordinator.commanders import BaseCommander
from hpcdi.worker.coordinator.crew import Crew
from hpcdi.worker.coordinator.lifecycle import Lifecycle, Order, Outcome
from hpcdi.worker.coordinator.replay import ReplayManager
from hpcdi.worker.coordinator.snapshots import SnapshotClock
from hpcdi.worker.coordinator.task import ComesBack, DiesAlone, Notice, TaskBook


class WithLosses(ABC):
    """The part of the scheduler that deals with losses."""

    life: Lifecycle
    replay: ReplayManager
    snapshots: SnapshotClock
    commander: BaseCommander
    crew: Crew
    _book: TaskBook
    _observe: Callable[[int, Message | Notice], None]

    @abstractmethod
    def stop(self, outcome: Outcome, now: float) -> list[Order]:
        """End the run, after a last snapshot."""

    @abstractmethod
    def _assign(self, now: float) -> list[Order]: ...

    @abstractmethod
    def _serve(self) -> list[Order]: ...

    @abstractmethod
    def _learners_done(self, result: LearnResult, now: float) -> list[Order]: ...

    def _worker_failed(self, message: WorkerFailed, rank: int, now: float) -> list[Order]:
        """A worker has raised: that ends the run, or it is to die, and then it is lost."""
        if not self.life.survival.goes_on_after_error(rank):
            return self.life.failed(rank, message, now)
        self._observe(rank, DiesAlone(message))
        return [Order(rank, Leave(EXIT_FAILED, alone=True))]

    def _rank_lost(self, rank: int, now: float) -> list[Order]:
        """A worker has died: its tasks go to others, or the run ends."""
        survival = self.life.survival
        if not self.life.is_on:
            return self.life.lost(rank)
        why, who = survival.why_not_without(rank), survival.who(rank)
        self.life.lost(rank)
        if why:
            reason = f"{who} has died, and the run cannot go on without it: {why}"
            outcome = Outcome("failed", reason, EXIT_FAILED)
            can_keep = survival.role_of(rank) != "learner"  # its part would be missing
            return self.stop(outcome, now) if can_keep else self.life.stop(outcome, now)
        role = survival.lose(rank)
        for running in self._book.lose(rank):
            if isinstance(running.task, CollectTask):
                self.commander.notify_fail_collector_task(running.task)
        if role == "learner":
            return self._learner_lost(rank, now)
        self.crew.lose(rank)
        return [*self._assign(now), *self._serve()]

    def _learner_lost(self, rank: int, now: float) -> list[Order]:
        """The other learners form their group anew, and share the data."""
        result = self._book.learners.lose(rank)
        self.snapshots.lose(rank)
        ranks = tuple(self._book.learners.members)
        survival = self.life.survival
        regroup = Regroup(len(survival.lost), ranks, survival.hosts(ranks))
        orders = [Order(learner, regroup) for learner in ranks]
        orders += starmap(Order, self.replay.lose(rank))
        return orders if result is None else [*orders, *self._learners_done(result, now)]

    def _task_returned(self, message: TaskReturned, rank: int, now: float) -> list[Order]:
        """A collector has no environments: others do its work; without others it is over."""
        task = self._book.finish(message.task_id, "collector", rank)
        self._book.lose(rank)
        if isinstance(task, CollectTask):
            self.commander.notify_fail_collector_task(task)
        self.crew.rest(rank, now)
        left = self.crew.there
        if left >= self.life.survival.collectors_needed:
            return self._assign(now) if self.life.is_on else []
        some = "1 collector has" if left == 1 else f"{left} collectors have"
        few = f"only {some}" if left else "no collector has"
        reason = f"{few} environments left; rank {rank}: {message.reason}"
        return self.stop(Outcome("failed", reason, EXIT_FAILED), now)

    def _come_back(self, now: float) -> None:
        """Collectors that have paused for long enough may make their environments anew."""
        for rank in self.crew.take_rested(now):
            self._book.add_worker(rank, self.life.survival.report_of(rank))
            self._observe(rank, ComesBack())
