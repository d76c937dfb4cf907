"""TD3: off-policy learning of a deterministic policy of continuous actions (Fujimoto et al. 2018).

With ``learn: {critics: 1, policy_delay: 1, target_noise: 0}`` it is DDPG (Lillicrap et al. 2016).
Equations and sections are those of arXiv:1802.09477. Actions of networks are scaled as in `boxes`.

Network (the actor): observation -> an action before it is squashed by tanh, [batch, components].
A factory is asked for that many actions; critics are made by it too, see `networks.ActionValues`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcdi.config.algorithms import TD3Config, TD3LearnConfig
from hpcdi.policy import gradient_step, networks
from hpcdi.policy.acting.boxes import TD3Acting
from hpcdi.policy.boxes import BoxPolicy

_UPDATES = 1  # stream of random numbers
_OF_CRITICS = ("total_loss", "q_value")


class TD3Policy(TD3Acting, BoxPolicy):
    """TD3, for continuous actions within bounds."""

    ACTOR_OUTPUTS = 1
    SCALARS = ("total_loss", "actor_loss", "q_value")
    _cfg: TD3Config
    _learn: TD3LearnConfig

    def prepare_learning(self) -> None:
        """Critics, which learn by a step of their own, and targets of actor and critics."""
        super().prepare_learning()
        cfg, device = self._cfg, self._device
        critics = networks.ActionValues(cfg.model, cfg.learn.critics)
        self._critics = gradient_step.placed(critics, device)
        self._critic_step = self.make_step(self._critics)
        self._target_actor, self._target_critics = (
            copy.deepcopy(network).requires_grad_(False) for network in (self._model, self._critics)
        )
        self._followers = (
            gradient_step.Follower(self._target_actor, self._model),
            gradient_step.Follower(self._target_critics, self._critics),
        )
        self._values, self._next_actions, self._next_values = (
            gradient_step.forward_of(network, cfg.learn, device)
            for network in (self._critics, self._target_actor, self._target_critics)
        )
        self._noise = self.random(_UPDATES)
        self._critics_compute = self.replayed(self._critics_learn)
        self._actor_compute = self.replayed(self._actor_learns)

    def update(self, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        """A gradient step of the critics and, every `policy_delay` times, one of the actor.

        Args:
            batch: ``observation, action, n_step_return, bootstrap_discount, next_observation`` and,
                where weights are used, ``weight``; each [batch, ...].

        Returns:
            ``total_loss`` (of the critics), ``q_value, cur_lr``, where the actor has learnt
            ``actor_loss``, with fp16 ``skipped_steps`` and, where asked for, ``priority``: float32
            array [batch], the absolute TD error, mean of the critics.
        """
        count, components = len(batch["n_step_return"]), len(self._box[0])
        drawn = self._noise.standard_normal((count, components), dtype=np.float32)
        noise = torch.from_numpy(drawn).to(self._device)
        scalars, error = self._critics_compute({**batch, "noise": noise})
        self._updates += 1
        info: dict[str, Any] = dict(zip(_OF_CRITICS, scalars.tolist(), strict=True))
        if self._cfg.priority:
            info["priority"] = error.cpu().numpy()
        if self._updates % self._cfg.learn.policy_delay == 0:
            (of_actor,) = self._actor_compute(batch)
            names = ("actor_loss", *self._extra.names)
            info |= zip(names, of_actor.tolist(), strict=True)
        return {**info, "cur_lr": self._learn.learning_rate, **self._critic_step.scalars()}

    @property
    def extra_loss_every(self) -> int:
        """Those between two steps of the actor, whose loss it is added to."""
        return self._cfg.learn.policy_delay

    def _critics_learn(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The critics' gradient step; returns `_OF_CRITICS`, and absolute errors [batch].

        Args:
            batch: see `update`; and ``noise``, of a standard normal distribution, [batch,
                components].
        """
        cfg, count = self._cfg, len(batch["n_step_return"])
        batch = {**batch, "action": self.taken_actions(batch)}
        of_parts: list[tuple[Tensor, Tensor]] = []  # values and absolute errors

        def loss_of(part: Mapping[str, Tensor]) -> Tensor:
            target = self.td_target(part)
            values = self._values(networks.observation_of(part), part["action"])
            errors = (values - target).square().sum(dim=0)  # of all critics
            if cfg.priority_IS_weight:
                errors = errors * part["weight"]
            detached = values.detach()
            of_parts.append((detached.mean(dim=0), (detached - target).abs().mean(dim=0)))
            return gradient_step.mean_share(errors, count)

        loss = self._critic_step.gradients(batch, loss_of)
        self._critic_step.apply()
        value, error = map(torch.cat, zip(*of_parts, strict=True))
        return torch.stack((loss, value.mean())), error

    def _actor_learns(self, batch: Mapping[str, Tensor]) -> tuple[Tensor]:
        """The actor's gradient step; the targets follow. Returns its scalars."""
        count = len(batch["n_step_return"])

        def loss_of(part: Mapping[str, Tensor]) -> Tensor:
            output, _ = self._forward(networks.observation_of(part), {})
            values = self._values(networks.observation_of(part), output.tanh())[0]
            loss = gradient_step.mean_share(-values, count)  # section 5.2: of the first critic
            return self._extra.added(loss, part, count)

        loss = self._step.gradients(batch, loss_of)
        self._step.apply()
        for follower in self._followers:
            follower.follow(self._cfg.learn.tau)
        return (torch.stack((loss, *self._extra.taken())),)

    def td_target(self, batch: Mapping[str, Tensor]) -> Tensor:
        """``y = R + d min_i Q'_i(o', a' + noise)``, a' of the target actor, [batch].

        Eq. 10 and 14; R is the n-step return, d the bootstrap discount, Q' the target critics.
        """
        learn, following = self._cfg.learn, networks.observation_of(batch, "next_observation")
        limit = learn.target_noise_clip
        with torch.no_grad():
            output, _ = self._next_actions(following, {})
            noise = (learn.target_noise * batch["noise"]).clamp(-limit, limit)
            action = (output.tanh() + noise).clamp(-1, 1)
            values = self._next_values(following, action).amin(dim=0)
            target: Tensor = batch["n_step_return"] + batch["bootstrap_discount"] * values
        return target

    def saved_parts(self) -> dict[str, Any]:
        """See `TorchPolicy.saved_parts`."""
        return {
            "target_actor": self._target_actor,
            "critics": self._critics,
            "target_critics": self._target_critics,
            "critic_step": self._critic_step,
            "rng": self._noise,
        }

    def _load_state_dict_learn(self, state_dict: dict[str, Any]) -> None:
        super()._load_state_dict_learn({"target_actor": state_dict["model"], **state_dict})
