"""The prioritized buffer's bookkeeping of items: priority, uses, age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np

from hpcdi.errors import BufferContractError
from hpcdi.replay.base_buffer import Drawn
from hpcdi.replay.ring import Ring
from hpcdi.replay.samplers import LARGEST_PRIORITY, Sampler
from hpcdi.types import Array
from hpcdi.utils.nested import narrowed


class ItemIndex:
    """The items of a ring that can be drawn, with their priorities, uses and policy versions.

    Args:
        ring: where the items lie.
        sampler: draws among those that are alive: neither overwritten nor dropped.
    """

    def __init__(self, ring: Ring, sampler: Sampler) -> None:
        self.alive = 0
        self.max_priority = 1.0
        self._ring, self._sampler = ring, sampler
        self._marks = np.zeros((ring.capacity, 2), dtype=np.int32)  # side by side: one cache miss
        self._use, self._made_at = self._marks.T

    def admit_one(self, slot: int, made_at: int, priority: float | None) -> None:
        """Let the new item in `slot` be drawn; without a priority it has the largest so far."""
        self.alive += not self._sampler.alive(slot)
        self._use[slot] = 0
        self._made_at[slot] = made_at
        if priority is None:
            self._sampler.set_one(slot, self.max_priority)
        else:
            self._sampler.set_one(slot, priority)
            self.max_priority = max(self.max_priority, priority)

    def admit(self, ids: range, made_at: Array | int, priority: Array | None) -> None:
        """Let new items [m] be drawn; without a priority they have the largest so far.

        See `note_largest` for given ones.
        """
        for span in self._ring.spans(ids.start, ids.stop):
            slots = np.arange(span.start, span.stop)
            rows = slice(span.offset, span.offset + len(slots))
            self.alive += len(slots) - int(np.count_nonzero(self._sampler.alive(slots)))
            self._use[span.start : span.stop] = 0
            self._made_at[slots] = made_at if isinstance(made_at, int) else made_at[rows]
            given = self.max_priority if priority is None else priority[rows]
            self._sampler.set(slots, given)

    def drop(self, slots: Array) -> Array:
        """Exclude different slots [m] from draws; returns those that could be drawn before."""
        slots = slots[self._sampler.alive(slots)]
        if slots.size:
            self._sampler.remove(slots)
            self.alive -= len(slots)
        return slots

    def drop_stale(self, train_iter: int, max_staleness: float) -> Array:
        """Drop items whose policy is over `max_staleness` iterations older than `train_iter`."""
        slots = self.living()
        made = self._made_at[slots]
        return self.drop(slots[(made >= 0) & (train_iter - made > max_staleness)])

    def drop_used(self, slots: Array, max_use: float) -> Array:
        """Drop those of slots [m] that have been drawn `max_use` times."""
        return self.drop(np.unique(slots[self._use[slots] >= max_use]))

    def draw(self, size: int, train_iter: int, beta: float, rng: np.random.Generator) -> Drawn:
        """Draw `size` items of those alive; there must be one."""
        slots, weights = self._sampler.draw(size, self.alive, beta, rng)
        return self._describe(slots, weights, train_iter)

    def draw_range(
        self, size: int, train_iter: int, among: slice, rng: np.random.Generator
    ) -> Drawn | None:
        """Draw `size` different items uniformly among a range of those alive, the oldest first."""
        span = range(self.alive)[among]
        if len(span) < size:
            return None
        places = span.start + span.step * rng.choice(len(span), size, replace=False)
        if self.alive == len(self._ring):
            chosen = self._ring.slots_of(self._ring.first + places)
        else:
            chosen = self.living()[places]
        return self._describe(chosen, np.ones(size, dtype=np.float32), train_iter)

    def reprioritize(self, unique_ids: Array, priorities: Array, largest: float) -> int:
        """Set priorities of items [m] that are still here; returns how many are.

        Args:
            unique_ids: of the items.
            priorities: that they have now.
            largest: of the priorities.
        """
        slots = self._ring.slots_of(unique_ids)
        # one comparison for both ends: what is below the first id is huge as an unsigned number
        here = (unique_ids - self._ring.first).view(np.uint64) < np.uint64(len(self._ring))
        if self.alive < len(self._ring):
            here &= self._sampler.alive(slots)
        count = int(np.count_nonzero(here))
        if count < len(slots):
            slots, priorities = slots[here], priorities[here]
            largest = float(priorities.max(initial=0.0))
        if count:
            self._sampler.set(slots, priorities)
            self.max_priority = max(self.max_priority, largest)
        return count

    def living(self) -> Array:
        """Slots that can be drawn, the oldest item first."""
        slots = self._ring.slots()
        return slots if self.alive == len(slots) else slots[self._sampler.alive(slots)]

    def priority(self, slots: Array) -> Array:
        """Priorities of slots [m]."""
        return self._sampler.priority(slots)

    def note_largest(self, priorities: Array) -> None:
        """Take the largest of priorities into account, even if its item did not stay."""
        if priorities.size:
            self.max_priority = max(self.max_priority, float(priorities.max()))

    def state_dict(self) -> dict[str, Any]:
        """Everything, of the oldest item first: copies, in the smallest dtypes that hold them."""
        return {
            "mass": self._ring.ordered(self._sampler.mass()),
            "use": narrowed(self._ring.ordered(self._use)),
            "made_at": narrowed(self._ring.ordered(self._made_at)),
            "max_priority": self.max_priority,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`; the ring has its items already."""
        slots = self._ring.slots()
        mass = np.zeros(self._ring.capacity, dtype=np.float32)
        mass[slots] = state["mass"]
        self._sampler.restore(mass)
        self._use[slots] = state["use"]
        self._made_at[slots] = state["made_at"]
        self.alive = int(np.count_nonzero(state["mass"]))
        self.max_priority = float(state["max_priority"])

    def _describe(self, slots: Array, weights: Array, train_iter: int) -> Drawn:
        newest = self._ring.pushed - 1
        use, staleness, ids = self._sampler.mark_drawn(self._marks, slots, newest, train_iter)
        return Drawn(slots, ids, weights, staleness, use)


