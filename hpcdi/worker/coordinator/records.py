"""What rank 0 keeps of what it hears: numbers, curves for TensorBoard, lines for the log."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from hpcdi.comm.failure import headline
from hpcdi.comm.fault_messages import RankLost, TaskReturned
from hpcdi.comm.messages import (
    BlockAdmitted,
    BlockReady,
    CollectProgress,
    CollectResult,
    Goodbye,
    LearnInfo,
    LearnResult,
    Message,
    WorkerFailed,
    WorkerReady,
)
from hpcdi.utils.log import LOGGER
from hpcdi.utils.metrics import Distribution, Rate, evaluation_scalars
from hpcdi.utils.progress import Evaluation
from hpcdi.worker.coordinator.scheduler import Scheduler
from hpcdi.worker.coordinator.snapshot_keeper import Kept
from hpcdi.worker.coordinator.workers import ComesBack, DiesAlone, Notice, RankQuiet, TaskLate

_EPISODE_WINDOW = 100
_SCALARS_EVERY_S = 1.0


class ScalarWriter(Protocol):
    """What takes curves; `TensorBoardWriter` does."""

    def add_scalar(self, tag: str, value: float, global_step: int) -> None:
        """Add a point."""
        ...


class NoCurves:
    """Takes curves and drops them."""

    def add_scalar(self, tag: str, value: float, global_step: int) -> None:
        """Drop a point."""


@dataclass
class Traffic:
    """How data flow."""

    env_steps: Rate = field(default_factory=Rate)
    train_iters: Rate = field(default_factory=Rate)
    latency: Distribution = field(default_factory=Distribution)
    """Seconds from a full block to its rows in a learner's memory."""
    blocks: int = 0
    data_bytes: int = 0
    snapshot_s: float = 0.0
    """What the last snapshot took until it was whole."""
    learning_since: tuple[float, int] | None = None
    """When the first train iteration was seen (seconds since the epoch), and the env steps then."""


