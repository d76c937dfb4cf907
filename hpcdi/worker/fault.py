"""Faults on purpose, so that users can test what their runs bear.

Off by default, and then a call costs one look at an empty list. Each role calls `FAULTS` at one
place of its loop::

    collector    after each step of its environments        `advance(transitions)`
    learner      before each batch                          `reach(train iterations)`
    coordinator  at each turn of its loop                   `reach(seconds)`
    serial run   at each turn of its loop                   `reach(env steps)`

A process is one rank, and a fault is one of the process: so there is one `FAULTS` in it.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdi.config.schema import FaultConfig
from hpcdi.store.atomic import pretend_full
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.log import LOGGER

_FOREVER_S = 10 * 365 * 86400.0


class InjectedFault(RuntimeError):
    """What the fault of kind "raise" raises."""


@dataclass
class _Armed:
    """A fault that is to strike.

    Attributes:
        config: what it is.
        due: seconds since the start, or steps, at which it strikes next.
    """

    config: FaultConfig
    due: float


class Faults:
    """The faults that this rank is to have."""

    def __init__(self) -> None:
        self._armed: list[_Armed] = []
        self._began, self._step = 0.0, 0
        self._owed: list[str] = []

    def arm(self, faults: Iterable[FaultConfig], rank: int, role: str, restarts: int) -> None:
        """Take the faults that are meant for this rank in this part of the run; time begins."""
        self._began, self._step = time.monotonic(), 0
        self._owed = []
        self._armed = [
            _Armed(fault, float(fault.at_step or fault.after_s or 0))
            for fault in faults
            if restarts == fault.restart and (fault.rank == rank or fault.role == role)
        ]

    def advance(self, steps: int) -> None:
        """So many more steps are done; see `reach`."""
        if self._armed:
            self.reach(self._step + steps)

    def reach(self, step: int) -> None:
        """Have the faults strike that are due.

        Args:
            step: steps that are done.

        Raises:
            InjectedFault: one of kind "raise" is due.
        """
        if not self._armed:
            return
        self._step = step
        elapsed_s = time.monotonic() - self._began
        for armed in list(self._armed):
            now = elapsed_s if armed.config.at_step is None else step
            if now < armed.due:
                continue
            if armed.config.every is None:
                self._armed.remove(armed)
            else:
                armed.due = now + armed.config.every
            self._strike(armed.config, step)

    def takes(self, kind: str) -> bool:
        """Whether a fault has struck that the role itself has to make; true once for each."""
        if kind not in self._owed:
            return False
        self._owed.remove(kind)
        return True

    def _strike(self, fault: FaultConfig, step: int) -> None:
        told = {k: v for k, v in dataclasses.asdict(fault).items() if v is not None}
        LOGGER.warning(
            "a fault on purpose: %s, at step %d", fault.kind, step, extra={"fault": told}
        )
        seconds = _FOREVER_S if fault.seconds is None else fault.seconds
        match fault.kind:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                raise InjectedFault(f"a fault on purpose, at step {step}")
            case "hang":
                wait_s(seconds)
            case "enospc":
                pretend_full(seconds)
            case _:
                self._owed.append(fault.kind)


FAULTS = Faults()
"""Of this process."""


def hang_environment(child_pids: Sequence[int]) -> None:
    """Have an environment hang: a child process stands still, or else this thread does."""
    if child_pids:
        os.kill(child_pids[0], signal.SIGSTOP)
    else:
        wait_s(_FOREVER_S)


def tear(path: Path) -> None:
    """Cut a file to its first half, as a file system that lies about fsync does."""
    os.truncate(path, path.stat().st_size // 2)
