"""Where the time goes: a stop watch, and a ledger of seconds by activity."""

from __future__ import annotations

import resource
import time
from types import TracebackType
from typing import Any


class EasyTimer:
    """Stop watch for a with-block; `value` is the seconds of the last one."""

    def __init__(self) -> None:
        self.value = 0.0
        self._start = 0.0

    def __enter__(self) -> EasyTimer:
        self._start = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.value = time.perf_counter() - self._start


class TimeLedger:
    """Seconds that one thread spent, by activity.

    A loop calls `mark("env")` when it has done with its environments: the time since the last mark
    is booked there. One mark costs about 0.15 us, so every turn of every loop is measured.

    Attributes:
        seconds: by activity.
        activity: of the last mark.
        last_mark: when that was, in seconds of `time.perf_counter`.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._opened = self.last_mark = time.perf_counter()
        self.activity = ""

    def mark(self, activity: str) -> None:
        """Book the time since the last mark under `activity`."""
        now = time.perf_counter()
        self.seconds[activity] = self.seconds.get(activity, 0.0) + now - self.last_mark
        self.last_mark, self.activity = now, activity

    def shares(self) -> dict[str, float]:
        """Activity -> share of the time since the ledger was opened (0 to 1)."""
        total = max(time.perf_counter() - self._opened, 1e-9)
        return {name: seconds / total for name, seconds in self.seconds.items()}


class RoleMeter(TimeLedger):
    """What a rank does with its time, its cores and its memory.

    Args:
        role: "coordinator", "learner" or "collector".
    """

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role
        self._cpu_s = cpu_seconds()

    def report(self) -> dict[str, Any]:
        """Shares of time, cores used on average since the meter was made, peak memory."""
        elapsed_s = max(time.perf_counter() - self._opened, 1e-9)
        return {
            "role": self._role,
            "cpu": (cpu_seconds() - self._cpu_s) / elapsed_s,
            "shares": self.shares(),
            "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }


def cpu_seconds() -> float:
    """CPU seconds (user and system, all threads) that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
