"""Distributions of actions, sampled in numpy.

An action has parts, see `hpcdi.types.Leaf`, and its probability is the product of theirs:
logarithms and entropies are sums. A network's outputs are the logits of all values of all discrete
components, one component after the other, and behind them the means of all components of Boxes; the
logarithms of the latter's deviations are apart. A mask of legal actions has an entry a logit.
`hpcdi.policy.distributions` has their densities, to learn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from hpcdi.config.algorithms import ActorCriticModelConfig
from hpcdi.policy.spaces import NO_BOUND, action_leaves, bounds_of, rounded
from hpcdi.types import Array, Columns, Leaf

LOG_2_PI = math.log(2 * math.pi)
ILLEGAL = -1e8
"""Logit of an illegal action: its probability is 0, and so are its gradient and its ``p log p``."""


class ActionSampler:
    """Samples the actions of an environment.

    Args:
        leaves: parts of an action.
        scales: of components of Boxes with two bounds, -1..1 of the distribution is between them,
            so that its deviation means the same whatever the unit; else it is in their units.
    """

    def __init__(self, leaves: Sequence[Leaf], *, scales: bool = True) -> None:
        self.leaves = tuple(leaves)
        self.counts = tuple(count for leaf in leaves for count in leaf.counts)
        self.logits = sum(self.counts)
        """How many of a network's outputs are logits; the others are means."""
        self._only = self.leaves[0] if len(leaves) == 1 and not leaves[0].name else None
        boxes = [leaf for leaf in leaves if not leaf.counts]
        self.means = sum(math.prod(leaf.shape) for leaf in boxes)
        self._is_one = self._only is not None and bool(self._only.counts) and not self._only.shape
        self.bounds: tuple[Array, Array] | None = None
        """Of the components of Boxes, float32 [means] each; None: they are not known."""
        if boxes and all(len(leaf.low) == math.prod(leaf.shape) for leaf in boxes):
            bounds = zip(*(bounds_of(x.low, x.high, x.dtype) for x in boxes), strict=True)
            low, high = map(np.hstack, bounds)
            self.bounds = low, high
        self._scale: tuple[Array, Array] | None = None  # middle and half of the width
        if scales and self.bounds is not None:
            least, most = (bound.astype(np.float64) for bound in self.bounds)
            is_bounded = (np.maximum(-least, most) < NO_BOUND) & (most > least)
            least, most = np.where(is_bounded, least, -1.0), np.where(is_bounded, most, 1.0)
            middle, half = (least + most) / 2, (most - least) / 2
            if (middle != 0).any() or (half != 1).any():
                self._scale = middle.astype(np.float32), half.astype(np.float32)
        # where the logits of each component are; filler is behind the last one
        starts = np.cumsum([0, *self.counts[:-1]]) if self.counts else np.zeros(0, np.int64)
        place = starts[:, None] + np.arange(max(self.counts, default=0))
        is_own = np.arange(place.shape[1]) < np.array(self.counts, np.int64)[:, None]
        self._place: Array = np.where(is_own, place, self.logits).astype(np.int64)

    @classmethod
    def of(cls, model: ActorCriticModelConfig) -> Self:
        """That of the actions that a network's settings describe."""
        return cls(action_leaves(model), scales=model.scale_actions)

    # ----------------------------------------------------------------------------------- acting

    def sample(
        self, policy: Sequence[Array], rng: np.random.Generator, legal: Array | None = None
    ) -> Columns:
        """One action for each row.

        Args:
            policy: ``[outputs]``, float32 [envs, outputs], and with Boxes ``[outputs, log_std]``.
            rng: random numbers.
            legal: bool [envs, logits]; None: everything is legal.

        Returns:
            ``action`` [envs, ...] or, of several parts, ``action/<name>``: discrete ones from 0,
            others within their bounds; ``log_prob`` float32 [envs]; with Boxes ``raw_action``
            float32, what was sampled of them before it was scaled and clipped: [envs, ...] of one
            Box, [envs, means] of several parts.
        """
        outputs = policy[0]
        if self._is_one:
            return sample_discrete(masked(outputs, legal), rng)
        drawn: Columns = {}
        chosen = np.zeros((len(outputs), 0), np.int64)
        log_prob = np.zeros(len(outputs), np.float32)
        if self.counts:
            components, most = self._place.shape
            one = sample_discrete(self._by_component(outputs, legal).reshape(-1, most), rng)
            chosen = one["action"].reshape(-1, components)
            log_prob = one["log_prob"].reshape(-1, components).sum(axis=1)
        raw = np.zeros((len(outputs), 0), np.float32)
        if self.means:
            drawn = sample_normal(outputs[:, self.logits :], policy[1], rng)
            raw = drawn["raw_action"]
            log_prob = log_prob + drawn["log_prob"]
            if self._only is not None:
                drawn["raw_action"] = raw.reshape(len(raw), *self._only.shape)
        return {**drawn, **self._actions(chosen, raw), "log_prob": log_prob}

    def _by_component(self, outputs: Array, legal: Array | None) -> Array:
        """Logits of each discrete component's values, [rows, components, most values]."""
        logits = np.full((len(outputs), self.logits + 1), ILLEGAL, np.float32)
        logits[:, :-1] = masked(outputs[:, : self.logits], legal)
        return logits[:, self._place]

    def _actions(self, chosen: Array, raw: Array) -> Columns:
        """Actions [rows, ...] of their discrete [rows, components] and Box [rows, means] parts."""
        box = raw if self._scale is None else self._scale[0] + self._scale[1] * raw
        box = box if self.bounds is None else np.clip(box, *self.bounds)
        actions = {}
        for leaf, part in parts_of(self.leaves, chosen, box):
            action = part.reshape(len(part), *leaf.shape)
            actions[leaf.column("action")] = action if leaf.counts else rounded(action, leaf.dtype)
        return actions

    def best(self, policy: Sequence[Array], legal: Array | None = None) -> Columns:
        """The likeliest actions [rows, ...], within bounds, as `sample` has them."""
        outputs = policy[0]
        if self._is_one:
            return {"action": masked(outputs, legal).argmax(axis=1)}
        chosen = np.zeros((len(outputs), 0), np.int64)
        if self.counts:
            chosen = self._by_component(outputs, legal).argmax(axis=2)
        return self._actions(chosen, outputs[:, self.logits :])


