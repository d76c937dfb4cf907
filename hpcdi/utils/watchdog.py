"""Time limits for work that may hang: a rank that hangs wastes the whole allocation."""

from __future__ import annotations

import faulthandler
import math
import signal
import sys
import threading
import time

_STACKS_FIRST_S = 2.0
"""Seconds before the end at which the stacks are printed."""
_ARM_EVERY_S = 1.0


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
