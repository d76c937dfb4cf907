"""Whole episodes as an environment's own values: what other tools' datasets have."""

from __future__ import annotations

import contextlib
from typing import Any

import gymnasium

from hpcdi.config.env import EnvConfig, GymnasiumConfig
from hpcdi.env.contract import Space, split_mask
from hpcdi.env.gymnasium import spec_of
from hpcdi.env.probe import look_at
from hpcdi.types import Columns


def registered_spec(cfg: EnvConfig) -> Any:
    """Returns gymnasium's spec of an environment; None: that cannot make it as it is."""
    if not isinstance(cfg, GymnasiumConfig) or cfg.wrappers or ":" in cfg.env_id:
        return None
    with contextlib.suppress(Exception):  # of vectors alone, or arguments that no text can say
        spec = spec_of(cfg)
        spec.to_json()
        gymnasium.make(spec).close()
        return spec
    return None


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
        column = columns[field.name]
        typed[field.name] = column.astype(field.dtype, copy=False).reshape(
            len(column), *field.shape
        )
    return space.value(typed, ...)
