"""Acting by values of actions: DQN, C51, QR-DQN, R2D2, CQL of discrete ones, VDN and QMIX."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

import numpy as np

from hpcdi.config.algorithms import C51Config, DQNConfig, QRDQNConfig, VDNConfig
from hpcdi.policy.acting.base import DensePolicy, Network, ReplayActing
from hpcdi.policy.acting.network import Values
from hpcdi.policy.exploration import LastingActions, epsilon_greedy, ladder
from hpcdi.policy.spaces import STATE, without
from hpcdi.types import ACTION_MASK, Array, Columns, Settings

_EXPLORING = 0  # stream of random numbers


class DQNActing(ReplayActing):
    """Epsilon-greedy actions; with a ladder of rates, and random actions that last."""

    Config: ClassVar[type] = DQNConfig
    _cfg: DQNConfig

    def prepare_acting(self) -> None:
        """Random numbers of exploration, and who among all collectors explores."""
        self._rng = self.random(_EXPLORING)
        self._exploring: Any = contextlib.nullcontext()
        duration = self._cfg.other.eps.duration
        self._lasting = LastingActions(duration, self._rng) if duration else None
        # a collector sets its number, how many there are, and the rows that it acts for
        self._collector, self._collector_rows = (0, 1), 1

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:
        """Actions int64 [rows]: the best, or with probability ``setting["eps"]`` random ones."""
        with self._exploring:
            best = self.act_greedily(observation)["action"]
        eps, legal = setting.get("eps", 0.0), observation.get(ACTION_MASK)
        count = self._cfg.model.actions
        rows = np.arange(len(best)) if rows is None else rows
        if self._cfg.other.eps.ladder:
            number, collectors = self._collector
            in_each = self._collector_rows = max(self._collector_rows, int(rows.max()) + 1)
            rung = number * in_each + rows
            eps = ladder(eps, self._cfg.other.eps.ladder, rung, collectors * in_each)
        if self._lasting is not None:
            return {"action": self._lasting.act(best, eps, count, rows, legal)}
        return {"action": epsilon_greedy(best, eps, count, self._rng, legal)}

    def by_action(self, output: Any) -> Any:
        """Returns outputs [rows, actions * outputs] as [rows, actions, outputs]."""
        return output.reshape(-1, self._cfg.model.actions, self._cfg.model.outputs)


class DenseDQN(DQNActing, DensePolicy):
    """DQN, and CQL of discrete actions, in numpy."""

    def make_dense_network(self) -> Network:
        """See `hpcdi.policy.dqn`."""
        return Values(self._cfg.model)

    def best(self, output: tuple[Array, ...], legal: Array | None) -> Columns:
        """See `DensePolicy.best`."""
        values = self.values(output[0])
        if legal is not None:
            values = np.where(legal, values, -np.inf)
        return {"action": values.argmax(axis=1)}

    def values(self, output: Array) -> Array:
        """Returns the values of actions, [rows, actions]."""
        return output


class DenseC51(DenseDQN):
    """C51 in numpy."""

    Config = C51Config
    _cfg: C51Config

    def values(self, output: Array) -> Array:
        """The means of the actions' returns."""
        logits, model = self.by_action(output), self._cfg.model
        likely = np.exp(logits - logits.max(axis=2, keepdims=True))
        atoms = np.linspace(model.v_min, model.v_max, model.n_atom, dtype=np.float32)
        means: Array = (likely @ atoms) / likely.sum(axis=2)
        return means


class DenseQRDQN(DenseDQN):
    """QR-DQN in numpy."""

    Config = QRDQNConfig
    _cfg: QRDQNConfig

    def values(self, output: Array) -> Array:
        """The means of the actions' returns."""
        means: Array = self.by_action(output).mean(axis=2)
        return means


class DenseVDN(DenseDQN):
    """VDN and QMIX in numpy: each player acts by values of its own."""

    Config = VDNConfig
    _cfg: VDNConfig

    def make_dense_network(self) -> Network:
        """See `hpcdi.policy.mixing`: what mixes values is the learners' alone."""
        return Values(without(self._cfg.model, (STATE,)))
