"""Requests to a running run: of a signal, the time limit, `hpcdi scale`; its loop polls them."""

from __future__ import annotations

import contextlib
import enum
import faulthandler
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from hpcdi.comm.messages import ScaleCollectors, StopRequest
from hpcdi.errors import EXIT_INTERRUPTED, EXIT_REQUEUE, EXIT_TERMINATED, LaunchError
from hpcdi.run.job_end import Deadline, EndTime, job_end
from hpcdi.store.atomic import read_json
from hpcdi.store.layout import RunLayout
from hpcdi.utils import early
from hpcdi.utils.early import NEAR_A_LIMIT, PREEMPT_VARIABLE
from hpcdi.utils.log import LOGGER

Request = StopRequest | ScaleCollectors

_EXIT = os._exit  # a rank replaces it: `failure.die_if_it_exits`
ENDING = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}
"""Signals that end the process at once when they come twice, and the exit code."""
SECOND_S = 1.0
"""What comes sooner after the first of them is the same wish, said twice."""
_LEAST_S = 30.0
"""Seconds before the limit for publishing data and ending processes."""
_TIMES = 3.0
"""Plus this many times the duration of the last snapshot: disks are slow when all jobs end."""
_KEEP_S = 0.1
"""Seconds between two looks at whether an environment's library has taken the signals."""
LOOK_S = 1.0
"""Seconds between two looks at the file of `hpcdi scale`."""


def preempt_signals() -> list[signal.Signals]:
    """Returns the signals, besides SIGTERM, that ask for a last snapshot and exit code 85.

    Raises:
        LaunchError: the variable names no signal, or one with another meaning.
    """
    if early.preempt_name() in ("", "TERM"):  # SIGTERM asks for the same; a second one ends at once
        return sorted(NEAR_A_LIMIT)
    number = early.preempt_signal()
    if number is None or number in ENDING:
        raise LaunchError(
            f"{PREEMPT_VARIABLE}={os.environ[PREEMPT_VARIABLE]} is not a usable signal; name one "
            "such as USR1 or HUP"
        )
    return sorted({*NEAR_A_LIMIT, number})


def ending_signals() -> dict[signal.Signals, int]:
    """Returns the signals that ask for an end in order, and the exit code of a program that has it.

    SIGHUP, of a terminal that closes, is one of them, unless it is ignored (nohup).

    Raises:
        LaunchError: see `preempt_signals`.
    """
    hangup = [signal.SIGHUP] * (signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN)
    return ENDING | dict.fromkeys([*preempt_signals(), *hangup], EXIT_REQUEUE)


class Meaning(enum.Enum):
    """What a signal asks of a process, after those before it."""

    STOP = "end in order"
    REQUEUE = "end in order, as before, but so that the run is started again"
    NOTHING = "it has been asked for"
    NOW = "end at once"


class Signals:
    """What signals mean, one after the other: to `hpcdi train`, to its ranks, to a serial run.

    The first one asks for an end in order. A batch system may send it to all processes of a job,
    of which one hands it on to another, or send SIGINT and SIGTERM together: what comes within a
    second is the same wish, and counts as SIGTERM where one of both is. A SIGINT or SIGTERM after
    another one that is older than that ends the process at once; at a prompt or in a notebook,
    SIGINT raises KeyboardInterrupt.

    Attributes:
        asked: the signal that counts; None: there was none.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._since: float | None = None  # of the first SIGINT or SIGTERM

    def receive(self, number: int, now: float) -> Meaning:
        """Returns what a signal means.

        Args:
            number: of the signal.
            now: seconds of a clock that does not go back.
        """
        is_second = self._since is not None and now - self._since >= SECOND_S
        if number in ENDING:
            if is_second:
                return Meaning.NOW
            if self._since is None:
                self._since = now
        if self.asked is None:
            self.asked = number
            return Meaning.STOP
        if self.asked == signal.SIGINT and number != signal.SIGINT and not is_second:
            self.asked = number
            return Meaning.REQUEUE
        return Meaning.NOTHING


class SignalFlag:
    """Keeps the signal that counts; see `Signals`.

    Args:
        hint: printed at the first signal unless empty.
    """

    def __init__(self, hint: str = "") -> None:
        self._hint = hint
        self._signals = Signals()
        self._is_new = False
        self._taken: list[signal.Signals] = []
        self._before: dict[int, Any] = {}
        self._shows_stacks = False
        self._due = -math.inf

    def install(self) -> None:
        """Handle `ending_signals`; SIGUSR1 prints all stacks (main thread).

        What kills a process by a fault (SIGSEGV, SIGABRT) is said with the lines that led to it.

        Raises:
            LaunchError: see `preempt_signals`.
        """
        self._taken = list(ending_signals())
        self._before = {n: early.replaced(n, signal.getsignal(n)) for n in self._taken}
        self._keep()
        os.register_at_fork(after_in_child=self._forget)
        if not faulthandler.is_enabled():  # a simulator that crashes is named by its lines
            faulthandler.enable(file=2, all_threads=False)
        if signal.SIGUSR1 not in self._taken:
            # whoever has stacks shown already wants it afterwards, too; typeshed says None
            was_shown = faulthandler.unregister(signal.SIGUSR1)  # type: ignore[func-returns-value]
            self._shows_stacks = not was_shown
            faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)

    def install_again(self) -> None:
        """Handle the signals after MPI has started: Open MPI 5.0.11 takes SIGHUP, in C.

        Python's own table does not show that, so `take` would not see it.
        """
        for number in self._taken:
            signal.signal(number, self._handle)

    def remove(self) -> None:
        """Put the handlers back that there were before `install`. Idempotent."""
        before, self._before, self._taken = self._before, {}, []
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        if self._shows_stacks:
            self._shows_stacks = False
            faulthandler.unregister(signal.SIGUSR1)

    def take(self) -> StopRequest | None:
        """Returns the request of a signal, once; else None.

        A SIGTERM right after a SIGINT that has been taken is another request.
        """
        now = time.monotonic()
        if now >= self._due and threading.current_thread() is threading.main_thread():
            self._due = now + _KEEP_S
            self._keep()
        is_new, self._is_new = self._is_new, False
        if not is_new or self._signals.asked is None:
            return None
        number = signal.Signals(self._signals.asked)
        exit_code = EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_REQUEUE
        return StopRequest(f"received {number.name}", exit_code)

    def _keep(self) -> None:
        """Handle the signals, also after an environment's library has taken or blocked them."""
        for number in self._taken:
            if signal.getsignal(number) != self._handle:
                signal.signal(number, self._handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._taken)  # mpirun has some of them blocked

    def _forget(self) -> None:
        """In a process that an environment forks: it ends when the environment terminates it."""
        for number in self._taken:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        meaning = self._signals.receive(number, time.monotonic())
        if meaning is Meaning.NOW:
            if number == signal.SIGINT and hasattr(sys, "ps1"):  # a prompt, a notebook: it lives on
                self._taken = [other for other in self._taken if other != number]
                signal.signal(number, signal.default_int_handler)
                raise KeyboardInterrupt
            _EXIT(ENDING[signal.Signals(number)])
        self._is_new |= meaning is not Meaning.NOTHING
        if meaning is Meaning.STOP and self._hint:  # print() is not safe in signal handlers
            with contextlib.suppress(OSError):  # nobody reads it
                os.write(2, f"\nhpcdi: {self._hint}\n".encode())


