"""The replay buffer as rank 0 sees it: which learner gets which block, and what all draw next.

The `ReplayManager` of a player distributes its blocks and batches over its learners' parts (see
`partition`); `ReplayBuffers` has those of all players that learn. `ReplayRatio` keeps learning and
collecting in proportion. Decisions only: blocks and requests in, orders out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import numpy as np

from hpcdi.comm.messages import AdmitBlock, Batches, BlockAdmitted, BlockReady
from hpcdi.config.schema import ExperimentConfig, learners_of
from hpcdi.replay.advanced_buffer import AdvancedReplayBuffer
from hpcdi.replay.base_buffer import get_buffer_cls
from hpcdi.replay.partition import (
    TRANSITIONS,
    AsTheyComePartition,
    Backlog,
    OnPolicyPartition,
    Partition,
    item_count,
    on_policy_buffer,
)
from hpcdi.types import MAIN, SequenceRule, collector_of, number_of

EARLY_ROWS = 1_000_000
"""Rows of published blocks that are kept while there is no learner."""


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
        rule: SequenceRule = TRANSITIONS,
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
    ratio = policy.replay_ratio
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
    buffer_cfg = policy.buffer
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
