"""Time limit of a job: a run takes its last snapshot before it."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from hpcdi.comm.messages import StopRequest
from hpcdi.errors import EXIT_REQUEUE, LaunchError

END_VARIABLE = "SLURM_JOB_END_TIME"
_LEAST_S = 30.0
"""Seconds before the limit for publishing data and ending processes."""
_TIMES = 3.0
"""Plus this many times the duration of the last snapshot: disks are slow when all jobs end."""


def seconds_of(text: str) -> float:
    """Parses a duration as Slurm spells it: ``90`` (minutes), ``1:30:00``, ``2-12:00:00``.

    Raises:
        LaunchError: `text` is not a duration.
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if found is None:
        raise LaunchError(
            f"the time limit {text!r} is not a duration: write minutes (90), hours:minutes:seconds "
            "(1:30:00) or days-hours:minutes:seconds (2-12:00:00)"
        )
    days, first, second, third = (int(part) if part else None for part in found.groups())
    if days is not None:
        hours, minutes, rest = first or 0, second or 0, third or 0
    elif third is not None:
        hours, minutes, rest = first or 0, second or 0, third
    else:
        hours, minutes, rest = 0, first or 0, second or 0
    return float(((days or 0) * 24 + hours) * 3600 + minutes * 60 + rest)


def end_of(given: str | None, variables: Mapping[str, str], now: float) -> float:
    """Returns the time limit in seconds since the epoch; infinite if there is none.

    Args:
        given: a duration from `now`, see `seconds_of`; overrides the job's limit.
        variables: environment variables.
        now: seconds since the epoch.
    """
    if given is not None:
        return now + seconds_of(given)
    end = variables.get(END_VARIABLE, "")
    return float(end) if end.isdigit() and int(end) > 0 else math.inf


class TimeLimit:
    """Requests the end of a run before its time limit.

    Args:
        end: see `end_of`.
        ask: another source of such requests, such as `SignalFlag.take`.

    Attributes:
        snapshot_s: returns the duration of the last snapshot in seconds.
    """

    def __init__(self, end: float, ask: Callable[[], Any]) -> None:
        self._end, self._ask = end, ask
        self.snapshot_s: Callable[[], float] = lambda: 0.0

    def take(self) -> Any:
        """Returns a request to end the run, once; else None."""
        request = self._ask()
        left_s = self._end - time.time()
        if request is None and left_s <= _LEAST_S + _TIMES * self.snapshot_s():
            self._end = math.inf
            return StopRequest(f"the time limit is near: {max(left_s, 0):.0f} s left", EXIT_REQUEUE)
        return request
