"""DQN: off-policy learning of action values (Mnih et al. 2015).

Double (van Hasselt et al. 2016), dueling (Wang et al. 2016), n-step (Sutton and Barto 2018, 7.1),
prioritized (Schaul et al. 2016) and noisy (Fortunato et al. 2018), as configured; with the
exploration of Ape-X (Horgan et al. 2018). Read `torch_policy` for what is not here.

Network: observation -> value of each action, float32 [batch, actions].
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hpcdi.config.algorithms import DQNLearnConfig, DQNModelConfig
from hpcdi.policy import gradient_step, networks
from hpcdi.policy.acting.dqn import DQNActing
from hpcdi.policy.sequences import Sequences
from hpcdi.policy.torch_policy import ReplayPolicy
from hpcdi.types import ACTION_MASK

_LEARNING = 1  # stream of random numbers


class DQNPolicy(DQNActing, ReplayPolicy):
    """DQN, for discrete actions, with or without masks of legal ones.

    Where there are several learners they learn as one would from the batches of all, which must be
    of one size; scalars and priorities are of each learner's own batch.
    """

    _learn: DQNLearnConfig

    _of_sequences: dict[str, Any] | None = None
    """What an extra loss is given where `losses` has unrolled sequences, see `extra.Outputs`."""

    OUTPUTS = ("action", "values")
    SCALARS = ("total_loss", "q_value")

    def make_network(self) -> nn.Module:
        """See the module's docstring."""
        return values_network(self._cfg.model)

    # ----------------------------------------------------------------------------------- acting

    def prepare_acting(self) -> None:
        """Exploration, also by the noise of noisy layers."""
        super().prepare_acting()
        self._exploring = networks.Noise(self._rng, self._model)

    def greedy(self, output: Tensor, legal: Tensor | None = None) -> tuple[Tensor, ...]:
        """Actions int64 [batch], and the values that they follow from."""
        if legal is not None:
            output = output.masked_fill(~legal, -torch.inf)
        return output.argmax(dim=1), output

    # ---------------------------------------------------------------------------------- learning

    def prepare_learning(self) -> None:
        """Make the target network, a copy renewed every `target_update_freq` updates; and noise."""
        learn = self._cfg.learn
        self._target = copy.deepcopy(self._model).requires_grad_(False)
        self.target_forward = gradient_step.forward_of(self._target, learn, self._device)
        self._noise = networks.Noise(self.random(_LEARNING), self._model, self._target)
        self._compute = self.replayed(self._learn_from)

    def update(self, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        """One gradient step.

        Args:
            batch: ``observation, action, n_step_return, bootstrap_discount, next_observation`` and,
                where weights are used, ``weight``; each [batch, ...]. Where not all actions are
                legal, ``next_action_mask``: bool [batch, actions], any where nothing is
                bootstrapped.

        Returns:
            ``total_loss``, ``q_value``, ``cur_lr``, with fp16 ``skipped_steps`` and, where asked
            for, ``priority``: float32 array [batch].
        """
        with self._noise:
            scalars, priority = self._compute(batch)
        self._updates += 1
        if self._updates % self._learn.target_update_freq == 0:
            self._target.load_state_dict(self._model.state_dict())
        return self.logged(scalars, priority)

    def _learn_from(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """One gradient step; returns `SCALARS`, and priorities [batch]."""
        count = len(batch["action"])
        of_parts: list[tuple[Tensor, Tensor]] = []  # values and priorities

        def loss_of(part: Mapping[str, Tensor]) -> Tensor:
            losses, value, priority = self.losses(part)
            if self._cfg.priority_IS_weight:
                losses = losses * part["weight"]  # Schaul et al. 2016, 3.4
            of_parts.append((value.detach(), priority.detach()))
            loss = gradient_step.mean_share(losses, count)
            return self._extra.added(loss, part, count, **(self._of_sequences or {"value": value}))

        loss = self._step.gradients(batch, loss_of)
        self._step.apply()
        value, priority = of_parts[0]
        if len(of_parts) > 1:
            value, priority = map(torch.cat, zip(*of_parts, strict=True))
        return torch.stack((loss, value.mean(), *self._extra.taken())), priority

    def losses(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, value of the action taken, and priority: the absolute TD error; each [batch]."""
        target = self.td_target(batch)
        values, _ = self._forward(networks.observation_of(batch), {})
        value = taken(values, batch["action"])
        priority = (target - value).abs()  # Schaul et al. 2016, 3.3
        return self.td_losses(value, target), value, priority

    def td_losses(self, value: Tensor, target: Tensor) -> Tensor:
        """Losses of the TD error by `learn.loss`, one a value: [batch], or of any shape."""
        if self._cfg.learn.loss == "huber":  # its gradient clipped to [-1, 1] (Mnih et al. 2015)
            return nn.functional.smooth_l1_loss(value, target, reduction="none")
        return nn.functional.mse_loss(value, target, reduction="none")

    def td_target(self, batch: Mapping[str, Tensor]) -> Tensor:
        """``y = R + d Q'(o', argmax_a Q(o', a))`` (van Hasselt et al. 2016, eq. 4), [batch].

        R is the n-step return, d the bootstrap discount and Q' the target network; not double,
        Q' chooses too (eq. 3).
        """
        with torch.no_grad():
            values, action = self.following(batch)
            bootstrap = taken(values, action)
            target: Tensor = batch["n_step_return"] + batch["bootstrap_discount"] * bootstrap
        return target

    def following(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The target network's output for the next observation, and the action chosen there."""
        output, _ = self.target_forward(networks.observation_of(batch, "next_observation"), {})
        choosing = output
        if self._cfg.learn.double:
            choosing, _ = self._forward(networks.observation_of(batch, "next_observation"), {})
        legal = batch.get("next_action_mask")
        # after a terminal step nothing is legal: some finite value, which the discount of 0 removes
        action, *_ = self.greedy(choosing, None if legal is None else legal.bool())
        return output, action

    def following_each(
        self, sequences: Sequences, values: Tensor, batch: Mapping[str, Tensor]
    ) -> Tensor:
        """The target network's values of the actions chosen in each step, [sequences, steps].

        Args:
            sequences: of the batch.
            values: of the network, [sequences, steps, actions].
            batch: with ``action_mask`` where not all actions are legal.
        """
        target = sequences.unrolled(self.target_forward)
        choosing = values if self._cfg.learn.double else target
        legal = batch.get(ACTION_MASK)
        mask = None if legal is None else legal.bool().flatten(0, 1)
        action, *_ = self.greedy(choosing.flatten(0, 1), mask)
        return taken(target, action.view(target.shape[:2]))

    def of_action(self, output: Tensor, action: Tensor) -> Tensor:
        """Returns the outputs of one action each, [batch, outputs], of those of all actions."""
        rows = torch.arange(len(action), device=action.device)
        chosen: Tensor = self.by_action(output)[rows, action.long()]
        return chosen

    def saved_parts(self) -> dict[str, Any]:
        """See `TorchPolicy.saved_parts`."""
        return {"target_model": self._target, "rng": self._noise.rng}

    def _load_state_dict_learn(self, state_dict: dict[str, Any]) -> None:
        super()._load_state_dict_learn({"target_model": state_dict["model"], **state_dict})


def values_network(model: DQNModelConfig) -> nn.Module:
    """Make the network that the settings describe: as many outputs as all actions have."""
    outputs = dataclasses.replace(model, action_shape=model.actions * model.outputs)
    return networks.make_network(outputs, "dueling_q" if model.dueling else "q")


def taken(values: Tensor, action: Tensor) -> Tensor:
    """Returns the values [...] of the actions taken [...], of those of all actions [..., n]."""
    return values.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)
