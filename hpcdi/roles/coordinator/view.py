"""Shows a run to people: curves, log lines, the progress line, the status file, the summary.

`RunRecord` keeps numbers, and writes curves and log lines. `RunView` shows the rest. Neither
decides anything, and neither removes a file.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from hpcdi.comm.failure import headline
from hpcdi.comm.messages import (
    BlockAdmitted,
    BlockReady,
    CollectProgress,
    CollectResult,
    Goodbye,
    LearnInfo,
    LearnResult,
    Message,
    RankLost,
    TaskReturned,
    WorkerFailed,
    WorkerReady,
)
from hpcdi.config.schema import ExperimentConfig
from hpcdi.league.view import LeagueView
from hpcdi.roles.coordinator.scheduler import Phase, RunState
from hpcdi.roles.coordinator.snapshots import SnapshotResult
from hpcdi.roles.coordinator.workers import (
    ComesBack,
    DiesAlone,
    Notice,
    RankQuiet,
    TaskLate,
)
from hpcdi.store.layout import RunLayout
from hpcdi.store.status import StatusFile
from hpcdi.types import MAIN
from hpcdi.utils.curves import TensorBoardWriter
from hpcdi.utils.log import LOGGER
from hpcdi.utils.metrics import (
    Curves,
    Distribution,
    Rate,
    counted,
    evaluation_scalars,
    human_bytes,
    human_count,
    human_time,
)
from hpcdi.utils.progress import Evaluation, Status, StatusLine, best_of
from hpcdi.utils.timer import RoleMeter

_EPISODE_WINDOW = 100
_SCALARS_EVERY_S = 1.0
OVERVIEW = {
    "mean return over env steps": [
        "(.*_)?evaluator_step/reward_mean",
        "(.*_)?collector_step/reward_mean",
    ],
    "loss": ["(.*_)?learner_step/total_loss"],
    "environment steps a second": ["perf/env_steps_per_s"],
    "train iterations a second": ["perf/train_iters_per_s"],
    "waiting, share of a rank's time": ["perf/idle_frac/.*"],
    "staleness: versions between a sample's policy and the newest": ["perf/policy_lag"],
    "samples drawn for each transition": ["perf/sample_insert_ratio"],
    "blocks that were lost or left out": ["health/blocks_.*"],
}
"""TensorBoard's first page of a run: titles of charts, and their curves."""


class ScalarWriter(Protocol):
    """Takes curves; `TensorBoardWriter` does."""

    def add_scalar(self, tag: str, value: float, global_step: int) -> None:
        """Add a point."""
        ...


@dataclass
class Traffic:
    """Figures of the flow of data.

    Attributes:
        latency: seconds from a full block to its rows in a learner's memory.
        learning_since: when the first train iteration was seen (seconds since the epoch), and the
            env steps then.
    """

    env_steps: Rate = field(default_factory=Rate)
    train_iters: Rate = field(default_factory=Rate)
    latency: Distribution = field(default_factory=Distribution)
    blocks: int = 0
    data_bytes: int = 0
    learning_since: tuple[float, int] | None = None


