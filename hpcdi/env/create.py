"""Builds environment managers: from a configuration, or from callables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.config.compat import Configurable, component_class
from hpcdi.config.env import (
    ChildConfig,
    EnvConfig,
    ManagerConfig,
    NamedEnvConfig,
    OverlappingConfig,
)
from hpcdi.config.schedule import Scheduled
from hpcdi.dataclass import dataclass
from hpcdi.env.arguments import make_numbered
from hpcdi.env.base import EnvFn
from hpcdi.env.child_process import OPEN_FILES, ChildWorker
from hpcdi.env.contract import Origin
from hpcdi.env.in_process import LocalWorker, SingleEnvs
from hpcdi.env.manager import EnvManager
from hpcdi.env.seeds import ScenarioSeeds
from hpcdi.env.vector import VectorEnvs
from hpcdi.errors import ConfigError, Problem
from hpcdi.utils.host import allow_open_files, open_files
from hpcdi.utils.registry import ENV_MANAGER_REGISTRY, ENV_REGISTRY

_SPARE_FILES = 32
"""That a process opens beside those for environments: shards, logs."""


@dataclass(frozen=True)
class Source:
    """The environments that a manager is built for.

    Attributes:
        env_fns: make one environment each; there are as many of them as environments.
        vector: makes a vector environment of all of them, where that is preferred.
        is_battle: whether they are battle environments.
        origin: see `Space.of_observations`.
    """

    env_fns: Sequence[EnvFn]
    vector: Callable[[], Any] | None = None
    is_battle: bool = False
    origin: Origin = dataclasses.field(default_factory=dict)


class BaseEnvManager(Configurable):
    """Environments in this process: one vector environment where there is one, else single ones."""

    Config = ManagerConfig

    @classmethod
    def build(
        cls,
        source: Source,
        settings: ManagerConfig,
        *,
        episode_num: int | None,
        seed: np.random.SeedSequence,
    ) -> EnvManager:
        """Returns a manager of the environments of a source.

        Raises:
            ConfigError: a setting does not go with the source.
        """
        if source.vector is not None and not settings.auto_reset:
            message = "cannot be false for a vector environment; set env.manager.type: subprocess"
            raise ConfigError([Problem("env.manager.auto_reset", message)])
        if problems := list(settings.problems()):
            raise ConfigError(problems, "the manager's configuration")
        envs = (
            cls.single_envs(source, settings)
            if source.vector is None
            else VectorEnvs(source.vector, len(source.env_fns))
        )
        envs.origin = source.origin
        return EnvManager(envs, settings, episode_num=episode_num, seed=seed)

    @classmethod
    def single_envs(cls, source: Source, _settings: ManagerConfig) -> SingleEnvs:
        """Returns a back-end of the single environments of a source."""
        return SingleEnvs([LocalWorker(fn, is_battle=source.is_battle) for fn in source.env_fns])


class SubprocessEnvManager(BaseEnvManager):
    """Each environment in a child process; all of them step at the same time."""

    Config = ChildConfig

    @classmethod
    def single_envs(cls, source: Source, settings: ManagerConfig) -> SingleEnvs:
        """Returns a back-end of the single environments of a source."""
        if not isinstance(settings, ChildConfig):
            raise TypeError(f"not settings of child processes: {settings}")
        soon = OPEN_FILES * len(source.env_fns) + _SPARE_FILES
        allow_open_files(open_files() + soon)
        workers = [
            ChildWorker(
                fn, start_method=settings.start_method, is_battle=source.is_battle,
                step_timeout_s=settings.step_timeout, reset_timeout_s=settings.reset_timeout,
            )
            for fn in source.env_fns
        ]  # fmt: skip
        check_waits_for_all(settings, is_battle=source.is_battle)
        return SingleEnvs(workers, is_shared=True, wait_num=settings.wait_num)


def check_waits_for_all(settings: ManagerConfig, *, is_battle: bool) -> None:
    """Refuses games of which a collector waits for some; evaluations wait for all.

    Raises:
        ConfigError: it is so.
    """
    if is_battle and isinstance(settings, OverlappingConfig) and settings.wait_num is not None:
        message = "is for environments of one player; leave it out"
        raise ConfigError([Problem("env.manager.wait_num", message)])


def get_env_cls(cfg: EnvConfig | Mapping[str, Any]) -> Any:
    """Returns the class that ``cfg.type`` names."""
    return component_class(ENV_REGISTRY, cfg)


def create_env_manager(
    cfg: EnvConfig | Mapping[str, Any],
    *,
    evaluate: bool,
    is_endless: bool = False,
    policy: object = None,
    number: int = 0,
    scheduled: Scheduled | None = None,
    seed: np.random.SeedSequence,
) -> EnvManager:
    """Returns a manager of the environments of one collector, or of an evaluation.

    Args:
        cfg: settings of the environment, a mapping or frozen.
        evaluate: take the number of environments and episodes of an evaluation, not a collector's.
        is_endless: the caller says when it has played enough: there is no number of episodes.
        policy: its settings, of which ``eval.max_steps`` cuts evaluated episodes, if it has that.
        number: of the collector among those of the run; see `hpcdi.env.arguments`.
        scheduled: what ``env.schedule`` has now; an evaluation has none.
        seed: spawns each environment's seed.

    Raises:
        UnknownTypeError: no environment or manager has that type. ConfigError: a setting is wrong.
    """
    env_cls = get_env_cls(cfg)
    config: EnvConfig = env_cls.parse_config(cfg) if isinstance(cfg, Mapping) else cfg
    if evaluate:
        config = of_evaluations(config)
    scenarios = config.scenarios(evaluate=evaluate)
    settings: ManagerConfig = config.manager
    if evaluate and isinstance(settings, OverlappingConfig):  # each has a quota of episodes
        settings = dataclasses.replace(settings, wait_num=None)
    env_num = config.evaluator_env_num if evaluate else config.collector_env_num
    episodes = config.evaluator_episode_num if evaluate else config.collector_episode_num
    limit = None if is_endless else episodes
    first = number * (config.collector_env_num + config.evaluator_env_num)
    first += config.collector_env_num if evaluate else 0
    source = _source(env_cls, config, range(first, first + env_num), evaluate=evaluate)
    manager: EnvManager = component_class(ENV_MANAGER_REGISTRY, settings).build(
        source, settings, episode_num=limit or settings.episodes, seed=seed
    )
    if scenarios:
        manager.seeds = ScenarioSeeds(scenarios, seed, env_num, in_order=evaluate)
    if scheduled and not evaluate:
        manager.schedule(scheduled)
    if evaluate:
        manager.max_steps = getattr(getattr(policy, "eval", None), "max_steps", None)
    else:
        manager.kept = config.keep_infos
    return manager


def make_env_manager(
    manager_cfg: ManagerConfig | Mapping[str, Any] | None,
    env_fns: Sequence[EnvFn],
    *,
    seed: np.random.SeedSequence | int = 0,
    battle: bool = False,
) -> EnvManager:
    """Returns a manager of environments that callables make.

    Args:
        manager_cfg: settings of the manager, a mapping or frozen; None: all defaults.
        env_fns: make one environment of gymnasium's API each; for child processes they must be
            picklable: functions of a module, or `functools.partial` of one.
        seed: spawns each environment's seed.
        battle: they are battle environments: in `BattleEnv`'s shape, PettingZoo's, or the seeds'.

    Raises:
        UnknownTypeError: no manager has that type. ConfigError: a setting is wrong.
    """
    if not env_fns:
        raise ConfigError([Problem("env_fns", "is empty; it needs a callable for each one")])
    if not isinstance(manager_cfg, ManagerConfig):
        manager_cfg = {"type": "base", **(manager_cfg or {})}
    manager_cls = component_class(ENV_MANAGER_REGISTRY, manager_cfg)
    settings: ManagerConfig = manager_cls.parse_config(manager_cfg)
    sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    manager: EnvManager = manager_cls.build(
        Source(env_fns, is_battle=battle), settings, episode_num=settings.episodes, seed=sequence
    )
    return manager


def of_evaluations(config: EnvConfig) -> EnvConfig:
    """Returns the settings of the environments of evaluations, where these are the collectors'."""
    config, env_cls = config.for_evaluation(), get_env_cls(config)
    changed: EnvConfig = getattr(env_cls, "for_evaluation", lambda same: same)(config)
    return changed


