"""Replay buffers that draw uniformly: items, the newest of them, or sequences of them.

That of whole episodes is in `episode_buffer`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from hpcdi.config.fields import setting
from hpcdi.config.replay import BufferConfig
from hpcdi.dataclass import dataclass
from hpcdi.errors import BufferContractError
from hpcdi.replay.index import Drawn
from hpcdi.replay.monitor import PeriodicThruput, Reports
from hpcdi.replay.samplers import positions
from hpcdi.types import Array
from hpcdi.worker.dict_envs import to_arrays
from hpcdi.worker.replay_buffer.base_buffer import RingBuffer, Sample
from hpcdi.worker.replay_buffer.items import ItemStore
from hpcdi.worker.replay_buffer.ring import Ring

_ENDS = ("done", "terminated", "truncated")
_TRIALS = 4  # starts drawn for one that is needed, before all are listed


@dataclass(frozen=True)
class NaiveBufferConfig(BufferConfig):
    """Settings of the uniform replay buffer."""

    type: str = "naive"
    periodic_thruput_seconds: float = setting(
        60, "seconds between two reports of its traffic", above=0
    )


class NaiveReplayBuffer(RingBuffer):
    """First in, first out; every item is drawn with the same probability.

    See `RingBuffer` for the arguments. Items may be anything.
    """

    Config = NaiveBufferConfig
    _cfg: NaiveBufferConfig

    kind: ClassVar[str] = "naive_buffer"

    _items: ClassVar[str] = "items"

    def sample(
        self,
        size: int,
        cur_learner_iter: int,  # noqa: ARG002 (DI-engine's parameter)
        sample_range: slice | None = None,
        replace: bool = False,
    ) -> list[Any] | None:
        """Draw `size` items; None where there are not enough.

        Args:
            size: number of items.
            cur_learner_iter: not used.
            sample_range: draw among these only, the oldest being item 0: ``slice(-10, None)`` are
                the ten newest.
            replace: an item may be drawn more than once.

        Raises:
            BufferContractError: `size` is below 0.
        """
        if size == 0:
            return []
        with self._lock:
            ids = self._draw(size, sample_range, replace)
            if ids is None or self._ring.store is None:
                return None
            self._note(drawn=size)
            return self._ring.store.read(self._ring.slots_of(ids))

    def sample_batch(
        self,
        size: int,
        cur_learner_iter: int = -1,  # noqa: ARG002
        *,
        sample_range: slice | None = None,
        replace: bool = False,
        tensors: bool = False,
        pin_memory: bool = False,
    ) -> Sample | None:
        """Draw items as columns [size, ...]; None where there are not enough, or no columns.

        Args:
            size: number of items.
            cur_learner_iter: not used.
            sample_range: see `sample`.
            replace: see `sample`.
            tensors: return torch tensors instead of arrays.
            pin_memory: return tensors in page-locked memory.

        Raises:
            BufferContractError: `size` is below 1, or there is no device to pin memory for.
        """
        with self._lock:
            if not isinstance(self._ring.store, ItemStore):
                return None
            ids = self._draw(size, sample_range, replace)
            return self._give(self._ring.store, ids, tensors, pin_memory)

    def update(self, info: Mapping[str, Any]) -> None:
        """Nothing is known of items that could change; kept for DI-engine's callers."""

    def _new_monitor(self, tb_logger: Any) -> PeriodicThruput:
        reports = Reports(tb_logger, self._name)
        return PeriodicThruput(reports, self._cfg.periodic_thruput_seconds)

    def _note(self, pushed: int = 0, drawn: int = 0) -> None:
        if self._monitor.note(pushed, drawn):
            self._report()
        self._remove_used()

    def _report(self) -> None:
        self._monitor.report(self.count())

    def _give(
        self, store: ItemStore, ids: Array | None, tensors: bool, pin_memory: bool
    ) -> Sample | None:
        """Items of ids of any shape that were drawn, as columns; uniform draws all weigh 1."""
        if ids is None:
            return None
        self._note(drawn=ids.size)
        slots = self._ring.slots_of(ids)
        ones, unknown = _plain_marks(ids.shape)
        drawn = Drawn(slots, ids, ones, unknown, unknown)
        return Sample(self._shaped(store.read_columns(slots), tensors, pin_memory), drawn)

    def _draw(self, size: int, sample_range: slice | None, replace: bool) -> Array | None:
        """Ids of `size` items, or None where there are not enough."""
        chosen = self._choose(size, sample_range, replace)
        if chosen is not None:
            chosen += self._ring.pushed - self.count()
        return chosen

    def _choose(self, size: int, sample_range: slice | None, replace: bool) -> Array | None:
        """Positions of `size` items, the oldest being 0; None where there are not enough."""
        if size < 1:
            raise BufferContractError(f"cannot draw {size} {self._items}")
        among = range(self.count())[sample_range or slice(None)]
        if len(among) < (1 if replace else size):
            return None
        if replace:
            chosen = positions(self._rng, len(among), size)
        else:
            chosen = self._rng.choice(len(among), size, replace=False)
        if among.step != 1:
            chosen *= among.step
        if among.start:
            chosen += among.start
        return chosen


