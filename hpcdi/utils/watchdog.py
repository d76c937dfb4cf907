"""Ends a process whose work stands still: a rank that hangs burns the whole allocation."""

from __future__ import annotations

import faulthandler
import math
import signal
import sys
import threading
import time

_STACKS_FIRST_S = 2.0
"""So much before the end the stacks are shown."""
_ARM_EVERY_S = 1.0


class Waiting:
    """``with WAITING:`` around waiting for other processes, which have watchdogs of their own."""

    def __init__(self) -> None:
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_error: object) -> None:
        self._depth -= 1

    def __bool__(self) -> bool:
        return self._depth > 0


WAITING = Waiting()
"""Of this process."""


class Watchdog:
    """Shows the stacks of all threads and ends the process, once nothing has moved for too long.

    It needs no Python code to run then, which may be what hangs: the stacks are shown by a thread
    of faulthandler's own, and the end comes as SIGALRM, from the kernel's timer. By a signal, so
    that whoever started the process sees that it was killed.

    Args:
        limit_s: seconds that may pass without a move; infinite: for ever.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._seen: object = None
        self._armed = -math.inf
        self._lock = threading.Lock()  # of a look under way and a close

    def look(self, moved: object) -> None:
        """Called again and again, from any thread; `moved` is another than before after a move."""
        now = time.monotonic()
        with self._lock:
            if moved == self._seen or now - self._armed < _ARM_EVERY_S or math.isinf(self._limit_s):
                return
            self._seen, self._armed = moved, now
            signal.setitimer(signal.ITIMER_REAL, self._limit_s)
            stacks_s = max(self._limit_s - _STACKS_FIRST_S, self._limit_s / 2)
            faulthandler.dump_traceback_later(stacks_s, file=sys.__stderr__ or sys.stderr)

    def close(self) -> None:
        """Let the process live as long as it wants, whoever still looks; idempotent."""
        with self._lock:
            self._limit_s = math.inf
            if self._armed > -math.inf:
                self._armed = -math.inf
                signal.setitimer(signal.ITIMER_REAL, 0.0)
                faulthandler.cancel_dump_traceback_later()
