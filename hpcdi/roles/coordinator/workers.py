"""All that rank 0 knows of the other ranks: one record per rank, and the questions asked of them.

States of a worker::

    EXPECTED ──WorkerReady──► FREE ◄───────────► WORKING
                               ▲                    │ TaskReturned: it has no environments left
                               └─after a pause── PAUSED
    any of them ──it has died, and the run goes on──► LOST
"""

from __future__ import annotations

import bisect
import dataclasses
import heapq
import math
from collections.abc import Container, Iterable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from hpcdi.comm.messages import (
    CloseTask,
    CollectPause,
    CollectProgress,
    CollectTask,
    DataDemand,
    KillFrozen,
    LearnInfo,
    LearnResult,
    LearnTask,
    Message,
    WorkerFailed,
    WorkerReady,
)
from hpcdi.config.schema import ExperimentConfig, SurvivalConfig
from hpcdi.dataclass import dataclass
from hpcdi.errors import CommError, WorkerSilentError
from hpcdi.roles.context import COORDINATOR_RANK, OWN_END_S
from hpcdi.types import MAIN, Settings, is_guest
from hpcdi.utils.progress import Evaluation

if TYPE_CHECKING:
    from hpcdi.roles.coordinator.groups import Group, Groups

Task: TypeAlias = CollectTask | LearnTask
Instructions: TypeAlias = tuple[Settings, Mapping[str, Any]] | None
"""What a collector acts by: settings of the policy, and values of schedules. None: they cannot be
compared with others."""

QUIET_S = 60.0
"""Seconds without a message of a rank, after which the log asks whether it hangs."""


class Order(NamedTuple):
    """A message to be sent."""

    rank: int
    message: Message


@dataclass(frozen=True)
class TaskLate:
    """A collector was ordered to end a task and has not done so."""

    task_id: str
    waited_s: float


@dataclass(frozen=True)
class RankQuiet:
    """A rank with a task has sent nothing for long."""

    task_id: str
    waited_s: float


@dataclass(frozen=True)
class DiesAlone:
    """A rank has raised, and the others go on without it."""

    failure: WorkerFailed


@dataclass(frozen=True)
class ComesBack:
    """A collector whose environments failed has paused long enough: it may make new ones."""


@dataclass(frozen=True)
class BlockLost:
    """A learner could read a block neither where it was lent nor in a shard."""

    error: str


@dataclass(frozen=True)
class Evaluated:
    """An evaluation of the main player is complete; nothing has followed from it yet."""

    evaluation: Evaluation


Notice: TypeAlias = TaskLate | RankQuiet | DiesAlone | ComesBack | BlockLost | Evaluated


class State(Enum):
    """State of a worker; see the module's drawing."""

    EXPECTED = "expected"
    FREE = "free"
    WORKING = "working"
    PAUSED = "paused"
    LOST = "lost"


