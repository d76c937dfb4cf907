"""Where a learner's batches come from, and their way to the device.

In a parallel run rank 0 orders in which rows a block goes and which rows make a batch. Both orders
come on one link and are carried out as they come, on the communication thread (`DataFeed`): so a
batch has been gathered before the order that overwrites its rows is even read. The computing thread
takes gathered batches. Who gathers a batch also starts its way to a GPU (`CudaStage`): into
page-locked memory, and from there by a stream of its own, beside whatever is computed meanwhile.
Who computes makes its stream wait for the copy, not itself. Without a GPU nothing is done, and
nothing costs.

`SampleLoader` takes batches from any port, also of samples that are still to be loaded.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from hpcdi.comm.messages import (
    AdmitBlock,
    Batches,
    BeginAnew,
    BlockAdmitted,
    DataDemand,
    Message,
    TakeSnapshot,
)
from hpcdi.errors import BufferContractError, StoreError
from hpcdi.policy.dict_samples import samples_of
from hpcdi.store.memory import Recycler
from hpcdi.store.rows import RowStore, transitions
from hpcdi.transport.base import Transport
from hpcdi.types import Array, Columns
from hpcdi.utils.nested import share_tensors

_WAIT_S = 0.02
_BATCHES_AHEAD = 16  # whose memory is used again
_MOST_THREADS = 8  # that gather for a GPU: more read memory no faster
_NO_FEEDBACK: tuple[Array, Array] = np.zeros(0, np.int64), np.zeros(0)
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


# ---------------------------------------------------------------------------- the way to the device


class HostStage:
    """Batches stay where they are.

    Args:
        as_columns: batches are tensors by column; else lists of dicts.

    Attributes:
        recycler: makes the arrays that batches are gathered into.
    """

    def __init__(self, *, as_columns: bool = True) -> None:
        self.recycler = Recycler(_BATCHES_AHEAD)
        self._as_columns = as_columns

    def split(self, columns: Columns, weights: Array) -> Iterator[Any]:
        """Yields the batches that stand one after the other, each on its way; `take` takes them.

        Args:
            columns: name -> [batches x batch, ...]; not written to any more.
            weights: importance weights, float32 [batches, batch].
        """
        size = weights.shape[1]
        for k in range(len(weights)):
            yield {name: column[k * size : (k + 1) * size] for name, column in columns.items()}

    def take(self, staged: Any, weights: Array) -> Any:
        """Returns a batch as a policy takes it, see `for_policy` (on the thread that computes)."""
        return for_policy(staged, weights, as_columns=self._as_columns)

    def close(self) -> None:
        """End the threads that gather."""
        self.recycler.close()


class CudaStage(HostStage):
    """Batches go to a GPU by page-locked memory and a stream of their own, by column.

    Large columns are gathered into such memory, by the cores that a learner on a GPU leaves idle.

    Args:
        device: CUDA device with its number.
    """

    def __init__(self, device: Any) -> None:
        import torch

        super().__init__()
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        threads = min(torch.get_num_threads(), _MOST_THREADS)
        self.recycler = Recycler(_BATCHES_AHEAD, _page_locked, threads)
        self._under_way: deque[tuple[Any, Any]] = deque()  # events, and what is copied until then

    def split(self, columns: Columns, weights: Array) -> Iterator[Any]:
        """See `HostStage.split`; all batches are copied together, a column at a time."""
        import torch

        # a thread's present device is its own: this one may never have chosen
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            weighed = {**columns, "weight": weights.reshape(-1)}
            pinned = share_tensors(weighed, pin_memory=True)  # copies only what is not so already
            there = {n: t.to(self._device, non_blocking=True) for n, t in pinned.items()}
            copied: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()
        self._under_way.append((copied, pinned))
        for part in super().split(there, weights):
            yield part, copied

    def take(self, staged: Any, weights: Array) -> Any:  # noqa: ARG002 (they are among the columns)
        """See `HostStage.take`; what is computed next waits for the copy, this thread does not."""
        import torch

        tensors, copied = staged
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(copied)
        for tensor in tensors.values():
            tensor.record_stream(stream)  # else their memory is used again when this thread lets go
        return tensors


def _page_locked(n_bytes: int) -> Array:
    import torch

    array: Array = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True).numpy()
    return array


def stage_for(policy: Any, *, pin_memory: bool) -> HostStage:
    """Returns where a policy's batches are to go (called on the thread that computes).

    Args:
        policy: a learn mode; its attribute ``device`` is "cpu", "cuda" or "cuda:<number>".
        pin_memory: copy to a GPU ahead of time.
    """
    if not takes_columns(policy):
        return HostStage(as_columns=False)
    try:
        name = str(policy.get_attribute("device"))
    except (AttributeError, NotImplementedError):
        return HostStage()
    if not pin_memory or not name.startswith("cuda"):
        return HostStage()
    import torch

    if name == "cuda":
        name = f"cuda:{torch.cuda.current_device()}"
    return CudaStage(torch.device(name))


def for_policy(columns: Columns, weights: Array, *, as_columns: bool) -> Any:
    """Returns a batch as a policy takes it.

    Args:
        columns: name -> [batch, ...].
        weights: importance weights, float32 [batch].
        as_columns: name -> tensor [batch, ...], ``weight`` among them; else a list of dicts of
            tensors, one a sample, ``IS`` among them.
    """
    import torch

    tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
    if not as_columns:
        samples = zip(samples_of(tensors), weights.tolist(), strict=True)
        return [{**sample, "IS": weight} for sample, weight in samples]
    return {**tensors, "weight": torch.from_numpy(weights)}


def takes_columns(policy: Any) -> bool:
    """Returns whether a learn mode takes tensors by column."""
    try:
        return bool(policy.get_attribute("columnar"))
    except (NotImplementedError, AttributeError):
        return False


# -------------------------------------------------------------------------------------- from rank 0


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


Mark: TypeAlias = TakeSnapshot | BeginAnew
"""Orders that stand between two batches, at the same place for all learners of a group."""


class DataFeed:
    """Prefetched batches of one task.

    Args:
        transport: fetches blocks.
        send: sends a message to rank 0.
        task_id: the task.
        batch_size: of the batches to ask for; 0: all that there is.
        prefetch: batches that may be under way.
        sequence: transitions of an item: above 1, rows are those where sequences begin.

    Attributes:
        task_id: the task.
        stage: where batches wait; set before the first one is asked for.
    """

    def __init__(
        self,
        transport: Transport,
        send: Callable[[Message], None],
        task_id: str,
        batch_size: int,
        prefetch: int,
        sequence: int = 1,
    ) -> None:
        self.stage = HostStage()
        self._sequence = sequence
        self.task_id, self._batch_size = task_id, batch_size
        self._transport, self._send = transport, send
        self._ring: RowStore | None = None
        self._ready: queue.SimpleQueue[_Gathered | Mark | None] = queue.SimpleQueue()
        self._ahead = _Ahead(prefetch)
        self._feedback = [_NO_FEEDBACK]  # ids and priorities for the next request

    # ------------------------------------------------------------------ on the communication thread

    def admit(self, _rank: int, order: AdmitBlock) -> None:
        """Read a block into its rows and report it; an unreadable one costs its rows only."""
        error = ""
        try:
            columns = self._transport.fetch(order.shard)
            if self._ring is None:
                self._ring = RowStore(order.ring_rows, views=order.shard.views)
            self._ring.write(order.first_row, columns)
        except (StoreError, BufferContractError) as problem:
            error = str(problem)
        latency_s = max(0.0, time.time() - order.sealed_at)
        self._send(BlockAdmitted(order.block_id, latency_s, error))

    def fill(self, _rank: int, order: Batches) -> None:
        """Gather the rows of some batches."""
        if self._ring is None:
            raise BufferContractError("rank 0 drew a batch before any block was admitted")
        self._ring.recycler = self.stage.recycler
        staged = self.stage.split(
            self._ring.gather(order.rows.reshape(-1), self._sequence), order.weights
        )
        for part, unique_ids, weights in zip(staged, order.unique_ids, order.weights, strict=True):
            self._ready.put((part, unique_ids, weights, order.env_steps))

    def mark(self, order: Mark) -> None:
        """Carry out an order between the batches received so far and the next ones."""
        self._ready.put(order)

    def end(self) -> None:
        """End the feed after the batches received so far."""
        self._ready.put(None)

    # ---------------------------------------------------------------------- on the computing thread

    def next(
        self, train_iter: int, idle: Callable[[], None], carry_out: Callable[[Mark], None]
    ) -> Batch | None:
        """Returns the next batch; None when no more will come.

        Args:
            train_iter: iterations that are done.
            idle: called now and then while there is nothing to do.
            carry_out: carries out an order that stands between two batches, see `mark`.
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
            if isinstance(gathered, Mark):
                carry_out(gathered)
                continue
            self._ahead.took(time.monotonic())
            return self._batch(*gathered)

    def drain(self, carry_out: Callable[[Mark], None]) -> None:
        """Drop all waiting batches, but carry out the orders among them."""
        while True:
            try:
                left = self._ready.get_nowait()
            except queue.Empty:
                return
            if isinstance(left, Mark):
                carry_out(left)

    def _ask(self, train_iter: int) -> None:
        """Request more as soon as a quarter of what may be under way has been taken."""
        missing = self._ahead.missing()
        if not missing:
            return
        self._ahead.under_way += missing
        ids, priorities = map(np.concatenate, zip(*self._feedback, strict=True))
        self._feedback = [_NO_FEEDBACK]
        self._send(DataDemand(self.task_id, missing, self._batch_size, train_iter, ids, priorities))

    def _batch(self, columns: Any, unique_ids: Array, weights: Array, env_steps: int) -> Batch:
        def feedback(priorities: Array) -> None:
            self._feedback.append((unique_ids, priorities))

        return Batch(self.stage.take(columns, weights), unique_ids, env_steps, feedback)


