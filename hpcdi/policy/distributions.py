"""Distributions of actions in torch: their densities, to learn; `acting.sampling` samples them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hpcdi.policy.acting.sampling import ILLEGAL, LOG_2_PI, ActionSampler, parts_of
from hpcdi.policy.networks import as_vectors
from hpcdi.policy.spaces import is_whole
from hpcdi.types import Leaf


class ActionDistribution(ActionSampler):
    """Distribution of the actions of an environment; see `ActionSampler` for its arguments."""

    def __init__(self, leaves: Sequence[Leaf], *, scales: bool = True) -> None:
        super().__init__(leaves, scales=scales)
        self._places: dict[torch.device, Tensor] = {}  # `_place` on other devices than the CPU

    def greedy(self, policy: Sequence[Tensor], legal: Tensor | None = None) -> Any:
        """The likeliest actions [batch, ...], within bounds; of several parts a dict of them."""
        outputs = policy[0]
        if self._is_one:
            return masked_logits(outputs, legal).argmax(dim=1)
        chosen = self._log_probs(outputs, legal).argmax(dim=2) if self.counts else outputs[:, :0]
        box = outputs[:, self.logits :]
        if self._scale is not None:
            middle, half = (torch.from_numpy(part).to(box.device) for part in self._scale)
            box = middle + half * box
        if self.bounds is not None:
            low, high = (torch.from_numpy(bound).to(box.device) for bound in self.bounds)
            box = torch.clamp(box, low, high)
        made = {}
        for leaf, part in parts_of(self.leaves, chosen, box):
            part = part.round() if is_whole(leaf.dtype) and not leaf.counts else part
            made[leaf.name] = part.reshape(part.shape[0], *leaf.shape)
        return made if self._only is None else made[self._only.name]

    def parameters(
        self, policy: Sequence[Tensor], legal: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Returns ``logits`` [batch, logits], illegal ones low; ``mean, log_std`` [batch, means].

        Those of Boxes are in the environment's units; what is drawn is clipped to their bounds.
        """
        found = {}
        if self.counts:
            found["logits"] = masked_logits(policy[0][:, : self.logits], legal)
        if self.means:
            mean = policy[0][:, self.logits :]
            log_std = policy[1].expand_as(mean)
            if self._scale is not None:
                middle, half = (torch.from_numpy(part).to(mean.device) for part in self._scale)
                mean, log_std = middle + half * mean, log_std + half.log()
            found |= {"mean": mean, "log_std": log_std}
        return found

    def log_prob_entropy(
        self, policy: Sequence[Tensor], columns: Mapping[str, Any], legal: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logarithm of each action's probability (density), and the entropy: sums over its parts.

        Args:
            policy: ``[outputs]`` and with Boxes ``[outputs, log_std]``, as of the network.
            columns: actions as `sample` returned them, and with Boxes ``raw_action``.
            legal: bool [batch, logits]; None: everything was legal.

        Returns:
            Both [batch].
        """
        outputs = policy[0]
        if self._is_one:
            action = columns["action"].reshape(len(outputs))
            return log_prob_entropy([masked_logits(outputs, legal)], action)
        log_prob = entropy = outputs.new_zeros(len(outputs))
        if self.counts:
            log_probs = self._log_probs(outputs, legal)
            action = self._chosen(columns).unsqueeze(2)
            log_prob = log_probs.gather(2, action).sum(dim=(1, 2))
            entropy = -(log_probs.exp() * log_probs).sum(dim=(1, 2))
        if self.means:
            of_box = log_prob_entropy([outputs[:, self.logits :], policy[1]], columns["raw_action"])
            log_prob, entropy = log_prob + of_box[0], entropy + of_box[1]
        return log_prob, entropy

    def log_prob_of_given(
        self, outputs: Tensor, columns: Mapping[str, Any], legal: Tensor | None = None
    ) -> Tensor:
        """Logarithm of the probability (density) of given actions, [batch].

        Those of Boxes have a deviation of 1.

        Args:
            outputs: of the network.
            columns: the actions.
            legal: see `log_prob_entropy`.
        """
        policy = [outputs]
        if self.means:
            policy.append(outputs.new_zeros(self.means))
            columns = {**columns, "raw_action": self.raw_of(columns)}
        log_prob, _ = self.log_prob_entropy(policy, columns, legal)
        return log_prob

    def raw_of(self, columns: Mapping[str, Tensor]) -> Tensor:
        """Returns what `sample` would have drawn for the Boxes of given actions, [batch, means]."""
        boxes = [leaf.column("action") for leaf in self.leaves if not leaf.counts]
        raw = torch.cat([as_vectors(columns[name].float()) for name in boxes], dim=1)
        if self._scale is None:
            return raw
        middle, half = (torch.from_numpy(part).to(raw.device) for part in self._scale)
        return (raw - middle) / half

    def _log_probs(self, outputs: Tensor, legal: Tensor | None) -> Tensor:
        """Of each value of each discrete component, [batch, components, most values]."""
        logits = masked_logits(outputs[:, : self.logits], legal)
        logits = torch.nn.functional.pad(logits, (0, 1), value=ILLEGAL)
        return torch.nn.functional.log_softmax(logits[:, self._place_on(logits.device)], dim=2)

    def _place_on(self, device: torch.device) -> Tensor:
        """Returns `_place` on a device, where it is copied once: a CUDA graph copies nothing."""
        if device.type == "cpu":
            return torch.from_numpy(self._place)
        if device not in self._places:
            with torch.inference_mode(mode=False):  # updates take it, too
                self._places[device] = torch.from_numpy(self._place).to(device)
        return self._places[device]

    def _chosen(self, columns: Mapping[str, Tensor]) -> Tensor:
        """The discrete parts of actions, int64 [batch, components]."""
        names = [leaf.column("action") for leaf in self.leaves if leaf.counts]
        return torch.cat([as_vectors(columns[name]) for name in names], dim=1).long()


def masked_logits(logits: Tensor, legal: Tensor | None) -> Tensor:
    """Returns logits [rows, values] with those of illegal values at `ILLEGAL`; None: all are."""
    return logits if legal is None else logits.masked_fill(~legal.bool(), ILLEGAL)


def log_prob_entropy(policy: Sequence[Tensor], action: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithm of each action's probability (density), and each distribution's entropy.

    Args:
        policy: ``[logits]``: ``log softmax(l)[a]`` and ``-sum p log p``. Or ``[mean, log_std]``, a
            normal distribution of independent components: ``-sum (a - m)^2 / 2 s^2 + log s +
            log(2 pi) / 2`` and ``sum log s + (1 + log(2 pi)) / 2``.
        action: discrete [batch], or continuous [batch, ...].

    Returns:
        Both [batch].
    """
    if len(policy) == 1:
        log_probs = torch.nn.functional.log_softmax(policy[0], dim=1)
        chosen = log_probs.gather(1, action.long().unsqueeze(1)).squeeze(1)
        return chosen, -(log_probs.exp() * log_probs).sum(dim=1)
    mean, log_std = policy
    away = (action.reshape(mean.shape) - mean) * torch.exp(-log_std)
    log_prob = -(0.5 * away.square() + log_std + 0.5 * LOG_2_PI).sum(dim=1)
    entropy = (log_std + 0.5 * (1 + LOG_2_PI)).sum(dim=-1)
    return log_prob, entropy.expand(len(mean))
