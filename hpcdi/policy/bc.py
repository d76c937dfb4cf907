"""BC: behaviour cloning, supervised learning of the actions in given data (Pomerleau 1991).

The likelihood of actions is raised: of discrete ones that of a categorical distribution (cross
entropy), of a Box's that of a normal one with a deviation of 1 (squared error), and of actions of
several parts the product of theirs. Rewards are not looked at.

Network: observation -> logits of all discrete components, and behind them the means of all
components of Boxes, -1 to 1 between their bounds, float32 [batch, outputs].
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from hpcdi.policy import gradient_step, networks
from hpcdi.policy.acting.bc import BCActing
from hpcdi.policy.distributions import ActionDistribution
from hpcdi.policy.torch_policy import TorchPolicy
from hpcdi.types import ACTION_MASK


class BCPolicy(BCActing, TorchPolicy):
    """Behaviour cloning, for actions of every space, with or without masks of legal ones."""

    def make_network(self) -> nn.Module:
        """See the module's docstring; a factory is asked for so many actions as it has outputs."""
        model = self._cfg.model
        outputs = dataclasses.replace(model, action_shape=networks.action_size(model))
        return networks.make_network(outputs, "linear")

    @functools.cached_property
    def distribution(self) -> ActionDistribution:
        """Of actions, by the network's output."""
        return ActionDistribution.of(self._cfg.model)

    def greedy(self, output: Tensor, legal: Tensor | None = None) -> tuple[Any, ...]:
        """The likeliest actions [batch, ...], legal and within bounds."""
        return (self.distribution.greedy([output], legal),)

    def update(self, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        """One gradient step.

        Args:
            batch: ``observation, action`` and, where there are masks, ``action_mask``; each [batch,
                ...].

        Returns:
            ``total_loss``, the mean of ``-log p(a|o)``, ``cur_lr`` and, with fp16,
            ``skipped_steps``.
        """
        count = len(next(iter(batch.values())))

        def loss_of(part: Mapping[str, Tensor]) -> Tensor:
            output, _ = self._forward(networks.observation_of(part), {})
            legal = part.get(ACTION_MASK)
            log_prob = self.distribution.log_prob_of_given(output, part, legal)
            loss = gradient_step.mean_share(-log_prob, count)
            return self._extra.added(loss, part, count, log_prob=log_prob)

        loss = self._step.gradients(batch, loss_of)
        self._step.apply()
        self._updates += 1
        info = {"total_loss": loss.item(), "cur_lr": self._learn.learning_rate}
        return {**info, **self._step.scalars(), **self._extra.logs()}
