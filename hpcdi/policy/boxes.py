"""What algorithms for continuous actions within bounds share; the actions are those of a Box.

The actions that networks see are between -1 and 1, those of the environment between its bounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from hpcdi.config.policy import ContinuousConfig
from hpcdi.policy import networks
from hpcdi.policy.acting.boxes import BoxActing
from hpcdi.policy.spaces import as_shape, box_of, is_whole
from hpcdi.policy.torch_policy import ReplayPolicy


class BoxPolicy(BoxActing, ReplayPolicy):
    """Base of SAC, TQC, CQL, IQL and TD3: their actor, how it acts, and how actions are scaled.

    The actor's first outputs [batch, components] are the best action before it is squashed by tanh.
    """

    _cfg: ContinuousConfig

    ACTOR_OUTPUTS: ClassVar[int] = 2
    """Of the actor, for each component: 2 are that action and the logarithm of a deviation."""

    def make_network(self) -> nn.Module:
        """The actor; a factory is asked for so many actions as it has outputs."""
        model = self._cfg.model
        size = self.ACTOR_OUTPUTS * networks.action_size(model)
        return networks.make_network(dataclasses.replace(model, action_shape=size), "linear")

    def greedy(self, output: Tensor, legal: Tensor | None = None) -> tuple[Tensor, ...]:  # noqa: ARG002
        """The best actions [batch, ...]."""
        middle, half, low, high = (
            torch.from_numpy(part).to(output.device)
            for part in (self._middle, self._half, *self._bounds)
        )
        action = torch.clamp(middle + half * output[:, : len(half)].tanh(), low, high)
        action = action.round() if is_whole(self._cfg.model.action_dtype) else action
        return (action.reshape(-1, *as_shape(self._cfg.model.action_shape)),)

    def prepare_learning(self) -> None:
        """Bounds of actions, on the learner's device."""
        box = box_of(self._cfg.model.action_low, self._cfg.model.action_high)
        self._box = [torch.from_numpy(part).to(self._device) for part in box]
        super().prepare_learning()

    def taken_actions(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns a batch's actions between -1 and 1, [batch, components]."""
        middle, half = self._box
        half = torch.where(half == 0, 1.0, half)  # of bounds that are one point
        return (networks.as_vectors(batch["action"]).float() - middle) / half
