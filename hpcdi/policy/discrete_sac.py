"""SAC of discrete actions (Christodoulou 2019, arXiv:1910.07207).

What SAC estimates from one action that is drawn is here a sum over all actions, weighed by their
probabilities: equations 10 to 12 of the paper. What learns from what is in `sac`.

Network (the actor): observation -> logits of the actions, [batch, actions]. The critics are two
networks that the same settings ask for, with values in the place of logits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hpcdi.config.algorithms import DiscreteSACConfig
from hpcdi.config.policy import ModelConfig
from hpcdi.policy import networks
from hpcdi.policy.acting.discrete_sac import DiscreteSACActing
from hpcdi.policy.distributions import masked_logits
from hpcdi.policy.memories import State
from hpcdi.policy.sac import SoftActorCritic
from hpcdi.types import ACTION_MASK

_ENTROPY_SHARE = 0.98  # of that of the uniform policy, as the paper has it


class DiscreteSACPolicy(DiscreteSACActing, SoftActorCritic):
    """SAC for discrete actions, with or without masks of legal ones."""

    _cfg: DiscreteSACConfig

    def make_network(self) -> nn.Module:
        """The actor; see the module's docstring."""
        return networks.make_network(self._cfg.model, "linear")

    def greedy(self, output: Tensor, legal: Tensor | None = None) -> tuple[Tensor, ...]:
        """The likeliest actions, int64 [batch]."""
        return (masked_logits(output, legal).argmax(dim=1),)

    def prepare_learning(self) -> None:
        """See `SoftActorCritic.prepare_learning`."""
        wanted = self._cfg.learn.target_entropy
        uniform = math.log(self._cfg.model.actions)
        self._target_entropy = _ENTROPY_SHARE * uniform if wanted is None else wanted
        super().prepare_learning()

    def wanted_entropy(self, batch: Mapping[str, Tensor]) -> Tensor | float:
        """See `SoftActorCritic.wanted_entropy`: by default a share of that of all legal actions."""
        if ACTION_MASK not in batch or self._cfg.learn.target_entropy is not None:
            return self._target_entropy
        legal = batch[ACTION_MASK].bool().sum(dim=1).clamp(min=1)
        wanted: Tensor = _ENTROPY_SHARE * legal.float().log()
        return wanted

    def make_critics(self) -> nn.Module:
        """See `Critics`."""
        return Critics(self._cfg.model)

    def prepared(self, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """As it is: nothing is drawn."""
        return batch

    def taken_values(self, batch: Mapping[str, Tensor]) -> Tensor:
        """See `SoftActorCritic.taken_values`."""
        values = self._values(networks.observation_of(batch), {})
        action = batch["action"].long().reshape(1, -1, 1).expand(len(values), -1, 1)
        taken: Tensor = values.gather(2, action).squeeze(2)
        return taken

    def improved(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """``pi (alpha log pi - min_i Q_i)``, eq. 12; and ``pi log pi``, for eq. 11."""
        probability, log_prob = self._policy_of(batch, "observation", ACTION_MASK)
        with torch.no_grad():
            values = self._values(networks.observation_of(batch), {}).amin(dim=0)
        losses = (probability * (self.alpha * log_prob - values)).sum(dim=1)
        return losses, (probability * log_prob).sum(dim=1)

    def following_value(self, batch: Mapping[str, Tensor]) -> Tensor:
        """``pi(o') (min_i Q'_i(o') - alpha log pi(o'))``: eq. 10."""
        probability, log_prob = self._policy_of(batch, "next_observation", f"next_{ACTION_MASK}")
        following = networks.observation_of(batch, "next_observation")
        values = self._target_values(following, {}).amin(dim=0)
        soft: Tensor = (probability * (values - self.alpha * log_prob)).sum(dim=1)
        return soft

    def _policy_of(
        self, batch: Mapping[str, Tensor], observation: str, mask: str
    ) -> tuple[Tensor, Tensor]:
        """Probabilities of the actions, and their logarithms; both [batch, actions]."""
        logits, _ = self._forward(networks.observation_of(batch, observation), {})
        log_prob = masked_logits(logits, batch.get(mask)).log_softmax(dim=1)
        return log_prob.exp(), log_prob


class Critics(nn.Module):
    """Values of all actions by two networks, of which each has an encoder of its own."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.critics = nn.ModuleList(networks.make_network(model, "linear") for _ in range(2))

    def forward(self, observation: networks.Observation, state: State) -> Tensor:
        """Values float32 [critics, batch, actions]."""
        return torch.stack([critic(observation, state)[0] for critic in self.critics])
