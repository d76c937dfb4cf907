"""Fault injection: kills, errors, hangs and full disks on request, to test what a run survives.

Off by default; a call then costs one look at an empty list. Each role calls `FAULTS` at one place
of its loop::

    collector    after each step of its environments        `advance(transitions)`
    learner      before each batch                          `reach(train iterations)`
    coordinator  at each turn of its loop                   `reach(seconds)`

Faults belong to a process, which is one rank: so there is one `FAULTS` in it. In `hpcdi serial` the
collector's steps count.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from hpcdi.config.schema import FaultConfig
from hpcdi.store.atomic import pretend_full
from hpcdi.types import ShardRef
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.log import LOGGER

_FOREVER_S = 10 * 365 * 86400.0


class InjectedFault(RuntimeError):
    """Raised by a fault of kind "raise"."""


class Faults:
    """The faults that this rank is to suffer."""

    def __init__(self) -> None:
        self._armed: list[tuple[float, FaultConfig]] = []  # due at: seconds or steps
        self._began, self._step, self._counts = 0.0, 0, ""
        self._requested: list[str] = []  # kinds that the role itself has to make

    def arm(
        self,
        faults: Iterable[FaultConfig],
        rank: int,
        role: str,
        restarts: int,
        counts: str | None = None,
    ) -> None:
        """Take the faults for this rank in this part of the run; their clock starts.

        Args:
            faults: of the experiment.
            rank: in the world.
            role: of the rank.
            restarts: how often the run was resumed.
            counts: role whose steps count, where several are in this process; None: `role`.
        """
        self._began, self._step, self._counts = time.monotonic(), 0, counts or role
        self._requested = []
        self._armed = [
            (float(fault.at_step or fault.after_s or 0), fault)
            for fault in faults
            if restarts == fault.restart and (fault.rank == rank or fault.role == role)
        ]

    def advance(self, steps: int, role: str) -> None:
        """Count more steps; see `reach`."""
        if self._armed:
            self.reach(self._step + steps, role)

    def reach(self, step: int, role: str) -> None:
        """Inject the faults that are due.

        Args:
            step: steps done so far.
            role: that did them.

        Raises:
            InjectedFault: one of kind "raise" is due.
        """
        if not self._armed or role != self._counts:
            return
        self._step = step
        elapsed_s = time.monotonic() - self._began
        for armed in list(self._armed):
            due, fault = armed
            now = elapsed_s if fault.at_step is None else step
            if now < due:
                continue
            self._armed.remove(armed)
            if fault.every is not None:
                self._armed.append((now + fault.every, fault))
            self._inject(fault, step)

    def requests(self, kind: str) -> bool:
        """Returns whether the role has to make a fault of this kind now; true once for each."""
        if kind not in self._requested:
            return False
        self._requested.remove(kind)
        return True

    def _inject(self, fault: FaultConfig, step: int) -> None:
        settings = {k: v for k, v in dataclasses.asdict(fault).items() if v is not None}
        extra = {"fault": settings}
        LOGGER.warning("injected fault: %s, at step %d", fault.kind, step, extra=extra)
        seconds = _FOREVER_S if fault.seconds is None else fault.seconds
        match fault.kind:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":  # as a native simulator does
                ctypes.CDLL(None)._exit(3)
            case "raise":
                raise InjectedFault(f"an injected fault, at step {step}")
            case "hang":
                wait_s(seconds)
            case "enospc":
                pretend_full(seconds)
            case _:
                self._requested.append(fault.kind)


FAULTS = Faults()
"""Of this process."""


def hang_environment(child_pids: Sequence[int]) -> None:
    """Stop an environment's child process, or else this thread, for ever."""
    if child_pids:
        os.kill(child_pids[0], signal.SIGSTOP)
    else:
        wait_s(_FOREVER_S)


def tear(path: Path, block: ShardRef) -> None:
    """Clear the second half of a block's columns, like a file system that ignores fsync."""
    with path.open("r+b") as file:
        for spec in block.columns:
            kept = spec.n_bytes // 2
            file.seek(spec.offset + kept)
            file.write(bytes(spec.n_bytes - kept))
