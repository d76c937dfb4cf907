"""Acting by probabilities of discrete actions: SAC's form for these."""

from __future__ import annotations

from typing import ClassVar

from hpcdi.config.algorithms import DiscreteSACConfig
from hpcdi.policy.acting.base import DensePolicy, Network, ReplayActing
from hpcdi.policy.acting.network import Linear
from hpcdi.policy.acting.sampling import masked, sample_discrete
from hpcdi.types import ACTION_MASK, Array, Columns, Settings

_ACTIONS = 0  # stream of random numbers


class DiscreteSACActing(ReplayActing):
    """Sampled actions, legal ones where there is a mask."""

    Config: ClassVar[type] = DiscreteSACConfig
    _cfg: DiscreteSACConfig

    def prepare_acting(self) -> None:
        """Random numbers of sampling."""
        self._rng = self.random(_ACTIONS)

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:  # noqa: ARG002
        """Sampled actions int64 [rows]."""
        logits = masked(self.infer(observation)[0], observation.get(ACTION_MASK))
        return {"action": sample_discrete(logits, self._rng)["action"]}


class DenseDiscreteSAC(DiscreteSACActing, DensePolicy):
    """Discrete SAC's actor in numpy."""

    def make_dense_network(self) -> Network:
        """See `hpcdi.policy.discrete_sac`."""
        return Linear(self._cfg.model)

    def best(self, output: tuple[Array, ...], legal: Array | None) -> Columns:
        """The likeliest actions."""
        return {"action": masked(output[0], legal).argmax(axis=1)}
