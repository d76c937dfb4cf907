"""How a run begins and ends: who has come, who has gone, and why it is over."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hpcdi.comm.messages import Goodbye, Leave, Message, Stop, WorkerFailed, WorkerReady
from hpcdi.errors import EXIT_FAILED, WorkerSilentError
from hpcdi.worker.coordinator.survival import Survival

FAILURE_GRACE_S = 3.0
"""How long the others may take to end in order after a rank has failed."""


@dataclass(frozen=True)
class Order:
    """A message to be sent."""

    rank: int
    message: Message


class Phase(Enum):
    """Where a run is in its life; see the package's drawing."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `state` is "done", "stopped" (from outside) or "failed"."""

    state: str
    reason: str
    exit_code: int
    failure: tuple[int, WorkerFailed] | None = None


class Lifecycle:
    """Phases of a run.

    Args:
        workers: ranks that take part, the coordinator not among them.
        start_s: seconds they may take to report.
        stop_s: seconds they may take to end in order.
        survival: without whom the run goes on.
    """

    def __init__(
        self,
        workers: Collection[int],
        start_s: float,
        stop_s: float,
        survival: Survival | None = None,
    ) -> None:
        self.phase = Phase.STARTING if workers else Phase.RUNNING
        self.outcome: Outcome | None = None
        self._expected = frozenset(workers)
        self.survival = survival if survival is not None else Survival()
        self._gone: dict[int, Goodbye] = {}
        self._lost: set[int] = set()
        self._limits = (start_s, stop_s)
        self._deadline = float("inf")

    @property
    def is_on(self) -> bool:
        """Whether tasks are given out."""
        return self.phase in (Phase.STARTING, Phase.RUNNING)

    @property
    def silent(self) -> list[int]:
        """Ranks that have not said goodbye and have not failed."""
        return sorted(self._expected - self._gone.keys() - self._lost)

    @property
    def reports(self) -> dict[int, dict[str, Any]]:
        """What each rank said as it went."""
        return {rank: goodbye.report for rank, goodbye in sorted(self._gone.items())}

    def ready(self, rank: int, message: WorkerReady) -> None:
        """A worker has come."""
        self.survival.come(rank, message)
        if self.phase is Phase.STARTING and self.survival.have_come(self._expected):
            self.phase = Phase.RUNNING

    def goodbye(self, rank: int, message: Goodbye, now: float) -> list[Order]:
        """A worker has gone; the last one ends the run, and so does one that was not told to."""
        self._gone[rank] = message
        left = Outcome("failed", f"rank {rank} left before the end of the run", EXIT_FAILED)
        return self.stop(left, now) or self._leave_if_empty()

    def failed(self, rank: int, message: WorkerFailed, now: float) -> list[Order]:
        """A worker has raised: that ends the run."""
        self._lost.add(rank)
        outcome = Outcome("failed", message.error, message.exit_code, (rank, message))
        if self.outcome is not None and self.outcome.failure is None:
            self.outcome = outcome  # it failed while the run was ending: it was not done after all
            self._deadline = min(self._deadline, now + FAILURE_GRACE_S)
        return self.stop(outcome, now) + self._leave_if_empty()

    def lost(self, rank: int) -> list[Order]:
        """A worker has died: nobody waits for it any more."""
        self._lost.add(rank)
        return self._leave_if_empty()

    def stop(self, outcome: Outcome, now: float) -> list[Order]:
        """End the run; the first reason counts."""
        if not self.is_on:
            return []
        self.phase, self.outcome = Phase.STOPPING, outcome
        self._deadline = now + (FAILURE_GRACE_S if outcome.failure else self._limits[1])
        return [Order(rank, Stop(outcome.reason)) for rank in self.silent] + self._leave_if_empty()

    def tick(self, now: float) -> list[Order]:
        """Look at the clock.

        Raises:
            WorkerSilentError: a worker has not come in time.
        """
        if self.phase is Phase.STARTING:
            self._deadline = min(self._deadline, now + self._limits[0])
            if now > self._deadline:
                missing = min(r for r in self._expected if not self.survival.have_come([r]))
                raise WorkerSilentError(missing, self._limits[0], "nothing since its start")
        if self.phase is Phase.STOPPING and now > self._deadline:
            return self._leave()
        return []

    def _leave_if_empty(self) -> list[Order]:
        if self.phase is not Phase.STOPPING or self.silent:
            return []
        return self._leave()

    def _leave(self) -> list[Order]:
        self.phase = Phase.FINISHED
        exit_code = self.outcome.exit_code if self.outcome is not None else 0
        return [Order(rank, Leave(exit_code)) for rank in sorted(self._expected)]