@dataclass(frozen=True)
class ElasticBufferConfig(NaiveBufferConfig):
    """Settings of the buffer whose size follows the run."""

    type: str = "elastic"
    set_buffer_size: Any = setting(
        None, "environment steps -> items that it holds then; a function, not for YAML"
    )


class ElasticReplayBuffer(NaiveReplayBuffer):
    """Draws among the newest ``set_buffer_size(env steps)`` items, at most `replay_buffer_size`.

    See `RingBuffer` for the arguments. As the size grows again, older items come back.
    """

    Config = ElasticBufferConfig
    _cfg: ElasticBufferConfig
    kind: ClassVar[str] = "elastic_buffer"

    def __init__(
        self,
        cfg: Any = None,
        tb_logger: Any = None,
        exp_name: str = "default_experiment",
        instance_name: str = "buffer",
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(cfg, tb_logger, exp_name, instance_name, rng=rng)
        if not callable(self._cfg.set_buffer_size):
            raise BufferContractError(
                f"{exp_name}/{instance_name}: set_buffer_size must be a function of the "
                "environment steps that returns a number of items"
            )
        self.update(0)

    def update(self, envstep: int) -> None:  # type: ignore[override]
        """Take the size for this number of environment steps.

        Raises:
            BufferContractError: `set_buffer_size` returns no number.
        """
        with self._lock:
            size = self._cfg.set_buffer_size(envstep)
            try:
                self._window = max(1, int(min(size, self.replay_buffer_size)))
            except (TypeError, ValueError) as error:
                raise BufferContractError(
                    f"set_buffer_size({envstep}) returns {size!r}, not a number of items"
                ) from error

    def count(self) -> int:
        """Items that can be drawn."""
        return min(len(self._ring), self._window)

    def _state(self, shared: bool = False) -> dict[str, Any]:
        return super()._state(shared) | {"window": self._window}

    def _restore(self, state: Mapping[str, Any], shared: bool = False) -> None:
        super()._restore(state, shared)
        self._window = int(state["window"])


@dataclass(frozen=True)
class SequenceBufferConfig(NaiveBufferConfig):
    """Settings of the buffer of sequences."""

    type: str = "sequence"


class SequenceReplayBuffer(NaiveReplayBuffer):
    """Draws runs of items that follow each other in one episode.

    An item ends its episode if its ``done``, ``terminated`` or ``truncated`` is true; the next one
    is of another episode too if its ``env_id`` is another. A sequence never crosses the end of an
    episode, nor the place where the newest item follows the oldest one. Items without ``env_id``,
    as serial collectors make them, are taken for one environment's, one step after the other: for
    whole sequences collect in one environment, and with ``drop_extra=False``. See `RingBuffer` for
    the arguments.
    """

    Config = SequenceBufferConfig
    kind: ClassVar[str] = "sequence_buffer"

    def sample(  # type: ignore[override]
        self,
        batch: int,
        sequence: int,
        cur_learner_iter: int,  # noqa: ARG002 (DI-engine's parameter)
        sample_range: slice | None = None,
        replace: bool = False,
    ) -> list[list[Any]] | None:
        """Draw `batch` lists of `sequence` items; None where there are not enough.

        Args:
            batch: number of sequences; they may overlap.
            sequence: items of each.
            cur_learner_iter: not used.
            sample_range: draw among these items only, the oldest being item 0.
            replace: a sequence may be drawn more than once.

        Raises:
            BufferContractError: `batch` is below 0 or `sequence` below 1, or the range has steps.
        """
        if batch == 0:
            return []
        with self._lock:
            ids = self._draw_sequences(batch, sequence, sample_range, replace)
            if ids is None or self._ring.store is None:
                return None
            self._note(drawn=ids.size)
            items = self._ring.store.read(self._ring.slots_of(ids.reshape(-1)))
            return [items[start : start + sequence] for start in range(0, len(items), sequence)]

    def sample_batch(  # type: ignore[override]
        self,
        batch: int,
        sequence: int,
        cur_learner_iter: int = -1,  # noqa: ARG002
        *,
        sample_range: slice | None = None,
        replace: bool = False,
        tensors: bool = False,
        pin_memory: bool = False,
    ) -> Sample | None:
        """Draw sequences as columns [batch, sequence, ...]; see `sample`.

        The bookkeeping of the items has the shape [batch, sequence] too.
        """
        with self._lock:
            if not isinstance(self._ring.store, ItemStore):
                return None
            ids = self._draw_sequences(batch, sequence, sample_range, replace)
            return self._give(self._ring.store, ids, tensors, pin_memory)

    def _begin(self, ring: Ring) -> None:
        super()._begin(ring)
        self._episode_of = np.zeros(ring.capacity, dtype=np.int64)
        """Of each slot: the id of the first item of its episode, as far as the ring has known."""
        self._find_episodes(ring.first)

    def _note(self, pushed: int = 0, drawn: int = 0) -> None:
        if pushed:
            self._find_episodes(max(self._ring.pushed - pushed, self._ring.first))
        super()._note(pushed, drawn)

    def _find_episodes(self, first_id: int) -> None:
        """Find the episodes of the items from `first_id` on."""
        if first_id == self._ring.pushed:
            return
        follows = first_id > self._ring.first  # on an item that is still here
        ids = np.arange(first_id - follows, self._ring.pushed)
        slots = self._ring.slots_of(ids)
        ends, envs = self._borders(slots)
        others = (envs[1:] != envs[:-1]).any(axis=1)
        begins = np.concatenate([[True], ends[:-1] | others])
        first_ids = np.where(begins, ids, 0)
        if follows:
            first_ids[0] = self._episode_of[slots[0]]
        self._episode_of[slots] = np.maximum.accumulate(first_ids)

    def _borders(self, slots: Array) -> tuple[Array, Array]:
        """Of items in slots [m]: whether each ends its episode, and its environment [m, k]."""
        store, count = self._ring.store, len(slots)
        ends, envs = np.zeros(count, dtype=bool), np.zeros(count, dtype=np.int64)
        if isinstance(store, ItemStore):
            for name in _ENDS:
                column = store.column(name)
                if column is not None:
                    ends |= column[slots].reshape(count, -1).any(axis=1)
            env_id = store.column("env_id")
            envs = env_id[slots] if env_id is not None else envs
        elif store is not None:
            items = [store.peek(slot) for slot in slots.tolist()]
            fields = [item if isinstance(item, Mapping) else {} for item in items]
            ends = np.array(
                [any(np.any(to_arrays(s.get(n, False))) for n in _ENDS) for s in fields], dtype=bool
            )
            numbers: dict[str, int] = {}  # an environment may be called anything
            names = [str(s.get("env_id", 0)) for s in fields]
            envs = np.array([numbers.setdefault(n, len(numbers)) for n in names], dtype=np.int64)
        return ends, envs.reshape(count, -1)

    def _draw_sequences(
        self, batch: int, sequence: int, sample_range: slice | None, replace: bool
    ) -> Array | None:
        """Ids [batch, sequence], or None where there are not enough sequences."""
        if batch < 1 or sequence < 1:
            raise BufferContractError(f"cannot draw {batch} sequences of {sequence} items")
        among = range(self.count())[sample_range or slice(None)]
        if among.step != 1:
            raise BufferContractError(f"sequences are of neighbours, not of every {among.step}")
        starts = len(among) - sequence + 1
        if starts < 1:
            return None
        first = self._ring.pushed - self.count() + among.start
        trials = _TRIALS * batch
        if replace or trials < starts:
            chosen = positions(self._rng, starts, trials)
            chosen = chosen if replace else _different(chosen)
            starting_ids = self._whole(first + chosen, sequence)[:batch]
        else:
            starting_ids = np.zeros(0, np.int64)
        if len(starting_ids) < batch:  # rather few are whole: list them all
            whole = self._whole(np.arange(first, first + starts), sequence)
            if len(whole) < (1 if replace else batch):
                return None
            starting_ids = self._rng.choice(whole, batch, replace=replace)
        ids: Array = starting_ids[:, None] + np.arange(sequence)
        return ids

    def _whole(self, ids: Array, sequence: int) -> Array:
        """Those of ids [m] at which a sequence begins that lies in one episode."""
        episode, size = self._episode_of, self._ring.capacity
        whole: Array = ids[episode[ids % size] == episode[(ids + sequence - 1) % size]]
        return whole


@functools.lru_cache(maxsize=16)
def _plain_marks(shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Weights of 1 and marks of -1, not to be written."""
    ones, unknown = np.ones(shape, np.float32), np.full(shape, -1)
    ones.flags.writeable = unknown.flags.writeable = False
    return ones, unknown


def _different(values: Array) -> Array:
    """Each of values [m] once, in the order in which they come first."""
    _, first = np.unique(values, return_index=True)
    return values[np.sort(first)]