def masked(logits: Array, legal: Array | None) -> Array:
    """Returns logits [rows, values] with those of illegal values at `ILLEGAL`; None: all are."""
    return logits if legal is None else np.where(legal, logits, np.float32(ILLEGAL))


def parts_of(leaves: Sequence[Leaf], chosen: Any, box: Any) -> Any:
    """Yields each leaf and its columns of the discrete or of the Box parts, [batch, components]."""
    first = {True: 0, False: 0}
    for leaf in leaves:
        is_discrete = bool(leaf.counts)
        start = first[is_discrete]
        first[is_discrete] += len(leaf.counts) if is_discrete else math.prod(leaf.shape)
        yield leaf, (chosen if is_discrete else box)[:, start : first[is_discrete]]


def sample_discrete(logits: Array, rng: np.random.Generator) -> Columns:
    """One action for each row, by the inverse of the cumulated probabilities."""
    shifted = logits.T.copy()  # sums over the first axis are quicker
    shifted -= shifted.max(axis=0)
    cumulated = np.cumsum(np.exp(shifted), axis=0)
    total = cumulated[-1]
    drawn = rng.random(len(logits), dtype=np.float32) * total
    # not the last one: a product that is rounded up to the total would be an action too many
    action = (cumulated[:-1] <= drawn).sum(axis=0)
    log_prob = shifted[action, np.arange(len(logits))] - np.log(total)
    return {"action": action, "log_prob": log_prob}


def sample_normal(mean: Array, log_std: Array, rng: np.random.Generator) -> Columns:
    """One action for each row: the mean, and noise of the given deviation."""
    noise = rng.standard_normal(mean.shape, dtype=np.float32)
    log_prob = -(0.5 * noise * noise + log_std).sum(axis=1, dtype=np.float32)
    log_prob -= np.float32(0.5 * LOG_2_PI * mean.shape[1])
    return {"raw_action": mean + np.exp(log_std) * noise, "log_prob": log_prob}
