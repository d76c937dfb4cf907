"""Acting as data do: behaviour cloning."""

from __future__ import annotations

import functools
from typing import ClassVar

from hpcdi.config.algorithms import BCConfig
from hpcdi.policy.acting.base import ActingPolicy, DensePolicy, Network
from hpcdi.policy.acting.network import Linear
from hpcdi.policy.acting.sampling import ActionSampler
from hpcdi.types import ACTION_MASK, Array, Columns, Settings

_ACTIONS = 1  # stream of random numbers


class BCActing(ActingPolicy):
    """The likeliest actions of every space, with or without masks of legal ones.

    With `eval.sample` discrete ones are drawn, as often as data have them.

    It learns from observations and actions alone, and adds no columns to them.
    """

    Config: ClassVar[type] = BCConfig
    _cfg: BCConfig

    def prepare_acting(self) -> None:
        """Random numbers of drawn actions."""
        self._rng = self.random(_ACTIONS)

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:  # noqa: ARG002
        """The likeliest actions [rows, ...], or drawn ones."""
        if not self._cfg.eval.sample:
            return self.act_greedily(observation)
        output = self.infer(observation)
        return self.distribution.sample(output, self._rng, observation.get(ACTION_MASK))

    @functools.cached_property
    def distribution(self) -> ActionSampler:
        """Samples actions by the network's output."""
        return ActionSampler.of(self._cfg.model)


class DenseBC(BCActing, DensePolicy):
    """Behaviour cloning in numpy."""

    def make_dense_network(self) -> Network:
        """See `hpcdi.policy.bc`."""
        return Linear(self._cfg.model)

    def best(self, output: tuple[Array, ...], legal: Array | None) -> Columns:
        """The likeliest actions."""
        return self.distribution.best(output, legal)
