"""One learner's part of the replay buffer, as rank 0 sees it: rows, items, and what may be drawn.

Rank 0 keeps ids, priorities and places of items; the learner keeps the arrays in its ring of rows.
`manager` distributes blocks and batches over the learners' parts. Decisions only: blocks and
requests in, orders out.

Life of a block::

    BlockReady ──backlog──► AdmitBlock ──learner has read it──► BlockAdmitted ──► items in the index
                               │                                                       │
                               └── rows of the oldest blocks: their items leave it ◄───┘ (later)

A block that a collector still appends to (an open block) has rows for its full capacity at once.
Each piece that is appended goes the same way, until the block is stored (`BlockStored`) and has a
path.

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
from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any, ClassVar

import numpy as np

from hpcdi.comm.messages import (
    AdmitBlock,
    Batches,
    BlockAdmitted,
    BlockReady,
    BlockStored,
    DataDemand,
)
from hpcdi.config.replay import AdvancedBufferConfig
from hpcdi.dataclass import dataclass
from hpcdi.errors import BufferContractError
from hpcdi.replay.index import ReplayIndex
from hpcdi.replay.placer import RowPlacer, ring_rows
from hpcdi.store.block import block_rows, transition_rows
from hpcdi.types import GIVEN, Array, SequenceRule, collector_of

MAX_UNREAD = 4
"""Blocks that a learner is ordered to read ahead: enough to keep it reading."""
TRANSITIONS = SequenceRule()


def rows_of_ring(
    buffer: ReplayIndex,
    block_bytes: int,
    ready: BlockReady,
    rule: SequenceRule,
    rows_per_item: float,
) -> int:
    """Returns the rows of a partition's ring, see `ring_rows`.

    Args:
        buffer: index of the items.
        block_bytes: size at which collectors seal a block.
        ready: a block.
        rule: what an item is.
        rows_per_item: of blocks so far. Their items may be short, as episodes are at first:
            sequences of full items are farther apart.
    """
    size = buffer.capacity
    full_block = block_rows(block_bytes, ready.shard.row_bytes(), size)
    rows_per_item = max(rule.apart, rows_per_item)
    return ring_rows(size, full_block, rows_per_item, buffer.min_fill, rule.most_rows)


def item_count(ready: BlockReady, rule: SequenceRule) -> int:
    """How many items of the replay buffer are in a block: transitions, or sequences."""
    if rule.begins_everywhere:
        return ready.transitions
    return int(rule.counts(ready.items["item_len"]).sum())


def item_rows(
    ready: BlockReady, first_row: int, rule: SequenceRule = TRANSITIONS
) -> tuple[Array, Array]:
    """Ring row and policy version of each item, both int64 [items]; of a sequence its first row."""
    versions = np.repeat(ready.items["policy_version"], ready.items["item_len"])
    rows = transition_rows(ready.items)
    if not rule.begins_everywhere:
        lengths = ready.items["item_len"]
        number, rest = np.divmod(rows - np.repeat(ready.items["item_start"], lengths), rule.stride)
        starts = (rest == 0) & (number < np.repeat(rule.counts(lengths), lengths))
        rows, versions = rows[starts], versions[starts]
    return first_row + rows, versions


class Backlog:
    """Published blocks that no learner was ordered to read yet, oldest first.

    Where blocks come faster than they are read, the oldest are dropped: they would be overwritten
    before anything was drawn from them. An open block goes with all of its pieces that wait or are
    still to come: those behind a gap have no place.

    Args:
        limit: items that may wait.
        rule: what an item is.

    Attributes:
        dropped: number of blocks that nobody will read.
        offered: rows of all blocks that were ever added.
        items: items that wait.
        must_read: ids of blocks that a learner must read before anything is drawn: those of given
            data, and after a restart those that it must read again.
        cut: ids of open blocks of which pieces were dropped, until they are stored.
    """

    def __init__(self, limit: int, rule: SequenceRule) -> None:
        self.dropped = 0
        self.offered = self.items = 0
        self.must_read: set[int] = set()
        self.cut: set[int] = set()
        self._limit, self._rule = limit, rule
        self._waiting: deque[tuple[BlockReady, int]] = deque()  # each with its number of items
        self._unread = Counter[int]()  # pieces of blocks that are being read, by the blocks' ids
        self._freed: list[str] = []

    @property
    def paths(self) -> list[str]:
        """Names of the blocks that wait."""
        return [block.shard.path for block, _ in self._waiting if not block.is_open]

    @property
    def is_idle(self) -> bool:
        """True if nothing waits, and nothing is being read."""
        return not (self._waiting or self._unread or self.must_read)

    @property
    def is_reading(self) -> bool:
        """True if the learner was ordered to read blocks, and has not read all of them yet."""
        return bool(self._unread)

    @property
    def blocks(self) -> int:
        """Blocks that wait, and those that are being read."""
        return len(self._waiting) + len(self._unread)

    def is_being_read(self, block_id: int) -> bool:
        """Returns whether the learner was ordered to read a block, and has not read it yet."""
        return block_id in self._unread

    def has(self, block_id: int) -> bool:
        """Returns whether a block, or a piece of it, waits."""
        return any(ready.block_id == block_id for ready, _ in self._waiting)

    def add(self, ready: BlockReady, *, must_read: bool = False) -> None:
        """Append a block; drops the oldest where there are too many items."""
        if ready.block_id in self.cut:
            return
        items = item_count(ready, self._rule)
        self._waiting.append((ready, items))
        self.offered += ready.shard.rows
        self.items += items
        if must_read or collector_of(ready.block_id) == GIVEN:
            self.must_read.add(ready.block_id)
        while self.items > self._limit and len(self._waiting) > 1:
            oldest, items = self._waiting.popleft()
            self.items -= items
            if oldest.is_open:  # `ReplayManager.stored` frees it, or what was read of it is sealed
                self.cut.add(oldest.block_id)
                self._waiting = deque(w for w in self._waiting if w[0].block_id != oldest.block_id)
                self.items = sum(items for _, items in self._waiting)
            else:
                self._freed.append(oldest.shard.path)
            self.must_read.discard(oldest.block_id)
            self.dropped += 1

    @property
    def may_take(self) -> bool:
        """True if the learner should read a block that waits."""
        return bool(self._waiting) and len(self._unread) < MAX_UNREAD

    def take(self) -> list[BlockReady]:
        """Blocks that the learner should read now."""
        taken = []
        while self.may_take:
            ready, items = self._waiting.popleft()
            taken.append(ready)
            self.items -= items
            self._unread[ready.block_id] += 1
        return taken

    def take_all(self) -> list[BlockReady]:
        """Remove and return all blocks that wait."""
        taken = [ready for ready, _ in self._waiting]
        self._waiting.clear()
        self.items = 0
        return taken

    def read(self, block_id: int) -> None:
        """The learner has read a block, or a piece of it, or failed to."""
        self._unread[block_id] -= 1
        if self._unread[block_id] <= 0:
            del self._unread[block_id]
        self.must_read.discard(block_id)

    def take_freed(self) -> list[str]:
        """Names of the blocks that were dropped since the last call."""
        freed, self._freed = self._freed, []
        return freed


@dataclass
class PlacedBlock:
    """A block that has rows in its learner's ring.

    Attributes:
        ready: its announcement; of an open block, with all pieces so far.
        first_row: its first row in the ring.
        first_id, end_id: unique ids of its items, [first, end); -1 until they are in the index.
        read: transitions of it that its learner has read.
        unread: what its learner was ordered to read and has not read yet, in order, each with its
            first row in the ring: the block, or pieces of it that came while it was open.
    """

    ready: BlockReady
    first_row: int
    first_id: int = -1
    end_id: int = -1
    read: int = 0
    unread: deque[tuple[BlockReady, int]] = field(default_factory=deque)

    def grow(self, piece: BlockReady) -> None:
        """Append a piece to an open block.

        Raises:
            BufferContractError: it does not begin where the block ends.
        """
        ready, rows = self.ready, self.ready.shard.rows
        if piece.first_row != rows:
            raise BufferContractError(f"block {ready.block_id} was announced twice")
        items = piece.items.copy()
        items["item_start"] += rows
        shard = dataclasses.replace(ready.shard, rows=rows + piece.shard.rows)
        items, made_of = np.concatenate([ready.items, items]), ready.env_steps + piece.env_steps
        self.ready = dataclasses.replace(
            ready, shard=shard, items=items, made_of=made_of, capacity=piece.capacity
        )

    def state_dict(self) -> dict[str, Any]:
        """The block in a partition's state; its path is empty until it is stored."""
        shard = self.ready.shard
        return {
            "block_id": self.ready.block_id,
            "path": "" if self.ready.is_open else shard.path,
            "rows": shard.rows,
            "crc32": shard.crc32,
            "first_row": self.first_row,
            "first_id": self.first_id,
            "end_id": self.end_id,
            "read": self.read,
        }


