"""A learner's batches: gathering them, and moving them to the device.

Rank 0 decides into which rows a block goes and which rows make a batch. Both orders come on one
link and are carried out in turn, on the communication thread: so a batch has been gathered before
the order that overwrites its rows is even read. Blocks whose collectors must be asked for their
rows come later, but in the same order. The computing thread takes gathered batches.

With a GPU (`CudaStage`) the communication thread also starts the copy: into page-locked memory, and
from there by a separate stream, while the GPU computes. The computing thread makes its stream wait
for the copy, and does not wait itself. Without a GPU batches stay where they are (`HostStage`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hpcdi.comm.messages import (
    AdmitBlock,
    Batches,
    BlockAdmitted,
    DataDemand,
    Message,
    Rows,
)
from hpcdi.dataclass import dataclass
from hpcdi.errors import BufferContractError, CommError, StoreError
from hpcdi.policy.base import LearnMode, attribute_of
from hpcdi.roles.context import COORDINATOR_RANK
from hpcdi.roles.learner.training import Batch
from hpcdi.store.memory import Recycler
from hpcdi.store.rows import RowStore
from hpcdi.transport.base import Transport
from hpcdi.types import INFO, Array, Columns, collector_of
from hpcdi.utils.nested import share_tensors

if TYPE_CHECKING:
    import torch

_BATCHES_AHEAD = 16  # batches whose memory is reused
_MOST_THREADS = 8  # that gather for a GPU: more of them do not read memory faster
_NO_FEEDBACK: tuple[Array, Array] = np.zeros(0, np.int64), np.zeros(0)
_AHEAD_S = 0.5
"""Seconds of computing for which batches are prefetched at most."""
_ANSWER_S = 10.0
"""Seconds for a collector to send the rows of a block; after them its shard is read."""


# --------------------------------------------------------------------------------- to the device


class HostStage:
    """Batches stay where they are.

    Attributes:
        recycler: makes the arrays that batches are gathered into.
    """

    def __init__(self) -> None:
        self.recycler = Recycler(_BATCHES_AHEAD)

    def split(self, columns: Columns, weights: Array) -> Iterator[Any]:
        """Splits columns of several batches, and starts to move them; yields what `take` takes.

        Args:
            columns: name -> [batches x batch, ...]; nobody may write to them any more.
            weights: importance weights, float32 [batches, batch].
        """
        size = weights.shape[1]
        for k in range(len(weights)):
            batch = {name: column[k * size : (k + 1) * size] for name, column in columns.items()}
            yield {**batch, "weight": weights[k]}

    def take(self, staged: Any) -> dict[str, torch.Tensor]:
        """Returns a batch's tensors, ``weight`` among them (on the thread that computes)."""
        return share_tensors(staged)

    def close(self) -> None:
        """End the threads that gather. Idempotent."""
        self.recycler.close()


