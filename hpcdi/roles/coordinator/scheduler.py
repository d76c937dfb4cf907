"""All decisions of rank 0: messages and time in, orders out. No clock, no MPI, no file.

`Scheduler.handle` shows what happens on each message; `Scheduler._on_rank_lost`, on a rank's death.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import starmap
from typing import Any

from hpcdi.comm.messages import (
    BeginAnew,
    BlockAdmitted,
    BlockReady,
    CloseTask,
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
    Leave,
    Message,
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
from hpcdi.errors import EXIT_DONE, EXIT_FAILED, EXIT_REQUEUE, WorkerSilentError, state_after
from hpcdi.league.league import League
from hpcdi.replay.manager import ReplayBuffers, ReplayFigures
from hpcdi.roles.coordinator.commanders import BaseCommander
from hpcdi.roles.coordinator.snapshots import SnapshotClock
from hpcdi.roles.coordinator.workers import (
    ComesBack,
    DiesAlone,
    Notice,
    Order,
    State,
    Worker,
    Workers,
)
from hpcdi.types import MAIN

FAILURE_GRACE_S = 3.0
"""Seconds that the others may take to end in order after a rank has failed."""


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
        """Returns how the run ended where ranks did not end in order.

        One that had reached its end is done without its collectors' last words: what they have
        published is there. Of learners a part of the last snapshot is missing: resume it.

        Args:
            silent: role of each such rank.
        """
        if not silent or self.exit_code not in (EXIT_DONE, EXIT_REQUEUE):
            return self
        reason = f"{self.reason}; but ranks {list(silent)} did not end in order"
        if self.exit_code == EXIT_DONE and "learner" not in silent.values():
            return dataclasses.replace(self, reason=reason)
        state = state_after(EXIT_REQUEUE)
        return dataclasses.replace(self, state=state, reason=reason, exit_code=EXIT_REQUEUE)


@dataclass
class Counters:
    """Totals of the run.

    Attributes:
        steps_of: transitions of each player that were published, also in shards that are removed by
            now.
        iterations_of: train iterations of each player.
        episodes: that ended in the transitions.
        priorities_stale: new priorities of items that had left the buffer.
        rounds: done in a deterministic run.
        evaluated_at: train iteration of the last evaluation of a deterministic run.
        evaluated_steps: environment steps at that evaluation.
    """

    steps_of: dict[str, int] = field(default_factory=dict)
    iterations_of: dict[str, int] = field(default_factory=dict)
    episodes: int = 0
    priorities_stale: int = 0
    rounds: int = 0
    evaluated_at: int = 0
    evaluated_steps: int = 0

    @property
    def env_steps(self) -> int:
        """Environment steps of all players."""
        return sum(self.steps_of.values())

    @property
    def train_iter(self) -> int:
        """Train iterations of the main player."""
        return self.iterations_of.get(MAIN, 0)

    def state_dict(self) -> dict[str, Any]:
        """Returns them with both totals, as plain data."""
        totals = {"env_steps": self.env_steps, "train_iter": self.train_iter}
        return totals | dataclasses.asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`; an old one has the totals alone, which are the main player's."""
        totals = {"env_steps", "train_iter"}
        vars(self).update({name: value for name, value in state.items() if name not in totals})
        self.steps_of = dict(state.get("steps_of") or {MAIN: state["env_steps"]})
        self.iterations_of = dict(state.get("iterations_of") or {MAIN: state["train_iter"]})


