"""The replay buffer as rank 0 sees it: which learner gets which block, and what all draw next.

`ReplayManager` distributes blocks and batches over the learners' parts (see `partition`). Decisions
only: blocks and requests in, orders out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np

from hpcdi.comm.messages import AdmitBlock, Batches, BlockAdmitted, BlockReady, BlockStored
from hpcdi.config.schema import ExperimentConfig
from hpcdi.dataclass import dataclass
from hpcdi.replay.index import ReplayIndex, Slots
from hpcdi.replay.monitor import Monitor
from hpcdi.replay.partition import (
    TRANSITIONS,
    AsynchronousPartition,
    Backlog,
    OnPolicyPartition,
    Partition,
    item_count,
    on_policy_buffer,
)
from hpcdi.replay.ratio import ReplayRatio, replay_ratio_of
from hpcdi.types import GIVEN, MAIN, ScalarWriter, SequenceRule, collector_of

EARLY_ITEMS = 1_000_000
"""Items of published blocks that are kept while there is no learner."""


@dataclass(frozen=True)
class ReplayFigures:
    """Figures of a replay buffer, or of several together.

    Attributes:
        items: items that can be drawn.
        capacity: items that it can hold; 0: there is none.
        drawn: items that were ever drawn.
        admitted: transitions that learners have read.
        steps: environment steps that these were made of; those of given data count, too.
        blocks_lost: blocks that a learner could not read.
        blocks_skipped: blocks that came faster than learners could read them, or that were left
            out: of players that are not here, or of a guest's older policy.
    """

    items: int = 0
    capacity: int = 0
    drawn: int = 0
    admitted: int = 0
    steps: int = 0
    blocks_lost: int = 0
    blocks_skipped: int = 0

    @classmethod
    def total(cls, figures: Iterable[ReplayFigures]) -> ReplayFigures:
        """Returns those of several buffers together."""
        return cls(*map(sum, zip(*map(dataclasses.astuple, figures), strict=True)))


class ReplayManager:
    """The partitions of a group of learners: blocks go to them in turn, batches to all at once.

    Learners that share their gradients iterate together: each gets as many batches as every other.
    So all have the same ones before an order that ends their work, and end it together.

    Args:
        make_buffer: makes the index of a partition, which reports under this name.
        block_bytes: size at which collectors seal a block.
        partition: class of the learners' partitions: how batches are drawn.
        ratio: how much may be drawn; None: as much as learners ask for.
        rule: what an item is.

    Attributes:
        ratio: see above.
        partitions: by learner rank.
        items_admitted: transitions that learners have read in the whole run, each counted once
            where they are read again: after a restart, or after a learner's death by the others.
        steps_admitted: environment steps that these were made of, fewer where goals are relabelled.
    """

    def __init__(
        self,
        make_buffer: Callable[[str], ReplayIndex],
        block_bytes: int,
        partition: type[Partition] = Partition,
        ratio: ReplayRatio | None = None,
        rule: SequenceRule = TRANSITIONS,
    ) -> None:
        self.ratio, self._rule = ratio or ReplayRatio(), rule
        self.partitions: dict[int, Partition] = {}
        self.items_admitted = self.steps_admitted = 0
        self._unreadable, self._unwritten = set[int](), set[int]()  # ids of blocks
        self._make_buffer, self._block_bytes = make_buffer, block_bytes
        self._partition_class = partition
        self._early = Backlog(EARLY_ITEMS, rule)  # published before there was a learner
        self._restored: Mapping[str, Any] = {}  # partitions of a snapshot, until learners start
        self._restored_drawn = 0  # samples that it says were drawn
        # by the id of a block that is read again: transitions of it that are counted already
        self._counted = dict[int, int]()
        self._counted_before: list[dict[str, Any]] = []  # by the index of the last dead learner
        self._published: dict[str, BlockReady] = {}  # by path, oldest first, for the same learners
        self._lost_drawn = 0  # samples that dead learners have drawn, or those of an earlier start
        self._lost_skipped = 0  # blocks that dead learners have skipped, or that were left out
        self._freed: list[str] = []
        self._stored_early: list[BlockStored] = []  # of blocks that wait for the learners

    # ------------------------------------------------------------------------------- learners

    def open(self, *learner_ranks: int) -> list[tuple[int, AdmitBlock]]:
        """Make partitions for learners; returns orders to read the blocks that waited for them."""
        for rank in learner_ranks:
            self.partitions[rank] = self._partition_class(
                self._make_buffer(f"buffer_rank{rank}"), self._block_bytes, self._rule
            )
        orders = self._restore()
        published, self._published = self._published, {}
        for ready in [*published.values(), *self._early.take_all()]:
            orders += self.assign(ready, is_read_again=ready.block_id in self._counted)
        stored, self._stored_early = self._stored_early, []
        for block in stored:
            self.stored(block)
        return orders

    def _restore(self) -> list[tuple[int, AdmitBlock]]:
        """Restore a snapshot's partitions, if there are as many learners with as large buffers.

        Otherwise its blocks are distributed like new ones: their items have the largest priority
        again, and importance weights are annealed on. Either way they are read before anything is
        drawn.

        Returns orders to read blocks, by learner rank.
        """
        states, self._restored = self._restored, {}
        drawn, self._restored_drawn = self._restored_drawn, 0
        self._lost_drawn = drawn  # the replay ratio counts the samples of the whole run
        # matched by order, not by rank: after a death the learners' ranks were others
        names = sorted(states, key=lambda name: int(name.removeprefix("rank")))
        pairs = list(zip(sorted(self.partitions), (states[n] for n in names), strict=False))
        if len(self.partitions) != len(states) or any(
            state["buffer"]["capacity"] != self.partitions[rank].buffer.capacity
            for rank, state in pairs
        ):
            buffers = [state["buffer"] for state in states.values()]
            for partition in self.partitions.values():
                partition.buffer.count_on_from([*self._counted_before, *buffers])
            pairs = []
        orders = []
        for rank, state in pairs:
            partition = self.partitions[rank]
            reread = partition.load_state_dict(state, self._published)
            self._lost_drawn -= partition.samples_drawn
            orders += [(rank, order) for order in reread]
            for block in [b for b in state["blocks"] if partition.has_read(b, self._published)]:
                self._published.pop(block["path"], None)
        # by ids: a block that was lent had no path yet
        anew = {ready.block_id for ready in self._published.values()}
        for block in (block for state in states.values() for block in state["blocks"]):
            block_id = int(block["block_id"])
            if block["end_id"] >= 0 and block_id in anew:
                self._note_counted(block_id, int(block["read"]))
        return orders

    def _note_counted(self, block_id: int, transitions: int) -> None:
        """Note that learners have read so much of a block that is given anew."""
        self._counted[block_id] = self._counted.get(block_id, 0) + transitions

    def lose(self, rank: int) -> list[tuple[int, AdmitBlock]]:
        """Hand a dead learner's blocks to the others; returns orders to read them, by rank.

        The others take as many of its newest blocks as fit without evicting a block: where all
        buffers are full, one learner's share of the data is as good as another's. Without others
        they wait for those of a resumed run.
        """
        part = self.partitions.pop(rank, None)
        if part is None:
            return []
        self._counted_before = [] if self.partitions else [part.buffer.counted()]
        self._lost_drawn += part.samples_drawn
        if self.partitions:
            self.ratio.lose_learner(len(self.partitions), self.samples_drawn())
        self._lost_skipped += part.backlog.dropped
        for block_id, transitions in part.read_blocks.items():
            self._note_counted(block_id, transitions)
        room = EARLY_ITEMS if self._partition_class.is_replay else 0  # else of no use by then
        free_items = self.capacity() - self.count() if self.partitions else room
        taken, released = list[BlockReady](), part.release_blocks()
        self._freed += part.take_freed()
        for ready in reversed(released):
            free_items -= item_count(ready, self._rule)
            if free_items >= 0:
                taken.append(ready)
            elif not ready.is_open:
                self._freed.append(ready.shard.path)
        orders = [order for ready in reversed(taken) for order in self.assign(ready)]
        for block in part.take_stored():
            self.stored(block)
        return orders

    # ------------------------------------------------------------------------------- data

    def assign(
        self, ready: BlockReady, *, is_read_again: bool = False
    ) -> list[tuple[int, AdmitBlock]]:
        """Give a block to the learner with the least load; without learners it waits.

        Args:
            ready: the block.
            is_read_again: it was read before a restart, see `Backlog.must_read`.
        """
        parts = self.partitions
        if not parts or ready.block_id in self._early.cut:
            self._early.add(ready)
            return []
        rank = min(parts, key=lambda rank: parts[rank].load)
        orders = parts[rank].offer(ready, must_read=is_read_again)
        return [(rank, order) for order in orders]

    def note(self, ready: BlockReady) -> None:
        """Note that the steps of a block are counted: its items end the warm-up, see `ratio`."""
        self.ratio.note(item_count(ready, self._rule), ready.env_steps)

    def take_given(self, ready: BlockReady) -> None:
        """Take a block of given data before learners start, see `open`; the backlog drops none."""
        self._published[ready.shard.path] = ready

    def leave_out(self, ready: BlockReady) -> None:
        """Let nobody learn from a block; its steps count all the same."""
        self._lost_skipped += 1
        self._freed.append(ready.shard.path)

    def admit(self, rank: int, admitted: BlockAdmitted) -> list[AdmitBlock]:
        """Note that a learner has read a block, or failed to; returns what it should read next."""
        part = self.partitions[rank]
        if not (admitted.error and part.reread(admitted.block_id)):
            if admitted.error:
                self._unreadable.add(admitted.block_id)
            piece = part.next_unread(admitted.block_id)
            if part.admit(admitted) and piece:
                self._count(piece)
        return part.orders()

    def _count(self, piece: BlockReady) -> None:
        """Count what a learner has read, but for what was counted when it was read before."""
        counted = self._counted.pop(piece.block_id, 0)
        if counted > piece.transitions:  # of an open block, with more to come
            self._counted[piece.block_id] = counted - piece.transitions
        new = max(0, piece.transitions - counted)
        is_given = collector_of(piece.block_id) == GIVEN  # its steps are of no run
        steps = piece.transitions if is_given else piece.env_steps
        self.items_admitted += new
        self.steps_admitted += round(steps * new / max(piece.transitions, 1))

    def is_unreadable(self, block_id: int) -> bool:
        """Returns whether a learner failed to read a block that is read nowhere else."""
        return block_id in self._unreadable

    @property
    def blocks_lost(self) -> int:
        """Blocks that a learner could not read; without those that died with their collectors."""
        return len(self._unreadable - self._unwritten)

    def lose_unwritten(self, block_id: int) -> None:
        """Note that a block's collector has died, and had lent the block without writing it."""
        self._unwritten.add(block_id)

    def stored(self, block: BlockStored) -> None:
        """Note that a block that was lent was stored in a shard."""
        if self._early.has(block.block_id):
            self._stored_early.append(block)
        elif not any(part.stored(block) for part in self.partitions.values()):
            self._early.cut.discard(block.block_id)
            self._freed.append(block.shard.path)  # its rows were overwritten meanwhile, or dropped

    def serve(self, env_steps: int, collecting: Collection[int]) -> list[tuple[int, Batches]]:
        """Draw equally many batches for each learner; none until all ask and all can have some.

        Args:
            env_steps: of the run so far.
            collecting: ranks that collect; unused where `is_replay`.
        """
        if not all(part.waits for part in self.partitions.values()):
            return []
        newest: dict[int, int] = {}
        for part in self.partitions.values():
            for rank, version in part.newest_version.items():
                newest[rank] = max(version, newest.get(rank, -1))
        ready = (part.ready(collecting, newest) for part in self.partitions.values())
        due = self.ratio.batches(env_steps, self.samples_drawn(), self._draw_size())
        batches = int(min(min(ready, default=0), due))
        if batches < 1:
            return []
        self.ratio.take(batches)
        parts = self.partitions
        served = [(rank, part.serve(batches, env_steps)) for rank, part in parts.items()]
        if len(served) > 1:  # as many items of each, for one update: weights are at most 1 in it
            heaviest = max([part.buffer.heaviest for part in parts.values()])
            for rank, drawn in served:
                if (own := parts[rank].buffer.heaviest) < heaviest:
                    weights = drawn.weights
                    weights *= own / heaviest
        return served

    def collectors_wait(self, env_steps: int) -> bool:
        """Returns whether collectors must wait for the learners (`ReplayRatio.collectors_wait`).

        They do not wait while a learner cannot draw, but for those who only read their blocks
        first, as after a resume.
        """
        self.ratio.due(env_steps, self.samples_drawn())
        return self.ratio.collectors_wait and not self._is_stuck

    def owes(self, env_steps: int, *, more: bool) -> bool:
        """Returns whether updates are due (`ReplayRatio.owes`), which its learners can make.

        They may be able to as soon as they have read what they are reading.
        """
        is_reading = any(part.backlog.is_reading for part in self.partitions.values())
        may_draw = bool(self.partitions) and (is_reading or not self._is_stuck)
        return may_draw and self.ratio.owes(env_steps, self.samples_drawn(), more)

    @property
    def _is_stuck(self) -> bool:
        """True if a learner cannot draw, but not where it reads its blocks first."""
        parts = self.partitions.values()
        return any(part.blocked and not part.backlog.must_read for part in parts)

    def room(self, env_steps: int) -> float:
        """Transitions until collectors must wait, if learners draw nothing; see `ReplayRatio`."""
        return self.ratio.room(env_steps, self.samples_drawn())

    def _draw_size(self) -> int:
        """Items that all learners draw at once."""
        return sum(part.batch_size for part in self.partitions.values()) or 1

    def take_freed(self) -> list[str]:
        """Names of blocks that no learner needs any more, since the last call."""
        freed, self._freed = self._freed, []
        freed += [path for part in self.partitions.values() for path in part.take_freed()]
        return freed + self._early.take_freed()

    # ------------------------------------------------------------------------------- figures

    @property
    def is_offline(self) -> bool:
        """True if learners still learn from given data alone: nothing is collected."""
        return self.ratio.is_offline(self.samples_drawn())

    @property
    def is_replay(self) -> bool:
        """True if data are learnt from repeatedly: a batch waits for no rank's rollout."""
        return self._partition_class.is_replay

    @property
    def blocked(self) -> str:
        """Reason why a learner, or its blocks, have to wait; empty where none has to."""
        waits = self.ratio.blocked(self.samples_drawn(), self._draw_size())
        return next(filter(None, (p.blocked for p in self.partitions.values())), waits)

    def figures(self) -> ReplayFigures:
        """Figures of all partitions together."""
        skipped = self._lost_skipped + self._early.dropped
        skipped += sum(part.backlog.dropped for part in self.partitions.values())
        return ReplayFigures(
            items=self.count(),
            capacity=self.capacity(),
            drawn=self._restored_drawn + self.samples_drawn(),
            admitted=self.items_admitted,
            steps=self.steps_admitted,
            blocks_lost=self.blocks_lost,
            blocks_skipped=skipped,
        )

    def count(self) -> int:
        """Items that can be drawn, of all partitions."""
        return sum(part.buffer.count() for part in self.partitions.values())

    def capacity(self) -> int:
        """Items that all partitions can hold."""
        return sum(part.buffer.capacity for part in self.partitions.values())

    def samples_drawn(self) -> int:
        """Items that were ever drawn."""
        return self._lost_drawn + sum(part.samples_drawn for part in self.partitions.values())

    # ------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """State of all partitions, by learner rank, and the blocks that wait for a learner."""
        parts = {f"rank{rank}": part.state_dict() for rank, part in self.partitions.items()}
        return {
            "partitions": parts or self._restored,
            "counted_before": self._counted_before,
            "waiting": [*self._early.paths, *(b.shard.path for b in self._stored_early)],
            "drawn": self._restored_drawn + self.samples_drawn(),
            "admitted": self.items_admitted,
            "steps": self.steps_admitted,
            "counted": [*self._counted],
            "counted_transitions": [*self._counted.values()],
        }

    def load_state_dict(
        self, state: Mapping[str, Any], published: Mapping[str, BlockReady] | None = None
    ) -> None:
        """Restore a `state_dict` as soon as learners start; see `open`.

        Args:
            state: a `state_dict`.
            published: see `take_published`; those that the state does not name were published
                after it, and are admitted like new ones.
        """
        self._restored = state["partitions"]
        self._counted_before = list(state["counted_before"])
        self._restored_drawn = int(state["drawn"])
        self.items_admitted = int(state["admitted"])
        self.steps_admitted = int(state["steps"])
        self.take_published(published or {})
        here = {ready.block_id for ready in self._published.values()}
        counted = zip(state["counted"], state["counted_transitions"], strict=True)
        self._counted = {int(block_id): int(n) for block_id, n in counted if block_id in here}

    def take_published(self, published: Mapping[str, BlockReady]) -> None:
        """Take the blocks of earlier starts of the run, before learners start; see `open`.

        Args:
            published: by name, oldest first. On-policy they are of no use.
        """
        if self._partition_class.is_replay:
            self._published = dict(published)
        else:
            self._freed += published


