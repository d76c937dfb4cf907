"""A manager over one of gymnasium's vector environments, in every autoreset mode.

What an episode's end looks like, by mode::

    NEXT_STEP   the step returns the last observation; the next step resets (a dummy: not live)
    SAME_STEP   the step returns the first observation of the next episode; the last one is in info
    DISABLED    the step returns the last observation; the manager resets with a mask

All three become one `VectorStep`: `successor` is always the last observation of the old episode,
`observation` always what the policy acts on next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from hpcdi.config.compat import Configurable
from hpcdi.config.fields import ComponentConfig
from hpcdi.env.base import BaseEnvTimestep, VectorStep
from hpcdi.env.gymnasium_env import stored_dtype
from hpcdi.errors import EnvError
from hpcdi.types import Array
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.registry import ENV_MANAGER_REGISTRY


@ENV_MANAGER_REGISTRY.register("base", "gym")
class GymManager(Closing, Configurable):
    """Environments in this process, stepped together.

    Args:
        make: makes the vector environment.
        env_num: environments in it.
        episode_num: episodes of each environment until it is done; None: for ever.
        seed: of the environments.
    """

    @dataclass(frozen=True)
    class Config(ComponentConfig):
        """It has no settings of its own."""

        type: str = "base"

    def __init__(
        self,
        make: Callable[[], VectorEnv[Any, Any, Any]],
        env_num: int,
        *,
        episode_num: int | None = None,
        seed: np.random.SeedSequence,
    ) -> None:
        self.env_num = env_num
        self.observation: Array = np.empty(0)
        self._episode_num = episode_num
        self._make, self._seed = make, seed
        self._env: VectorEnv[Any, Any, Any] | None = None
        self._episodes = _Episodes(env_num)
        self._resetting = np.zeros(env_num, dtype=bool)

    def launch(self, reset_param: Mapping[int, Any] | None = None) -> None:
        """Make the environments and reset them.

        Raises:
            EnvError: they are running already; or `reset_param` names options, which gymnasium's
                vector environments do not take one by one; or their autoreset mode is not known.
        """
        if self._env is not None:
            raise EnvError("the environments are running; close() them before launch()")
        if reset_param:
            raise EnvError("reset_param is not supported by gymnasium's vector environments")
        self._env = self._make()
        self._mode = _autoreset_mode(self._env)
        self._dtype = np.dtype(stored_dtype(self._env.single_observation_space.dtype))
        self.reset()

    def reset(self) -> None:
        """Reset all environments and their counters; seeds move on, so episodes differ."""
        env = self._running()
        seeds = [int(word) for word in self._seed.spawn(1)[0].generate_state(self.env_num)]
        # an environment that is vectorised itself has one generator for all its copies
        if isinstance(env, SyncVectorEnv):
            observation, _ = env.reset(seed=list(seeds))
        else:
            observation, _ = env.reset(seed=seeds[0])
        self.observation = self._stored(observation)
        self._episodes = _Episodes(self.env_num)
        self._resetting[:] = False

    def restart_count(self) -> None:
        """Count episodes anew; those that are running go on.

        Where some environments had done their number, all begin anew: these stand in the middle of
        an episode that nobody saw.
        """
        if self._episode_num is not None and (self._episodes.counts >= self._episode_num).any():
            self.reset()
        self._episodes.counts[:] = 0

    def step_all(self, actions: Array) -> VectorStep:
        """See `VectorEnvManager.step_all`."""
        env = self._running()
        observation, reward, terminated, truncated, info = env.step(actions)
        observation = self._stored(observation)
        ended = terminated | truncated
        live = ~self._resetting
        if self._episode_num is not None:
            live &= self._episodes.counts < self._episode_num
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
        return VectorStep(successor, reward, terminated, truncated, live)

    @property
    def done(self) -> bool:
        """Whether every environment has done its number of episodes."""
        if self._episode_num is None:
            return False
        return bool((self._episodes.counts >= self._episode_num).all())

    def take_episodes(self) -> tuple[Array, Array]:
        """See `VectorEnvManager.take_episodes`."""
        return self._episodes.take()

    # The per-environment form, for policies that act on one environment at a time.

    @property
    def ready_obs(self) -> dict[int, Array]:
        """Observation of each environment that waits for an action.

        Raises:
            EnvError: the environments are not running.
        """
        self._running()
        waiting = ~self._resetting
        if self._episode_num is not None:
            waiting &= self._episodes.counts < self._episode_num
        return {int(i): self.observation[i] for i in np.flatnonzero(waiting)}

    def step(self, actions: Mapping[int, Any]) -> dict[int, BaseEnvTimestep]:
        """Step all environments; gives the timesteps of those that `actions` names.

        Environments that are being reset in this step need no action.

        Raises:
            EnvError: an action is missing, or names an environment that there is not.
        """
        ready = self.ready_obs
        missing = ready.keys() - actions.keys()
        if missing:
            raise EnvError(f"environments {sorted(missing)} wait for an action")
        strangers = actions.keys() - set(range(self.env_num))
        if strangers:
            raise EnvError(f"there are no environments {sorted(strangers)}, only {self.env_num}")
        if not ready:
            filler = self._running().action_space.sample()
            self.step_all(filler)
            return {}
        first = np.asarray(next(iter(actions.values())))
        batch = np.zeros((self.env_num, *first.shape), dtype=first.dtype)
        for env, action in actions.items():
            batch[env] = np.asarray(action)
        before = self._episodes.returns.copy()
        step = self.step_all(batch)
        return {env: _timestep(step, env, before) for env in ready}

    def seed(
        self,
        seed: int | Sequence[int] | Mapping[int, int],
        dynamic_seed: bool | None = None,  # noqa: ARG002
    ) -> None:
        """Seed the environments, by one number or one for each; takes effect at the next reset."""
        numbers = list(seed.values()) if isinstance(seed, Mapping) else seed
        self._seed = np.random.SeedSequence(numbers)

    def close(self) -> None:
        """Close the environments; again: nothing."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _running(self) -> VectorEnv[Any, Any, Any]:
        if self._env is None:
            raise EnvError("the environments are not running; launch() them first")
        return self._env

    def _stored(self, observation: Any) -> Array:
        """A copy: some environments write each observation over the one before."""
        return np.array(observation, dtype=self._dtype)


