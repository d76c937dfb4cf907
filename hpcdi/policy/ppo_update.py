"""The PPO update, in torch: several passes over the data of one policy (Schulman et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hpcdi.policy.actor_critic import ActorCritic
from hpcdi.policy.ppo_settings import PPOLearnConfig

ADAM_EPS = 1e-5  # that of the algorithm's first implementation
_SCALARS = (
    "total_loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac",
    "adv_max", "value_mean", "grad_norm",
)  # fmt: skip


class Minibatch(NamedTuple):
    """What is learnt from; all [transitions, ...], float32 but observations and actions."""

    observation: Tensor
    action: Tensor
    """The one that was sampled, before any bounds."""
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor


class Losses(NamedTuple):
    """Scalars of a minibatch; `total` is differentiable."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clipfrac: Tensor


def ppo_losses(network: ActorCritic, batch: Minibatch, settings: PPOLearnConfig) -> Losses:
    """Losses of a minibatch.

    ``total = policy + value_weight value - entropy_weight entropy``, the negative of Schulman et
    al. 2017, eq. 9; policy is that of eq. 7, value the mean squared error. `approx_kl` is the mean
    of ``r - 1 - log r``, which estimates KL(old, new) without bias and is never negative (Schulman
    2020, "Approximating KL divergence", k3); `clipfrac` is the share of ratios beyond the limit.
    """
    heads, value = network(batch.observation)
    log_prob, entropies = network.log_prob_entropy(heads, batch.action)
    entropy, clip = entropies.mean(), settings.clip_ratio
    advantage = batch.advantage
    if settings.adv_norm:
        deviation = advantage.std(correction=0)  # 0, not NaN, of a single one
        advantage = (advantage - advantage.mean()) / (deviation + 1e-8)
    log_ratio = log_prob - batch.log_prob
    ratio = log_ratio.exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    policy_loss = -gain.mean()
    error = (value - batch.returns).square()
    if settings.value_clip:
        limited = batch.value + (value - batch.value).clamp(-clip, clip)
        error = torch.maximum(error, (limited - batch.returns).square())
    value_loss = error.mean()
    total = policy_loss + settings.value_weight * value_loss - settings.entropy_weight * entropy
    with torch.no_grad():
        approx_kl = (ratio - 1 - log_ratio).mean()
        clipfrac = ((ratio - 1).abs() > clip).float().mean()
    return Losses(total, policy_loss, value_loss, entropy, approx_kl, clipfrac)


class PPOLearner:
    """An actor-critic that learns.

    Args:
        network: the actor-critic.
        settings: of the update.
        device: where to learn.
        rng: shuffles the data.
    """

    def __init__(
        self,
        network: ActorCritic,
        settings: PPOLearnConfig,
        device: torch.device,
        rng: np.random.Generator,
    ) -> None:
        self.network = network.to(device)
        self._parameters = list(self.network.parameters())
        self.optimizer = torch.optim.Adam(
            self._parameters, lr=settings.learning_rate, eps=ADAM_EPS, fused=True
        )
        self.updates = 0
        self.iterations = 0
        self.rng = rng
        self._settings = settings
        self._device = device

    def update(self, batch: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """Several passes over all data of one policy, in minibatches.

        Args:
            batch: ``observation, action, log_prob, value, advantage, return`` and, where actions
                are continuous, ``raw_action``; each [transitions, ...].

        Returns:
            Python scalars of each minibatch: ``total_loss, policy_loss, value_loss, entropy,
            approx_kl, clipfrac, adv_max, value_mean, grad_norm`` and ``cur_lr``. Where `target_kl`
            ends the update, the last ones are of the minibatch that was not learnt from.
        """
        rate = self.learning_rate
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.iterations += 1
        rows: list[Tensor] = []
        for minibatch in self._minibatches(self._whole(batch)):
            losses = ppo_losses(self.network, minibatch, self._settings)
            limit = self._settings.target_kl
            is_over = limit is not None and losses.approx_kl.item() > limit
            norm = torch.zeros((), device=self._device) if is_over else self._step(losses.total)
            extremes = (minibatch.advantage.max(), minibatch.value.mean(), norm)
            rows.append(torch.stack([*(loss.detach() for loss in losses), *extremes]))
            if is_over:
                break
        table = torch.stack(rows).tolist()  # one copy from a GPU, not one a scalar
        return [{**dict(zip(_SCALARS, row, strict=True)), "cur_lr": rate} for row in table]

    @property
    def learning_rate(self) -> float:
        """Of the next iteration."""
        start, end = self._settings.learning_rate, self._settings.lr_end
        if self._settings.lr_decay_iterations is None:
            return start
        return start + (end - start) * min(self.iterations / self._settings.lr_decay_iterations, 1)

    def _whole(self, batch: Mapping[str, Tensor]) -> Minibatch:
        action = "raw_action" if "raw_action" in batch else "action"
        names = ("observation", action, "log_prob", "value", "advantage", "return")
        return Minibatch(*(batch[name].to(self._device, non_blocking=True) for name in names))

    def _minibatches(self, whole: Minibatch) -> Iterator[Minibatch]:
        """Of all passes: as few as hold no more than `batch_size`, of sizes alike."""
        count = len(whole.action)
        parts = math.ceil(count / self._settings.batch_size)
        for _ in range(self._settings.epoch_per_collect):
            order = torch.from_numpy(self.rng.permutation(count)).to(self._device)
            shuffled = [torch.tensor_split(column[order], parts) for column in whole]
            for columns in zip(*shuffled, strict=True):
                yield Minibatch(*columns)

    def _step(self, loss: Tensor) -> Tensor:
        """One gradient step; the gradient's norm before it was clipped."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        limit = self._settings.grad_clip_norm or math.inf
        norm = nn.utils.clip_grad_norm_(self._parameters, limit)
        self.optimizer.step()
        self.updates += 1
        return norm
