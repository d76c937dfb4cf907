"""Shows a run to people: curves, log lines, the progress line, the status file, the summary.

`RunRecord` keeps numbers, and writes curves and log lines. `RunView` shows the rest. Neither
decides anything, and neither removes a file.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from hpcdi.comm.failure import headline
from hpcdi.comm.messages import (
    BlockAdmitted,
    BlockReady,
    BlockStored,
    CollectProgress,
    Goodbye,
    Heartbeat,
    LearnResult,
    Message,
    RankLost,
    SnapshotPart,
    TaskReturned,
    WorkerFailed,
    WorkerReady,
)
from hpcdi.config.schema import ExperimentConfig, offline_iterations
from hpcdi.dataclass import dataclass
from hpcdi.league.view import LeagueView
from hpcdi.replay.manager import ReplayFigures
from hpcdi.roles.context import COORDINATOR_RANK
from hpcdi.roles.coordinator.bottleneck import Rank, Ranks, RunSeen, Used, advice_on
from hpcdi.roles.coordinator.commander import RunLimits
from hpcdi.roles.coordinator.groups import Group, Groups
from hpcdi.roles.coordinator.loggers import RunWriter
from hpcdi.roles.coordinator.scheduler import Phase, Scheduler
from hpcdi.roles.coordinator.snapshots import SnapshotResult
from hpcdi.roles.coordinator.workers import (
    BlockLost,
    ComesBack,
    DiesAlone,
    Evaluated,
    Notice,
    RankQuiet,
    State,
    TaskLate,
)
from hpcdi.roles.evaluations import evaluates_as
from hpcdi.store.layout import RunLayout
from hpcdi.store.status import StatusFile
from hpcdi.types import GIVEN, ScalarWriter, collector_of, is_guest
from hpcdi.utils.disk import advice
from hpcdi.utils.log import LOGGER
from hpcdi.utils.metrics import (
    Distribution,
    PartCurves,
    Rate,
    counted,
    human_bytes,
    human_count,
    human_return,
    human_time,
)
from hpcdi.utils.progress import Status, StatusLine
from hpcdi.utils.timer import RoleMeter

_SCALARS_EVERY_S, _SCALARS_SHARE = 1.0, 1 / 3600
"""Curves have a point a second for an hour, then ever fewer: one after so much of the time so far.
In a day that is 15,000 instead of 86,400."""
_RANKS_DRAWN = 256
"""Of more ranks only the learners have curves of their own: nobody looks at thousands."""
_ADVICE_EVERY_S = 10.0
_LOSSES = 400


@dataclass
class DataFlow:
    """How data flow, in this process's part of the run.

    Attributes:
        env_steps: of all groups, by time.
        train_iters: of the main group, by time.
        blocks: that were written to shards.
        data_bytes: of these.
        latency: seconds from a full block, of this start, to its rows in a learner's memory.
        learning_since: when the first train iteration was seen (seconds since the epoch), and the
            env steps then.
        resumed_at: environment steps and train iterations of the earlier starts of the run.
        restored: ids of the blocks of these.
    """

    env_steps: Rate = field(default_factory=Rate)
    train_iters: Rate = field(default_factory=Rate)
    latency: Distribution = field(default_factory=Distribution)
    blocks: int = 0
    data_bytes: int = 0
    learning_since: tuple[float, int] | None = None
    resumed_at: tuple[int, int] = (0, 0)
    restored: frozenset[int] = frozenset()


class RunRecord:
    """Sees every message that the scheduler handles; writes log lines, and curves once a second.

    Args:
        writer: takes the curves; None: none are written.
        over_iterations: draw all of them over train iterations: the run begins offline.
    """

    def __init__(self, writer: ScalarWriter | None, *, over_iterations: bool = False) -> None:
        self._over_iterations = over_iterations
        self.flow = DataFlow()
        self.losses: deque[float] = deque(maxlen=_LOSSES)  # of the main group's learners
        self._writer = writer
        self._begun, self._written = float("inf"), float("-inf")
        self._evaluations: dict[str, int] = {}  # of each group, whose curves are written

    def add_scalar(self, tag: str, value: float, global_step: int) -> None:
        """Add a point to a curve, as long as curves are written."""
        if self._writer is not None:
            self._writer.add_scalar(tag, value, global_step)

    def close(self, run: Scheduler) -> None:
        """Write what learners have sent last; later messages are only counted."""
        self.write_learners(run.groups)
        self._writer = None

    def observe(self, rank: int, message: Message | Notice) -> None:
        """Take a message or a notice."""
        match message:
            case BlockStored() | BlockReady(capacity=0):
                self.flow.blocks += 1
                self.flow.data_bytes += message.shard.n_bytes
            case CollectProgress() | Heartbeat() | Evaluated():  # the former thousands a second
                pass
            case BlockAdmitted():
                is_given = collector_of(message.block_id) == GIVEN
                has_waited = is_given or message.block_id in self.flow.restored  # for the start
                if not (message.error or has_waited):
                    self.flow.latency.add(message.latency_s)
            case TaskLate() | RankQuiet() | DiesAlone() | ComesBack() | BlockLost():
                self._warn(rank, message)
            case _:
                self._log_life(rank, message)

    def look(self, run: Scheduler, now: float) -> None:
        """Write the curves that are due, at the end all of them."""
        groups, env_steps = run.groups, run.groups.env_steps
        train_iter = groups.main.train_iter
        if train_iter and self.flow.learning_since is None:
            self.flow.learning_since = (time.time(), env_steps)
        self._write_evaluations(groups)
        self._begun = min(self._begun, now)
        every_s = max(_SCALARS_EVERY_S, _SCALARS_SHARE * (now - self._begun))
        if now - self._written < every_s and not run.finished:
            return
        self._written = now
        self.write_learners(groups)
        self.flow.env_steps.add(now, env_steps)
        self.flow.train_iters.add(now, train_iter)
        at = self.axis(train_iter, env_steps)
        if at == 0:
            return
        for name, value in self._scalars(run).items():
            self.add_scalar(name, value, at)
        for group in groups:
            if group.recent:
                self._write_episodes(group, groups)

    def _write_episodes(self, group: Group, groups: Groups) -> None:
        returns = np.asarray(group.returns)
        values = {
            "reward_mean": returns.mean(),
            "reward_std": returns.std(),
            "reward_max": returns.max(),
            "reward_min": returns.min(),
            "avg_step_per_episode": np.mean([length for _, length in group.recent]),
            "total_envstep_count": group.env_steps,
            **_infos(group.figures),
        }
        if group.is_main:  # of all together
            values["episode_count"] = groups.episodes
            values["avg_envstep_per_sec"] = self.flow.env_steps.per_second()
            values["total_envstep_count"] = groups.env_steps
        at = self.axis(group.train_iter, group.env_steps)
        self._curves("collector", group).add(values, group.train_iter, at)

    def _write_evaluations(self, groups: Groups) -> None:
        """Write and log the evaluations that have come since the last look."""
        for group in groups:
            for evaluation in group.evaluations[self._evaluations.get(group.name, 0) :]:
                values = {
                    "reward_mean": evaluation.mean,
                    "reward_std": evaluation.std,
                    "reward_max": evaluation.highest,
                    "reward_min": evaluation.lowest,
                    "episode_count": evaluation.episodes,
                    "evaluate_time": evaluation.took_s,
                    **_infos(evaluation.figures),
                }
                curves = self._curves("evaluator", group)
                version = evaluation.policy_version
                curves.add(values, version, self.axis(version, evaluation.env_steps))
                about = {"evaluation": vars(evaluation), "player": group.name}
                LOGGER.info("evaluation", extra=about)
            self._evaluations[group.name] = len(group.evaluations)

    def write_learners(self, groups: Groups) -> None:
        """Write the learners' last scalars, if they are not written yet."""
        for group in groups:
            info, group.info = group.info, None
            if info is not None:
                if group.is_main and "total_loss" in info.scalars:
                    self.losses.append(info.scalars["total_loss"])
                curves = self._curves("learner", group)
                at = self.axis(info.train_iter, group.env_steps)
                curves.add(info.scalars, info.train_iter, at)

    def axis(self, iterations: int, env_steps: int) -> int:
        """Returns where a point is drawn: over iterations in a run that begins offline."""
        return iterations if self._over_iterations else env_steps

    def _curves(self, part: str, group: Group) -> PartCurves:
        """Returns the curves of a part, of another group than the main one under its name."""
        return PartCurves(self, part if group.is_main else f"{group.name}_{part}")

    def snapshot(self, result: SnapshotResult, env_steps: int) -> None:
        """A snapshot is whole, or could not be written."""
        at = self.axis(result.snapshot.train_iter, env_steps)
        snapshot = result.snapshot.name
        if result.error:
            error = result.error
            LOGGER.warning("%s could not be written: %s%s", snapshot, error, advice(error))
            return
        LOGGER.info("snapshot", extra={"snapshot": {"name": snapshot, **result.figures}})
        for name, value in result.figures.items():
            self.add_scalar(f"perf/snapshot_{name}", value, at)

    def _scalars(self, run: Scheduler) -> dict[str, float]:
        figures = run.groups.replay_figures()
        scalars = {
            "perf/env_steps_per_s": self.flow.env_steps.per_second(),
            "perf/train_iters_per_s": self.flow.train_iters.per_second(),
            "perf/sample_insert_ratio": _samples_per_transition(figures),
            "perf/policy_lag": staleness(run) or 0,
            "perf/buffer_items": figures.items,
            "health/blocks_lost": figures.blocks_lost,
            "health/blocks_skipped": figures.blocks_skipped,
            "health/priorities_stale": sum(group.priorities_stale for group in run.groups),
        }
        told = [w for w in run.workers if "wait" in w.shares and not w.is_guest]  # who come and go
        for worker in told if len(told) <= _RANKS_DRAWN else run.groups.learners:
            if "wait" in worker.shares:
                scalars[f"perf/idle_frac/rank{worker.rank}"] = worker.shares["wait"]
        idle = [w.shares["wait"] for w in told if w.role == "learner"]
        if idle:
            scalars["perf/learner_idle"] = sum(idle) / len(idle)
        if len(self.flow.latency):
            scalars["perf/block_latency_p50_s"] = self.flow.latency.percentile(50)
        return scalars

    def _warn(self, rank: int, notice: Notice) -> None:
        match notice:
            case TaskLate():
                LOGGER.warning(
                    "rank %d was ordered to end task %s %.0f s ago and has not; another is asked",
                    rank,
                    notice.task_id,
                    notice.waited_s,
                )
            case RankQuiet():
                LOGGER.warning(
                    "rank %d has done nothing for task %s for %.0f s; does it hang? SIGUSR1 shows "
                    "its threads, its log is log/rank%05d.jsonl",
                    rank,
                    notice.task_id,
                    notice.waited_s,
                    rank,
                )
            case DiesAlone():
                LOGGER.warning("%s\nthe others go on", headline(notice.failure, rank))
            case ComesBack():
                LOGGER.info("rank %d may make its environments anew", rank)
            case BlockLost():
                LOGGER.warning("rank %d lost a block: %s", rank, notice.error)

    def _log_life(self, rank: int, message: Message) -> None:
        about: dict[str, Any] = {"about_rank": rank}
        match message:
            case RankLost() if is_guest(rank):
                LOGGER.info("guest %d is lost: its heart-beat has ended", rank, extra=about)
            case RankLost():
                LOGGER.warning(
                    "rank %d has died: killed, out of memory, or ended by a library",
                    rank,
                    extra=about,
                )
            case WorkerReady():
                LOGGER.info("worker ready", extra={**about, "worker": vars(message)})
            case WorkerFailed():
                about["worker"] = vars(message)  # its role and host are not this rank's
                LOGGER.info("worker failed: %s", message.error, extra=about)
            case TaskReturned():
                LOGGER.warning(
                    "rank %d has no environments left; others do its work: %s",
                    rank,
                    message.reason.partition("\n")[0],  # its own log has the traceback
                )
            case Goodbye():
                LOGGER.info("goodbye", extra={**about, "report": message.report})
            case LearnResult():
                LOGGER.info("learner task ended", extra={**about, "train_iter": message.train_iter})


