"""The PPO update, in torch: several passes over the data of one policy (Schulman et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcdi.comm.dist import allreduce_data
from hpcdi.policy.actor_critic import ActorCritic
from hpcdi.policy.gradient_step import GradientStep, cut, forward_of, mean_share, placed
from hpcdi.policy.ppo_joint import Joint, JointMinibatches, Minibatch
from hpcdi.policy.ppo_settings import PPOLearnConfig

ADAM_EPS = 1e-5  # that of the algorithm's first implementation
_SCALARS = (
    "total_loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac",
    "adv_max", "value_mean", "grad_norm",
)  # fmt: skip


class Losses(NamedTuple):
    """Scalars of a minibatch; `total` is differentiable."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clipfrac: Tensor


def ppo_losses(
    network: ActorCritic,
    batch: Minibatch,
    settings: PPOLearnConfig,
    joint: Joint | None = None,
    forward: Callable[[Tensor], Any] | None = None,
) -> Losses:
    """Losses of a minibatch; or the shares in them that a part of it has.

    ``total = policy + value_weight value - entropy_weight entropy``, the negative of Schulman et
    al. 2017, eq. 9; policy is that of eq. 7, value the mean squared error. `approx_kl` is the mean
    of ``r - 1 - log r``, which estimates KL(old, new) without bias and is never negative (Schulman
    2020, "Approximating KL divergence", k3); `clipfrac` is the share of ratios beyond the limit.

    Args:
        network: policy and value.
        batch: the minibatch, or a part of it; a part may be empty, its shares are 0.
        settings: of the update.
        joint: of the whole minibatch; None: `batch` is all of it.
        forward: computes what `network` does; None: the network itself.
    """
    joint = Joint.of(batch.advantage) if joint is None else joint
    heads, value = (network if forward is None else forward)(batch.observation)
    log_prob, entropies = network.log_prob_entropy(heads, batch.action)
    entropy, clip = mean_share(entropies, joint.per_learner), settings.clip_ratio
    advantage = batch.advantage
    if settings.adv_norm:
        advantage = (advantage - joint.mean) / (joint.deviation + 1e-8)
    log_ratio = log_prob - batch.log_prob
    ratio = log_ratio.exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    policy_loss = -mean_share(gain, joint.per_learner)
    error = (value - batch.returns).square()
    if settings.value_clip:
        limited = batch.value + (value - batch.value).clamp(-clip, clip)
        error = torch.maximum(error, (limited - batch.returns).square())
    value_loss = mean_share(error, joint.per_learner)
    total = policy_loss + settings.value_weight * value_loss - settings.entropy_weight * entropy
    with torch.no_grad():
        approx_kl = mean_share(ratio - 1 - log_ratio, joint.per_learner)
        clipfrac = mean_share(((ratio - 1).abs() > clip).float(), joint.per_learner)
    return Losses(total, policy_loss, value_loss, entropy, approx_kl, clipfrac)


class PPOLearner:
    """An actor-critic that learns.

    Where there are several learners they learn as one would from joint minibatches, to which each
    gives one of its own; how much data each has is its own affair. They need one exchange for how
    they cut their data, one a pass for the advantages' moments and one for the logs, and with
    `target_kl` one a minibatch, beside the gradients.

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
        self.network = placed(network, device)
        optimizer = torch.optim.Adam(
            self.network.parameters(), lr=settings.learning_rate, eps=ADAM_EPS, fused=True
        )
        self.step = GradientStep(self.network, optimizer, settings, device)
        self.updates = 0
        self.iterations = 0
        self.rng = rng
        self._forward = forward_of(self.network, settings, device)
        self._settings = settings
        self._device = device

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Of the network."""
        return self.step.optimizer

    def update(self, batch: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """Several passes over all data of one policy, in minibatches.

        Args:
            batch: ``observation, action, log_prob, value, advantage, return`` and, where actions
                are continuous, ``raw_action``; each [transitions, ...].

        Returns:
            Python scalars of each (joint) minibatch: ``total_loss, policy_loss, value_loss,
            entropy, approx_kl, clipfrac, adv_max, value_mean, grad_norm``, ``cur_lr`` and, with
            fp16, ``skipped_steps``. Where `target_kl` ends the update, the last ones are of the
            minibatch that was not learnt from.
        """
        rate = self.learning_rate
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.iterations += 1
        whole = self._whole(batch)
        joint = JointMinibatches(len(whole.action), self._settings.batch_size, self._device)
        rows: list[Tensor] = []
        for minibatch, known in joint.with_joint(self._minibatches(whole, joint.parts)):
            row, is_over = self._learn(minibatch, known)
            rows.append(row)
            if is_over:
                break
        # one exchange and one copy from a GPU, not one a scalar
        table = torch.stack(rows)
        allreduce_data(table, "avg")
        told = {"cur_lr": rate, **self.step.scalars()}
        return [{**dict(zip(_SCALARS, row, strict=True)), **told} for row in table.tolist()]

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

    def _minibatches(self, whole: Minibatch, parts: int | None = None) -> Iterator[Minibatch]:
        """Of all passes: `parts` a pass, of sizes alike; None: as `batch_size` lets be alone."""
        count = len(whole.action)
        parts = math.ceil(count / self._settings.batch_size) if parts is None else parts
        for _ in range(self._settings.epoch_per_collect):
            order = torch.from_numpy(self.rng.permutation(count)).to(self._device)
            shuffled = [torch.tensor_split(column[order], parts) for column in whole]
            for columns in zip(*shuffled, strict=True):
                yield Minibatch(*columns)

    def _learn(self, minibatch: Minibatch, joint: Joint) -> tuple[Tensor, bool]:
        """One gradient step, if the policy may still move.

        Returns:
            `_SCALARS` of the minibatch, [scalars], this learner's shares in them; and whether the
            policy has moved too far, and so nothing was learnt.
        """
        seen: list[Tensor] = []

        def loss_of(part: Mapping[str, Tensor]) -> Tensor:
            losses = ppo_losses(
                self.network, Minibatch(**part), self._settings, joint, self._forward
            )
            seen.append(torch.stack([loss.detach() for loss in losses]))
            return losses.total

        self.step.gradients(cut(minibatch._asdict(), self._settings.accumulate), loss_of)
        losses = sum(seen[1:], seen[0])
        is_over = self._is_too_far(losses)
        norm = torch.zeros((), device=self._device)
        if not is_over:
            norm = self.step.apply(measured=True)
            self.updates += 1
        extremes = (joint.largest, mean_share(minibatch.value, joint.per_learner), norm)
        return torch.cat([losses, torch.stack(extremes)]), is_over

    def _is_too_far(self, losses: Tensor) -> bool:
        """Whether the joint minibatch says so; the same on all learners."""
        limit = self._settings.target_kl
        if limit is None:
            return False
        approx_kl = losses[_SCALARS.index("approx_kl")].clone()
        allreduce_data(approx_kl, "avg")
        return approx_kl.item() > limit
