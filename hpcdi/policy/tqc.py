"""TQC: SAC whose critics learn quantiles of the return (Kuznetsov et al. 2020, arXiv:2005.04269).

Targets leave out the largest quantiles of all critics together, and so values are not
overestimated: how much is chosen finely. What learns from what is in `sac`, the actor too.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hpcdi.config.algorithms import TQCConfig, TQCLearnConfig
from hpcdi.policy import networks
from hpcdi.policy.qrdqn import quantile_huber
from hpcdi.policy.sac import SACPolicy

_KAPPA = 1.0  # as the paper has it


class TQCPolicy(SACPolicy):
    """TQC, for continuous actions within bounds."""

    Config = TQCConfig
    _cfg: TQCConfig
    _learn: TQCLearnConfig

    def make_critics(self) -> nn.Module:
        """Quantiles for the pair of observation and action, [critics, batch, quantiles]."""
        model = self._cfg.model
        return networks.ActionValues(model, self._cfg.learn.critics, model.num_quantiles)

    def soft_target(self, batch: Mapping[str, Tensor]) -> Tensor:
        """``y_i = R + d (z_i - alpha log pi(a'|o'))``, [batch, kept].

        z are the least quantiles of all target critics at ``o', a'``, a' of the policy.
        """
        learn = self._cfg.learn
        with torch.no_grad():
            following = networks.observation_of(batch, "next_observation")
            action, log_prob = self.drawn(following, batch["next_noise"])
            quantiles = self._target_values(following, action)
            kept = learn.critics * (quantiles.shape[2] - learn.drop_quantiles)
            least = quantiles.movedim(0, 1).flatten(1).sort(dim=1).values[:, :kept]
            soft = least - (self.alpha * log_prob)[:, None]
        reward, discount = (batch[n][:, None] for n in ("n_step_return", "bootstrap_discount"))
        target: Tensor = reward + discount * soft
        return target

    def critic_losses(
        self,
        batch: Mapping[str, Tensor],  # noqa: ARG002
        values: Tensor,
        target: Tensor,
    ) -> Tensor:
        """Returns the losses of all critics together, [batch]: of each a mean over quantiles."""
        return quantile_huber(values, target, _KAPPA).sum(dim=0) / values.shape[2]

    def value_and_error(self, values: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """See `SoftActorCritic.value_and_error`; of the means of quantiles."""
        value = values.detach().mean(dim=(0, 2))
        return value, (value - target.mean(dim=1)).abs()

    def value_to_improve(self, values: Tensor) -> Tensor:
        """Returns the mean of all quantiles, [batch]: here nothing is left out."""
        return values.mean(dim=(0, 2))