class RunRecord:
    """Sees every message that the scheduler handles; writes curves about once a second.

    Args:
        writer: takes the curves; None: none are written.
        returns: returns those of the last episodes, where a collector of this process counts them
            and writes their curves.
    """

    def __init__(
        self, writer: ScalarWriter | None, returns: Callable[[], list[float]] | None = None
    ) -> None:
        self.evaluations: list[Evaluation] = []
        """Of the main player."""
        self.traffic = Traffic()
        self.shares: dict[int, dict[str, float]] = {}
        self._episodes: dict[str, deque[tuple[float, int]]] = {}  # by player
        self._writer, self._returns = writer, returns
        self._steps: dict[str, int] = {}  # environment steps by player, as of the last look
        self._written = float("-inf")
        # by player; curves have a point a second, however fast it goes
        self._learnt: dict[str, LearnInfo] = {}

    @property
    def returns(self) -> list[float]:
        """Returns of the main player's last hundred episodes that were collected."""
        return self.returns_of(MAIN)

    def returns_of(self, player: str) -> list[float]:
        """Returns of a player's last hundred episodes that were collected."""
        if self._returns is not None:
            return self._returns()
        return [float(episode_return) for episode_return, _ in self._episodes.get(player, ())]

    def add_scalar(self, tag: str, value: float, global_step: int) -> None:
        """Add a point to a curve, as long as curves are written."""
        if self._writer is not None:
            self._writer.add_scalar(tag, value, global_step)

    def close(self) -> None:
        """Write what the learner has sent last; later messages are only counted."""
        self.write_learner()
        self._writer = None

    def observe(self, rank: int, message: Message | Notice) -> None:
        """Take a message or a notice."""
        match message:
            case CollectProgress():
                empty = deque[tuple[float, int]](maxlen=_EPISODE_WINDOW)
                self._episodes.setdefault(message.player, empty).extend(
                    zip(message.episode_returns, message.episode_lengths, strict=True)
                )
                self.shares[rank] = message.shares
            case LearnInfo():
                self.shares[rank] = message.shares
                if message.train_iter:  # 0: not all learners have been heard yet
                    self._learnt[message.player] = message
            case CollectResult() if message.is_evaluation:
                self._evaluated(message)
            case BlockReady():
                self.traffic.blocks += 1
                self.traffic.data_bytes += message.shard.n_bytes
            case BlockAdmitted() if message.error:
                LOGGER.warning("rank %d lost a block: %s", rank, message.error)
            case BlockAdmitted():
                self.traffic.latency.add(message.latency_s)
            case TaskLate() | RankQuiet() | DiesAlone() | ComesBack():
                self._warn(rank, message)
            case _:
                self._log_life(rank, message)

    def look(self, run: RunState, now: float) -> None:
        """Write the curves that are due, at the end all of them."""
        counters = run.counters
        self._steps = counters.steps_of
        if counters.train_iter and self.traffic.learning_since is None:
            self.traffic.learning_since = (time.time(), counters.env_steps)
        if now - self._written < _SCALARS_EVERY_S and not run.finished:
            return
        self._written = now
        self.write_learner()
        self.traffic.env_steps.add(now, counters.env_steps)
        self.traffic.train_iters.add(now, counters.train_iter)
        if counters.env_steps == 0:
            return
        for name, value in self._scalars(run).items():
            self.add_scalar(name, value, counters.env_steps)
        for player, episodes in self._episodes.items():
            if not episodes:
                continue
            returns = np.asarray(self.returns_of(player))
            values = {
                "reward_mean": returns.mean(),
                "reward_std": returns.std(),
                "reward_max": returns.max(),
                "reward_min": returns.min(),
                "avg_step_per_episode": np.mean([length for _, length in episodes]),
                "total_envstep_count": self._steps.get(player, 0),
            }
            if player == MAIN:  # of all together
                values["episode_count"] = counters.episodes
                values["avg_envstep_per_sec"] = self.traffic.env_steps.per_second()
                values["total_envstep_count"] = counters.env_steps
            done = counters.iterations_of.get(player, 0)
            self._curves("collector", player).add(values, done, self._steps.get(player, 0))

    def write_learner(self) -> None:
        """Write the learners' last scalars, if they are not written yet."""
        learnt, self._learnt = self._learnt, {}
        for player, info in learnt.items():
            steps = self._steps.get(player, 0)
            self._curves("learner", player).add(info.scalars, info.train_iter, steps)

    def _curves(self, part: str, player: str) -> Curves:
        """Returns the curves of a part, of another player than the main one under its name."""
        return Curves(self, part if player == MAIN else f"{player}_{part}")

    def snapshot(self, result: SnapshotResult, env_steps: int) -> None:
        """A snapshot is whole, or could not be written."""
        snapshot = result.snapshot.name
        if result.error:
            LOGGER.warning("%s could not be written: %s. Free some space", snapshot, result.error)
            return
        LOGGER.info("snapshot", extra={"snapshot": {"name": snapshot, **result.figures}})
        for name, value in result.figures.items():
            self.add_scalar(f"perf/snapshot_{name}", value, env_steps)

    def staleness(self, run: RunState) -> int:
        """Train iterations by which the oldest acting policy is behind the learner."""
        acting = run.workers.policy_versions.values()
        return max(0, run.counters.train_iter - min(acting)) if acting else 0

    def _scalars(self, run: RunState) -> dict[str, float]:
        replay = run.replay
        scalars = {
            "perf/env_steps_per_s": self.traffic.env_steps.per_second(),
            "perf/train_iters_per_s": self.traffic.train_iters.per_second(),
            "perf/sample_insert_ratio": replay.samples_drawn() / max(replay.items_admitted, 1),
            "perf/policy_lag": self.staleness(run),
            "perf/buffer_items": replay.count(),
            "health/blocks_lost": replay.blocks_lost,
            "health/blocks_skipped": replay.blocks_skipped,
            "health/priorities_stale": run.counters.priorities_stale,
        }
        for rank, shares in self.shares.items():
            if "wait" in shares:
                scalars[f"perf/idle_frac/rank{rank}"] = shares["wait"]
        if len(self.traffic.latency):
            scalars["perf/block_latency_p50_s"] = self.traffic.latency.percentile(50)
        return scalars

    def _evaluated(self, message: CollectResult) -> None:
        returns = message.episode_returns
        evaluation = Evaluation(
            float(returns.mean()), float(returns.std()), float(returns.min()),
            float(returns.max()), len(returns), message.policy_version,
            self._steps.get(message.player, 0),
        )  # fmt: skip
        if message.player == MAIN:
            self.evaluations.append(evaluation)
        values, steps = evaluation_scalars(returns, message.duration_s), evaluation.env_steps
        self._curves("evaluator", message.player).add(values, message.policy_version, steps)
        about = {"evaluation": vars(evaluation), "player": message.player}
        LOGGER.info("evaluation", extra=about)

    def _warn(self, rank: int, notice: Notice) -> None:
        match notice:
            case TaskLate():
                LOGGER.warning(
                    "rank %d was ordered to end task %s %.0f s ago and has not; another is asked",
                    rank, notice.task_id, notice.waited_s,
                )  # fmt: skip
            case RankQuiet():
                LOGGER.warning(
                    "rank %d has done nothing for task %s for %.0f s; does it hang? SIGUSR1 shows "
                    "its threads, its log is log/rank%05d.jsonl",
                    rank, notice.task_id, notice.waited_s, rank,
                )  # fmt: skip
            case DiesAlone():
                LOGGER.warning("%s\nthe others go on", headline(notice.failure, rank))
            case ComesBack():
                LOGGER.info("rank %d may make its environments anew", rank)

    def _log_life(self, rank: int, message: Message) -> None:
        about: dict[str, Any] = {"about_rank": rank}
        match message:
            case RankLost():
                LOGGER.warning("rank %d has died: killed, or out of memory", rank, extra=about)
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
        role: of this rank, in the summary.
        returns: see `RunRecord`.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        layout: RunLayout | None,
        *,
        is_terminal: bool,
        role: str = "coordinator",
        returns: Callable[[], list[float]] | None = None,
    ) -> None:
        self.meter = RoleMeter(role)
        self._started = time.monotonic()
        self._writer = TensorBoardWriter(layout.tensorboard_dir) if layout is not None else None
        self._record = RunRecord(self._writer, returns)
        self._line: StatusLine | None = None
        self._file: StatusFile | None = None
        self._phase: Phase | None = None  # that status.json says
        self._league: LeagueView | None = None
        self._is_failure_shown = False
        if layout is None or self._writer is None:
            return
        self._writer.add_page("The run at a glance", OVERVIEW)
        self._league = LeagueView(layout.league_file, self._writer)
        commander = config.policy.other.commander
        limits = (
            getattr(commander, "max_env_step", float("inf")),
            getattr(commander, "max_train_iter", float("inf")),
        )
        interval_s = config.system.coordinator.progress_interval
        self._line = StatusLine(
            is_terminal=is_terminal, interval_s=interval_s, limits=limits, started=self._started
        )
        self._file = StatusFile(layout.status_file, limits, config.env.stop_value)

    @property
    def evaluations(self) -> list[Evaluation]:
        """All evaluations so far; a run in this process adds its own."""
        return self._record.evaluations

    @property
    def writer(self) -> TensorBoardWriter | None:
        """Writes the event file, until the view is closed."""
        return self._writer

    @property
    def curves(self) -> ScalarWriter:
        """Takes the curves of others, until the view is closed."""
        return self._record

    def observe(self, rank: int, message: Message | Notice) -> None:
        """Take a message that the scheduler is about to handle, or a notice."""
        self._record.observe(rank, message)

    def look(self, run: RunState) -> None:
        """Write and show what is due of a run, as it is now."""
        now = time.monotonic()
        self._record.look(run, now)
        if self._line is not None and self._file is not None:
            evaluations = self._record.evaluations
            is_news, self._phase = run.finished or run.phase is not self._phase, run.phase

            def status() -> Status:
                return status_of(run, self._record)

            self._line.refresh(status, evaluations, now)
            self._file.refresh(status, evaluations, now, at_once=is_news)
        if self._league is not None and run.league is not None:
            learners = {
                name: [worker.rank for worker in run.workers.available("learner", name)]
                for name in run.workers.groups
            }
            self._league.refresh(
                run.league, run.counters.env_steps, now, learners=learners, at_once=run.finished
            )
        self._show_failure(run)

    def snapshot(self, result: SnapshotResult, run: RunState) -> None:
        """A snapshot has ended."""
        self._record.snapshot(result, run.counters.env_steps)
        if self._line is not None and result.is_worth_a_line:
            self._line.say(str(result))

    def summary(self, run: RunState) -> list[str]:
        """Closing lines for people."""
        return summary(run, self._record, time.monotonic() - self._started, self.meter.report())

    def figures(self, run: RunState) -> dict[str, Any]:
        """Closing figures for programs: plain data."""
        counters, replay, traffic = run.counters, run.replay, self._record.traffic
        return {
            "env_steps": counters.env_steps,
            "train_iter": counters.train_iter,
            "episodes": counters.episodes,
            "players": {
                name: {"env_steps": steps, "train_iter": counters.iterations_of.get(name, 0)}
                for name, steps in counters.steps_of.items()
            },
            "elapsed_s": time.monotonic() - self._started,
            "ended_at": time.time(),
            "learning_since": traffic.learning_since,
            "items_admitted": replay.items_admitted,
            "samples_drawn": replay.samples_drawn(),
            "blocks": traffic.blocks,
            "blocks_lost": replay.blocks_lost,
            "blocks_skipped": replay.blocks_skipped,
            "data_bytes": traffic.data_bytes,
            "block_latency_p50_s": traffic.latency.percentile(50) if traffic.latency else None,
            "block_latency_p99_s": traffic.latency.percentile(99) if traffic.latency else None,
            "evaluations": [vars(evaluation) for evaluation in self._record.evaluations],
            "ranks": {
                "0": self.meter.report(),
                **{str(r): v for r, v in run.workers.reports.items()},
            },
        }

    def close(self) -> None:
        """Write out curves. Idempotent."""
        if self._writer is not None:
            self._record.close()
            self._writer.close()
            self._writer = None

    def _show_failure(self, run: RunState) -> None:
        outcome = run.outcome
        if outcome is not None and outcome.failure is not None and not self._is_failure_shown:
            self._is_failure_shown = True
            rank, failure = outcome.failure
            sys.stdout.flush()
            sys.stderr.write(f"\n{headline(failure, rank)}\n")
            sys.stderr.flush()


