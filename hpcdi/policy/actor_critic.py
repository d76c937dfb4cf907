"""A policy and a value of observations, in torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpcdi.policy.networks import encoder

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}
_LOG_2_PI = math.log(2 * math.pi)


class ActorCritic(nn.Module):
    """Observation -> what a distribution over actions follows from, and the observation's value.

    Weights are orthogonal at first: scaled by sqrt(2) in hidden layers, by 1 before the value, and
    by 0.01 before the policy, so that it begins near uniform (Andrychowicz et al. 2021, 3.2).

    Args:
        obs_shape: shape of one observation.
        action_size: number of discrete actions, or of a continuous action's components.
        hidden: sizes of the hidden layers.
        activation: of the hidden layers, a name in `ACTIVATIONS`.
        share_encoder: one encoder for policy and value.
        log_std: logarithm of the deviation of a continuous action at first; None: discrete.
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        action_size: int,
        hidden: Sequence[int],
        *,
        activation: str = "tanh",
        share_encoder: bool = False,
        log_std: float | None = None,
    ) -> None:
        super().__init__()
        act = ACTIVATIONS[activation]
        self.encoder = encoder(obs_shape, hidden, act)
        self.value_encoder = None if share_encoder else encoder(obs_shape, hidden, act)
        self.policy = nn.Linear(hidden[-1], action_size)
        self.value = nn.Linear(hidden[-1], 1)
        self.log_std = (
            None if log_std is None else nn.Parameter(torch.full((action_size,), log_std))
        )

    def initialize(self, seed: int) -> None:
        """Draw all weights anew."""
        generator = torch.Generator().manual_seed(seed)
        gains = {id(self.policy): 0.01, id(self.value): 1.0}
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                gain = gains.get(id(module), math.sqrt(2))
                nn.init.orthogonal_(module.weight, gain, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Of observations [batch, ...]: logits or means [batch, action_size], values [batch]."""
        observation = observation.float()  # stored as they came, e.g. as bytes
        features = self.encoder(observation)
        of_value = features if self.value_encoder is None else self.value_encoder(observation)
        return self.policy(features), self.value(of_value).squeeze(1)

    def heads(self, observation: Tensor) -> Tensor:
        """Logits or means alone, [batch, action_size]."""
        heads: Tensor = self.policy(self.encoder(observation.float()))
        return heads

    def values(self, observation: Tensor) -> Tensor:
        """Values alone, [batch]."""
        of_value = self.encoder if self.value_encoder is None else self.value_encoder
        values: Tensor = self.value(of_value(observation.float())).squeeze(1)
        return values

    def log_prob_entropy(self, heads: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithm of each action's probability (density), and each distribution's entropy.

        Discrete: ``log softmax(l)[a]`` and ``-sum p log p``. Continuous, a normal distribution of
        independent components: ``-sum (a - m)^2 / 2 s^2 + log s + log(2 pi) / 2`` and ``sum log s +
        (1 + log(2 pi)) / 2``.

        Args:
            heads: logits or means, [batch, action_size].
            action: discrete [batch], or continuous [batch, ...].

        Returns:
            Both [batch].
        """
        if self.log_std is None:
            log_probs = functional.log_softmax(heads, dim=1)
            chosen = log_probs.gather(1, action.long().unsqueeze(1)).squeeze(1)
            return chosen, -(log_probs.exp() * log_probs).sum(dim=1)
        away = (action.reshape(heads.shape) - heads) * torch.exp(-self.log_std)
        log_prob = -(0.5 * away.square() + self.log_std + 0.5 * _LOG_2_PI).sum(dim=1)
        entropy = (self.log_std + 0.5 * (1 + _LOG_2_PI)).sum()
        return log_prob, entropy.expand(len(heads))
