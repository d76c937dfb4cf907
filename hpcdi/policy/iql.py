"""IQL: implicit Q-learning, to learn offline (Kostrikov et al. 2021, arXiv:2110.06169).

No action is valued that the data do not have: a state's value is an expectile of those of the
data's actions, and the policy imitates actions, the better ones more. Actions of networks are
scaled as in `boxes`.

Network (the actor): observation -> mean, before it is squashed by tanh, and after it the logarithm
of the deviation of a normal distribution of actions, [batch, 2 * components]. A factory is asked
for that many actions; the value (one output) and the critics are made by it too.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hpcdi.config.algorithms import IQLConfig, IQLLearnConfig
from hpcdi.policy import gradient_step, networks
from hpcdi.policy.acting.boxes import IQL_LOG_STD, IQLActing
from hpcdi.policy.boxes import BoxPolicy
from hpcdi.policy.distributions import log_prob_entropy

_SCALED, _VALUE = "scaled_action", "value_of_action"
"""Columns of parts of a batch beside what is stored: actions between -1 and 1, the targets' Q."""


class IQLPolicy(IQLActing, BoxPolicy):
    """IQL, for continuous actions within bounds."""

    _cfg: IQLConfig
    _learn: IQLLearnConfig

    SCALARS = ("total_loss", "critic_loss", "value_loss", "actor_loss", "q_value", "advantage")

    def prepare_learning(self) -> None:
        """The value and the critics, which learn by steps of their own, and the critics' target."""
        super().prepare_learning()
        cfg, device = self._cfg, self._device
        of_state = networks.make_network(dataclasses.replace(cfg.model, action_shape=1), "linear")
        self._value = gradient_step.placed(of_state, device)
        self._critics = gradient_step.placed(networks.ActionValues(cfg.model, critics=2), device)
        self._targets = copy.deepcopy(self._critics).requires_grad_(False)
        self._follower = gradient_step.Follower(self._targets, self._critics)
        self._value_step = self.make_step(self._value)
        self._critic_step = self.make_step(self._critics)
        self._value_of, self._values, self._target_values = (
            gradient_step.forward_of(network, cfg.learn, device)
            for network in (self._value, self._critics, self._targets)
        )
        self._compute = self.replayed(self._learn_from)

    def update(self, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        """A gradient step of the value, one of the actor, and one of the critics.

        Args:
            batch: ``observation, action, n_step_return, bootstrap_discount, next_observation`` and,
                where weights are used, ``weight``; each [batch, ...].

        Returns:
            ``total_loss`` (of all three), ``critic_loss, value_loss, actor_loss, q_value,
            advantage, cur_lr``, with fp16 ``skipped_steps`` and, where asked for, ``priority``:
            float32 array [batch], the absolute TD error, mean of the critics.
        """
        scalars, error = self._compute(batch)
        self._updates += 1
        return self.logged(scalars, error)

    def _learn_from(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The gradient steps; returns `SCALARS`, and absolute errors [batch]."""
        cfg, learn, count = self._cfg, self._cfg.learn, len(batch["n_step_return"])
        scaled = self.taken_actions(batch)
        with torch.no_grad():
            value = self._target_values(networks.observation_of(batch), scaled).amin(dim=0)
        batch = {**batch, _SCALED: scaled, _VALUE: value}
        advantages, errors = list[Tensor](), list[Tensor]()

        def value_loss(part: Mapping[str, Tensor]) -> Tensor:
            lack = part[_VALUE] - self._value_in(part)
            share = (learn.expectile - (lack < 0).float()).abs()
            return gradient_step.mean_share(share * lack.square(), count)  # eq. 5

        def actor_loss(part: Mapping[str, Tensor]) -> Tensor:
            output, _ = self._forward(networks.observation_of(part), {})
            mean, log_std = output.chunk(2, dim=1)
            policy = [mean.tanh(), log_std.clamp(*IQL_LOG_STD)]
            log_prob, _ = log_prob_entropy(policy, part[_SCALED])
            with torch.no_grad():
                advantage = part[_VALUE] - self._value_in(part)
            advantages.append(advantage)
            weight = (learn.beta * advantage).exp().clamp(max=learn.most_weight)
            loss = gradient_step.mean_share(-weight * log_prob, count)  # eq. 7
            return self._extra.added(loss, part, count, log_prob=log_prob)

        def critic_loss(part: Mapping[str, Tensor]) -> Tensor:
            with torch.no_grad():
                following = self._value_in(part, "next_observation")
                target = part["n_step_return"] + part["bootstrap_discount"] * following
            values = self._values(networks.observation_of(part), part[_SCALED])
            losses = (values - target).square().sum(dim=0)  # eq. 6, of both critics
            if cfg.priority_IS_weight:
                losses = losses * part["weight"]
            errors.append((values.detach() - target).abs().mean(dim=0))
            return gradient_step.mean_share(losses, count)

        losses = []
        for step, loss in (
            (self._value_step, value_loss),
            (self._step, actor_loss),
            (self._critic_step, critic_loss),
        ):
            losses.append(step.gradients(batch, loss))
            step.apply()
        self._follower.follow(learn.tau)

        of_value, of_actor, of_critics = losses
        means = (value.mean(), torch.cat(advantages).mean())
        total = of_value + of_actor + of_critics
        scalars = (total, of_critics, of_value, of_actor, *means, *self._extra.taken())
        return torch.stack(scalars), torch.cat(errors)

    def _value_in(self, batch: Mapping[str, Tensor], name: str = "observation") -> Tensor:
        """Returns the value of a batch's observations, [batch]."""
        value, _ = self._value_of(networks.observation_of(batch, name), {})
        of_each: Tensor = value.squeeze(1)
        return of_each

    def saved_parts(self) -> dict[str, Any]:
        """See `TorchPolicy.saved_parts`."""
        return {
            "value": self._value,
            "critics": self._critics,
            "target_critics": self._targets,
            "value_step": self._value_step,
            "critic_step": self._critic_step,
        }
