"""The uniform replay buffer."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from hpcdi.config.fields import setting
from hpcdi.errors import BufferContractError
from hpcdi.store.rows import RowStore
from hpcdi.types import Array
from hpcdi.utils.registry import BUFFER_REGISTRY
from hpcdi.worker.replay_buffer.base_buffer import BufferConfig, Drawn, RingBuffer, Sample
from hpcdi.worker.replay_buffer.samplers import positions


@dataclass(frozen=True)
class NaiveBufferConfig(BufferConfig):
    """Settings of the uniform replay buffer."""

    type: str = "naive"
    periodic_thruput_seconds: float = setting(
        60, "seconds between two reports of its traffic", above=0
    )


@BUFFER_REGISTRY.register("naive")
class NaiveReplayBuffer(RingBuffer):
    """First in, first out; every item is drawn with the same probability.

    See `RingBuffer` for the arguments. Items may be anything.
    """

    Config = NaiveBufferConfig
    kind: ClassVar[str] = "naive_buffer"
    _items: ClassVar[str] = "items"

    def sample(
        self,
        size: int,
        cur_learner_iter: int,  # noqa: ARG002 (the seeds' parameter)
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
            BufferContractError: `size` is below 1.
        """
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
            if not isinstance(self._ring.store, RowStore):
                return None
            ids = self._draw(size, sample_range, replace)
            return self._give(self._ring.store, ids, tensors, pin_memory)

    def update(self, info: Mapping[str, Any]) -> None:
        """Nothing is known of items that could change; kept for the seeds' callers."""

    def _give(
        self, store: RowStore, ids: Array | None, tensors: bool, pin_memory: bool
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


def __getattr__(name: str) -> Any:
    """Buffers that derive from this one, at the predecessor's path."""
    if name in ("ElasticReplayBuffer", "SequenceReplayBuffer"):
        return getattr(import_module("hpcdi.worker.replay_buffer"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.lru_cache(maxsize=16)
def _plain_marks(shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Weights of 1 and marks of -1, not to be written."""
    ones, unknown = np.ones(shape, np.float32), np.full(shape, -1)
    ones.flags.writeable = unknown.flags.writeable = False
    return ones, unknown
