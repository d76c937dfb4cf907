"""Deterministic runs: in rounds, by counts, and never by the clock.

One round; nothing of it begins before what stands above it has ended everywhere::

    every collector   one rollout, with the learners' present policy and the present settings
    rank 0            hands the blocks to the learners, in the order of ranks and numbers
    every learner     reads its blocks
    every learner     so many batches, one at a time, each drawn when all have asked for it

Between two rounds rank 0 evaluates, and takes a snapshot, when enough rounds have passed. Running
episodes are in no snapshot: so they end there, and collectors start anew with seeds that follow
from the round. A resumed run repeats what came after its snapshot, to the bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from hpcdi.comm.messages import (
    BlockReady,
    CollectProgress,
    CollectResult,
    DataDemand,
    Message,
)
from hpcdi.config.schema import ExperimentConfig
from hpcdi.roles.coordinator.scheduler import Outcome, Phase, Scheduler
from hpcdi.roles.coordinator.workers import Order
from hpcdi.types import MAIN, Interval, Lockstep


@dataclass(frozen=True)
class RoundPlan:
    """Contents of a round, and the events that follow after some of them.

    Attributes:
        collectors: ranks that deliver a rollout each.
        updates: batches of each learner, as a function of the transitions of a round, and of the
            environment steps and train iterations of the run.
        snapshot_every: rounds.
        evaluate_every: from one evaluation to the next.
    """

    collectors: int
    updates: Callable[[int, int, int], int]
    snapshot_every: int
    evaluate_every: Interval


class _Step(Enum):
    """Where a round is."""

    REST = "between two rounds"
    EVALUATE = "an evaluation"
    COLLECT = "collectors collect"
    READ = "learners read"
    LEARN = "learners learn"


@dataclass
class _Round:
    step: _Step = _Step.REST
    is_first: bool = True
    """Of this process."""
    missing: set[int] = field(default_factory=set)
    """Collectors whose result has not come yet."""
    blocks: list[BlockReady] = field(default_factory=list)
    batches: int = 0
    """Left to be learnt from."""


class LockstepScheduler(Scheduler):
    """The scheduler of a deterministic run.

    Args:
        parts: of a `Scheduler`; its commander has a method `make_task`.
        plan: of the rounds.
    """

    def __init__(self, *parts: Any, plan: RoundPlan) -> None:
        super().__init__(*parts)
        self._plan = plan
        self._round = _Round()

    def handle(self, message: Message, rank: int, now: float) -> list[Order]:
        """Orders in answer to a message; the end of a round starts the next one."""
        orders = super().handle(message, rank, now)
        while self._may_begin():
            orders += self._begin(now)
        return orders

    # -------------------------------------------------------------------------- between two rounds

    def _assign_collectors(self, now: float) -> list[Order]:
        return self._begin(now) if self._may_begin() else []

    def _may_begin(self) -> bool:
        is_on = self.phase is Phase.RUNNING and self._round.step is _Step.REST
        return is_on and bool(self.replay.partitions) and self._all_wait() and self._have_read()

    def _begin(self, now: float) -> list[Order]:
        """An evaluation if one is due, else the next round, after a snapshot if one is due."""
        counters, plan = self.counters, self._plan
        orders = self._stop_at_limit(now)
        if orders:
            return orders
        every = plan.evaluate_every
        now_count = every.count(counters.env_steps, counters.train_iter, 0)
        last_count = every.count(counters.evaluated_steps, counters.evaluated_at, 0)
        has_learnt = counters.train_iter > counters.evaluated_at
        if has_learnt and now_count // every.length > last_count // every.length:
            return self._evaluate(now)
        begins_anew = counters.rounds % plan.snapshot_every == 0
        if begins_anew and not self._round.is_first:
            orders = super()._take_snapshot(now)
        tasks = [
            self._give(now, evaluate=False, begins_anew=begins_anew) for _ in range(plan.collectors)
        ]
        self._round = _Round(_Step.COLLECT, False, {order.rank for order in tasks})
        return orders + tasks

    def _evaluate(self, now: float) -> list[Order]:
        self._round = _Round(_Step.EVALUATE, self._round.is_first)
        return [self._give(now, evaluate=True, begins_anew=True)]

    def _end(self, outcome: Outcome, now: float) -> list[Order]:
        """See `Scheduler._end`: when learners wait, collectors are free."""
        if self._ending is not None or self.counters.evaluated_at >= self.counters.train_iter:
            return self.stop(outcome, now)
        self._ending = outcome
        return self._evaluate(now)

    def _give(self, now: float, *, evaluate: bool, begins_anew: bool) -> Order:
        commander: Any = self.commander
        counters = self.counters
        task = dataclasses.replace(
            commander.make_task(evaluate=evaluate),
            lockstep=Lockstep(counters.rounds, counters.train_iter, begins_anew=begins_anew),
        )
        return Order(self.workers.start_collector(task, now), task)

    def _take_snapshot(self, now: float) -> list[Order]:  # noqa: ARG002
        """None by time, and none at an end in the middle of a round: see `_begin`."""
        return []

    # --------------------------------------------------------------------------------- in a round

    def _on_collect_progress(self, message: CollectProgress, rank: int) -> list[Order]:
        """Settings wait for the end of the round."""
        super()._on_collect_progress(message, rank)
        return []

    def _on_block_ready(self, message: BlockReady, now: float) -> list[Order]:  # noqa: ARG002
        """Count; learners and limits wait for the end of the round."""
        self.count_block(message)
        self._round.blocks.append(message)
        return []

    def _on_collect_result(self, message: CollectResult, rank: int, now: float) -> list[Order]:
        self.workers.finish(rank, message.task_id)
        has_reached = self.commander.finish_collector_task(message.task_id, message)
        if not self.is_on:
            return []
        if message.eval_flag:
            counters = self.counters
            counters.evaluated_at, counters.evaluated_steps = (
                counters.train_iter,
                counters.env_steps,
            )
            self._round.step = _Step.REST
            reason = self.commander.describe_goal(message) if has_reached else ""
            end = Outcome("done", reason, 0) if has_reached else self._ending
            return self.stop(end, now) if end is not None else []
        self._round.missing.discard(rank)
        return [] if self._round.missing else self._read()

    def _read(self) -> list[Order]:
        """All rollouts have come: the learners read them."""
        blocks = sorted(self._round.blocks, key=lambda ready: ready.block_id)
        transitions = sum(ready.transitions for ready in blocks)
        counters = self.counters
        due = self._plan.updates(transitions, counters.env_steps, counters.train_iter)
        self._round.step, self._round.batches = _Step.READ, due
        orders = [Order(*order) for ready in blocks for order in self.replay.of[MAIN].assign(ready)]
        return [*orders, *self._serve()]

    def _on_data_demand(self, message: DataDemand, rank: int, now: float) -> list[Order]:
        """As in other runs, but limits are checked before the next batch is drawn, not after."""
        if rank not in self.replay.partitions:
            return []
        done = self._take_demand(message, rank)
        ended = self._count_iterations(done, now) if done is not None else []
        return ended or self._serve()

    def _serve(self) -> list[Order]:
        """The next batch, if all have asked for it; where none is left, the round is over."""
        now = self._round
        if now.step is _Step.READ and self._have_read():
            now.step = _Step.LEARN
        if now.step is not _Step.LEARN or not self._all_wait():
            return []
        orders = super()._serve() if now.batches else []
        now.batches -= 1
        if not orders:  # all are done; or the buffer has too little still
            self.counters.rounds += 1
            now.step = _Step.REST
        return orders

    def _all_wait(self) -> bool:
        """Returns whether all learners have done what they were given, and ask for more."""
        return all(part.waits for part in self.replay.partitions.values())

    def _have_read(self) -> bool:
        return all(part.backlog.is_idle for part in self.replay.partitions.values())


def scheduler_type(config: ExperimentConfig, workers: int) -> Callable[..., Scheduler]:
    """Returns what makes an experiment's scheduler from its parts.

    Args:
        config: the experiment.
        workers: ranks besides the coordinator.
    """
    if not config.system.deterministic:
        return Scheduler
    policy = config.policy
    plan = RoundPlan(
        workers - policy.learn.learner.learner_num,
        partial(policy.updates_after, learners=policy.learn.learner.learner_num),
        config.system.snapshot_rounds,
        Interval.of(policy.eval.every) or Interval("iterations", policy.eval.evaluator.eval_freq),
    )
    return partial(LockstepScheduler, plan=plan)
