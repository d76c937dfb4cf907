"""The contract between environments and collectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from hpcdi.config.fields import ComponentConfig, component, setting
from hpcdi.errors import Problem
from hpcdi.types import Array
from hpcdi.utils.registry import ENV_MANAGER_REGISTRY


class BaseEnvTimestep(NamedTuple):
    """One step of one environment, in the per-environment form.

    ``info`` holds ``terminated`` and ``truncated``, and at an episode's end
    ``eval_episode_return``; after a failure of the environment only ``abnormal``. In a battle
    ``obs``, ``reward`` and ``info`` have one element for each player.
    """

    obs: Any
    reward: Any
    done: bool
    info: Any


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


def is_abnormal(timestep: BaseEnvTimestep) -> bool:
    """Whether the environment failed in this step: what is kept of its episode is to be dropped.

    Its ``obs`` is the first one of the next episode.
    """
    info: Any = timestep.info
    infos = [info] if isinstance(info, Mapping) else info  # one for each player
    return any(one.get("abnormal", False) for one in infos)


@dataclass(frozen=True)
class ManagerConfig(ComponentConfig):
    """Settings that every manager has."""

    type: str = "base"
    episode_num: float | None = setting(
        None, "episodes of each environment; empty or .inf: for ever", minimum=1
    )
    max_retry: int = setting(
        5,
        "failures of an environment that are borne within retry_window_s, and in a row; with one "
        "more it is retired, and the last one's end ends the collecting",
        minimum=0,
    )
    retry_window_s: float = setting(
        300.0, "seconds after which a failure does not count any more", above=0
    )
    retry_type: str = setting(
        "reset",
        "what is done with an environment that raised: it is reset, or made anew",
        choices=("reset", "renew"),
    )
    auto_reset: bool = setting(True, "begin the next episode where one has ended")
    step_timeout: float | None = setting(
        None, "seconds until a step counts as hung; needs child processes", above=0
    )
    reset_timeout: float | None = setting(
        None,
        "seconds until a reset counts as hung; making has a minute more; needs child processes",
        above=0,
    )
    retry_waiting_time: float = setting(0.1, "seconds before the next try", minimum=0)

    def problems(self) -> Iterator[Problem]:
        """An environment of this process cannot be stopped from outside."""
        for name in ("step_timeout", "reset_timeout"):
            if getattr(self, name) is not None:
                yield Problem(
                    name,
                    f"cannot be kept with type {self.type!r}: nothing stops a hung environment of "
                    "this process; set env.manager.type: subprocess",
                )

    @property
    def episodes(self) -> int | None:
        """`episode_num`; None: for ever."""
        number = self.episode_num
        return None if number is None or number == float("inf") else int(number)


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
