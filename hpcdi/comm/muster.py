"""Ranks that wait for each other with a limit, and say for whom they wait.

For programs that look whether the machine is in order: there a rank that does not come is a result,
not an accident.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from mpi4py import MPI

from hpcdi.utils.backoff import Backoff
from hpcdi.utils.threads import BackgroundThread

T = TypeVar("T")
R = TypeVar("R")

_LOOK_S = 0.1


@dataclass(frozen=True)
class Patience:
    """How long a rank waits.

    Attributes:
        notice_s: after this it says for whom it waits.
        grace_s: this much longer do the ranks wait that only wait for rank 0, which names the
            missing ones.
    """

    notice_s: float = 20.0
    grace_s: float = 5.0


@dataclass(frozen=True)
class _Step:
    name: str
    begun: float
    limit_s: float
    is_quiet: bool


class Watch:
    """A clock beside this rank's work: says when a step takes long, and ends it at its limit.

    Args:
        patience: how long is long.
        say: takes a line for people.
        end: called with a step's name and what it waited for when the step's time is over; has to
            end the job, since the rank's own thread hangs.
    """

    def __init__(
        self, patience: Patience, say: Callable[[str], None], end: Callable[[str, str], None]
    ) -> None:
        self._patience, self._say, self._end = patience, say, end
        self._step = _Step("", time.monotonic(), float("inf"), is_quiet=True)
        self._waits_for = ""
        self._closed = threading.Event()
        self._thread = BackgroundThread(self._run, "watch")

    def begin(self, name: str, limit_s: float, waits_for: str = "") -> None:
        """A step begins; the one before has ended."""
        self._waits_for = waits_for
        self._step = _Step(name, time.monotonic(), limit_s, is_quiet=False)

    def wait_for(self, whom: str) -> None:
        """Say what the step is waiting for now."""
        self._waits_for = whom

    def rest(self) -> None:
        """Only rank 0 is waited for, which does the talking: say nothing, and wait longer."""
        step = self._step
        self._waits_for = "rank 0"
        limit_s = step.limit_s + self._patience.grace_s
        self._step = _Step(step.name, step.begun, limit_s, is_quiet=True)

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        noticed: str | None = None
        while not self._closed.wait(_LOOK_S):
            step = self._step
            waited_s = time.monotonic() - step.begun
            if waited_s > step.limit_s:
                self._end(step.name, self._waits_for)
                return
            if waited_s > self._patience.notice_s and not step.is_quiet and noticed != step.name:
                noticed = step.name
                self._say(f"check {step.name!r}: {waited_s:.0f} s, waiting for {self._waits_for}")


class Muster:
    """Ranks report to rank 0, which answers them all; nobody blocks in MPI while it waits.

    Args:
        comm: communicator of all ranks; a duplicate is taken (collective).
        watch: told for whom this rank waits.
        name: how missing ranks are called.
    """

    def __init__(self, comm: MPI.Intracomm, watch: Watch, name: Callable[[list[int]], str]) -> None:
        self._comm = comm.Dup()
        self._watch, self._name = watch, name
        self._round = 0

    def gather(self, value: T, answer: Callable[[list[T]], R]) -> R:
        """What rank 0 makes of everybody's `value`, on every rank (collective).

        Args:
            value: this rank's report.
            answer: called on rank 0 with the reports in the order of ranks.
        """
        self._round += 1
        if self._comm.rank:
            self._watch.rest()
            sending = self._comm.isend(value, 0, self._round)
            answered: R = self._next()[1]
            sending.wait()
            return answered
        reports = {0: value}
        while missing := [rank for rank in range(self._comm.size) if rank not in reports]:
            self._watch.wait_for(self._name(missing))
            rank, report = self._next()  # type: tuple[int, T]
            reports[rank] = report
        made = answer([reports[rank] for rank in range(self._comm.size)])
        for sending in [
            self._comm.isend(made, rank, self._round) for rank in range(1, self._comm.size)
        ]:
            sending.wait()
        return made

    def _next(self) -> tuple[int, T]:
        """Source and content of the next message of this round."""
        backoff = Backoff(longest_s=10e-3)
        status = MPI.Status()
        while True:
            message = self._comm.improbe(MPI.ANY_SOURCE, self._round, status)
            if message is not None:
                return status.Get_source(), message.recv()
            backoff.nap()