def single_env_fns(config: EnvConfig, numbers: Sequence[int]) -> list[EnvFn]:
    """Returns what makes single environments of a configuration, which have these numbers."""
    env_cls = get_env_cls(config)
    make = partial(_make_single, env_cls, config)
    folder = config.manager.folder and str(Path(config.manager.folder).absolute())
    return [partial(make_numbered, make, number, folder) for number in numbers]


def _make_single(env_cls: Any, config: EnvConfig, kwargs: Mapping[str, Any] | None = None) -> Any:
    """Returns one environment of a configuration; `kwargs` take the place of some of its own."""
    if kwargs:
        if not isinstance(config, NamedEnvConfig):
            names = ", ".join(f"kwargs.{name}" for name in kwargs)
            message = f"environments of type {config.type!r} have no kwargs: change attributes"
            raise ConfigError([Problem(f"env.schedule.{names}", message)])
        config = dataclasses.replace(config, kwargs={**config.kwargs, **kwargs})
    return env_cls.make_single(config)


def _source(env_cls: Any, config: EnvConfig, numbers: Sequence[int], *, evaluate: bool) -> Source:
    """Returns the environments that a configuration names, which have these numbers.

    Args:
        env_cls: makes them.
        config: of them.
        numbers: see `hpcdi.env.arguments`.
        evaluate: they are of an evaluation.
    """
    in_children = isinstance(config.manager, ChildConfig)
    if in_children and getattr(config, "vectorization", "auto") != "auto":
        message = "must be 'auto' where each environment has a process of its own"
        raise ConfigError([Problem("env.vectorization", message)])
    make_vector = None
    if env_cls.is_vector(config, evaluate=evaluate):
        make_all = partial(env_cls.make_vector, config, len(numbers))
        make_vector = partial(make_numbered, make_all, numbers[0])
    return Source(single_env_fns(config, numbers), make_vector, env_cls.is_battle, config.origins)
