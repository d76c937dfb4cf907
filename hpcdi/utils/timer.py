"""Measures time: a stopwatch, and seconds by activity."""

from __future__ import annotations

import resource
import time
from typing import Any


class EasyTimer:
    """Stopwatch for a with-block; `value` holds the seconds of the last one."""

    def __init__(self) -> None:
        self.value = 0.0
        self._start = 0.0

    def __enter__(self) -> EasyTimer:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_error: object) -> None:
        self.value = time.perf_counter() - self._start


class TimeLedger:
    """Seconds that one thread spent, by activity.

    A loop calls `mark("env")` after stepping its environments, which adds the time since the last
    mark to "env". A mark costs about 0.15 us, so every iteration of every loop is measured.

    Attributes:
        seconds: by activity.
        activity: of the last mark.
        last_mark: its time, in seconds of `time.perf_counter`.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._opened = self.last_mark = time.perf_counter()
        self.activity = ""

    def mark(self, activity: str) -> None:
        """Add the time since the last mark to `activity`."""
        now = time.perf_counter()
        self.seconds[activity] = self.seconds.get(activity, 0.0) + now - self.last_mark
        self.last_mark, self.activity = now, activity

    def shares(self) -> dict[str, float]:
        """Returns each activity's share of the time since the ledger was created (0 to 1)."""
        total = max(time.perf_counter() - self._opened, 1e-9)
        return {name: seconds / total for name, seconds in self.seconds.items()}


class RoleMeter(TimeLedger):
    """Measures how a rank uses its time, cores and memory.

    Args:
        role: "coordinator", "learner" or "collector".
    """

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role
        self._cpu_s = cpu_seconds()

    def cpu(self) -> float:
        """Returns the mean number of cores that this process has kept busy since creation."""
        elapsed_s = max(time.perf_counter() - self._opened, 1e-9)
        return (cpu_seconds() - self._cpu_s) / elapsed_s

    def report(self) -> dict[str, Any]:
        """Returns shares of time, mean number of busy cores since creation, and peak memory."""
        return {
            "role": self._role,
            "cpu": self.cpu(),
            "shares": self.shares(),
            "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }


def cpu_seconds() -> float:
    """Returns the CPU seconds (user and system, all threads) that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