def made_at_of(item: Mapping[str, Any]) -> int:
    """Train iteration of the policy that made an item; -1 where it states none."""
    stated = item.get("collect_iter")
    stated = item.get("policy_iter") if stated is None else stated
    if isinstance(stated, list | tuple):  # of a sequence, one for each transition
        stated = min(stated, default=None)
    return -1 if stated is None else int(stated)


def priorities_of(items: Sequence[Mapping[str, Any]], largest: float) -> Array:
    """Priority of each item, float64 [m]; `largest` where it has none.

    Raises:
        BufferContractError: see `check_priorities`.
    """
    stated = [item.get("priority") for item in items]
    priorities = _numbers([largest if value is None else value for value in stated])
    check_priorities(priorities, len(items))
    return priorities


def marks_of_columns(columns: Mapping[str, Any]) -> tuple[Array | int, Array | None]:
    """Policy iterations and priorities that columns state; -1 and None where they do not."""
    made_at = columns.get("collect_iter", columns.get("policy_iter"))
    priority = columns.get("priority")
    ages = -1 if made_at is None else np.asarray(made_at)
    return ages, None if priority is None else _numbers(priority)


def rows_of(columns: Mapping[str, Any]) -> int:
    """Rows of columns, nested or not; 0 where they are none."""
    for column in columns.values():
        rows = rows_of(column) if isinstance(column, Mapping) else _length(column)
        if rows:
            return rows
    return 0


def _length(column: Any) -> int:
    return len(column) if isinstance(column, Sized) and getattr(column, "ndim", True) else 0


def _numbers(values: Any) -> Array:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BufferContractError(f"a priority is no number: {error}") from error


def check_priorities(priorities: Array, count: int) -> float:
    """Check that priorities are of `count` items and valid; returns the largest one.

    Raises:
        BufferContractError: they are not, or one is negative, not a number, or above 1e30.
    """
    if np.shape(priorities) != (count,):
        raise BufferContractError(f"priorities of shape {np.shape(priorities)} for {count} items")
    largest = float(priorities.max(initial=0.0))
    if not (priorities.min(initial=0.0) >= 0 and largest <= LARGEST_PRIORITY):
        raise BufferContractError(
            f"a priority is negative, not a number or above {LARGEST_PRIORITY:g}"
        )
    return largest


def check_marks(made_at: Array | int, priority: Array | None, count: int) -> None:
    """Check that ages and priorities are of `count` items, or one age is of all.

    Raises:
        BufferContractError: it is not, or see `check_priorities`.
    """
    if np.shape(made_at) not in ((), (count,)):
        raise BufferContractError(f"ages of shape {np.shape(made_at)} for {count} items")
    if priority is not None:
        check_priorities(priority, count)


def add_marks(items: list[dict[str, Any]], drawn: Drawn, priority: Array, prefix: str) -> None:
    """Add the buffer's bookkeeping to drawn items [m]; `priority` is theirs."""
    marks = zip(
        drawn.unique_ids.tolist(), drawn.slots.tolist(), priority.tolist(),
        drawn.staleness.tolist(), drawn.use.tolist(), drawn.weights.tolist(), strict=True,
    )  # fmt: skip
    for item, (number, slot, own_priority, staleness, use, weight) in zip(
        items, marks, strict=True
    ):
        item["replay_unique_id"] = f"{prefix}_{number}"
        item["replay_buffer_idx"] = slot
        item["priority"] = own_priority
        item["staleness"] = staleness
        item["use"] = use
        item["IS"] = weight


def number_of(name: Any, prefix: str) -> int:
    """The unique id in a ``replay_unique_id``; -1, which no item has, where another made it."""
    owner, _, number = str(name).rpartition("_")
    return int(number) if owner == prefix and number.isdecimal() else -1