class Partition:
    """One learner's part of the replay buffer: rows of its ring, and an index of their items.

    Args:
        buffer: index of the items.
        block_bytes: size at which collectors seal a block.
        rule: what an item is.
    """

    is_replay: ClassVar[bool] = True
    """True if data are learnt from repeatedly, also after a restart."""

    def __init__(
        self, buffer: ReplayIndex, block_bytes: int, rule: SequenceRule = TRANSITIONS
    ) -> None:
        self.rule = rule
        self.buffer = buffer
        self.samples_drawn = 0
        self.backlog = Backlog(buffer.capacity, rule)
        self._rows = np.zeros(buffer.capacity, np.int32)  # ring row of the item in each slot
        self.newest_version: dict[int, int] = {}  # on-policy: rank -> that of its undrawn rollouts
        self._block_bytes = block_bytes
        self._placer: RowPlacer | None = None  # made when the first block shows the size of a row
        self._placed: dict[int, PlacedBlock] = {}
        self._stored: dict[int, BlockStored] = {}  # open blocks, until their last pieces have come
        self._rereads: list[AdmitBlock] = []  # orders to read lent blocks, now from their shards
        self._demand: DataDemand | None = None
        self._train_iter = 0  # iterations that its learner had done when it last asked
        self._under_way = 0  # batches that it was sent, and had not learnt from then
        self._freed: list[str] = []

    # ------------------------------------------------------------------------------- blocks

    def offer(self, ready: BlockReady, *, must_read: bool = False) -> list[AdmitBlock]:
        """Take a published block; returns what the learner should read now."""
        self.backlog.add(ready, must_read=must_read)
        for block_id in self.backlog.cut & self._stored.keys():
            stored = self._stored.pop(block_id)
            if not self.stored(stored):
                self._freed.append(stored.shard.path)
        return self.orders()

    def orders(self) -> list[AdmitBlock]:
        """Place the blocks that the learner should read now: none while it learns too slowly.

        See the buffer's `push_sample_rate_limit`. Meanwhile the backlog drops what does not fit.
        """
        rereads, self._rereads = self._rereads, []
        if not self.backlog.may_take or self.buffer.why_not_push(1):
            return rereads
        return rereads + [self.place(ready) for ready in self.backlog.take()]

    def place(self, ready: BlockReady) -> AdmitBlock:
        """Assign rows to a block; items of the blocks that it overwrites leave the index."""
        if self._placer is None:
            self._placer = RowPlacer(self._ring_for(ready, ready.shard.rows, ready))
        block = self._placed.get(ready.block_id)
        if block is not None:
            block.grow(ready)
            self._placer.trim(ready.block_id, ready.capacity)
            self._seal(block)
        else:
            rows = ready.capacity if ready.is_open else ready.shard.rows
            if self.is_replay and self._placer.is_full(rows):
                self._enlarge_ring(ready, self._placer)
            placement = self._placer.place(ready.block_id, rows)
            for block_id in placement.evicted:
                self._forget(block_id)
            self._placed[ready.block_id] = block = PlacedBlock(ready, placement.first_row)
            self._seal(block)
            if ready.shard.is_shared and not block.ready.is_open:
                ready = block.ready  # its shard stays, its memory may not
        first_row = block.first_row + ready.first_row
        block.unread.append((ready, first_row))
        return self._order(ready, first_row)

    def _ring_for(self, ready: BlockReady, rows: int, *blocks: BlockReady) -> int:
        """Returns the rows of a ring where `rows` have the items of some blocks."""
        items = sum(item_count(block, self.rule) for block in blocks)
        rows_per_item = rows / max(items, 1)
        return rows_of_ring(self.buffer, self._block_bytes, ready, self.rule, rows_per_item)

    def _enlarge_ring(self, ready: BlockReady, placer: RowPlacer) -> None:
        """Give the ring more rows where it is full and holds too few items: they became shorter."""
        blocks = [block.ready for block in self._placed.values()]
        if sum(item_count(block, self.rule) for block in blocks) < self.buffer.capacity:
            rows = self._ring_for(ready, placer.head, *blocks)
            placer.capacity = max(placer.capacity, rows)

    def _forget(self, block_id: int) -> None:
        """Forget a block whose rows were overwritten."""
        block = self._placed.pop(block_id, None)
        if block is None:  # a restart did not find it
            return
        # its own items alone: of a block that was read late, younger ones lie below
        self.buffer.evict(block.end_id, block.first_id)
        if not block.ready.is_open:  # an open block has no path: `ReplayManager.stored` frees it
            self._freed.append(block.ready.shard.path)

    def _order(self, ready: BlockReady, first_row: int) -> AdmitBlock:
        capacity = self._placer.capacity if self._placer is not None else 0
        return AdmitBlock(ready.block_id, first_row, capacity, ready.shard, ready.sealed_at)

    def stored(self, block: BlockStored) -> bool:
        """Note that an open block was stored in a shard; returns whether it is this learner's."""
        placed = self._placed.get(block.block_id)
        if placed is None and not self.backlog.has(block.block_id):
            self.backlog.cut.discard(block.block_id)
            return False
        self._stored[block.block_id] = block
        if placed is not None:
            self._seal(placed)
        return True

    def take_stored(self) -> list[BlockStored]:
        """Remove and return what says that blocks, of which pieces wait, are stored."""
        stored, self._stored = list(self._stored.values()), {}
        return stored

    def reread(self, block_id: int) -> bool:
        """Order a block that could not be read by its lent memory from its shard.

        Returns whether it has one.
        """
        block = self._placed.get(block_id)
        if block is None or not block.unread or block.ready.is_open:
            return False
        lent, first_row = block.unread[0]
        if not lent.shard.is_shared:
            return False
        block.unread[0] = block.ready, first_row
        self._rereads.append(self._order(block.ready, first_row))
        return True

    def _seal(self, block: PlacedBlock) -> None:
        """Close an open block once it is stored and no more pieces will come: it has a path."""
        ready, cut = block.ready, self.backlog.cut
        stored = self._stored.get(ready.block_id)
        if stored is None or (stored.shard.rows > ready.shard.rows and ready.block_id not in cut):
            return
        del self._stored[ready.block_id]
        cut.discard(ready.block_id)
        block.ready = dataclasses.replace(ready, shard=stored.shard, capacity=0)
        if self._placer is not None:
            self._placer.trim(ready.block_id, stored.shard.rows)

    def next_unread(self, block_id: int) -> BlockReady | None:
        """Returns what the learner reads of a block next; None: nothing, or it is overwritten."""
        block = self._placed.get(block_id)
        return block.unread[0][0] if block is not None and block.unread else None

    def admit(self, admitted: BlockAdmitted) -> int:
        """Add the items that a learner has read to the index; returns how many.

        0 where it failed to read them, or they were overwritten meanwhile.
        """
        self.backlog.read(admitted.block_id)
        block = self._placed.get(admitted.block_id)
        if block is None:
            return 0
        if not block.unread:  # reread after a restart: its items are in the index already
            if admitted.error:
                self.buffer.evict(block.end_id, block.first_id)
            return 0
        ready, first_row = block.unread.popleft()
        if admitted.error:
            return 0
        rows, versions = item_rows(ready, first_row, self.rule)
        ids = self._add(ready, versions)
        slots = self.buffer.places.slots(ids.start, ids.stop)
        self._rows[slots] = rows[len(rows) - len(ids) :]
        if block.end_id < 0:
            block.first_id = ids.start
        block.end_id = ids.stop
        block.read += ready.transitions
        return len(ids)

    def _add(self, ready: BlockReady, versions: Array) -> range:  # noqa: ARG002
        """Add a block's items, with the policy version of each; returns their unique ids."""
        return self.buffer.add(len(versions), versions)

    def release_blocks(self) -> list[BlockReady]:
        """Returns the blocks that other learners should take over from a dead one, oldest first.

        The others that it has are free.
        """
        blocks = self.backlog.take_all()
        for ready in (block.ready for block in self._placed.values()):
            if self._may_be_drawn(ready):
                blocks.append(ready)
            elif not ready.is_open:
                self._freed.append(ready.shard.path)
        return sorted(blocks, key=lambda ready: ready.sealed_at)

    @property
    def read_blocks(self) -> dict[int, int]:
        """How many transitions the learner has read of each block here, by id, if any."""
        return {n: block.read for n, block in self._placed.items() if block.end_id >= 0}

    def _may_be_drawn(self, ready: BlockReady) -> bool:  # noqa: ARG002
        """Returns whether items of a block may still be drawn."""
        return True

    def take_freed(self) -> list[str]:
        """Names of blocks that the learner does not need any more, since the last call."""
        freed, self._freed = [*self.backlog.take_freed(), *self._freed], []
        return freed

    @property
    def load(self) -> int:
        """Rows that were assigned to it; the partition with the least load gets the next block."""
        return self.backlog.offered

    # ------------------------------------------------------------------------------- batches

    def demand(self, demand: DataDemand) -> int:
        """Take a learner's request and its priorities; returns how many priorities were stale."""
        stale = 0
        if demand.unique_ids.size:
            updated = self.buffer.update_priorities(demand.unique_ids, demand.priorities)
            stale = len(demand.unique_ids) - updated
        owed = self._demand.batches if self._demand is not None else 0
        if demand.batches > 0:
            owed += demand.batches
            self._demand = dataclasses.replace(demand, batches=owed)
        self._train_iter, self._under_way = demand.train_iter, demand.under_way - owed
        return stale

    def ready(self, collecting: Collection[int], newest_version: Mapping[int, int]) -> int:  # noqa: ARG002
        """Returns how many of the batches that its learner waits for can be drawn now.

        At most as many as the items would fill, and only one where the buffer's limits refuse
        many at once. The request stays for the others.

        Args:
            collecting: ranks that collect.
            newest_version: rank -> newest policy version of its undrawn rollouts, in any partition.
        """
        demand = self._demand
        if demand is None or self.backlog.must_read:
            return 0
        batches = max(1, min(self.buffer.count() // demand.batch_size, demand.batches))
        if batches > 1 and self._can_draw(batches, demand):
            return batches
        return int(self._can_draw(1, demand))

    def _can_draw(self, batches: int, demand: DataDemand) -> bool:
        size = batches * demand.batch_size
        return not self.buffer.why_not_sample(size, self._train_iter_at_use(batches))

    def _train_iter_at_use(self, batches: int = 1) -> int:
        """Returns how many iterations come before the one that learns from the last of `batches`.

        An item's staleness is judged by it: batches wait at the learner (`system.prefetch`). Each
        counts as one iteration.
        """
        return self._train_iter + self._under_way + batches - 1

    @property
    def is_learnt(self) -> bool:
        """True if its learner has learnt from all batches that it was sent."""
        return self._under_way == 0

    def serve(self, batches: int, env_steps: int, among: slice | None = None) -> Batches:
        """Draw batches for the waiting request.

        Args:
            batches: at most as many as are `ready`.
            env_steps: of the run so far.
            among: items to draw from, by age; None: all.
        """
        demand = self._demand
        if demand is None:
            raise BufferContractError("batches were drawn that nobody has asked for")
        size = batches * demand.batch_size
        now = self._train_iter_at_use(batches)
        drawn = self.buffer.draw(size, now, batches, among, is_granted=True)  # `ready` said so
        if drawn is None:
            raise BufferContractError(f"batches were drawn too early: {self.buffer.blocked}")
        self.buffer.retire(drawn.slots)
        self._under_way += batches
        missing = demand.batches - batches
        self._demand = dataclasses.replace(demand, batches=missing) if missing else None
        self.samples_drawn += size

        def by_batch(array: Array) -> Array:
            # neighbours are drawn from neighbouring strata: deal them out like cards, so that each
            # batch has items of all strata
            return np.ascontiguousarray(array.reshape(demand.batch_size, batches).T)

        return Batches(
            rows=by_batch(self._rows[drawn.slots].astype(np.int64)),
            unique_ids=by_batch(drawn.unique_ids),
            weights=by_batch(drawn.weights),
            env_steps=env_steps,
        )

    @property
    def batch_size(self) -> int:
        """Items of a batch that its learner waits for; 0: it waits for none."""
        return self._demand.batch_size if self._demand is not None else 0

    @property
    def waits(self) -> bool:
        """True if its learner waits for batches."""
        return self._demand is not None

    @property
    def blocked(self) -> str:
        """Reason why its learner waits for batches, or its blocks for the learner; may be empty."""
        if self.backlog.must_read:
            return f"{len(self.backlog.must_read)} blocks are read first"
        if self.waits and self.buffer.blocked:
            return f"learner waits: {self.buffer.blocked}"
        reason = self.buffer.why_not_push(1) if self.backlog.items else ""
        return f"blocks wait: {reason}" if reason else ""

    # ------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """The index, and the path of each of its blocks; an `end_id` of -1 marks an unread one."""
        return {
            "buffer": self.buffer.state_dict(),
            "rows": self.buffer.places.ordered(self._rows),
            "ring": {} if self._placer is None else self._placer.state_dict(),
            "blocks": [block.state_dict() for block in self._placed.values()],
            "samples_drawn": self.samples_drawn,
            "waiting": [*self.backlog.paths, *(s.shard.path for s in self._stored.values())],
            "offered": self.backlog.offered,
        }

    def load_state_dict(
        self, state: Mapping[str, Any], published: Mapping[str, BlockReady]
    ) -> list[AdmitBlock]:
        """Restore a `state_dict`; returns what the learner must read again, into the same rows.

        Nothing is drawn until all of it is read. Items whose block is gone leave the index.

        Args:
            state: a `state_dict`.
            published: the blocks that exist, by name.
        """
        self.buffer.load_state_dict(state["buffer"])
        self._rows[self.buffer.places.slots()] = state["rows"]
        self.samples_drawn, self.backlog.offered = state["samples_drawn"], state["offered"]
        read = []
        for block in state["blocks"]:
            if self.has_read(block, published):
                read.append(block)
            elif block["end_id"] >= 0:  # read in part: all of it is admitted anew
                self.buffer.evict(block["end_id"], block["first_id"])
        if state["ring"]:
            self._placer = RowPlacer(int(state["ring"]["capacity"]))
            placed = [(b["block_id"], b["first_row"], b["first_row"] + b["rows"]) for b in read]
            self._placer.restore(int(state["ring"]["head"]), placed)
        for block in read:
            ready = published.get(block["path"])
            if ready is None or ready.shard.crc32 != block["crc32"]:
                self.buffer.evict(block["end_id"], block["first_id"])
                continue
            self._placed[block["block_id"]] = PlacedBlock(
                ready, block["first_row"], block["first_id"], block["end_id"], ready.transitions
            )
        self.backlog.must_read.update(self._placed)
        return [self._order(block.ready, block.first_row) for block in self._placed.values()]

    def has_read(self, block: Mapping[str, Any], published: Mapping[str, BlockReady]) -> bool:
        """Returns whether all of a saved block was read; of an open one only pieces may have been.

        By transitions: with another burn-in there are more or fewer items.

        Args:
            block: of a `state_dict`.
            published: the blocks that exist, by name; one that is not among them counts as read if
                any piece of it was.
        """
        ready = published.get(block["path"])
        if ready is None or ready.shard.crc32 != block["crc32"]:
            return bool(block["end_id"] >= 0)
        return bool(block["read"] >= max(ready.transitions, 1))


class OnPolicyPartition(Partition):
    """One learner's part on-policy: each item is drawn once, together with all others.

    Args:
        buffer: index of the items; see `on_policy_buffer` for its settings.
        block_bytes: size at which collectors seal a block.
        rule: what an item is.
    """

    is_replay = False

    def __init__(
        self, buffer: ReplayIndex, block_bytes: int, rule: SequenceRule = TRANSITIONS
    ) -> None:
        super().__init__(buffer, block_bytes, rule)
        self._undrawn: set[int] = set()  # block ids of rollouts that the learner has read
        self._end_id = 0
        # for each undrawn piece of a trajectory, the unique id after that of its last transition
        self._ends = np.array([buffer.places.pushed])

    def admit(self, admitted: BlockAdmitted) -> int:
        """Add a rollout's items to the index, and note its policy version."""
        count = super().admit(admitted)
        block = self._placed.get(admitted.block_id)
        if count and block is not None:
            self._undrawn.add(admitted.block_id)
            version = int(block.ready.items["policy_version"].max())
            rank = collector_of(admitted.block_id)
            self.newest_version[rank] = max(version, self.newest_version.get(rank, -1))
            self._end_id = block.end_id
        return count

    def _add(self, ready: BlockReady, versions: Array) -> range:
        """Where the new items displace the beginning of a piece, the rest of it goes, too.

        What is learnt from a piece of a trajectory (V-trace, a memory's states) needs it whole.
        """
        begin = self.buffer.places.pushed
        ids = super()._add(ready, versions)
        self._ends = np.concatenate([self._ends, begin + ready.items["item_len"].cumsum()])
        self._ends = self._ends[np.searchsorted(self._ends, self.buffer.places.first) :]
        self.buffer.evict(int(self._ends[0]))
        return ids

    def ready(self, collecting: Collection[int], newest_version: Mapping[int, int]) -> int:
        """One batch of everything, once all collecting ranks have delivered a rollout."""
        if not (self.waits and collecting):
            return 0
        oldest = self._train_iter_at_use() - self.buffer.max_staleness
        if any(newest_version.get(rank, -1) < oldest for rank in collecting):
            return 0
        # also drops what is too old
        return int(not self.buffer.why_not_sample(1, self._train_iter_at_use()))

    def serve(self, batches: int, env_steps: int, among: slice | None = None) -> Batches:  # noqa: ARG002
        """Draw everything, as one batch; see `Partition.serve`."""
        if self._demand is not None:
            self._demand = dataclasses.replace(self._demand, batch_size=self.buffer.count())
        batch = in_order(super().serve(batches, env_steps, slice(None)))
        self.buffer.evict(self._end_id)
        self.newest_version.clear()
        self._undrawn.clear()
        return batch

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        published: Mapping[str, BlockReady],  # noqa: ARG002
    ) -> list[AdmitBlock]:
        """Restore counters and random numbers only: rollouts are collected anew."""
        self.buffer.load_state_dict(state["buffer"])
        self.buffer.evict(self.buffer.places.pushed)
        self._ends = np.array([self.buffer.places.pushed])
        self.samples_drawn = int(state["samples_drawn"])
        return []

    def _may_be_drawn(self, ready: BlockReady) -> bool:
        return ready.block_id in self._undrawn or self.backlog.is_being_read(ready.block_id)

    @property
    def load(self) -> int:
        """Undrawn rollouts: in a group, each learner needs one for a batch."""
        return self.backlog.blocks + len(self._undrawn)

    @property
    def blocked(self) -> str:
        """Reason why its learner waits; may be empty."""
        return "learner waits for the collectors' rollouts" if self.waits else ""


class AsynchronousPartition(OnPolicyPartition):
    """One learner's part where updates correct for older policies (V-trace): nobody waits.

    A batch is everything that is there.
    """

    def ready(self, collecting: Collection[int], newest_version: Mapping[int, int]) -> int:  # noqa: ARG002
        """One batch of everything, as soon as there is enough."""
        return int(self.waits and not self.buffer.why_not_sample(1, self._train_iter_at_use()))

    @property
    def blocked(self) -> str:
        """Reason why its learner waits; may be empty."""
        return f"learner waits: {self.buffer.blocked}" if self.waits and self.buffer.blocked else ""


def in_order(batch: Batches) -> Batches:
    """Returns batches with their rows sorted: transitions of an episode follow each other again."""
    order = batch.rows.argsort(axis=1)
    rows, ids, weights = (
        np.take_along_axis(array, order, axis=1)
        for array in (batch.rows, batch.unique_ids, batch.weights)
    )
    return dataclasses.replace(batch, rows=rows, unique_ids=ids, weights=weights)


def on_policy_buffer(
    cfg: AdvancedBufferConfig, rollouts: int, rollout_rows: int, least: int = 0
) -> AdvancedBufferConfig:
    """Settings of the index on-policy: how old items may be, and room for all rollouts under way.

    Args:
        cfg: the replay buffer's settings; without a bound of staleness the bound is 0.
        rollouts: collectors.
        rollout_rows: the most transitions that one rollout can have.
        least: fewest items of a batch, where a batch is everything that is there; 0: a batch is a
            rollout of each collector, by policies within the bound.
    """
    bound = cfg.staleness_bound
    size = (bound + 3) * rollouts * rollout_rows
    return dataclasses.replace(
        cfg,
        max_staleness=cfg.max_staleness if least else bound,
        min_fill=max(least, 1),
        replay_buffer_size=max(size, cfg.replay_buffer_size, 2 * least),
        thruput_controller=type(cfg.thruput_controller)(),  # a batch is all that there is
    )
