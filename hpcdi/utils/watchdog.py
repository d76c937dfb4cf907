"""Time limits for work that may hang: a rank that hangs wastes the whole allocation."""

from __future__ import annotations

import dataclasses
import faulthandler
import math
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from hpcdi.utils.threads import BackgroundThread

_STACKS_FIRST_S = 2.0
"""Seconds before the end at which the stacks are printed."""
_ARM_EVERY_S = 1.0
_LOOK_S = 0.1


class Waiting:
    """``with WAITING:`` around waiting for other processes, which have their own watchdogs."""

    def __init__(self) -> None:
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_error: object) -> None:
        self._depth -= 1

    def __bool__(self) -> bool:
        return self._depth > 0


WAITING = Waiting()
"""The one of this process."""


class Watchdog:
    """Prints the stacks of all threads and kills the process when it makes no progress.

    That needs no Python code to run, which may be what hangs: faulthandler's own thread prints the
    stacks, and the kernel's timer sends SIGALRM. A signal shows the parent that the process was
    killed.

    Args:
        limit_s: seconds that may pass without progress; infinite: no limit.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._seen: object = None
        self._armed = -math.inf
        self._lock = threading.Lock()  # between `look` and `close`

    def look(self, moved: object) -> None:
        """Call often, from any thread; `moved` is any value that changes with every progress."""
        now = time.monotonic()
        with self._lock:
            if moved == self._seen or now - self._armed < _ARM_EVERY_S or math.isinf(self._limit_s):
                return
            self._seen, self._armed = moved, now
            signal.setitimer(signal.ITIMER_REAL, self._limit_s)
            stacks_s = max(self._limit_s - _STACKS_FIRST_S, self._limit_s / 2)
            faulthandler.dump_traceback_later(stacks_s, file=sys.__stderr__ or sys.stderr)

    def close(self) -> None:
        """Disarm for good, even if `look` is called again. Idempotent."""
        with self._lock:
            self._limit_s = math.inf
            if self._armed > -math.inf:
                self._armed = -math.inf
                signal.setitimer(signal.ITIMER_REAL, 0.0)
                faulthandler.cancel_dump_traceback_later()


@dataclass(frozen=True)
class Patience:
    """Patience of a rank that waits.

    Attributes:
        notice_s: seconds after which it prints which ranks it waits for.
        grace_s: seconds that other ranks wait longer than rank 0, which names the missing ones.
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
    """Watches this rank's steps from a thread: prints when one takes long, ends it at its limit.

    Args:
        patience: how long is long.
        say: prints a line.
        end: called with a step's name and what it waits for when its time is over; has to end the
            job, because the rank's own thread hangs.
        is_patient: for ranks other than 0, so that rank 0 reports first.
    """

    def __init__(
        self,
        patience: Patience,
        say: Callable[[str], None],
        end: Callable[[str, str], None],
        *,
        is_patient: bool = False,
    ) -> None:
        self._notice_s, self._say, self._end = patience.notice_s, say, end
        self._extra_s = patience.grace_s if is_patient else 0.0
        self._step = _Step("", time.monotonic(), float("inf"), is_quiet=True)
        self._waits_for = ""
        self._closed = threading.Event()
        self._thread = BackgroundThread(self._run, "watch")

    def begin(self, name: str, limit_s: float, waits_for: str = "") -> None:
        """Start a step, which ends the one before."""
        self._waits_for = waits_for
        self._step = _Step(name, time.monotonic(), limit_s + self._extra_s, is_quiet=False)

    def wait_for(self, whom: str) -> None:
        """Set what the step waits for now."""
        self._waits_for = whom

    def rest(self) -> None:
        """This rank's part is done; rank 0 reports: print nothing before the limit."""
        self._waits_for = "rank 0"
        self._step = dataclasses.replace(self._step, is_quiet=True)

    def close(self) -> None:
        """Stop the thread."""
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
            if waited_s > self._notice_s and not step.is_quiet and noticed != step.name:
                noticed = step.name
                self._say(f"{step.name!r} takes {waited_s:.0f} s, waiting for {self._waits_for}")
