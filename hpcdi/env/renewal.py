"""When environments are closed and made anew: those that leak, or grow slow."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from hpcdi.types import Array

_MIB = 1 << 20


class Renewal:
    """Counts what each environment has done, or grown by, since it was made.

    Args:
        limit: a number and its unit, "episodes" or "MiB"; None: environments live on.
        env_num: environments.
        bytes_of: returns what an environment's process holds, resident.

    Attributes:
        due: bool [envs]; which are made anew when their running episode ends.
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

    def made(self, envs: Iterable[int]) -> None:
        """Some environments are new."""
        for env in envs if self.is_on else ():
            self._episodes[env] = self._first[env] = 0
            self.due[env] = self._unit == "episodes" and self._most <= 1

    def ended(self, envs: Iterable[int]) -> None:
        """Episodes of some environments have ended."""
        for env in envs if self.is_on else ():
            self._episodes[env] += 1
            if self._unit == "episodes":
                self.due[env] = self._episodes[env] + 1 >= self._most
                continue
            held = self._bytes_of(env)
            self._first[env] = self._first[env] or held
            self.due[env] = held - self._first[env] >= self._most * _MIB
