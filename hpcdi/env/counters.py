"""What an environment manager counts of its environments: episodes, failures, renewals.

None of them knows an environment, or the clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from hpcdi.env.base import BackendStep
from hpcdi.types import Array, Episodes

_NO_LIMIT = np.iinfo(np.int64).max
_MIB = 1 << 20


class EpisodeCounter:
    """Counts the episodes of several environments.

    Args:
        env_num: environments.
        seats: players of each.
        quota: episodes of each environment: one number, or one for each; None: no limit.

    Attributes:
        left: int64 [envs]; episodes that each environment has still to do.
        is_limited: whether an environment may have none to do.
    """

    def __init__(
        self, env_num: int, seats: int = 1, quota: int | Sequence[int] | None = None
    ) -> None:
        self._quota = np.broadcast_to(_NO_LIMIT if quota is None else quota, env_num)
        self._seats, self.is_limited = seats, quota is not None
        self._sums, self._added = np.zeros((2, env_num * seats)), np.zeros((2, env_num * seats))
        self._returns, self._lengths = self._sums  # of the running episodes
        self._ended: list[Episodes] = []
        self.restart()

    @property
    def lengths(self) -> Array:
        """Steps of the running episodes, int64 [rows]."""
        return self._lengths.astype(np.int64)

    def length(self, row: int) -> int:
        """Steps of a row's running episode."""
        return int(self._lengths[row])

    def restart(self) -> None:
        """Every environment may do its quota again; running episodes go on."""
        self.left = self._quota.copy()

    def shut(self, envs: Array) -> None:
        """Some environments do no more episodes, bool [envs]."""
        if envs.any():
            self.left[envs], self.is_limited = 0, True

    def open(self, rows: bool = True) -> Array:
        """Returns the environments that have episodes to do, or their rows."""
        is_open = self.left > 0
        return np.tile(is_open, self._seats) if rows and self._seats > 1 else is_open

    def add(self, step: BackendStep) -> None:
        """Add a step of the back-end, without what has failed."""
        self._added[0], self._added[1] = step.reward, step.over  # 0 where no step is over
        self._sums += self._added
        if step.ends:
            rows, env_num = step.ended.nonzero()[0], len(self.left)
            infos = [step.ends[row % env_num][row // env_num] for row in rows.tolist()]
            lengths = self._lengths.take(rows).astype(np.int64)
            self._ended.append(Episodes(rows, self._returns.take(rows), lengths, infos))
            self.drop(rows)
            if self.is_limited:
                self.left[rows if self._seats == 1 else np.unique(rows % env_num)] -= 1

    def drop(self, rows: Array) -> None:
        """Forget the running episodes of rows (a mask, or numbers)."""
        self._returns[rows] = self._lengths[rows] = 0.0

    def take(self) -> Episodes:
        """Returns the episodes that ended since the last call, in order."""
        ended, self._ended = self._ended, []
        return Episodes.joined(ended)


class FailureRecord:
    """Counts failures of single environments; time comes as an argument.

    Args:
        env_num: environments.
        max_retry: failures of one that are tolerated within the window, and in a row.
        window_s: seconds; older failures do not count any more, so that one a day never adds up.

    Attributes:
        failures: of all environments, ever.
        dropped: episodes that a failure cut short.
    """

    def __init__(self, env_num: int, max_retry: int, window_s: float) -> None:
        self.failures, self.dropped = 0, 0
        self._max_retry, self._window_s = max_retry, window_s
        self._recent: list[deque[float]] = [deque() for _ in range(env_num)]
        self._in_a_row = np.zeros(env_num, dtype=np.int64)

    def good(self, envs: Array | list[int]) -> None:
        """Note that environments (a mask, or numbers) made a step without a failure."""
        self._in_a_row[envs] = 0

    def add(self, env: int, now: float) -> str:
        """Count a failure; returns how many there were if these are too many, else ""."""
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


class Renewal:
    """Counts what each environment has done, or grown by, since it was made.

    Args:
        limit: a number and its unit, "episodes" or "MiB"; None: environments live on.
        env_num: environments.
        bytes_of: returns what an environment's process holds, resident.

    Attributes:
        due: bool [envs]; which are made anew when their running episode ends.
        over: bool [envs]; whose last episode has ended: they begin no other before they are.
    """

    def __init__(
        self, limit: tuple[float, str] | None, env_num: int, bytes_of: Callable[[int], int]
    ) -> None:
        self.is_on = limit is not None
        self._most, self._unit = limit or (0.0, "")
        self._bytes_of = bytes_of
        self._first = np.zeros(env_num, np.int64)  # bytes at the end of the first episode
        self._episodes = np.zeros(env_num, np.int64)
        self.due: Array = np.zeros(env_num, bool)
        self.over: Array = np.zeros(env_num, bool)

    def made(self, envs: Iterable[int]) -> None:
        """Some environments are new."""
        for env in envs if self.is_on else ():
            self._episodes[env] = self._first[env] = self.over[env] = 0
            self.due[env] = self._unit == "episodes" and self._most <= 1

    def ended(self, envs: Iterable[int]) -> None:
        """Episodes of some environments have ended."""
        for env in envs if self.is_on else ():
            self._episodes[env] += 1
            self.over[env] = self.due[env]
            if self._unit == "episodes":
                self.due[env] = self._episodes[env] + 1 >= self._most
                continue
            held = self._bytes_of(env)
            self._first[env] = self._first[env] or held
            self.due[env] = held - self._first[env] >= self._most * _MIB
