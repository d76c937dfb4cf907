"""Acting within the bounds of a Box: SAC, TQC, CQL, IQL and TD3."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from hpcdi.config.algorithms import IQLConfig, SACConfig, TD3Config
from hpcdi.config.policy import ContinuousConfig
from hpcdi.policy.acting.base import DensePolicy, Network, ReplayActing
from hpcdi.policy.acting.network import Linear
from hpcdi.policy.spaces import as_shape, bounds_of, box_of, rounded
from hpcdi.types import Array, Columns, Settings

LOG_STD = (-20.0, 2.0)
"""Limits of SAC's logarithms of deviations."""
IQL_LOG_STD = (-5.0, 2.0)
"""Limits of IQL's."""
_ACTIONS = 0  # stream of random numbers


class BoxActing(ReplayActing):
    """Actions between -1 and 1, which become those of the environment."""

    _cfg: ContinuousConfig

    def prepare_acting(self) -> None:
        """Random numbers of actions, and the bounds."""
        self._rng = self.random(_ACTIONS)
        low, high = self._cfg.model.action_low, self._cfg.model.action_high
        self._middle, self._half = box_of(low, high)
        self._bounds = bounds_of(low, high, self._cfg.model.action_dtype)

    def within_bounds(self, squashed: Array) -> Columns:
        """Returns actions [rows, ...] of ones between -1 and 1, [rows, components]."""
        shape = (len(squashed), *as_shape(self._cfg.model.action_shape))
        action = (self._middle + self._half * squashed).clip(*self._bounds)  # an ulp beyond, at 1
        return {"action": rounded(action, self._cfg.model.action_dtype).reshape(shape)}


class SACActing(BoxActing):
    """Actions of a squashed normal distribution."""

    Config: ClassVar[type] = SACConfig
    _cfg: SACConfig

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:  # noqa: ARG002
        """Sampled actions [rows, ...]."""
        mean, log_std = np.split(self.infer(observation)[0], 2, axis=1)
        noise = self._rng.standard_normal(mean.shape, dtype=np.float32)
        return self.within_bounds(np.tanh(mean + np.exp(log_std.clip(*LOG_STD)) * noise))


class IQLActing(BoxActing):
    """Actions of a normal distribution around a squashed mean."""

    Config: ClassVar[type] = IQLConfig
    _cfg: IQLConfig

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:  # noqa: ARG002
        """Sampled actions [rows, ...]."""
        mean, log_std = np.split(self.infer(observation)[0], 2, axis=1)
        noise = self._rng.standard_normal(mean.shape, dtype=np.float32)
        drawn = np.tanh(mean) + np.exp(log_std.clip(*IQL_LOG_STD)) * noise
        return self.within_bounds(drawn.clip(-1, 1))


class TD3Acting(BoxActing):
    """The actor's actions, and noise."""

    Config: ClassVar[type] = TD3Config
    _cfg: TD3Config

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:  # noqa: ARG002
        """Actions [rows, ...]: the actor's, and noise."""
        squashed = np.tanh(self.infer(observation)[0])
        noise = self._rng.standard_normal(squashed.shape, dtype=np.float32)
        explored = (squashed + np.float32(self._cfg.collect.noise) * noise).clip(-1, 1)
        return self.within_bounds(explored)


class _DenseBox(BoxActing, DensePolicy):
    """An actor in numpy, see `hpcdi.policy.boxes`."""

    def make_dense_network(self) -> Network:
        """The encoder, and one linear layer."""
        return Linear(self._cfg.model)

    def best(self, output: tuple[Array, ...], legal: Array | None) -> Columns:  # noqa: ARG002
        """The best actions."""
        return self.within_bounds(np.tanh(output[0][:, : len(self._half)]))


class DenseSAC(SACActing, _DenseBox):
    """The actor of SAC, TQC and CQL in numpy."""


class DenseIQL(IQLActing, _DenseBox):
    """IQL's actor in numpy."""


class DenseTD3(TD3Acting, _DenseBox):
    """TD3's actor in numpy."""
