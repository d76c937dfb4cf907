"""`env.type: ding`: an environment of DI-engine's form, its own settings in `env.ding`.

It is an old environment in its shape (`hpcdi.env.old_gym` adapts it), with two habits more: it is
made of its settings, below which come the defaults of its class, and takes actions as arrays.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from hpcdi.config.env import EnvConfig
from hpcdi.config.fields import setting
from hpcdi.dataclass import dataclass
from hpcdi.env.arguments import ENV_INDEX
from hpcdi.env.base import EnvType
from hpcdi.env.old_gym import OldEnv
from hpcdi.errors import Problem
from hpcdi.types import Array
from hpcdi.worker.ding.library import TYPE_IS_REQUIRED, attribute_dict, class_of, merge


class DingEnv(EnvType):
    """Makes environments of DI-engine's form; never instantiated."""

    @dataclass(frozen=True)
    class Config(EnvConfig):
        """Settings of an environment of DI-engine's form."""

        type: str = "ding"
        ding: dict[str, Any] = setting(
            {},
            "the environment's own settings as DI-engine has them, `type` among them: its name "
            "in DI-engine's registry, or module:Class",
        )
        evaluates: bool = setting(
            False, "make environments as for an evaluation (hpcdi sets it where it evaluates)"
        )

        def problems(self) -> Iterator[Problem]:
            """Demands the type."""
            if not self.ding.get("type"):
                yield Problem("ding.type", TYPE_IS_REQUIRED)

    @classmethod
    def for_evaluation(cls, cfg: Config) -> Config:
        """Returns the settings of an evaluation."""
        return dataclasses.replace(cfg, evaluates=True)

    @classmethod
    def make_single(cls, cfg: Config) -> Any:
        """Returns one environment; its settings are those that its class makes for its place.

        Raises:
            ConfigError: there is no such class.
        """
        env_cls = class_of("env", cfg.ding)
        defaults = env_cls.default_config() if hasattr(env_cls, "default_config") else {}
        env_nums = {
            "collector_env_num": cfg.collector_env_num,
            "evaluator_env_num": cfg.evaluator_env_num,
        }
        of_env = attribute_dict(merge(defaults, {**cfg.ding, **env_nums}))
        name = "create_evaluator_env_cfg" if cfg.evaluates else "create_collector_env_cfg"
        if hasattr(env_cls, name):
            each = getattr(env_cls, name)(of_env)
            place = int(os.environ.get(ENV_INDEX, "0")) % sum(env_nums.values())
            place -= cfg.collector_env_num if cfg.evaluates else 0
            of_env = each[place % len(each)]
        return DingSingle(env_cls(of_env))


class DingSingle(OldEnv):
    """One environment; it takes actions as arrays."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step by an action."""
        values: Array = np.asarray(action)
        return super().step(values)
