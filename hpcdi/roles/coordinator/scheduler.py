"""All decisions of rank 0: messages and time in, orders out. No clock, no MPI, no file.

`Scheduler.handle` shows what happens on each message, `Scheduler._on_rank_lost` on a rank's death.
A plan (`plans`) decides whose turn it is, to collect or to learn.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from itertools import starmap
from typing import Any

from hpcdi.comm.messages import (
    BeginAnew,
    BlockAdmitted,
    BlockReady,
    BlockStored,
    CollectPause,
    CollectProgress,
    CollectResult,
    CollectSetting,
    CollectTask,
    DataDemand,
    Goodbye,
    Heartbeat,
    LearnInfo,
    LearnResult,
    LearnTask,
    Leave,
    Message,
    PolicyFiles,
    RankLost,
    Regroup,
    ScaleCollectors,
    SnapshotPart,
    Stop,
    StopRequest,
    TaskReturned,
    WorkerFailed,
    WorkerReady,
)
from hpcdi.dataclass import dataclass
from hpcdi.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_REQUEUE,
    GroupBrokenError,
    GroupNotFormedError,
    WorkerSilentError,
    state_after,
)
from hpcdi.league.league import League
from hpcdi.roles.context import COORDINATOR_RANK
from hpcdi.roles.coordinator.commander import Commander
from hpcdi.roles.coordinator.groups import Group
from hpcdi.roles.coordinator.plans import FreePlan, Plan
from hpcdi.roles.coordinator.snapshots import Resumed, SnapshotClock
from hpcdi.roles.coordinator.workers import (
    BlockLost,
    ComesBack,
    DiesAlone,
    Evaluated,
    GuestRules,
    Instructions,
    Notice,
    Order,
    State,
    Worker,
    Workers,
    instructions_of,
)
from hpcdi.types import Settings, block_number, collector_of, is_guest
from hpcdi.utils.log import LOGGER

_GROUP_ERRORS = (GroupBrokenError.__name__, GroupNotFormedError.__name__)
FAILURE_GRACE_S = 3.0
"""Seconds within which the others must end after a rank has failed."""


class Phase(Enum):
    """Where a run is in its life; see the package's drawing."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `state` is "done", "stopped" (from outside) or "failed"."""

    state: str
    reason: str
    exit_code: int
    failure: tuple[int, WorkerFailed] | None = None

    def without(self, silent: Mapping[int, str]) -> Outcome:
        """Returns how the run ended, where some ranks did not say goodbye.

        Without a collector's goodbye a run that has reached its goal is done all the same: the
        collector's data are on disk. Without a learner's, the last snapshot lacks that learner's
        part: the run must be resumed.

        Args:
            silent: role of each rank that did not say goodbye.
        """
        if not silent or self.exit_code not in (EXIT_DONE, EXIT_REQUEUE):
            return self
        reason = f"{self.reason}; but ranks {list(silent)} did not end in order"
        if self.exit_code == EXIT_DONE and "learner" not in silent.values():
            return dataclasses.replace(self, reason=reason)
        state = state_after(EXIT_REQUEUE)
        return dataclasses.replace(self, state=state, reason=reason, exit_code=EXIT_REQUEUE)


