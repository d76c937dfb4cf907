"""Which items a buffer holds: ids, slots, uses, ages, and the draw among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hpcdi.types import Array, Columns
from hpcdi.worker.replay_buffer.samplers import PrioritizedSampler, UniformSampler


class Drawn(NamedTuple):
    """Items that were drawn; all of length m."""

    slots: Array
    unique_ids: Array
    weights: Array
    """Importance weights, float32, at most 1."""
    staleness: Array
    """Train iterations between the policy that made the item and now; -1 where not known."""
    use: Array
    """How often each item has been drawn, this draw included."""


class Sample(NamedTuple):
    """Items that were drawn: their columns, and what the index says of them."""

    columns: Columns
    drawn: Drawn


@dataclass
class Counters:
    """Ids in [first, pushed) may be alive; `origin` is the first id since the last clear."""

    pushed: int = 0
    first: int = 0
    origin: int = 0
    alive: int = 0
    max_priority: float = 1.0


class ItemIndex:
    """First in, first out; item n has unique id n and lies in slot ``n mod capacity``.

    So an id alone finds an item, and the id of one that is gone is recognised.

    Args:
        capacity: slots.
        sampler: draws among those that are alive.
        origin: id of its first item.
    """

    def __init__(
        self, capacity: int, sampler: PrioritizedSampler | UniformSampler, origin: int = 0
    ) -> None:
        self.capacity = capacity
        self.counters = Counters(pushed=origin, first=origin, origin=origin)
        self._sampler = sampler
        self._use = np.zeros(capacity, dtype=np.int64)
        self._made_at = np.zeros(capacity, dtype=np.int64)

    def claim(self, count: int) -> Array:
        """Slots for `count` new items (no more than there are slots); the oldest items give way."""
        new = np.arange(self.counters.pushed, self.counters.pushed + count)
        self.evict(self.counters.pushed + count - self.capacity)
        self.counters.pushed += count
        return new % self.capacity

    def admit(self, slots: Array, made_at: Array | int, priority: Array | float | None) -> None:
        """New items can be drawn from now on; None is the largest priority so far."""
        if priority is None:
            priority = self.counters.max_priority
        self._use[slots] = 0
        self._made_at[slots] = made_at
        self._sampler.set(slots, priority)
        self.counters.alive += len(slots)
        self._note_largest(priority)

    def evict(self, before_id: int) -> None:
        """Drop all items whose unique id is below `before_id`."""
        gone = np.arange(self.counters.first, min(before_id, self.counters.pushed))
        if gone.size:
            self.drop(gone % self.capacity)
            self.counters.first = int(gone[-1]) + 1

    def drop(self, slots: Array) -> None:
        """Draw slots [m], all different, no more; those that are gone already are passed over."""
        slots = slots[self._sampler.alive(slots)]
        if slots.size:
            self._sampler.remove(slots)
            self.counters.alive -= len(slots)

    def drop_stale(self, train_iter: int, max_staleness: float) -> None:
        """Drop items whose policy is over `max_staleness` iterations older than `train_iter`."""
        slots = self.living()
        made = self._made_at[slots]
        self.drop(slots[(made >= 0) & (train_iter - made > max_staleness)])

    def drop_used(self, slots: Array, max_use: float) -> None:
        """Drop those of slots [m] that have been drawn `max_use` times."""
        self.drop(np.unique(slots[self._use[slots] >= max_use]))

    def draw(self, size: int, train_iter: int, beta: float, rng: np.random.Generator) -> Drawn:
        """Draw `size` items of those alive; there must be one."""
        slots, weights = self._sampler.draw(size, self.counters.alive, beta, rng)
        return self._describe(slots, weights, train_iter)

    def draw_range(
        self, size: int, train_iter: int, among: slice, rng: np.random.Generator
    ) -> Drawn | None:
        """Draw `size` different items uniformly among a range of those alive, the oldest first."""
        slots = self.living()[among]
        if len(slots) < size:
            return None
        chosen = rng.choice(slots, size, replace=False)
        return self._describe(chosen, np.ones(size, dtype=np.float32), train_iter)

    def reprioritize(self, unique_ids: Array, priorities: Array) -> int:
        """Give items [m] new priorities, but for those that are gone; how many are not."""
        slots = unique_ids % self.capacity
        here = (unique_ids >= self.counters.first) & (unique_ids < self.counters.pushed)
        here &= self._sampler.alive(slots)
        if here.any():
            self._sampler.set(slots[here], priorities[here])
            self._note_largest(priorities[here])
        return int(here.sum())

    def living(self) -> Array:
        """Slots that can be drawn, the oldest item first."""
        slots = np.arange(self.counters.first, self.counters.pushed) % self.capacity
        return slots[self._sampler.alive(slots)]

    def priority(self, slots: Array) -> Array:
        """Priorities of slots [m]."""
        return self._sampler.priority(slots)

    def state_dict(self) -> dict[str, Any]:
        """Everything, copied."""
        return {
            "mass": self._sampler.mass(),
            "use": self._use.copy(),
            "made_at": self._made_at.copy(),
            "counters": vars(self.counters).copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` gave."""
        self._sampler.restore(np.asarray(state["mass"]))
        self._use[:] = state["use"]
        self._made_at[:] = state["made_at"]
        self.counters = Counters(**state["counters"])

    def _describe(self, slots: Array, weights: Array, train_iter: int) -> Drawn:
        np.add.at(self._use, slots, 1)
        newest = self.counters.pushed - 1
        unique_ids = newest - (newest - slots) % self.capacity
        made = self._made_at[slots]
        staleness = np.where(made >= 0, train_iter - made, -1)
        return Drawn(slots, unique_ids, weights, staleness, self._use[slots])

    def _note_largest(self, priority: Array | float) -> None:
        if np.size(priority):
            self.counters.max_priority = max(self.counters.max_priority, float(np.max(priority)))
