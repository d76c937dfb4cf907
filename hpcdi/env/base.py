"""The contracts of environments: with collectors above, with a manager's back-end below."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np

from hpcdi.types import Array

EnvFn = Callable[[], Any]
"""Makes one environment."""


# ---------------------------------------------------------------------------------- with collectors


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


class VectorStep(NamedTuple):
    """One step of all environments of a manager; arrays are [envs, ...].

    Attributes:
        successor: observation after the step: at an episode's end the last one of that episode.
        reward: float32.
        terminated: bool; the task ended: nothing is bootstrapped.
        truncated: bool; the episode was cut: the value of `successor` is bootstrapped.
        ended: bool; terminated or truncated.
        live: bool; false where no transition happened (the environment was being reset, is still in
            its step, or has done all its episodes): ignore the other arrays there.
        abnormal: bool; the environment failed in this step and was reset or re-created: drop the
            transitions of its unfinished episode. None: no environment failed.
    """

    successor: Array
    reward: Array
    terminated: Array
    truncated: Array
    ended: Array
    live: Array
    abnormal: Array | None = None


def is_abnormal(timestep: BaseEnvTimestep) -> bool:
    """Returns whether the environment failed in this step: drop its unfinished episode.

    Its ``obs`` is the first one of the next episode.
    """
    info: Any = timestep.info
    infos = [info] if isinstance(info, Mapping) else info  # one for each player
    return any(one.get("abnormal", False) for one in infos)


# ----------------------------------------------------------------------------------------- settings


# ------------------------------------------------------------------------ with a manager's back-end


class EnvFailure(Exception):
    """An environment failed; its manager handles it.

    Args:
        cause: one line.
        detail: the traceback, where there is one.
        is_gone: whether the environment must be re-created.
    """

    def __init__(self, cause: str, detail: str = "", is_gone: bool = False) -> None:
        super().__init__(cause)
        self.cause, self.detail, self.is_gone = cause, detail, is_gone

    @classmethod
    def of(cls, error: BaseException) -> EnvFailure:
        """Returns the failure that an exception of the environment is.

        Its traceback begins where hpcdi calls the environment.
        """
        text = str(error).partition("\n")[0]
        cause = f"{type(error).__name__}: {text}" if text else type(error).__name__
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None and _is_ours(trace):
            trace = trace.tb_next
        return cls(cause, "".join(traceback.format_exception(type(error), error, trace)).rstrip())


def _is_ours(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__name__", "")).startswith("hpcdi.")


class EnvFacts(NamedTuple):
    """Description of an environment; spaces of battles are lists, one for each player.

    ``teams`` has the players of each team, by their numbers; every player is in one of them.
    """

    observation_space: Any
    action_space: Any
    players: int
    teams: tuple[tuple[int, ...], ...] = ((0,),)


class EpisodeStart(NamedTuple):
    """Start of an episode; an environment that does not exist is created first."""

    seed: int | None = None
    options: dict[str, Any] | None = None
    exists: bool = False


class BackendStep(NamedTuple):
    """One step of a back-end; arrays are [envs, ...] and as in `VectorStep`.

    ``made``, bool [envs]: whose step is over; it may have begun in an earlier call. None: those of
    `live`.
    """

    successor: Array
    reward: Array
    terminated: Array
    truncated: Array
    ended: Array
    infos: Mapping[int, Any]
    failed: Mapping[int, EnvFailure]
    made: Array | None = None


class Backend(Protocol):
    """Creates, resets and steps environments; the manager decides when, and retries failures.

    Attributes:
        env_num: environments.
        facts: of the environments; None: none was created yet.
        fails_as_one: one failing environment takes all others with it; the failure is reported as
            that of environment 0.
        waiting: bool [envs]; whether an environment takes an action in the next step.
        observation: [envs, ...]; the policy acts on it next. A step never overwrites it. Of
            battles a list with one for each environment.
    """

    env_num: int
    facts: EnvFacts | None
    fails_as_one: bool
    waiting: Array
    observation: Any

    def start(self, starts: Mapping[int, EpisodeStart]) -> dict[int, EnvFailure]:
        """Have environments begin an episode, all at the same time; returns those that failed.

        Raises:
            ConfigError, EnvError: no retry would help.
        """
        ...

    def step(
        self,
        actions: Array,
        live: Array,
        *,
        seeds: Sequence[int | None],
        goes_on: Sequence[bool],
        wants_info: bool,
    ) -> BackendStep:
        """Step environments, and reset those whose episode ended.

        Args:
            actions: [envs, ...].
            live: bool [envs]; those to be stepped.
            seeds: of the episodes that follow; None: the environment's generator goes on.
            goes_on: whether an episode follows.
            wants_info: return the environments' infos.
        """
        ...

    def call(self, env: int, name: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
        """Call an environment's method; returns whether it has one, and what that returned.

        Raises:
            EnvFailure: the method failed.
        """
        ...

    def render(self) -> list[Any]:
        """Returns a picture of each environment; None where it draws none."""
        ...

    def retire(self, env: int) -> None:
        """Close an environment that has failed too often, without waiting for it."""
        ...

    def close(self) -> None:
        """Close all environments; `start` can create them again. Idempotent."""
        ...


def stored_dtype(dtype: Any) -> str:
    """Returns the dtype in which observations are stored: float64 becomes float32, others stay."""
    return "float32" if np.dtype(dtype) == np.float64 else str(np.dtype(dtype))
