"""Time limits for work that may hang: a rank that hangs wastes the whole allocation."""

from __future__ import annotations

import ctypes
import faulthandler
import math
import os
import signal
import sys
import threading
import time
import weakref
from types import FrameType

_STACKS_FIRST_S = 2.0
"""Seconds before the end at which the stacks are printed."""
_ARM_EVERY_S = 1.0
_HELD_S = 5.0
"""Seconds without a limit once a suspension was announced: Slurm stops the process 2 s later."""


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


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class _Event(ctypes.Structure):
    """C's ``struct sigevent``."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("padding", ctypes.c_char * 48),
    )


class KillTimer:
    """A timer of the kernel that ends this process by SIGKILL.

    It is made by POSIX's ``timer_create``: a process has one timer only of ``alarm`` and
    ``setitimer``, which environments may use.

    Raises:
        OSError: the kernel refuses to make one.
    """

    _MONOTONIC, _SIGNAL = 1, 0  # CLOCK_MONOTONIC, SIGEV_SIGNAL

    def __init__(self) -> None:
        # PyDLL keeps the interpreter's lock: another thread might take it and hang with it
        self._libc = ctypes.PyDLL(None, use_errno=True)
        if not hasattr(self._libc, "timer_create"):  # before glibc 2.34
            self._libc = ctypes.PyDLL("librt.so.1", use_errno=True)
        event = _Event(signal=signal.SIGKILL, notify=self._SIGNAL)
        self._timer = ctypes.c_void_p()
        TIMERS.add(self)
        self._check(
            self._libc.timer_create(self._MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer))
        )

    def set(self, seconds: float) -> None:
        """Have the process killed after a number of seconds; 0: never."""
        full_s = int(seconds)
        spec = _TimerSpec(value=_TimeSpec(full_s, int((seconds - full_s) * 1e9)))
        self._check(self._libc.timer_settime(self._timer, 0, ctypes.byref(spec), None))

    @property
    def left_s(self) -> float:
        """Seconds until then; 0: never."""
        spec = _TimerSpec()
        self._check(self._libc.timer_gettime(self._timer, ctypes.byref(spec)))
        return float(spec.value.seconds + spec.value.nanoseconds / 1e9)

    def _check(self, failed: int) -> None:
        if failed:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


TIMERS: weakref.WeakSet[KillTimer] = weakref.WeakSet()
"""Those of this process."""


class Watchdog:
    """Prints the stacks of all threads and kills the process when it makes no progress.

    That needs no Python code to run, which may be what hangs: faulthandler's own thread prints the
    stacks, and a timer of the kernel sends SIGKILL. A signal shows the parent that the process was
    killed.

    Both would count the time of a suspension, and SIGKILL ends a process that is stopped, too. So
    `heed_suspensions` has all disarmed where Slurm, or a terminal, announces one by SIGTSTP. The
    progress that follows arms them again. A bare SIGSTOP announces nothing, such as that of an
    mpirun that is suspended: a process that is frozen for longer than its limit is killed.

    Args:
        limit_s: seconds that may pass without progress; infinite: no limit.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._seen: object = None
        self._armed = -math.inf
        self._lock = threading.RLock()  # between `look` and `close`; a signal may interrupt them
        self._timer: KillTimer | None = None
        _WATCHDOGS.add(self)  # last: a signal may come here

    def look(self, moved: object) -> None:
        """Call often, from any thread; `moved` is any value that changes with every progress."""
        now = time.monotonic()
        with self._lock:
            if moved == self._seen or now - self._armed < _ARM_EVERY_S or math.isinf(self._limit_s):
                return
            self._seen, self._armed = moved, now
            self._timer = self._timer or KillTimer()
            self._timer.set(self._limit_s)
            stacks_s = max(self._limit_s - _STACKS_FIRST_S, self._limit_s / 2)
            faulthandler.dump_traceback_later(stacks_s, file=sys.__stderr__ or sys.stderr)

    def hold(self) -> None:
        """Disarm, until there is progress after `_HELD_S`."""
        with self._lock:
            self._disarm(time.monotonic() + _HELD_S)

    def close(self) -> None:
        """Disarm for good, even if `look` is called again. Idempotent."""
        with self._lock:
            self._limit_s = math.inf
            self._disarm(-math.inf)

    def _disarm(self, armed: float) -> None:
        if self._timer is not None and self._armed > -math.inf:
            self._armed = armed
            self._timer.set(0.0)
            faulthandler.cancel_dump_traceback_later()

    @property
    def left_s(self) -> float:
        """Seconds until the process is killed; 0: it is not."""
        return 0.0 if self._timer is None else self._timer.left_s


_WATCHDOGS: weakref.WeakSet[Watchdog] = weakref.WeakSet()
"""Those of this process."""


def heed_suspensions() -> None:
    """Have SIGTSTP stop this process with no watchdog armed, until SIGCONT (main thread)."""
    if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
        signal.signal(signal.SIGTSTP, _stop)
        os.register_at_fork(after_in_child=_heed_none)


def _heed_none() -> None:
    if signal.getsignal(signal.SIGTSTP) is _stop:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def _stop(_number: int, _frame: FrameType | None) -> None:
    for watchdog in list(_WATCHDOGS):
        watchdog.hold()
    os.kill(os.getpid(), signal.SIGSTOP)
