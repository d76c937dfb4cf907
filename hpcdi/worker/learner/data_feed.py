"""Where a learner's batches come from: rows in RAM, drawn by rank 0, gathered ahead.

Rank 0 orders in which rows a block goes and which rows make a batch. Both orders come on one link
and are carried out as they come, on the communication thread: so a batch has been gathered before
the order that overwrites its rows is even read. The computing thread takes gathered batches.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from hpcdi.comm.messages import (
    AdmitBlock,
    Batches,
    BlockAdmitted,
    DataDemand,
    Message,
    TakeSnapshot,
)
from hpcdi.errors import BufferContractError, StoreError
from hpcdi.store.layout import RunLayout
from hpcdi.store.rows import RowStore, transitions
from hpcdi.store.shards import read_block
from hpcdi.transport.base import Transport
from hpcdi.types import Array, Columns
from hpcdi.worker.learner.staging import HostStage, for_policy

_WAIT_S = 0.02
_BATCHES_AHEAD = 16  # whose memory is used again
_AHEAD_S = 0.5
"""So much computing may wait ready."""

_Gathered: TypeAlias = tuple[Any, Array, Array, int]
"""A staged batch, unique ids, weights, environment steps of the run."""


@dataclass
class Batch:
    """One batch, as the policy takes it.

    Attributes:
        columns: see `for_policy`.
        unique_ids: int64 [batch]; name the items.
        env_steps: environment steps of the run when it was drawn.
        feedback: takes the items' new priorities, float64 [batch].
    """

    columns: Any
    unique_ids: Array
    env_steps: int
    feedback: Callable[[Array], None]


@dataclass
class _Feedback:
    """Priorities that wait for the next request."""

    ids: list[Array] = field(default_factory=list)
    priorities: list[Array] = field(default_factory=list)

    def take(self) -> tuple[Array, Array]:
        ids, self.ids = self.ids, []
        priorities, self.priorities = self.priorities, []
        if not ids:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        return np.concatenate(ids), np.concatenate(priorities)


@dataclass
class _Ahead:
    """How many batches are prefetched: a given number, and fewer where an iteration takes long.

    They take memory, their priorities grow old, and at the end of a run all learners do them still.
    """

    most: int
    under_way: int = 0
    """Requested and not taken yet."""
    iteration_s: float = 0.0
    """Moving average of a train iteration's time."""
    taken_at: float | None = None

    def computed(self, now: float) -> None:
        """Record that training on the last batch is done."""
        if self.taken_at is not None:
            self.iteration_s += 0.2 * (now - self.taken_at - self.iteration_s)
            self.taken_at = None

    def took(self, now: float) -> None:
        """Record that a batch was taken."""
        self.under_way, self.taken_at = self.under_way - 1, now

    def missing(self) -> int:
        """Batches to request now: none, or at least a quarter of what may be under way."""
        limit = max(2, int(_AHEAD_S / max(self.iteration_s, 1e-9)))
        may = min(self.most, limit)
        missing = may - self.under_way
        return missing if missing >= max(1, may // 4) else 0


@dataclass(frozen=True)
class FeedOrder:
    """A feed's requests: the batch size, and how many batches may be under way."""

    task_id: str
    batch_size: int
    prefetch: int


class DataFeed:
    """Prefetched batches.

    Args:
        transport: fetches blocks.
        send: sends a message to rank 0.
        order: what to ask for.

    Attributes:
        stage: where batches wait; set before the first one is asked for.
        order: what it asks for.
    """

    def __init__(
        self,
        transport: Transport,
        send: Callable[[Message], None],
        order: FeedOrder,
    ) -> None:
        self.stage = HostStage()
        self._transport, self._send, self.order = transport, send, order
        self._ring: RowStore | None = None
        self._ready: queue.SimpleQueue[_Gathered | TakeSnapshot | None] = queue.SimpleQueue()
        self._ahead = _Ahead(order.prefetch)
        self._feedback = _Feedback()

    @property
    def as_columns(self) -> bool:
        """True for tensors by column; else batches are lists of dicts."""
        return self.stage.as_columns

    @as_columns.setter
    def as_columns(self, value: bool) -> None:
        self.stage.as_columns = value

    # ------------------------------------------------------------------ on the communication thread

    def admit(self, _rank: int, order: AdmitBlock) -> None:
        """Read a block into its rows and report it; an unreadable one costs its rows only."""
        error = ""
        try:
            columns = self._transport.fetch(order.shard)
            if self._ring is None:
                self._ring = RowStore(
                    order.ring_rows, views=order.shard.views, batches_ahead=_BATCHES_AHEAD
                )
            self._ring.write(order.first_row, columns)
        except (StoreError, BufferContractError) as problem:
            error = str(problem)
        latency_s = max(0.0, time.time() - order.sealed_at)
        self._send(BlockAdmitted(order.block_id, latency_s, error))

    def fill(self, _rank: int, order: Batches) -> None:
        """Gather the rows of some batches."""
        if self._ring is None:
            raise BufferContractError("rank 0 drew a batch before any block was admitted")
        staged = self.stage.split(self._ring.gather(order.rows.reshape(-1)), order.weights)
        for part, unique_ids, weights in zip(staged, order.unique_ids, order.weights, strict=True):
            self._ready.put((part, unique_ids, weights, order.env_steps))

    def mark(self, order: TakeSnapshot) -> None:
        """Take a snapshot between the batches received so far and the next ones."""
        self._ready.put(order)

    def end(self) -> None:
        """End the feed after the batches received so far."""
        self._ready.put(None)

    # ---------------------------------------------------------------------- on the computing thread

    def next(
        self, train_iter: int, idle: Callable[[], None], snapshot: Callable[[TakeSnapshot], None]
    ) -> Batch | None:
        """Returns the next batch; None when no more will come.

        Args:
            train_iter: iterations that are done.
            idle: called now and then while there is nothing to do.
            snapshot: takes one, where it stands between two batches.
        """
        self._ahead.computed(time.monotonic())
        self._ask(train_iter)
        while True:
            try:
                gathered = self._ready.get(timeout=_WAIT_S)
            except queue.Empty:
                idle()
                continue
            if gathered is None:
                return None
            if isinstance(gathered, TakeSnapshot):
                snapshot(gathered)
                continue
            self._ahead.took(time.monotonic())
            return self._batch(*gathered)

    def drain(self, snapshot: Callable[[TakeSnapshot], None]) -> None:
        """Drop all waiting batches, but take the snapshots among them."""
        while True:
            try:
                left = self._ready.get_nowait()
            except queue.Empty:
                return
            if isinstance(left, TakeSnapshot):
                snapshot(left)

    def _ask(self, train_iter: int) -> None:
        """Request more as soon as a quarter of what may be under way has been taken."""
        order, missing = self.order, self._ahead.missing()
        if not missing:
            return
        self._ahead.under_way += missing
        ids, priorities = self._feedback.take()
        self._send(
            DataDemand(order.task_id, missing, order.batch_size, train_iter, ids, priorities)
        )

    def _batch(self, columns: Any, unique_ids: Array, weights: Array, env_steps: int) -> Batch:
        def feedback(priorities: Array) -> None:
            self._feedback.ids.append(unique_ids)
            self._feedback.priorities.append(priorities)

        return Batch(self.stage.take(columns, weights), unique_ids, env_steps, feedback)


def load_shard(
    path: str | Path, meta: Mapping[str, Any], decompressor: Callable[[Any], Any] | None = None
) -> dict[str, Any]:
    """Returns a shard's columns with metadata beside them.

    Args:
        path: the shard.
        meta: merged over the columns.
        decompressor: applied to the columns first.

    Raises:
        ShardError: the shard is missing, torn, or not one of ours.
    """
    columns: Any = read_block(path)[0].columns
    return {**(decompressor(columns) if decompressor else columns), **meta}


def batch_of_shards(
    layout: RunLayout, data: Sequence[Mapping[str, Any]], *, as_columns: bool
) -> Any:
    """One batch of all transitions of some shards; see `for_policy`.

    Args:
        layout: the run folder.
        data: metadata of each shard, for each of its transitions: ``data_id`` is its path in the
            run folder, ``IS`` the weight.
        as_columns: the form of the batch; without columns, metadata go over a transition's keys.
    """
    shards: list[tuple[Columns, Mapping[str, Any]]] = [
        (transitions(read_block(layout.inside(meta["data_id"]))[0]), meta) for meta in data
    ]
    names = list(shards[0][0])
    columns = {name: np.concatenate([part[name] for part, _ in shards]) for name in names}
    metas = [meta for part, meta in shards for _ in range(len(part[names[0]]))]
    weights = np.array([meta.get("IS", 1.0) for meta in metas], dtype=np.float32)
    batch = for_policy(columns, weights, as_columns=as_columns)
    if as_columns:
        return batch
    return [{**item, **meta} for item, meta in zip(batch, metas, strict=True)]