@dataclass
class Worker:
    """One rank. Times are those of the scheduler's clock, in seconds.

    Attributes:
        rank: rank in the world.
        state: what it can do.
        role: "collector" or "learner"; empty until it has reported.
        group: name of the group that a learner is a member of.
        host: name of its node.
        pid: process id there.
        pid_space: in which numbering, see `hpcdi.utils.processes`.
        gpus: number of GPUs that it uses.
        cpus: number of cores that it uses.
        has_ended: it said goodbye, raised or died: nobody waits for it any more.
        report: closing figures, from its goodbye.
        task: the task that it works on.
        started: when the task was ordered.
        has_begun: it has sent something about the task.
        instructions: what a collector was last told to act by.
        closing_since: when it was ordered to end the task; None: it was not.
        heard_at: when its last message came.
        heard: type of that message.
        notified_late: the log has said that it does not end its task.
        notified_quiet: the log has said that it sends nothing.
        killed_at: when it was ordered to be killed, because it is frozen; None: it was not.
        policy_version: version of the policy by which it acts; None: it does not act.
        shares: activity -> share of its time, from its last report.
        cpu: cores that it has kept busy, from there, too; NaN: not known.
        env_memory: what the environments of a collector hold, and by what they grow with each
            transition, in bytes; 0: it is not known.
        slowest_env: of a collector's environments, see `EnvManager.slowest`.
        pause: whether a collector was ordered to wait for learners.
        has_environments: a collector has made environments, for an earlier task.
        pauses: how often all its environments have failed.
        paused_until: when it may make new environments.
        demand: a learner's request, until all learners of its group have made theirs.
        info: a learner's last scalars.
        result: result of a learner's task, until all learners of its group have theirs.
    """

    rank: int
    state: State = State.EXPECTED
    role: str = ""
    group: str = MAIN
    host: str = ""
    pid: int = 0
    pid_space: str = ""
    gpus: int = 0
    cpus: int = 0
    has_ended: bool = False
    report: dict[str, Any] | None = None
    task: Task | None = None
    started: float = 0.0
    has_begun: bool = False
    instructions: Instructions = None
    closing_since: float | None = None
    heard_at: float = 0.0
    heard: str = "nothing"
    notified_late: bool = False
    notified_quiet: bool = False
    killed_at: float | None = None
    policy_version: int | None = None
    shares: dict[str, float] = dataclasses.field(default_factory=dict)
    cpu: float = math.nan
    env_memory: tuple[int, float] = (0, 0.0)
    slowest_env: dict[str, float] = dataclasses.field(default_factory=dict)
    pause: CollectPause = CollectPause(False)
    has_environments: bool = False
    pauses: int = 0
    paused_until: float = 0.0
    demand: DataDemand | None = None
    info: LearnInfo | None = None
    result: LearnResult | None = None

    def __str__(self) -> str:
        details = f" ({self.role}, host {self.host})" if self.role else ""
        return f"{'guest' if self.is_guest else 'rank'} {self.rank}{details}"

    @property
    def is_guest(self) -> bool:
        """True if it is a collector of another job: it comes and goes, and nobody counts on it."""
        return is_guest(self.rank)

    @property
    def is_available(self) -> bool:
        """True if it can work."""
        return self.state in (State.FREE, State.WORKING)

    @property
    def is_collecting(self) -> bool:
        """True if it does a collect task that is no evaluation."""
        return isinstance(self.task, CollectTask) and not self.task.eval_flag

    @property
    def is_evaluating(self) -> bool:
        """True if it plays an evaluation."""
        return isinstance(self.task, CollectTask) and self.task.eval_flag

    @property
    def home(self) -> tuple[str, str]:
        """Returns where its process is known by its `pid`: the host, and there the `pid_space`."""
        return self.host, self.pid_space

    def enter(self, ready: WorkerReady) -> None:
        """Note that it has reported: it is free."""
        self.state, self.role, self.group = State.FREE, ready.role, ready.player
        self.host, self.pid, self.pid_space = ready.host, ready.pid, ready.pid_space
        self.gpus, self.cpus = ready.gpus, ready.cpus

    def start(self, task: Task, now: float) -> None:
        """Take a task."""
        self.state, self.task, self.started = State.WORKING, task, now
        self.has_begun, self.closing_since, self.notified_late = False, None, False
        self.instructions = None
        if isinstance(task, CollectTask):
            self.instructions = instructions_of(task.setting, task.scheduled)

    def hear(self, kind: str, now: float) -> None:
        """Note that a message has come."""
        self.heard_at, self.heard, self.notified_quiet = now, kind, False

    def begin(self, task_id: str) -> Task | None:
        """Note that it has sent something about a task; returns it if it is the present one."""
        if self.task is None or self.task.task_id != task_id:
            return None
        self.has_begun = True
        return self.task

    def report_progress(self, progress: CollectProgress) -> None:
        """Note by which policy it acts, how it uses its time, and what its environments hold."""
        self.shares, self.cpu = progress.shares, progress.cpu
        self.policy_version = progress.policy_version
        self.env_memory = progress.env_bytes, progress.env_growth
        self.slowest_env = progress.slowest_env

    def take_instructions(self, instructions: Instructions) -> bool:
        """Note what it is told to act by; returns whether that may be new to it."""
        is_new = instructions is None or instructions != self.instructions
        self.instructions = instructions
        return is_new

    def silence_s(self, now: float) -> float:
        """Seconds since its last message, or since its task was ordered."""
        return now - (self.heard_at if self.heard_at > self.started else self.started)

    def is_overdue(self, now: float, patience_s: float) -> bool:
        """Returns whether it was ordered to end its task, and has not done so in time."""
        return self.closing_since is not None and now - self.closing_since >= patience_s


