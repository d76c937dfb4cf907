"""A manager over one of gymnasium's vector environments, in every autoreset mode.

What an episode's end looks like, by mode::

    NEXT_STEP   the step returns the last observation; the next step resets (a dummy: not live)
    SAME_STEP   the step returns the first observation of the next episode; the last one is in info
    DISABLED    the step returns the last observation; the manager resets with a mask

All three become one `VectorStep`: `successor` is always the last observation of the old episode,
`observation` always what the policy acts on next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from hpcdi.env.base import ManagerConfig, VectorStep
from hpcdi.env.board import stored_dtype
from hpcdi.env.episodes import Episodes
from hpcdi.env.manager import ResetParam, VectorManager, as_picture
from hpcdi.env.record import FailureRecord
from hpcdi.env.runner import call_method
from hpcdi.env.seat import EnvFailure
from hpcdi.errors import EnvError
from hpcdi.types import Array
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.log import LOGGER


class GymManager(VectorManager):
    """One of gymnasium's vector environments, in this process.

    Single environments cannot be replaced in it: when one raises, all are made anew, and what they
    had of an episode is dropped.

    Args:
        make: makes the vector environment.
        env_num: environments in it.
        episode_num: episodes of each environment until it is done; None: for ever.
        seed: of the environments.
        settings: of the manager.
    """

    def __init__(
        self,
        make: Callable[[], VectorEnv[Any, Any, Any]],
        env_num: int,
        *,
        episode_num: int | None = None,
        seed: np.random.SeedSequence,
        settings: ManagerConfig | None = None,
    ) -> None:
        super().__init__(
            env_num, settings or ManagerConfig(), episode_num=episode_num, seed=seed
        )  # fmt: skip
        self.observation: Array = np.empty(0)
        self._make = make
        self._env: VectorEnv[Any, Any, Any] | None = None
        self._resetting = np.zeros(env_num, dtype=bool)
        self._record = FailureRecord(
            1, self._settings.max_retry, self._settings.retry_window_s
        )  # they fail together

    @property
    def health(self) -> dict[str, int]:
        """See `EnvManager.health`."""
        record = self._record
        return {
            "env_failures": record.failures, "episodes_dropped": record.dropped, "envs_retired": 0,
        }  # fmt: skip

    @property
    def closed(self) -> bool:
        """Whether the environments are not running."""
        return self._env is None

    def launch(self, reset_param: ResetParam | None = None) -> None:
        """Make the environments and reset them.

        Raises:
            EnvError: they are running already; or `reset_param` is given, which gymnasium's
                vector environments do not take one by one; or their autoreset mode is not known.
        """
        if self._env is not None:
            raise EnvError("the environments are running; close() them before launch()")
        if any((reset_param or {}).values()):
            raise EnvError(
                "reset_param is not supported by gymnasium's vector environments; "
                "set env.manager.type: subprocess"
            )
        self._env = self._make()
        self._mode = _autoreset_mode(self._env)
        self._dtype = np.dtype(stored_dtype(self._env.single_observation_space.dtype))
        self.reset()

    def reset(self, reset_param: ResetParam | None = None) -> None:
        """Reset environments; seeds move on, so episodes differ.

        Args:
            reset_param: which ones, and with which ``seed``; None: all, and their counters.

        Raises:
            EnvError: only some, and the vector environment cannot reset these.
        """
        env = self._running()
        if reset_param is not None:
            self._reset_some(env, reset_param)
            return
        self.observation = self._stored(_begin(env, self._streams.all()))
        self._episodes = Episodes(self.env_num, self._episodes.quota)
        self._resetting[:] = False

    @property
    def observation_space(self) -> Any:
        """See `EnvManager.observation_space`."""
        return self._running().single_observation_space

    @property
    def action_space(self) -> Any:
        """See `EnvManager.action_space`."""
        return self._running().single_action_space

    def call(self, env: int, name: str, *args: Any) -> tuple[bool, Any]:
        """See `EnvManager.call`; a vectorised form has no single environments."""
        vector = self._running()
        if not isinstance(vector, SyncVectorEnv):
            return False, None
        return call_method(vector.envs[env], name, args)

    def ready_imgs(self, render_mode: str = "rgb_array") -> list[Array]:
        """See `EnvManager.ready_imgs`."""
        vector = self._running()
        if render_mode != "rgb_array" or isinstance(vector, SyncVectorEnv):
            return super().ready_imgs(render_mode)
        drawn: Any = vector.render() if vector.render_mode == render_mode else None
        pictures = drawn if isinstance(drawn, list | tuple) else [None] * self.env_num
        return [as_picture(picture, env) for env, picture in enumerate(pictures)]

    def close(self) -> None:
        """Close the environments; again: nothing."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _advance(
        self, actions: Array, *, wants_info: bool
    ) -> tuple[VectorStep, Mapping[int, dict[str, Any]]]:
        env = self._running()
        try:
            observation, reward, terminated, truncated, info = env.step(actions)
        except Exception as error:  # whatever an environment raises is its failure
            return self._renew(error), {}
        self._record.good((0,))
        observation = self._stored(observation)
        ended = terminated | truncated
        live = ~self._resetting & self._episodes.open
        successor = observation
        if self._mode is AutoresetMode.NEXT_STEP:
            self._resetting = ended
        elif ended.any():
            if self._mode is AutoresetMode.SAME_STEP:
                successor = _final_observations(observation, ended, info)
            else:
                observation, _ = env.reset(options={"reset_mask": ended})
                observation = self._stored(observation)
        reward = np.asarray(reward, dtype=np.float32)
        self._episodes.add(reward, ended, live)
        self.observation = observation
        told: dict[int, dict[str, Any]] = {}
        if wants_info and self._mode is AutoresetMode.SAME_STEP:  # an ended one's is of its reset
            told = _infos(info, live & ~ended) | _infos(info.get("final_info", {}), live & ended)
        elif wants_info:
            told = _infos(info, live)
        return VectorStep(successor, reward, terminated, truncated, live), told

    def _renew(self, error: Exception) -> VectorStep:
        """Make all environments anew after one has raised; gives the step that there was not.

        Raises:
            EnvError: that has happened too often.
        """
        self._record.dropped += int(np.count_nonzero(self._waiting()))
        while True:
            failure = EnvFailure.of(error)
            told = {"detail": failure.detail}
            too_often = self._record.add(0, time.monotonic())
            if too_often:
                raise EnvError(
                    f"an environment failed, {too_often}: {failure.cause}\n{failure.detail}\nmend "
                    "it, or raise env.manager.max_retry"
                ) from error
            LOGGER.warning(
                "an environment failed (%s); all %d are made anew, what they had of an episode is "
                "dropped", failure.cause, self.env_num, extra=told,
            )  # fmt: skip
            try:
                self._env = self._make()
                self.observation = self._stored(_begin(self._env, self._streams.all()))
            except Exception as again:  # it does not begin either
                error = again
                wait_s(self._settings.retry_waiting_time)
                continue
            everyone = np.ones(self.env_num, dtype=bool)
            self._resetting[:] = False
            self._episodes.drop(everyone)
            nothing = np.zeros(self.env_num, dtype=bool)
            reward = np.zeros(self.env_num, dtype=np.float32)
            return VectorStep(self.observation, reward, nothing, nothing, nothing, everyone)

    def _waiting(self) -> Array:
        self._running()
        waiting: Array = ~self._resetting & self._episodes.open
        return waiting

    def _reset_some(self, env: VectorEnv[Any, Any, Any], reset_param: ResetParam) -> None:
        chosen = self._selected(reset_param)
        if not isinstance(env, SyncVectorEnv) and self._mode is not AutoresetMode.DISABLED:
            raise EnvError(
                "this vector environment cannot reset single environments; set "
                "env.manager.type: subprocess, or env.vectorization: sync"
            )
        if any(param.get("options") for param in chosen.values()):
            raise EnvError("options are not supported by gymnasium's vector environments")
        if not chosen:
            return
        mask = np.isin(np.arange(self.env_num), list(chosen))
        seeds: Any = [
            chosen[i].get("seed", self._streams.one(i)) if mask[i] else None
            for i in range(self.env_num)
        ]
        observation, _ = env.reset(seed=seeds, options={"reset_mask": mask})
        self.observation = self._stored(observation)
        self._resetting[mask] = False
        self._episodes.drop(mask)

    def _running(self) -> VectorEnv[Any, Any, Any]:
        if self._env is None:
            raise EnvError("the environments are not running; launch() them first")
        return self._env

    def _stored(self, observation: Any) -> Array:
        """A copy: some environments write each observation over the one before."""
        return np.array(observation, dtype=self._dtype)


