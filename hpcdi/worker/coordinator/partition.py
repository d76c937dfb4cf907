"""One learner's part of the replay buffer: its ring's rows, an index of the items in them.

Life of a block here::

    BlockReady ──backlog──► AdmitBlock ──learner holds it──► BlockAdmitted ──► items in the index
                               │                                                     │
                               └── rows of the oldest blocks: their items leave it ◄─┘ (later)

The order of messages to a learner makes it safe to reuse rows: a batch that names old rows is sent,
and so gathered, before the order that overwrites them.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from hpcdi.comm.messages import AdmitBlock, Batches, BlockAdmitted, BlockReady, DataDemand
from hpcdi.errors import BufferContractError
from hpcdi.store.block import block_rows, transition_rows
from hpcdi.store.rows import RowPlacer
from hpcdi.types import Array
from hpcdi.worker.coordinator.backlog import Backlog
from hpcdi.worker.replay_buffer.advanced_buffer import AdvancedReplayBuffer

RING_SLACK = 1.25
"""Ring rows per item: rows that are not transitions, and the gap where the ring wraps."""


def ring_rows(partition_size: int, full_block: int, rows_per_item: float = 1.0) -> int:
    """Rows of the ring for `partition_size` items, in blocks of up to `full_block` rows.

    `rows_per_item` is what the first block shows: up to 2, where items are single transitions.
    """
    slack = max(RING_SLACK, rows_per_item + 0.05)
    return int(partition_size * slack) + 2 * full_block


@dataclass
class _Held:
    """A block that has rows: where, and the unique ids of its items once they are in the index."""

    ready: BlockReady
    first_row: int
    first_id: int = -1
    end_id: int = -1


@dataclass(frozen=True)
class Pieces:
    """Who collects, and what they have given that is not drawn yet."""

    collecting: Collection[int] = ()
    """Ranks."""
    given: Mapping[int, int] = field(default_factory=dict)
    """Collecting rank -> policy version of its newest piece."""


class Partition:
    """One learner's part of the replay buffer.

    Args:
        buffer: index of its items; an item is a row number of the learner's ring.
        block_bytes: size at which collectors seal a block.
    """

    is_replay: ClassVar[bool] = True
    """Whether data are learnt from again and again, also after a restart."""

    def __init__(self, buffer: AdvancedReplayBuffer, block_bytes: int) -> None:
        self.buffer = buffer
        self.samples_drawn = 0
        self._block_bytes = block_bytes
        self._placer: RowPlacer | None = None  # made when the first block tells the size of a row
        self._held: dict[int, _Held] = {}
        self._waiting: DataDemand | None = None
        self._freed: deque[str] = deque()
        self.backlog = Backlog(buffer.replay_buffer_size)

    def offer(self, ready: BlockReady) -> list[AdmitBlock]:
        """Take a published block; gives what the learner should read now."""
        self.backlog.add(ready)
        return self.orders()

    def orders(self) -> list[AdmitBlock]:
        """Give rows to the blocks that the learner should read now: none, if it learns too slowly.

        See the buffer's `push_sample_rate_limit`; what does not fit meanwhile is dropped.
        """
        if self.backlog.rows and self.buffer.why_not_push(1):
            return []
        return [self.place(ready) for ready in self.backlog.take()]

    def place(self, ready: BlockReady) -> AdmitBlock:
        """Give a published block its rows; the items of blocks that give way leave the index."""
        if self._placer is None:
            size = self.buffer.replay_buffer_size
            full_block = block_rows(self._block_bytes, ready.shard.row_bytes(), size)
            transitions = max(int(ready.items["item_len"].sum()), 1)
            self._placer = RowPlacer(ring_rows(size, full_block, ready.shard.rows / transitions))
        if ready.block_id in self._held:
            raise BufferContractError(f"block {ready.block_id} was announced twice")
        placement = self._placer.place(ready.block_id, ready.shard.rows)
        for block_id in placement.evicted:
            old = self._held.pop(block_id, None)
            if old is not None:  # it may be missing since a restart
                self.buffer.evict(old.end_id)
                self._freed.append(old.ready.shard.path)
        self._held[ready.block_id] = held = _Held(ready, placement.first_row)
        return self._order(held)

    def _order(self, held: _Held) -> AdmitBlock:
        capacity = self._placer.capacity if self._placer is not None else 0
        ready = held.ready
        return AdmitBlock(
            ready.buffer_id, ready.block_id, held.first_row, capacity, ready.shard, ready.sealed_at
        )

    def admit(self, admitted: BlockAdmitted) -> int:
        """Put a block's items into the index; gives how many (none, if it failed or went)."""
        self.backlog.read(admitted.block_id)
        held = self._held.get(admitted.block_id)
        if held is None:
            return 0
        if held.end_id >= 0:  # its items are in the index: it was read again
            if admitted.error:
                self.buffer.evict(held.end_id, held.first_id)
            return 0
        if admitted.error:
            return 0
        rows, versions = item_rows(held.ready, held.first_row)
        ids = self.buffer.push_columns({"row": rows.astype(np.int32)}, versions)
        held.first_id, held.end_id = ids.start, ids.stop
        return len(ids)

    def demand(self, demand: DataDemand) -> int:
        """Take a learner's request and its priorities; gives how many priorities were stale."""
        stale = 0
        if demand.unique_ids.size:
            updated = self.buffer.update_priorities(demand.unique_ids, demand.priorities)
            stale = len(demand.unique_ids) - updated
        if demand.batches > 0:
            owed = self._waiting.batches if self._waiting is not None else 0
            self._waiting = dataclasses.replace(demand, batches=demand.batches + owed)
        return stale

    def ready(self, pieces: Pieces) -> int:  # noqa: ARG002
        """How many batches of the waiting request can be drawn now.

        At once there are no more batches than the items would fill, and only one where the buffer
        refuses many; the request waits for the rest.

        Args:
            pieces: who collects, and what they have given, to all partitions.
        """
        demand = self._waiting
        if demand is None or self.backlog.rereading:
            return 0
        batches = max(1, min(self.buffer.count() // demand.batch_size, demand.batches))
        for number in {batches: None, 1: None}:
            if not self.buffer.why_not_sample(number * demand.batch_size, demand.train_iter):
                return number
        return 0

    def serve(self, batches: int, env_steps: int) -> Batches:
        """So many batches for the waiting request, of those that are `ready`.

        Args:
            batches: at most as many as are ready.
            env_steps: of the run so far.
        """
        return self._batches(batches, env_steps)

    def _batches(self, batches: int, env_steps: int, among: slice | None = None) -> Batches:
        demand = self._waiting
        if demand is None:
            raise BufferContractError("batches were drawn that nobody has asked for")
        size = batches * demand.batch_size
        sample = self.buffer.sample_batch(
            size, demand.train_iter, draws=batches, sample_range=among
        )
        if sample is None:
            raise BufferContractError(
                f"batches were drawn that are not there: {self.buffer.blocked}"
            )
        left = demand.batches - batches
        self._waiting = dataclasses.replace(demand, batches=left) if left else None
        self.samples_drawn += size
        drawn = sample.drawn

        def by_batch(array: Array) -> Array:
            # neighbours are of neighbouring strata: deal them out, so that a batch spans them all
            return np.ascontiguousarray(array.reshape(demand.batch_size, batches).T)

        return Batches(
            demand.buffer_id, by_batch(sample.columns["row"].astype(np.int64)),
            by_batch(drawn.unique_ids), by_batch(drawn.weights), env_steps,
        )  # fmt: skip

    def surrender(self) -> list[BlockReady]:
        """Its learner is gone: its blocks, for other partitions, the oldest first."""
        held = [held.ready for held in self._held.values() if self._is_of_use(held.ready)]
        return sorted([*held, *self.backlog.take_all()], key=lambda ready: ready.sealed_at)

    def _is_of_use(self, ready: BlockReady) -> bool:  # noqa: ARG002
        """Whether items of a block may be drawn still."""
        return True

    @property
    def load(self) -> int:
        """What it has been given; the next block goes to the partition that has the least."""
        return self.backlog.offered

    @property
    def given(self) -> Mapping[int, int]:
        """Part of `Pieces.given` that lies here; of interest on-policy."""
        return {}

    @property
    def blocked(self) -> str:
        """Why its learner waits for batches, or its blocks wait for it; empty where none does."""
        if self.backlog.rereading:
            return f"{len(self.backlog.rereading)} shards are read again"
        if self.waits and self.buffer.blocked:
            return f"learner waits: {self.buffer.blocked}"
        reason = self.buffer.why_not_push(1) if self.backlog.rows else ""
        return f"blocks wait: {reason}" if reason else ""

    @property
    def waits(self) -> bool:
        """Whether its learner waits for batches."""
        return self._waiting is not None

    def take_freed(self) -> list[str]:
        """Paths of shards that the learner does not need any more, since the last call."""
        freed = [*self.backlog.take_freed(), *self._freed]
        self._freed.clear()
        return freed

    def state_dict(self) -> dict[str, Any]:
        """The index, and which shard each of its blocks lies in; `end_id` -1: it is unread."""
        held: list[dict[str, Any]] = [
            {
                "block_id": block_id,
                "path": block.ready.shard.path,
                "rows": block.ready.shard.rows,
                "crc32": block.ready.shard.crc32,
                "first_row": block.first_row,
                "first_id": block.first_id,
                "end_id": block.end_id,
            }
            for block_id, block in self._held.items()
        ]
        ring = {} if self._placer is None else self._placer.state_dict()
        backlog = {"waiting": self.backlog.paths, "offered": self.backlog.offered}
        return {
            "buffer": self.buffer.state_dict(), "ring": ring, "blocks": held,
            "samples_drawn": self.samples_drawn, **backlog,
        }  # fmt: skip

    def load_state_dict(
        self, state: Mapping[str, Any], published: Mapping[str, BlockReady]
    ) -> list[AdmitBlock]:
        """Be what gave `state_dict`; gives what the learner must read again, into the same rows.

        Until it has, nothing is drawn. Items of a block that is not there any more are gone.

        Args:
            state: a `state_dict`.
            published: the blocks that are there, by path.
        """
        self.buffer.load_state_dict(state["buffer"])
        self.samples_drawn, self.backlog.offered = state["samples_drawn"], state["offered"]
        known = [block for block in state["blocks"] if block["end_id"] >= 0]
        if state["ring"]:
            self._placer = RowPlacer(int(state["ring"]["capacity"]))
            placed = [(b["block_id"], b["first_row"], b["first_row"] + b["rows"]) for b in known]
            self._placer.restore(int(state["ring"]["head"]), placed)
        for block in known:
            ready = published.get(block["path"])
            if ready is None or ready.shard.crc32 != block["crc32"]:
                self.buffer.evict(block["end_id"], block["first_id"])
                continue
            self._held[block["block_id"]] = _Held(
                ready, block["first_row"], block["first_id"], block["end_id"]
            )
        self.backlog.rereading.update(self._held)
        return [self._order(held) for held in self._held.values()]


def item_rows(ready: BlockReady, first_row: int) -> tuple[Array, Array]:
    """Ring row and policy version of each transition of a block, both int64 [transitions]."""
    versions = np.repeat(ready.items["policy_version"], ready.items["item_len"])
    return first_row + transition_rows(ready.items), versions