class RunView:
    """Shows a run: progress line, status file, league, summary.

    Args:
        config: the experiment.
        layout: the run folder; None: keep numbers, write and show nothing.
        is_terminal: whether a person watches the progress line.
        cores: that all ranks have together on their host; None: they are on several.
        in_turns: collecting and learning take turns, in one process.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        layout: RunLayout | None,
        *,
        is_terminal: bool,
        cores: int | None = None,
        in_turns: bool = False,
    ) -> None:
        self.meter = RoleMeter("coordinator")
        self._config, self._cores, self._in_turns = config, cores, in_turns
        self._advice = dict[str, str]()  # by rule
        self._evaluated, self._evaluating = 0, list[float]()  # number; when others began
        self._advised, self._advice_at = set[str](), 0.0  # rules that have spoken; when to look
        self._warm_up: Used | None = None  # of all ranks, as learning began
        self._started = time.monotonic()
        self._writer = RunWriter(config, layout) if layout is not None else None
        self._record = RunRecord(
            self._writer.by_tag if self._writer is not None else None,
            over_iterations=offline_iterations(config) > 0,
        )
        self._recorded = 0  # evaluations of all players that are in the run's curves for sure
        self._line: StatusLine | None = None
        self._file: StatusFile | None = None
        self._phase: Phase | None = None  # that status.json says
        self._league: LeagueView | None = None
        self._is_failure_shown = False
        if layout is None or self._writer is None:
            return
        self._league = LeagueView(layout.league_file, self._writer, self._writer.event_file)
        limits = dataclasses.astuple(RunLimits.of(config))
        interval_s = config.system.coordinator.progress_interval
        self._file = StatusFile(
            layout.status_file, limits, config.env.stop_value, evaluates_as(config)
        )
        self._line = StatusLine(
            is_terminal=is_terminal,
            interval_s=interval_s,
            limits=limits,
            started=self._started,
            evaluated_before=self._file.evaluated_before,
        )

    @property
    def curves(self) -> RunRecord:
        """Takes the curves of others, until the view is closed."""
        return self._record

    def observe(self, rank: int, message: Message | Notice) -> None:
        """Take a message that the scheduler is about to handle, or a notice."""
        self._record.observe(rank, message)
        if isinstance(message, SnapshotPart) and self._writer is not None:
            self._writer.record()

    def resumed(self, run: Scheduler, blocks: Iterable[int] = ()) -> None:
        """Note what a run that is resumed has done in its earlier starts.

        Args:
            run: the run.
            blocks: ids of those that it has published.
        """
        self._record.flow.resumed_at = run.groups.env_steps, run.groups.main.train_iter
        self._record.flow.restored = frozenset(blocks)

    def look(self, run: Scheduler) -> None:
        """Write and show what is due of a run, as it is now."""
        now = time.monotonic()
        self._record.look(run, now)
        count = sum(len(group.evaluations) for group in run.groups)
        if count > self._recorded and self._writer is not None:
            self._recorded = count
            self._writer.record()
        self._advise(run, now)
        if self._line is not None and self._file is not None:
            evaluations = run.groups.main.evaluations
            is_news, self._phase = run.finished or run.phase is not self._phase, run.phase

            def status() -> Status:
                return status_of(run, self._record, list(self._advice.values()))

            self._line.refresh(status, evaluations, now)
            best = run.groups.main.best_evaluation
            self._file.refresh(status, evaluations, now, best=best, at_once=is_news)
        if self._league is not None and run.league is not None:
            learners = {group.name: group.learners.ranks for group in run.groups}
            self._league.refresh(
                run.league, run.groups.env_steps, now, learners=learners, at_once=run.finished
            )
        self._show_failure(run)

    def snapshot(self, result: SnapshotResult, run: Scheduler) -> None:
        """A snapshot has ended."""
        self._record.snapshot(result, run.groups.env_steps)
        if self._line is not None and result.is_worth_a_line:
            self._line.say(str(result))

    def summary(self, run: Scheduler) -> list[str]:
        """Closing lines for people."""
        now = time.monotonic()
        self._advice = advice_on(self._seen(run, now))
        closing = summary(run, self._record, now - self._started, self.meter.report())
        return closing + [f"  advice       {text}" for text in self._advice.values()]

    def _advise(self, run: Scheduler, now: float) -> None:
        """Say once what holds the run back, as soon as it does."""
        if self._warm_up is None and self._record.flow.learning_since is not None:
            self._warm_up = self._used(run, now)
        if self._line is None or not run.is_on or now < self._advice_at:
            return
        self._advice_at = now + _ADVICE_EVERY_S
        self._advice = advice_on(self._seen(run, now))
        for kind, text in self._advice.items():
            if kind not in self._advised:
                self._advised.add(kind)
                self._line.say(f"advice: {text}")

    def _used(self, run: Scheduler, now: float) -> Used:
        """What all ranks have used so far."""
        ranks = {COORDINATOR_RANK: Rank("coordinator", self.meter.shares(), self.meter.cpu())}
        for one in run.workers:
            if one.shares and not one.is_guest:
                ranks[one.rank] = Rank(one.role, one.shares, one.cpu, one.slowest_env)
        over = [one.took_s for group in run.groups for one in group.evaluations]
        begun = [worker.started for worker in run.workers if worker.is_evaluating]
        if not run.is_on and len(over) == self._evaluated:
            begun = self._evaluating  # at the last look: the run's end has cut it
        self._evaluated, self._evaluating = len(over), begun
        evaluating_s = sum(over) + sum(now - began for began in begun)
        return Used(now - self._started, Ranks.of(ranks), evaluating_s, len(over), len(begun))

    def _seen(self, run: Scheduler, now: float) -> RunSeen:
        used, replay = self._used(run, now), run.groups.replay_figures()
        return RunSeen(
            self._config,
            used.since(self._warm_up) if self._warm_up is not None else used,
            has_learnt=self._warm_up is not None,
            samples_per_transition=_samples_per_transition(replay),
            updates_per_s=self._record.flow.train_iters.per_second(),
            cores=self._cores,
            takes_turns=self._in_turns,
            losses=list(self._record.losses),
            largest_return=max(map(abs, run.groups.main.returns), default=0.0),
        )

    def figures(self, run: Scheduler) -> dict[str, Any]:
        """Closing figures for programs: plain data."""
        groups, replay, flow = run.groups, run.groups.replay_figures(), self._record.flow
        return {
            "env_steps": groups.env_steps,
            "train_iter": groups.main.train_iter,
            "episodes": groups.episodes,
            "players": {
                group.name: {"env_steps": group.env_steps, "train_iter": group.train_iter}
                for group in groups
            },
            "elapsed_s": time.monotonic() - self._started,
            "ended_at": time.time(),
            "learning_since": flow.learning_since,
            "items_admitted": replay.admitted,
            "samples_drawn": replay.drawn,
            "blocks": flow.blocks,
            "blocks_lost": replay.blocks_lost,
            "blocks_skipped": replay.blocks_skipped,
            "blocks_unwritten": run.unwritten,
            "data_bytes": flow.data_bytes,
            "block_latency_p50_s": flow.latency.percentile(50) if flow.latency else None,
            "block_latency_p99_s": flow.latency.percentile(99) if flow.latency else None,
            "advice": self._advice,
            "evaluations": [vars(evaluation) for evaluation in groups.main.evaluations],
            "ranks": {
                "0": self.meter.report(),
                **{str(r): v for r, v in run.workers.reports.items()},
            },
        }

    def close(self, run: Scheduler) -> None:
        """Write out curves, with what learners have sent last. Idempotent."""
        if self._writer is not None:
            self._record.close(run)
            self._writer.close(run.outcome.state if run.outcome is not None else "stopped")
            self._writer = None

    def _show_failure(self, run: Scheduler) -> None:
        outcome = run.outcome
        if outcome is not None and outcome.failure is not None and not self._is_failure_shown:
            self._is_failure_shown = True
            rank, failure = outcome.failure
            sys.stdout.flush()
            sys.stderr.write(f"\n{headline(failure, rank)}\n")
            sys.stderr.flush()


def staleness(run: Scheduler) -> int | None:
    """Train iterations by which the oldest acting policy is behind the main group's learners.

    None: nobody acts.
    """
    acting = run.workers.policy_versions.values()
    return max(0, run.groups.main.train_iter - min(acting)) if acting else None


def _samples_per_transition(replay: ReplayFigures) -> float:
    """Returns what `learn.replay_ratio` sets: samples that are drawn for an environment step."""
    return replay.drawn / max(replay.steps, 1)


def _infos(figures: Mapping[str, float]) -> dict[str, float]:
    """What environments said of episodes, as scalars of a part."""
    return {f"info/{name}": value for name, value in figures.items()}


def status_of(run: Scheduler, record: RunRecord, said: Sequence[str] = ()) -> Status:
    """How a run stands, for the progress line and the status file."""
    groups, replay, flow = run.groups, run.groups.replay_figures(), record.flow
    before = list[str]()
    if replay.capacity:
        before.append(f"buffer {human_count(replay.items)}/{human_count(replay.capacity)}")
    lag = staleness(run)
    if lag is not None:
        before.append(f"staleness {lag}")
    before += [f"{group.name} train {human_count(group.train_iter)}" for group in groups.others]
    after = [] if run.is_on else ["ending"]
    if blocked := _blocked(run):
        after.append(blocked)
    main = groups.main
    if any(worker.is_evaluating for worker in run.workers):
        after.append("evaluating")
    return Status(
        (groups.env_steps, flow.env_steps.per_second()),
        (main.train_iter, flow.train_iters.per_second()),
        main.returns,
        main.evaluations[-1].mean if main.evaluations else None,
        (before, after),
        {
            **_facts(run, replay),
            "staleness": lag or 0,
            "data_bytes": flow.data_bytes,
            "advice": list(said),
        },
    )


def _blocked(run: Scheduler) -> str:
    """Who waits for whom, and why; empty before all are there, and at the end."""
    return run.groups.blocked if run.phase is Phase.RUNNING else ""


def _facts(run: Scheduler, replay: ReplayFigures) -> dict[str, Any]:
    """Further entries of the status file."""
    outcome = run.outcome
    facts: dict[str, Any] = {
        "phase": run.phase.value,
        "episodes": run.groups.episodes,
        "idle": {
            worker.rank: worker.shares.get("wait", 0.0)
            for worker in run.workers
            if worker.shares and worker.state is not State.LOST
        },
        "env_memory": {
            worker.rank: {"bytes": worker.env_memory[0], "bytes_a_step": worker.env_memory[1]}
            for worker in run.workers
            if worker.env_memory[0] and worker.state is not State.LOST
        },
        "lost": dict(run.workers.lost),
        "collectors": run.collectors,
        "figures": run.groups.main.figures,
    }
    if run.workers.guests or run.workers.guests_gone:
        facts["guests"] = {
            "here": {
                guest.rank: {"host": guest.host, "pid": guest.pid, "policy": guest.policy_version}
                for guest in run.workers.guests
            },
            "gone": run.workers.guests_gone,
            "env_steps": run.guest_steps,
        }
    if run.groups.others:
        facts["players"] = {group.name: _facts_of(group, run) for group in run.groups.others}
    if replay.capacity:
        held, capacity = replay.items, replay.capacity
        facts["buffer"] = {"held": held, "capacity": capacity, "blocked": _blocked(run)}
    if outcome is not None and outcome.failure is not None:
        rank, failure = outcome.failure
        facts["error"] = {"rank": rank, **vars(failure)}
    return facts


def _facts_of(group: Group, run: Scheduler) -> dict[str, Any]:
    """How a group stands that learns beside the main one."""
    returns = group.returns
    return {
        "learners": group.learners.ranks,
        "collectors": len(run.workers.collecting(group)),
        "env_steps": group.env_steps,
        "train_iter": group.train_iter,
        "return_mean": sum(returns) / len(returns) if returns else None,
    }


def summary(
    run: Scheduler, record: RunRecord, elapsed_s: float, report: dict[str, Any]
) -> list[str]:
    """Closing lines: what was done, how fast, and who waited."""
    groups, replay, flow = run.groups, run.groups.replay_figures(), record.flow
    train_iter = groups.main.train_iter
    learnable = (
        f"; from a full block to learnable p50 {1e3 * flow.latency.percentile(50):.0f} ms"
        if flow.latency
        else ""
    )
    env_steps_here, train_iter_here = _of_this_start(groups, flow.resumed_at)
    lines = [
        f"  {human_count(groups.env_steps)} env steps{env_steps_here} and "
        f"{human_count(train_iter)} train iterations{train_iter_here} in "
        f"{human_time(elapsed_s)}; {groups.episodes} episodes; "
        f"{_samples_per_transition(replay):.2f} samples drawn per transition"
    ]
    lines += [
        f"  {group.name}: {human_count(group.env_steps)} of these env steps, and "
        f"{human_count(group.train_iter)} train iterations of its own"
        for group in groups.others
    ]
    if flow.blocks or flow.latency:
        blocks = f"{counted(flow.blocks, 'block')}, {human_bytes(flow.data_bytes)}"
        lines.append(f"  data: {blocks if flow.blocks else 'none was written'}{learnable}")
    if train_iter == 0:
        lines.append("  nothing was learnt: the run ended before the first train iteration")
    best = groups.main.best_evaluation
    if best is not None:
        lines.append(
            f"  best evaluation: mean return {human_return(best.mean)}"
            f"{f' at env step {human_count(best.env_steps)}' if best.env_steps else ''}, policy of "
            f"iteration {best.policy_version}"
        )
    if replay.blocks_lost:
        lines.append(
            f"  {counted(replay.blocks_lost, 'block')} could not be read; the log says why"
        )
    if run.unwritten:
        lines.append(
            f"  {counted(run.unwritten, 'block')} died with their collectors before they were "
            "written: their steps are not counted"
        )
    if replay.blocks_skipped:
        lines.append(
            f"  {counted(replay.blocks_skipped, 'block')} left out: they came faster than learners "
            "read them, or are of players that are not here, or of a guest's older policy"
        )
    guests = len(run.workers.guests) + run.workers.guests_gone
    if guests:
        steps = human_count(run.guest_steps)
        lines.append(f"  {counted(guests, 'guest')} came, and made {steps} of these env steps")
    lines += _health(run.workers.reports.values())
    reports = {COORDINATOR_RANK: report, **run.workers.reports}
    return lines + [f"  rank {rank:<4} {_activity(one)}" for rank, one in reports.items()]


def _of_this_start(groups: Groups, before: tuple[int, int]) -> tuple[str, str]:
    """Says how many environment steps and train iterations are of this start of the run.

    Empty where it is the only one: the time beside them is that of this start.
    """
    if not any(before):
        return "", ""
    env_steps, train_iter = groups.env_steps - before[0], groups.main.train_iter - before[1]
    return f" ({human_count(env_steps)} in this start)", f" ({human_count(train_iter)})"


def _health(reports: Iterable[dict[str, Any]]) -> list[str]:
    """Lines about failed environments and full disks; none where there were none."""
    total = Counter[str]()
    for report in reports:
        names = ("env_failures", "episodes_dropped", "envs_retired", "blocks_lost")
        total.update({name: int(report.get(name, 0)) for name in names})
    lines = []
    if total["env_failures"]:
        lines.append(
            f"  {counted(total['env_failures'], 'environment failure')}: "
            f"{counted(total['episodes_dropped'], 'unfinished episode')} dropped, "
            f"{counted(total['envs_retired'], 'environment')} retired"
        )
    if total["blocks_lost"]:
        lines.append(f"  {counted(total['blocks_lost'], 'block')} found no room on the disk")
    return lines


def _activity(report: dict[str, Any]) -> str:
    shares = sorted(report.get("shares", {}).items(), key=lambda item: -item[1])
    split = ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= 0.005)
    return f"{report.get('role', '?'):<10} cpu {report.get('cpu', 0.0):4.0%}  {split}"
