"""Building environments from their configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcdi.config.compat import component_class
from hpcdi.env import gymnasium_env as _builtin  # noqa: F401  (registers)
from hpcdi.env.base import EnvConfig
from hpcdi.env.gym_manager import GymManager
from hpcdi.types import Spaces
from hpcdi.utils.registry import ENV_MANAGER_REGISTRY, ENV_REGISTRY


def get_env_cls(cfg: EnvConfig | Mapping[str, Any]) -> Any:
    """The class that ``cfg.type`` names."""
    return component_class(ENV_REGISTRY, cfg)


def get_spaces(cfg: EnvConfig) -> Spaces:
    """Spaces of an environment; makes one and closes it.

    Raises:
        ConfigError: it cannot be made here, or its observations are not arrays.
    """
    spaces: Spaces = get_env_cls(cfg).spaces(cfg)
    return spaces


def create_env_manager(
    cfg: EnvConfig | Mapping[str, Any], *, evaluate: bool, seed: np.random.SeedSequence
) -> GymManager:
    """Manager of the environments of one collector, or of an evaluation.

    Args:
        cfg: settings of the environment, a mapping or frozen.
        evaluate: an evaluation's number of environments and episodes, not a collector's.
        seed: spawns each environment's seed.

    Raises:
        UnknownTypeError: no environment or manager has that type. ConfigError: a setting is wrong.
    """
    env_cls = get_env_cls(cfg)
    config: EnvConfig = env_cls.parse_config(cfg) if isinstance(cfg, Mapping) else cfg
    manager_cls = component_class(ENV_MANAGER_REGISTRY, config.manager)
    env_num = config.evaluator_env_num if evaluate else config.collector_env_num
    episodes = config.evaluator_episode_num if evaluate else config.collector_episode_num
    manager: GymManager = manager_cls(
        lambda: env_cls.make_vector(config, env_num), env_num, episode_num=episodes, seed=seed
    )
    return manager
