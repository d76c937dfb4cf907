"""Managers of single environments whose observations and actions are arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.env.base import ManagerConfig, VectorStep
from hpcdi.env.manager import VectorManager
from hpcdi.env.pool import Pool
from hpcdi.env.pooled import EnvFn, PooledManager
from hpcdi.env.runner import Command
from hpcdi.types import Array


class PoolManager(PooledManager, VectorManager):
    """Single environments whose data are arrays; `PooledManager` says what it takes."""

    takes_objects = False

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        settings: ManagerConfig | None = None,
        *,
        episode_num: int | None = None,
        seed: np.random.SeedSequence,
    ) -> None:
        super().__init__(env_fns, settings, episode_num=episode_num, seed=seed)
        self.observation: Array = np.empty(0)
        self._idle = np.zeros(self.env_num, dtype=bool)  # ended, and nobody has reset it

    def _advance(
        self, actions: Array, *, wants_info: bool
    ) -> tuple[VectorStep, Mapping[int, dict[str, Any]]]:
        pool = self._running()
        board, episodes = pool.board, self._episodes
        board.action[...] = actions
        live = episodes.open & ~self._idle
        envs = live.nonzero()[0].tolist()
        self._ask(pool, envs, wants_info)
        told, failed = pool.collect(envs)
        reward, terminated = board.reward.copy(), board.terminated.copy()
        truncated = board.truncated.copy()
        abnormal = None
        if failed:
            abnormal = np.zeros(self.env_num, dtype=bool)
            abnormal[list(failed)] = True
            live &= ~abnormal
            episodes.drop(abnormal)
        pool.recover(failed, told)
        if failed:
            self._note_retired()
        resting = ~live
        if resting.any():
            reward[resting], terminated[resting], truncated[resting] = 0.0, False, False
        ended = terminated | truncated
        episodes.add(reward, ended, live)
        observation = successor = board.observation.copy()
        if ended.any() or failed:
            board.terminated[:], board.truncated[:] = False, False
            successor = observation.copy()
            successor[ended] = board.final[ended]
            if not self._settings.auto_reset:
                self._idle |= ended
        self.observation = observation
        return VectorStep(successor, reward, terminated, truncated, live, abnormal), told

    def _ask(self, pool: Pool, envs: list[int], wants_info: bool) -> None:
        """Begin a step of `envs`; an environment's last episode is not followed by another."""
        quota, goes_on = self._episodes.quota, self._settings.auto_reset
        command: Command = ("step", None, goes_on, wants_info)
        for env in envs:
            if quota is not None or self._streams.is_fixed:
                again = goes_on and (quota is None or self._episodes.counts[env] + 1 < quota)
                command = ("step", self._streams.fixed(env), again, wants_info)
            pool.seats[env].ask(command)

    def _waiting(self) -> Array:
        self._running()
        waiting: Array = self._episodes.open & ~self._idle
        return waiting

    def _stand(self, firsts: Mapping[int, Any]) -> None:
        self._idle[list(firsts)] = False
        self.observation = self._running().board.observation.copy()
