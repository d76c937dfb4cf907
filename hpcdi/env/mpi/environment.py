"""The environment ``type: mpi``: what it is, without a rank of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces as of_gymnasium

from hpcdi.config.compat import Configurable
from hpcdi.config.mpi_env import MpiEnvConfig, SolverSpaceConfig
from hpcdi.env.base import EnvFacts
from hpcdi.env.contract import Space
from hpcdi.env.mpi.python_solver import find_class
from hpcdi.env.mpi.vectors import size_of
from hpcdi.env.numbering import make_numbered, numbered
from hpcdi.errors import ConfigError, Problem

NO_RANKS = (
    "an environment of type 'mpi' has ranks of its own: `hpcdi train` runs it, which evaluates it, "
    "too; no command of one process does"
)


class MpiEnv(Configurable):
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
    def has_vector(cls, cfg: MpiEnvConfig) -> bool:  # noqa: ARG003
        """Single environments: their manager finds their ranks."""
        return False

    @classmethod
    def make_single(cls, cfg: MpiEnvConfig) -> Any:
        """Refuses: there is nothing to make in this process.

        Raises:
            ConfigError: always.
        """
        raise ConfigError([Problem("env.type", f"{cfg.env_id}: {NO_RANKS}")])


def facts_of(cfg: MpiEnvConfig) -> EnvFacts:
    """Returns the spaces: those of the class, or those that the settings say.

    Raises:
        ConfigError: there is no such class.
    """
    if not (cfg.coupling or cfg.is_class):
        return EnvFacts(_space(cfg.observation, np.float64), _space(cfg.action, np.float32))
    found = find_class(cfg.coupling, "env.coupling") if cfg.coupling else find_class(cfg.env_id)
    if not hasattr(found, "observation_space"):  # they hang on its arguments
        found = make_numbered(lambda: found(**numbered(cfg.kwargs)), 0)
    return EnvFacts(found.observation_space, found.action_space)


def sizes_of(facts: EnvFacts) -> tuple[int, int]:
    """Returns the numbers in an observation and in an action."""
    observation = Space.of_observations(facts.observation_space)
    return size_of(observation), size_of(Space.of_actions(facts.action_space))


def _space(cfg: SolverSpaceConfig, dtype: Any) -> of_gymnasium.Space[Any]:
    if len(cfg.choices) == 1:
        return of_gymnasium.Discrete(cfg.choices[0])
    if cfg.choices:
        return of_gymnasium.MultiDiscrete(list(cfg.choices))
    box: of_gymnasium.Space[Any] = of_gymnasium.Box(cfg.low, cfg.high, (cfg.size,), dtype)
    return box
