"""Distributions of actions: sampled in numpy to act, their densities in torch to learn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpcdi.types import Array, Columns
from hpcdi.utils.registry import lazy_module

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy_module("torch")

_LOG_2_PI = math.log(2 * math.pi)


def log_prob_entropy(policy: Sequence[Tensor], action: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithm of each action's probability (density), and each distribution's entropy.

    Args:
        policy: ``[logits]``: ``log softmax(l)[a]`` and ``-sum p log p``. Or ``[mean, log_std]``, a
            normal distribution of independent components: ``-sum (a - m)^2 / 2 s^2 + log s +
            log(2 pi) / 2`` and ``sum log s + (1 + log(2 pi)) / 2``.
        action: discrete [batch], or continuous [batch, ...].

    Returns:
        Both [batch].
    """
    if len(policy) == 1:
        log_probs = torch.nn.functional.log_softmax(policy[0], dim=1)
        chosen = log_probs.gather(1, action.long().unsqueeze(1)).squeeze(1)
        return chosen, -(log_probs.exp() * log_probs).sum(dim=1)
    mean, log_std = policy
    away = (action.reshape(mean.shape) - mean) * torch.exp(-log_std)
    log_prob = -(0.5 * away.square() + log_std + 0.5 * _LOG_2_PI).sum(dim=1)
    entropy = (log_std + 0.5 * (1 + _LOG_2_PI)).sum(dim=-1)
    return log_prob, entropy.expand(len(mean))


def sample_discrete(logits: Array, rng: np.random.Generator) -> Columns:
    """One action for each row, by the inverse of the cumulated probabilities."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    cumulated = np.cumsum(np.exp(shifted), axis=1)
    total = cumulated[:, -1]
    drawn = rng.random(len(logits), dtype=np.float32) * total
    # a product that is rounded up to the total would be an action too many
    action = np.minimum((cumulated <= drawn[:, None]).sum(axis=1), logits.shape[1] - 1)
    log_prob = shifted[np.arange(len(logits)), action] - np.log(total)
    return {"action": action, "log_prob": log_prob}


def sample_normal(mean: Array, log_std: Array, rng: np.random.Generator) -> Columns:
    """One action for each row: the mean, and noise of the given deviation."""
    noise = rng.standard_normal(mean.shape, dtype=np.float32)
    log_prob = -(0.5 * noise * noise + log_std).sum(axis=1, dtype=np.float32)
    log_prob -= np.float32(0.5 * _LOG_2_PI * mean.shape[1])
    return {"raw_action": mean + np.exp(log_std) * noise, "log_prob": log_prob}
