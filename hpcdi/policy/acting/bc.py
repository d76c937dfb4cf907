"""Acting as data do: behaviour cloning."""

from __future__ import annotations

from typing import ClassVar

from hpcdi.config.algorithms import BCConfig
from hpcdi.policy.acting.actor_critic import DenseDistribution, DistributionActing
from hpcdi.policy.acting.base import Network
from hpcdi.policy.acting.network import Linear
from hpcdi.types import ACTION_MASK, Array, Columns, Settings


class BCActing(DistributionActing):
    """The likeliest actions of every space, with or without masks of legal ones.

    With `eval.sample` discrete ones are drawn, as often as data have them.

    It learns from observations and actions alone, and adds no columns to them.
    """

    Config: ClassVar[type] = BCConfig
    _cfg: BCConfig

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:  # noqa: ARG002
        """The likeliest actions [rows, ...], or drawn ones."""
        if not self._cfg.eval.sample:
            return self.act_greedily(observation)
        output = self.infer(observation)
        return self.distribution.sample(output, self._rng, observation.get(ACTION_MASK))


class DenseBC(BCActing, DenseDistribution):
    """Behaviour cloning in numpy."""

    def make_dense_network(self) -> Network:
        """See `hpcdi.policy.bc`."""
        return Linear(self._cfg.model)
