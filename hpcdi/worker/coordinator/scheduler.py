"""All decisions of rank 0: messages and time in, orders out. No clock, no MPI, no file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import starmap

from hpcdi.comm.fault_messages import Heartbeat, RankLost, ScaleCollectors, TaskReturned
from hpcdi.comm.messages import (
    BlockAdmitted,
    BlockReady,
    CloseTask,
    CollectProgress,
    CollectResult,
    CollectSetting,
    CollectTask,
    DataDemand,
    Goodbye,
    LearnInfo,
    LearnResult,
    Message,
    SnapshotPart,
    StopRequest,
    WorkerFailed,
    WorkerReady,
)
from hpcdi.errors import EXIT_FAILED
from hpcdi.worker.adapter import LearnerAggregator
from hpcdi.worker.coordinator.commanders import BaseCommander
from hpcdi.worker.coordinator.counters import Counters, Timeouts
from hpcdi.worker.coordinator.crew import Crew
from hpcdi.worker.coordinator.lifecycle import Lifecycle, Order, Outcome, Phase
from hpcdi.worker.coordinator.losses import WithLosses
from hpcdi.worker.coordinator.replay import Partition, ReplayManager
from hpcdi.worker.coordinator.snapshots import SnapshotClock
from hpcdi.worker.coordinator.survival import Survival
from hpcdi.worker.coordinator.task import Notice, TaskBook


class Scheduler(WithLosses):
    """The brain of the coordinator.

    Args:
        commander: sets tasks and goals.
        replay: the replay buffer's partitions.
        learners: the group of learners; one is a group, too.
        snapshots: of the run.
        workers: ranks that must report before the run can go on for ever.
        timeouts: how long to wait for what.
        observe: called with each message, and with what has not come.
        survival: without whom the run goes on.
    """

    def __init__(
        self,
        commander: BaseCommander,
        replay: ReplayManager,
        learners: LearnerAggregator,
        snapshots: SnapshotClock,
        workers: Sequence[int],
        timeouts: Timeouts,
        observe: Callable[[int, Message | Notice], None] = lambda _rank, _message: None,
        survival: Survival | None = None,
    ) -> None:
        self.counters = Counters()
        self.life = Lifecycle(workers, timeouts.start_s, timeouts.stop_s, survival)
        self.replay = replay
        self.snapshots = snapshots
        self.commander = commander
        self.crew = Crew(commander, self.life.survival, timeouts.rest_s)
        self._book = TaskBook(timeouts, learners)
        self._observe = observe

    # ------------------------------------------------------------------------------------- inputs

    def handle(  # noqa: C901, PLR0912 (a table of cases)
        self, message: Message, rank: int, now: float
    ) -> list[Order]:
        """What to send because of a message."""
        if isinstance(message, LearnInfo):
            message = self._book.learners.deal_with_learn(message, rank)
        self._book.heard(rank, type(message).__name__, now)
        self._observe(rank, message)
        match message:
            case BlockReady():
                return self._block_ready(message)
            case BlockAdmitted():
                return self._block_admitted(message, rank)
            case DataDemand():
                return self._demand(message, rank, now)
            case CollectProgress():
                return self._progress(message, rank, now)
            case LearnInfo():
                self.commander.update_learner_info(message.task_id, message.scalars)
                return self._count_iterations(message.train_iter, now)
            case CollectResult():
                return self._collect_result(message, rank, now)
            case TaskReturned():
                return self._task_returned(message, rank, now)
            case LearnResult():
                return self._learn_result(message, rank, now)
            case WorkerReady():
                return self._worker_ready(message, rank, now)
            case StopRequest():
                state = "failed" if message.exit_code == EXIT_FAILED else "stopped"
                return self.stop(Outcome(state, message.reason, message.exit_code), now)
            case WorkerFailed():
                return self._worker_failed(message, rank, now)
            case RankLost():
                return self._rank_lost(rank, now)
            case Goodbye():
                return self.life.goodbye(rank, message, now)
            case _:
                self._note(message, rank)
                return []

    def _note(self, message: Message, rank: int) -> None:
        """Take what needs no answer."""
        match message:
            case SnapshotPart():
                self.snapshots.part(rank, message)
            case ScaleCollectors():
                self.crew.want(message.count)  # the next turn gives tasks to them, or ends some
            case Heartbeat():
                pass
            case _:
                raise TypeError(f"rank {rank} sent rank 0 a {type(message).__name__}")

    def tick(self, now: float) -> list[Order]:
        """What to send because time has passed."""
        orders = self.life.tick(now)
        if not self.life.is_on:
            return orders
        self._book.check(now)
        waiting = [rank for rank, part in self.replay.partitions.items() if part.waits]
        for rank, notice in self._book.notices(now, waiting):
            self._observe(rank, notice)
        self._come_back(now)
        orders += self._assign(now)
        # an evaluation that took a collector away may have been all that a batch waited for
        orders += self._serve()
        return orders + (self._take_snapshot(now) if self.snapshots.is_due(now) else [])

    def stop(self, outcome: Outcome, now: float) -> list[Order]:
        """End the run, after a last snapshot; the first reason counts."""
        last = self._take_snapshot(now) if self.life.is_on else []
        return [*last, *self.life.stop(outcome, now)]

    @property
    def finished(self) -> bool:
        """Whether everybody has gone, or has had long enough to go."""
        return self.life.phase is Phase.FINISHED

    patience_s = 0.05
    """How long the loop may wait for messages before it calls `tick`."""

    # -------------------------------------------------------------------------------------- tasks

    def _assign(self, now: float) -> list[Order]:
        """Give free workers what there is to do."""
        orders: list[Order] = []
        while self._book.has_free("learner") and (task := self.commander.get_learner_task(now)):
            task = dataclasses.replace(task, resume=self.snapshots.resume)
            self.snapshots.resume = ""
            ranks = self._book.give("learner", task, now)
            orders += starmap(Order, self._book.learners.deal_with_learner_start(task).items())
            orders += starmap(Order, self.replay.open(*ranks))
            self.snapshots.start(now)
        return orders + self._assign_collectors(now)

    def _assign_collectors(self, now: float) -> list[Order]:
        """Give free collectors what there is to do."""
        orders: list[Order] = []
        while self._book.has_free("collector"):
            collect = self.commander.get_collector_task(now)
            if collect is None:
                break
            (rank,) = self._book.give("collector", collect, now)
            orders.append(Order(rank, collect))
        return orders + self._close_surplus(now) + self._make_room_for_evaluation(now)

    def _close_surplus(self, now: float) -> list[Order]:
        """End collect tasks where fewer collectors are wanted than work."""
        if self.crew.wanted is None:
            return []
        surplus = self._book.close_surplus(self.crew.working, now)
        return [Order(running.rank, CloseTask(running.task.task_id)) for running in surplus]

    def _worker_ready(self, message: WorkerReady, rank: int, now: float) -> list[Order]:
        self.life.ready(rank, message)
        if not self.life.is_on:
            return []  # it has its Stop already
        self._book.add_worker(rank, message)
        self.crew.fit()
        return self._assign(now)

    def _make_room_for_evaluation(self, now: float) -> list[Order]:
        """End the oldest collect task where an evaluation is due and all collectors are busy."""
        if not self.commander.evaluation_is_due(now):
            return []
        running = self._book.choose_to_close(now)
        if running is None:
            return []
        return [Order(running.rank, CloseTask(running.task.task_id))]

    def _collect_result(self, message: CollectResult, rank: int, now: float) -> list[Order]:
        self._book.finish(message.task_id, "collector", rank)
        self.crew.acting.pop(rank, None)
        reached = self.commander.finish_collector_task(message.task_id, message)
        if reached:
            reason = self.commander.describe_goal(message)
            return self.stop(Outcome("done", reason, 0), now)
        return self._assign(now) if self.life.is_on else []

    def _learn_result(self, message: LearnResult, rank: int, now: float) -> list[Order]:
        self._book.finish(message.task_id, "learner", rank)
        result = self._book.learners.deal_with_learner_close(message, rank)
        return [] if result is None else self._learners_done(result, now)

    def _learners_done(self, result: LearnResult, now: float) -> list[Order]:
        self.counters.train_iter = max(self.counters.train_iter, result.train_iter)
        self.commander.finish_learner_task(result.task_id, result)
        is_one = self._book.learners.size == 1
        who = "the learner has done its" if is_one else "the learners have done their"
        reason = f"{who} iterations: {result.train_iter}"
        return self.stop(Outcome("done", reason, 0), now)

    # --------------------------------------------------------------------------------------- data

    def _block_ready(self, message: BlockReady) -> list[Order]:
        return list(starmap(Order, self.replay.assign(message)))

    def _block_admitted(self, message: BlockAdmitted, rank: int) -> list[Order]:
        if rank not in self.replay.partitions:
            return []
        admits = self.replay.admit(rank, message)
        # batches first: the learner gathers them before it reads on
        return [*self._serve(), *(Order(rank, admit) for admit in admits)]

    def _demand(self, message: DataDemand, rank: int, now: float) -> list[Order]:
        partition = self.replay.partitions.get(rank)
        if partition is None:
            return []
        whole = self._take_demand(partition, message, rank)
        served = self._serve()
        admits = [Order(rank, admit) for admit in partition.orders()]  # they may have waited for it
        counted = self._count_iterations(whole.train_iter, now) if whole is not None else []
        return [*served, *admits, *counted]

    def _take_demand(
        self, partition: Partition, message: DataDemand, rank: int
    ) -> DataDemand | None:
        """Note what a learner wants; gives what the group wants, once all have said it."""
        self._book.begun(message.task_id, rank)
        self.counters.priorities_stale += partition.demand(message)
        return self._book.learners.deal_with_get_data(message, rank)

    def _take_snapshot(self, now: float) -> list[Order]:
        """Begin a snapshot, if there is anything to keep: the last orders of a turn."""
        learners, has_data = self.replay.partitions, self.replay.items_admitted
        if not learners or not (has_data or self.counters.env_steps):
            return []
        order = self.snapshots.take(learners, now)
        return [Order(rank, order) for rank in learners] if order is not None else []

    def _serve(self) -> list[Order]:
        if not self.life.is_on:
            return []  # all that learners do now, they have been told
        batches = self.replay.serve(self.counters.env_steps, self._book.collecting())
        return list(starmap(Order, batches))

    # ----------------------------------------------------------------------------------- progress

    def _progress(self, message: CollectProgress, rank: int, now: float) -> list[Order]:
        self.counters.env_steps += message.env_steps
        self.counters.episodes += len(message.episode_returns)
        self.crew.acting[rank] = message.policy_version
        orders = self._stop_at_limit(now)
        running = self._book.begun(message.task_id, rank)
        if orders or running is None or not isinstance(running.task, CollectTask):
            return orders
        if running.task.eval_flag:
            return []
        setting = dict(self.commander.get_setting_collect())
        return [Order(rank, CollectSetting(message.task_id, setting))] if setting else []

    def _count_iterations(self, train_iter: int, now: float) -> list[Order]:
        self.counters.train_iter = max(self.counters.train_iter, train_iter)
        return self._stop_at_limit(now)

    def _stop_at_limit(self, now: float) -> list[Order]:
        reason = self.commander.update_progress(self.counters.env_steps, self.counters.train_iter)
        return self.stop(Outcome("done", reason, 0), now) if reason else []
