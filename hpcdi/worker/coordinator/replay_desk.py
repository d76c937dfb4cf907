"""The replay buffer: the partitions of all learners, and the buffers by name; decisions only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcdi.comm.messages import AdmitBlock, Batches, BlockAdmitted, BlockReady
from hpcdi.types import collector_of, number_of
from hpcdi.worker.coordinator.backlog import Backlog
from hpcdi.worker.coordinator.named_buffers import NamedBuffers
from hpcdi.worker.coordinator.partition import (
    Partition,
    Pieces,
)
from hpcdi.worker.coordinator.restored import Restored
from hpcdi.worker.replay_buffer.advanced_buffer import AdvancedReplayBuffer

EARLY_ROWS = 1_000_000
"""Rows that may wait while there is no learner."""


@dataclass(frozen=True)
class _Maker:
    """What a partition is made of."""

    kind: type[Partition]
    make_buffer: Callable[[str], AdvancedReplayBuffer]
    block_bytes: int

    def make(self, name: str) -> Partition:
        return self.kind(self.make_buffer(name), self.block_bytes)


@dataclass
class _Past:
    """What no partition counts: blocks that could not be read, and what dead learners leave."""

    unread: int = 0
    drawn: int = 0
    skipped: int = 0
    freed: list[str] = field(default_factory=list)


class ReplayDesk:
    """The partitions of all learners; blocks go to them in turn, batches to all at once.

    Learners that share their gradients iterate together: each is given as many batches as every
    other. So all have the same ones before a word that ends their work, and end it together.

    Args:
        make_buffer: makes the buffer of a name, e.g. a learner's partition.
        block_bytes: size at which collectors seal a block.
        partition: how a learner's part is drawn from.
    """

    def __init__(
        self,
        make_buffer: Callable[[str], AdvancedReplayBuffer],
        block_bytes: int,
        partition: type[Partition] = Partition,
    ) -> None:
        self.partitions: dict[int, Partition] = {}
        self.items_admitted = 0
        self._maker = _Maker(partition, make_buffer, block_bytes)
        self.named = NamedBuffers(make_buffer)
        self._early = Backlog(EARLY_ROWS)  # published before there was a learner
        self._restored = Restored()
        self._past = _Past()
        self._newest: dict[str, int] = {}  # collector rank -> number of the last block heard of

    def open(self, *learner_ranks: int) -> list[tuple[int, AdmitBlock]]:
        """Learners start with empty partitions; gives the blocks that have waited for them."""
        for rank in learner_ranks:
            self.partitions[rank] = self._maker.make(f"buffer_rank{rank}")
        restored, self._restored = self._restored, Restored()
        orders = restored.into(self.partitions)
        for ready in [*restored.rest(), *self._early.take_all()]:
            orders += self.assign(ready)
        return orders

    def assign(self, ready: BlockReady) -> list[tuple[int, AdmitBlock]]:
        """The learner that gets a block, and what it should read; while there is none, nothing."""
        collector, number = str(collector_of(ready.block_id)), number_of(ready.block_id)
        self._newest[collector] = max(number, self._newest.get(collector, 0))
        if not self.partitions:
            self._early.add(ready)
            return []
        rank = min(self.partitions, key=lambda rank: self.partitions[rank].load)
        return [(rank, order) for order in self.partitions[rank].offer(ready)]

    def lose(self, rank: int) -> list[tuple[int, AdmitBlock]]:
        """A learner has died; gives what the others are to read in its place.

        They take as many of its newest blocks as they have room for, and nothing of their own gives
        way: with full buffers one learner's share of the data is as good as another's.
        """
        part = self.partitions.pop(rank, None)
        if part is None:
            return []
        self._past.drawn += part.samples_drawn
        self._past.skipped += part.backlog.dropped
        self._past.freed += part.take_freed()
        room = self.capacity() - self.count()
        taken: list[BlockReady] = []
        for ready in reversed(part.surrender()):
            room -= int(ready.items["item_len"].sum())
            if room >= 0:
                taken.append(ready)
            else:
                self._past.freed.append(ready.shard.path)
        return [order for ready in reversed(taken) for order in self.assign(ready)]

    def serve(self, env_steps: int, collecting: Collection[int]) -> list[tuple[int, Batches]]:
        """Batches for learners that have asked, as many for each; none until all can have some.

        Args:
            env_steps: of the run so far.
            collecting: ranks that collect.
        """
        if not all(part.waits for part in self.partitions.values()):
            return []
        pieces = Pieces(collecting, _newest(part.given for part in self.partitions.values()))
        batches = min((part.ready(pieces) for part in self.partitions.values()), default=0)
        if not batches:
            return []
        return [(rank, part.serve(batches, env_steps)) for rank, part in self.partitions.items()]

    def admit(self, rank: int, admitted: BlockAdmitted) -> list[AdmitBlock]:
        """A learner holds a block, or could not read it; gives what it should read next."""
        self._past.unread += bool(admitted.error)
        self.items_admitted += self.partitions[rank].admit(admitted)
        return self.partitions[rank].orders()

    def take_freed(self) -> list[str]:
        """Paths of shards that no learner needs any more, since the last call."""
        freed, self._past.freed = self._past.freed, []
        freed += [path for p in self.partitions.values() for path in p.take_freed()]
        return freed + self._early.take_freed() + self.named.take_freed()

    @property
    def blocked(self) -> str:
        """Why a learner, or its blocks, have to wait; empty where none has to."""
        return next(filter(None, (p.blocked for p in self.partitions.values())), "")

    @property
    def blocks_lost(self) -> int:
        """Blocks that a learner could not read."""
        return self._past.unread

    @property
    def blocks_skipped(self) -> int:
        """Blocks that nobody read: they came faster than the learners could take them."""
        skipped = self._past.skipped + self._early.dropped
        return skipped + sum(p.backlog.dropped for p in self.partitions.values())

    def count(self) -> int:
        """Items that can be drawn, of all partitions."""
        return sum(partition.buffer.count() for partition in self.partitions.values())

    def capacity(self) -> int:
        """Items that all partitions can hold."""
        return sum(p.buffer.replay_buffer_size for p in self.partitions.values())

    def samples_drawn(self) -> int:
        """Items that were ever drawn."""
        drawn = sum(partition.samples_drawn for partition in self.partitions.values())
        return self._past.drawn + drawn

    def state_dict(self) -> dict[str, Any]:
        """State of all partitions, by learner rank, of the buffers by name, and what waits."""
        return {
            "partitions": {f"rank{rank}": p.state_dict() for rank, p in self.partitions.items()},
            "named": self.named.state_dict(),
            "waiting": self._early.paths,
            "newest": dict(self._newest),
        }

    def load_state_dict(
        self, state: Mapping[str, Any], published: Mapping[str, BlockReady] | None = None
    ) -> None:
        """Be what gave a `state_dict`, as soon as learners start and have read its blocks again.

        See `Restored`. On-policy, blocks are of no use any more.

        Args:
            state: a `state_dict`.
            published: the blocks that are there, by path; those that the state does not know were
                published after it, and are admitted like new ones.
        """
        self.named.load_state_dict(state["named"])
        self._newest = dict(state["newest"])
        self._restored = Restored(state, published if self._maker.kind.is_replay else {})


def _newest(given: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Newest policy version of each collector's pieces, over all partitions."""
    newest: dict[int, int] = {}
    for part in given:
        for rank, version in part.items():
            newest[rank] = max(version, newest.get(rank, -1))
    return newest
