"""Acting by a player's own values: VDN and QMIX."""

from __future__ import annotations

from typing import ClassVar

from hpcdi.config.algorithms import QMIXConfig, VDNConfig
from hpcdi.policy.acting.base import Network
from hpcdi.policy.acting.dqn import DenseDQN
from hpcdi.policy.acting.network import Values
from hpcdi.policy.spaces import without

STATE = "state"
"""The part of an observation that is the whole team's."""


class DenseVDN(DenseDQN):
    """VDN in numpy."""

    Config: ClassVar[type] = VDNConfig
    _cfg: VDNConfig

    def make_dense_network(self) -> Network:
        """See `hpcdi.policy.mixing`: what mixes values is the learners' alone."""
        model = without(self._cfg.model, (STATE,))
        return Values(model, model.outputs, dueling=model.dueling)


class DenseQMIX(DenseVDN):
    """QMIX in numpy."""

    Config: ClassVar[type] = QMIXConfig
    _cfg: QMIXConfig
