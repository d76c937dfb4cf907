"""PPO: on-policy learning of a policy and its value (Schulman et al. 2017).

Network, actions and acting are in `actor_critic`; what is not there is in `torch_policy`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hpcdi.comm import group
from hpcdi.config.algorithms import PPOLearnConfig
from hpcdi.policy import gradient_step, memories, minibatches, networks
from hpcdi.policy.acting.actor_critic import PPOActing
from hpcdi.policy.actor_critic import ActorCriticPolicy
from hpcdi.policy.distributions import ActionDistribution
from hpcdi.policy.minibatches import Joint
from hpcdi.types import ACTION_MASK


class PPOPolicy(PPOActing, ActorCriticPolicy):
    """PPO, for actions of every space, with or without masks of legal ones.

    Besides gradients, several learners exchange how they cut their data (once an update), the
    moments of the advantages (once a pass), the logs (once an update) and, with `target_kl`, the KL
    divergence (once a minibatch).
    """

    _learn: PPOLearnConfig

    SCALARS = ("total_loss", "policy_loss", "value_loss", "entropy", "approx_kl")

    def prepare_learning(self) -> None:
        """What computes a step; see `_learn_from`."""
        super().prepare_learning()
        self._compute = self.replayed(self._take_step)

    def update(self, batch: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """Several passes over all data of one policy, in minibatches.

        Args:
            batch: ``observation, action, log_prob, value, advantage, return``, of Boxes
                ``raw_action`` and, where there are masks, ``action_mask``; each [transitions, ...].
                For a memory also ``sequence_len`` and ``state/<name>``; minibatches are of whole
                sequences then.

        Returns:
            Python scalars of each (joint) minibatch: ``total_loss, policy_loss, value_loss,
            entropy, approx_kl, clipfrac, adv_max, value_mean, grad_norm``, ``cur_lr`` and, with
            fp16, ``skipped_steps``. Where `target_kl` ends the update, the last ones are of the
            minibatch that was not learnt from.
        """
        learn = self._learn
        columns = self.learnt_columns(batch, _COLUMNS)
        rows: list[Tensor] = []
        for minibatch, joint in minibatches.minibatches(
            columns, learn.batch_size, learn.epoch_per_collect, self._shuffles
        ):
            row, is_over = self._learn_from(minibatch, joint)
            rows.append(row)
            if is_over:
                break
        return self.logs_of(rows, _SCALARS)

    def _learn_from(self, minibatch: Mapping[str, Tensor], joint: Joint) -> tuple[Tensor, bool]:
        """One gradient step, if the policy may still move.

        Returns:
            `_SCALARS` of the minibatch, [scalars], this learner's shares in them; and whether the
            policy has moved too far, and so nothing was learnt.
        """
        limit = self._cfg.learn.target_kl
        if limit is None:
            (row,) = self._compute({**minibatch, **joint.columns()}, joint.per_learner)
            self._updates += 1
            return row.clone(), False
        losses = self._gradients(minibatch, joint)
        approx_kl = losses[_SCALARS.index("approx_kl")].clone()
        group.allreduce_data(approx_kl, "avg")  # so that it is the same on all learners
        is_over = bool(approx_kl.item() > limit)
        norm = torch.zeros((), device=self._device)
        if not is_over:
            norm = self._step.apply(measured=True)
            self._updates += 1
        return self._row(losses, minibatch, joint, norm), is_over

    def _take_step(self, columns: Mapping[str, Tensor], per_learner: float) -> tuple[Tensor]:
        """The gradient step of a minibatch; returns its `_SCALARS`.

        Args:
            columns: of the minibatch, and those of its joint one.
            per_learner: of the joint one.
        """
        joint, minibatch = Joint.taken_from(columns, per_learner)
        losses = self._gradients(minibatch, joint)
        return (self._row(losses, minibatch, joint, self._step.apply(measured=True)),)

    def _gradients(self, minibatch: Mapping[str, Tensor], joint: Joint) -> Tensor:
        """Put the gradient in place; returns the losses, the first of `_SCALARS`."""
        losses_of_parts: list[Tensor] = []

        def loss_of(part: Mapping[str, Tensor]) -> Tensor:
            output, _ = self._forward(networks.observation_of(part), memories.state_of(part))
            losses = ppo_losses(self.distribution, output, part, self._learn, joint)
            if self._extra:
                losses = self._with_extra(losses, output, part, joint)
            losses_of_parts.append(torch.stack([loss.detach() for loss in losses]))
            return losses.total

        self._step.gradients(minibatch, loss_of)
        return functools.reduce(torch.add, losses_of_parts)

    def _with_extra(
        self, losses: Losses, output: Any, part: Mapping[str, Tensor], joint: Joint
    ) -> Losses:
        *policy, value = output
        log_prob, entropy = self.distribution.log_prob_entropy(policy, part, part.get(ACTION_MASK))
        of_part = {"log_prob": log_prob, "entropy": entropy, "value": value}
        total = self._extra.added(losses.total, part, joint.per_learner, **of_part)
        return losses._replace(total=total)

    def _row(
        self, losses: Tensor, minibatch: Mapping[str, Tensor], joint: Joint, norm: Tensor
    ) -> Tensor:
        """`_SCALARS` of a minibatch and those of an extra loss, [scalars]."""
        value = gradient_step.mean_share(minibatch["value"], joint.per_learner)
        others = (joint.largest, value, norm, *self._extra.taken())
        return torch.cat([losses, torch.stack(others)])


# ------------------------------------------------------------------------------------------- losses


class Losses(NamedTuple):
    """Scalars of a minibatch; `total` is differentiable."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clipfrac: Tensor