def status_of(run: RunState, record: RunRecord) -> Status:
    """How a run stands, for the progress line and the status file."""
    counters, replay, traffic = run.counters, run.replay, record.traffic
    capacity, before = replay.capacity(), list[str]()
    if capacity:
        before.append(f"buffer {human_count(replay.count())}/{human_count(capacity)}")
    if run.workers.policy_versions:
        before.append(f"staleness {record.staleness(run)}")
    for name, player in _players(run, record).items():
        before.append(f"{name} train {human_count(player['train_iter'])}")
    after = [] if run.is_on else ["ending"]
    if run.is_on and (blocked := replay.blocked):
        after.append(blocked)
    return Status(
        (counters.env_steps, traffic.env_steps.per_second()),
        (counters.train_iter, traffic.train_iters.per_second()),
        record.returns,
        record.evaluations[-1].mean if record.evaluations else None,
        (before, after),
        _facts(run, record),
    )


def _facts(run: RunState, record: RunRecord) -> dict[str, Any]:
    """Further entries of the status file."""
    replay, outcome = run.replay, run.outcome
    facts: dict[str, Any] = {
        "phase": run.phase.value,
        "episodes": run.counters.episodes,
        "staleness": record.staleness(run),
        "idle": {
            rank: shares.get("wait", 0.0)
            for rank, shares in record.shares.items()
            if rank not in run.workers.lost
        },
        "lost": dict(run.workers.lost),
        "collectors": run.collectors,
    }
    if players := _players(run, record):
        facts["players"] = players
    if capacity := replay.capacity():
        facts["buffer"] = {"held": replay.count(), "capacity": capacity, "blocked": replay.blocked}
    if outcome is not None and outcome.failure is not None:
        rank, failure = outcome.failure
        facts["error"] = {"rank": rank, **vars(failure)}
    return facts