class Scheduler:
    """Decides what each rank does.

    Args:
        commander: sets tasks and goals, for the groups that learn.
        snapshots: decides when a snapshot is taken.
        workers: records of the ranks, which must report before the run begins.
        plan: decides whose turn it is; None: everybody works freely.
        observe: called with each message before it is handled, and with each notice.
        guest_rules: by which policies guests act.
        stores: whether lent blocks are written to shards, too: their steps count from then on.

    Attributes:
        groups: records of the groups that learn.
        snapshots, workers: see above.
        phase: phase of the run.
        outcome: how the run ended; None: it goes on.
        collectors_wanted: collectors that should work; None: all.
        announced: collector rank -> number of the last block that it has announced; also of ranks
            from before a resume.
        guest_steps: environment steps of guests, since this start.
        unwritten: number of blocks that were lent and never stored: their collectors died.
        settles: the limit that is reached, while collectors are to end, and the updates that are
            due are made, before the run ends; empty: it goes on.
    """

    patience_s = 0.05
    """Seconds that the loop may wait for messages before it calls `tick`."""

    def __init__(
        self,
        commander: Commander,
        snapshots: SnapshotClock,
        workers: Workers,
        plan: Plan | None = None,
        observe: Callable[[int, Message | Notice], None] = lambda _rank, _message: None,
        guest_rules: GuestRules | None = None,
        *,
        stores: bool = True,
    ) -> None:
        self.commander, self.groups = commander, commander.groups
        self.snapshots, self.workers = snapshots, workers
        self.outcome: Outcome | None = None
        self.collectors_wanted = commander.collector_task_space
        self.announced: dict[int, int] = {}
        self.guest_rules, self.guest_steps = guest_rules or GuestRules(), 0
        self.unwritten, self._stores = 0, stores
        self._asking: list[Worker] = []  # collectors that have reported since `_tell_settings`
        self._has_published = False  # since the plan was told so
        self._unstored: dict[int, BlockReady] = {}  # lent blocks, which count when they are stored
        self.phase = Phase.STARTING if workers.not_ended else Phase.RUNNING
        self._plan: Plan = plan if plan is not None else FreePlan()
        self._observe = observe
        self._deadline = float("inf")  # for workers to report; when stopping, to say goodbye
        self._ending: Outcome | None = None  # the outcome, while the last evaluation is under way
        self._last_task = ""  # id of that evaluation
        self.settles = ""

    def handle(self, message: Message, rank: int, now: float) -> list[Order]:
        """Returns the orders that follow from one message; see `handle_all`."""
        return self.handle_all([(rank, message)], now)

    def handle_all(self, arrived: Iterable[tuple[int, Message]], now: float) -> list[Order]:
        """Returns the orders that follow from messages, in the order in which they came.

        Whether collectors must wait, and by which settings they go on, is decided after the last.

        Args:
            arrived: each sender, and its message; one from a caller on rank 0 goes to `request`.
            now: seconds on any clock that does not go back.

        Raises:
            CommError: the rank is no worker of this run. TypeError: no worker sends such a message.
        """
        orders: list[Order] = []
        for rank, message in arrived:
            orders += self._handle(message, rank, now)
        if self._has_published:
            self._has_published = False
            orders += self._plan.published(self, now)
        return orders + self._tell_settings()

    def _handle(self, message: Message, rank: int, now: float) -> list[Order]:
        if rank == COORDINATOR_RANK:
            return self.request(message, now)
        kind = type(message)
        if rank in self.workers and self.workers[rank].state is State.LOST:
            return []  # nothing of it counts any more: others do its work
        if isinstance(message, WorkerReady):
            self.workers.report(rank, message)
        if is_guest(rank) and rank not in self.workers:
            return []  # it has gone
        worker = self.workers[rank]
        worker.hear(kind.__name__, now)
        if isinstance(message, LearnInfo):
            worker.shares, worker.cpu = message.shares, message.cpu
            if worker.role == "learner":
                message = self.groups[worker.group].learners.average(worker, message)
        self._observe(rank, message)
        handler = _HANDLERS.get(kind)
        if handler is None:
            raise TypeError(f"rank {rank} sent rank 0 a {kind.__name__}")
        return handler(self, message, worker, now)

    def take_given(self, ready: BlockReady) -> None:
        """Take a block of given data, before the run begins."""
        self._observe(COORDINATOR_RANK, ready)
        self.count_block(ready)
        self.groups.of(ready).replay.take_given(ready)

    def request(self, message: Message, now: float) -> list[Order]:
        """Returns the orders that follow from a request on rank 0.

        Callers are a signal's handler, `hpcdi scale` and DI-engine's callbacks.

        Raises:
            TypeError: it is no request to rank 0.
        """
        match message:
            case StopRequest():
                code, ending = message.exit_code, self.outcome
                outcome = Outcome(state_after(code), message.reason, code)
                if ending and ending.exit_code == EXIT_INTERRUPTED and not self.finished:
                    self.outcome = outcome  # batch systems send SIGINT, then SIGTERM
                return self.stop(outcome, now)
            case ScaleCollectors():
                self.want_collectors(message.count)  # the next tick starts or closes tasks
                return []
        self._observe(COORDINATOR_RANK, message)
        match message:
            case CollectResult():
                return self._on_collect_result(message, now)
            case LearnInfo():
                return self._on_learn_info(message, now)
            case LearnResult():
                return self._end_learning(self.groups.main, message, now)
        raise TypeError(f"rank 0 was asked by a {type(message).__name__}")

    def tick(self, now: float) -> list[Order]:
        """Returns the orders that follow from time having passed.

        Raises:
            WorkerSilentError: a worker has not reported in time, or has sent nothing for too long.
        """
        timeouts = self.workers.timeouts
        if self.phase is Phase.STARTING:
            self._deadline = min(self._deadline, now + timeouts.start_s)
            if now > self._deadline:
                missing = next(w.rank for w in self.workers if w.state is State.EXPECTED)
                raise WorkerSilentError(missing, timeouts.start_s, "nothing since its start")
        if self.phase is Phase.STOPPING and now > self._deadline:
            return self._finish()
        if not self.is_on:
            return []
        orders = self.workers.check(now)
        waiting = [rank for rank, part in self.groups.partitions.items() if part.waits]
        for rank, notice in self.workers.notices(now, waiting):
            self._observe(rank, notice)
        for rank in self.workers.end_pauses(now):
            self._observe(rank, ComesBack())
            self._fit_task_space()
        orders += self._assign(now)
        orders += self.end_at_limit(now) if self.settles else []
        # a batch waits for the rollouts of all ranks that collect: one that evaluates now does not
        orders += [*self._learn(now), *self.pause(now)]
        return orders + self._plan.snapshot(self, now)

    def excuse(self, suspended_s: float, now: float) -> None:
        """Take seconds out of all waits for workers, in which rank 0 could not hear."""
        self._deadline += suspended_s
        self.workers.excuse(suspended_s, now)

    # ---------------------------------------------------------------------------- start and end

    @property
    def is_on(self) -> bool:
        """True if the run goes on: tasks are given out."""
        return self.phase in (Phase.STARTING, Phase.RUNNING)

    @property
    def finished(self) -> bool:
        """True if all workers have ended, or their time to end is over."""
        return self.phase is Phase.FINISHED

    @property
    def may_work(self) -> bool:
        """True if all workers have reported and no last evaluation is under way: all may work."""
        return self.phase is Phase.RUNNING and self._ending is None

    def _on_worker_ready(self, worker: Worker, now: float) -> list[Order]:
        if not self.is_on:
            if worker.is_guest:
                return [Order(worker.rank, Stop("the run ends"))]
            return []  # it has its Stop already
        self._begin_if_all_reported()
        self._fit_task_space()
        is_first = worker.is_guest and len(self.workers.guests) == 1
        return [*(self._write_policies() if is_first else []), *self._assign(now)]

    def _write_policies(self) -> list[Order]:
        """Have learners write policy files as often as guests need them, if there are any."""
        rules = self.guest_rules
        files = PolicyFiles(rules.policy_s if self.workers.guests else rules.without_s)
        return [Order(rank, files) for group in self.groups for rank in group.learners.ranks]

    def _begin_if_all_reported(self) -> None:
        if self.workers.all_reported:
            self.phase = Phase.RUNNING

    def stop(self, outcome: Outcome, now: float) -> list[Order]:
        """End the run, after a last snapshot. The first reason counts."""
        last = self._plan.last_snapshot(self, now) if self.is_on else []
        return [*last, *self._stop_workers(outcome, now)]

    def end(self, reason: str, now: float) -> list[Order]:
        """End the run as done, for a callback, after a last evaluation.

        Before learning begins there is none: no learner has a policy to be evaluated.
        """
        outcome = Outcome("done", reason, EXIT_DONE)
        may_evaluate = self.groups.main.is_learning or self._ending is not None
        return self._end(outcome, now) if may_evaluate else self.stop(outcome, now)

    def end_at_limit(self, now: float) -> list[Order]:
        """End the run if it has reached a limit.

        At `max_env_step` collectors end first, and the updates that are due are made (`settles`).
        """
        reason = self.commander.limit_reached()
        if not reason:
            return []
        more = self.workers.ranks_collect(now) or bool(self._unstored)
        if self.is_on and self._ending is None and self.commander.owes_updates(more):
            self.settles = self.settles or reason
            return []
        return self._end(Outcome("done", self.settles or reason, EXIT_DONE), now)

    def _end(self, outcome: Outcome, now: float) -> list[Order]:
        """End the run, after a last evaluation if anything was learnt since the one before.

        Learners get no more batches meanwhile.
        """
        if self.is_on and self._ending is None and self.commander.begin_last_evaluation():
            self._ending = outcome
        elif self._ending is None:
            return self.stop(outcome, now)
        return self._assign(now) if self.is_on else []

    def _on_stop_request(self, message: StopRequest, now: float) -> list[Order]:
        """End the run, for a callback of a worker or its host's time limit."""
        if message.exit_code == EXIT_DONE:
            return self.end(message.reason, now)
        return self.request(message, now)

    def _evaluate_last(self, now: float) -> list[Order]:
        """Close all collect tasks; the first collector that becomes free evaluates.

        It waits until all batches under way are learnt from: that makes the newest policy.
        """
        orders = self.workers.close_surplus(0, now)
        if self.groups.main.is_busy:
            return orders
        is_due = self.workers.has_free_collector and self.commander.evaluation_is_due(now)
        task = self.commander.get_collector_task(now) if is_due else None
        if task is not None:
            self._last_task = task.task_id
            orders += self.give(task, now)
        return orders

    def _stop_workers(self, outcome: Outcome, now: float) -> list[Order]:
        if not self.is_on:
            return self._finish_if_empty()
        self.phase, self.outcome = Phase.STOPPING, outcome
        grace_s = FAILURE_GRACE_S if outcome.failure else self.workers.timeouts.stop_s
        self._deadline = now + grace_s
        stops = [Order(rank, Stop(outcome.reason)) for rank in self.workers.not_ended]
        return stops + self._finish_if_empty()

    def _on_goodbye(self, message: Goodbye, worker: Worker, now: float) -> list[Order]:
        """Note that a worker has left; the run ends if it was the last, or left before its Stop."""
        if worker.is_guest:
            return self._on_guest_gone(worker, now)
        worker.has_ended, worker.report = True, message.report
        reason = f"rank {worker.rank} left before the end of the run"
        too_early = Outcome("stopped", reason, EXIT_REQUEUE)
        return self._stop_workers(too_early, now)

    def _on_guest_gone(self, worker: Worker, now: float) -> list[Order]:
        """A guest has left, or was lost: others do its task, and the run goes on."""
        task = self.workers.dismiss(worker.rank)
        if isinstance(task, CollectTask):
            self.commander.notify_fail_collector_task(task)
        self._fit_task_space()
        if not self.is_on:
            return self._finish_if_empty()
        return [*([] if self.workers.guests else self._write_policies()), *self._assign(now)]

    def _finish_if_empty(self) -> list[Order]:
        if self.phase is not Phase.STOPPING or self.workers.not_ended:
            return []
        return self._finish()

    def _finish(self) -> list[Order]:
        self.phase = Phase.FINISHED
        exit_code = self.outcome.exit_code if self.outcome is not None else 0
        return [Order(worker.rank, Leave(exit_code)) for worker in self.workers]

    # ------------------------------------------------------------------------------------ faults

    def _on_worker_failed(self, message: WorkerFailed, worker: Worker, now: float) -> list[Order]:
        """End the run because a worker has raised; or order it to exit, if others go on.

        Then `RankLost` follows.
        """
        rank = worker.rank
        if worker.is_guest:
            self._observe(rank, DiesAlone(message))
            return self._on_guest_gone(worker, now)
        if self.workers.survives_error_of(rank):
            self._observe(rank, DiesAlone(message))
            return [Order(rank, Leave(EXIT_FAILED, alone=True))]
        worker.has_ended = True
        code, dead = message.exit_code, self._dead_of_group(worker)
        if dead and message.error.startswith(_GROUP_ERRORS):  # the group broke by this death
            error = f"{dead} has died, and the others could not go on without it: {message.error}"
            message = dataclasses.replace(message, error=error)
        outcome = Outcome(state_after(code), message.error, code, (rank, message))
        if self.outcome is not None and self.outcome.failure is None:
            self.outcome = outcome  # a failure while the run was ending: it was not done after all
            self._deadline = min(self._deadline, now + FAILURE_GRACE_S)
        return self._stop_workers(outcome, now)

    def _dead_of_group(self, worker: Worker) -> str:
        """Names the dead learners of a learner's group; "": there are none."""
        dead = [one for one in self.workers if one.state is State.LOST and one.role == "learner"]
        return ", ".join(str(one) for one in dead if one.group == worker.group)

    def _on_rank_lost(self, worker: Worker, now: float) -> list[Order]:
        """Give a dead worker's task and data to others, or end the run."""
        if worker.is_guest:
            return self._on_guest_gone(worker, now)
        worker.has_ended = True
        self._forget_unwritten(worker.rank)
        if not self.is_on:
            return self._finish_if_empty()
        why = self.workers.why_not_without(worker.rank)
        if why:
            reason = f"{worker} has died, and the run cannot go on without it: {why}"
            outcome = Outcome("stopped", reason, EXIT_REQUEUE)
            # no last snapshot after a learner's death: it would lack this learner's part
            end = self._stop_workers if worker.role == "learner" else self.stop
            return end(outcome, now)
        task = self.workers.lose(worker.rank)
        if isinstance(task, CollectTask):
            self.commander.notify_fail_collector_task(task)
        if worker.role == "learner":
            return self._lose_learner(worker, self.groups[worker.group], now)
        self._begin_if_all_reported()
        self._fit_task_space()
        return [*self._assign(now), *self._learn(now)]

    def _lose_learner(self, worker: Worker, group: Group, now: float) -> list[Order]:
        """Regroup the other learners, and give them the dead one's blocks.

        After the death of its last learner a group does not learn any more.
        """
        self.snapshots.lose(worker.rank)
        ranks = tuple(group.learners.ranks)
        hosts = tuple(learner.host for learner in group.learners)
        regroup = Regroup(len(self.workers.lost), ranks, hosts)
        orders = [Order(rank, regroup) for rank in ranks]
        orders += starmap(Order, group.replay.lose(worker.rank))
        if not ranks:  # its collectors go on for the others
            return [*orders, *self.workers.close_all(group, now)]
        # the dead one may have been the only one that had not finished
        result = group.learners.group_result()
        return orders if result is None else [*orders, *self._end_learning(group, result, now)]

    def _on_task_returned(self, message: TaskReturned, worker: Worker, now: float) -> list[Order]:
        """Give the task of a collector without environments to others, or end the run."""
        workers = self.workers
        task = workers.finish(worker.rank, message.task_id)
        workers.pause(worker.rank, now)
        if isinstance(task, CollectTask):
            self.commander.notify_fail_collector_task(task)
        self._fit_task_space()
        count = workers.collectors_left
        if count >= workers.collectors_needed:
            return self._assign(now) if self.is_on else []
        few = {0: "no collector has", 1: "only 1 collector has"}
        who = few.get(count, f"only {count} collectors have")
        reason = f"{who} environments left; rank {worker.rank}: {message.reason}"
        exit_code = EXIT_REQUEUE if message.with_ranks else EXIT_FAILED
        return self.stop(Outcome(state_after(exit_code), reason, exit_code), now)

    # ------------------------------------------------------------------------------------- tasks

    def _assign(self, now: float) -> list[Order]:
        """Give tasks to free workers."""
        if self._ending is not None:
            return self._evaluate_last(now)
        orders: list[Order] = []
        resume = self.snapshots.resume
        while self.groups.may_begin and (task := self.commander.get_learner_task(now)):
            self.snapshots.start(now)
            task = dataclasses.replace(task, resume=resume)
            orders += self._begin_learning(self.groups.of(task), task, now)
        return orders + self._plan.collect(self, now)

    def _begin_learning(self, group: Group, task: LearnTask, now: float) -> list[Order]:
        """Give the task to all learners of a group, and orders to read the blocks that waited."""
        group.learners.begin(task, now)
        ranks = group.learners.ranks
        reading = starmap(Order, group.replay.open(*ranks))
        files = self._write_policies() if self.workers.guests else []
        return [*(Order(rank, task) for rank in ranks), *reading, *files]

    def give(self, task: CollectTask, now: float) -> list[Order]:
        """Give a task to a free collector, of which there must be one."""
        task = self._plan.stamp(self, task)
        worker = self.workers.start_collector(task, now)
        return [Order(worker.rank, task), *self._pause_of(worker)]

    def _on_collect_progress(self, message: CollectProgress, worker: Worker) -> list[Order]:
        """Note its episodes; it asks for new settings, except in evaluations and within a round."""
        worker.report_progress(message)
        self.groups.of(message).hear(message)
        self.commander.curriculum.hear(message)
        task = worker.begin(message.task_id)
        if isinstance(task, CollectTask) and not task.eval_flag and task.lockstep is None:
            self._asking.append(worker)
        return []

    def _tell_settings(self) -> list[Order]:
        """Tell collectors that have asked their settings, where these are news to them."""
        asking, self._asking = self._asking, []
        if not asking or not self.is_on:
            return []
        scheduled, orders = self.commander.scheduled(), list[Order]()
        of_players: dict[str, tuple[Settings, Instructions]] = {}
        for worker in asking:
            task = worker.task
            if not isinstance(task, CollectTask):  # it has ended meanwhile
                continue
            if task.player not in of_players:
                setting = self.commander.get_setting_collect(self.groups.of(task))
                of_players[task.player] = setting, instructions_of(setting, scheduled)
            setting, instructions = of_players[task.player]
            if worker.take_instructions(instructions):
                order = CollectSetting(task.task_id, dict(setting), scheduled)
                orders.append(Order(worker.rank, order))
        return orders

    def _on_collect_end(self, message: CollectResult, worker: Worker, now: float) -> list[Order]:
        self.workers.finish(worker.rank, message.task_id)
        return self._on_collect_result(message, now)

    def _on_collect_result(self, message: CollectResult, now: float) -> list[Order]:
        evaluations = self.groups.main.evaluations
        before = len(evaluations)
        reached = self.commander.finish_collector_task(message.task_id, message)
        for evaluation in evaluations[before:]:
            self._observe(COORDINATOR_RANK, Evaluated(evaluation))
        if reached:
            reason = self.commander.describe_goal(message)
            return self.stop(Outcome("done", reason, EXIT_DONE), now)
        main = self.groups.main
        is_last = message.task_id == self._last_task or not (main.has_learnt or main.is_busy)
        if self._ending is not None and is_last:
            return self.stop(self._ending, now)
        return [*self._begin_anew(), *self._assign(now)] if self.is_on else []

    def _begin_anew(self) -> list[Order]:
        """Order the learners of exploiters to begin anew, where a copy of theirs was frozen."""
        groups = [group for group in self.groups if group.begins_anew]
        for group in groups:
            group.begins_anew = False
        return [
            Order(rank, BeginAnew(group.name)) for group in groups for rank in group.learners.ranks
        ]

    def _on_learn_info(self, message: LearnInfo, now: float) -> list[Order]:
        group = self.groups.of(message)
        if message.train_iter:  # 0: some learners of the group have not reported yet
            group.info = message
        return self._reach(group, message.train_iter, now)

    def _on_learn_result(self, message: LearnResult, worker: Worker, now: float) -> list[Order]:
        self.workers.finish(worker.rank, message.task_id)
        group = self.groups[worker.group]
        task = group.learners.task
        if task is None or message.task_id != task.task_id:
            return []
        worker.result = message
        result = group.learners.group_result()
        return [] if result is None else self._end_learning(group, result, now)

    def _end_learning(self, group: Group, result: LearnResult, now: float) -> list[Order]:
        self._note_iterations(group, result.train_iter)
        self.commander.finish_learner_task(result.task_id, result)
        is_one = group.learners.size == 1
        who = "the learner has done its" if is_one else "the learners have done their"
        reason = f"{who} iterations: {result.train_iter}"
        return self._end(Outcome("done", reason, EXIT_DONE), now)

    # -------------------------------------------------------------------- how many collectors work

    @property
    def league(self) -> League | None:
        """Who plays whom, where the run is a league."""
        return self.commander.league

    @property
    def collectors(self) -> dict[str, int | None]:
        """How many collectors may work at once, are available, and are wanted (None: all)."""
        available, space = self.workers.collectors_here, self.commander.collector_task_space
        guests = len(self.workers.guests) if self.collectors_wanted is not None else 0
        working = available if space is None else min(space - guests, available)
        return {"working": working, "there": available, "wanted": self.collectors_wanted}

    def want_collectors(self, count: int) -> None:
        """Let `count` collectors work from now on, if there are as many; at least those needed."""
        self.collectors_wanted = max(count, self.workers.collectors_needed)
        self._fit_task_space()

    def _fit_task_space(self) -> None:
        """Fit the commander's space for tasks to the collectors that are wanted and available."""
        if self.collectors_wanted is not None:  # else each has its place
            space = min(self.collectors_wanted, self.workers.collectors_here)
            self.commander.collector_task_space = space + len(self.workers.guests)

    # -------------------------------------------------------------------------------------- data

    def _on_block_ready(self, message: BlockReady, now: float) -> list[Order]:
        if message.block_id in self._unstored:  # its collector has died, and left it in a shard
            stored = BlockStored(message.block_id, message.shard, message.player)
            return self._on_block_stored(stored, now)
        if message.shard.is_shared and self._stores:
            self._unstored[message.block_id] = message
        else:
            self.count_block(message)
        self._has_published = True
        return self._plan.publish(self, message, now)

    def _on_block_stored(self, message: BlockStored, now: float) -> list[Order]:
        self._plan.stored(self, message)
        ready = self._unstored.pop(message.block_id, None)
        if ready is None:  # it was counted piece by piece
            return []
        self.count_block(ready)
        return [*self._learn(now), *self.pause(now), *self.end_at_limit(now)]

    def _forget_unwritten(self, rank: int) -> None:
        """A collector has died: what it had lent and not stored is gone."""
        unwritten = [block_id for block_id in self._unstored if collector_of(block_id) == rank]
        for block_id in unwritten:
            self.groups.of(self._unstored.pop(block_id)).replay.lose_unwritten(block_id)
        self.unwritten += len(unwritten)

    def admit(self, ready: BlockReady) -> list[Order]:
        """Assign a block to a learner of its group; returns orders to read it, if it may now.

        A guest's block is left out if its policy is too old.
        """
        group = self.groups.of(ready)
        limit = self.guest_rules.max_policy_lag
        if limit is not None and is_guest(collector_of(ready.block_id)):
            oldest = int(ready.items["policy_version"].min(initial=group.train_iter))
            if group.train_iter - oldest > limit:
                group.replay.leave_out(ready)
                return []
        return list(starmap(Order, group.replay.assign(ready)))

    def _on_block_admitted(self, message: BlockAdmitted, worker: Worker, now: float) -> list[Order]:
        group = self.groups.of_learner(worker.rank)
        if group is None:
            return []
        admits = group.replay.admit(worker.rank, message)
        if message.error and group.replay.is_unreadable(message.block_id):
            self._observe(worker.rank, BlockLost(message.error))
        # batches first, so that the learner gathers them before it reads more blocks
        return [*self._learn(now), *(Order(worker.rank, admit) for admit in admits)]

    def _on_data_demand(self, message: DataDemand, worker: Worker, now: float) -> list[Order]:
        group = self.groups.of_learner(worker.rank)
        if group is None:
            return []
        part = group.replay.partitions[worker.rank]
        worker.begin(message.task_id)
        worker.demand = message
        group.priorities_stale += part.demand(message)
        demands = group.learners.take_demands()
        if demands is not None:  # the group has done as many iterations as its slowest learner
            ending = self._reach(group, min(demand.train_iter for demand in demands), now)
            if ending:
                return ending
        served = self._learn(now)
        # blocks may have waited until batches were drawn (push_sample_rate_limit)
        admits = [Order(worker.rank, admit) for admit in part.orders()]
        return [*served, *admits, *self.pause(now)]

    def _on_snapshot_part(self, message: SnapshotPart, rank: int) -> list[Order]:
        self.snapshots.part(rank, message)
        return []

    def pause(self, now: float) -> list[Order]:
        """Let collectors wait or go on, as `policy.learn.replay_ratio` demands of their group."""
        has_changed = False
        for group in self.groups:
            if group.pause is None:
                continue
            pause = CollectPause(self.is_on and group.replay.collectors_wait(group.env_steps))
            if self.is_on and not pause.waits and group.has_shares(now):
                continue
            has_changed |= pause != group.pause
            group.pause = pause
        if not has_changed:
            return []
        alive = (w for w in self.workers if w.role == "collector" and not w.has_ended)
        return [order for worker in alive for order in self._pause_of(worker)]

    def _pause_of(self, worker: Worker) -> list[Order]:
        """Let a collector wait or go on; a pause outlives its task. Evaluations need none."""
        if worker.is_evaluating:
            return []
        task = worker.task
        group = self.groups.of(task) if task is not None else self.groups.main
        pause = group.pause or group.share_out(self._sharing)
        # another group's share may be as large, and this collector may have made that one
        if pause is worker.pause or (pause == worker.pause and not pause.after):
            return []
        worker.pause = pause
        return [Order(worker.rank, pause)]

    @property
    def _sharing(self) -> int:
        """Number of collectors that are to work, of those that are left."""
        left, wanted = self.workers.collectors_left, self.collectors_wanted
        return left if wanted is None else min(left, wanted)

    def _learn(self, now: float) -> list[Order]:
        """Send batches, unless the run is about to stop the learners."""
        return self._plan.learn(self, now) if self.is_on and self._ending is None else []

    def draw(self, group: Group, collecting: Collection[int]) -> list[Order]:
        """Draw batches for a group's learners, equally many for each.

        Args:
            group: the group.
            collecting: ranks whose rollouts an on-policy batch waits for.
        """
        served = group.replay.serve(group.env_steps, collecting)
        if at := group.began_at:  # of exploiters alone
            served = [(rank, dataclasses.replace(some, began_at=at)) for rank, some in served]
        return list(starmap(Order, served))

    def take_snapshot(self, now: float) -> list[Order]:
        """Begin a snapshot, if there is anything to keep; its orders must be a turn's last."""
        learners = self.groups.partitions
        if not learners or not any(g.env_steps or g.replay.items_admitted for g in self.groups):
            return []
        order = self.snapshots.take(learners, now)
        return [Order(rank, order) for rank in learners] if order is not None else []

    # ---------------------------------------------------------------------------------- progress

    def count_block(self, ready: BlockReady) -> None:
        """Count a published block's steps: only what is published still exists after a restart."""
        group = self.groups.of(ready)
        self._note_announced(ready)
        self.guest_steps += ready.env_steps if is_guest(collector_of(ready.block_id)) else 0
        group.count(ready)
        self.commander.count_block(ready)
        self.commander.update_progress(group)

    def _note_announced(self, ready: BlockReady) -> None:
        rank, number = collector_of(ready.block_id), block_number(ready.block_id)
        self.announced[rank] = max(number, self.announced.get(rank, 0))

    def _reach(self, group: Group, train_iter: int, now: float) -> list[Order]:
        """Note that all learners of a group have done `train_iter` iterations."""
        self._note_iterations(group, train_iter)
        return self.end_at_limit(now)

    def _note_iterations(self, group: Group, train_iter: int) -> None:
        group.reach(train_iter)
        self.commander.update_progress(group)

    # ------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """State for a snapshot: plain data and arrays."""
        return {
            "announced": {str(rank): number for rank, number in self.announced.items()},
            "groups": self.groups.state_dict(),
            "plan": self._plan.state_dict(),
            "commander": self.commander.state_dict(),
        }

    def load_state_dict(
        self, state: Mapping[str, Any], published: Mapping[str, BlockReady] | None = None
    ) -> None:
        """Restore a `state_dict`.

        Args:
            state: a `state_dict`.
            published: the blocks that exist, by name, oldest first; None: they come later.
        """
        self.announced = {int(rank): number for rank, number in state["announced"].items()}
        self.groups.load_state_dict(state["groups"], published)
        self._plan.load_state_dict(state["plan"])
        self.commander.load_state_dict(state["commander"])

    def resume(self, resumed: Resumed) -> None:
        """Restore a snapshot before the run begins; blocks published after it count, too."""
        self.load_state_dict(resumed.state, resumed.published)
        for group in self.groups:
            group.reach(resumed.iterations.get(group.name, 0))
        self._take_later(resumed.published[path] for path in sorted(resumed.after))
        for group in self.groups:
            self.commander.update_progress(group)
        self.snapshots.resume = resumed.folder

    def _take_later(self, blocks: Iterable[BlockReady]) -> None:
        """Count the blocks that were published after the snapshot that the run is resumed from.

        Left out are those of players that came after that snapshot, too, and are not here now.
        """
        left_out = Counter[str]()
        for ready in blocks:
            if any(group.has(ready) for group in self.groups):
                self.count_block(ready)
                continue
            self._note_announced(ready)
            self.groups.main.replay.leave_out(ready)
            left_out[ready.player] += ready.env_steps
        for player, steps in left_out.items():
            LOGGER.warning("%d transitions of %s are left out: it is not here now", steps, player)