class CudaStage(HostStage):
    """Copies batches to a GPU by page-locked memory and a separate stream, column by column.

    Large columns are gathered into such memory by several threads: a learner on a GPU has idle
    cores.

    Args:
        device: CUDA device with its number.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        super().__init__()
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        threads = min(torch.get_num_threads(), _MOST_THREADS)
        self.recycler = Recycler(_BATCHES_AHEAD, _page_locked, threads)
        # events, and the page-locked tensors that must live until then
        self._under_way: deque[tuple[Any, dict[str, torch.Tensor]]] = deque()

    def split(self, columns: Columns, weights: Array) -> Iterator[Any]:
        """See `HostStage.split`; all batches are copied together, a column at a time."""
        import torch

        size = weights.shape[1]
        # the current device is a thread's: this one may not have set it
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            weighted = {**columns, "weight": weights.reshape(-1)}
            pinned = share_tensors(weighted, pin_memory=True)  # copies what is not page-locked yet
            on_device = {n: t.to(self._device, non_blocking=True) for n, t in pinned.items()}
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()
        self._under_way.append((copied, pinned))
        for k in range(len(weights)):
            yield {n: t[k * size : (k + 1) * size] for n, t in on_device.items()}, copied

    def take(self, staged: Any) -> dict[str, torch.Tensor]:
        """See `HostStage.take`; what is computed next waits for the copy, this thread does not."""
        import torch

        tensors: dict[str, torch.Tensor]
        tensors, copied = staged
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(copied)
        for tensor in tensors.values():
            tensor.record_stream(stream)  # else torch reuses their memory before the stream is done
        return tensors


def _page_locked(n_bytes: int) -> Array:
    import torch

    array: Array = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True).numpy()
    return array


def stage_for(policy: LearnMode, *, pin_memory: bool) -> HostStage:
    """Returns the stage of a policy's device; call it on the computing thread.

    Args:
        policy: its attribute ``device`` is "cpu", "cuda" or "cuda:<number>".
        pin_memory: copy to a GPU ahead of time.
    """
    name = str(attribute_of(policy, "device", ""))
    if not pin_memory or not name.startswith("cuda"):
        return HostStage()
    import torch

    if name == "cuda":
        name = f"cuda:{torch.cuda.current_device()}"
    return CudaStage(torch.device(name))


# -------------------------------------------------------------------------------------- from rank 0


@dataclass
class Prefetch:
    """Decides how many batches to request ahead: up to `most`, fewer if an iteration takes long.

    Batches ahead take memory, their priorities grow old, and at the end of a run learners still
    have to learn from them.

    Attributes:
        most: batches that may be under way.
        under_way: requested and not taken yet.
    """

    most: int
    under_way: int = 0
    _iteration_s: float = 0.0  # moving average
    _taken_at: float | None = None

    def take(self, now: float) -> None:
        """Note that a batch was taken."""
        self.under_way, self._taken_at = self.under_way - 1, now

    def missing(self, now: float) -> int:
        """Returns how many to request after an iteration: 0, or at least a quarter of `most`."""
        if self._taken_at is not None:
            self._iteration_s += 0.2 * (now - self._taken_at - self._iteration_s)
            self._taken_at = None
        limit = min(self.most, max(2, int(_AHEAD_S / max(self._iteration_s, 1e-9))))
        missing = limit - self.under_way
        return missing if missing >= max(1, limit // 4) else 0


class Staged(NamedTuple):
    """A batch that has been gathered, and may be on its way to the device."""

    columns: Any  # as `HostStage.take` takes them
    unique_ids: Array
    env_steps: int
    began_at: int  # see `Batches`


@dataclass
class _Admission:
    """A block that is to be read: at once; or after `asked_at`, when its collector has answered."""

    order: AdmitBlock
    asked_at: float | None
    rows: Rows | None = None

    @property
    def waits(self) -> bool:
        """True if its collector has not answered yet."""
        return self.asked_at is not None and self.rows is None

    def fail(self, why: str) -> None:
        """Wait for its collector no longer."""
        self.rows = Rows(self.order.shard.path, {}, why)


class Feed:
    """Prefetched batches of a task.

    Args:
        transport: fetches blocks.
        send: sends a message to a rank.
        ready: called with each batch that is gathered.
        batch_size: items of a batch; 0: all items that there are.
        prefetch: batches that may be under way.
        sequence: rows of an item; above 1, rank 0 sends the first rows of sequences.

    Attributes:
        task_id: the task; empty before the first one.
        stage: where batches wait; set before the first one is asked for.
    """

    def __init__(
        self,
        transport: Transport,
        send: Callable[[int, Message], None],
        ready: Callable[[Staged], None],
        *,
        batch_size: int,
        prefetch: int,
        sequence: int = 1,
    ) -> None:
        self.task_id, self.stage = "", HostStage()
        self._transport, self._send, self._ready = transport, send, ready
        self._batch_size, self._sequence = batch_size, sequence
        self._ring: RowStore | None = None
        self._admissions = deque[_Admission]()  # in the order of rank 0
        self._prefetch = Prefetch(prefetch)
        self._feedback = [_NO_FEEDBACK]  # ids and priorities for the next request
        self._reported_under_way = 0  # batches that were under way after the last request

    # ------------------------------------------------------------------ on the communication thread

    def open(self, task_id: str) -> None:
        """Begin a task, whose blocks follow."""
        self.task_id = task_id

    def admit(self, order: AdmitBlock) -> None:
        """Read a block into its rows and report it; an unreadable one costs its rows only.

        Raises:
            CommError: no task has begun.
        """
        if not self.task_id:
            raise CommError("rank 0 sent data before a learner task")
        request = self._transport.request(order.shard)
        asked_at = None
        if request is not None:
            asked_at = time.monotonic()
            self._send(collector_of(order.block_id), request)
        self._admissions.append(_Admission(order, asked_at))
        self._admit_in_order()

    def take(self, rows: Rows) -> None:
        """Take a collector's answer; one that was not waited for is dropped."""
        for admission in self._admissions:
            if admission.waits and admission.order.shard.path == rows.path:
                admission.rows = rows
                break
        self._admit_in_order()

    def lose(self, rank: int) -> None:
        """A collector has died: it answers no more."""
        for admission in self._admissions:
            if admission.waits and collector_of(admission.order.block_id) == rank:
                admission.fail("its collector has died")
        self._admit_in_order()

    def look(self, now: float) -> None:
        """Wait no longer for collectors that have not answered in time.

        Args:
            now: seconds of `time.monotonic`.
        """
        for admission in self._admissions:
            asked_at = admission.asked_at
            if admission.waits and asked_at is not None and now - asked_at > _ANSWER_S:
                admission.fail(f"its collector has not sent it within {_ANSWER_S:.0f} s")
        self._admit_in_order()

    def _admit_in_order(self) -> None:
        while self._admissions and not self._admissions[0].waits:
            admission = self._admissions.popleft()
            self._admit(admission.order, admission.rows)

    def _admit(self, order: AdmitBlock, rows: Rows | None) -> None:
        error = ""
        try:
            fetched = self._transport.fetch(order.shard, rows)
            columns = {name: c for name, c in fetched.items() if not name.startswith(f"{INFO}/")}
            if self._ring is None:
                self._ring = RowStore(order.ring_rows, views=order.shard.views)
            self._ring.grow(order.ring_rows)
            self._ring.write(order.first_row, columns)
        except (StoreError, BufferContractError) as problem:
            error = str(problem)
        latency_s = max(0.0, time.time() - order.sealed_at)
        self._send(COORDINATOR_RANK, BlockAdmitted(order.block_id, latency_s, error))

    def fill(self, order: Batches) -> None:
        """Gather the rows of some batches.

        Raises:
            BufferContractError: no block has been admitted.
        """
        if self._ring is None:
            raise BufferContractError("rank 0 drew a batch before any block was admitted")
        self._ring.recycler = self.stage.recycler
        columns = self._ring.gather(order.rows.reshape(-1), self._sequence)
        staged = self.stage.split(columns, order.weights)
        for batch, unique_ids in zip(staged, order.unique_ids, strict=True):
            self._ready(Staged(batch, unique_ids, order.env_steps, order.began_at))

    # ---------------------------------------------------------------------- on the computing thread

    def ask(self, train_iter: int, now: float, *, is_idle: bool = False) -> None:
        """Request more batches as soon as a quarter of those that may be under way was taken.

        Args:
            train_iter: iterations that are done, which the request reports.
            now: seconds of any clock.
            is_idle: there is no batch to learn from: if batches were taken since the last request,
                send one even if it asks for none, so that rank 0 knows they are learnt from.
        """
        missing = self._prefetch.missing(now)
        if not missing and not (is_idle and self._prefetch.under_way < self._reported_under_way):
            return
        self._prefetch.under_way += missing
        self._reported_under_way = self._prefetch.under_way
        ids, priorities = map(np.concatenate, zip(*self._feedback, strict=True))
        self._feedback = [_NO_FEEDBACK]
        demand = DataDemand(
            self.task_id,
            missing,
            self._batch_size,
            train_iter,
            ids,
            priorities,
            self._prefetch.under_way,
        )
        self._send(COORDINATOR_RANK, demand)

    def batch(self, staged: Staged, now: float) -> Batch:
        """Returns a gathered batch for the policy; its priorities go with the next request."""
        self._prefetch.take(now)
        ids = staged.unique_ids

        def feedback(priorities: Array) -> None:
            self._feedback.append((ids, priorities))

        columns = self.stage.take(staged.columns)
        return Batch(columns, ids, staged.env_steps, feedback, staged.began_at)
