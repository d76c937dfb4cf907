"""The environment ``type: mpi``: what it is, without a rank of it."""

from __future__ import annotations

import dis
from contextlib import chdir
from tempfile import TemporaryDirectory
from types import FunctionType
from typing import Any

import numpy as np
from gymnasium import spaces as of_gymnasium

from hpcdi.comm.probe import without_starting_mpi
from hpcdi.config.mpi_env import MpiEnvConfig, SolverSpaceConfig
from hpcdi.env.arguments import make_numbered, numbered
from hpcdi.env.base import EnvFacts, EnvType
from hpcdi.env.contract import with_ordered_masks
from hpcdi.env.mpi.python_solver import find_class
from hpcdi.errors import ConfigError, Problem
from hpcdi.utils.registry import raised

_SPACES = ("observation_space", "action_space")
NO_RANKS = (
    "an environment of type 'mpi' has ranks of its own: `hpcdi train` runs it, which evaluates it, "
    "too; no command of one process does"
)


class MpiEnv(EnvType):
    """What other environments have, for programs that are groups of ranks; never instantiated."""

    Config = MpiEnvConfig

    is_of_one_process = False

    @classmethod
    def probe(cls, cfg: MpiEnvConfig) -> EnvFacts:
        """Returns what has the spaces of one environment.

        Raises:
            ConfigError: it is not there.
        """
        return facts_of(cfg)

    @classmethod
    def make_single(cls, cfg: MpiEnvConfig) -> Any:
        """Refuses: there is nothing to make in this process.

        Raises:
            ConfigError: always.
        """
        raise ConfigError([Problem("env.type", f"{cfg.env_id}: {NO_RANKS}")])


def facts_of(cfg: MpiEnvConfig) -> EnvFacts:
    """Returns the spaces: those of the class, of one of its instances, or that the settings say.

    Raises:
        ConfigError: there is no such class, it has no spaces, or it cannot be made here.
    """
    if not (cfg.coupling or cfg.is_class):
        return EnvFacts(_space(cfg.observation, np.float64), _space(cfg.action, np.float32))
    setting, path = ("env.coupling", cfg.coupling) if cfg.coupling else ("env.env_id", cfg.env_id)
    cls = has_spaces = find_class(path, setting)
    if not _settles_spaces(cls):
        try:
            # in the launcher, say, whose present folder the class may change
            with without_starting_mpi(), chdir("."), TemporaryDirectory() as folder:
                has_spaces = make_numbered(lambda: cls(**numbered(cfg.kwargs)), 0, folder)
        except Exception as error:  # whatever it raises
            message = f"{path} says its spaces when it is made, which needs no ranks: it "
            raise ConfigError([Problem(setting, message + raised(error))]) from error
    spaces = [getattr(has_spaces, name, None) for name in _SPACES]
    problems = [
        Problem(
            setting,
            f"{path} has no {name} that is a space of gymnasium: neither the class, "
            "nor what it makes",
        )
        for name, space in zip(_SPACES, spaces, strict=True)
        if not isinstance(space, of_gymnasium.Space)
    ]
    if problems:
        raise ConfigError(problems)
    return EnvFacts(with_ordered_masks(*spaces), spaces[1])


def _settles_spaces(cls: Any) -> bool:
    """Whether a class has both spaces, and none of its methods sets others."""
    functions = [
        value.__code__
        for base in cls.__mro__
        for value in vars(base).values()
        if isinstance(value, FunctionType)
    ]
    sets = {
        step.argval
        for code in functions
        for step in dis.get_instructions(code)
        if step.opname == "STORE_ATTR"
    }
    return all(
        isinstance(getattr(cls, name, None), of_gymnasium.Space) and name not in sets
        for name in _SPACES
    )


def _space(cfg: SolverSpaceConfig, dtype: Any) -> of_gymnasium.Space[Any]:
    if len(cfg.choices) == 1:
        return of_gymnasium.Discrete(cfg.choices[0])
    if cfg.choices:
        return of_gymnasium.MultiDiscrete(list(cfg.choices))
    box: of_gymnasium.Space[Any] = of_gymnasium.Box(cfg.low, cfg.high, (cfg.size,), dtype)
    return box
