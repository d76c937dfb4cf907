"""Whose turn it is: two plans, which the scheduler asks whenever that may have changed.

`FreePlan`: nobody waits for anybody. Free ranks get work; snapshots and evaluations come by time.

`LockstepPlan`: in rounds. Each step of a round begins when the step above it has ended on all
ranks::

    rank 0            an evaluation, if one is due; then a snapshot, if one is due
    every collector   one rollout, with the learners' present policy and the present settings
    rank 0            hands the blocks to the learners, in the order of ranks and numbers
    every learner     reads its blocks
    every learner     a number of batches, one at a time, each drawn when all have asked for it

Groups take rounds in turn. A deterministic run works like this over ranks, and `hpcdi serial` in
one process. When a deterministic run takes a snapshot, running episodes end, because no snapshot
has them, and collectors start anew with seeds that depend on the round: a resumed run repeats what
came after its snapshot, to the bit; with other settings it keeps that, and draws other seeds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from hpcdi.comm.messages import BlockReady, BlockStored, CollectTask
from hpcdi.config.schema import ExperimentConfig
from hpcdi.replay.partition import Partition
from hpcdi.roles.coordinator.groups import Group
from hpcdi.roles.coordinator.workers import Order
from hpcdi.types import Lockstep

if TYPE_CHECKING:
    from hpcdi.roles.coordinator.scheduler import Scheduler


class Plan(Protocol):
    """Decides whose turn it is; the scheduler calls it, and it answers with orders.

    Orders are made by methods of the scheduler, `run`.
    """

    def stamp(self, run: Scheduler, task: CollectTask) -> CollectTask:
        """Returns a collect task or an evaluation as the collector gets it."""
        ...

    def collect(self, run: Scheduler, now: float) -> list[Order]:
        """Called when a collector may have become free, or time has passed."""
        ...

    def learn(self, run: Scheduler, now: float) -> list[Order]:
        """Called when a learner may be free, or has read a block, or time has passed."""
        ...

    def publish(self, run: Scheduler, ready: BlockReady, now: float) -> list[Order]:
        """Called when a block was published; a lent one is counted when it is stored."""
        ...

    def published(self, run: Scheduler, now: float) -> list[Order]:
        """Called after the last of the blocks that came at once."""
        ...

    def stored(self, run: Scheduler, block: BlockStored) -> None:
        """Called when a block that was published piece by piece was stored in a shard."""
        ...

    def snapshot(self, run: Scheduler, now: float) -> list[Order]:
        """Called when time has passed: a snapshot may be due."""
        ...

    def last_snapshot(self, run: Scheduler, now: float) -> list[Order]:
        """Called when the run is about to end."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """State for a snapshot: plain data."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`; one of `FreePlan` is empty."""
        ...


