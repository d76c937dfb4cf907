"""Which slots are drawn, and with which importance weight."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hpcdi.types import Array
from hpcdi.utils.segment_tree import MinTree, SumTree

_SMALLEST_PRIORITY = 1e-6


class Draw(NamedTuple):
    """Slots that were drawn, int64 [m], and their importance weights, float32 [m], at most 1."""

    slots: Array
    weights: Array


class PrioritizedSampler:
    """Draws slots in proportion to priority^alpha.

    Proportional prioritized experience replay, Schaul et al. 2016, section 3.3: item i is drawn
    with probability ``P(i) = p_i^alpha / sum_k p_k^alpha``, one draw from each of m strata of equal
    mass, and weighs ``w_i = (N P(i))^-beta / max_k w_k`` (section 3.4, the maximum over all items).

    Args:
        capacity: slots.
        alpha: 0 draws uniformly, 1 in proportion to priority.
    """

    def __init__(self, capacity: int, alpha: float) -> None:
        self._alpha = alpha
        self._sum = SumTree(capacity)
        self._min = MinTree(capacity)

    def mass(self) -> Array:
        """Priority^alpha of every slot, float64 [capacity]; 0 where there is nothing to draw."""
        return self._sum.values.copy()

    def alive(self, slots: Array) -> Array:
        """Which of slots [m] can be drawn: bool [m]."""
        alive: Array = self._sum.values[slots] > 0.0
        return alive

    def priority(self, slots: Array) -> Array:
        """Priorities of slots [m], as they were set; all 1 where alpha is 0."""
        mass = self._sum.values[slots]
        return mass ** (1 / self._alpha) if self._alpha > 0 else np.sign(mass)

    def set(self, slots: Array, priority: Array | float) -> None:
        """Give slots [m] their priorities."""
        mass = np.maximum(priority, _SMALLEST_PRIORITY) ** self._alpha
        self._sum.update(slots, mass)
        self._min.update(slots, mass)

    def remove(self, slots: Array) -> None:
        """Draw slots [m] no more."""
        self._sum.update(slots, 0.0)
        self._min.update(slots, np.inf)

    def draw(self, size: int, count: int, beta: float, rng: np.random.Generator) -> Draw:  # noqa: ARG002
        """Draw `size` slots, of `count` that can be drawn, in the order of their strata."""
        total = self._sum.reduce()
        mass = (np.arange(size) + rng.random(size)) * (total / size)
        slots = self._sum.find(mass)
        if beta == 0.0:
            return Draw(slots, np.ones(size, dtype=np.float32))
        drawn = self._sum.values[slots]
        # (N P)^-beta over its maximum: N and the total mass cancel out
        weights = (self._min.reduce() / drawn) ** beta
        return Draw(slots, weights.astype(np.float32))

    def restore(self, mass: Array) -> None:
        """Take the masses of a saved sampler."""
        self._sum.fill(mass)
        self._min.fill(np.where(mass > 0, mass, np.inf))


class UniformSampler:
    """Draws every slot with the same probability; weights are 1.

    The slots that can be drawn are consecutive but for removed ones (the ring's live range), so
    most draws hit; those that miss are drawn again.

    Args:
        capacity: slots.
    """

    def __init__(self, capacity: int) -> None:
        self._alive = np.zeros(capacity, dtype=bool)

    def mass(self) -> Array:
        """1 where a slot can be drawn, else 0; float64 [capacity]."""
        return self._alive.astype(np.float64)

    def alive(self, slots: Array) -> Array:
        """Which of slots [m] can be drawn: bool [m]."""
        alive: Array = self._alive[slots]
        return alive

    def priority(self, slots: Array) -> Array:
        """1 for each of slots [m]."""
        return np.ones(len(slots))

    def set(self, slots: Array, priority: Array | float) -> None:  # noqa: ARG002
        """Slots [m] can be drawn."""
        self._alive[slots] = True

    def remove(self, slots: Array) -> None:
        """Draw slots [m] no more."""
        self._alive[slots] = False

    def draw(self, size: int, count: int, beta: float, rng: np.random.Generator) -> Draw:  # noqa: ARG002
        """Draw `size` slots, of `count` that can be drawn, with replacement."""
        capacity = len(self._alive)
        if 2 * count < capacity:  # rather few: list them instead of missing often
            alive = np.flatnonzero(self._alive)
            slots = alive[rng.integers(0, len(alive), size)]
        else:
            slots = rng.integers(0, capacity, size)
            while (missed := np.flatnonzero(~self._alive[slots])).size:
                slots[missed] = rng.integers(0, capacity, missed.size)
        return Draw(slots, np.ones(size, dtype=np.float32))

    def restore(self, mass: Array) -> None:
        """Take the masses of a saved sampler."""
        self._alive[:] = mass > 0
