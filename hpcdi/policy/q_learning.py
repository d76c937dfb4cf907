"""The Q-learning update, in torch: double Q-learning with a target network."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class QUpdate:
    """Settings of the update."""

    learning_rate: float
    target_update_freq: int
    double: bool
    loss: str
    grad_clip_norm: float
    use_weights: bool
    """Weigh samples by ``weight``."""
    give_priority: bool
    """Return each sample's priority."""


class QLearner:
    """A Q-network that learns.

    The target is ``y = R + d * Q'(o', argmax_a Q(o', a))`` (van Hasselt et al. 2016), where R is
    the n-step return, d the bootstrap discount and Q' the target network, a copy of Q that is
    renewed every `target_update_freq` updates.

    Args:
        network: observation [batch, ...] -> values [batch, actions].
        settings: of the update.
        device: where to learn.
    """

    def __init__(self, network: nn.Module, settings: QUpdate, device: torch.device) -> None:
        self.network = network.to(device)
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), lr=settings.learning_rate, fused=True
        )
        self.updates = 0
        self._settings = settings
        self._device = device

    def update(self, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        """One gradient step.

        Args:
            batch: ``observation, action, n_step_return, bootstrap_discount, next_observation`` and,
                where weights are used, ``weight``; each [batch, ...]. Where not all actions are
                legal, ``next_action_mask``: bool [batch, actions], any where nothing is
                bootstrapped.

        Returns:
            ``total_loss``, ``q_value``, ``cur_lr`` and, where asked for, ``priority``: float32
            array [batch], the absolute TD error.
        """
        batch = {name: tensor.to(self._device, non_blocking=True) for name, tensor in batch.items()}
        target = self._target(batch)
        values = self.network(batch["observation"])
        value = values.gather(1, batch["action"].long().unsqueeze(1)).squeeze(1)
        if self._settings.loss == "huber":
            errors = functional.smooth_l1_loss(value, target, reduction="none")
        else:
            errors = functional.mse_loss(value, target, reduction="none")
        loss = (errors * batch["weight"] if self._settings.use_weights else errors).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._settings.grad_clip_norm > 0:
            nn.utils.clip_grad_norm_(self.network.parameters(), self._settings.grad_clip_norm)
        self.optimizer.step()
        self.updates += 1
        if self.updates % self._settings.target_update_freq == 0:
            self.target.load_state_dict(self.network.state_dict())
        info: dict[str, Any] = {
            "total_loss": loss.item(),
            "q_value": value.detach().mean().item(),
            "cur_lr": self._settings.learning_rate,
        }
        if self._settings.give_priority:
            info["priority"] = (target - value.detach()).abs().cpu().numpy()
        return info

    @torch.no_grad()
    def _target(self, batch: Mapping[str, Tensor]) -> Tensor:
        values = self.target(batch["next_observation"])
        choosing = self.network(batch["next_observation"]) if self._settings.double else values
        legal = batch.get("next_action_mask")
        if legal is not None:
            choosing = choosing.masked_fill(~legal.bool(), -torch.inf)
        # of an end, where nothing is legal, it is some finite value that counts 0 times
        bootstrap = values.gather(1, choosing.argmax(dim=1, keepdim=True)).squeeze(1)
        target: Tensor = batch["n_step_return"] + batch["bootstrap_discount"] * bootstrap
        return target
