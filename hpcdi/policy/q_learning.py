"""The Q-learning update, in torch: double Q-learning with a target network."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpcdi.policy.gradient_step import GradientStep, cut, forward_of, mean_share, placed
from hpcdi.policy.settings import StepConfig


@dataclass(frozen=True, kw_only=True)
class QUpdate(StepConfig):
    """Settings of the update."""

    learning_rate: float
    target_update_freq: int
    double: bool
    loss: str
    use_weights: bool
    """Weigh samples by ``weight``."""
    give_priority: bool
    """Return each sample's priority."""

    @classmethod
    def of(cls, learn: Any, *, use_weights: bool, give_priority: bool) -> QUpdate:
        """From a policy's ``learn`` settings, which have all others."""
        own: dict[str, Any] = {"use_weights": use_weights, "give_priority": give_priority}
        names = {field.name for field in dataclasses.fields(cls)} - own.keys()
        return cls(**own, **{name: getattr(learn, name) for name in names})


class QLearner:
    """A Q-network that learns.

    The target is ``y = R + d * Q'(o', argmax_a Q(o', a))`` (van Hasselt et al. 2016), where R is
    the n-step return, d the bootstrap discount and Q' the target network, a copy of Q that is
    renewed every `target_update_freq` updates.

    Where there are several learners they learn as one would from the batches of all, which must be
    of one size; all that is returned is of this learner's own batch.

    Args:
        network: observation [batch, ...] -> values [batch, actions].
        settings: of the update.
        device: where to learn.
    """

    def __init__(self, network: nn.Module, settings: QUpdate, device: torch.device) -> None:
        self.network = placed(network, device)
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        optimizer = torch.optim.Adam(
            self.network.parameters(), lr=settings.learning_rate, fused=True
        )
        self.step = GradientStep(self.network, optimizer, settings, device)
        self.updates = 0
        self._values = forward_of(self.network, settings, device)
        self._target_values = forward_of(self.target, settings, device)
        self._settings = settings
        self._device = device

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Of the network."""
        return self.step.optimizer

    def update(self, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        """One gradient step.

        Args:
            batch: ``observation, action, n_step_return, bootstrap_discount, next_observation`` and,
                where weights are used, ``weight``; each [batch, ...]. Where not all actions are
                legal, ``next_action_mask``: bool [batch, actions], any where nothing is
                bootstrapped.

        Returns:
            ``total_loss``, ``q_value``, ``cur_lr``, with fp16 ``skipped_steps`` and, where asked
            for, ``priority``: float32 array [batch], the absolute TD error.
        """
        batch = {name: tensor.to(self._device, non_blocking=True) for name, tensor in batch.items()}
        count = len(batch["action"])
        seen: list[tuple[Tensor, ...]] = []

        def loss_of(part: Mapping[str, Tensor]) -> Tensor:
            errors, value, target = self._errors(part)
            loss = mean_share(errors, count)
            seen.append((loss.detach(), value.detach(), target))
            return loss

        self.step.gradients(cut(batch, self._settings.accumulate), loss_of)
        self.step.apply()
        self.updates += 1
        if self.updates % self._settings.target_update_freq == 0:
            self.target.load_state_dict(self.network.state_dict())
        loss, value, target = seen[0] if len(seen) == 1 else _joined(seen)
        info: dict[str, Any] = {
            "total_loss": loss.item(),
            "q_value": value.mean().item(),
            "cur_lr": self._settings.learning_rate,
            **self.step.scalars(),
        }
        if self._settings.give_priority:
            info["priority"] = (target - value).abs().cpu().numpy()
        return info

    def _errors(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Of each sample: the error of its value (weighted), the value, its target."""
        target = self._target(batch)
        values = self._values(batch["observation"])
        value = values.gather(1, batch["action"].long().unsqueeze(1)).squeeze(1)
        if self._settings.loss == "huber":
            errors = functional.smooth_l1_loss(value, target, reduction="none")
        else:
            errors = functional.mse_loss(value, target, reduction="none")
        return (errors * batch["weight"] if self._settings.use_weights else errors), value, target

    @torch.no_grad()
    def _target(self, batch: Mapping[str, Tensor]) -> Tensor:
        following = batch["next_observation"]
        values = self._target_values(following)
        choosing = self._values(following) if self._settings.double else values
        legal = batch.get("next_action_mask")
        if legal is not None:
            choosing = choosing.masked_fill(~legal.bool(), -torch.inf)
        # of an end, where nothing is legal, it is some finite value that counts 0 times
        bootstrap = values.gather(1, choosing.argmax(dim=1, keepdim=True)).squeeze(1)
        target: Tensor = batch["n_step_return"] + batch["bootstrap_discount"] * bootstrap
        return target


def _joined(seen: list[tuple[Tensor, ...]]) -> tuple[Tensor, Tensor, Tensor]:
    """The batch's loss, values and targets from those of its parts."""
    losses, values, targets = zip(*seen, strict=True)
    return torch.stack(losses).sum(), torch.cat(values), torch.cat(targets)
