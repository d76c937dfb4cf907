"""Environments of PettingZoo, by their id."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium

from hpcdi.config.compat import Configurable
from hpcdi.config.fields import setting
from hpcdi.env.base import EnvConfig
from hpcdi.env.battle import BattleEnv, as_battle
from hpcdi.env.gymnasium_env import read_spaces
from hpcdi.errors import ConfigError, Problem
from hpcdi.types import Spaces
from hpcdi.utils.registry import ENV_REGISTRY, import_module

_MAKERS = {"parallel": "parallel_env", "aec": "env"}


@ENV_REGISTRY.register("pettingzoo")
class PettingZooEnv(Configurable):
    """Makes PettingZoo's environments; holds nothing itself."""

    @dataclass(frozen=True)
    class Config(EnvConfig):
        """Settings of a PettingZoo environment."""

        type: str = "pettingzoo"
        env_id: str = setting(
            "", "PettingZoo's id, e.g. classic.connect_four_v3, or module:callable of your own"
        )
        kwargs: dict[str, Any] = setting({}, "keyword arguments of the environment")
        api: str = setting(
            "auto",
            "all players at once, or in turns (aec); auto: at once where there is a choice",
            choices=("auto", *_MAKERS),
        )

        def problems(self) -> Iterator[Problem]:
            """Rules over several settings."""
            if not self.env_id:
                yield Problem("env_id", "is required: the id of a PettingZoo environment")

    @classmethod
    def make_single(cls, cfg: Any) -> BattleEnv:
        """One environment.

        Raises:
            ConfigError: PettingZoo or the environment is not installed, or there is none such.
        """
        import_module(cfg.import_names)
        make = _maker(cfg.env_id, cfg.api)
        try:
            battle: BattleEnv = as_battle(make(**cfg.kwargs))
        except TypeError as error:
            raise ConfigError([Problem("env.kwargs", str(error))]) from error
        except Exception as error:
            if not isinstance(error.__cause__ or error, ImportError):
                raise
            raise _cannot_make(cfg.env_id, str(error)) from error
        return battle

    @classmethod
    def spaces(cls, cfg: Any) -> Spaces:
        """Spaces of one player.

        Raises:
            ConfigError: the environment cannot be made, or its players' spaces differ.
        """
        env = cls.make_single(cfg)
        try:
            spaces = [
                read_spaces(_unmasked(observation), action, cfg.env_id)
                for observation, action in zip(env.observation_space, env.action_space, strict=True)
            ]
        finally:
            env.close()
        if any(other != spaces[0] for other in spaces):
            raise ConfigError(
                [Problem("env.env_id", f"{cfg.env_id}: its players have different spaces")]
            )
        masked = any(is_masked(space) for space in env.observation_space)
        return dataclasses.replace(spaces[0], is_masked=masked)

    @classmethod
    def players(cls, cfg: Any) -> int:
        """Number of players; makes an environment and closes it."""
        env = cls.make_single(cfg)
        try:
            return env.agents
        finally:
            env.close()


def _maker(env_id: str, api: str) -> Any:
    """The callable that makes an environment: of PettingZoo's registry, or of the module named."""
    kinds = list(_MAKERS) if api == "auto" else [api]
    module_name, _, name = env_id.partition(":")
    try:
        pettingzoo: Any = importlib.import_module("pettingzoo")
        if not name and hasattr(pettingzoo, "make"):
            known = {"parallel": pettingzoo.parallel_registry, "aec": pettingzoo.aec_registry}
            for kind in kinds:
                if env_id.replace(".", "/", 1) in known[kind]:
                    return partial(pettingzoo.make, kind, env_id.replace(".", "/", 1))
        module = importlib.import_module(module_name if name else f"pettingzoo.{env_id}")
    except ImportError as error:
        raise _cannot_make(env_id, str(error)) from error
    for wanted in [name] if name else [_MAKERS[kind] for kind in kinds]:
        if hasattr(module, wanted):
            return getattr(module, wanted)
    raise _cannot_make(env_id, f"there is none such with api {api!r}")


def is_masked(space: Any) -> bool:
    """Whether observations of a space come with a mask of legal actions."""
    return isinstance(space, gymnasium.spaces.Dict) and "action_mask" in space.spaces


def _unmasked(space: Any) -> Any:
    if isinstance(space, gymnasium.spaces.Dict) and "observation" in space.spaces:
        return space.spaces["observation"]
    return space


def _cannot_make(env_id: str, reason: str) -> ConfigError:
    return ConfigError(
        [
            Problem(
                "env.env_id",
                f"{env_id!r} cannot be made: {reason}; ids look like classic.connect_four_v3; "
                "pip install 'hpcdi[battle]', and what the environment itself needs",
            )
        ]
    )
