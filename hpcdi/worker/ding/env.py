"""`env.type: ding`: an environment of DI-engine's form, its own settings in `env.ding`.

It is an old environment in its shape (`hpcdi.env.old_gym` adapts it), with two habits more: it is
made of its settings, and takes actions as arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from hpcdi.config.env import EnvConfig
from hpcdi.config.fields import setting
from hpcdi.dataclass import dataclass
from hpcdi.env.base import EnvType
from hpcdi.env.old_gym import OldEnv
from hpcdi.errors import Problem
from hpcdi.types import Array
from hpcdi.worker.ding.library import TYPE_IS_REQUIRED, attribute_dict, class_of


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
        """Returns one environment.

        Raises:
            ConfigError: there is no such class.
        """
        env_cls = class_of("env", cfg.ding)
        settings = attribute_dict(
            {
                **cfg.ding,
                "collector_env_num": cfg.collector_env_num,
                "evaluator_env_num": cfg.evaluator_env_num,
            }
        )
        name = "create_evaluator_env_cfg" if cfg.evaluates else "create_collector_env_cfg"
        of_env = getattr(env_cls, name)(settings)[0] if hasattr(env_cls, name) else settings
        return DingSingle(env_cls(of_env))


class DingSingle(OldEnv):
    """One environment; it takes actions as arrays."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step by an action."""
        values: Array = np.asarray(action)
        return super().step(values)
