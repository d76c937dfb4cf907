"""The replay buffer of episodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hpcdi.dataclass import dataclass
from hpcdi.errors import BufferContractError
from hpcdi.replay.samplers import positions
from hpcdi.types import Array, Columns
from hpcdi.worker.replay_buffer.items import ItemStore, arrays_of
from hpcdi.worker.replay_buffer.naive_buffer import NaiveBufferConfig, NaiveReplayBuffer
from hpcdi.worker.replay_buffer.ring import Ring

_FIRST_ROWS = 1024


class EpisodeSample(NamedTuple):
    """Episodes, or slices of them, that were drawn."""

    columns: dict[str, Any]
    """Arrays, or torch tensors, [m, steps, ...]; nested as transitions are; 0 beyond an end."""
    lengths: Array
    """Transitions of each, int64 [m]."""
    unique_ids: Array
    """Of the episodes, int64 [m]: the n-th one pushed is n."""


@dataclass(frozen=True)
class EpisodeBufferConfig(NaiveBufferConfig):
    """Settings of the buffer of episodes; an item is an episode."""

    type: str = "episode"


class EpisodeReplayBuffer(NaiveReplayBuffer):
    """Items are whole episodes; the oldest are overwritten.

    An episode is a list of transitions, or its columns [steps, ...]. All transitions lie in one
    ring of rows that grows as it must, so that slices of many episodes are read at once. See
    `RingBuffer` for the arguments.
    """

    Config = EpisodeBufferConfig
    kind: ClassVar[str] = "episode_buffer"
    _items: ClassVar[str] = "episodes"
    _episodes: deque[tuple[int, int]]  # id of the first transition, how many there are
    _table: Array | None = None  # the same, int64 [episodes, 2]; None: to be made
    _pushed: int = 0  # number of the next episode; `_origin` is the first since the last `clear`

    @property
    def episode_len(self) -> list[int]:
        """Transitions of each episode that is here, in the order of ``state_dict()["data"]``."""
        with self._lock:
            lengths = [length for _, length in self._episodes]
            numbers = range(self._pushed - len(lengths), self._pushed)
            slots = [number % self.replay_buffer_size for number in numbers]
        return [length for _, length in sorted(zip(slots, lengths, strict=True))]

    def count(self) -> int:
        """Episodes that are here."""
        return len(self._episodes)

    @property
    def push_count(self) -> int:
        """Episodes that were pushed since the last `clear`."""
        return self._pushed - self._origin

    def sample(
        self,
        size: int,
        cur_learner_iter: int,  # noqa: ARG002 (DI-engine's parameter)
        sample_range: slice | None = None,
        replace: bool = False,
    ) -> list[Any] | None:
        """Draw `size` whole episodes, each a list of transitions.

        See `NaiveReplayBuffer.sample` for the arguments.
        """
        if size == 0:
            return []
        with self._lock:
            chosen = self._choose(size, sample_range, replace)
            if chosen is None or self._ring.store is None:
                return None
            self._note(drawn=size)
            episodes = self._by_age()[chosen].tolist()
            return [self._ring.store.read(self._ring.slots(f, f + n)) for f, n in episodes]

    def sample_batch(  # type: ignore[override]
        self,
        size: int,
        cur_learner_iter: int = -1,  # noqa: ARG002
        *,
        length: int | None = None,
        sample_range: slice | None = None,
        replace: bool = False,
        tensors: bool = False,
        pin_memory: bool = False,
    ) -> EpisodeSample | None:
        """Draw episodes, or slices of them, as columns; None where there are not enough.

        Args:
            size: how many.
            cur_learner_iter: not used.
            length: transitions of a slice: each slice of each episode is as likely, and may be
                drawn again. None: whole episodes, with zeros after the shorter ones.
            sample_range: draw among these episodes only, the oldest being 0.
            replace: a whole episode may be drawn more than once.
            tensors: return torch tensors instead of arrays.
            pin_memory: return tensors in page-locked memory.
        """
        with self._lock:
            store = self._ring.store
            if not isinstance(store, ItemStore):
                return None
            drawn = (
                self._draw_whole(size, sample_range, replace)
                if length is None
                else self._draw_slices(size, length, sample_range)
            )
            if drawn is None:
                return None
            self._note(drawn=size)
            first_ids, lengths, numbers = drawn
            steps = np.arange(lengths.max(initial=0))
            beyond = steps >= lengths[:, None]
            rows = np.where(beyond, first_ids[:, None], first_ids[:, None] + steps)
            columns = store.read_columns(self._ring.slots_of(rows))
            for column in columns.values():
                column[beyond] = 0
            return EpisodeSample(self._shaped(columns, tensors, pin_memory), lengths, numbers)

    def _state(self, shared: bool = False) -> dict[str, Any]:
        lengths = np.array([length for _, length in self._episodes], dtype=np.int64)
        numbers = {"pushed": self._pushed, "origin": self._origin}
        return super()._state(shared) | {"lengths": lengths, "numbers": numbers}

    def _restore(self, state: Mapping[str, Any], shared: bool = False) -> None:
        super()._restore(state, shared)
        lengths = np.asarray(state["lengths"]).tolist()
        first_ids = self._ring.pushed - np.cumsum(lengths[::-1])[::-1]
        self._episodes = deque(zip(first_ids.tolist(), lengths, strict=True))
        numbers = state["numbers"]
        self._pushed, self._origin = int(numbers["pushed"]), int(numbers["origin"])

    def _count_pushed(self, count: int) -> None:
        self._origin = self._pushed - count

    def _begin(self, ring: Ring) -> None:
        super()._begin(ring)
        self._episodes, self._table = deque(), None
        self._origin = self._pushed

    def _new_ring(self, first_id: int, capacity: int = 0) -> Ring:
        return super()._new_ring(first_id, capacity or _FIRST_ROWS)

    def _push_one(self, item: Any) -> int:
        if not isinstance(item, Mapping):
            raise BufferContractError("an episode is a list of transitions in a list, or columns")
        return self._push_list([item])

    def _push_columns(self, columns: Mapping[str, Any]) -> int:
        return self._push_list([columns])

    def _push_list(self, items: list[Any]) -> int:
        """Add episodes: all are lists of transitions, or all are columns."""
        if all(isinstance(item, list) and item for item in items):
            lengths = [len(item) for item in items]
            self._make_room(sum(lengths))
            ids = self._ring.extend([transition for item in items for transition in item])
        elif all(isinstance(item, Mapping) for item in items):
            columns, lengths = _joined(items)
            self._make_room(sum(lengths))
            ids = self._ring.extend_columns(columns)
        else:
            raise BufferContractError(
                "episodes are lists of at least one transition, or columns [steps, ...]; to push "
                "one episode, put it into a list"
            )
        first = ids.start
        for length in lengths:
            self._episodes.append((first, length))
            first += length
        self._table = None
        self._pushed += len(lengths)
        while len(self._episodes) > self.replay_buffer_size:
            self._episodes.popleft()
        self._ring.forget(self._episodes[0][0])
        return len(lengths)

    def _make_room(self, rows: int) -> None:
        """Have room for more transitions without overwriting any."""
        needed = len(self._ring) + rows
        if needed > self._ring.capacity:
            self._ring.grow_to(max(needed, 2 * self._ring.capacity))

    def _by_age(self) -> Array:
        """Id of the first transition of each episode, and how many there are: int64 [episodes, 2].

        It is made once for all draws between two pushes.
        """
        if self._table is None:
            self._table = np.array(self._episodes, dtype=np.int64).reshape(-1, 2)
        return self._table

    def _draw_whole(
        self, size: int, sample_range: slice | None, replace: bool
    ) -> tuple[Array, Array, Array] | None:
        """First ids, lengths and numbers of episodes [size]."""
        chosen = self._choose(size, sample_range, replace)
        if chosen is None:
            return None
        first_ids, lengths = self._by_age()[chosen].T
        return first_ids, lengths, chosen + self._pushed - self.count()

    def _draw_slices(
        self, size: int, length: int, sample_range: slice | None
    ) -> tuple[Array, Array, Array] | None:
        """First ids and lengths of slices [size], and the numbers of their episodes."""
        if size < 1 or length < 1:
            raise BufferContractError(f"cannot draw {size} slices of {length} transitions")
        episodes = self._by_age()
        among = np.arange(len(episodes))[sample_range or slice(None)]
        ends = np.cumsum(np.maximum(episodes[among, 1] - length + 1, 0))
        if not ends.size or ends[-1] == 0:
            return None
        drawn = positions(self._rng, ends[-1], size)
        chosen = ends.searchsorted(drawn, side="right")
        before = np.concatenate([[0], ends])[chosen]
        first_ids = episodes[among[chosen], 0] + drawn - before
        numbers = among[chosen] + self._pushed - self.count()
        return first_ids, np.full(size, length), numbers


def _joined(episodes: Sequence[Mapping[str, Any]]) -> tuple[Columns, list[int]]:
    """Columns of episodes one after the other, and the length of each."""
    flat = [arrays_of(episode) for episode in episodes]
    lengths = []
    for columns in flat:
        sizes = {len(c) if c.ndim else 0 for c in columns.values()}
        if len(sizes) != 1 or columns.keys() != flat[0].keys() or not min(sizes):
            raise BufferContractError(
                "columns of an episode are of one length [steps, ...], at least 1, and of one set "
                "of names; a list of transitions goes into a list: push([transitions])"
            )
        lengths.append(sizes.pop())
    try:
        return {n: np.concatenate([columns[n] for columns in flat]) for n in flat[0]}, lengths
    except ValueError as error:
        raise BufferContractError(f"episodes of one push differ in shape: {error}") from error