class RunRecord:
    """Takes every message that the scheduler handles; writes curves about once a second.

    Args:
        writer: takes the curves.
    """

    def __init__(self, writer: ScalarWriter) -> None:
        self.evaluations: list[Evaluation] = []
        self.traffic = Traffic()
        self.shares: dict[int, dict[str, float]] = {}
        self._episodes: deque[tuple[float, int]] = deque(maxlen=_EPISODE_WINDOW)
        self._writer = writer
        self._steps = (0, 0)  # environment steps and train iterations, as of the last look
        self._written = float("-inf")
        self._learnt: LearnInfo | None = None  # curves have a point a second, however fast it goes

    @property
    def returns(self) -> list[float]:
        """Of the last hundred episodes that collectors have done."""
        return [float(episode_return) for episode_return, _ in self._episodes]

    def write_to(self, writer: ScalarWriter) -> None:
        """Give curves to another writer from now on."""
        self._writer = writer

    def add_scalar(self, tag: str, value: float, global_step: int) -> None:
        """Add a point to a curve of somebody else."""
        self._writer.add_scalar(tag, value, global_step)

    def observe(self, rank: int, message: Message | Notice) -> None:
        """Take a message."""
        match message:
            case CollectProgress():
                self._episodes.extend(
                    zip(message.episode_returns, message.episode_lengths, strict=True)
                )
                self.shares[rank] = message.shares
            case LearnInfo():
                self.shares[rank] = message.shares
                if message.train_iter:  # 0: not all learners have been heard yet
                    self._learnt = message
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

    def look(self, scheduler: Scheduler, now: float) -> None:
        """Look at the counters; writes the curves that are due, and at the end all of them."""
        counters = scheduler.counters
        self._steps = (counters.env_steps, counters.train_iter)
        if counters.train_iter and self.traffic.learning_since is None:
            self.traffic.learning_since = (time.time(), counters.env_steps)
        if now - self._written < _SCALARS_EVERY_S and not scheduler.finished:
            return
        self._written = now
        self.write_learner()
        self.traffic.env_steps.add(now, counters.env_steps)
        self.traffic.train_iters.add(now, counters.train_iter)
        if counters.env_steps == 0:
            return
        for name, value in self._scalars(scheduler).items():
            self._writer.add_scalar(name, value, counters.env_steps)
        if self._episodes:
            returns = np.asarray(self.returns)
            values = {
                "reward_mean": returns.mean(),
                "reward_std": returns.std(),
                "reward_max": returns.max(),
                "reward_min": returns.min(),
                "episode_count": counters.episodes,
                "avg_step_per_episode": np.mean([length for _, length in self._episodes]),
                "avg_envstep_per_sec": self.traffic.env_steps.per_second(),
                "total_envstep_count": counters.env_steps,
            }
            for name, value in values.items():
                self._curve("collector", name, float(value), *self._steps)

    def write_learner(self) -> None:
        """Write what the learner has said last, if it is not written yet."""
        learnt, self._learnt = self._learnt, None
        if learnt is not None:
            for name, value in learnt.scalars.items():
                self._curve("learner", name, value, self._steps[0], learnt.train_iter)

    def snapshot(self, kept: Kept, env_steps: int) -> None:
        """A snapshot has its name, or could not be written."""
        self.traffic.snapshot_s = kept.took_s
        if kept.error:
            name = kept.snapshot.name
            LOGGER.warning("%s could not be written: %s. Free some space", name, kept.error)
            return
        LOGGER.info("snapshot", extra={"snapshot": {"name": kept.snapshot.name, **kept.figures}})
        for name, value in kept.figures.items():
            self._writer.add_scalar(f"perf/snapshot_{name}", value, env_steps)

    def staleness(self, scheduler: Scheduler) -> int:
        """Train iterations by which the oldest acting policy is behind the learner."""
        acting = scheduler.workers.policy_versions.values()
        return max(0, scheduler.counters.train_iter - min(acting)) if acting else 0

    def _scalars(self, scheduler: Scheduler) -> dict[str, float]:
        replay = scheduler.replay
        scalars = {
            "perf/env_steps_per_s": self.traffic.env_steps.per_second(),
            "perf/train_iters_per_s": self.traffic.train_iters.per_second(),
            "perf/sample_insert_ratio": replay.samples_drawn() / max(replay.items_admitted, 1),
            "perf/policy_lag": self.staleness(scheduler),
            "perf/buffer_items": replay.count(),
            "health/blocks_lost": replay.blocks_lost,
            "health/blocks_skipped": replay.blocks_skipped,
            "health/priorities_stale": scheduler.counters.priorities_stale,
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
            float(returns.max()), len(returns), message.policy_version, self._steps[0],
        )  # fmt: skip
        self.evaluations.append(evaluation)
        values = evaluation_scalars(returns, message.duration_s)
        for name, value in values.items():
            self._curve("evaluator", name, value, self._steps[0], message.policy_version)
        LOGGER.info("evaluation", extra={"evaluation": vars(evaluation)})

    def _curve(self, who: str, name: str, value: float, env_step: int, train_iter: int) -> None:
        """A point on both axes, under the predecessor's tags."""
        self._writer.add_scalar(f"{who}_iter/{name}", value, train_iter)
        self._writer.add_scalar(f"{who}_step/{name}", value, env_step)

    def _warn(self, rank: int, notice: Notice) -> None:
        match notice:
            case TaskLate():
                LOGGER.warning(
                    "rank %d was told to end task %s %.0f s ago and has not; another is asked",
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
                    "rank %d has no environments left; others do its work: %s", rank, message.reason
                )
            case Goodbye():
                LOGGER.info("goodbye", extra={**about, "report": message.report})
            case LearnResult():
                LOGGER.info("learner task ended", extra={**about, "train_iter": message.train_iter})
