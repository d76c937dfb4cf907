"""The prioritized replay buffer of items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from hpcdi.config.replay import AdvancedBufferConfig, DequeBufferConfig
from hpcdi.errors import BufferContractError
from hpcdi.replay.index import Drawn, ReplayIndex, check_marks, check_priorities
from hpcdi.replay.monitor import Monitor
from hpcdi.types import Array
from hpcdi.utils.log import LOGGER
from hpcdi.worker.dict_envs import to_arrays
from hpcdi.worker.ding.convert import oldest_kept
from hpcdi.worker.errors import NoKeyError
from hpcdi.worker.replay_buffer.base_buffer import RingBuffer, Sample
from hpcdi.worker.replay_buffer.items import ItemStore, check_dicts, without
from hpcdi.worker.replay_buffer.ring import ObjectStore, Ring
from hpcdi.worker.replay_buffer.state import BufferState, generate_id, id_in

_OWN_MARKS = ("replay_unique_id", "replay_buffer_idx", "staleness", "use", "IS")
_MARKS = (*_OWN_MARKS, "priority")
"""Keys that a drawn item has besides its own."""


def to_positive_index(idx: int | None, size: int) -> int | None:
    """An index from the beginning, of one that may count from the end; None stays."""
    return idx if idx is None or idx >= 0 else size + idx


class AdvancedReplayBuffer(RingBuffer):
    """Draws by priority; bounds the use, staleness and rate of items, and reports them.

    Items are dicts; a `ReplayIndex` draws them. See `RingBuffer` for the arguments; without
    `prioritized` it draws uniformly, whatever the priorities are. `max_staleness` is the first
    staleness at which an item is dropped; in runs it is the last at which one is kept.
    """

    Config = AdvancedBufferConfig
    _cfg: AdvancedBufferConfig
    kind: ClassVar[str] = "advanced_buffer"

    def __init__(
        self,
        cfg: Any = None,
        tb_logger: Any = None,
        exp_name: str = "default_experiment",
        instance_name: str = "buffer",
        *,
        rng: np.random.Generator | None = None,
        prioritized: bool = True,
    ) -> None:
        self._prioritized = prioritized
        super().__init__(cfg, tb_logger, exp_name, instance_name, rng=rng)

    def push(self, data: Any, cur_collector_envstep: int = -1, *, columns: bool = False) -> None:
        """Add an item or a list of items, or columns [m, ...]; see `RingBuffer.push`.

        Items that would break `push_sample_rate_limit.max` are not added, which the log says; to
        wait instead, ask `why_not_push` before. Columns are always added.
        """
        count = len(data) if isinstance(data, list) else 1
        refused = "" if columns else self.why_not_push(count)
        if refused:
            LOGGER.warning("%s does not take %d items: %s", self._name, count, refused)
            return
        super().push(data, cur_collector_envstep, columns=columns)

    def push_columns(
        self, columns: Mapping[str, Any], made_at: Array | int = -1, priority: Array | None = None
    ) -> range:
        """Add items given as columns [m, ...].

        Args:
            columns: the items, by '/'-joined name or nested.
            made_at: train iteration of the policy that made them, [m] or one for all.
            priority: of each, [m]; None: the largest so far.

        Returns:
            Unique ids of those that stay: at most as many as the buffer holds, the last ones.

        Raises:
            BufferContractError: they differ from what the buffer holds, or the marks are not of
                them. Then none of them is added.
        """
        with self._lock:
            ids = self._admit_columns(columns, made_at, priority)
            self._note(pushed=_row_count(columns))
            return ids

    def sample(
        self, size: int, cur_learner_iter: int, sample_range: slice | None = None
    ) -> list[dict[str, Any]] | None:
        """Draw items as dicts, with replacement; None where there are not enough (see `blocked`).

        Each has ``replay_unique_id, replay_buffer_idx, priority, staleness, use, IS`` besides its
        own keys. With `sample_range` it draws uniformly among these items only, none of them twice
        where there are as many, the oldest being item 0: ``slice(-10, None)`` are the ten newest.

        Raises:
            BufferContractError: `size` is below 0.
        """
        if size == 0:
            return []
        with self._lock:
            drawn = self._draw(size, cur_learner_iter, among=sample_range)
            if drawn is None or self._ring.store is None:
                return None
            items = self._ring.store.read(drawn.slots)
            self._mark(items, drawn)
            self._index.retire(drawn.slots)
            return items

    def sample_batch(
        self,
        size: int,
        cur_learner_iter: int,
        draws: int = 1,
        *,
        sample_range: slice | None = None,
        tensors: bool = False,
        pin_memory: bool = False,
    ) -> Sample | None:
        """Draw items as columns [size, ...]; None where there are not enough, or no columns.

        The column ``weight`` has the importance weights, float32 [size], unless items have their
        own.

        Args:
            size: number of items.
            cur_learner_iter: the learner's current train iteration.
            draws: how many batches they are for, as the annealing of `beta` counts them.
            sample_range: see `sample`.
            tensors: return torch tensors instead of arrays.
            pin_memory: return tensors in page-locked memory.
        """
        with self._lock:
            drawn = None
            if isinstance(self._ring.store, ObjectStore):
                self._index.blocked = "the items are objects, not columns: draw them by sample"
            else:
                drawn = self._draw(size, cur_learner_iter, draws, sample_range)
            if drawn is None or not isinstance(self._ring.store, ItemStore):
                return None
            self._index.retire(drawn.slots)  # the store still has what the index has dropped
            columns = self._ring.store.read_columns(drawn.slots)
            columns.setdefault("weight", drawn.weights)
            return Sample(self._shaped(columns, tensors, pin_memory), drawn)

    def update(self, info: Mapping[str, Any]) -> None:
        """Take new priorities, as a learner's `priority_info` has them.

        Items that were overwritten or dropped, or are of another buffer, are ignored.

        Args:
            info: ``replay_unique_id, replay_buffer_idx, priority``, as lists; or ``unique_ids``
                and ``priority``, as arrays; or empty, where the policy returned none.

        Raises:
            NoKeyError: it has no ids or no priorities (a KeyError).
            BufferContractError: see `update_priorities`.
        """
        if not info:
            return
        named = "replay_unique_id" if "unique_ids" not in info else "unique_ids"
        for key in (named, "priority"):
            if key not in info:
                raise NoKeyError(
                    f"{self._name}.update: the info has no {key!r}, only {sorted(map(str, info))}; "
                    "hand over a learner's priority_info, or {} where it has no priorities"
                )
        ids = info[named]
        if named == "replay_unique_id":
            ids = np.array([id_in(one, self._name) for one in ids], np.int64)
        self.update_priorities(ids, _numbers(info["priority"]))

    def update_priorities(self, unique_ids: Array, priorities: Array) -> int:
        """Set priorities [m] of items [m]; returns how many of the items are still here.

        Raises:
            BufferContractError: a priority is negative, not a number or above 1e30, or missing.
        """
        with self._lock:
            return self._index.update_priorities(unique_ids, priorities)

    def clear(self) -> None:
        """Drop all items. `push_count`, `beta` and the rate of items go on, as with DI-engine."""
        with self._lock:
            origin, before = self._ring.origin, self._index
            super().clear()
            self._ring.origin = origin
            self._index.go_on_from(before)

    def why_not_push(self, count: int) -> str:
        """Returns why `count` items should not be pushed now (`push_sample_rate_limit.max`), or "".

        `push_columns` itself never refuses data: its caller asks, and waits.
        """
        with self._lock:
            return self._index.why_not_push(count)

    def why_not_sample(self, size: int, cur_learner_iter: int) -> str:
        """Returns why `size` items cannot be drawn now; empty where they can."""
        with self._lock:
            return self._index.why_not_sample(size, cur_learner_iter)

    def count(self) -> int:
        """Items that can be drawn."""
        return self._index.count()

    @property
    def blocked(self) -> str:
        """Reason why the last draw returned None; empty where it did not."""
        return self._index.blocked

    @property
    def alpha(self) -> float:
        """Exponent of the priorities: 0 draws uniformly. Settable; it counts for all items."""
        return self._index.alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        with self._lock:
            self._index.alpha = value

    @property
    def beta(self) -> float:
        """Exponent of the importance weights now; rises to 1 over `anneal_step` draws."""
        return self._index.beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._index.beta = value

    def state_dict(self) -> BufferState:
        """See `RingBuffer.state_dict`; in ``data`` items have their ids and priorities."""
        with self._lock:
            return BufferState(self._state(), self._name)

    def _sample_check(self, size: int, cur_learner_iter: int) -> tuple[bool, str]:
        """Returns whether items can be drawn, and why not, by DI-engine's name."""
        reason = self.why_not_sample(size, cur_learner_iter)
        return not reason, reason

    @property
    def _max_use(self) -> float:
        return self._cfg.max_use

    def _about_items(self) -> dict[str, Any]:
        return self._index.state_dict()

    def _become(self, ring: Ring, state: Mapping[str, Any]) -> None:
        super()._become(ring, state)
        self._index.load_state_dict(state)

    def _adopt(self, items: list[Any], state: Mapping[str, Any]) -> None:
        plain: list[Mapping[str, Any]] = []
        for item in items:  # another one in the place of one that was dropped, which goes below
            kept = plain[-1:] if item is None else [item]
            plain += [without(one, *_OWN_MARKS) for one in kept]
        super()._adopt(plain, state)
        if "use_count" in state and plain:
            tail = int(state.get("tail", 0))
            data, uses = state["data"], state["use_count"]
            order = [*range(tail, len(data)), *range(tail)]
            self._index.set_uses([uses[slot] for slot in order][-len(plain) :])
        gaps = [len(items) - place for place, item in enumerate(items) if item is None]
        if plain and gaps:
            self._index.drop(self._ring.slots_of(self._ring.pushed - np.array(gaps)))
        if "max_priority" in state:
            self._index.max_priority = float(state["max_priority"])
        if "beta" in state:
            self.beta = float(state["beta"])

    def _begin(self, ring: Ring) -> None:
        super()._begin(ring)
        bound = oldest_kept(self._cfg.max_staleness)
        self._index = ReplayIndex(
            ring,
            replace(self._cfg, max_staleness=bound),
            self._monitor,
            rng=self._rng,
            prioritized=self._prioritized,
            on_drop=ring.drop,
        )

    def _new_monitor(self, tb_logger: Any) -> Monitor:
        return Monitor(self._cfg.monitor, tb_logger, self._name)

    def _note(self, pushed: int = 0, drawn: int = 0) -> None:
        self._index.note(pushed, drawn)
        self._remove_used()

    def _report(self) -> None:
        self._monitor.traffic.report(self.count())

    def _draw(
        self, size: int, train_iter: int, draws: int = 1, among: slice | None = None
    ) -> Drawn | None:
        drawn = self._index.draw(size, train_iter, draws, among)
        self._remove_used()
        return drawn

    def _push_one(self, item: Any) -> int:
        check_dicts([item])
        has_priority = item.get("priority") is not None
        priority = float(_priorities_of([item], 0.0)[0]) if has_priority else None
        made_at = _made_at_of(item)
        self._index.admit_one(self._ring.append(_without_marks(item)), made_at, priority)
        return 1

    def _push_list(self, items: list[Any]) -> int:
        check_dicts(items)
        priority = _priorities_of(items, self._index.max_priority)
        made_at = np.array([_made_at_of(item) for item in items])
        ids = self._ring.extend([_without_marks(item) for item in items])
        self._index.admit(ids, made_at, priority)
        return len(items)

    def _push_columns(self, columns: Mapping[str, Any]) -> int:
        made_at = columns.get("collect_iter", columns.get("policy_iter"))
        priority = columns.get("priority")
        self._admit_columns(
            _without_marks(columns),
            -1 if made_at is None else _oldest_marks(made_at),
            None if priority is None else _numbers(priority),
        )
        return _row_count(columns)

    def _admit_columns(
        self, columns: Mapping[str, Any], made_at: Array | int, priority: Array | None
    ) -> range:
        check_marks(made_at, priority, _row_count(columns))
        ids = self._ring.extend_columns(columns)
        self._index.admit(ids, made_at, priority)
        return ids

    def _mark(self, items: list[dict[str, Any]], drawn: Drawn) -> None:
        """Add the buffer's bookkeeping to drawn items."""
        priorities = self._index.priority(drawn.slots).tolist()
        marks = zip(*(marks.tolist() for marks in drawn), priorities, strict=True)
        for item, (slot, number, weight, staleness, use, priority) in zip(
            items, marks, strict=True
        ):
            item["replay_unique_id"] = generate_id(self._name, number)
            item["replay_buffer_idx"] = slot
            item["priority"] = priority
            item["staleness"] = staleness
            item["use"] = use
            item["IS"] = np.float64(weight)  # collated as such


