"""The types of managers, and which class each of them takes for what is to be stepped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdi.config.compat import Configurable
from hpcdi.env.base import ManagerConfig
from hpcdi.env.battle_manager import BattleManager
from hpcdi.env.gym_manager import GymManager
from hpcdi.env.manager import EnvManager
from hpcdi.env.pool_manager import PoolManager
from hpcdi.env.pooled import ChildConfig, EnvFn
from hpcdi.errors import ConfigError, Problem
from hpcdi.utils.registry import ENV_MANAGER_REGISTRY


@dataclass(frozen=True)
class Source:
    """What is to be stepped.

    Attributes:
        env_fns: make one environment each; there are as many of them as environments.
        vector: makes a vector environment of all of them, where that is preferred.
        is_battle: whether they are battle environments.
    """

    env_fns: Sequence[EnvFn]
    vector: Callable[[], Any] | None = None
    is_battle: bool = False


@ENV_MANAGER_REGISTRY.register("base", "gym")
class BaseEnvManager(Configurable):
    """Environments in this process: vectorised by themselves where they are, else a pool."""

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
        """Manager of the environments of a source.

        Raises:
            ConfigError: a setting does not go with the source.
        """
        if source.vector is None:
            manager_cls = BattleManager if source.is_battle else PoolManager
            return manager_cls(source.env_fns, settings, episode_num=episode_num, seed=seed)
        if not settings.auto_reset:
            message = "cannot be false for a vector environment; set env.manager.type: subprocess"
            raise ConfigError([Problem("env.manager.auto_reset", message)])
        if problems := list(settings.problems()):
            raise ConfigError(problems, "the manager's configuration")
        return GymManager(
            source.vector, len(source.env_fns), episode_num=episode_num, seed=seed,
            settings=settings,
        )  # fmt: skip


@ENV_MANAGER_REGISTRY.register("subprocess")
class SubprocessEnvManager(BaseEnvManager):
    """Each environment in a child process; all of them step at the same time.

    Its sources have no `vector`: a vector environment lives in one process.
    """

    Config = ChildConfig
