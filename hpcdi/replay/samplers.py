"""Drawing slots, uniformly or by priority, with their importance weights."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from hpcdi.types import Array

SMALLEST_PRIORITY = 1e-5
"""What lower ones count as: one of 0 would leave all others no importance weight to speak of."""
LARGEST_PRIORITY = 1e30


def positions(rng: np.random.Generator, count: int, size: int) -> Array:
    """Positions below `count`, int64 [size], each as likely as another.

    Scales doubles below 1, which takes half the time of ``rng.integers``. The probability of a
    position is off by at most ``count * 2**-53`` of it, and none is `count`.
    """
    drawn = rng.random(size)
    drawn *= count
    return drawn.astype(np.int64)


def mark_drawn(marks: Array, slots: Array, newest: int, now: int) -> tuple[Array, Array, Array]:
    """Count draws of slots [m]; returns uses, staleness (-1: not known) and ids of their items.

    Args:
        marks: uses of each slot's item, and the train iteration of the policy that made it, int32
            [capacity, 2].
        slots: slots that were drawn; item n lies in slot n mod capacity.
        newest: id of the newest item.
        now: the learner's train iteration.
    """
    np.add.at(marks[:, 0], slots, np.int32(1))
    use, made_at = marks.take(slots, axis=0).T
    staleness = np.subtract(now, made_at, dtype=np.int64)
    if np.count_nonzero(made_at < 0):
        staleness[made_at < 0] = -1
    ids = newest - slots
    ids %= len(marks)
    np.subtract(newest, ids, out=ids)
    return use, staleness, ids


class Draw(NamedTuple):
    """Slots that were drawn, int64 [m], and their importance weights, float32 [m], at most 1."""

    slots: Array
    weights: Array
    heaviest: float
    """``P(k)^-beta`` of the least likely slot k, whose weight is 1; 1 where all weigh 1."""


class PrioritizedSampler:
    """Draws slots in proportion to priority^alpha.

    Proportional prioritized experience replay, Schaul et al. 2016, section 3.3: item i is drawn
    with probability ``P(i) = p_i^alpha / sum_k p_k^alpha``, one draw from each of m strata of equal
    mass, and weighs ``w_i = (N P(i))^-beta / max_k w_k`` (section 3.4, the maximum over all items).

    Args:
        capacity: slots.
        alpha: 0 draws uniformly, 1 in proportion to priority; of what is set from now on.
    """

    def __init__(self, capacity: int, alpha: float) -> None:
        # imports numba, which is slow: only buffers that draw by priority pay for it
        from hpcdi.replay import tree

        self.alpha = alpha
        self._tree = tree.new_tree(capacity)
        self.mark_drawn = mark_drawn
        if isinstance(self._tree, tree.CompiledTree):
            self.mark_drawn = tree.mark_drawn_compiled

    def mass(self) -> Array:
        """Priority^alpha of every slot, float32 [capacity]; 0 where there is nothing to draw."""
        return self._tree.leaves

    def alive(self, slots: Array | int) -> Array:
        """Bool [m]: which of slots [m] can be drawn; or for one slot."""
        is_alive: Array = self._tree.leaves[slots] > 0.0
        return is_alive

    def priority(self, slots: Array) -> Array:
        """Priorities of slots [m] as they were set, to float32's precision; all 1 if alpha is 0."""
        mass = self._tree.leaves[slots].astype(np.float64)
        return mass ** (1 / self.alpha) if self.alpha > 0 else np.sign(mass)

    def set(self, slots: Array, priority: Array | float) -> None:
        """Let slots [m] be drawn, with priorities [m] or one for all."""
        self._tree.set(slots, np.maximum(priority, SMALLEST_PRIORITY) ** self.alpha)

    def set_one(self, slot: int, priority: float) -> None:
        """Let one slot be drawn."""
        self._tree.set_one(slot, max(priority, SMALLEST_PRIORITY) ** self.alpha)

    def remove(self, slots: Array) -> None:
        """Exclude slots [m] from draws."""
        self._tree.set(slots, 0.0)

    def draw(self, size: int, count: int, beta: float, rng: np.random.Generator) -> Draw:  # noqa: ARG002
        """Draw `size` slots, with replacement, in the order of their strata."""
        slots, masses, total, smallest = self._tree.draw(rng.random(size))
        if beta == 0.0:
            return Draw(slots, np.ones(size, dtype=np.float32), 1.0)
        # (N P)^-beta over its maximum: N and the total mass cancel out; all of it in float32
        weights = smallest / masses
        weights **= beta
        return Draw(slots, weights, (total / smallest) ** beta)

    def restore(self, mass: Array) -> None:
        """Restore what `mass` returned."""
        self._tree.fill(mass)


class UniformSampler:
    """Draws every slot with the same probability; weights are 1.

    The slots that can be drawn are consecutive but for removed ones (the ring's live range), so
    most draws hit; those that miss are drawn again.

    Args:
        capacity: slots.
        alpha: exponent of priorities, which it ignores.
    """

    mark_drawn = staticmethod(mark_drawn)

    def __init__(self, capacity: int, alpha: float = 1.0) -> None:
        self.alpha = alpha
        self._alive = np.zeros(capacity, dtype=bool)

    def mass(self) -> Array:
        """1 where a slot can be drawn, else 0."""
        return self._alive.astype(np.float32)

    def alive(self, slots: Array | int) -> Array:
        """Bool [m]: which of slots [m] can be drawn; or for one slot."""
        is_alive: Array = self._alive[slots]
        return is_alive

    def priority(self, slots: Array) -> Array:
        """1 for each of slots [m]."""
        return np.ones(len(slots))

    def set(self, slots: Array, priority: Array | float) -> None:  # noqa: ARG002
        """Let slots [m] be drawn; priorities are not kept."""
        self._alive[slots] = True

    def set_one(self, slot: int, priority: float) -> None:  # noqa: ARG002
        """Let one slot be drawn."""
        self._alive[slot] = True

    def remove(self, slots: Array) -> None:
        """Exclude slots [m] from draws."""
        self._alive[slots] = False

    def draw(self, size: int, count: int, beta: float, rng: np.random.Generator) -> Draw:  # noqa: ARG002
        """Draw `size` slots, with replacement, of `count` that can be drawn."""
        capacity = len(self._alive)
        if 2 * count < capacity:  # rather few: list them instead of missing often
            alive = np.flatnonzero(self._alive)
            slots = alive[positions(rng, len(alive), size)]
        else:
            slots = positions(rng, capacity, size)
            while (missed := np.flatnonzero(~self._alive[slots])).size:
                slots[missed] = positions(rng, capacity, missed.size)
        return Draw(slots, np.ones(size, dtype=np.float32), 1.0)

    def restore(self, mass: Array) -> None:
        """Restore what `mass` returned."""
        self._alive[:] = mass > 0


Sampler: TypeAlias = PrioritizedSampler | UniformSampler