class FreePlan:
    """Whoever is free gets work; see the module."""

    def stamp(self, run: Scheduler, task: CollectTask) -> CollectTask:  # noqa: ARG002
        """See `Plan`."""
        return task

    def collect(self, run: Scheduler, now: float) -> list[Order]:
        """Give tasks to all free collectors; end tasks of others, if that must make room."""
        orders: list[Order] = []
        workers, commander = run.workers, run.commander
        while workers.has_free_collector or (
            workers.free_guests and not commander.evaluation_is_due(now)
        ):
            task = commander.get_collector_task(now)
            if task is None:
                break
            orders += run.give(task, now)
        if run.settles:
            orders += workers.close_collecting(now)
        elif run.collectors_wanted is not None:
            orders += workers.close_surplus(run.collectors["working"] or 0, now)
        if commander.evaluation_is_due(now):  # all collectors are busy: one makes room
            orders += workers.close_oldest(now)
        return orders + workers.close_uneven(now)

    def learn(self, run: Scheduler, now: float) -> list[Order]:  # noqa: ARG002
        """Send the batches that can be drawn, for each group separately."""
        orders: list[Order] = []
        for group in run.groups:
            collecting = () if group.replay.is_replay else run.workers.collecting(group)
            orders += run.draw(group, collecting)
        return orders

    def publish(self, run: Scheduler, ready: BlockReady, now: float) -> list[Order]:
        """Let a learner read it at once."""
        return [*run.admit(ready), *run.end_at_limit(now)]

    def published(self, run: Scheduler, now: float) -> list[Order]:
        """Let collectors wait where they are ahead of the learners, and end them at a limit."""
        closing = run.workers.close_collecting(now) if run.settles else []
        return [*run.pause(now), *closing]

    def stored(self, run: Scheduler, block: BlockStored) -> None:
        """Tell its replay buffer."""
        run.groups.of(block).replay.stored(block)

    def snapshot(self, run: Scheduler, now: float) -> list[Order]:
        """Take a snapshot by time."""
        return self.last_snapshot(run, now) if run.snapshots.is_due(now) else []

    def last_snapshot(self, run: Scheduler, now: float) -> list[Order]:
        """Take a snapshot."""
        return run.take_snapshot(now)

    def state_dict(self) -> dict[str, Any]:
        """It keeps nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """It keeps nothing."""


class RoundStep(Enum):
    """The steps of a round."""

    REST = "between two rounds"
    EVALUATE = "an evaluation"
    COLLECT = "collectors collect"
    LEARN = "learners read, then learn"


class LockstepPlan:
    """Rounds of collecting and learning; see the module.

    Args:
        snapshot_rounds: of a deterministic run: rounds from one snapshot, at which episodes end,
            to the next; None: snapshots are taken by time, and episodes go on.

    Attributes:
        rounds: number of rounds that have ended.
    """

    def __init__(self, snapshot_rounds: int | None = None) -> None:
        self.rounds = 0
        self._snapshot_rounds = snapshot_rounds
        self._start = 0  # see `Lockstep.start`
        self._step = RoundStep.REST
        self._is_first = True  # whether the next round is the first since this start
        self._collectors: list[int] = []  # ranks that work in this round
        self._blocks: list[BlockReady] = []  # blocks that they have published
        self._stored: list[BlockStored] = []  # those of these that were stored meanwhile

    def stamp(self, run: Scheduler, task: CollectTask) -> CollectTask:
        """Make a task one rollout, or one evaluation, by the learners' present policy."""
        begins_anew = self._ends_episodes or (task.eval_flag and self._snapshot_rounds is not None)
        version = run.groups.of(task).train_iter
        lockstep = Lockstep(self.rounds, version, begins_anew=begins_anew, start=self._start)
        return dataclasses.replace(task, lockstep=lockstep)

    @property
    def _ends_episodes(self) -> bool:
        """True if running episodes end before the next round."""
        every = self._snapshot_rounds
        return every is not None and self.rounds % every == 0

    def collect(self, run: Scheduler, now: float) -> list[Order]:
        """Take all steps of rounds that can be taken now; of rounds of nothing at all, one.

        In such a one nobody collects, and no batch can be drawn; the next one would be the same.
        """
        orders: list[Order] = []
        before = -1  # orders when a round had begun
        while run.may_work:
            if (
                self._step is RoundStep.REST
                and run.workers.has_free_collector
                and _learners_wait(run)
            ):
                orders += self._begin(run, now)
                before = len(orders)
            elif self._step is RoundStep.EVALUATE and self._all_delivered(run):
                self._step = RoundStep.REST
            elif self._step is RoundStep.COLLECT and self._all_delivered(run):
                orders += self._hand_over(run)
            elif self._step is RoundStep.LEARN and _learners_wait(run):
                rounds = self.rounds
                orders += self._draw(run)
                if self.rounds > rounds and len(orders) == before:
                    break
            else:
                break
        return orders

    def learn(self, run: Scheduler, now: float) -> list[Order]:
        """See `collect`."""
        return self.collect(run, now)

    def publish(self, run: Scheduler, ready: BlockReady, now: float) -> list[Order]:  # noqa: ARG002
        """Keep the block until all rollouts of the round are there."""
        self._blocks.append(ready)
        return [] if run.is_on else self._hand_over(run)

    def published(self, run: Scheduler, now: float) -> list[Order]:  # noqa: ARG002
        """Decide nothing before the end of the round."""
        return []

    def stored(self, run: Scheduler, block: BlockStored) -> None:
        """Tell its replay buffer; after its pieces, if this plan still keeps them."""
        if any(ready.block_id == block.block_id for ready in self._blocks):
            self._stored.append(block)
        else:
            run.groups.of(block).replay.stored(block)

    def snapshot(self, run: Scheduler, now: float) -> list[Order]:  # noqa: ARG002
        """Take no snapshot within a round: see `_begin`."""
        return []

    def last_snapshot(self, run: Scheduler, now: float) -> list[Order]:
        """Take a snapshot; but not in a deterministic run, whose round is incomplete."""
        if self._snapshot_rounds is not None:
            return []
        return [*self._hand_over(run), *run.take_snapshot(now)]

    def _begin(self, run: Scheduler, now: float) -> list[Order]:
        """Begin an evaluation if one is due; else a round, after a snapshot if one is due."""
        ending = run.end_at_limit(now)
        if not run.may_work:
            return ending
        evaluation = run.commander.evaluation_task(now)
        if evaluation is not None:
            return self._give(run, [evaluation], RoundStep.EVALUATE, now)
        orders: list[Order] = []
        if self._snapshot_rounds is None:
            is_due = run.snapshots.is_due(now)
        else:
            is_due = self._ends_episodes and not self._is_first
        if is_due:
            orders = run.take_snapshot(now)
        self._is_first = False
        group = self._group(run)
        if group.replay.is_offline or run.settles:  # it learns from what is there
            return orders + self._give(run, [], RoundStep.COLLECT, now)
        tasks = [run.commander.collect_task(group) for _ in run.workers.free_collectors]
        return orders + self._give(run, tasks, RoundStep.COLLECT, now)

    def _give(
        self, run: Scheduler, tasks: Iterable[CollectTask], step: RoundStep, now: float
    ) -> list[Order]:
        orders = [order for task in tasks for order in run.give(task, now)]
        self._step, self._collectors = step, [order.rank for order in orders]
        return orders

    def _all_delivered(self, run: Scheduler) -> bool:
        return all(run.workers[rank].task is None for rank in self._collectors)

    def _hand_over(self, run: Scheduler) -> list[Order]:
        """Let the learners read the round's blocks."""
        blocks, self._blocks = sorted(self._blocks, key=_order_of), []
        self._group(run).replay.ratio.begin_round(sum(ready.env_steps for ready in blocks))
        self._step = RoundStep.LEARN
        orders = [order for ready in blocks for order in run.admit(ready)]
        stored, self._stored = self._stored, []
        for block in stored:
            self.stored(run, block)
        return orders

    def _draw(self, run: Scheduler) -> list[Order]:
        """Draw the next batch; the round ends if the batches of this round are used up.

        It also ends if the replay buffer has too few items yet. It goes on while blocks wait until
        more is drawn.
        """
        group = self._group(run)
        orders = run.draw(group, self._collectors)
        if not orders and any(map(_is_held_back, group.replay.partitions.values())):
            group.replay.ratio.begin_round(0)
            orders = run.draw(group, self._collectors)
        if not orders:
            self.rounds += 1
            self._step = RoundStep.REST
        return orders

    def _group(self, run: Scheduler) -> Group:
        """Returns the group whose round it is."""
        learning = [group for group in run.groups if group.learners.size]
        return learning[self.rounds % len(learning)]

    def state_dict(self) -> dict[str, Any]:
        """Returns the number of rounds that have ended, and whose random numbers they have."""
        return {"rounds": self.rounds, "start": self._start}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`."""
        self.rounds = int(state.get("rounds", 0))
        if self._snapshot_rounds is not None:  # else the ranks' own seeds are other ones each time
            self._start = int(state.get("start", 0))


def _order_of(ready: BlockReady) -> tuple[int, int]:
    return ready.block_id, ready.first_row


def _learners_wait(run: Scheduler) -> bool:
    """Returns whether all learners have read what they may, and wait for a batch."""
    parts = run.groups.partitions.values()
    return bool(parts) and all(
        part.waits and (part.backlog.is_idle or _is_held_back(part)) for part in parts
    )


def _is_held_back(part: Partition) -> bool:
    """Returns whether blocks wait until more is drawn: `push_sample_rate_limit.max`."""
    backlog = part.backlog
    return bool(backlog.items and not backlog.must_read and part.buffer.why_not_push(1))


def create_plan(config: ExperimentConfig, *, in_turns: bool = False) -> Plan:
    """Make an experiment's plan.

    Args:
        config: the experiment.
        in_turns: collecting and learning take turns, in one process.
    """
    if config.system.deterministic:
        return LockstepPlan(config.system.snapshot_rounds)
    return LockstepPlan() if in_turns else FreePlan()