def _made_at_of(item: Mapping[str, Any]) -> int:
    """Train iteration of the policy that made an item; -1 where it states none.

    Raises:
        BufferContractError: it is no number.
    """
    stated = item.get("collect_iter")
    stated = item.get("policy_iter") if stated is None else stated
    if stated is None or isinstance(stated, int | np.integer):
        return -1 if stated is None else int(stated)
    marks = _numbers(stated, "collect_iter")  # of a sequence, one for each transition
    return int(marks.min()) if marks.size else -1


def _oldest_marks(made_at: Any) -> Array:
    """Train iteration of the policy that made each item, [m]: of a sequence the first one.

    Args:
        made_at: one for each item [m], or for each transition of the sequences [m, ...].

    Raises:
        BufferContractError: they are no numbers.
    """
    marks = _numbers(made_at, "collect_iter")
    return marks.reshape(len(marks), -1).min(axis=1) if marks.ndim > 1 and marks.size else marks


def _priorities_of(items: Sequence[Mapping[str, Any]], largest: float) -> Array:
    """Priority of each item, float64 [m]; `largest` where it has none.

    Raises:
        BufferContractError: see `check_priorities`.
    """
    stated = [item.get("priority") for item in items]
    priorities = _numbers([largest if value is None else value for value in stated])
    check_priorities(priorities, len(items))
    return priorities


