"""The prioritized replay buffer."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.errors import BufferContractError
from hpcdi.store.snapshots import load_state, save_state
from hpcdi.types import Array
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.registry import BUFFER_REGISTRY
from hpcdi.worker.replay_buffer.base_buffer import IBuffer
from hpcdi.worker.replay_buffer.index import Drawn, ItemIndex, Sample
from hpcdi.worker.replay_buffer.items import (
    add_marks,
    check_marks,
    check_priorities,
    made_at_of,
    number_of,
    priorities_of,
)
from hpcdi.worker.replay_buffer.ring import ColumnStore, ObjectStore, store_for, store_of_kind
from hpcdi.worker.replay_buffer.samplers import PrioritizedSampler, UniformSampler
from hpcdi.worker.replay_buffer.settings import AdvancedBufferConfig

STATE_VERSION = 1


@BUFFER_REGISTRY.register("advanced")
class AdvancedReplayBuffer(IBuffer, Closing):
    """First in, first out; drawn by priority; bounded in use and staleness.

    Items are dicts. Those whose leaves are numbers or arrays are held in columns, others as they
    are. The n-th item pushed has unique id n; see `ItemIndex`. All methods take one lock.

    Args:
        cfg: settings, a mapping or an instance of `Config`.
        tb_logger: not used by this buffer.
        exp_name: name of the experiment, for messages.
        instance_name: prefix of ``replay_unique_id``.
        rng: draws; by default seeded anew from the system.
        prioritized: false draws uniformly, whatever the priorities are.
    """

    Config = AdvancedBufferConfig

    _cfg: Any
    _store: ColumnStore | ObjectStore | None
    _index: ItemIndex

    def __init__(
        self,
        cfg: Any = None,
        tb_logger: Any = None,  # noqa: ARG002 (the seeds' parameter)
        exp_name: str = "default_experiment",
        instance_name: str = "buffer",
        *,
        rng: np.random.Generator | None = None,
        prioritized: bool = True,
    ) -> None:
        self._cfg = self.parse_config(cfg)
        self._name = f"{exp_name}/{instance_name}"
        self._prefix = instance_name
        self._rng = rng if rng is not None else np.random.default_rng()
        self._prioritized = prioritized
        self._lock = threading.RLock()
        self._begin(0)

    def start(self) -> None:
        """Nothing runs in the background; kept for the seeds' callers."""

    def push(self, data: Any, cur_collector_envstep: int = -1) -> None:  # noqa: ARG002
        """Add an item or a list of items.

        An item may hold ``collect_iter`` (or ``policy_iter``), the train iteration of the policy
        that made it, and ``priority``; an item without one gets the largest priority so far.

        Raises:
            BufferContractError: one is not a dict, differs from what the buffer holds, or has a
                priority that is negative or not a number. Then none of them is added.
        """
        items: Sequence[Mapping[str, Any]] = data if isinstance(data, list) else [data]
        if not all(isinstance(item, Mapping) for item in items):
            raise BufferContractError(f"{self._name}: items must be dicts")
        if not items:
            return
        size = self.replay_buffer_size
        parts = [items[start : start + size] for start in range(0, len(items), size)]
        with self._lock:
            store: Any = self._store or store_for(items, size)
            prepared = [store.prepare(part) for part in parts]
            largest = self._index.counters.max_priority
            marks = [(made_at_of(part), priorities_of(part, largest, self._name)) for part in parts]
            self._store = store
            for columns, (made_at, priority) in zip(prepared, marks, strict=True):
                slots = self._index.claim(len(priority))
                store.put(slots, columns)
                self._index.admit(slots, made_at, priority)

    def push_columns(
        self, columns: Mapping[str, Array], made_at: Array | int, priority: Array | None = None
    ) -> range:
        """Add items given as columns [m, ...]; no more than the buffer holds.

        Args:
            columns: the items.
            made_at: train iteration of the policy that made them, [m] or one for all.
            priority: of each, [m]; None: the largest so far.

        Returns:
            Their unique ids.

        Raises:
            BufferContractError: too many at once, or they differ from what the buffer holds.
        """
        count = len(next(iter(columns.values()), ()))
        if count > self.replay_buffer_size:
            raise BufferContractError(
                f"{self._name}: {count} items at once do not fit into {self.replay_buffer_size}"
            )
        check_marks(made_at, priority, count, self._name)
        with self._lock:
            store = self._store or ColumnStore(self.replay_buffer_size)
            if not isinstance(store, ColumnStore):
                raise BufferContractError(f"{self._name}: holds objects, not columns")
            prepared = store.check(columns)
            self._store = store
            slots = self._index.claim(count)
            store.put(slots, prepared)
            self._index.admit(slots, made_at, priority)
            end = self._index.counters.pushed
            return range(end - count, end)

    def sample(
        self, size: int, cur_learner_iter: int, sample_range: slice | None = None
    ) -> list[dict[str, Any]] | None:
        """Draw items as dicts, with replacement; None where there are not enough.

        Each has ``replay_unique_id, replay_buffer_idx, priority, staleness, use, IS`` besides its
        own keys. With `sample_range` it draws uniformly among these items only, none of them twice,
        the oldest being item 0: ``slice(-10, None)`` are the ten newest.

        Raises:
            BufferContractError: `size` is below 1.
        """
        with self._lock:
            drawn = self._draw(size, cur_learner_iter, sample_range)
            if drawn is None or self._store is None:
                return None
            items = self._store.read(drawn.slots)
            add_marks(items, drawn, self._index.priority(drawn.slots), self._prefix)
            self._retire(drawn)
            return items

    def sample_batch(self, size: int, cur_learner_iter: int, draws: int = 1) -> Sample | None:
        """Draw items as columns; None where there are not enough, or they are not columns.

        Args:
            size: number of items.
            cur_learner_iter: the learner's current train iteration.
            draws: how many batches they are for, as the annealing of `beta` counts them.
        """
        with self._lock:
            if not isinstance(self._store, ColumnStore):
                return None
            drawn = self._draw(size, cur_learner_iter, draws=draws)
            if drawn is not None:
                self._retire(drawn)  # the store still has what the index has dropped
            return None if drawn is None else Sample(self._store.read_columns(drawn.slots), drawn)

    def update(self, info: Mapping[str, Any]) -> None:
        """Take new priorities: ``replay_unique_id, replay_buffer_idx, priority``, as lists.

        An item that has gone since, or is of another buffer, is passed over.
        """
        ids = np.array([number_of(n, self._prefix) for n in info["replay_unique_id"]], np.int64)
        self.update_priorities(ids, np.array(info["priority"], dtype=np.float64))

    def update_priorities(self, unique_ids: Array, priorities: Array) -> int:
        """Give items [m] new priorities [m]; gives how many of them are still here.

        Raises:
            BufferContractError: a priority is negative or not a number, or one is missing.
        """
        check_priorities(priorities, len(unique_ids), self._name)
        with self._lock:
            return self._index.reprioritize(unique_ids, priorities)

    def evict(self, before_id: int) -> None:
        """Drop all items whose unique id is below `before_id`."""
        with self._lock:
            self._index.evict(before_id)

    def close(self) -> None:
        """Drop everything; again: nothing."""
        if self._store is not None:
            self.clear()

    def clear(self) -> None:
        """Drop all items; counters begin anew. Ids go on: an old one never names a new item."""
        with self._lock:
            self._begin(self._index.counters.pushed)

    def count(self) -> int:
        """Items that can be drawn."""
        return self._index.counters.alive

    @property
    def replay_buffer_size(self) -> int:
        """Items that it can hold."""
        return int(self._cfg.replay_buffer_size)

    @property
    def push_count(self) -> int:
        """Items that were pushed since the last `clear`."""
        return self._index.counters.pushed - self._index.counters.origin

    @property
    def beta(self) -> float:
        """Exponent of the importance weights now; rises to 1 over `anneal_step` draws."""
        done = min(1.0, self._draws / float(self._cfg.anneal_step))
        return self._beta_start * (1 - done) + done

    @beta.setter
    def beta(self, value: float) -> None:
        self._beta_start, self._draws = value, 0

    def state_dict(self) -> dict[str, Any]:
        """Everything, copied; the random generator's state included."""
        with self._lock:
            return {
                "capacity": self.replay_buffer_size,
                "store_kind": "none" if self._store is None else self._store.kind,
                "data": {} if self._store is None else self._store.state_dict(),
                "index": self._index.state_dict(),
                "beta": {"start": self._beta_start, "draws": self._draws},
                "rng": {"state": self._rng.bit_generator.state},
            }

    def load_state_dict(self, _state_dict: Mapping[str, Any], deepcopy: bool = False) -> None:  # noqa: ARG002
        """Become the buffer of a `state_dict` (always copied).

        Raises:
            BufferContractError: it was of another capacity.
        """
        state = _state_dict
        if state["capacity"] != self.replay_buffer_size:
            raise BufferContractError(
                f"{self._name}: the saved buffer holds {state['capacity']} items, this one "
                f"{self.replay_buffer_size} (replay_buffer_size)"
            )
        with self._lock:
            self.clear()
            if state["store_kind"] != "none":
                self._store = store_of_kind(state["store_kind"], self.replay_buffer_size)
                self._store.load_state_dict(state["data"])
            self._index.load_state_dict(state["index"])
            self._beta_start, self._draws = state["beta"]["start"], state["beta"]["draws"]
            self._rng.bit_generator.state = state["rng"]["state"]

    def save_data(self, file_name: str | Path) -> None:
        """Write the state to an HDF5 file that appears whole."""
        save_state(file_name, "advanced_buffer", STATE_VERSION, self.state_dict())

    def load_data(self, file_name: str | Path) -> None:
        """Become the buffer of a file."""
        self.load_state_dict(load_state(file_name, "advanced_buffer", STATE_VERSION))

    def _begin(self, first_id: int) -> None:
        size = self.replay_buffer_size
        sampler = PrioritizedSampler(size, self._cfg.alpha) if self._prioritized else None
        self._store = None
        self._index = ItemIndex(size, sampler or UniformSampler(size), first_id)
        self._beta_start, self._draws = float(self._cfg.beta), 0

    def _draw(
        self, size: int, cur_learner_iter: int, sample_range: slice | None = None, draws: int = 1
    ) -> Drawn | None:
        if size < 1:
            raise BufferContractError(f"{self._name}: cannot draw {size} items")
        if np.isfinite(self._cfg.max_staleness):
            self._index.drop_stale(cur_learner_iter, self._cfg.max_staleness)
        if self.count() < max(size, self._cfg.min_fill):
            return None
        if sample_range is not None:
            drawn = self._index.draw_range(size, cur_learner_iter, sample_range, self._rng)
        else:
            drawn = self._index.draw(size, cur_learner_iter, self.beta, self._rng)
        self._draws += draws if drawn is not None else 0
        return drawn

    def _retire(self, drawn: Drawn) -> None:
        if np.isfinite(self._cfg.max_use):
            self._index.drop_used(drawn.slots, self._cfg.max_use)
