"""A manager of battle environments: observations, actions and rewards of several players."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.env.base import BaseEnvTimestep, ManagerConfig
from hpcdi.env.pool import Pool
from hpcdi.env.pooled import EnvFn, PooledManager
from hpcdi.env.runner import Outcome
from hpcdi.env.seat import EnvFailure
from hpcdi.types import Array


class BattleManager(PooledManager):
    """Battle environments, each replaced when it fails; one environment at a time.

    Observations and actions are lists with one element for each player, None where a player is not
    to act; rewards are float32 [players]; infos are lists. Battles have no columnar form.

    Args:
        env_fns: make one battle environment each (`BattleEnv` says what that is).
        settings: of the manager; `ChildConfig`: each environment gets a child process.
        episode_num: episodes of each environment until it is done; None: for ever.
        seed: of the environments.
    """

    takes_objects = True

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        settings: ManagerConfig | None = None,
        *,
        episode_num: int | None = None,
        seed: np.random.SeedSequence,
    ) -> None:
        super().__init__(env_fns, settings, episode_num=episode_num, seed=seed)
        self._waiting: dict[int, Any] = {}  # observations that wait for an action

    @property
    def players(self) -> int:
        """Players of one environment."""
        facts = self._running().facts
        return 0 if facts is None else facts.players

    @property
    def ready_obs(self) -> dict[int, Any]:
        """Observations of each environment that waits: one for each player, or None."""
        self._running()
        is_open = self._episodes.open
        return {env: self._waiting[env] for env in sorted(self._waiting) if is_open[env]}

    def step(self, actions: Mapping[int, Any]) -> dict[int, BaseEnvTimestep]:
        """Step the environments that wait, each by a list with an action or None for each player.

        Raises:
            EnvError: an action is missing, or names an environment that there is not.
        """
        pool, ready = self._running(), self.ready_obs
        self._check_actions(actions, ready)
        quota, goes_on = self._episodes.quota, self._settings.auto_reset
        for env in ready:
            again = goes_on and (quota is None or self._episodes.counts[env] + 1 < quota)
            command = ("step", self._streams.fixed(env), again, list(actions[env]))
            pool.seats[env].ask(command)
        outcomes, failed = pool.collect(ready)
        steps = {env: self._timestep(env, outcome) for env, outcome in outcomes.items()}
        steps |= self._replaced(pool, failed, outcomes)
        return {env: steps[env] for env in ready if env in steps}

    def random_action(self) -> dict[int, Any]:
        """Random legal actions of each environment that waits; the manager's seed decides them."""
        if self._sampler is None:
            self._sampler = np.random.default_rng(self._streams.actions())
            for space in self.action_space:
                space.seed(int(self._sampler.integers(2**31)))
        return {
            env: list(map(_legal, self.action_space, obs)) for env, obs in self.ready_obs.items()
        }

    def _timestep(self, env: int, outcome: Outcome) -> BaseEnvTimestep:
        """Count a good step, and go on to what is acted on next."""
        here = np.arange(self.env_num) == env
        reward: Array = np.zeros((self.env_num, self.players), dtype=np.float32)
        reward[env] = outcome.reward
        self._episodes.add(reward, here & outcome.done, here)
        if not outcome.done:
            self._waiting[env] = outcome.obs
        elif outcome.first is not None:
            self._waiting[env] = outcome.first
        else:
            del self._waiting[env]
        return BaseEnvTimestep(outcome.obs, outcome.reward, outcome.done, outcome.info)

    def _replaced(
        self, pool: Pool, failed: Mapping[int, EnvFailure], good: Mapping[int, Outcome]
    ) -> dict[int, BaseEnvTimestep]:
        """Timesteps of environments that failed: they stand at the start of a new episode."""
        firsts = pool.recover(failed, good)
        self._note_retired()
        self._stand(firsts)
        steps = {}
        for env, first in firsts.items():
            self._episodes.drop(env)
            info = [{"abnormal": True} for _ in range(self.players)]
            nothing = np.zeros(self.players, dtype=np.float32)
            steps[env] = BaseEnvTimestep(first, nothing, False, info)
        return steps

    def _stand(self, firsts: Mapping[int, Any]) -> None:
        self._waiting.update(firsts)


def _legal(space: Any, observation: Any) -> Any:
    """A random action that the observation's mask allows; None where the player is not to act."""
    if observation is None:
        return None
    if isinstance(observation, Mapping) and "action_mask" in observation:
        return space.sample(mask=np.asarray(observation["action_mask"], dtype=np.int8))
    return space.sample()
