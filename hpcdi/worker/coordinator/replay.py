"""The replay buffer as rank 0 sees it: which learner holds which item, and what it draws next.

Rank 0 keeps ids, priorities and places of items; learners keep the arrays. Each learner has a
`Partition`: an index of the items in its ring of rows. The `ReplayManager` of a player distributes
its blocks and batches over the partitions; `ReplayBuffers` has those of all players that learn.
Decisions only: blocks and requests in, orders out.

Life of a block::

    BlockReady ──backlog──► AdmitBlock ──learner has read it──► BlockAdmitted ──► items in the index
                               │                                                       │
                               └── rows of the oldest blocks: their items leave it ◄───┘ (later)

Messages to a learner keep their order, which makes it safe to reuse rows: a batch that names old
rows is sent, and so gathered, before the order that overwrites them.

On-policy, a batch is all that the collectors made by policies that are new enough. One iteration,
with a staleness bound of 0::

    learner: policy v ──► each collector: a rollout by v ──► learner: a batch of all ──► v + 1
                                            (a collector waits for a newer policy meanwhile)

Rank 0 holds the batch back until every collecting rank has delivered its rollout. Rollouts of
policies that are too old are dropped.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from hpcdi.comm.messages import AdmitBlock, Batches, BlockAdmitted, BlockReady, DataDemand
from hpcdi.config.schema import ExperimentConfig, learners_of
from hpcdi.errors import BufferContractError
from hpcdi.store.block import block_rows, transition_rows
from hpcdi.store.rows import RowPlacer
from hpcdi.types import MAIN, Array, SequenceRule, collector_of, number_of
from hpcdi.worker.replay_buffer.advanced_buffer import AdvancedReplayBuffer
from hpcdi.worker.replay_buffer.base_buffer import get_buffer_cls

RING_SLACK = 1.25
"""Ring rows per item: covers rows that are no transitions, and the gap where the ring wraps."""
MAX_UNREAD = 4
"""Blocks that a learner was ordered to read and has not read yet: enough to keep it reading."""
_TRANSITIONS = SequenceRule()
EARLY_ROWS = 1_000_000
"""Rows of published blocks that are kept while there is no learner."""


def ring_rows(partition_size: int, full_block: int, rows_per_item: float = 1.0) -> int:
    """Rows of the ring for `partition_size` items, in blocks of up to `full_block` rows.

    `rows_per_item` is measured on the first block: up to 2, where items are single transitions.
    """
    slack = max(RING_SLACK, rows_per_item + 0.05)
    return int(partition_size * slack) + 2 * full_block


def make_placer(
    partition_size: int, block_bytes: int, first: BlockReady, rule: SequenceRule
) -> RowPlacer:
    """Make the placer of a partition's ring, which takes its size from the first block."""
    full_block = block_rows(block_bytes, first.shard.row_bytes(), partition_size)
    rows_per_item = first.shard.rows / max(item_count(first, rule), 1)
    return RowPlacer(ring_rows(partition_size, full_block, rows_per_item))