def blocks_of(state: Mapping[str, Any]) -> list[str]:
    """Names of the blocks that a `ReplayManager.state_dict` names."""
    named = list(state["waiting"])
    for part in state["partitions"].values():
        named += [*(block["path"] for block in part["blocks"]), *part["waiting"]]
    return [path for path in named if path]  # the others are not stored yet


def create_replay(
    config: ExperimentConfig,
    curves: ScalarWriter | None = None,
    collectors: int = 1,
    learners: int = 1,
    number: int = 0,
    *,
    player: str = MAIN,
    in_turns: bool = False,
) -> ReplayManager:
    """Make the replay manager of a group of learners; its buffers are seeded by the experiment.

    Args:
        config: the experiment.
        curves: takes what the buffers report of themselves.
        collectors: ranks that collect.
        learners: ranks that learn from it.
        number: of the group, from 0; groups draw different random numbers.
        player: the group's; curves of other players than the main one begin with it.
        in_turns: collecting and learning take turns.
    """
    policy = config.policy
    buffer_cfg = policy.buffer
    kind: type[Partition] = Partition
    if policy.on_policy:
        kind = AsynchronousPartition if policy.CORRECTS_STALENESS else OnPolicyPartition
        rollout_rows = policy.collect.n_sample * config.env.collector_env_num
        least = policy.learn.batch_size * learners if policy.CORRECTS_STALENESS else 0
        buffer_cfg = on_policy_buffer(buffer_cfg, collectors + learners, rollout_rows, least)
    share = dataclasses.replace(
        buffer_cfg,
        replay_buffer_size=buffer_cfg.replay_buffer_size // learners,
        min_fill=max(1, buffer_cfg.min_fill // learners),
    )
    seeds = np.random.SeedSequence(config.seed, spawn_key=(0, number) if number else (0,))

    def make_buffer(name: str) -> ReplayIndex:
        return ReplayIndex(
            Slots(share.replay_buffer_size),
            share,
            Monitor(share.monitor, curves, name if player == MAIN else f"{player}_{name}"),
            rng=np.random.default_rng(seeds.spawn(1)[0]),
            prioritized=policy.priority,
        )

    ratio = replay_ratio_of(config, collectors, learners, in_turns=in_turns)
    block_bytes = config.system.storage.block_bytes
    return ReplayManager(make_buffer, block_bytes, kind, ratio, policy.item_rule)
