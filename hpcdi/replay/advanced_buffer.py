"""The prioritized replay buffer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from hpcdi.config.replay import (
    AdvancedBufferConfig,
    DequeBufferConfig,
)
from hpcdi.errors import BufferContractError
from hpcdi.replay.base_buffer import Drawn, RingBuffer, Sample
from hpcdi.replay.index import (
    ItemIndex,
    add_marks,
    check_marks,
    check_priorities,
    made_at_of,
    marks_of_columns,
    number_of,
    priorities_of,
    rows_of,
)
from hpcdi.replay.limits import Limits
from hpcdi.replay.monitor import Reports, SampledData
from hpcdi.replay.ring import ObjectStore, Ring
from hpcdi.replay.samplers import PrioritizedSampler, Sampler, UniformSampler
from hpcdi.replay.state import annealed_beta
from hpcdi.store.rows import RowStore
from hpcdi.types import Array
from hpcdi.utils.log import LOGGER


def to_positive_index(idx: int | None, size: int) -> int | None:
    """An index from the beginning, of one that may count from the end; None stays."""
    return idx if idx is None or idx >= 0 else size + idx


class AdvancedReplayBuffer(RingBuffer):
    """Draws by priority; bounds the use, staleness and rate of items, and reports them.

    Items are dicts. See `RingBuffer` for the arguments; without `prioritized` it draws uniformly,
    whatever the priorities are.
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
        watch = self._cfg.monitor.sampled_data_attr
        reports = Reports(tb_logger, instance_name)
        self._sampled = SampledData(reports, watch.average_range, watch.print_freq)
        self.blocked = ""
        """Reason why the last draw returned None; empty where it did not."""

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
            self._note(pushed=rows_of(columns))
            return ids

    def sample(
        self, size: int, cur_learner_iter: int, sample_range: slice | None = None
    ) -> list[dict[str, Any]] | None:
        """Draw items as dicts, with replacement; None where there are not enough (see `blocked`).

        Each has ``replay_unique_id, replay_buffer_idx, priority, staleness, use, IS`` besides its
        own keys. With `sample_range` it draws uniformly among these items only, none of them twice,
        the oldest being item 0: ``slice(-10, None)`` are the ten newest.

        Raises:
            BufferContractError: `size` is below 1.
        """
        with self._lock:
            drawn = self._draw(size, cur_learner_iter, sample_range)
            if drawn is None or self._ring.store is None:
                return None
            items = self._ring.store.read(drawn.slots)
            self._mark(items, drawn)
            self._retire(drawn)
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
                self.blocked = "the items are objects, not columns: draw them by sample"
            else:
                drawn = self._draw(size, cur_learner_iter, sample_range, draws)
            if drawn is None or not isinstance(self._ring.store, RowStore):
                return None
            self._retire(drawn)  # the store still has what the index has dropped
            columns = self._ring.store.read_columns(drawn.slots)
            columns.setdefault("weight", drawn.weights)
            return Sample(self._shaped(columns, tensors, pin_memory), drawn)

    def update(self, info: Mapping[str, Any]) -> None:
        """Take new priorities, as a learner's `priority_info` has them.

        Items that were overwritten or dropped, or are of another buffer, are ignored.

        Args:
            info: ``replay_unique_id, replay_buffer_idx, priority``, as lists; or ``unique_ids``
                and ``priority``, as arrays.
        """
        if "unique_ids" in info:
            self.update_priorities(info["unique_ids"], np.asarray(info["priority"], np.float64))
            return
        prefix = self._name
        ids = np.array([number_of(n, prefix) for n in info["replay_unique_id"]], np.int64)
        self.update_priorities(ids, np.array(info["priority"], dtype=np.float64))

    def update_priorities(self, unique_ids: Array, priorities: Array) -> int:
        """Set priorities [m] of items [m]; returns how many of the items are still here.

        Raises:
            BufferContractError: a priority is negative, not a number or above 1e30, or missing.
        """
        with self._lock:
            largest = check_priorities(priorities, len(unique_ids))
            return self._index.reprioritize(np.asarray(unique_ids, np.int64), priorities, largest)

    def evict(self, before_id: int, first_id: int = 0) -> None:
        """Drop all items whose unique id is below `before_id`, from `first_id` on."""
        with self._lock:
            ring, first = self._ring, max(first_id, self._ring.first)
            self._index.drop(ring.slots(first, max(first, min(before_id, ring.pushed))))
            if first == ring.first:
                ring.forget(before_id)

    def why_not_push(self, count: int) -> str:
        """Returns why `count` items should not be pushed now (`push_sample_rate_limit.max`), or "".

        `push_columns` itself never refuses data: its caller asks, and waits.
        """
        with self._lock:
            return self._limits.why_not_push(count)

    def why_not_sample(self, size: int, cur_learner_iter: int) -> str:
        """Returns why `size` items cannot be drawn now; empty where they can."""
        with self._lock:
            return self._why_not_draw(size, cur_learner_iter)

    def count(self) -> int:
        """Items that can be drawn."""
        return self._index.alive

    @property
    def first_id(self) -> int:
        """Unique id of the oldest item that is here; of the next one where there is none."""
        return self._ring.first

    @property
    def max_staleness(self) -> float:
        """Train iterations after which an item is dropped."""
        return float(self._cfg.max_staleness)

    @property
    def beta(self) -> float:
        """Exponent of the importance weights now; rises to 1 over `anneal_step` draws."""
        return annealed_beta(self._beta_start, self._draws, self._cfg.anneal_step)

    @beta.setter
    def beta(self, value: float) -> None:
        self._beta_start, self._draws = value, 0

    def state_with(self, columns: Mapping[str, Array]) -> dict[str, Any]:
        """A `state_dict` that holds other columns [m, ...] of the items, the oldest item first.

        A run's snapshot holds where the items lie in shards; see `load_state_with`.
        """
        with self._lock:
            ring = Ring(self._ring.capacity, self._ring.first)
            if len(self._ring):
                ring.extend_columns(columns)
            ring.origin = self._ring.origin
            return {**self._about_items(), "ring": ring.state_dict()}

    def load_state_with(
        self, state: Mapping[str, Any], pieces: Iterable[Mapping[str, Any]]
    ) -> None:
        """Become the buffer of a `state_with`, with the items' own columns, the oldest first.

        Args:
            state: as `state_with` returned it.
            pieces: columns [m, ...] of consecutive items; together of all of them.

        Raises:
            BufferContractError: it was of another capacity, or has more or fewer items; then the
                buffer stays as it is.
        """
        with self._lock:
            self._check_capacity(state)
            ids = state["ring"]["ids"]
            ring = self._new_ring(int(ids["first"]))
            for columns in pieces:
                ring.extend_columns(columns)
            if (ring.first, ring.pushed) != (ids["first"], ids["pushed"]):
                raise BufferContractError(
                    f"columns of {len(ring)} items were given for {ids['pushed'] - ids['first']}"
                )
            ring.origin = int(ids["origin"])
            self._become(ring, state)

    def _about_items(self) -> dict[str, Any]:
        return super()._about_items() | {
            "index": self._index.state_dict(),
            "annealing": {
                "start": self._beta_start,
                "draws": self._draws,
                "steps": self._cfg.anneal_step,
            },
        }

    def _become(self, ring: Ring, state: Mapping[str, Any]) -> None:
        super()._become(ring, state)
        self._index.load_state_dict(state["index"])
        annealing = state["annealing"]
        self._beta_start, self._draws = float(annealing["start"]), int(annealing["draws"])

    def _adopt(self, items: list[Any], state: Mapping[str, Any]) -> None:
        marks = ("replay_unique_id", "replay_buffer_idx", "staleness", "use", "IS")
        own = [{key: one for key, one in item.items() if key not in marks} for item in items]
        super()._adopt(own, state)
        if "max_priority" in state:
            self._index.max_priority = float(state["max_priority"])
        if "beta" in state:
            self.beta = float(state["beta"])

    @property
    def _report_s(self) -> float:
        return float(self._cfg.monitor.periodic_thruput.seconds)

    def _begin(self, ring: Ring) -> None:
        super()._begin(ring)
        size = ring.capacity
        sampler: Sampler = UniformSampler(size)
        if self._prioritized:
            sampler = PrioritizedSampler(size, self._cfg.alpha)
        self._index = ItemIndex(ring, sampler)
        self._limits = Limits(self._cfg.thruput_controller, self._cfg.min_fill)
        self._beta_start, self._draws = float(self._cfg.beta), 0

    def _note(self, pushed: int = 0, drawn: int = 0) -> None:
        self._limits.note(pushed, drawn)
        super()._note(pushed, drawn)

    def _push_one(self, item: Any) -> int:
        if not isinstance(item, Mapping):
            raise BufferContractError("items must be dicts")
        has_priority = item.get("priority") is not None
        priority = float(priorities_of([item], 0.0)[0]) if has_priority else None
        made_at = made_at_of(item)
        self._index.admit_one(self._ring.append(item), made_at, priority)
        return 1

    def _push_list(self, items: list[Any]) -> int:
        if not all(isinstance(item, Mapping) for item in items):
            raise BufferContractError("items must be dicts")
        priority = priorities_of(items, self._index.max_priority)
        made_at = np.array([made_at_of(item) for item in items])
        ids = self._ring.extend(items)
        self._admit(ids, made_at, priority)
        return len(items)

    def _push_columns(self, columns: Mapping[str, Any]) -> int:
        self._admit_columns(columns, *marks_of_columns(columns))
        return rows_of(columns)

    def _admit_columns(
        self, columns: Mapping[str, Any], made_at: Array | int, priority: Array | None
    ) -> range:
        check_marks(made_at, priority, rows_of(columns))
        ids = self._ring.extend_columns(columns)
        self._admit(ids, made_at, priority)
        return ids

    def _admit(self, ids: range, made_at: Array | int, priority: Array | None) -> None:
        if priority is not None:
            self._index.note_largest(priority)
            priority = priority[-len(ids) :]
        if isinstance(made_at, np.ndarray) and made_at.ndim:
            made_at = made_at[-len(ids) :]
        if ids:
            self._index.admit(ids, made_at, priority)

    def _why_not_draw(self, size: int, cur_learner_iter: int) -> str:
        if math.isfinite(self._cfg.max_staleness):
            self._ring.drop(self._index.drop_stale(cur_learner_iter, self._cfg.max_staleness))
        self.blocked = self._limits.why_not_draw(size, self.count())
        return self.blocked

    def _draw(
        self, size: int, cur_learner_iter: int, among: slice | None = None, draws: int = 1
    ) -> Drawn | None:
        if size < 1:
            raise BufferContractError(f"cannot draw {size} items")
        if self._why_not_draw(size, cur_learner_iter):
            return None
        if among is not None:
            drawn = self._index.draw_range(size, cur_learner_iter, among, self._rng)
            self.blocked = "" if drawn is not None else f"fewer than {size} items in {among}"
        else:
            drawn = self._index.draw(size, cur_learner_iter, self.beta, self._rng)
        if drawn is not None:
            self._draws += draws
            self._note(drawn=size)
            if self._sampled.is_due:
                priority = self._index.priority(drawn.slots)
                marks = {"use": drawn.use, "priority": priority, "staleness": drawn.staleness}
                self._sampled.add(marks, cur_learner_iter)
        return drawn

    def _mark(self, items: list[dict[str, Any]], drawn: Drawn) -> None:
        """Add the buffer's bookkeeping to drawn items."""
        add_marks(items, drawn, self._index.priority(drawn.slots), self._name)

    def _retire(self, drawn: Drawn) -> None:
        if math.isfinite(self._cfg.max_use):
            self._ring.drop(self._index.drop_used(drawn.slots, self._cfg.max_use))