_COLUMNS = (
    *("observation", "action", "raw_action", ACTION_MASK, "log_prob"),
    *("value", "advantage", "return"),
)
_SCALARS = (*PPOPolicy.SCALARS, "clipfrac", "adv_max", "value_mean", "grad_norm")


def ppo_losses(
    distribution: ActionDistribution,
    output: tuple[Tensor, ...],
    batch: Mapping[str, Tensor],
    learn: PPOLearnConfig,
    joint: Joint,
) -> Losses:
    """Losses of a minibatch, or the shares in them that a part of it has.

    Equations are those of Schulman et al. 2017.

    Args:
        distribution: of actions.
        output: of the network for the observations.
        batch: ``action`` (of Boxes ``raw_action``), ``log_prob, value, advantage, return`` and,
            where not all actions were legal, ``action_mask`` of the minibatch, or of a part of it;
            a part may be empty, its shares are 0.
        learn: settings.
        joint: of the whole minibatch.
    """
    *policy, value = output
    count, clip = joint.per_learner, learn.clip_ratio
    mean_share = gradient_step.mean_share
    legal = batch.get(ACTION_MASK)
    log_prob, entropies = distribution.log_prob_entropy(policy, batch, legal)
    advantage = batch["advantage"]
    if learn.adv_norm:
        advantage = (advantage - joint.mean) / (joint.deviation + 1e-8)
    log_ratio = log_prob - batch["log_prob"]
    ratio = log_ratio.exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    policy_loss = -mean_share(gain, count)  # eq. 7
    error = (value - batch["return"]).square()
    if learn.value_clip:
        limited = batch["value"] + (value - batch["value"]).clamp(-clip, clip)
        error = torch.maximum(error, (limited - batch["return"]).square())
    value_loss, entropy = mean_share(error, count), mean_share(entropies, count)
    # the negative of eq. 9
    total = policy_loss + learn.value_weight * value_loss - learn.entropy_weight * entropy
    with torch.no_grad():
        # KL(old, new) without bias and never negative: Schulman 2020, "Approximating KL", k3
        approx_kl = mean_share(ratio - 1 - log_ratio, count)
        clipfrac = mean_share(((ratio - 1).abs() > clip).float(), count)
    return Losses(total, policy_loss, value_loss, entropy, approx_kl, clipfrac)