class RunState:
    """A run as it stands: over ranks, or of one process, which has no workers.

    Args:
        replay: the replay buffer.
        snapshots: of the run.
        workers: the other ranks.

    Attributes:
        counters: totals of the run.
        phase: of the run.
        outcome: how the run ended; None: it has not.
        collectors_wanted: collectors that should work; None: all.
    """

    def __init__(self, replay: ReplayFigures, snapshots: SnapshotClock, workers: Workers) -> None:
        self.counters = Counters()
        self.replay = replay
        self.snapshots = snapshots
        self.workers = workers
        self.outcome: Outcome | None = None
        self.collectors_wanted: int | None = None
        self.phase = Phase.STARTING if workers.silent else Phase.RUNNING

    @property
    def is_on(self) -> bool:
        """True if the run goes on: tasks are given out."""
        return self.phase in (Phase.STARTING, Phase.RUNNING)

    @property
    def finished(self) -> bool:
        """True if everybody has gone, or has had long enough to go."""
        return self.phase is Phase.FINISHED

    @property
    def collectors(self) -> dict[str, int | None]:
        """How many collectors may work at a time, how many can work, and how many are wanted."""
        available = len(self.workers.available("collector"))
        space = self._collector_space()
        working = available if space is None else min(space, available)
        return {"working": working, "there": available, "wanted": self.collectors_wanted}

    @property
    def league(self) -> League | None:
        """Players and results, where the run is a league."""
        return None

    def _collector_space(self) -> int | None:
        """Collectors that may work at a time; None: all."""
        return None


