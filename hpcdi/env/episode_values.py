"""Whole episodes as an environment's own values: what other tools' datasets have."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np

from hpcdi.config.env import EnvConfig, GymnasiumConfig
from hpcdi.config.mpi_env import MpiEnvConfig
from hpcdi.env.base import EnvFacts
from hpcdi.env.contract import Space, split_mask
from hpcdi.env.create import create_env_manager
from hpcdi.env.mpi.environment import facts_of
from hpcdi.types import Columns


def facts_by(cfg: EnvConfig) -> EnvFacts:
    """Returns gymnasium's spaces of an environment; makes one and closes it.

    Raises:
        ConfigError: it cannot be made here. EnvError: nor reset.
    """
    if isinstance(cfg, MpiEnvConfig):
        return facts_of(cfg)
    one = dataclasses.replace(cfg, collector_env_num=1)
    manager = create_env_manager(one, evaluate=False, seed=np.random.SeedSequence(0))
    try:
        manager.launch()
        return manager.facts
    finally:
        manager.close()


def registered_spec(cfg: EnvConfig) -> Any:
    """Returns gymnasium's spec of an environment; None: it is not one of gymnasium's as it is."""
    if not isinstance(cfg, GymnasiumConfig) or cfg.wrappers or ":" in cfg.env_id:
        return None
    spec = gymnasium.spec(cfg.env_id)
    return dataclasses.replace(spec, kwargs={**spec.kwargs, **cfg.kwargs})


class EpisodeValues:
    """Turns columns of many steps into nested values of the environment's spaces.

    Args:
        facts: of the environment.

    Attributes:
        observation_space: without the mask of legal actions.
        action_space: with actions from where the environment counts them.
    """

    def __init__(self, facts: EnvFacts) -> None:
        self.observation_space, _ = split_mask(facts.observation_space)
        self.action_space = facts.action_space
        self._seen = Space("observation", self.observation_space, as_is=True)
        self._acts = Space.of_actions(facts.action_space)

    def observations(self, columns: Columns) -> Any:
        """Returns values of ``observation``, or of ``observation/<leaf>``: [steps, ...] each."""
        return _values(self._seen, columns)

    def actions(self, columns: Columns) -> Any:
        """Returns values of ``action``, or of ``action/<leaf>``, counted from 0 there."""
        return _values(self._acts, columns)


def _values(space: Space, columns: Columns) -> Any:
    typed = {
        field.name: columns[field.name].astype(field.dtype, copy=False).reshape(-1, *field.shape)
        for field in space.fields
    }
    return space.value(typed, slice(None))