def instructions_of(setting: Settings, scheduled: Mapping[str, Any]) -> Instructions:
    """Returns a collector's instructions; None if a value is neither a number nor a text.

    Such a value, an array of a user's policy, may have no plain comparison.
    """
    is_plain = all(isinstance(value, int | float | str) for value in setting.values())
    return (dict(setting), scheduled) if is_plain else None


@dataclass(frozen=True)
class Timeouts:
    """How long rank 0 waits for what, in seconds.

    Attributes:
        start_s: for workers to report.
        stop_s: for workers to end.
        collector_task_s: for a collector to end its task, before another one is closed as well.
        learner_task_s: for a learner's first request for data.
        silence_s: for any message; then a worker counts as frozen, and is killed.
        rest_s: pause of a collector whose environments have all failed, before it makes new ones;
            each further pause is twice as long.
    """

    start_s: float = 300.0
    stop_s: float = 20.0
    collector_task_s: float = 30.0
    learner_task_s: float = 600.0
    silence_s: float = float("inf")
    rest_s: float = 300.0

    @classmethod
    def of(cls, config: ExperimentConfig) -> Timeouts:
        """Returns those of an experiment."""
        settings = config.system.coordinator
        return cls(
            start_s=settings.start_timeout_s,
            stop_s=settings.stop_timeout_s,
            collector_task_s=settings.collector_task_timeout,
            learner_task_s=settings.learner_task_timeout,
            silence_s=config.system.survival.worker_timeout_s + OWN_END_S,
            rest_s=config.env.manager.retry_window_s,
        )


@dataclass
class FaultPolicy:
    """Decides which deaths a run survives.

    Attributes:
        rules: the user's settings.
        is_possible: the MPI library lets the others live when a rank is killed.
        learners_on_gpu: learners use NCCL, whose collectives cannot be left half-done.
        each_learner_needs_a_collector: on-policy, a batch has a rollout for each learner.
    """

    rules: SurvivalConfig = dataclasses.field(default_factory=SurvivalConfig)
    is_possible: bool = False
    learners_on_gpu: bool = False
    each_learner_needs_a_collector: bool = False

    @classmethod
    def of(cls, config: ExperimentConfig, *, is_possible: bool) -> FaultPolicy:
        """Returns that of an experiment; a deterministic run survives no death."""
        rules = config.system.survival
        if config.system.deterministic:
            rules = dataclasses.replace(rules, on_collector_death="abort", on_learner_death="abort")
        return cls(rules, is_possible, config.policy.cuda, config.policy.on_policy)


@dataclass(frozen=True)
class GuestRules:
    """By which policies guests act.

    Attributes:
        max_policy_lag: iterations that one may be behind; None: any.
        policy_s: seconds between policy files while there are guests.
        without_s: the same while there are none.
    """

    max_policy_lag: int | None = None
    policy_s: float = 5.0
    without_s: float = 30.0

    @classmethod
    def of(cls, config: ExperimentConfig) -> GuestRules:
        """Returns those of an experiment, which does not get fewer files where it has guests."""
        guests, without_s = config.system.guests, config.system.storage.policy_file_s
        return cls(guests.max_policy_lag, min(guests.policy_s, without_s), without_s)


