"""QR-DQN: DQN that learns quantiles of the return, not its mean (Dabney et al. 2018).

Equations are those of the paper. All options of DQN work here as they do there. Unlike `c51` it
does not need to know the range of returns.

Network: observation -> quantiles of each action's return, [batch, actions * quantiles], an action's
quantiles one after the other. A factory is asked for that many actions.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hpcdi.config.algorithms import QRDQNConfig, QRDQNLearnConfig
from hpcdi.policy import networks
from hpcdi.policy.dqn import DQNPolicy


class QRDQNPolicy(DQNPolicy):
    """QR-DQN, for discrete actions, with or without masks of legal ones."""

    Config = QRDQNConfig
    _cfg: QRDQNConfig
    _learn: QRDQNLearnConfig

    def greedy(self, output: Tensor, legal: Tensor | None = None) -> tuple[Tensor, ...]:
        """Actions int64 [batch], and the means of their returns, that they follow from."""
        return super().greedy(self.by_action(output).mean(dim=2), legal)

    def losses(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, mean return of the action taken, and priority: the loss; each [batch]."""
        with torch.no_grad():
            output, action = self.following(batch)
            following = self.of_action(output, action)
            discount = batch["bootstrap_discount"][:, None]
            target = batch["n_step_return"][:, None] + discount * following
        output, _ = self._forward(networks.observation_of(batch), {})
        quantiles = self.of_action(output, batch["action"])
        losses = quantile_huber(quantiles, target, self._cfg.learn.kappa)
        return losses, quantiles.mean(dim=1), losses


def quantile_huber(quantiles: Tensor, target: Tensor, kappa: float) -> Tensor:
    """``sum_i E_j[rho_i(T_j - theta_i)]`` with the quantile Huber loss (eq. 9, 10), [..., batch].

    Args:
        quantiles: ``theta``, [..., batch, n].
        target: samples ``T`` of the return, [batch, m].
        kappa: errors from which on it is linear.
    """
    count = quantiles.shape[-1]
    middles = (torch.arange(count, device=quantiles.device) + 0.5) / count  # lemma 2
    error = target.unsqueeze(-2) - quantiles.unsqueeze(-1)  # [..., batch, n, m]
    size = error.abs()
    huber = torch.where(size <= kappa, 0.5 * error.square(), kappa * (size - 0.5 * kappa))
    weight = (middles[:, None] - (error.detach() < 0).float()).abs()
    return (weight * huber / kappa).mean(dim=-1).sum(dim=-1)