def _begin(env: VectorEnv[Any, Any, Any], seeds: Sequence[int]) -> Any:
    """First observations of all environments."""
    # an environment that is vectorised itself has one generator for all its copies
    seed: Any = list(seeds) if isinstance(env, SyncVectorEnv) else seeds[0]
    return env.reset(seed=seed)[0]


def _autoreset_mode(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise EnvError(
            f"{env} does not say how it resets: its metadata['autoreset_mode'] is {mode!r}, and "
            "must be one of gymnasium.vector.AutoresetMode"
        )
    return mode


def _final_observations(observation: Array, ended: Array, info: dict[str, Any]) -> Array:
    """Observations with those of ended episodes replaced by their last ones (SAME_STEP)."""
    if "final_obs" not in info:
        raise EnvError(
            "the environment says it resets in the same step, but its info has no 'final_obs'"
        )
    successor = observation.copy()
    for env in np.flatnonzero(ended):
        successor[env] = info["final_obs"][env]
    return successor


def _infos(info: dict[str, Any], envs: Array) -> dict[int, dict[str, Any]]:
    """A vector environment's info as one dict for each environment of the mask `envs`."""
    named = [name for name in info if f"_{name}" in info and not name.startswith("final_")]
    return {
        int(env): {name: info[name][env] for name in named if info[f"_{name}"][env]}
        for env in np.flatnonzero(envs)
    }  # fmt: skip
