"""Managers over a pool: where its environments sit, and how they are made, reset and closed."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from hpcdi.config.fields import setting
from hpcdi.env.base import ManagerConfig
from hpcdi.env.board import SharedMemory
from hpcdi.env.child import ChildSeat
from hpcdi.env.episodes import Episodes
from hpcdi.env.manager import EnvManager, ResetParam
from hpcdi.env.pool import Pool, Start
from hpcdi.env.seat import LocalMemory, LocalSeat, Seat
from hpcdi.env.seeds import SeedStreams
from hpcdi.errors import ConfigError, EnvError, Problem

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


class PooledManager(EnvManager):
    """Single environments, each replaced when it fails; in this process, or in child processes.

    Args:
        env_fns: make one environment each; with child processes they must be picklable.
        settings: of the manager; `ChildConfig`: each environment gets a child process.
        episode_num: episodes of each environment until it is done; None: for ever.
        seed: of the environments.
    """

    takes_objects: ClassVar[bool]
    """Whether environments give and take objects, one for each player, and not arrays."""

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
        self._env_fns = env_fns
        self._pool: Pool | None = None

    @property
    def closed(self) -> bool:
        """Whether the environments are not running."""
        return self._pool is None

    @property
    def health(self) -> dict[str, int]:
        """See `EnvManager.health`."""
        if self._pool is None:
            return super().health
        record = self._pool.record
        return {
            "env_failures": record.failures,
            "episodes_dropped": record.dropped,
            "envs_retired": len(record.retired),
        }

    @property
    def child_pids(self) -> list[int]:
        """See `EnvManager.child_pids`."""
        seats = [] if self._pool is None else self._pool.seats
        return [s.pid for s in seats if isinstance(s, ChildSeat) and s.pid is not None]

    def launch(self, reset_param: ResetParam | None = None) -> None:
        """Make the environments and reset them.

        Raises:
            EnvError: they are running already, or one cannot be made or reset.
        """
        if self._pool is not None:
            raise EnvError("the environments are running; close() them before launch()")
        params = self._selected(reset_param)
        pool = _open_pool(
            self._env_fns, self._settings, self._streams,
            takes_objects=self.takes_objects, retires=self.retires,
        )  # fmt: skip
        try:
            firsts = pool.start(_starts_of(self.env_num, self._streams, params, is_made=False))
        except BaseException:
            pool.close()
            raise
        self._pool = pool
        self._count_anew()
        self._stand(firsts)

    def reset(self, reset_param: ResetParam | None = None) -> None:
        """See `EnvManager.reset`; seeds move on, so episodes differ."""
        pool = self._running()
        params = self._selected(reset_param)
        if reset_param is None:
            starts = _starts_of(self.env_num, self._streams, params, is_made=True)
            firsts = pool.start(
                {e: start for e, start in starts.items() if e not in pool.record.retired}
            )
            self._count_anew()
        else:
            used = {env: param for env, param in params.items() if env not in pool.record.retired}
            starts = {env: _start_of(self._streams, env, param) for env, param in used.items()}
            firsts = pool.start(starts)
            for env in params:
                self._episodes.drop(env)
            self._note_retired()
        self._stand(firsts)

    @property
    def observation_space(self) -> Any:
        """See `EnvManager.observation_space`; of battles a list with one for each player."""
        facts = self._running().facts
        return None if facts is None else facts.observation_space

    @property
    def action_space(self) -> Any:
        """See `EnvManager.action_space`; of battles a list with one for each player."""
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

    @abc.abstractmethod
    def _stand(self, firsts: Mapping[int, Any]) -> None:
        """Environments stand at the first observation of an episode.

        Args:
            firsts: which ones; with their observations where these are objects.
        """

    def _count_anew(self) -> None:
        facts = self._running().facts
        players = facts.players if self.takes_objects and facts is not None else None
        self._episodes = Episodes(self.env_num, self._episodes.quota, players)
        self._note_retired()

    def _note_retired(self) -> None:
        """Environments that are retired have no episodes to do; call it when some may be."""
        self._episodes.retired[list(self._running().record.retired)] = True

    def _running(self) -> Pool:
        if self._pool is None:
            raise EnvError("the environments are not running; launch() them first")
        return self._pool


def _open_pool(
    env_fns: Sequence[EnvFn],
    settings: ManagerConfig,
    streams: SeedStreams,
    *,
    takes_objects: bool = False,
    retires: bool = False,
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
    return Pool(
        list(map(make_seat, env_fns)), settings, streams, None if takes_objects else memory,
        retires=retires,
    )  # fmt: skip


def _starts_of(
    env_num: int, streams: SeedStreams, params: Mapping[int, Mapping[str, Any]], *, is_made: bool
) -> dict[int, Start]:
    """How all environments are to begin, with what `params` says of some."""
    starts = {}
    for env, seed in zip(range(env_num), streams.all(), strict=True):
        param = params.get(env, {})
        given = param.get("seed")
        starts[env] = Start(seed if given is None else given, param.get("options"), is_made)
    return starts


def _start_of(streams: SeedStreams, env: int, param: Mapping[str, Any]) -> Start:
    """How one environment is to begin that is reset by itself."""
    seed = param.get("seed")
    return Start(streams.one(env) if seed is None else seed, param.get("options"), True)
