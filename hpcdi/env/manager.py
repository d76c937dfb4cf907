"""What all managers have in common: quotas of episodes, seeds, and the per-environment form."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.config.compat import Configurable
from hpcdi.env.base import BaseEnvTimestep, ManagerConfig, VectorStep
from hpcdi.env.episodes import Episodes
from hpcdi.env.seeds import SeedStreams
from hpcdi.errors import EnvError
from hpcdi.types import Array
from hpcdi.utils.lifetime import Closing

ResetParam = Mapping[int, Mapping[str, Any] | None]
"""Environments to reset; each with None, or with its ``seed`` and ``options``."""


class EnvManager(Closing, Configurable, abc.ABC):
    """Several environments, stepped together.

    Args:
        env_num: environments.
        settings: of the manager.
        episode_num: episodes of each environment until it is done; None: for ever.
        seed: of the environments.
    """

    Config = ManagerConfig
    resets_abnormal = True
    """An environment whose step was abnormal has begun a new episode by itself."""
    retires = False
    """Go on without a single environment that fails too often; set before `launch`. Who steps them
    must bear that one never waits for an action again. False: that is an error."""

    def __init__(
        self,
        env_num: int,
        settings: ManagerConfig,
        *,
        episode_num: int | None,
        seed: np.random.SeedSequence,
    ) -> None:
        self.env_num = env_num
        self._settings = settings
        self._streams = SeedStreams(seed, env_num)
        self._episodes = Episodes(env_num, episode_num)
        self._sampler: Any = None  # the action space that random actions come from

    @property
    def done(self) -> bool:
        """Whether every environment has done its number of episodes."""
        return not self._episodes.open.any()

    @property
    def failures(self) -> int:
        """How often environments have failed and were reset or made anew, since `launch`."""
        return self.health["env_failures"]

    @property
    def health(self) -> dict[str, int]:
        """Failures since `launch`, unfinished episodes that were dropped, environments retired."""
        return {"env_failures": 0, "episodes_dropped": 0, "envs_retired": 0}

    @property
    def child_pids(self) -> list[int]:
        """Child processes that hold environments; empty where these are in this process."""
        return []

    @property
    @abc.abstractmethod
    def closed(self) -> bool:
        """Whether the environments are not running."""

    @abc.abstractmethod
    def launch(self, reset_param: ResetParam | None = None) -> None:
        """Make the environments and reset them.

        Raises:
            EnvError: they are running already, or cannot be made.
        """

    @abc.abstractmethod
    def reset(self, reset_param: ResetParam | None = None) -> None:
        """Reset environments, and drop what they had of an episode.

        Args:
            reset_param: which ones, and how; None: all, and their counters.
        """

    @property
    @abc.abstractmethod
    def ready_obs(self) -> dict[int, Any]:
        """Observation of each environment that waits for an action.

        Raises:
            EnvError: the environments are not running.
        """

    @abc.abstractmethod
    def step(self, actions: Mapping[int, Any]) -> dict[int, BaseEnvTimestep]:
        """Step the environments that wait; all of them need an action.

        Raises:
            EnvError: an action is missing, or names an environment that there is not.
        """

    @property
    @abc.abstractmethod
    def observation_space(self) -> Any:
        """Gymnasium's space of one observation."""

    @property
    @abc.abstractmethod
    def action_space(self) -> Any:
        """Gymnasium's space of one action."""

    @abc.abstractmethod
    def call(self, env: int, name: str, *args: Any) -> tuple[bool, Any]:
        """Call an environment's method: ``(whether it has one, what it gave)``."""

    def take_episodes(self) -> tuple[Array, Array]:
        """Returns and lengths of the episodes that ended since the last call, in order."""
        return self._episodes.take()

    def restart_count(self) -> None:
        """Count episodes anew; those that are running go on.

        Where some environments had done their number, all begin anew: these stand in the middle of
        an episode that nobody saw.
        """
        if not (self._episodes.open | self._episodes.retired).all():
            self.reset()
        self._episodes.counts[:] = 0

    def seed(
        self, seed: int | Sequence[int] | Mapping[int, int], dynamic_seed: bool | None = None
    ) -> None:
        """Seed the environments; takes effect at the next reset.

        Args:
            seed: one number, a list with one for each environment, or a mapping of some of them.
            dynamic_seed: False: every reset of an environment takes the same seed.
        """
        self._streams.seed(seed, dynamic_seed)
        self._sampler = None

    def random_action(self) -> dict[int, Any]:
        """A random action for each environment that waits; the manager's seed decides them."""
        if self._sampler is None:
            self._sampler = self.action_space
            self._sampler.seed(self._streams.actions())
        return {env: self._sampler.sample() for env in self.ready_obs}

    def ready_imgs(self, render_mode: str = "rgb_array") -> list[Array]:
        """A picture of each environment, uint8 [height, width, 3].

        Raises:
            EnvError: the environments give none.
        """
        if render_mode != "rgb_array":
            raise EnvError(f"pictures are 'rgb_array', not {render_mode!r}")
        return [self._picture(env) for env in range(self.env_num)]

    def enable_save_figure(self, env_id: int, figure_path: str) -> None:
        """Have an environment save what it draws under a path.

        Raises:
            EnvError: it has no method ``enable_save_figure``.
        """
        if not self.call(env_id, "enable_save_figure", figure_path)[0]:
            raise EnvError(
                f"environment {env_id} has no enable_save_figure(path); take its pictures with "
                "ready_imgs() instead"
            )

    def reward_shaping(self, env_id: int, transitions: list[Any]) -> list[Any]:
        """Transitions as the environment's ``reward_shaping`` gives them; else unchanged."""
        has_it, shaped = self.call(env_id, "reward_shaping", transitions)
        return shaped if has_it else transitions

    def _picture(self, env: int) -> Array:
        has_it, picture = self.call(env, "render")
        return as_picture(picture if has_it else None, env)

    def _check_actions(self, actions: Mapping[int, Any], ready: Mapping[int, Any]) -> None:
        missing = ready.keys() - actions.keys()
        if missing:
            raise EnvError(f"environments {sorted(missing)} wait for an action")
        strangers = actions.keys() - set(range(self.env_num))
        if strangers:
            raise EnvError(f"there are no environments {sorted(strangers)}, only {self.env_num}")

    def _selected(self, reset_param: ResetParam | None) -> dict[int, dict[str, Any]]:
        """Checked parameters of the environments that a `reset_param` names; None: of all."""
        chosen = dict.fromkeys(range(self.env_num)) if reset_param is None else dict(reset_param)
        for env, param in chosen.items():
            unknown = set(param or {}) - {"seed", "options"}
            if unknown:
                raise EnvError(
                    f"reset_param of environment {env} has {sorted(unknown)}; it may have 'seed' "
                    "and 'options'"
                )
        strangers = chosen.keys() - set(range(self.env_num))
        if strangers:
            raise EnvError(f"there are no environments {sorted(strangers)}, only {self.env_num}")
        return {env: dict(param or {}) for env, param in chosen.items()}