def _players(run: RunState, record: RunRecord) -> dict[str, dict[str, Any]]:
    """How the players stand that learn beside the main one; empty where it is alone."""
    workers, counters = run.workers, run.counters
    players = {}
    for name in list(workers.groups)[1:]:
        returns = record.returns_of(name)
        players[name] = {
            "learners": [worker.rank for worker in workers.available("learner", name)],
            "collectors": len(workers.collecting(name)),
            "env_steps": counters.steps_of.get(name, 0),
            "train_iter": counters.iterations_of.get(name, 0),
            "return_mean": sum(returns) / len(returns) if returns else None,
        }
    return players


def summary(
    run: RunState, record: RunRecord, elapsed_s: float, own_report: dict[str, Any]
) -> list[str]:
    """Closing lines: what was done, how fast, and who waited."""
    counters, replay, traffic = run.counters, run.replay, record.traffic
    learnable = (
        f"; from a full block to learnable p50 {1e3 * traffic.latency.percentile(50):.0f} ms"
        if traffic.latency
        else ""
    )
    lines = [
        f"  {human_count(counters.env_steps)} env steps and {human_count(counters.train_iter)} "
        f"train iterations in {human_time(elapsed_s)}; {counters.episodes} episodes; "
        f"{replay.samples_drawn() / max(replay.items_admitted, 1):.2f} samples drawn per "
        "transition"
    ]
    for name, player in _players(run, record).items():
        lines.append(
            f"  {name}: {human_count(player['env_steps'])} of these env steps, and "
            f"{human_count(player['train_iter'])} train iterations of its own"
        )
    if traffic.blocks:
        size = human_bytes(traffic.data_bytes)
        lines.append(f"  data: {counted(traffic.blocks, 'block')}, {size}{learnable}")
    if counters.train_iter == 0:
        lines.append("  nothing was learnt: the run ended before the first train iteration")
    best = best_of(record.evaluations)
    if best is not None:
        lines.append(
            f"  best evaluation: mean return {best.mean:.1f} at env step "
            f"{human_count(best.env_steps)}, policy of iteration {best.policy_version}"
        )
    if replay.blocks_lost:
        lines.append(
            f"  {counted(replay.blocks_lost, 'block')} could not be read; the log says why"
        )
    if replay.blocks_skipped:
        lines.append(
            f"  {counted(replay.blocks_skipped, 'block')} skipped: they came faster than the "
            "learner reads them"
        )
    lines += _health(run.workers.reports.values())
    for rank, report in {0: own_report, **run.workers.reports}.items():
        lines.append(f"  rank {rank:<4} {_activity(report)}")
    return lines


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