class Workers:
    """The table of all workers.

    Args:
        ranks: all ranks but rank 0.
        groups: the groups of learners.
        faults: decides which deaths the run survives.
        timeouts: how long to wait for what.
        home: rank 0's, see `Worker.home`.

    Attributes:
        guests_gone: number of guests that have left or were lost.
    """

    def __init__(
        self,
        ranks: Iterable[int],
        groups: Groups,
        faults: FaultPolicy | None = None,
        timeouts: Timeouts | None = None,
        home: tuple[str, str] = ("", ""),
    ) -> None:
        self.faults = faults if faults is not None else FaultPolicy()
        self.timeouts = timeouts if timeouts is not None else Timeouts()
        self._groups, self._home = groups, home
        self._workers = {rank: Worker(rank) for rank in sorted(ranks)}
        self._expected = set(self._workers)  # those that have not reported
        self._guests: list[Worker] = []  # by rank
        # free collectors by rank, the last freed last: those with environments, those without
        self._warm: dict[int, Worker] = {}
        self._cold: dict[int, Worker] = {}
        # guests, too, by rank: who has a collect task or an evaluation; who was ordered to end it;
        # and by group and rank: who collects, and was not
        self._busy: dict[int, Worker] = {}
        self._closing: dict[int, Worker] = {}
        self._collecting: dict[str, dict[int, Worker]] = {}
        self._watch = Watch()
        self.guests_gone = 0

    def __getitem__(self, rank: int) -> Worker:
        """The record of a rank.

        Raises:
            CommError: it is not a worker of this run.
        """
        worker = self._workers.get(rank)
        if worker is None:
            ranks = ", ".join(map(str, self._workers)) or "none"
            raise CommError(f"rank {rank} is no worker of this run; its workers are {ranks}")
        return worker

    def __contains__(self, rank: object) -> bool:
        """Whether a rank has a record."""
        return rank in self._workers

    def __iter__(self) -> Iterator[Worker]:
        """All records."""
        return iter(self._workers.values())

    # ------------------------------------------------------------------------------- coming, going

    def report(self, rank: int, ready: WorkerReady) -> None:
        """Note that a worker has reported: it is free. A guest has a record from now on."""
        if is_guest(rank):
            self._workers.setdefault(rank, Worker(rank))
        worker = self[rank]
        if worker.is_guest and not worker.role:
            bisect.insort(self._guests, worker, key=lambda guest: guest.rank)
        self._expected.discard(rank)
        self._watch.add(rank, -math.inf)
        worker.enter(ready)
        if ready.role == "learner":
            self._groups.of(ready).learners.add(worker)
        self._free(worker)

    def _free(self, worker: Worker) -> None:
        worker.state = State.FREE
        self._leave_free(worker)
        if worker.role == "collector" and not worker.is_guest:
            (self._warm if worker.has_environments else self._cold)[worker.rank] = worker

    def _leave_free(self, worker: Worker) -> None:
        self._warm.pop(worker.rank, None)
        self._cold.pop(worker.rank, None)

    def _end_task(self, worker: Worker) -> Task | None:
        """Take a worker's task from it; returns it."""
        task, worker.task, worker.policy_version = worker.task, None, None
        self._busy.pop(worker.rank, None)
        self._closing.pop(worker.rank, None)
        if isinstance(task, CollectTask):
            self._collecting.get(task.player, {}).pop(worker.rank, None)
        return task

    def _close(self, workers: Iterable[Worker], now: float) -> list[Order]:
        """Note that collect tasks or evaluations are to end; returns the orders that say so."""
        orders = []
        for worker in workers:
            worker.closing_since = now
            self._closing[worker.rank] = worker
            self._watch.add(worker.rank, now + self.timeouts.collector_task_s)
            if worker.task is not None:
                self._collecting.get(worker.task.player, {}).pop(worker.rank, None)
                orders.append(Order(worker.rank, CloseTask(worker.task.task_id)))
        return orders

    def dismiss(self, rank: int) -> Task | None:
        """A guest has gone, and its record with it; returns its task."""
        worker = self._workers.pop(rank)
        self._guests = [guest for guest in self._guests if guest is not worker]
        self.guests_gone += 1
        return self._end_task(worker)

    @property
    def all_reported(self) -> bool:
        """True if every worker has reported, or died."""
        return not self._expected

    @property
    def not_ended(self) -> list[int]:
        """Ranks that have not ended yet."""
        return [worker.rank for worker in self if not worker.has_ended]

    @property
    def reports(self) -> dict[int, dict[str, Any]]:
        """Closing figures of each rank that has said goodbye."""
        return {worker.rank: worker.report for worker in self if worker.report is not None}

    @property
    def lost(self) -> dict[int, str]:
        """Role of each rank that the run goes on without."""
        return {worker.rank: worker.role for worker in self if worker.state is State.LOST}

    @property
    def collectors_here(self) -> int:
        """Number of collectors that are free or work, without guests."""
        guests = sum(guest.task is not None for guest in self._guests)
        return len(self._warm) + len(self._cold) + len(self._busy) - guests

    @property
    def guests(self) -> list[Worker]:
        """Guests that are here."""
        return list(self._guests)

    @property
    def collectors_left(self) -> int:
        """Number of collectors that are free or work, or have not reported yet."""
        expected_learners = max(self._groups.size - len(self._groups.learners), 0)
        return self.collectors_here + max(len(self._expected) - expected_learners, 0)

    def _role_of(self, worker: Worker) -> str:
        """Returns a worker's role: until it reports, "collector" if all learners have reported."""
        learners_are_here = len(self._groups.learners) >= self._groups.size
        return worker.role or ("collector" if learners_are_here else "")

    def lose(self, rank: int) -> Task | None:
        """Note that a worker has died and the run goes on; returns its task."""
        worker = self[rank]
        task = self._end_task(worker)
        self._leave_free(worker)
        self._expected.discard(rank)
        if worker.role == "learner" and worker.state is not State.LOST:
            self._groups[worker.group].learners.lose(worker)
        worker.role, worker.state = self._role_of(worker), State.LOST
        return task

    # ------------------------------------------------------------------------------- faults

    @property
    def collectors_needed(self) -> int:
        """Fewest collectors with which the run can go on."""
        if self.faults.each_learner_needs_a_collector:
            return max(len(self._groups.learners), 1)
        return max(sum(group.learners.size > 0 for group in self._groups), 1)

    def why_not_without(self, rank: int) -> str:
        """Returns why the run cannot go on without a worker; empty: it can."""
        worker, faults = self[rank], self.faults
        if worker.state is State.PAUSED:
            return ""
        role = self._role_of(worker)
        if not role or worker.state is State.LOST:
            return "it had not reported yet"
        group = self._groups[worker.group] if role == "learner" else None
        others = (self.collectors_left if group is None else len(group.learners)) - 1
        if not others and (group is None or group.is_main):
            return f"it was the last {role}"
        if group is not None:
            rule = faults.rules.on_learner_death
        else:
            rule = faults.rules.on_collector_death
            if others < self.collectors_needed:
                if faults.each_learner_needs_a_collector:
                    return "on-policy there must be a collector to each learner"
                return "there must be a collector to each player that learns"
        if rule == "abort":
            return f"system.survival.on_{role}_death is 'abort'"
        if group is not None and others and faults.learners_on_gpu:
            return "learners on GPUs cannot form their group anew"
        return ""

    def survives_error_of(self, rank: int) -> bool:
        """Returns whether the others go on when a rank has raised."""
        is_wanted = self.faults.rules.on_worker_error == "continue"
        return is_wanted and self.faults.is_possible and not self.why_not_without(rank)

    # ------------------------------------------------------------------------------- tasks

    @property
    def free_collectors(self) -> list[Worker]:
        """Free collectors, in the order in which they should get tasks.

        Those that have environments come first, the one that became free last before the others;
        then those without, in the order in which they became free. Guests are not among them.
        """
        return [*reversed(self._warm.values()), *self._cold.values()]

    @property
    def has_free_collector(self) -> bool:
        """True if there are `free_collectors`."""
        return bool(self._warm or self._cold)

    @property
    def free_guests(self) -> list[Worker]:
        """Guests without a task: they collect, and evaluate nothing."""
        return [worker for worker in self._guests if worker.state is State.FREE]

    def _next_free(self, *, guests_first: bool) -> Worker:
        """Returns the worker that should get a task, of which there must be one."""
        if guests_first and (guests := self.free_guests):
            return guests[0]
        if self._warm:
            return next(reversed(self._warm.values()))
        return next(iter(self._cold.values())) if self._cold else self.free_guests[0]

    def start_collector(self, task: CollectTask, now: float) -> Worker:
        """Give a task to a free collector or guest, of which there must be one; returns it."""
        worker = self._next_free(guests_first=not task.eval_flag and task.lockstep is None)
        self._leave_free(worker)
        worker.start(task, now)
        self._busy[worker.rank] = worker
        if not task.eval_flag:
            self._collecting.setdefault(task.player, {})[worker.rank] = worker
        return worker

    def finish(self, rank: int, task_id: str) -> Task | None:
        """Note that a worker has ended a task; returns it, or None if it was not the worker's."""
        worker = self[rank]
        worker.policy_version = None
        if worker.task is None or worker.task.task_id != task_id:
            return None
        task, worker.has_environments = self._end_task(worker), True
        self._free(worker)
        return task

    def pause(self, rank: int, now: float) -> None:
        """Pause a collector whose environments have all failed, each time twice as long."""
        worker = self[rank]
        self._end_task(worker)
        self._leave_free(worker)
        worker.state, worker.has_environments = State.PAUSED, False
        worker.paused_until = now + self.timeouts.rest_s * 2**worker.pauses
        self._watch.add(rank, worker.paused_until)
        worker.pauses += 1

    def end_pauses(self, now: float) -> list[int]:
        """Free the collectors that have paused for long enough; returns their ranks."""
        due = self._due(now)
        rested = [w for w in due if w.state is State.PAUSED and w.paused_until <= now]
        for worker in rested:
            self._free(worker)
        return [worker.rank for worker in rested]

    # ------------------------------------------------------------------------------- collectors

    def collecting(self, group: Group) -> list[int]:
        """Ranks that collect for a group and were not ordered to end."""
        return list(self._collecting.get(group.name, ()))

    def ranks_collect(self, now: float) -> bool:
        """Returns whether a rank collects, maybe to its end, which is not overdue.

        Guests are no ranks.
        """
        patience_s = self.timeouts.collector_task_s
        ranks = (w for w in self._busy.values() if w.is_collecting and not w.is_guest)
        return any(not worker.is_overdue(now, patience_s) for worker in ranks)

    @property
    def policy_versions(self) -> dict[int, int]:
        """Rank -> version of the policy by which it acts, of the ranks that act for main."""
        main = self._groups.main.name
        return {
            rank: worker.policy_version
            for rank, worker in self._busy.items()
            if worker.policy_version is not None
            and worker.task is not None
            and worker.task.player == main
        }

    def close_oldest(self, now: float) -> list[Order]:
        """Order the oldest collect task to end; none while another is to, unless it is overdue."""
        closing = [w for w in self._closing.values() if w.is_collecting and not w.is_guest]
        patience_s = self.timeouts.collector_task_s
        if not all(worker.is_overdue(now, patience_s) for worker in closing):
            return []
        oldest = heapq.nsmallest(1, self._staying, key=lambda w: (w.started, w.rank))
        return self._close(oldest, now)

    @property
    def _staying(self) -> Iterator[Worker]:
        """Collectors with a collect task that were not ordered to end it, without guests."""
        of_groups = self._collecting.values()
        return (one for workers in of_groups for one in workers.values() if not one.is_guest)

    def close_surplus(self, space: int, now: float) -> list[Order]:
        """Order collect tasks to end, newest first, where more than `space` are under way.

        Evaluations count, and are not closed; guests do not count.
        """
        staying = len(self._busy) - len(self._closing)
        staying -= sum(one.task is not None and one.closing_since is None for one in self._guests)
        if staying <= space:
            return []
        return self._close(_newest(staying - space, self._staying), now)

    def close_collecting(self, now: float) -> list[Order]:
        """Order all collect tasks to end, those of guests, too."""
        of_groups = self._collecting.values()
        return self._close([one for workers in of_groups for one in workers.values()], now)

    def close_all(self, group: Group, now: float) -> list[Order]:
        """Order all collect tasks and evaluations of a group to end."""
        busy = (worker for _, worker in sorted(self._busy.items()))
        return self._close([w for w in busy if w.task is not None and group.has(w.task)], now)

    def close_uneven(self, now: float) -> list[Order]:
        """Order the newest collect task of the group with most collectors to end.

        That is done where another group has two collectors less, so that each group that learns
        has collectors, also after deaths.
        """
        groups = [
            self._collecting.get(group.name, {}) for group in self._groups if group.is_learning
        ]
        if len(groups) < 2:
            return []
        most = max(groups, key=len)
        if len(most) - min(map(len, groups)) < 2:
            return []
        return self._close(_newest(1, most.values()), now)

    # ------------------------------------------------------------------------------- clocks

    def excuse(self, suspended_s: float, now: float) -> None:
        """Take seconds out of all waits, in which rank 0 could not hear."""
        for worker in self._workers.values():
            worker.started = min(now, worker.started + suspended_s)
            worker.heard_at = min(now, worker.heard_at + suspended_s)
            if worker.killed_at is not None:
                worker.killed_at = min(now, worker.killed_at + suspended_s)
            if worker.closing_since is not None:
                worker.closing_since = min(now, worker.closing_since + suspended_s)

    def _due(self, now: float) -> list[Worker]:
        """Returns the workers that are late, quiet, frozen or rested, by rank.

        It looks at no worker whose time in the watch has not come.
        """
        workers = []
        for rank in self._watch.due(now):
            worker = self._workers.get(rank)
            if worker is None or worker.state is State.LOST:
                self._watch.remove(rank)
            elif (due_at := self._due_at(worker, now)) > now:
                self._watch.put_off(rank, due_at)
            else:
                workers.append(worker)
        return workers

    def _due_at(self, worker: Worker, now: float) -> float:
        """Returns when a worker is late, quiet, frozen or rested, if it sends nothing more."""
        due_at, heard_at = now + QUIET_S, max(worker.heard_at, worker.started)
        if worker.is_available or worker.state is State.PAUSED:
            due_at = min(due_at, heard_at + self.timeouts.silence_s)
        if worker.state is State.PAUSED:
            due_at = min(due_at, worker.paused_until)
        if worker.task is not None and not worker.notified_quiet:
            due_at = min(due_at, heard_at + QUIET_S)
        since = worker.closing_since
        if worker.task is not None and since is not None and not worker.notified_late:
            due_at = min(due_at, since + self.timeouts.collector_task_s)
        return due_at

    def notices(self, now: float, waiting: Container[int]) -> list[tuple[int, Notice]]:
        """Returns the ranks that are late or quiet, each once for a task or a silence.

        Args:
            now: the scheduler's clock.
            waiting: ranks that wait for an answer, and so may be quiet.
        """
        notices: list[tuple[int, Notice]] = []
        patience_s = self.timeouts.collector_task_s
        for worker in self._due(now):
            if worker.task is None:
                continue
            task_id, silence_s = worker.task.task_id, worker.silence_s(now)
            since = worker.closing_since
            if since is not None and not worker.notified_late and now - since >= patience_s:
                worker.notified_late = True
                notices.append((worker.rank, TaskLate(task_id, now - since)))
            if silence_s >= QUIET_S and worker.rank not in waiting and not worker.notified_quiet:
                worker.notified_quiet = True
                notices.append((worker.rank, RankQuiet(task_id, silence_s)))
        return notices

    def check(self, now: float) -> list[Order]:
        """Check that learners have begun their task, and that no worker is frozen.

        Returns:
            Orders to kill frozen workers, if the run can go on without them.

        Raises:
            WorkerSilentError: it cannot, or a learner has not begun in time.
        """
        frozen = [worker for worker in self._due(now) if self._is_frozen(worker, now)]
        orders = [self._kill(worker, now, frozen) for worker in frozen if worker.killed_at is None]
        for worker in frozen:
            is_killed = worker.killed_at is not None and now - worker.killed_at > OWN_END_S
            if is_killed and not worker.is_guest:  # which is lost where its heart-beat fails
                raise self._silent(worker, now)
        for worker in self._groups.learners:
            waited_s = now - worker.started
            is_waiting = worker.task is not None and not worker.has_begun
            if is_waiting and waited_s > self.timeouts.learner_task_s:
                raise WorkerSilentError(worker.rank, waited_s, "that it was ready")
        return orders

    def _is_frozen(self, worker: Worker, now: float) -> bool:
        """Returns whether a worker sends nothing any more, not even heartbeats."""
        is_here = worker.is_available or worker.state is State.PAUSED
        return is_here and worker.silence_s(now) > self.timeouts.silence_s

    def _kill(self, worker: Worker, now: float, frozen: list[Worker]) -> Order:
        """Returns the order to kill a worker, for a living rank on its host.

        Raises:
            WorkerSilentError: there is none, or the run cannot go on without the worker.
        """
        if worker.is_guest:  # it hangs, but its messages are heard
            worker.killed_at = now
            return Order(worker.rank, KillFrozen(worker.rank, worker.pid))
        frozen_ranks = {one.rank for one in frozen}
        alive = (w for w in self if w.state is not State.LOST and w.rank not in frozen_ranks)
        at_home = [w.rank for w in alive if w.home == worker.home and not w.is_guest]
        killers = [COORDINATOR_RANK] if worker.home == self._home else at_home
        if not (killers and self.faults.is_possible) or self.why_not_without(worker.rank):
            raise self._silent(worker, now)
        worker.killed_at = now
        return Order(killers[0], KillFrozen(worker.rank, worker.pid))

    def _silent(self, worker: Worker, now: float) -> WorkerSilentError:
        heard = worker.heard if worker.heard_at > worker.started else "nothing"
        return WorkerSilentError(worker.rank, worker.silence_s(now), heard)


