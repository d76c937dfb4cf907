"""IMPALA: actors never wait, the learner corrects for their lag by V-trace (Espeholt et al. 2018).

With `learn.clip_ratio` it is APPO: the policy's loss is PPO's clipped one (Schulman et al. 2017,
eq. 7), of V-trace's advantages. Collectors take the newest policy before each rollout, and wait for
none. A learner's batch is all that has come since its last one: it is cut into minibatches of whole
sequences, of at most `collect.unroll_len` transitions each, and used `epoch_per_collect` times.

Network, actions and acting are in `actor_critic`; what is not there is in `torch_policy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hpcdi.config.algorithms import IMPALALearnConfig
from hpcdi.policy import gradient_step, memories, minibatches, networks
from hpcdi.policy.acting.actor_critic import IMPALAActing
from hpcdi.policy.actor_critic import ActorCriticPolicy
from hpcdi.policy.minibatches import Joint
from hpcdi.store.rows import SEQUENCE_LEN
from hpcdi.types import ACTION_MASK


class IMPALAPolicy(IMPALAActing, ActorCriticPolicy):
    """IMPALA, or APPO. Several learners learn from joint minibatches."""

    _learn: IMPALALearnConfig

    SCALARS = ("total_loss", "policy_loss", "value_loss", "entropy", "rho_mean")

    def update(self, batch: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """One pass over the data, or several, in minibatches.

        Args:
            batch: ``observation, next_observation, action, log_prob, reward, terminated,
                sequence_len``, of Boxes ``raw_action``, where there are masks ``action_mask``, and
                for a memory ``state/<name>``; each [transitions, ...].

        Returns:
            Scalars of each (joint) minibatch: ``total_loss, policy_loss, value_loss, entropy,
            rho_mean, value_mean, grad_norm, cur_lr`` and, with fp16, ``skipped_steps``.
        """
        learn = self._learn
        columns = self.learnt_columns(batch, _COLUMNS)
        rows = [
            self._learn_corrected(minibatch, joint)
            for minibatch, joint in minibatches.minibatches(
                columns, learn.batch_size, learn.epoch_per_collect, self._shuffles, "reward"
            )
        ]
        return self.logs_of(rows, _SCALARS)

    def _learn_corrected(self, minibatch: Mapping[str, Tensor], joint: Joint) -> Tensor:
        """One gradient step; returns `_SCALARS`, this learner's shares in them."""
        learn, count = self._learn, joint.per_learner
        scalars_of_parts: list[Tensor] = []

        def loss_of(part: Mapping[str, Tensor]) -> Tensor:
            (*policy, value), after = self._forward(
                networks.observation_of(part), memories.state_of(part)
            )
            lengths = part[SEQUENCE_LEN]
            with torch.no_grad():
                after = {name: state for name, state in after.items() if name != SEQUENCE_LEN}
                last = lengths.cumsum(0) - 1
                (*_, last_value), _ = self._forward(
                    networks.rows_of(networks.observation_of(part, "next_observation"), last), after
                )
            log_prob, entropies = self.distribution.log_prob_entropy(
                policy, part, part.get(ACTION_MASK)
            )
            ratio = (log_prob - part["log_prob"]).exp()
            trace = v_trace(
                ratio.detach(),
                part["reward"],
                part["terminated"],
                value.detach(),
                last_value,
                lengths,
                gamma=self._cfg.discount_factor,
                rho_clip=learn.rho_clip,
                trace_clip=learn.trace_clip,
            )
            if learn.clip_ratio is None:  # the gradient of sec. 4.2
                gain = ratio.detach().clamp(max=learn.rho_clip) * trace.advantage * log_prob
            else:
                limited = ratio.clamp(1 - learn.clip_ratio, 1 + learn.clip_ratio)
                gain = torch.minimum(ratio * trace.advantage, limited * trace.advantage)
            policy_loss = -gradient_step.mean_share(gain, count)
            value_loss = gradient_step.mean_share((trace.value - value).square(), count)
            entropy = gradient_step.mean_share(entropies, count)
            total: Tensor = policy_loss + learn.value_weight * value_loss
            total = total - learn.entropy_weight * entropy
            of_part = {"log_prob": log_prob, "entropy": entropies, "value": value}
            total = self._extra.added(total, part, count, **of_part)
            means = (gradient_step.mean_share(each, count) for each in (ratio, value))
            scalars = (total, policy_loss, value_loss, entropy, *means)
            scalars_of_parts.append(torch.stack([scalar.detach() for scalar in scalars]))
            return total

        self._step.gradients(minibatch, loss_of)
        norm = self._step.apply(measured=True)
        self._updates += 1
        others = torch.stack((norm, *self._extra.taken()))
        return torch.cat([torch.stack(scalars_of_parts).sum(dim=0), others])


_COLUMNS = (
    *("observation", "next_observation", "action", "raw_action"),
    *(ACTION_MASK, "log_prob", "reward", "terminated"),
)
_SCALARS = (*IMPALAPolicy.SCALARS, "value_mean", "grad_norm")


class Trace(NamedTuple):
    """V-trace of each transition, float32 [rows]."""

    value: Tensor
    """V-trace's target of the value."""
    advantage: Tensor
    """``r[t] + gamma v[t+1] - V(x[t])``, without an importance weight."""


def v_trace(
    ratio: Tensor,
    reward: Tensor,
    terminated: Tensor,
    value: Tensor,
    last_value: Tensor,
    lengths: Tensor,
    gamma: float,
    rho_clip: float,
    trace_clip: float,
) -> Trace:
    """V-trace within sequences (Espeholt et al. 2018, eq. 1 and remark 1).

    ``v[t] = V[t] + rho[t] d[t] + gamma c[t] (v[t+1] - V[t+1])`` with ``d[t] = r[t] + gamma V[t+1] -
    V[t]``, where rho and c are the limited ratios. After a sequence's last transition V and v are
    `last_value`, and 0 where the episode terminated.

    Args:
        ratio: probability of the action now, divided by that when it was chosen, [rows].
        reward: [rows].
        terminated: bool [rows]; true only at the last transition of a sequence.
        value: value of the observation before each transition, [rows].
        last_value: value of the observation after each sequence, [sequences].
        lengths: transitions of each sequence, int64 [sequences]; they sum to the rows.
        gamma: discount of one step.
        rho_clip: upper limit of rho.
        trace_clip: upper limit of c.
    """
    if not len(lengths):
        return Trace(value, value)
    ends = lengths.cumsum(0)
    steps = torch.arange(int(lengths.max()), device=lengths.device)
    rows = (ends - lengths).unsqueeze(1) + steps  # [sequences, steps]; filler behind the ends
    is_row = steps < lengths.unsqueeze(1)  # not filler
    rows = rows.clamp(max=len(value) - 1)

    def following(values: Tensor) -> Tensor:
        later = values.roll(-1)
        later[ends - 1] = last_value
        return later

    next_value = following(value)
    discount = gamma * (~terminated).to(value.dtype)
    delta = ratio.clamp(max=rho_clip) * (reward + discount * next_value - value)
    carry = discount * ratio.clamp(max=trace_clip)
    delta_at, carry_at = delta[rows] * is_row, carry[rows] * is_row
    excess = torch.zeros_like(last_value)  # v - V of the step after
    excesses = torch.empty_like(delta_at)
    for step in reversed(range(len(steps))):
        excess = delta_at[:, step] + carry_at[:, step] * excess
        excesses[:, step] = excess
    target = value + excesses[is_row]
    return Trace(target, reward + discount * following(target) - value)
