"""Policies as plain functions of observations, without random numbers: what `hpcdi export` writes.

A policy says what that is by ``_get_export_module()``: an `nn.Module` that maps observations
float32 [batch, ...] to a tuple of tensors, the actions first. Its attribute ``output_names`` names
them; without it there is one, ``action``.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from hpcdi.policy.actor_critic import ActorCritic
from hpcdi.policy.ppo_settings import PPOModelConfig
from hpcdi.policy.spaces import as_shape


class BestAction(nn.Module):
    """The action of the highest value.

    Args:
        network: observations -> values [batch, actions].
    """

    output_names: ClassVar[tuple[str, ...]] = ("action", "values")

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Actions int64 [batch], and the values float32 [batch, actions] that they follow from."""
        values = self.network(observation)
        return values.argmax(dim=1), values


class LikeliestAction(nn.Module):
    """The discrete action of the highest probability.

    Args:
        network: policy and value.
    """

    output_names: ClassVar[tuple[str, ...]] = ("action", "value")

    def __init__(self, network: ActorCritic) -> None:
        super().__init__()
        self.network = network

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Actions int64 [batch], and values float32 [batch]."""
        logits, value = self.network(observation)
        return logits.argmax(dim=1), value


class MeanAction(nn.Module):
    """The mean of a normal distribution of actions, within their bounds.

    Args:
        network: policy and value.
        model: settings, filled with the environment's spaces.
    """

    output_names: ClassVar[tuple[str, ...]] = ("action", "value")

    def __init__(self, network: ActorCritic, model: PPOModelConfig) -> None:
        super().__init__()
        self.network = network
        self._shape = as_shape(model.action_shape or 1)
        size = math.prod(self._shape)
        self.low = nn.Buffer(torch.tensor(model.action_low or (-math.inf,) * size))
        self.high = nn.Buffer(torch.tensor(model.action_high or (math.inf,) * size))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Actions float32 [batch, ...], and values float32 [batch]."""
        mean, value = self.network(observation)
        return torch.clamp(mean, self.low, self.high).reshape(-1, *self._shape), value
