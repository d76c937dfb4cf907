"""Managers of single environments whose observations and actions are arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hpcdi.config.fields import setting
from hpcdi.env.base import ManagerConfig, VectorStep
from hpcdi.env.board import SharedMemory
from hpcdi.env.child import ChildSeat
from hpcdi.env.episodes import Episodes
from hpcdi.env.manager import ResetParam, VectorManager
from hpcdi.env.pool import Pool, Start
from hpcdi.env.runner import Command
from hpcdi.env.seat import LocalMemory, LocalSeat, Seat
from hpcdi.env.seeds import SeedStreams
from hpcdi.errors import ConfigError, EnvError, Problem
from hpcdi.types import Array

EnvFn = Callable[[], Any]
"""Makes one environment."""


@dataclass(frozen=True)
class ChildConfig(ManagerConfig):
    """Settings of managers that hold each environment in a child process."""

    type: str = "subprocess"
    start_method: str = setting(
        "forkserver",
        "how child processes start: forkserver is quicker, spawn shares nothing at all",
        choices=("forkserver", "spawn"),
    )

    def problems(self) -> Iterator[Problem]:
        """Time limits can be kept."""
        return iter(())


class PoolManager(VectorManager):
    """Single environments, each replaced when it fails; in this process, or in child processes.

    Args:
        env_fns: make one environment each; with child processes they must be picklable.
        settings: of the manager; `ChildConfig`: each environment gets a child process.
        episode_num: episodes of each environment until it is done; None: for ever.
        seed: of the environments.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        settings: ManagerConfig | None = None,
        *,
        episode_num: int | None = None,
        seed: np.random.SeedSequence,
    ) -> None:
        checked = settings or ManagerConfig()
        super().__init__(len(env_fns), checked, episode_num=episode_num, seed=seed)
        self.observation: Array = np.empty(0)
        self._env_fns = env_fns
        self._pool: Pool | None = None
        self._idle = np.zeros(self.env_num, dtype=bool)  # ended, and nobody has reset it

    @property
    def closed(self) -> bool:
        """Whether the environments are not running."""
        return self._pool is None

    @property
    def failures(self) -> int:
        """See `EnvManager.failures`."""
        return 0 if self._pool is None else self._pool.failures

    def launch(self, reset_param: ResetParam | None = None) -> None:
        """Make the environments and reset them.

        Raises:
            EnvError: they are running already, or one cannot be made or reset.
        """
        if self._pool is not None:
            raise EnvError("the environments are running; close() them before launch()")
        params = self._selected(reset_param)
        pool = open_pool(self._env_fns, self._settings, self._streams)
        try:
            pool.start(starts_of(self.env_num, self._streams, params, is_made=False))
        except BaseException:
            pool.close()
            raise
        self._pool = pool
        self._begin()

    def reset(self, reset_param: ResetParam | None = None) -> None:
        """See `EnvManager.reset`; seeds move on, so episodes differ."""
        pool = self._running()
        params = self._selected(reset_param)
        if reset_param is None:
            pool.start(starts_of(self.env_num, self._streams, params, is_made=True))
            self._begin()
            return
        pool.start({env: start_of(self._streams, env, param) for env, param in params.items()})
        for env in params:
            self._episodes.drop(env)
            self._idle[env] = False
        self.observation = pool.board.observation.copy()

    @property
    def observation_space(self) -> Any:
        """See `EnvManager.observation_space`."""
        facts = self._running().facts
        return None if facts is None else facts.observation_space

    @property
    def action_space(self) -> Any:
        """See `EnvManager.action_space`."""
        facts = self._running().facts
        return None if facts is None else facts.action_space

    def call(self, env: int, name: str, *args: Any) -> tuple[bool, Any]:
        """See `EnvManager.call`."""
        return self._running().call(env, name, *args)

    def close(self) -> None:
        """Close the environments; again: nothing."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

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

    def _begin(self) -> None:
        """All environments stand at the first observation of an episode."""
        self._episodes = Episodes(self.env_num, self._episodes.quota)
        self._idle[:] = False
        self.observation = self._running().board.observation.copy()

    def _running(self) -> Pool:
        if self._pool is None:
            raise EnvError("the environments are not running; launch() them first")
        return self._pool


def open_pool(
    env_fns: Sequence[EnvFn],
    settings: ManagerConfig,
    streams: SeedStreams,
    *,
    takes_objects: bool = False,
) -> Pool:
    """Seats for environments that are yet to be made; where they are follows from the settings.

    Raises:
        ConfigError: time limits for environments in this process.
    """
    make_seat: Callable[[EnvFn], Seat]
    if isinstance(settings, ChildConfig):
        make_seat = partial(
            ChildSeat, start_method=settings.start_method, takes_objects=takes_objects,
            step_timeout_s=settings.step_timeout, reset_timeout_s=settings.reset_timeout,
        )  # fmt: skip
    else:
        if problems := list(settings.problems()):
            raise ConfigError(problems, "the manager's configuration")
        make_seat = partial(LocalSeat, takes_objects=takes_objects)
    memory = SharedMemory if isinstance(settings, ChildConfig) else LocalMemory
    return Pool(list(map(make_seat, env_fns)), settings, streams, None if takes_objects else memory)


def starts_of(
    env_num: int, streams: SeedStreams, params: Mapping[int, Mapping[str, Any]], *, is_made: bool
) -> dict[int, Start]:
    """How all environments are to begin, with what `params` says of some."""
    starts = {}
    for env, seed in zip(range(env_num), streams.all(), strict=True):
        param = params.get(env, {})
        given = param.get("seed")
        starts[env] = Start(seed if given is None else given, param.get("options"), is_made)
    return starts


def start_of(streams: SeedStreams, env: int, param: Mapping[str, Any]) -> Start:
    """How one environment is to begin that is reset by itself."""
    seed = param.get("seed")
    return Start(streams.one(env) if seed is None else seed, param.get("options"), True)