def _without_marks(item: Mapping[str, Any]) -> Any:
    """Returns an item, or columns, without what drawn ones have: the index keeps all of that."""
    return item if item.keys().isdisjoint(_MARKS) else without(item, *_MARKS)


def _numbers(values: Any, name: str = "priority") -> Array:
    """Numbers as float64, also of tensors anywhere; [m] where each is an array of one.

    Raises:
        BufferContractError: one is no number.
    """
    try:
        try:
            numbers = np.asarray(values, dtype=np.float64)
        except (TypeError, RuntimeError):  # tensors on a device, or with a graph
            numbers = np.asarray(to_arrays(values), dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BufferContractError(f"{name!r} is no number: {error}") from error
    return numbers.reshape(-1) if numbers.ndim > 1 and numbers.size == len(numbers) else numbers


def _row_count(columns: Mapping[str, Any]) -> int:
    """Rows of columns, nested or not; 0 where they are none."""
    for column in columns.values():
        if isinstance(column, Mapping):
            rows = _row_count(column)
        else:
            rows = len(column) if isinstance(column, Sized) and getattr(column, "ndim", True) else 0
        if rows:
            return rows
    return 0


class DequeReplayBuffer(AdvancedReplayBuffer):
    """An `AdvancedReplayBuffer`; without `priority` it draws uniformly, no item twice.

    Then items come back as they were pushed, without the keys that a learner of priorities needs.
    """

    Config = DequeBufferConfig
    _cfg: DequeBufferConfig
    kind: ClassVar[str] = "deque_buffer"
    _sampled: Array | None = None
    """Unique ids of the items that were drawn last, until their priorities came."""

    def _begin(self, ring: Ring) -> None:
        self._prioritized = self._prioritized and self._cfg.priority
        super()._begin(ring)

    def sample(
        self, size: int, train_iter: int = 0, sample_range: slice | None = None
    ) -> list[dict[str, Any]] | None:
        """See `AdvancedReplayBuffer.sample`."""
        return super().sample(size, train_iter, sample_range)

    def _draw(
        self, size: int, train_iter: int, draws: int = 1, among: slice | None = None
    ) -> Drawn | None:
        uniformly = None if self._prioritized else slice(None)
        drawn = super()._draw(size, train_iter, draws, among or uniformly)
        if drawn is not None:
            self._sampled = drawn.unique_ids
        return drawn

    def _mark(self, items: list[dict[str, Any]], drawn: Drawn) -> None:
        if self._prioritized:
            super()._mark(items, drawn)

    def update(self, info: Mapping[str, Any]) -> None:
        """Take new priorities; see `AdvancedReplayBuffer.update`. Nothing without `priority`.

        Priorities without ids are of the items that were drawn last, in their order.
        """
        if not info or not self._prioritized:
            return
        if "priority" in info:
            limit = self._cfg.priority_max_limit
            info = {**info, "priority": np.minimum(_numbers(info["priority"]), limit)}
            if not info.keys() & {"replay_unique_id", "unique_ids"}:
                if self._sampled is None:
                    return
                info["unique_ids"] = self._sampled
                self._sampled = None
        super().update(info)
