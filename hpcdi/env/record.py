"""How often environments fail, and when that is too often."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class FailureRecord:
    """Counts failures of single environments; time comes as an argument.

    Args:
        env_num: environments.
        max_retry: failures of one that are borne within the window, and in a row.
        window_s: seconds; failures that are older do not count any more, so that one a day never
            adds up.

    Attributes:
        failures: of all environments, ever.
        dropped: episodes that a failure cut short.
        retired: environments that are not used any more.
    """

    def __init__(self, env_num: int, max_retry: int, window_s: float) -> None:
        self.failures, self.dropped = 0, 0
        self.retired: set[int] = set()
        self._max_retry, self._window_s = max_retry, window_s
        self._recent: list[deque[float]] = [deque() for _ in range(env_num)]
        self._in_a_row = [0] * env_num

    def good(self, envs: Iterable[int]) -> None:
        """Environments have done a good step."""
        for env in envs:
            self._in_a_row[env] = 0

    def add(self, env: int, now: float) -> str:
        """Count a failure; gives how often there were some where these are too many, else ""."""
        recent = self._recent[env]
        recent.append(now)
        while recent[0] <= now - self._window_s:
            recent.popleft()
        self.failures += 1
        self._in_a_row[env] += 1
        if self._in_a_row[env] > self._max_retry:  # slow ones leave the window, too
            return f"{self._in_a_row[env]} times in a row"
        if len(recent) > self._max_retry:
            return f"{len(recent)} times within {self._window_s:g} s"
        return ""
