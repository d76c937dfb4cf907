"""A look at a configuration's environment before anything starts: one is made, and closed again.

A second one is made where a process has several, beside the first, and for each way in which
environments of a run are made by other arguments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gymnasium.vector import SyncVectorEnv

from hpcdi.config.env import ChildConfig, EnvConfig
from hpcdi.config.schedule import KWARGS
from hpcdi.dataclass import dataclass
from hpcdi.env.arguments import owner_of
from hpcdi.env.contract import (
    OF_DM_ENV,
    Space,
    origin_of,
    parts_of_reset,
    read_spaces,
    split_mask,
    with_ordered_masks,
)
from hpcdi.env.create import check_waits_for_all, get_env_cls, single_env_fns
from hpcdi.env.gymnasium import failed_in_making, place_within
from hpcdi.env.in_process import close_or_warn, method_of
from hpcdi.env.old_gym import as_gymnasium
from hpcdi.env.pettingzoo import space_of_players, teams_of
from hpcdi.env.process_state import (
    SignalGuard,
    exits_are_failures,
    in_their_modes,
    same_folder,
)
from hpcdi.env.wrappers import sums_rewards
from hpcdi.errors import ConfigError, EnvError, EnvValueError, HpcdiError, Problem
from hpcdi.types import Columns, Spaces

_SEVERAL = (
    "{} has several players, as PettingZoo's: set env.type: team, where they learn together, or "
    "pettingzoo, where they play each other"
)
_RESETS = 3
"""Tries of a first observation: a reset may fail, as it may in a run."""


@dataclass(frozen=True)
class Seen:
    """What an environment is.

    Attributes:
        spaces: of a player.
        players: 1: it is no battle.
        teams: players without one are teams.
        origin: what ``env.origin`` may be, by a first observation.
        observation_space, action_space: gymnasium's, of a player.
        judges_goals: whether it has ``compute_reward``, for hindsight experience replay.
        sums_rewards: whether its rewards are sums, of which that knows nothing.
    """

    spaces: Spaces
    players: int = 1
    teams: int = 1
    origin: dict[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    observation_space: Any = None
    action_space: Any = None
    judges_goals: bool = False
    sums_rewards: bool = False


def look_at(cfg: EnvConfig, *, trains: bool = False, seed: int | None = None) -> Seen:
    """Make an environment, and see what it is.

    Args:
        cfg: of the environment.
        trains: also see whether a process has room for those of a run, and whether the environment
            has what the schedule changes.
        seed: of the first observation that gives the origin; None: there is no need of one.

    Raises:
        ConfigError: it cannot be made here, or its observations are no arrays; or a setting does
            not go with it.
    """
    from hpcdi.comm.failure import said_if_it_exits

    # the outer one puts back what a rank, or a serial run, has for `os._exit`
    with SignalGuard(), exits_are_failures(), said_if_it_exits():
        return in_their_modes(_look_at, cfg, trains, seed)


def _look_at(cfg: EnvConfig, trains: bool, seed: int | None) -> Seen:
    env_cls = get_env_cls(cfg)
    if trains:
        check_waits_for_all(cfg.manager, is_battle=env_cls.is_battle)
    with contextlib.ExitStack() as first:
        env = first.enter_context(_opened(partial(env_cls.probe, cfg), cfg.title))
        seen = _seen(env, cfg, seed)
        if trains:
            _check_attributes(env, cfg)
        is_beside = trains and _has_several(cfg)
        if not is_beside:
            first.close()
        for path, make, of in _others(cfg, trains=trains, is_beside=is_beside):
            try:
                with _opened(make, cfg.title, path) as other:
                    spaces = _seen(other, of, None).spaces
            except Exception as error:
                if not is_beside:
                    raise
                first.close()
                if path:  # perhaps it cannot be made so at all
                    with _opened(make, cfg.title, path):
                        pass
                raise _no_room(cfg, error) from error
            if spaces != seen.spaces:
                message = f"leads to other spaces, {spaces}, than kwargs alone, {seen.spaces}"
                raise ConfigError([Problem(path, message)])
    return seen


class EpisodeValues:
    """Turns columns of many steps, as episodes have them, into nested values of an environment.

    Args:
        cfg: of the environment; one is made and closed.

    Raises:
        ConfigError: it cannot be made here.

    Attributes:
        observation_space: without the mask of legal actions.
        action_space: with actions from where the environment counts them.
    """

    def __init__(self, cfg: EnvConfig) -> None:
        seen = look_at(cfg)
        self.observation_space, _ = split_mask(seen.observation_space)
        self.action_space = seen.action_space
        self._seen = Space("observation", self.observation_space, as_is=True)
        self._acts = Space.of_actions(self.action_space)

    def observations(self, columns: Columns) -> Any:
        """Returns values of ``observation``, or of ``observation/<leaf>``: [steps, ...] each."""
        return _values(self._seen, columns)

    def actions(self, columns: Columns) -> Any:
        """Returns values of ``action``, or of ``action/<leaf>``, counted from 0 there."""
        return _values(self._acts, columns)


def _values(space: Space, columns: Columns) -> Any:
    typed = {}
    for field in space.fields:
        column = columns[field.name].astype(field.dtype, copy=False)
        typed[field.name] = column.reshape(len(column), *field.shape)
    return space.value(typed, ...)


@contextlib.contextmanager
def _opened(make: Callable[[], Any], title: str, setting: str = "") -> Iterator[Any]:
    """An environment, closed again; the present folder is then what it was.

    Args:
        make: makes it.
        title: of it.
        setting: that whose arguments stand in the place of `env.kwargs`.
    """
    with same_folder(), exits_are_failures():
        try:
            env = make()
        except ConfigError as error:
            if not setting:
                raise
            raise _said_of(setting, error) from error
        except (HpcdiError, KeyboardInterrupt):
            raise
        except BaseException as error:  # whatever an environment raises
            raise failed_in_making(title, error, place_within(error)) from error
        try:
            yield env
        finally:
            close_or_warn(env)


def _seen(env: Any, cfg: EnvConfig, seed: int | None) -> Seen:
    """Returns what an open environment is.

    Raises:
        ConfigError: its spaces are of another kind.
    """
    env_cls = get_env_cls(cfg)
    is_battle = env_cls.is_battle
    is_vector = env_cls.is_vector(cfg) and hasattr(env, "single_observation_space")
    try:
        if is_battle:
            observation, action = space_of_players(env)
        elif is_vector:
            observation, action = env.single_observation_space, env.single_action_space
        else:
            env = as_gymnasium(env) if hasattr(env, "reset") else env
            _check_has_spaces(env)
            observation, action = env.observation_space, env.action_space
            if callable(observation):  # with a player's name
                raise ConfigError([Problem("env.type", _SEVERAL.format(cfg.title))])
        observation = with_ordered_masks(observation, action)
        spaces = read_spaces(observation, action)
    except EnvError as error:
        raise ConfigError([Problem("env.env_id", f"{cfg.title}: {error}")]) from error
    try:
        Space.of_observations(observation, origin=cfg.origins)
    except EnvError as error:  # which names the setting
        raise ConfigError([Problem("", str(error))]) from error
    origin: dict[str, tuple[float, ...]] = {}
    if seed is not None and Space.of_observations(observation).may_be_coarse():
        scenarios = cfg.scenarios(evaluate=False)
        seed = scenarios[0] if scenarios else seed
        for _ in range(_RESETS):
            with contextlib.suppress(Exception, SystemExit), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a run says it
                if is_battle:
                    first = next(own for own in env.reset(seed=seed) if own is not None)
                else:
                    first, _ = parts_of_reset(env.reset(seed=seed))
                origin = origin_of(observation, first, is_of_several=is_vector)
                break
    players = int(env.agents) if is_battle else 1
    teams = len(teams_of(env)) if is_battle else 1
    one = env.envs[0] if isinstance(env, SyncVectorEnv) else None if is_vector else env
    judges = method_of(one, "compute_reward") is not None
    return Seen(
        spaces, players, teams, origin, observation, action, judges, sums_rewards(one)
    )  # fmt: skip


def _check_has_spaces(env: Any) -> None:
    """Refuses what has no spaces, neither its own nor players', and says what it is where known.

    Raises:
        EnvError: it has none.
    """
    for name in ("observation_space", "action_space"):
        try:
            getattr(env, name)
        except AttributeError as error:
            if hasattr(env, "observation_spec") or hasattr(env.unwrapped, "observation_spec"):
                raise EnvError(OF_DM_ENV) from error
            raise EnvError(f"has no {name}, of gymnasium's API: {error}") from error
    if callable(env.observation_space) and not any(
        hasattr(env.unwrapped, name) for name in ("possible_agents", "agents")
    ):
        raise EnvError("observation_space is a method, not a gymnasium.Space: wrap it")


def _check_attributes(env: object, cfg: EnvConfig) -> None:
    problems = []
    for course in cfg.courses:
        if not course.argument:
            try:
                owner_of(env, course.name)
            except EnvValueError as error:
                said = str(error).partition(": ")[2]
                problems.append(Problem(f"env.schedule.{course.name}", said))
    if problems:
        raise ConfigError(problems)


def _has_several(cfg: EnvConfig) -> bool:
    """Decides whether a run makes several single environments in a process."""
    env_cls = get_env_cls(cfg)
    if isinstance(cfg.manager, ChildConfig) or not env_cls.is_of_one_process:
        return False
    return not env_cls.is_vector(cfg)


def _others(
    cfg: EnvConfig, *, trains: bool, is_beside: bool
) -> Iterator[tuple[str, Callable[[], Any], EnvConfig]]:
    """Yields the setting by which environments of a run differ, and how such ones are made.

    And the settings that say whether they are single ones: an evaluation has its own.
    """
    env_cls, evaluated = get_env_cls(cfg), cfg.for_evaluation()
    if env_cls.is_vector(cfg) and not env_cls.is_vector(evaluated, evaluate=True):
        make = single_env_fns(evaluated, [cfg.collector_env_num])[0]
        yield "env.eval_seeds", make, evaluated
    elif evaluated is not cfg:
        yield "env.eval_kwargs", partial(env_cls.probe, evaluated), evaluated
    changed = {course.argument: course.values[-1] for course in cfg.courses if course.argument}
    if changed and trains:
        paths = ", ".join(f"{KWARGS}{name}" for name in changed)
        make = partial(single_env_fns(cfg, [1])[0], kwargs=changed)
        yield f"env.schedule.{paths}", make, cfg
    elif evaluated is cfg and is_beside:
        yield "", single_env_fns(cfg, [1])[0], cfg


def _said_of(setting: str, error: ConfigError) -> ConfigError:
    problems = [
        dataclasses.replace(problem, path=setting) if problem.path == "env.kwargs" else problem
        for problem in error.problems
    ]
    return ConfigError(problems, error.source)


def _no_room(cfg: EnvConfig, error: Exception) -> ConfigError:
    message = (
        f"is {cfg.manager.type!r}: a collector's process makes "
        f"{cfg.collector_env_num + cfg.evaluator_env_num} environments ({cfg.collector_env_num} "
        f"collect, {cfg.evaluator_env_num} evaluate), and already a second one cannot be made in "
        f"it ({error}); set env.manager.type: subprocess, or give each its own port or file by "
        "{index}"
    )
    return ConfigError([Problem("env.manager.type", message)])