class Scheduler(RunState):
    """Decides what each rank does.

    Args:
        commander: sets tasks and goals.
        replay: the replay buffers; or that of the main player, where there is no other.
        snapshots: of the run.
        workers: ranks that must report before the run can go on.
        observe: called with each message before it is handled, and with each notice.
    """

    replay: ReplayBuffers

    patience_s = 0.05
    """How long the loop may wait for messages before it calls `tick`."""

    def __init__(
        self,
        commander: BaseCommander,
        replay: ReplayBuffers,
        snapshots: SnapshotClock,
        workers: Workers,
        observe: Callable[[int, Message | Notice], None] = lambda _rank, _message: None,
    ) -> None:
        super().__init__(replay, snapshots, workers)
        self.commander = commander
        self.collectors_wanted = commander.collector_task_space
        self._observe = observe
        self._deadline = float("inf")
        self._pauses = dict.fromkeys(replay.of, False)  # whose collectors wait for learners
        self._ending: Outcome | None = None  # of the run, once its last evaluation is done
        self._last_task = ""  # that evaluation

    def handle(  # noqa: C901, PLR0912 (a table of cases)
        self, message: Message, rank: int, now: float
    ) -> list[Order]:
        """Orders in answer to a message.

        Args:
            message: of another rank, or of a caller on rank 0.
            rank: of the sender.
            now: seconds on any clock that does not go back.
        """
        if isinstance(message, LearnInfo):
            message = self.workers.group_info(rank, message)
        self.workers[rank].hear(type(message).__name__, now)
        self._observe(rank, message)
        match message:
            case WorkerReady():
                return self._on_worker_ready(message, rank, now)
            case CollectProgress():
                return self._on_collect_progress(message, rank)
            case CollectResult():
                return self._on_collect_result(message, rank, now)
            case TaskReturned():
                return self._on_task_returned(message, rank, now)
            case BlockReady():
                return self._on_block_ready(message, now)
            case BlockAdmitted():
                return self._on_block_admitted(message, rank)
            case DataDemand():
                return self._on_data_demand(message, rank, now)
            case LearnInfo():
                self.commander.update_learner_info(message.task_id, message.scalars)
                return self._count_iterations(message.train_iter, now, message.player)
            case LearnResult():
                return self._on_learn_result(message, rank, now)
            case SnapshotPart():
                self.snapshots.part(rank, message)
            case ScaleCollectors():
                self.want_collectors(message.count)  # the next tick starts or closes tasks
            case StopRequest():
                state, code = state_after(message.exit_code), message.exit_code
                return self.stop(Outcome(state, message.reason, code), now)
            case Goodbye():
                return self._on_goodbye(message, rank, now)
            case WorkerFailed():
                return self._on_worker_failed(message, rank, now)
            case RankLost():
                return self._on_rank_lost(rank, now)
            case Heartbeat():
                pass
            case _:
                raise TypeError(f"rank {rank} sent rank 0 a {type(message).__name__}")
        return []

    def tick(self, now: float) -> list[Order]:
        """Orders because time has passed.

        Raises:
            WorkerSilentError: a worker has not reported in time, or sends nothing for too long.
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
        waiting = [rank for rank, part in self.replay.partitions.items() if part.waits]
        for rank, notice in self.workers.notices(now, waiting):
            self._observe(rank, notice)
        for rank in self.workers.end_pauses(now):
            self._observe(rank, ComesBack())
            self._fit_task_space()
        orders += self._assign(now)
        # an evaluation that took a collector away may have been all that a batch waited for
        orders += [*self._serve(), *self._pause()]
        return orders + (self._take_snapshot(now) if self.snapshots.is_due(now) else [])

    # ---------------------------------------------------------------------------- start and end

    def _on_worker_ready(self, message: WorkerReady, rank: int, now: float) -> list[Order]:
        self.workers.report(rank, message)
        if not self.is_on:
            return []  # it has its Stop already
        self._begin_if_all_reported()
        self._fit_task_space()
        return self._assign(now)

    def _begin_if_all_reported(self) -> None:
        if self.workers.all_reported:
            self.phase = Phase.RUNNING

    def stop(self, outcome: Outcome, now: float) -> list[Order]:
        """End the run, after a last snapshot. The first reason counts."""
        last = self._take_snapshot(now) if self.is_on else []
        return [*last, *self._stop_workers(outcome, now)]

    def _end(self, outcome: Outcome, now: float) -> list[Order]:
        """End the run, after an evaluation of what was learnt since the last; nobody learns on."""
        if self.is_on and self._ending is None and self.commander.begin_last_evaluation():
            self._ending = outcome
        elif self._ending is None:
            return self.stop(outcome, now)
        return self._assign(now)

    def _evaluate_last(self, now: float) -> list[Order]:
        """Close what is collected; the first collector that is free evaluates."""
        closing = self.workers.close_surplus(0, now)
        orders = [Order(w.rank, CloseTask(w.task.task_id)) for w in closing if w.task is not None]
        is_due = self.workers.free("collector") and self.commander.evaluation_is_due(now)
        task = self.commander.get_collector_task(now) if is_due else None
        if task is not None:
            self._last_task = task.task_id
            orders.append(Order(self.workers.start_collector(task, now), task))
        return orders

    def _stop_workers(self, outcome: Outcome, now: float) -> list[Order]:
        if not self.is_on:
            return []
        self.phase, self.outcome = Phase.STOPPING, outcome
        grace_s = FAILURE_GRACE_S if outcome.failure else self.workers.timeouts.stop_s
        self._deadline = now + grace_s
        stops = [Order(rank, Stop(outcome.reason)) for rank in self.workers.silent]
        return stops + self._finish_if_empty()

    def _on_goodbye(self, message: Goodbye, rank: int, now: float) -> list[Order]:
        """A worker has gone; the last one ends the run, and so does one that was not to go."""
        worker = self.workers[rank]
        worker.has_ended, worker.report = True, message.report
        left = Outcome("stopped", f"rank {rank} left before the end of the run", EXIT_REQUEUE)
        return self._stop_workers(left, now) or self._finish_if_empty()

    def _finish_if_empty(self) -> list[Order]:
        if self.phase is not Phase.STOPPING or self.workers.silent:
            return []
        return self._finish()

    def _finish(self) -> list[Order]:
        self.phase = Phase.FINISHED
        exit_code = self.outcome.exit_code if self.outcome is not None else 0
        return [Order(worker.rank, Leave(exit_code)) for worker in self.workers]

    # ------------------------------------------------------------------------------------ faults

    def _on_worker_failed(self, message: WorkerFailed, rank: int, now: float) -> list[Order]:
        """A worker has raised: that ends the run, or it is ordered to die, and `RankLost` comes."""
        if self.workers.survives_error_of(rank):
            self._observe(rank, DiesAlone(message))
            return [Order(rank, Leave(EXIT_FAILED, alone=True))]
        self.workers[rank].has_ended = True
        code = message.exit_code
        outcome = Outcome(state_after(code), message.error, code, (rank, message))
        if self.outcome is not None and self.outcome.failure is None:
            self.outcome = outcome  # it failed while the run was ending: it was not done after all
            self._deadline = min(self._deadline, now + FAILURE_GRACE_S)
        return self._stop_workers(outcome, now) + self._finish_if_empty()

    def _on_rank_lost(self, rank: int, now: float) -> list[Order]:
        """A worker has died: others take its tasks and data, or the run ends."""
        workers, worker = self.workers, self.workers[rank]
        worker.has_ended = True
        if not self.is_on:
            return self._finish_if_empty()
        why = workers.why_not_without(rank)
        if why:
            reason = f"{worker} has died, and the run cannot go on without it: {why}"
            outcome = Outcome("stopped", reason, EXIT_REQUEUE)
            # without a learner's part a last snapshot would not be whole
            end = self._stop_workers if worker.role == "learner" else self.stop
            return end(outcome, now)
        task = workers.lose(rank)
        if isinstance(task, CollectTask):
            self.commander.notify_fail_collector_task(task)
        if worker.role == "collector":
            self._begin_if_all_reported()
            self._fit_task_space()
            return [*self._assign(now), *self._serve()]
        self.snapshots.lose(rank)
        learners = workers.available("learner", worker.player)
        ranks = tuple(learner.rank for learner in learners)
        hosts = tuple(learner.host for learner in learners)
        regroup = Regroup(len(workers.lost), ranks, hosts)
        orders = [Order(learner, regroup) for learner in ranks]
        orders += starmap(Order, self.replay.of[worker.player].lose(rank))
        if not learners:
            return [*orders, *self._lose_player(worker.player, now)]
        # it may have been the only one that was not done
        result = workers.whole_result(worker.player)
        if result is None:
            return orders
        return [*orders, *self._end_learning(result, now, worker.player)]

    def _lose_player(self, player: str, now: float) -> list[Order]:
        """A player's last learner has died: its collectors go on for the others."""
        self.commander.lose_player(player)
        orders = []
        for worker in self.workers:
            task = worker.task
            if isinstance(task, CollectTask) and task.player == player:
                worker.closing = now
                orders.append(Order(worker.rank, CloseTask(task.task_id)))
        return orders

    def _on_task_returned(self, message: TaskReturned, rank: int, now: float) -> list[Order]:
        """A collector has no environments: others do its work, or the run ends."""
        workers = self.workers
        task = workers.finish(rank, message.task_id)
        workers.pause(rank, now)
        if isinstance(task, CollectTask):
            self.commander.notify_fail_collector_task(task)
        self._fit_task_space()
        left = workers.collectors_left
        if left >= workers.collectors_needed:
            return self._assign(now) if self.is_on else []
        some = "1 collector has" if left == 1 else f"{left} collectors have"
        few = f"only {some}" if left else "no collector has"
        reason = f"{few} environments left; rank {rank}: {message.reason}"
        return self.stop(Outcome("failed", reason, EXIT_FAILED), now)

    # ------------------------------------------------------------------------------------- tasks

    def _assign(self, now: float) -> list[Order]:
        """Give tasks to free workers."""
        if self._ending is not None:
            return self._evaluate_last(now)
        orders: list[Order] = []
        resume = self.snapshots.resume
        while self.workers.learners_are_free and (task := self.commander.get_learner_task(now)):
            task = dataclasses.replace(task, resume=resume)
            self.snapshots.resume = ""
            ranks = self.workers.start_learners(task, now)
            orders += [Order(rank, task) for rank in ranks]
            orders += starmap(Order, self.replay.of[task.player].open(*ranks))
            self.snapshots.start(now)
        return orders + self._assign_collectors(now)

    def _assign_collectors(self, now: float) -> list[Order]:
        orders: list[Order] = []
        while self.workers.free("collector"):
            task = self.commander.get_collector_task(now)
            if task is None:
                break
            rank = self.workers.start_collector(task, now)
            orders += [Order(rank, task), *self._pause_of(self.workers[rank])]
        closing: list[Worker] = []
        if self.collectors_wanted is not None:
            closing += self.workers.close_surplus(self.collectors["working"] or 0, now)
        if self.commander.evaluation_is_due(now):  # all collectors are busy: one makes room
            closing += self.workers.close_oldest(now)
        closing += self.workers.close_uneven(now)
        tasks = [(worker.rank, worker.task) for worker in closing]
        return orders + [Order(rank, CloseTask(task.task_id)) for rank, task in tasks if task]

    def _on_collect_progress(self, message: CollectProgress, rank: int) -> list[Order]:
        worker = self.workers[rank]
        worker.policy_version = message.policy_version
        task = worker.begin(message.task_id)
        if not self.is_on or not isinstance(task, CollectTask) or task.eval_flag:
            return []
        setting = dict(self.commander.get_setting_collect(task.player))
        return [Order(rank, CollectSetting(message.task_id, setting))] if setting else []

    def _on_collect_result(self, message: CollectResult, rank: int, now: float) -> list[Order]:
        self.workers.finish(rank, message.task_id)
        reached = self.commander.finish_collector_task(message.task_id, message)
        if reached:
            reason = self.commander.describe_goal(message)
            return self.stop(Outcome("done", reason, 0), now)
        if self._ending is not None and message.task_id == self._last_task:
            return self.stop(self._ending, now)
        return [*self._begin_anew(), *self._assign(now)] if self.is_on else []

    def _begin_anew(self) -> list[Order]:
        return [
            Order(worker.rank, BeginAnew(player))
            for player in self.commander.take_resets()
            for worker in self.workers.available("learner", player)
        ]

    def _on_learn_result(self, message: LearnResult, rank: int, now: float) -> list[Order]:
        self.workers.finish(rank, message.task_id)
        result = self.workers.group_result(rank, message)
        return [] if result is None else self._end_learning(result, now, self.workers[rank].player)

    def _end_learning(self, result: LearnResult, now: float, player: str = MAIN) -> list[Order]:
        self._update_iterations(result.train_iter, player)
        self._update_progress(player)
        self.commander.finish_learner_task(result.task_id, result)
        is_one = self.workers.groups[player].size == 1
        who = "the learner has done its" if is_one else "the learners have done their"
        reason = f"{who} iterations: {result.train_iter}"
        return self._end(Outcome("done", reason, 0), now)

    # -------------------------------------------------------------------- how many collectors work

    @property
    def league(self) -> League | None:
        """See `RunState`."""
        return self.commander.league

    def _collector_space(self) -> int | None:
        return self.commander.collector_task_space

    def want_collectors(self, count: int) -> None:
        """Let so many collectors work from now on, as far as there are; at least those needed."""
        self.collectors_wanted = max(count, self.workers.collectors_needed)
        self._fit_task_space()

    def _fit_task_space(self) -> None:
        """Fit the commander's space for tasks to the collectors that are wanted and available."""
        if self.collectors_wanted is None:
            return  # each has its place
        commander, available = self.commander, len(self.workers.available("collector"))
        if commander.collector_task_space is None:
            commander.collector_task_space = available
        space, goal = commander.collector_task_space or 0, min(self.collectors_wanted, available)
        for _ in range(space, goal):
            commander.increase_collector_task_space()
        for _ in range(goal, space):
            commander.decrease_collector_task_space()

    # -------------------------------------------------------------------------------------- data

    def _on_block_ready(self, message: BlockReady, now: float) -> list[Order]:
        self.count_block(message)
        admits = self.replay.of[message.player].assign(message)
        return [*starmap(Order, admits), *self._pause(), *self._stop_at_limit(now, message.player)]

    def _on_block_admitted(self, message: BlockAdmitted, rank: int) -> list[Order]:
        replay = self.replay.of_learner(rank)
        if replay is None:
            return []
        admits = replay.admit(rank, message)
        # batches first: the learner gathers them before it reads on
        return [*self._serve(), *(Order(rank, admit) for admit in admits)]

    def _on_data_demand(self, message: DataDemand, rank: int, now: float) -> list[Order]:
        replay = self.replay.of_learner(rank)
        if replay is None:
            return []
        done = self._take_demand(message, rank)
        served = self._serve()
        # they may have waited for it
        admits = [Order(rank, admit) for admit in replay.partitions[rank].orders()]
        player = self.workers[rank].player
        counted = self._count_iterations(done, now, player) if done is not None else []
        return [*served, *admits, *self._pause(), *counted]

    def _pause(self) -> list[Order]:
        """Let a player's collectors wait or go on, as `policy.learn.replay_ratio` says."""
        pauses = {
            player: self.is_on and replay.collectors_wait(self._steps_of(player))
            for player, replay in self.replay.of.items()
        }
        if pauses == self._pauses:
            return []
        self._pauses = pauses
        alive = (w for w in self.workers if w.role == "collector" and not w.has_ended)
        return [order for worker in alive for order in self._pause_of(worker)]

    def _pause_of(self, worker: Worker) -> list[Order]:
        """Let a collector wait or go on; it remembers it, over tasks and without any."""
        wait = self._pauses[worker.task.player if worker.task is not None else MAIN]
        if wait is worker.is_paused:
            return []
        worker.is_paused = wait
        return [Order(worker.rank, CollectPause(wait))]

    def _take_demand(self, message: DataDemand, rank: int) -> int | None:
        """Note a request; returns the iterations that all have done, once all have asked."""
        self.workers[rank].begin(message.task_id)
        self.counters.priorities_stale += self.replay.partitions[rank].demand(message)
        demands = self.workers.group_demand(rank, message)
        return None if demands is None else min(demand.train_iter for demand in demands)

    def _serve(self) -> list[Order]:
        if not self.is_on or self._ending is not None:
            return []  # learners have their Stop, or get it soon
        orders: list[Order] = []
        for player, replay in self.replay.of.items():
            collecting = () if replay.is_replay else self.workers.collecting(player)
            orders += starmap(Order, replay.serve(self._steps_of(player), collecting))
        return orders

    def _take_snapshot(self, now: float) -> list[Order]:
        """Begin a snapshot, if there is anything to keep: the last orders of a turn."""
        learners, has_data = self.replay.partitions, self.replay.items_admitted
        if not learners or not (has_data or self.counters.env_steps):
            return []
        order = self.snapshots.take(learners, now)
        return [Order(rank, order) for rank in learners] if order is not None else []

    # ---------------------------------------------------------------------------------- progress

    def count_block(self, ready: BlockReady) -> None:
        """Count what is published: nothing else is there after a restart."""
        counters = self.counters
        counters.steps_of[ready.player] = self._steps_of(ready.player) + ready.env_steps
        counters.episodes += ready.episodes
        self.commander.count_block(ready)

    def _count_iterations(self, train_iter: int, now: float, player: str = MAIN) -> list[Order]:
        self._update_iterations(train_iter, player)
        return self._stop_at_limit(now, player)

    def _stop_at_limit(self, now: float, player: str = MAIN) -> list[Order]:
        reason = self._update_progress(player)
        return self._end(Outcome("done", reason, 0), now) if reason else []

    def resume_counters(self) -> None:
        """Let the commander take the counters of all players."""
        for player in self.replay.of:
            self._update_progress(player)

    def _update_progress(self, player: str) -> str | None:
        done = self.counters.iterations_of.get(player, 0)
        return self.commander.update_progress(self._steps_of(player), done, player)

    def _update_iterations(self, train_iter: int, player: str) -> None:
        known = self.counters.iterations_of.get(player, 0)
        self.counters.iterations_of[player] = max(known, train_iter)

    def _steps_of(self, player: str) -> int:
        """Environment steps of a player."""
        return self.counters.steps_of.get(player, 0)
