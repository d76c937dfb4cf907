"""The index of a replay buffer: ids, priorities, uses and ages of items; it draws slots.

Item n has the unique id n and lies in slot ``n mod capacity``, so its id alone finds it, and the id
of an overwritten item is recognised. The items themselves are elsewhere: in the shards and the
learners' rings of a run over ranks, whose rank 0 draws row numbers; or beside the index, in the
buffers of `hpcdi.worker.replay_buffer`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcdi.config.replay import AdvancedBufferConfig
from hpcdi.errors import BufferContractError
from hpcdi.replay.limits import Limits
from hpcdi.replay.monitor import Monitor
from hpcdi.replay.samplers import LARGEST_PRIORITY, PrioritizedSampler, Sampler, UniformSampler
from hpcdi.store.memory import Span, rows_in
from hpcdi.types import Array
from hpcdi.utils.nested import narrowed


class Slots:
    """Slots of the newest `capacity` items; a new item takes the oldest one's slot.

    Args:
        capacity: slots.
        first_id: unique id of the first item.

    Attributes:
        first, pushed: items with ids in [first, pushed) are here.
        origin: id of the first one since the buffer was cleared.
    """

    def __init__(self, capacity: int, first_id: int = 0) -> None:
        self.capacity = capacity
        self.first = self.pushed = self.origin = first_id

    def __len__(self) -> int:
        return self.pushed - self.first

    def take(self, count: int) -> range:
        """Take slots for new items; returns their ids: the last `capacity`, if there are more."""
        first_new, self.pushed = self.pushed, self.pushed + count
        self.first = max(self.first, self.pushed - self.capacity)
        return range(max(first_new, self.pushed - self.capacity), self.pushed)

    def spans(self, first_id: int, end_id: int) -> Iterator[Span]:
        """Yields where items [first_id, end_id) lie: one span, or two around the end."""
        next_id = first_id
        while next_id < end_id:
            start = next_id % self.capacity
            stop = min(start + end_id - next_id, self.capacity)
            yield Span(start, stop, next_id - first_id)
            next_id += stop - start

    def slots(self, first_id: int | None = None, end_id: int | None = None) -> Array:
        """Slots of items [first_id, end_id), by default all that are here, the oldest first."""
        first = self.first if first_id is None else first_id
        ids = np.arange(first, self.pushed if end_id is None else end_id)
        return self.slots_of(ids)

    def slots_of(self, ids: Array) -> Array:
        """Slots of the items with ids of any shape."""
        return ids % self.capacity

    def ordered(self, by_slot: Array) -> Array:
        """A copy of an array [capacity] for the items here, the oldest first."""
        return rows_in(self.spans(self.first, self.pushed), by_slot)

    def forget(self, before_id: int) -> None:
        """Forget the items whose unique id is below `before_id`."""
        self.first = max(self.first, min(before_id, self.pushed))

    def ids(self) -> dict[str, int]:
        """The ids, as a saved state holds them."""
        return {"first": self.first, "pushed": self.pushed, "origin": self.origin}

    def restore(self, ids: Mapping[str, Any]) -> None:
        """Restore `ids`."""
        self.first, self.pushed, self.origin = (int(ids[n]) for n in ("first", "pushed", "origin"))


class Drawn(NamedTuple):
    """Items that were drawn; arrays [m]."""

    slots: Array
    unique_ids: Array
    weights: Array
    """Importance weights, float32, at most 1."""
    staleness: Array
    """Train iterations between the policy that made the item and now, int64; -1: unknown."""
    use: Array
    """How often each item has been drawn, this draw included, int32."""


def annealed_beta(start: float, draws: int, steps: float) -> float:
    """Exponent of importance weights: from `start` to 1 over `steps` draws; 0 steps: `start`."""
    if not steps:
        return start
    done = min(1.0, draws / float(steps))
    return start * (1 - done) + done


class ReplayIndex:
    """Draws items by priority; bounds their use, staleness and rate, and reports them.

    Args:
        places: where the items lie.
        cfg: settings.
        monitor: reports what is drawn, and the traffic.
        rng: random numbers of the draws.
        prioritized: draw by priority; else uniformly, whatever the priorities are.
        on_drop: called with the slots of items that are dropped for their age or use.

    Attributes:
        places: see above.
        max_priority: the largest so far, which new items have.
        blocked: reason why the last draw returned None; empty where it did not.
        heaviest: of the last draw, see `samplers.Draw`.
    """

    def __init__(
        self,
        places: Slots,
        cfg: AdvancedBufferConfig,
        monitor: Monitor,
        *,
        rng: np.random.Generator,
        prioritized: bool = True,
        on_drop: Callable[[Array], None] = lambda _slots: None,
    ) -> None:
        self._cfg, self._monitor, self._rng, self._on_drop = cfg, monitor, rng, on_drop
        self.places, self._alive, self.max_priority, self.blocked = places, 0, 1.0, ""
        self.heaviest = 1.0
        alpha, self._beta_start, self._anneal_steps = cfg.exponents()
        self._draws = 0
        kind = PrioritizedSampler if prioritized else UniformSampler
        self._sampler: Sampler = kind(places.capacity, alpha)
        self._marks = np.zeros((places.capacity, 2), dtype=np.int32)  # together: one cache miss
        self._use, self._made_at = self._marks.T
        self._oldest = math.inf  # no item here was made before; infinite: of none it is known
        self._limits = Limits(cfg.thruput_controller, cfg.min_fill)

    # ---------------------------------------------------------------------------------- items

    @property
    def capacity(self) -> int:
        """Items that there is room for."""
        return self.places.capacity

    @property
    def min_fill(self) -> int:
        """Items that it must hold before anything is drawn."""
        return self._cfg.min_fill

    @property
    def max_staleness(self) -> float:
        """Train iterations after which an item is dropped."""
        return self._cfg.max_staleness

    def count(self) -> int:
        """Items that can be drawn: neither overwritten nor dropped."""
        return self._alive

    def add(self, count: int, made_at: Array | int = -1, priority: Array | None = None) -> range:
        """Add `count` new items; where the index is full, they replace the oldest ones.

        Args:
            count: items.
            made_at: train iteration of the policy that made them, [m] or one for all.
            priority: of each, [m]; None: the largest so far.

        Returns:
            Unique ids of the new items: of the last `capacity`, if there are more.

        Raises:
            BufferContractError: ages or priorities do not fit the items. Then none is added.
        """
        check_marks(made_at, priority, count)
        ids = self.places.take(count)
        self.admit(ids, made_at, priority)
        self.note(pushed=count)
        return ids

    def admit_one(self, slot: int, made_at: int, priority: float | None) -> None:
        """Let the new item in `slot` be drawn; priority None: the largest so far."""
        self._alive += not self._sampler.alive(slot)
        self._use[slot] = 0
        self._made_at[slot] = made_at
        if 0 <= made_at < self._oldest:
            self._oldest = made_at
        if priority is None:
            self._sampler.set_one(slot, self.max_priority)
        else:
            self._sampler.set_one(slot, priority)
            self.max_priority = max(self.max_priority, priority)

    def admit(self, ids: range, made_at: Array | int, priority: Array | None) -> None:
        """Let new items be drawn.

        Args:
            ids: their unique ids. Of more items than `capacity`, added at once, the last ones.
            made_at: see `add`: of all items that were added at once, [m], or one for all.
            priority: of all items that were added at once, [m]; None: the largest so far.
        """
        if priority is not None:
            self.max_priority = max(self.max_priority, float(priority.max(initial=0.0)))
            priority = priority[-len(ids) :]
        made_at = np.asarray(made_at)
        if made_at.ndim:
            made_at = made_at[-len(ids) :]
        self._oldest = min(self._oldest, _oldest_of(made_at))
        for span in self.places.spans(ids.start, ids.stop):
            slots = np.arange(span.start, span.stop)
            rows = slice(span.offset, span.offset + len(slots))
            self._alive += len(slots) - int(np.count_nonzero(self._sampler.alive(slots)))
            self._use[slots] = 0
            self._made_at[slots] = made_at[rows] if made_at.ndim else made_at
            self._sampler.set(slots, self.max_priority if priority is None else priority[rows])

    def evict(self, before_id: int, first_id: int = 0) -> None:
        """Drop all items whose unique id is below `before_id`, from `first_id` on."""
        places, first = self.places, max(first_id, self.places.first)
        self.drop(places.slots(first, max(first, min(before_id, places.pushed))))
        if first == places.first:
            places.forget(before_id)

    def drop(self, slots: Array) -> Array:
        """Exclude different slots [m] from draws; returns those that could be drawn before."""
        slots = slots[self._sampler.alive(slots)]
        if slots.size:
            self._sampler.remove(slots)
            self._alive -= len(slots)
        return slots

    def retire(self, slots: Array) -> None:
        """Drop those of the drawn slots [m] whose items have been drawn `max_use` times."""
        if math.isfinite(self._cfg.max_use):
            self._on_drop(self.drop(np.unique(slots[self._use[slots] >= self._cfg.max_use])))

    def _retire_stale(self, train_iter: int) -> None:
        if train_iter - self._oldest > self._cfg.max_staleness:
            slots = self.living()
            made_at = self._made_at[slots]
            is_known, is_stale = made_at >= 0, train_iter - made_at > self._cfg.max_staleness
            self._oldest = _oldest_of(made_at[~is_stale])
            self._on_drop(self.drop(slots[is_known & is_stale]))

    def living(self) -> Array:
        """Slots that can be drawn, the oldest item first."""
        slots = self.places.slots()
        return slots if self._alive == len(slots) else slots[self._sampler.alive(slots)]

    def set_uses(self, uses: Sequence[int]) -> None:
        """Set how often the newest items [m] have been drawn, the oldest first."""
        self._use[self.places.slots(self.places.pushed - len(uses))] = uses

    # ---------------------------------------------------------------------------------- draws

    def why_not_push(self, count: int) -> str:
        """Returns why `count` items should not be pushed now (`push_sample_rate_limit.max`), or "".

        `add` itself never refuses data: its caller asks, and waits.
        """
        return self._limits.why_not_push(count)

    def why_not_sample(self, size: int, train_iter: int) -> str:
        """Returns why `size` items cannot be drawn now; empty where they can. Drops stale ones."""
        self._retire_stale(train_iter)
        self.blocked = self._limits.why_not_draw(size, self._alive)
        return self.blocked

    def draw(
        self,
        size: int,
        train_iter: int,
        draws: int = 1,
        among: slice | None = None,
        *,
        is_granted: bool = False,
    ) -> Drawn | None:
        """Draw `size` items; None where there are not enough (see `blocked`).

        Args:
            size: number of items.
            train_iter: the learner's current train iteration.
            draws: how many batches they are for, as the annealing of `beta` counts them.
            among: positions of items by age, 0 being the oldest: draw uniformly among these only,
                none twice where there are as many.
            is_granted: `why_not_sample` has just let as many be drawn, or more; asked again a
                moment later it might refuse, since what it counts depends on the clock.

        Raises:
            BufferContractError: `size` is below 1.
        """
        if size < 1:
            raise BufferContractError(f"cannot draw {size} items")
        if not is_granted and self.why_not_sample(size, train_iter):
            return None
        if among is None:
            slots, weights, self.heaviest = self._sampler.draw(
                size, self._alive, self.beta, self._rng
            )
        elif candidates := range(self._alive)[among]:
            slots, weights = self._choose(size, candidates), np.ones(size, dtype=np.float32)
            self.heaviest = 1.0
        else:
            self.blocked = f"no items in {among}"
            return None
        newest = self.places.pushed - 1
        use, staleness, ids = self._sampler.mark_drawn(self._marks, slots, newest, train_iter)
        self._draws += draws
        self.note(drawn=size)
        if self._monitor.draws.is_next_reported():
            marks = {"use": use, "priority": self.priority(slots), "staleness": staleness}
            self._monitor.draws.add(marks, train_iter)
        return Drawn(slots, ids, weights, staleness, use)

    def _choose(self, size: int, candidates: range) -> Array:
        """Slots of `size` of the items alive at some positions by age; there must be some."""
        chosen = self._rng.choice(len(candidates), size, replace=len(candidates) < size)
        ages = candidates.start + candidates.step * chosen
        if self._alive == len(self.places):
            return self.places.slots_of(self.places.first + ages)
        return self.living()[ages]

    def update_priorities(self, unique_ids: Array, priorities: Array) -> int:
        """Set the priorities [m] of items that are still here; returns how many are.

        Raises:
            BufferContractError: a priority is negative, not a number or above 1e30, or missing.
        """
        largest = check_priorities(priorities, len(unique_ids))
        unique_ids = np.asarray(unique_ids, np.int64)
        slots = self.places.slots_of(unique_ids)
        # one comparison for both ends: as an unsigned number, an id below the first one is huge
        is_here = (unique_ids - self.places.first).view(np.uint64) < np.uint64(len(self.places))
        if self._alive < len(self.places):
            is_here &= self._sampler.alive(slots)
        count = int(np.count_nonzero(is_here))
        if count < len(slots):
            slots, priorities = slots[is_here], priorities[is_here]
            largest = float(priorities.max(initial=0.0))
        if count:
            self._sampler.set(slots, priorities)
            self.max_priority = max(self.max_priority, largest)
        return count

    def priority(self, slots: Array) -> Array:
        """Priorities of slots [m]."""
        return self._sampler.priority(slots)

    @property
    def alpha(self) -> float:
        """Exponent of the priorities; one that is set counts for the items that are here, too."""
        return self._sampler.alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        if value != self._sampler.alpha:
            slots = self.living()
            priorities, self._sampler.alpha = self.priority(slots), value
            self._sampler.set(slots, priorities)

    @property
    def beta(self) -> float:
        """Exponent of the importance weights now; rises to 1 over `anneal_step` draws."""
        return annealed_beta(self._beta_start, self._draws, self._anneal_steps)

    @beta.setter
    def beta(self, value: float) -> None:
        self._beta_start, self._draws = value, 0

    def go_on_from(self, other: ReplayIndex) -> None:
        """Have the exponents of an index that this one follows, and count what it has counted."""
        self.alpha = other.alpha
        self._beta_start, self._draws, self._limits = other._beta_start, other._draws, other._limits

    def count_on_from(self, states: Collection[Mapping[str, Any]]) -> None:
        """Anneal on, and have the largest priority, of indices of whose items this one gets some.

        Args:
            states: their `state_dict`, or `counted`; as many batches were drawn from each.
        """
        for state in states:
            self._draws = max(self._draws, int(state["annealing"]["draws"]))
            self.max_priority = max(self.max_priority, float(state["index"]["max_priority"]))

    def counted(self) -> dict[str, Any]:
        """Returns the part of `state_dict` that `count_on_from` reads."""
        return {"annealing": {"draws": self._draws}, "index": {"max_priority": self.max_priority}}

    def note(self, pushed: int = 0, drawn: int = 0) -> None:
        """Count pushed and drawn items; report if it is time."""
        self._limits.note(pushed, drawn)
        if self._monitor.traffic.note(pushed, drawn):
            self._monitor.traffic.report(self._alive)

    # ---------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of everything, the oldest item first, in the smallest dtypes that fit."""
        places = self.places
        return {
            "capacity": self.capacity,
            "rng": {"state": self._rng.bit_generator.state},
            "ring": {"capacity": places.capacity, "ids": places.ids()},
            "index": {
                "mass": places.ordered(self._sampler.mass()),
                "use": narrowed(places.ordered(self._use)),
                "made_at": narrowed(places.ordered(self._made_at)),
                "max_priority": self.max_priority,
                "alpha": self.alpha,
                "beta": self._cfg.exponents()[1],
            },
            "annealing": {
                "start": self._beta_start,
                "draws": self._draws,
                "steps": self._anneal_steps,
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict` into an empty index, which keeps its own `alpha`.

        A `beta` that was set is kept, unless another one is configured now.
        """
        self.places.restore(state["ring"]["ids"])
        marks, slots = state["index"], self.places.slots()
        mass = np.zeros(self.places.capacity, dtype=np.float32)
        mass[slots] = marks["mass"]
        alpha = self.alpha
        # a mass is a priority to the power of the saved alpha; setting ours below converts it
        self._sampler.alpha = float(marks["alpha"])
        self._sampler.restore(mass)
        self._use[slots] = marks["use"]
        self._made_at[slots] = marks["made_at"]
        self._oldest = -math.inf  # to be found
        self._alive = int(np.count_nonzero(marks["mass"]))
        self.max_priority = float(marks["max_priority"])
        if marks["beta"] == self._cfg.exponents()[1]:
            self._beta_start = float(state["annealing"]["start"])
        self._draws = int(state["annealing"]["draws"])
        self._rng.bit_generator.state = state["rng"]["state"]
        self.alpha = alpha


def _oldest_of(made_at: Array) -> float:
    """Returns the least of train iterations of any shape that is known; infinite without one."""
    known = made_at[made_at >= 0]
    return float(known.min()) if known.size else math.inf


def check_priorities(priorities: Array, count: int) -> float:
    """Check that there are `count` valid priorities; returns the largest one.

    Raises:
        BufferContractError: there are not, or one is negative, not a number, or above 1e30.
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
    """Check that there are `count` ages, or one for all items, and `count` priorities.

    Raises:
        BufferContractError: there are not, or see `check_priorities`.
    """
    if np.shape(made_at) not in ((), (count,)):
        raise BufferContractError(f"ages of shape {np.shape(made_at)} for {count} items")
    if priority is not None:
        check_priorities(priority, count)
