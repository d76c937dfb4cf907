"""A clock beside one's work: says when a step takes long, and ends it at its limit."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from hpcdi.utils.threads import BackgroundThread

_LOOK_S = 0.1


@dataclass(frozen=True)
class Patience:
    """How long a rank waits.

    Attributes:
        notice_s: after this it says for whom it waits.
        grace_s: this much longer than rank 0, which names the missing ones, do the others wait.
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
        is_patient: for ranks other than 0, which is to speak before them.
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
        """A step begins; the one before has ended."""
        self._waits_for = waits_for
        self._step = _Step(name, time.monotonic(), limit_s + self._extra_s, is_quiet=False)

    def wait_for(self, whom: str) -> None:
        """Say what the step is waiting for now."""
        self._waits_for = whom

    def rest(self) -> None:
        """This rank's part is done, rank 0 does the talking: say nothing before the limit."""
        self._waits_for = "rank 0"
        self._step = dataclasses.replace(self._step, is_quiet=True)

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
            if waited_s > self._notice_s and not step.is_quiet and noticed != step.name:
                noticed = step.name
                self._say(f"{step.name!r} takes {waited_s:.0f} s, waiting for {self._waits_for}")