def item_count(ready: BlockReady, rule: SequenceRule) -> int:
    """How many items of the replay buffer are in a block: transitions, or sequences."""
    if rule.stride == 1:
        return ready.transitions
    return int((-(-ready.items["item_len"].astype(np.int64) // rule.stride)).sum())


def item_rows(
    ready: BlockReady, first_row: int, rule: SequenceRule = _TRANSITIONS
) -> tuple[Array, Array]:
    """Ring row and policy version of each item, both int64 [items]; of a sequence its first row."""
    versions = np.repeat(ready.items["policy_version"], ready.items["item_len"])
    rows = transition_rows(ready.items)
    if rule.stride > 1:
        within = rows - np.repeat(ready.items["item_start"], ready.items["item_len"])
        starts = within % rule.stride == 0
        rows, versions = rows[starts], versions[starts]
    return first_row + rows, versions


def note_newest(newest: dict[str, int], ready: BlockReady) -> None:
    """Note the number of a collector's last block, by its rank: a snapshot has counted it."""
    rank, number = str(collector_of(ready.block_id)), number_of(ready.block_id)
    newest[rank] = max(number, newest.get(rank, 0))


class ReplayRatio:
    """How many samples may be drawn by now, and whether collectors are to wait.

    It keeps learning and collecting in a given proportion, whatever the hardware.

    With a ratio of r, ``r * (env_steps - warm_up)`` samples are due after so many transitions.
    Learners never draw more; collectors wait while many more are due than were drawn.

    Args:
        ratio: samples drawn for each transition; None: both run free.
        warm_up: transitions that none are due for, while the buffer fills.
        slack: samples that may be due before collectors wait; they go on at half of it.

    Attributes:
        collectors_wait: whether collectors are to wait.
    """

    def __init__(self, ratio: float | None = None, warm_up: int = 0, slack: float = 0.0) -> None:
        self.collectors_wait = False
        self._ratio, self._warm_up, self._slack = ratio, warm_up, slack
        self._env_steps = 0

    def due(self, env_steps: int, drawn: int) -> float:
        """Samples to draw now; infinite without a ratio. Updates `collectors_wait`.

        Args:
            env_steps: transitions of the run so far.
            drawn: samples of the run so far.
        """
        if self._ratio is None:
            return math.inf
        self._env_steps = env_steps
        due = self._ratio * max(0, env_steps - self._warm_up) - drawn
        if due > self._slack:
            self.collectors_wait = True
        elif due < self._slack / 2:
            self.collectors_wait = False
        return due

    def blocked(self, drawn: int, batch: int) -> str:
        """Who waits for whom; empty where nobody does.

        Args:
            drawn: samples of the run so far.
            batch: samples that all learners draw at once.
        """
        due = self.due(self._env_steps, drawn)
        rule = f"{self._ratio or 0:g} samples are drawn for a transition (replay_ratio)"
        if self.collectors_wait:
            return f"collectors wait: {rule}"
        return f"learners wait: {rule}" if due < batch else ""


class Backlog:
    """Published blocks that no learner was ordered to read yet, oldest first.

    Where blocks come faster than they are read, the oldest are dropped: they would be overwritten
    before anything was drawn from them.

    Args:
        limit_rows: rows that may wait.

    Attributes:
        dropped: number of blocks that nobody will read.
        offered: rows that ever came.
        rereading: ids of blocks that a learner must read again after a restart, before anything is
            drawn.
    """

    def __init__(self, limit_rows: int) -> None:
        self.dropped = 0
        self.offered = 0
        self.rereading: set[int] = set()
        self._limit_rows = limit_rows
        self._waiting: deque[BlockReady] = deque()
        self._unread: set[int] = set()
        self._freed: list[str] = []

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return sum(block.shard.rows for block in self._waiting)

    @property
    def paths(self) -> list[str]:
        """Names of the blocks that wait."""
        return [block.shard.path for block in self._waiting]

    @property
    def is_idle(self) -> bool:
        """True if nothing waits, and nothing is being read."""
        return not (self._waiting or self._unread or self.rereading)

    def add(self, ready: BlockReady) -> None:
        """Append a block; drops the oldest where there are too many rows."""
        self._waiting.append(ready)
        self.offered += ready.shard.rows
        rows = self.rows
        while rows > self._limit_rows and len(self._waiting) > 1:
            oldest = self._waiting.popleft()
            rows -= oldest.shard.rows
            self._freed.append(oldest.shard.path)
            self.dropped += 1

    def take(self) -> list[BlockReady]:
        """Blocks that the learner should read now."""
        taken = []
        while self._waiting and len(self._unread) < MAX_UNREAD:
            taken.append(self._waiting.popleft())
            self._unread.add(taken[-1].block_id)
        return taken

    def take_all(self) -> list[BlockReady]:
        """Remove and return all blocks that wait."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def read(self, block_id: int) -> None:
        """The learner has read a block, or failed to."""
        self._unread.discard(block_id)
        self.rereading.discard(block_id)

    def take_freed(self) -> list[str]:
        """Names of the blocks that were dropped since the last call."""
        freed, self._freed = self._freed, []
        return freed


@dataclass
class HeldBlock:
    """A block that has rows: where, and the unique ids of its items once they are in the index."""

    ready: BlockReady
    first_row: int
    first_id: int = -1
    end_id: int = -1

    def state_dict(self) -> dict[str, Any]:
        """As a partition's state holds it."""
        shard = self.ready.shard
        return {
            "block_id": self.ready.block_id, "path": shard.path, "rows": shard.rows,
            "crc32": shard.crc32, "first_row": self.first_row, "first_id": self.first_id,
            "end_id": self.end_id,
        }  # fmt: skip


class Partition:
    """One learner's part of the replay buffer: rows of its ring, and an index of their items.

    Args:
        buffer: index of the items; an item is a row number of the learner's ring.
        block_bytes: size at which collectors seal a block.
        rule: what an item is.
    """

    is_replay: ClassVar[bool] = True
    """True if data are learnt from repeatedly, also after a restart."""

    def __init__(
        self, buffer: AdvancedReplayBuffer, block_bytes: int, rule: SequenceRule = _TRANSITIONS
    ) -> None:
        self.rule = rule
        self.buffer = buffer
        self.samples_drawn = 0
        self.backlog = Backlog(buffer.replay_buffer_size)
        self.newest_version: dict[int, int] = {}  # on-policy: of each rank's undrawn rollouts
        self._block_bytes = block_bytes
        self._placer: RowPlacer | None = None  # made when the first block shows the size of a row
        self._held: dict[int, HeldBlock] = {}
        self._waiting: DataDemand | None = None
        self._freed: list[str] = []

    # ------------------------------------------------------------------------------- blocks

    def offer(self, ready: BlockReady) -> list[AdmitBlock]:
        """Take a published block; returns what the learner should read now."""
        self.backlog.add(ready)
        return self.orders()

    def orders(self) -> list[AdmitBlock]:
        """Place the blocks that the learner should read now: none while it learns too slowly.

        See the buffer's `push_sample_rate_limit`. Meanwhile the backlog drops what does not fit.
        """
        if self.backlog.rows and self.buffer.why_not_push(1):
            return []
        return [self.place(ready) for ready in self.backlog.take()]

    def place(self, ready: BlockReady) -> AdmitBlock:
        """Assign rows to a block; items of the blocks that it overwrites leave the index."""
        if self._placer is None:
            size = self.buffer.replay_buffer_size
            self._placer = make_placer(size, self._block_bytes, ready, self.rule)
        if ready.block_id in self._held:
            raise BufferContractError(f"block {ready.block_id} was announced twice")
        placement = self._placer.place(ready.block_id, ready.shard.rows)
        for block_id in placement.evicted:
            old = self._held.pop(block_id, None)
            if old is not None:  # it may be missing since a restart
                self.buffer.evict(old.end_id)
                self._freed.append(old.ready.shard.path)
        self._held[ready.block_id] = held = HeldBlock(ready, placement.first_row)
        return self._order(held)

    def _order(self, held: HeldBlock) -> AdmitBlock:
        capacity = self._placer.capacity if self._placer is not None else 0
        ready = held.ready
        return AdmitBlock(ready.block_id, held.first_row, capacity, ready.shard, ready.sealed_at)

    def admit(self, admitted: BlockAdmitted) -> int:
        """Add a block's items to the index; returns how many (0: failed or overwritten)."""
        self.backlog.read(admitted.block_id)
        held = self._held.get(admitted.block_id)
        if held is None:
            return 0
        if held.end_id >= 0:  # read again after a restart: its items are in the index already
            if admitted.error:
                self.buffer.evict(held.end_id, held.first_id)
            return 0
        if admitted.error:
            return 0
        rows, versions = item_rows(held.ready, held.first_row, self.rule)
        ids = self.buffer.push_columns({"row": rows.astype(np.int32)}, versions)
        held.first_id, held.end_id = ids.start, ids.stop
        return len(ids)

    def release_blocks(self) -> list[BlockReady]:
        """Blocks for other partitions because this learner has died, oldest first."""
        held = [held.ready for held in self._held.values() if self._is_of_use(held.ready)]
        return sorted([*held, *self.backlog.take_all()], key=lambda ready: ready.sealed_at)

    def _is_of_use(self, ready: BlockReady) -> bool:  # noqa: ARG002
        """Returns whether items of a block may still be drawn."""
        return True

    def take_freed(self) -> list[str]:
        """Names of blocks that the learner does not need any more, since the last call."""
        freed, self._freed = [*self.backlog.take_freed(), *self._freed], []
        return freed

    @property
    def load(self) -> int:
        """How much it was assigned; the partition with the least gets the next block."""
        return self.backlog.offered

    # ------------------------------------------------------------------------------- batches

    def demand(self, demand: DataDemand) -> int:
        """Take a learner's request and its priorities; returns how many priorities were stale."""
        stale = 0
        if demand.unique_ids.size:
            updated = self.buffer.update_priorities(demand.unique_ids, demand.priorities)
            stale = len(demand.unique_ids) - updated
        if demand.batches > 0:
            owed = self._waiting.batches if self._waiting is not None else 0
            self._waiting = dataclasses.replace(demand, batches=demand.batches + owed)
        return stale

    def ready(self, collecting: Collection[int], newest_version: Mapping[int, int]) -> int:  # noqa: ARG002
        """How many batches of the waiting request can be drawn now.

        No more batches at once than the items would fill, and only one where the buffer refuses
        many; the request waits for the rest.

        Args:
            collecting: ranks that collect.
            newest_version: of the undrawn rollouts of each rank, over all partitions.
        """
        demand = self._waiting
        if demand is None or self.backlog.rereading:
            return 0
        batches = max(1, min(self.buffer.count() // demand.batch_size, demand.batches))
        for number in {batches: None, 1: None}:
            if not self.buffer.why_not_sample(number * demand.batch_size, demand.train_iter):
                return number
        return 0

    def serve(self, batches: int, env_steps: int, among: slice | None = None) -> Batches:
        """Draw batches for the waiting request.

        Args:
            batches: at most as many as are `ready`.
            env_steps: of the run so far.
            among: items to draw from, by age; None: all.
        """
        demand = self._waiting
        if demand is None:
            raise BufferContractError("batches were drawn that nobody has asked for")
        size = batches * demand.batch_size
        sample = self.buffer.sample_batch(
            size, demand.train_iter, draws=batches, sample_range=among
        )
        if sample is None:
            raise BufferContractError(f"batches were drawn too early: {self.buffer.blocked}")
        left = demand.batches - batches
        self._waiting = dataclasses.replace(demand, batches=left) if left else None
        self.samples_drawn += size
        drawn = sample.drawn

        def by_batch(array: Array) -> Array:
            # neighbours are of neighbouring strata: deal them out, so that a batch spans them all
            return np.ascontiguousarray(array.reshape(demand.batch_size, batches).T)

        return Batches(
            by_batch(sample.columns["row"].astype(np.int64)),
            by_batch(drawn.unique_ids), by_batch(drawn.weights), env_steps,
        )  # fmt: skip

    @property
    def batch_size(self) -> int:
        """Items of a batch that its learner waits for; 0: it waits for none."""
        return self._waiting.batch_size if self._waiting is not None else 0

    @property
    def waits(self) -> bool:
        """True if its learner waits for batches."""
        return self._waiting is not None

    @property
    def blocked(self) -> str:
        """Reason why its learner waits for batches, or its blocks for the learner; may be empty."""
        if self.backlog.rereading:
            return f"{len(self.backlog.rereading)} blocks are read again"
        if self.waits and self.buffer.blocked:
            return f"learner waits: {self.buffer.blocked}"
        reason = self.buffer.why_not_push(1) if self.backlog.rows else ""
        return f"blocks wait: {reason}" if reason else ""

    # ------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """The index, and the name of each of its blocks; an `end_id` of -1 marks an unread one."""
        held = [block.state_dict() for block in self._held.values()]
        ring = {} if self._placer is None else self._placer.state_dict()
        backlog = {"waiting": self.backlog.paths, "offered": self.backlog.offered}
        return {
            "buffer": self.buffer.state_dict(), "ring": ring, "blocks": held,
            "samples_drawn": self.samples_drawn, **backlog,
        }  # fmt: skip

    def load_state_dict(
        self, state: Mapping[str, Any], published: Mapping[str, BlockReady]
    ) -> list[AdmitBlock]:
        """Restore a `state_dict`; returns what the learner must read again, into the same rows.

        Nothing is drawn until it has. Items whose block is gone leave the index.

        Args:
            state: a `state_dict`.
            published: the blocks that exist, by name.
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
            self._held[block["block_id"]] = HeldBlock(
                ready, block["first_row"], block["first_id"], block["end_id"]
            )
        self.backlog.rereading.update(self._held)
        return [self._order(held) for held in self._held.values()]


class OnPolicyPartition(Partition):
    """One learner's part on-policy: each item is drawn once, together with all others.

    Args:
        buffer: index of the items; see `on_policy_buffer` for its settings.
        block_bytes: size at which collectors seal a block.
        rule: what an item is.
    """

    is_replay = False

    def __init__(
        self, buffer: AdvancedReplayBuffer, block_bytes: int, rule: SequenceRule = _TRANSITIONS
    ) -> None:
        super().__init__(buffer, block_bytes, rule)
        self._undrawn: dict[int, bool] = {}  # block id of a rollout -> whether the learner holds it
        self._end_id = 0

    def offer(self, ready: BlockReady) -> list[AdmitBlock]:
        """Take a published rollout."""
        self._undrawn[ready.block_id] = False
        return super().offer(ready)

    def admit(self, admitted: BlockAdmitted) -> int:
        """Add a rollout's items to the index, and note its policy version."""
        count = super().admit(admitted)
        held = self._held.get(admitted.block_id)
        self._undrawn.pop(admitted.block_id, None)
        if count and held is not None:
            self._undrawn[admitted.block_id] = True
            version = int(held.ready.items["policy_version"].max())
            rank = collector_of(admitted.block_id)
            self.newest_version[rank] = max(version, self.newest_version.get(rank, -1))
            self._end_id = held.end_id
        return count

    def ready(self, collecting: Collection[int], newest_version: Mapping[int, int]) -> int:
        """One batch of everything, once all collecting ranks have delivered a rollout."""
        demand = self._waiting
        if demand is None or not collecting:
            return 0
        oldest = demand.train_iter - self.buffer.max_staleness
        if any(newest_version.get(rank, -1) < oldest for rank in collecting):
            return 0
        # also drops what is too old
        return 0 if self.buffer.why_not_sample(1, demand.train_iter) else 1

    def serve(self, batches: int, env_steps: int, among: slice | None = None) -> Batches:  # noqa: ARG002
        """Draw everything, as one batch; see `Partition.serve`."""
        if self._waiting is not None:
            self._waiting = dataclasses.replace(self._waiting, batch_size=self.buffer.count())
        batch = in_order(super().serve(batches, env_steps, slice(None)))
        self.buffer.evict(self._end_id)
        self.newest_version.clear()
        self._undrawn = {block: is_held for block, is_held in self._undrawn.items() if not is_held}
        return batch

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        published: Mapping[str, BlockReady],  # noqa: ARG002
    ) -> list[AdmitBlock]:
        """Restore counters and random numbers only: rollouts are collected anew."""
        self.buffer.load_state_dict(state["buffer"])
        self.buffer.evict(self.buffer.push_count)
        self.samples_drawn = int(state["samples_drawn"])
        return []

    def _is_of_use(self, ready: BlockReady) -> bool:
        return ready.block_id in self._undrawn

    @property
    def load(self) -> int:
        """Undrawn rollouts: in a group, each learner needs one for a batch."""
        return len(self._undrawn)

    @property
    def blocked(self) -> str:
        """Reason why its learner waits; may be empty."""
        return "learner waits for the collectors' rollouts" if self.waits else ""


class AsTheyComePartition(OnPolicyPartition):
    """One learner's part where older policies are corrected for: a batch is all that is there."""

    def ready(self, collecting: Collection[int], newest_version: Mapping[int, int]) -> int:  # noqa: ARG002
        """One batch of everything, as soon as there is enough; nobody is waited for."""
        demand = self._waiting
        if demand is None:
            return 0
        return 0 if self.buffer.why_not_sample(1, demand.train_iter) else 1

    @property
    def blocked(self) -> str:
        """Reason why its learner waits; may be empty."""
        return f"learner waits: {self.buffer.blocked}" if self.waits and self.buffer.blocked else ""


def in_order(batch: Batches) -> Batches:
    """The same batches with rows in order: items, and what memories learn from, are whole again."""
    order = batch.rows.argsort(axis=1)
    rows, ids, weights = (
        np.take_along_axis(array, order, axis=1)
        for array in (batch.rows, batch.unique_ids, batch.weights)
    )
    return dataclasses.replace(batch, rows=rows, unique_ids=ids, weights=weights)


def on_policy_buffer(cfg: Any, rollouts: int, rollout_rows: int, least: int = 0) -> Any:
    """Settings of the index on-policy: how old items may be, and room for all rollouts under way.

    Args:
        cfg: the replay buffer's settings; without a bound of staleness the bound is 0.
        rollouts: collectors.
        rollout_rows: the most transitions that one rollout can have.
        least: items of a batch, where it is all that is there; 0: it is each collector's rollout,
            by policies within the bound.
    """
    bound = cfg.staleness_bound
    size = (bound + 3) * rollouts * rollout_rows
    return dataclasses.replace(
        cfg, max_staleness=cfg.max_staleness if least else bound, min_fill=max(least, 1),
        replay_buffer_size=max(size, cfg.replay_buffer_size, 2 * least),
        thruput_controller=type(cfg.thruput_controller)(),  # a batch is all that there is
    )  # fmt: skip


class ReplayFigures(Protocol):
    """Figures of a replay buffer, of a run over ranks or in one process; see `ReplayManager`."""

    @property
    def items_admitted(self) -> int:
        """Transitions that learners have read."""

    @property
    def blocks_lost(self) -> int:
        """Blocks that a learner could not read."""

    @property
    def blocked(self) -> str:
        """Why learning, or collecting, has to wait; empty where neither has to."""

    @property
    def blocks_skipped(self) -> int:
        """Blocks that nobody read."""

    def count(self) -> int:
        """Items that can be drawn."""

    def capacity(self) -> int:
        """Items that it can hold; 0: there is none."""

    def samples_drawn(self) -> int:
        """Items that were ever drawn."""

    def take_freed(self) -> list[str]:
        """Names of blocks that are not needed any more, since the last call."""


class ReplayManager:
    """The partitions of a player's learners: blocks go to them in turn, batches to all at once.

    Learners that share their gradients iterate together: each gets as many batches as every other.
    So all have the same ones before an order that ends their work, and end it together.

    Args:
        make_buffer: makes the buffer of a name, e.g. a learner's partition.
        block_bytes: size at which collectors seal a block.
        partition: how a learner's part is drawn from.
        ratio: how much may be drawn; None: as much as learners ask for.
        rule: what an item is.

    Attributes:
        make_buffer: see above.
        ratio: see above.
        partitions: by learner rank.
        items_admitted: transitions that learners have read.
        blocks_lost: blocks that a learner could not read.
    """

    def __init__(
        self,
        make_buffer: Callable[[str], AdvancedReplayBuffer],
        block_bytes: int,
        partition: type[Partition] = Partition,
        ratio: ReplayRatio | None = None,
        rule: SequenceRule = _TRANSITIONS,
    ) -> None:
        self.ratio, self._rule = ratio or ReplayRatio(), rule
        self.partitions: dict[int, Partition] = {}
        self.items_admitted = 0
        self.blocks_lost = 0
        self.make_buffer, self._block_bytes, self._kind = make_buffer, block_bytes, partition
        self._early = Backlog(EARLY_ROWS)  # published before there was a learner
        self._newest: dict[str, int] = {}  # collector rank -> number of its last announced block
        self._restored: Mapping[str, Any] = {}  # partitions of a snapshot, until learners start
        self._restored_drawn = 0  # samples that it says were drawn
        self._published: dict[str, BlockReady] = {}  # blocks for them, by name, oldest first
        self._lost_drawn, self._lost_skipped = 0, 0  # counters of learners that have died
        self._freed: list[str] = []

    # ------------------------------------------------------------------------------- learners

    def open(self, *learner_ranks: int) -> list[tuple[int, AdmitBlock]]:
        """Make the learners' partitions; returns orders to read the blocks that have waited."""
        for rank in learner_ranks:
            self.partitions[rank] = self._kind(
                self.make_buffer(f"buffer_rank{rank}"), self._block_bytes, self._rule
            )
        orders = self._restore()
        published, self._published = self._published, {}
        for ready in [*published.values(), *self._early.take_all()]:
            orders += self.assign(ready)
        return orders

    def _restore(self) -> list[tuple[int, AdmitBlock]]:
        """Restore the partitions of a snapshot, if these are as many and as large.

        Otherwise the blocks are shared as if they were new: their items have the largest priority
        again.
        """
        states, self._restored = self._restored, {}
        drawn, self._restored_drawn = self._restored_drawn, 0
        self._lost_drawn = drawn  # the ratio of samples drawn is that of the whole run
        if len(self.partitions) != len(states):
            return []
        # in their order: after a death the learners' ranks differ from those after a restart
        names = sorted(states, key=lambda name: int(name.removeprefix("rank")))
        pairs = [
            (rank, states[name]) for rank, name in zip(sorted(self.partitions), names, strict=True)
        ]
        if any(
            state["buffer"]["capacity"] != self.partitions[rank].buffer.replay_buffer_size
            for rank, state in pairs
        ):
            return []
        orders = []
        for rank, state in pairs:
            reread = self.partitions[rank].load_state_dict(state, self._published)
            self._lost_drawn -= self.partitions[rank].samples_drawn
            orders += [(rank, order) for order in reread]
            for block in state["blocks"]:
                if block["end_id"] >= 0:
                    self._published.pop(block["path"], None)
        return orders

    def lose(self, rank: int) -> list[tuple[int, AdmitBlock]]:
        """A learner has died; returns orders to the others to read its blocks.

        They take as many of its newest blocks as fit without evicting any of their own: with full
        buffers one learner's share of the data is as good as another's.
        """
        part = self.partitions.pop(rank, None)
        if part is None:
            return []
        self._lost_drawn += part.samples_drawn
        self._lost_skipped += part.backlog.dropped
        self._freed += part.take_freed()
        free_items = self.capacity() - self.count()
        taken: list[BlockReady] = []
        for ready in reversed(part.release_blocks()):
            free_items -= item_count(ready, self._rule)
            if free_items >= 0:
                taken.append(ready)
            else:
                self._freed.append(ready.shard.path)
        return [order for ready in reversed(taken) for order in self.assign(ready)]

    # ------------------------------------------------------------------------------- data

    def assign(self, ready: BlockReady) -> list[tuple[int, AdmitBlock]]:
        """Give a block to the learner with the least load; without learners it waits."""
        note_newest(self._newest, ready)
        if not self.partitions:
            self._early.add(ready)
            return []
        rank = min(self.partitions, key=lambda rank: self.partitions[rank].load)
        return [(rank, order) for order in self.partitions[rank].offer(ready)]

    def newest_of(self, rank: int) -> int:
        """Number of a collector's last announced block; 0: there is none."""
        return self._newest.get(str(rank), 0)

    def admit(self, rank: int, admitted: BlockAdmitted) -> list[AdmitBlock]:
        """A learner has read a block, or failed to; returns what it should read next."""
        self.blocks_lost += bool(admitted.error)
        self.items_admitted += self.partitions[rank].admit(admitted)
        return self.partitions[rank].orders()

    def serve(self, env_steps: int, collecting: Collection[int]) -> list[tuple[int, Batches]]:
        """Equally many batches for each learner; none until all have asked and all can have some.

        Args:
            env_steps: of the run so far.
            collecting: ranks that collect; of no interest where `is_replay`.
        """
        if not all(part.waits for part in self.partitions.values()):
            return []
        newest: dict[int, int] = {}
        for part in self.partitions.values():
            for rank, version in part.newest_version.items():
                newest[rank] = max(version, newest.get(rank, -1))
        ready = (part.ready(collecting, newest) for part in self.partitions.values())
        batches = int(min(min(ready, default=0), self._due(env_steps) / self._batch()))
        if batches < 1:
            return []
        return [(rank, part.serve(batches, env_steps)) for rank, part in self.partitions.items()]

    def collectors_wait(self, env_steps: int) -> bool:
        """True if collectors are to wait, because learners are behind with what they can draw."""
        self._due(env_steps)
        return self.ratio.collectors_wait and not any(p.blocked for p in self.partitions.values())

    def _due(self, env_steps: int) -> float:
        return self.ratio.due(env_steps, self.samples_drawn())

    def _batch(self) -> int:
        """Items that all learners draw at once."""
        return sum(part.batch_size for part in self.partitions.values()) or 1

    def take_freed(self) -> list[str]:
        """Names of blocks that no learner needs any more, since the last call."""
        freed, self._freed = self._freed, []
        freed += [path for part in self.partitions.values() for path in part.take_freed()]
        return freed + self._early.take_freed()

    # ------------------------------------------------------------------------------- figures

    @property
    def is_replay(self) -> bool:
        """True if data are learnt from repeatedly: a batch waits for no rank's rollout."""
        return self._kind.is_replay

    @property
    def blocked(self) -> str:
        """Reason why a learner, or its blocks, have to wait; empty where none has to."""
        waits = self.ratio.blocked(self.samples_drawn(), self._batch())
        return next(filter(None, (p.blocked for p in self.partitions.values())), waits)

    @property
    def blocks_skipped(self) -> int:
        """Blocks that nobody read: they came faster than the learners could read them."""
        skipped = self._lost_skipped + self._early.dropped
        return skipped + sum(part.backlog.dropped for part in self.partitions.values())

    def count(self) -> int:
        """Items that can be drawn, of all partitions."""
        return sum(part.buffer.count() for part in self.partitions.values())

    def capacity(self) -> int:
        """Items that all partitions can hold."""
        return sum(part.buffer.replay_buffer_size for part in self.partitions.values())

    def samples_drawn(self) -> int:
        """Items that were ever drawn."""
        return self._lost_drawn + sum(part.samples_drawn for part in self.partitions.values())

    # ------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """State of all partitions, by learner rank, and the blocks that wait for a learner."""
        return {
            "partitions": {f"rank{rank}": p.state_dict() for rank, p in self.partitions.items()},
            "waiting": self._early.paths,
            "newest": dict(self._newest),
            "drawn": self.samples_drawn(),
        }

    def load_state_dict(
        self, state: Mapping[str, Any], published: Mapping[str, BlockReady] | None = None
    ) -> None:
        """Restore a `state_dict` as soon as learners start; see `open`.

        Args:
            state: a `state_dict`.
            published: the blocks that exist, by name, oldest first; those that the state does not
                name were published after it, and are admitted like new ones. On-policy, blocks of
                the past are of no use.
        """
        self._newest = dict(state["newest"])
        for ready in (published or {}).values():  # also where they are of no use
            note_newest(self._newest, ready)
        self._restored = state["partitions"]
        parts = sum(int(part["samples_drawn"]) for part in state["partitions"].values())
        self._restored_drawn = int(state.get("drawn", parts))  # old snapshots do not say
        self._published = dict(published or {}) if self._kind.is_replay else {}


class ReplayBuffers:
    """The replay buffers of all players that learn; figures and state are those of all together.

    Args:
        of: of each player, by its name.
    """

    def __init__(self, of: Mapping[str, ReplayManager]) -> None:
        self.of = dict(of)

    @property
    def partitions(self) -> dict[int, Partition]:
        """Of all learners, by rank."""
        return {rank: part for one in self.of.values() for rank, part in one.partitions.items()}

    def of_learner(self, rank: int) -> ReplayManager | None:
        """The one that has a learner's partition; None: there is none any more."""
        return next((one for one in self.of.values() if rank in one.partitions), None)

    def newest_of(self, rank: int) -> int:
        """Number of a collector's last announced block; 0: there is none."""
        return max(one.newest_of(rank) for one in self.of.values())

    def take_freed(self) -> list[str]:
        """Names of blocks that no learner needs any more, since the last call."""
        return [path for one in self.of.values() for path in one.take_freed()]

    @property
    def blocked(self) -> str:
        """Why learning, or collecting, has to wait; empty where neither has to."""
        if len(self.of) == 1:
            return self.of[MAIN].blocked
        return "; ".join(f"{name}: {one.blocked}" for name, one in self.of.items() if one.blocked)

    @property
    def items_admitted(self) -> int:
        """Transitions that learners have read."""
        return sum(one.items_admitted for one in self.of.values())

    @property
    def blocks_lost(self) -> int:
        """Blocks that a learner could not read."""
        return sum(one.blocks_lost for one in self.of.values())

    @property
    def blocks_skipped(self) -> int:
        """Blocks that nobody read."""
        return sum(one.blocks_skipped for one in self.of.values())

    def count(self) -> int:
        """Items that can be drawn."""
        return sum(one.count() for one in self.of.values())

    def capacity(self) -> int:
        """Items that they can hold."""
        return sum(one.capacity() for one in self.of.values())

    def samples_drawn(self) -> int:
        """Items that were ever drawn."""
        return sum(one.samples_drawn() for one in self.of.values())

    def state_dict(self) -> dict[str, Any]:
        """The state of all, as of one; and ``players``: which partition is whose."""
        states = {name: one.state_dict() for name, one in self.of.items()}
        newest: dict[str, int] = {}
        for state in states.values():
            for rank, number in state["newest"].items():
                newest[rank] = max(number, newest.get(rank, 0))
        players = {
            name: {"partitions": list(state["partitions"]), "drawn": state["drawn"]}
            for name, state in states.items()
        }
        return {
            "partitions": {
                k: p for state in states.values() for k, p in state["partitions"].items()
            },
            "waiting": [path for state in states.values() for path in state["waiting"]],
            "newest": newest,
            "players": players,
        }

    def load_state_dict(
        self, state: Mapping[str, Any], published: Mapping[str, BlockReady] | None = None
    ) -> None:
        """Restore a `state_dict`, see `ReplayManager.load_state_dict`.

        What is of players that learn no more is left out.
        """
        whole = {MAIN: {"partitions": list(state["partitions"])}}
        players = state.get("players", whole)  # old snapshots have the main player alone
        for name, one in self.of.items():
            own = players.get(name, {"partitions": []})
            parts = {part: state["partitions"][part] for part in own["partitions"]}
            blocks = {p: ready for p, ready in (published or {}).items() if ready.player == name}
            drawn = {"drawn": own["drawn"]} if "drawn" in own else {}
            one.load_state_dict(
                {"partitions": parts, "newest": state["newest"], **drawn},
                None if published is None else blocks,
            )


def replay_ratio_of(config: ExperimentConfig, collectors: int, learners: int = 1) -> ReplayRatio:
    """The replay ratio of an experiment over ranks.

    Some batches and one rollout of every collector may be due: less would make them wait for each
    other in turns.

    Args:
        config: the experiment.
        collectors: ranks that collect.
        learners: ranks that learn from it.
    """
    policy = config.policy
    ratio = policy.learn.replay_ratio
    if ratio is None or config.system.deterministic:  # which works in turns
        return ReplayRatio()
    rollouts = collectors * policy.collect.n_sample * config.env.collector_env_num
    batches = 4 * policy.learn.batch_size * learners
    return ReplayRatio(ratio, policy.warm_up, max(batches, ratio * rollouts))


def create_replays(config: ExperimentConfig, curves: Any = None, workers: int = 2) -> ReplayBuffers:
    """Make the replay buffer of each player that learns; see `create_replay`."""
    players = learners_of(config)
    return ReplayBuffers({p: create_replay(config, curves, workers, p) for p in players})


def create_replay(
    config: ExperimentConfig, curves: Any = None, workers: int = 2, player: str = MAIN
) -> ReplayManager:
    """Make a player's replay manager; its buffers are seeded by the experiment.

    Args:
        config: the experiment.
        curves: takes what the buffers report of themselves.
        workers: ranks besides the coordinator.
        player: that learns from it.
    """
    policy = config.policy
    buffer_cfg = policy.other.replay_buffer
    players = learners_of(config)
    learners = players[player]
    kind: type[Partition] = Partition
    if policy.on_policy:
        kind = AsTheyComePartition if policy.CORRECTS_STALENESS else OnPolicyPartition
        rollout_rows = policy.collect.n_sample * config.env.collector_env_num
        least = policy.learn.batch_size * learners if policy.CORRECTS_STALENESS else 0
        buffer_cfg = on_policy_buffer(buffer_cfg, workers, rollout_rows, least)
    share = dataclasses.replace(
        buffer_cfg,
        replay_buffer_size=buffer_cfg.replay_buffer_size // learners,
        min_fill=max(1, buffer_cfg.min_fill // learners),
        frames=(),  # this buffer holds row numbers; shards and learners' rings hold the frames
    )
    number = list(players).index(player)
    seeds = np.random.SeedSequence(config.seed, spawn_key=(0, number) if number else (0,))

    def make_buffer(name: str) -> AdvancedReplayBuffer:
        buffer: AdvancedReplayBuffer = get_buffer_cls(share)(
            share, curves, config.exp_name, name,
            rng=np.random.default_rng(seeds.spawn(1)[0]), prioritized=policy.priority,
        )  # fmt: skip
        return buffer

    ratio = replay_ratio_of(config, workers - sum(players.values()), learners)
    block_bytes = config.system.storage.block_bytes
    return ReplayManager(make_buffer, block_bytes, kind, ratio, policy.sequence)
