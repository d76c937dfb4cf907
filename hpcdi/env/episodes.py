"""Returns and lengths of running episodes, and of those that ended."""

from __future__ import annotations

import numpy as np

from hpcdi.types import Array


class Episodes:
    """Counts the episodes of several environments.

    Args:
        env_num: environments.
        quota: episodes of each environment; None: for ever.
        players: of a battle; None: it is none, and a return is one number.
    """

    def __init__(self, env_num: int, quota: int | None, players: int | None = None) -> None:
        self.quota = quota
        self.counts = np.zeros(env_num, dtype=np.int64)
        self.retired = np.zeros(env_num, dtype=bool)
        self.returns = np.zeros(env_num if players is None else (env_num, players))
        self._lengths = np.zeros(env_num, dtype=np.int64)
        self._ended: list[tuple[Array, Array]] = []

    @property
    def open(self) -> Array:
        """Which environments have episodes to do, bool [envs]."""
        if self.quota is None:
            return ~self.retired
        return (self.counts < self.quota) & ~self.retired

    def add(self, reward: Array, ended: Array, live: Array) -> None:
        """Add a step: rewards [envs] or [envs, players]; `live` says where there was one."""
        self.returns[live] += reward[live]
        self._lengths += live
        ended = ended & live
        if ended.any():
            self._ended.append((self.returns[ended], self._lengths[ended]))
            self.counts += ended
            self.drop(ended)

    def drop(self, envs: Array | int) -> None:
        """Forget the running episodes of environments (a mask, or a number)."""
        self.returns[envs] = 0.0
        self._lengths[envs] = 0

    def take(self) -> tuple[Array, Array]:
        """Returns and lengths of the episodes that ended since the last call, in order."""
        taken, self._ended = self._ended, []
        if not taken:
            return np.zeros((0, *self.returns.shape[1:])), np.zeros(0, dtype=np.int64)
        returns, lengths = zip(*taken, strict=True)
        return np.concatenate(returns), np.concatenate(lengths)