class Watch:
    """Says of whom something may be due.

    Each rank has one time, before which nothing is due of it. It may be too early, since a message
    moves what is due and leaves the heap alone: a rank that is looked at too early is put off, see
    `put_off`.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._at: dict[int, float] = {}  # rank -> its time; other entries of the heap are void
        self._due: set[int] = set()

    def add(self, rank: int, at: float) -> None:
        """Look at a rank at a time, or earlier if that was said before."""
        if rank not in self._due and at < self._at.get(rank, math.inf):
            self._at[rank] = at
            heapq.heappush(self._heap, (at, rank))

    def due(self, now: float) -> list[int]:
        """Returns the ranks whose time has come, by rank; again until each is put off."""
        while self._heap and self._heap[0][0] <= now:
            at, rank = heapq.heappop(self._heap)
            if self._at.get(rank) == at:
                del self._at[rank]
                self._due.add(rank)
        return sorted(self._due)

    def put_off(self, rank: int, at: float) -> None:
        """Look at a rank whose time had come at a later one."""
        self._due.discard(rank)
        self.add(rank, at)

    def remove(self, rank: int) -> None:
        """Do not look at a rank any more whose time had come."""
        self._due.discard(rank)


def _newest(count: int, workers: Iterable[Worker]) -> list[Worker]:
    """Returns so many workers, those whose tasks were ordered last."""
    return heapq.nsmallest(count, workers, key=lambda worker: (-worker.started, worker.rank))
