"""Environment managers of DI-engine's contract (dicts by environment) in the loop's form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdi.env.base import BaseEnvTimestep, is_abnormal
from hpcdi.policy.dict_adapter import (
    as_number,
    check_players,
    episode_return,
    infos_of,
    mask_of,
    object_column,
)
from hpcdi.types import Array


@dataclass(frozen=True)
class DictStep:
    """One step of the environments that answered; the others may answer later.

    Attributes:
        timesteps: of environments that did not fail.
        live: bool [envs]; where there is a timestep.
        abnormal: bool [envs]; where an environment failed; None: nowhere.
        successor: None: the observation after a step is in its timestep.
    """

    timesteps: dict[int, BaseEnvTimestep]
    live: Array
    abnormal: Array | None
    successor: None = None


class DictEnvs:
    """A manager with ``ready_obs`` and ``step``, stepped by columns of Python objects [envs].

    Args:
        manager: environments; ours, or any that keeps the contract.
        players: policies that play in each environment; 0: it is no battle.
        counts: return episodes as their last infos report them; else as the manager counts them.
    """

    def __init__(self, manager: Any, players: int = 0, *, counts: bool = True) -> None:
        self._manager, self._players = manager, players
        self._episodes = EpisodeCounter(manager.env_num) if counts else None

    @property
    def observation(self) -> Array:
        """Observations, objects [envs]; None where an environment does not wait for an action.

        Raises:
            EnvError: an environment of a battle has not one player for each policy.
        """
        ready: dict[int, Any] = self._manager.ready_obs
        if self._players:
            check_players(ready, self._players)
        return object_column(ready, self._manager.env_num)

    def step_all(self, action: Array) -> DictStep:
        """Step the environments that wait by actions, objects [envs]; None elsewhere.

        An environment that failed (``info["abnormal"]``) begins a new episode: our managers have
        reset it already and say so by ``resets_abnormal``; others are asked to.

        Raises:
            EnvError: an episode ended without ``info["eval_episode_return"]``.
        """
        chosen = {env: one for env, one in enumerate(action.tolist()) if one is not None}
        timesteps: dict[int, BaseEnvTimestep] = {}
        failed = []
        for env, timestep in self._manager.step(chosen).items():
            info = timestep.info
            if is_abnormal(timestep) if self._players else info.get("abnormal", False):
                failed.append(env)
                self._renew(env)
                continue
            timesteps[env] = timestep
            if self._episodes is not None:
                ended = self._return_of(env, info) if timestep.done else None
                self._episodes.step(env, ended)
        env_num = len(action)
        return DictStep(
            timesteps, mask_of(timesteps, env_num), mask_of(failed, env_num) if failed else None
        )

    def take_episodes(self) -> tuple[Array, Array]:
        """Returns [episodes] or [episodes, players] and lengths of the episodes that ended since.

        Those that a manager counted are always taken: else it keeps them for the whole run.
        """
        counted = np.zeros(0), np.zeros(0, dtype=np.int64)
        if hasattr(self._manager, "take_episodes"):
            counted = self._manager.take_episodes()
        return counted if self._episodes is None else self._episodes.take()

    def _return_of(self, env: int, info: Any) -> Any:
        if not self._players:
            return as_number(episode_return(info, env))
        infos = infos_of(info, self._players, env, ended=True)
        return [info["eval_episode_return"] for info in infos]

    def _renew(self, env: int) -> None:
        if self._episodes is not None:
            self._episodes.drop(env)
        if not getattr(self._manager, "resets_abnormal", False):
            self._manager.reset({env: None})


class EpisodeCounter:
    """Lengths of running episodes by environment; returns and lengths of those that ended.

    Args:
        env_num: environments.
    """

    def __init__(self, env_num: int) -> None:
        self._lengths = [0] * env_num
        self._ended: list[tuple[Any, int]] = []

    def step(self, env: int, episode_return: Any = None) -> None:
        """Count a step of an environment.

        Args:
            env: the environment.
            episode_return: a number, or one a player; None: the episode goes on.
        """
        self._lengths[env] += 1
        if episode_return is not None:
            self._ended.append((episode_return, self._lengths[env]))
            self._lengths[env] = 0

    def drop(self, env: int) -> None:
        """Forget an environment's running episode."""
        self._lengths[env] = 0

    def take(self) -> tuple[Array, Array]:
        """Returns and lengths of the episodes that ended since the last call, in order.

        Returns are [episodes], or [episodes, players] in a battle.
        """
        ended, self._ended = self._ended, []
        returns, lengths = zip(*ended, strict=True) if ended else ((), ())
        return np.array(returns, dtype=np.float64), np.array(lengths, dtype=np.int64)