_HANDLERS: dict[type, Callable[[Scheduler, Any, Worker, float], list[Order]]] = {
    WorkerReady: lambda run, _message, worker, now: run._on_worker_ready(worker, now),
    CollectProgress: lambda run, message, worker, _now: run._on_collect_progress(message, worker),
    CollectResult: lambda run, message, worker, now: run._on_collect_end(message, worker, now),
    TaskReturned: lambda run, message, worker, now: run._on_task_returned(message, worker, now),
    BlockReady: lambda run, message, _worker, now: run._on_block_ready(message, now),
    BlockStored: lambda run, message, _worker, now: run._on_block_stored(message, now),
    BlockAdmitted: lambda run, message, worker, now: run._on_block_admitted(message, worker, now),
    DataDemand: lambda run, message, worker, now: run._on_data_demand(message, worker, now),
    LearnInfo: lambda run, message, _worker, now: run._on_learn_info(message, now),
    LearnResult: lambda run, message, worker, now: run._on_learn_result(message, worker, now),
    SnapshotPart: lambda run, message, worker, _now: run._on_snapshot_part(message, worker.rank),
    Goodbye: lambda run, message, worker, now: run._on_goodbye(message, worker, now),
    WorkerFailed: lambda run, message, worker, now: run._on_worker_failed(message, worker, now),
    RankLost: lambda run, _message, worker, now: run._on_rank_lost(worker, now),
    StopRequest: lambda run, message, _worker, now: run._on_stop_request(message, now),
    Heartbeat: lambda _run, _message, _worker, _now: [],
}
"""What happens on each message of a worker."""