# ----------------------------------------------------------------------------------- from elsewhere


def batch_of_blocks(
    transport: Transport, data: Sequence[Mapping[str, Any]], *, as_columns: bool
) -> Any:
    """Returns one batch of all transitions of some blocks; see `for_policy`.

    Args:
        transport: fetches the blocks.
        data: metadata of each block, for each of its transitions: ``data_id`` names it, ``IS`` is
            the weight.
        as_columns: the form of the batch; without columns, metadata go over a transition's keys.
    """
    blocks: list[tuple[Columns, Mapping[str, Any]]] = [
        (transitions(transport.fetch_named(meta["data_id"])), meta) for meta in data
    ]
    names = list(blocks[0][0])
    columns = {name: np.concatenate([part[name] for part, _ in blocks]) for name in names}
    metas = [meta for part, meta in blocks for _ in range(len(part[names[0]]))]
    weights = np.array([meta.get("IS", 1.0) for meta in metas], dtype=np.float32)
    batch = for_policy(columns, weights, as_columns=as_columns)
    if as_columns:
        return batch
    return [{**item, **meta} for item, meta in zip(batch, metas, strict=True)]


class SampleLoader(Iterator[Any]):
    """Yields batches, one after the other.

    A batch may be a list of functions without arguments, each of which returns a sample (from a
    file, perhaps), or be such a function itself.

    Args:
        get_batch: returns the next batch; None when no more will come.
        num_workers: threads that call the functions of a batch; 0: it is done here, in order.
    """

    def __init__(self, get_batch: Callable[[], Any], num_workers: int = 0) -> None:
        self._get_batch, self._num_workers = get_batch, num_workers
        self._pool: ThreadPoolExecutor | None = None

    def __next__(self) -> Any:
        """Returns the next batch, all samples in their order; errors of loading one come here."""
        batch = self._get_batch()
        if batch is None:
            raise StopIteration
        batch = _made(batch)
        if not isinstance(batch, list) or not any(map(callable, batch)):
            return batch
        if self._num_workers == 0:
            return list(map(_made, batch))
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_workers, "sample-loader")
        return list(self._pool.map(_made, batch))

    def close(self) -> None:
        """End the threads; the next batch would start them again."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _made(sample: Any) -> Any:
    return sample() if callable(sample) else sample
