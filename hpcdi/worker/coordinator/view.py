"""Everything that rank 0 writes and shows: curves, progress line, summary; removed shards."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from hpcdi.comm.failure import headline
from hpcdi.comm.messages import BlockReady, Message, TakeSnapshot
from hpcdi.config.schema import ExperimentConfig
from hpcdi.store.layout import RunLayout
from hpcdi.store.retention import Retention
from hpcdi.store.status import StatusFile
from hpcdi.utils.curves import TensorBoardWriter
from hpcdi.utils.timer import RoleMeter
from hpcdi.worker.coordinator.progress import ProgressLine, summary
from hpcdi.worker.coordinator.records import NoCurves, RunRecord, ScalarWriter
from hpcdi.worker.coordinator.scheduler import Scheduler
from hpcdi.worker.coordinator.snapshot_keeper import SnapshotKeeper
from hpcdi.worker.coordinator.snapshots import Snapshot, SnapshotClock
from hpcdi.worker.coordinator.task import Notice


class RunView:
    """Looks at the run; decides nothing.

    Args:
        config: the experiment.
        layout: the run folder; None: keep numbers, write and show nothing.
        is_terminal: whether a person watches the progress line.
    """

    def __init__(
        self, config: ExperimentConfig, layout: RunLayout | None, *, is_terminal: bool
    ) -> None:
        self.meter = RoleMeter("coordinator")
        self._started = time.monotonic()
        self._writer = TensorBoardWriter(layout.tensorboard_dir) if layout is not None else None
        self._record = RunRecord(self._writer if self._writer is not None else NoCurves())
        self._line: ProgressLine | None = None
        self._retention: Retention | None = None
        self._is_failure_told = False
        self._keeper: SnapshotKeeper | None = None
        if layout is not None:
            self._keeper = SnapshotKeeper(layout, config.system.keep_snapshots)
            self._retention = Retention(layout, keep_data=config.system.storage.keep_data)
            self._line = _progress_line(config, layout, self._started, is_terminal=is_terminal)

    @property
    def curves(self) -> ScalarWriter:
        """Takes the curves of others, as long as the run is shown."""
        return self._record

    def observe(self, rank: int, message: Message | Notice) -> None:
        """Take a message that the scheduler is about to handle, or what it has noticed."""
        if isinstance(message, BlockReady) and self._retention is not None:
            self._retention.need(message.shard.path)
        self._record.observe(rank, message)

    def look(self, scheduler: Scheduler) -> None:
        """Look at the counters: write and show what is due."""
        now = time.monotonic()
        self._record.look(scheduler, now)
        if self._line is not None:
            self._line.refresh(scheduler, self._record, now)
        if self._retention is not None:
            for path in scheduler.desk.named.take_needed():
                self._retention.need(path)
            self._retention.release(scheduler.desk.take_freed())
        self._tend_snapshots(scheduler)
        self._tell_failure(scheduler)

    @property
    def snapshot_s(self) -> float:
        """Seconds that the last snapshot took until it was whole."""
        return self._record.traffic.snapshot_s

    def snapshot_clock(self, every_s: float) -> SnapshotClock:
        """When to take snapshots; where nothing is written, there are none."""
        return SnapshotClock(every_s, self._keeper.new if self._keeper is not None else None)

    def begin_snapshot(
        self, order: TakeSnapshot, state: Callable[[], dict[str, Any]], scheduler: Scheduler
    ) -> None:
        """Learners are about to be told to take one: take rank 0's part; once for all of them."""
        if self._keeper is None or self._keeper.has_begun(order.name):
            return
        facts = {
            "env_steps": scheduler.counters.env_steps,
            "learners": sorted(scheduler.desk.partitions),
            "saved_at": time.time(),
        }
        for path in self._keeper.begin(order, state(), facts):
            if self._retention is not None:
                self._retention.need(path)

    def keep_beginning(self, state: Callable[[], dict[str, Any]], scheduler: Scheduler) -> None:
        """A new run is about to begin: keep that, in which no learner has a part.

        So whatever it publishes is there to go on with, whenever it dies.
        """
        if self._keeper is None or self._keeper.has_any:
            return
        name, folder = self._keeper.new()
        self.begin_snapshot(TakeSnapshot(name, folder), state, scheduler)
        self._keeper.commit(Snapshot(name, folder, set()))

    def finish_snapshots(self, scheduler: Scheduler) -> None:
        """The loop has ended: wait until all that can be whole is."""
        self._tend_snapshots(scheduler)
        if self._keeper is not None:
            self._keeper.close()
        self._tend_snapshots(scheduler)

    def adopt(self, published: Iterable[str]) -> None:
        """Shards of an earlier part of the run are needed again; by kept snapshots, too."""
        if self._retention is None or self._keeper is None:
            return
        for path in [*published, *self._keeper.adopt_all()]:
            self._retention.need(path)

    def _tend_snapshots(self, scheduler: Scheduler) -> None:
        if self._keeper is None:
            return
        for snapshot in scheduler.snapshots.take_complete():
            self._keeper.commit(snapshot)
        for kept in self._keeper.take_ended():
            self._record.snapshot(kept, scheduler.counters.env_steps)
            if self._line is not None and kept.is_worth_a_line:
                self._line.say(kept.told)
            if self._retention is not None:
                self._retention.release(kept.released)

    def summary(self, scheduler: Scheduler) -> list[str]:
        """Closing lines for people."""
        return summary(
            scheduler, self._record, time.monotonic() - self._started, self.meter.report()
        )

    def figures(self, scheduler: Scheduler) -> dict[str, Any]:
        """Closing figures for programs: plain data."""
        counters, desk, traffic = scheduler.counters, scheduler.desk, self._record.traffic
        return {
            "env_steps": counters.env_steps,
            "train_iter": counters.train_iter,
            "episodes": counters.episodes,
            "elapsed_s": time.monotonic() - self._started,
            "ended_at": time.time(),
            "learning_since": traffic.learning_since,
            "items_admitted": desk.items_admitted,
            "samples_drawn": desk.samples_drawn(),
            "blocks": traffic.blocks,
            "blocks_lost": desk.blocks_lost,
            "blocks_skipped": desk.blocks_skipped,
            "data_bytes": traffic.data_bytes,
            "block_latency_p50_s": traffic.latency.percentile(50) if traffic.latency else None,
            "block_latency_p99_s": traffic.latency.percentile(99) if traffic.latency else None,
            "evaluations": [vars(evaluation) for evaluation in self._record.evaluations],
            "ranks": {
                "0": self.meter.report(),
                **{str(r): v for r, v in scheduler.life.reports.items()},
            },
        }

    def close(self) -> None:
        """Write out the curves; again: nothing."""
        if self._keeper is not None:
            self._keeper.close()
        if self._writer is not None:
            self._record.write_learner()
            self._record.write_to(NoCurves())  # a late callback is still counted
            self._writer.close()
            self._writer = None

    def _tell_failure(self, scheduler: Scheduler) -> None:
        outcome = scheduler.life.outcome
        if outcome is not None and outcome.failure is not None and not self._is_failure_told:
            self._is_failure_told = True
            rank, failure = outcome.failure
            sys.stdout.flush()
            sys.stderr.write(f"\n{headline(failure, rank)}\n")
            sys.stderr.flush()


def _progress_line(
    config: ExperimentConfig, layout: RunLayout, started: float, *, is_terminal: bool
) -> ProgressLine:
    commander = config.policy.other.commander
    limits = (
        getattr(commander, "max_env_step", float("inf")),
        getattr(commander, "max_train_iter", float("inf")),
    )
    return ProgressLine(
        is_terminal=is_terminal,
        interval_s=config.system.coordinator.progress_interval,
        limits=limits,
        started=started,
        file=StatusFile(layout.status_file, limits, config.env.stop_value),
    )