class VectorManager(EnvManager):
    """A manager whose data are arrays; the per-environment form is made of them."""

    observation: Array
    """What the policy acts on next, [envs, ...]."""

    def step_all(self, actions: Array) -> VectorStep:
        """Step all environments by actions [envs, ...]; `observation` moves on."""
        return self._advance(actions, wants_info=False)[0]

    @abc.abstractmethod
    def _advance(
        self, actions: Array, *, wants_info: bool
    ) -> tuple[VectorStep, Mapping[int, dict[str, Any]]]:
        """`step_all`, and what the environments say of it where that is asked for."""

    @abc.abstractmethod
    def _waiting(self) -> Array:
        """Which environments wait for an action, bool [envs]."""

    @property
    def ready_obs(self) -> dict[int, Array]:
        """See `EnvManager.ready_obs`."""
        return {int(env): self.observation[env] for env in np.flatnonzero(self._waiting())}

    def step(self, actions: Mapping[int, Any]) -> dict[int, BaseEnvTimestep]:
        """Step all environments; gives the timesteps of those that wait.

        Environments that are being reset in this step need no action.

        Raises:
            EnvError: an action is missing, or names an environment that there is not.
        """
        ready = self.ready_obs
        self._check_actions(actions, ready)
        example = np.asarray(next(iter(actions.values())) if ready else self.action_space.sample())
        batch = np.zeros((self.env_num, *example.shape), dtype=example.dtype)
        for env, action in actions.items():
            batch[env] = np.asarray(action)
        before = self._episodes.returns.copy()
        step, infos = self._advance(batch, wants_info=True)
        return {
            env: self._timestep(step, env, infos.get(env, {}), float(before[env])) for env in ready
        }

    def _timestep(
        self, step: VectorStep, env: int, told: dict[str, Any], return_before: float
    ) -> BaseEnvTimestep:
        if step.abnormal is not None and step.abnormal[env]:
            return BaseEnvTimestep(self.observation[env], 0.0, False, {"abnormal": True})
        terminated, truncated = bool(step.terminated[env]), bool(step.truncated[env])
        reward, done = float(step.reward[env]), terminated or truncated
        info = {**told, "terminated": terminated, "truncated": truncated}
        if done:
            info.setdefault("eval_episode_return", return_before + reward)
        return BaseEnvTimestep(step.successor[env], reward, done, info)


def as_picture(picture: Any, env: int) -> Array:
    """What an environment drew, as uint8 [height, width, 3].

    Raises:
        EnvError: it drew nothing.
    """
    drawn = np.asarray(picture if picture is not None else 0)
    if drawn.ndim != 3:
        raise EnvError(
            f"environment {env} draws no pictures; make it with env.kwargs: "
            "{render_mode: rgb_array}"
        )
    return drawn.astype(np.uint8, copy=False)