class DequeReplayBuffer(AdvancedReplayBuffer):
    """An `AdvancedReplayBuffer`; without `priority` it draws uniformly, no item twice.

    Then items come back as they were pushed, without the keys that a learner of priorities needs.
    """

    Config = DequeBufferConfig
    _cfg: DequeBufferConfig

    kind: ClassVar[str] = "deque_buffer"

    @classmethod
    def parse_config(cls, cfg: Any) -> DequeBufferConfig:
        """See `Configurable.parse_config`; sets what the base class reads by other names."""
        config: DequeBufferConfig = super().parse_config(cfg)
        return dataclasses.replace(
            config,
            alpha=config.priority_power_factor,
            beta=config.IS_weight_power_factor,
            anneal_step=config.IS_weight_anneal_train_iter,
        )

    def _begin(self, ring: Ring) -> None:
        self._prioritized = self._prioritized and self._cfg.priority
        super()._begin(ring)

    def sample(
        self, size: int, cur_learner_iter: int = 0, sample_range: slice | None = None
    ) -> list[dict[str, Any]] | None:
        """See `AdvancedReplayBuffer.sample`."""
        uniformly = None if self._prioritized else slice(None)
        return super().sample(size, cur_learner_iter, sample_range or uniformly)

    def _mark(self, items: list[dict[str, Any]], drawn: Drawn) -> None:
        if self._prioritized:
            super()._mark(items, drawn)

    def update(self, info: Mapping[str, Any]) -> None:
        """Take new priorities; see `AdvancedReplayBuffer.update`."""
        if info:
            limit = self._cfg.priority_max_limit
            super().update({**info, "priority": np.minimum(info["priority"], limit)})
