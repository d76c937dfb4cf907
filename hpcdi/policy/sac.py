"""SAC: off-policy learning of continuous actions and their entropy (Haarnoja et al. 2018).

Equations are those of "Soft Actor-Critic Algorithms and Applications" (arXiv:1812.05905).
Densities, entropies and the target entropy are those of actions between -1 and 1, see `boxes`.

Network (the actor): observation -> mean and, after it, the logarithm of the deviation of an action
before it is squashed, [batch, 2 * components]. A factory is asked for that many actions; critics
are made by it too, see `networks.ActionValues`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcdi.config.algorithms import DiscreteSACConfig, SACConfig, SACLearnConfig
from hpcdi.policy import gradient_step, networks
from hpcdi.policy.acting.boxes import LOG_STD, SACActing
from hpcdi.policy.boxes import BoxPolicy
from hpcdi.policy.torch_policy import ReplayPolicy

_UPDATES = 1  # stream of random numbers


class SoftActorCritic(ReplayPolicy):
    """What SAC is whatever actions are: critics, their targets, and a temperature, learn in turn.

    An algorithm defines the five methods that follow; `discrete_sac` is one, too.
    """

    _cfg: SACConfig | DiscreteSACConfig
    _learn: SACLearnConfig
    _target_entropy: float

    SCALARS = ("total_loss", "critic_loss", "actor_loss", "q_value", "entropy", "alpha")

    def make_critics(self) -> nn.Module:
        """Returns the critics in one network."""
        raise NotImplementedError

    def prepared(self, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Returns a batch with what else the gradient steps need, drawn outside of graphs."""
        raise NotImplementedError

    def taken_values(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the critics' values of the actions taken, [critics, batch, ...]."""
        raise NotImplementedError

    def improved(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the actor's losses, and ``log pi`` or its mean over actions; both [batch]."""
        raise NotImplementedError

    def following_value(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the soft value of the next observation by the target critics, [batch]."""
        raise NotImplementedError

    def prepare_learning(self) -> None:
        """Critics, their targets, and the temperature; each learns by a step of its own."""
        learn, device = self._cfg.learn, self._device
        self._critics = gradient_step.placed(self.make_critics(), device)
        self._targets = copy.deepcopy(self._critics).requires_grad_(False)
        self._follower = gradient_step.Follower(self._targets, self._critics)
        self._temperature = networks.Number(math.log(learn.alpha)).to(device)
        self._critic_step = self.make_step(self._critics)
        self._temperature_step = self.make_step(self._temperature, decays=False)
        self._values, self._target_values = (
            gradient_step.forward_of(network, learn, device)
            for network in (self._critics, self._targets)
        )
        self._compute = self.replayed(self._learn_from)

    def update(self, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        """A gradient step of the critics, one of the actor, and one of the temperature.

        Args:
            batch: ``observation, action, n_step_return, bootstrap_discount, next_observation`` and,
                where weights are used, ``weight``; each [batch, ...].

        Returns:
            ``total_loss`` (of critics and actor), ``critic_loss, actor_loss, q_value, entropy,
            alpha, cur_lr``, with fp16 ``skipped_steps`` and, where asked for, ``priority``: float32
            array [batch], the absolute TD error, mean of the critics.
        """
        scalars, error = self._compute(self.prepared(batch))
        self._updates += 1
        return self.logged(scalars, error)

    def _learn_from(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The gradient steps; returns `SCALARS`, and absolute errors [batch].

        Args:
            batch: see `prepared`.
        """
        cfg, count = self._cfg, len(batch["n_step_return"])
        of_parts: list[tuple[Tensor, Tensor]] = []  # values and absolute errors
        log_probs: list[Tensor] = []
        lacks: list[Tensor] = []

        def critic_loss(part: Mapping[str, Tensor]) -> Tensor:
            target = self.soft_target(part)
            values = self.taken_values(part)
            errors = self.critic_losses(part, values, target)
            if cfg.priority_IS_weight:
                errors = errors * part["weight"]
            of_parts.append(self.value_and_error(values, target))
            return gradient_step.mean_share(errors, count)

        def actor_loss(part: Mapping[str, Tensor]) -> Tensor:
            losses, log_prob = self.improved(part)
            log_probs.append(log_prob.detach())
            lacks.append(log_prob.detach() + self.wanted_entropy(part))
            loss = gradient_step.mean_share(losses, count)
            return self._extra.added(loss, part, count, log_prob=log_prob)

        def temperature_loss(part: Mapping[str, Tensor]) -> Tensor:
            lack = gradient_step.mean_share(part["lack_of_entropy"], count)
            return -self._temperature.number.exp() * lack  # eq. 18

        of_critics = self._critic_step.gradients(batch, critic_loss)
        self._critic_step.apply()
        of_actor = self._step.gradients(batch, actor_loss)
        self._step.apply()
        log_prob = torch.cat(log_probs)
        alpha = self.alpha
        if cfg.learn.auto_alpha:
            lack_of_entropy = {"lack_of_entropy": torch.cat(lacks)}
            self._temperature_step.gradients(lack_of_entropy, temperature_loss)
            self._temperature_step.apply()
        self._follower.follow(cfg.learn.tau)
        value, error = map(torch.cat, zip(*of_parts, strict=True))
        scalars = (
            of_critics + of_actor,
            of_critics,
            of_actor,
            value.mean(),
            -log_prob.mean(),
            alpha,
            *self._extra.taken(),
        )
        return torch.stack(scalars), error

    def critic_losses(
        self,
        batch: Mapping[str, Tensor],  # noqa: ARG002
        values: Tensor,
        target: Tensor,
    ) -> Tensor:
        """Returns the losses of all critics together, [batch]: eq. 5."""
        return (values - target).square().sum(dim=0)

    def value_and_error(self, values: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Returns a value of each action taken, and its absolute TD error; both [batch]."""
        detached = values.detach()
        return detached.mean(dim=0), (detached - target).abs().mean(dim=0)

    def wanted_entropy(self, batch: Mapping[str, Tensor]) -> Tensor | float:  # noqa: ARG002
        """Returns the entropy that the temperature aims at: one number, or that of each row."""
        return self._target_entropy

    @property
    def alpha(self) -> Tensor:
        """The temperature, without gradients."""
        return self._temperature.number.detach().exp()

    def soft_target(self, batch: Mapping[str, Tensor]) -> Tensor:
        """``y = R + d V'(o')``, [batch]: eq. 2, of n-step return and bootstrap discount."""
        with torch.no_grad():
            values = self.following_value(batch)
            return batch["n_step_return"] + batch["bootstrap_discount"] * values

    def saved_parts(self) -> dict[str, Any]:
        """See `TorchPolicy.saved_parts`."""
        parts = {
            "critics": self._critics,
            "target_critics": self._targets,
            "critic_step": self._critic_step,
        }
        if self._cfg.learn.auto_alpha:  # else it is what is configured
            parts["temperature"] = self._temperature
            parts["temperature_step"] = self._temperature_step
        return parts


class SACPolicy(SACActing, BoxPolicy, SoftActorCritic):
    """SAC, for continuous actions within bounds."""

    _cfg: SACConfig

    def parameters_of(self, output: Tensor, legal: Tensor | None = None) -> Mapping[str, Tensor]:  # noqa: ARG002
        """``mean, log_std`` of what is squashed by tanh, and then scaled to the bounds."""
        mean, log_std = output.chunk(2, dim=1)
        return {"mean": mean, "log_std": log_std.clamp(*LOG_STD)}

    def prepare_learning(self) -> None:
        """See `SoftActorCritic.prepare_learning`; and random numbers."""
        cfg = self._cfg
        entropy = cfg.learn.target_entropy
        self._target_entropy = -float(len(cfg.model.action_low)) if entropy is None else entropy
        self._noise = self.random(_UPDATES)
        super().prepare_learning()

    def make_critics(self) -> nn.Module:
        """See `networks.ActionValues`."""
        return networks.ActionValues(self._cfg.model, critics=2)

    def prepared(self, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """With ``noise, next_noise``: of a standard normal distribution, [batch, components]."""
        count, components = len(batch["n_step_return"]), len(self._box[0])
        drawn = self._noise.standard_normal((2, count, components), dtype=np.float32)
        noise, next_noise = torch.from_numpy(drawn).to(self._device)
        return {**batch, "noise": noise, "next_noise": next_noise}

    def taken_values(self, batch: Mapping[str, Tensor]) -> Tensor:
        """See `SoftActorCritic.taken_values`."""
        values: Tensor = self._values(networks.observation_of(batch), self.taken_actions(batch))
        return values

    def improved(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """See `SoftActorCritic.improved`: eq. 9."""
        observation = networks.observation_of(batch)
        action, log_prob = self.drawn(observation, batch["noise"])
        value = self.value_to_improve(self._values(observation, action))
        return self.alpha * log_prob - value, log_prob

    def value_to_improve(self, values: Tensor) -> Tensor:
        """Returns what the actor is to raise, [batch], of the critics' values of its actions."""
        return values.amin(dim=0)

    def following_value(self, batch: Mapping[str, Tensor]) -> Tensor:
        """``min_i Q'_i(o', a') - alpha log pi(a'|o')``, a' of the policy: eq. 3."""
        following = networks.observation_of(batch, "next_observation")
        action, log_prob = self.drawn(following, batch["next_noise"])
        values: Tensor = self._target_values(following, action).amin(dim=0)
        return values - self.alpha * log_prob

    def drawn(self, observation: networks.Observation, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the policy's actions and their log-density, see `squashed_normal`."""
        output, _ = self._forward(observation, {})
        return squashed_normal(output, noise)

    def saved_parts(self) -> dict[str, Any]:
        """See `TorchPolicy.saved_parts`."""
        return {**super().saved_parts(), "rng": self._noise}


def squashed_normal(output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions between -1 and 1, and the logarithm of their density.

    ``a = tanh(u)``, u of a normal distribution: ``log pi(a) = log N(u) - sum log(1 - tanh(u)^2)``
    (eq. 26), where ``1 - tanh(u)^2 = 4 / (e^u + e^-u)^2`` keeps its digits where u is large.

    Args:
        output: of the actor, [batch, 2 * components].
        noise: of a standard normal distribution, [batch, components].

    Returns:
        [batch, components], [batch].
    """
    mean, log_std = output.chunk(2, dim=1)
    log_std = log_std.clamp(*LOG_STD)
    raw = mean + log_std.exp() * noise
    of_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    of_tanh = 2 * (math.log(2) - raw - torch.nn.functional.softplus(-2 * raw))
    return raw.tanh(), (of_normal - of_tanh).sum(dim=1)