def limit_of(text: str) -> float:
    """Returns the seconds of a job's time limit as sbatch reads it; infinite where it has none.

    It is spelled ``90`` (minutes), ``1:30:00`` or ``2-12:00:00``. No limit is ``UNLIMITED``,
    ``INFINITE`` or ``-1``, in any case, and a duration of 0.

    Raises:
        LaunchError: `text` is neither.
    """
    if text.strip().upper() in ("UNLIMITED", "INFINITE", "-1"):
        return math.inf
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if match is None:
        raise LaunchError(
            f"the time limit {text!r} is not a duration: write minutes (90), hours:minutes:seconds "
            "(1:30:00) or days-hours:minutes:seconds (2-12:00:00)"
        )
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part]
    if days is None and len(numbers) < 3:  # without days, minutes come first, or hours of three
        numbers = [0, *numbers]
    hours, minutes, seconds = [*numbers, 0, 0][:3]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds) or math.inf


def end_of(time_limit: str | None, variables: Mapping[str, str], now: float) -> EndTime:
    """Returns when the time limit ends a run.

    Args:
        time_limit: from `now` on, see `limit_of`; overrides the job's limit, `job_end`.
        variables: environment variables.
        now: seconds since the epoch.
    """
    if time_limit is not None:
        return EndTime(now + limit_of(time_limit))
    return job_end(variables, now)


class TimeLimit:
    """Requests the end of a run before its time limit, see `Deadline`.

    Args:
        end: see `end_of`.
        ask: another source of such requests, such as `SignalFlag.take`.
        snapshot_s: returns the duration of the last snapshot in seconds.
    """

    def __init__(
        self, end: EndTime, ask: Callable[[], StopRequest | None], snapshot_s: Callable[[], float]
    ) -> None:
        self._deadline, self._ask, self._snapshot_s = Deadline(end), ask, snapshot_s

    def take(self) -> StopRequest | None:
        """Returns a request to end the run, once; else None."""
        request = self._ask()
        if request is None and self._deadline.is_near(_LEAST_S + _TIMES * self._snapshot_s()):
            left_s, self._deadline = max(self._deadline.left_s, 0.0), Deadline(EndTime())
            return StopRequest(f"the time limit is near: {left_s:.0f} s left", EXIT_REQUEUE)
        return request


class ScaleFile:
    """Reads the number of collectors that a user has written, once per change.

    Args:
        layout: the run folder.
        ranks: that collect or wait; a request for another number of ranks is ignored.
        ask: returns other requests, e.g. of a signal; they come first.
    """

    def __init__(
        self, layout: RunLayout, ranks: int, ask: Callable[[], StopRequest | None]
    ) -> None:
        self._path, self._ranks, self._ask = layout.scale_file, ranks, ask
        self._due, self._seen = float("-inf"), 0

    def take(self) -> Request | None:
        """Returns a request, or how many collectors should work; None: nothing new."""
        request, now = self._ask(), time.monotonic()
        if request is not None or now < self._due:
            return request
        self._due = now + LOOK_S
        try:
            changed = self._path.stat().st_mtime_ns
        except OSError:  # nobody has written one
            return None
        if changed == self._seen:
            return None
        self._seen = changed
        wanted = read_json(self._path)
        count = wanted.get("collectors")
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            LOGGER.warning("%s does not say how many collectors are wanted: ignored", self._path)
            return None
        if wanted.get("of") != self._ranks:
            return None
        LOGGER.info("collectors that are wanted: %d", count)
        return ScaleCollectors(count)