class _Episodes:
    """Returns and lengths of running episodes, and those that ended."""

    def __init__(self, env_num: int) -> None:
        self.counts = np.zeros(env_num, dtype=np.int64)
        self.returns = np.zeros(env_num, dtype=np.float64)
        self._lengths = np.zeros(env_num, dtype=np.int64)
        self._ended: list[tuple[Array, Array]] = []

    def add(self, reward: Array, ended: Array, live: Array) -> None:
        self.returns += np.where(live, reward, 0.0)
        self._lengths += live
        ended = ended & live
        if ended.any():
            self._ended.append((self.returns[ended], self._lengths[ended]))
            self.counts += ended
            self.returns[ended] = 0.0
            self._lengths[ended] = 0

    def take(self) -> tuple[Array, Array]:
        taken, self._ended = self._ended, []
        if not taken:
            return np.zeros(0), np.zeros(0, dtype=np.int64)
        returns, lengths = zip(*taken, strict=True)
        return np.concatenate(returns), np.concatenate(lengths)


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


def _timestep(step: VectorStep, env: int, returns_before: Array) -> BaseEnvTimestep:
    terminated, truncated = bool(step.terminated[env]), bool(step.truncated[env])
    info: dict[str, Any] = {"terminated": terminated, "truncated": truncated}
    if terminated or truncated:
        info["eval_episode_return"] = float(returns_before[env] + step.reward[env])
    return BaseEnvTimestep(
        step.successor[env], float(step.reward[env]), terminated or truncated, info
    )
