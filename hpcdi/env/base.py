"""The contract between environments and collectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from hpcdi.config.fields import ComponentConfig, component, setting
from hpcdi.errors import Problem
from hpcdi.types import Array
from hpcdi.utils.registry import ENV_MANAGER_REGISTRY


class BaseEnvTimestep(NamedTuple):
    """One step of one environment, in the per-environment form.

    ``info`` holds ``terminated`` and ``truncated``, and at an episode's end
    ``eval_episode_return``.
    """

    obs: Any
    reward: Any
    done: bool
    info: dict[str, Any]


@dataclass(frozen=True)
class VectorStep:
    """One step of all environments of a manager; arrays are [envs, ...].

    Attributes:
        successor: observation after the step: at an episode's end the last one of that episode.
        reward: float32.
        terminated: bool; the task ended: nothing is bootstrapped.
        truncated: bool; the episode was cut: the value of `successor` is bootstrapped.
        live: bool; false where no transition happened (the environment was being reset, or has
            done all its episodes), and then nothing else of that environment means anything.
        abnormal: bool; the environment failed in this step and was made or reset anew: the
            transitions of its unfinished episode are to be dropped. None: no environment did.
    """

    successor: Array
    reward: Array
    terminated: Array
    truncated: Array
    live: Array
    abnormal: Array | None = None


class VectorEnvManager(Protocol):
    """Steps several environments in lock-step, as arrays."""

    env_num: int
    observation: Array
    """What the policy acts on next, [envs, ...]."""

    def launch(self, reset_param: Mapping[int, Any] | None = None) -> None:
        """Make the environments and reset them."""
        ...

    def step_all(self, actions: Array) -> VectorStep:
        """Step all environments by actions [envs, ...]; `observation` moves on."""
        ...

    @property
    def done(self) -> bool:
        """Whether every environment has done its number of episodes."""
        ...

    def take_episodes(self) -> tuple[Array, Array]:
        """Returns and lengths of the episodes that ended since the last call, in order."""
        ...

    def close(self) -> None:
        """Close the environments; again: nothing."""
        ...


@dataclass(frozen=True)
class EnvConfig(ComponentConfig):
    """Settings that every environment has."""

    collector_env_num: int = setting(8, "environments of one collector", minimum=1)
    collector_episode_num: int | None = setting(
        None,
        "episodes of each environment in one collect task; empty: until the task is closed",
        minimum=1,
    )
    evaluator_env_num: int = setting(5, "environments of an evaluation", minimum=1)
    evaluator_episode_num: int = setting(
        1, "episodes of each environment in one evaluation", minimum=1
    )
    stop_value: float = setting(
        float("inf"), "an evaluation whose mean return reaches this ends the run"
    )
    manager: Any = component(ENV_MANAGER_REGISTRY, "base", "how the environments are stepped")

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        return iter(())
