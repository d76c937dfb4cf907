"""The coordinator: the loop that carries out the scheduler's decisions, and DI-engine's callbacks.

The callbacks (`deal_with_*`) are a façade: they translate to messages for the scheduler, or ask
`ItemBuffers`. The modules beneath know neither them nor buffers by name.
"""

from __future__ import annotations

import platform
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.comm.failure import kill_frozen
from hpcdi.comm.link import Link, LocalWorld
from hpcdi.comm.messages import (
    BlockReady,
    CollectResult,
    Heartbeat,
    KillFrozen,
    LearnInfo,
    LearnResult,
    Message,
    RankLost,
    TakeSnapshot,
)
from hpcdi.config.compat import Configurable
from hpcdi.config.load import compile_config
from hpcdi.config.schema import (
    CoordinatorConfig,
    ExperimentConfig,
    check_over_ranks,
    learners_of,
)
from hpcdi.errors import ConfigError, Problem
from hpcdi.replay.advanced_buffer import AdvancedReplayBuffer
from hpcdi.replay.manager import create_replays
from hpcdi.roles.context import HEARTBEAT_S
from hpcdi.roles.coordinator.commanders import create_parallel_commander
from hpcdi.roles.coordinator.lockstep import scheduler_type
from hpcdi.roles.coordinator.scheduler import Outcome
from hpcdi.roles.coordinator.snapshots import (
    Resumed,
    SnapshotClock,
    SnapshotKeeper,
    unannounced,
)
from hpcdi.roles.coordinator.view import RunView
from hpcdi.roles.coordinator.workers import FaultPolicy, Notice, Order, Timeouts, Workers
from hpcdi.store.checkpoints import of_agent
from hpcdi.store.layout import RunLayout
from hpcdi.types import MAIN
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER
from hpcdi.utils.threads import BackgroundThread

_SENT_S = 0.5
"""Seconds for messages that MPI has taken to arrive, where the rank ends without MPI_Finalize."""


class TaskState:
    """A task of a caller, and when it was begun.

    Args:
        task_id: its name.
    """

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self.start_time = time.time()


class ItemBuffers:
    """Replay buffers by name, for callers that push and draw items one by one (`deal_with_*`).

    They hold the items' metadata; the data lie in files that ``data_id`` names.

    Args:
        make_buffer: makes the buffer of a name.
    """

    def __init__(self, make_buffer: Callable[[str], AdvancedReplayBuffer]) -> None:
        self._make_buffer = make_buffer
        self._buffers: dict[str, AdvancedReplayBuffer] = {}
        self._of_task: dict[str, str] = {}  # learner task -> its buffer

    def push(self, buffer_id: str, data_id: str, metadata: Mapping[str, Any]) -> None:
        """Add an item to a buffer, which its first item makes."""
        if buffer_id not in self._buffers:
            self._buffers[buffer_id] = self._make_buffer(buffer_id)
        self._buffers[buffer_id].push({**metadata, "data_id": data_id}, -1)

    def sample(
        self, task_id: str, buffer_id: str, batch_size: int, train_iter: int
    ) -> list[dict[str, Any]] | None:
        """Draw items for a learner task; None where there are too few, or no such buffer."""
        self._of_task[task_id] = buffer_id
        buffer = self._buffers.get(buffer_id)
        return None if buffer is None else buffer.sample(batch_size, train_iter)

    def update(self, buffer_id: str, priority_info: Mapping[str, Any]) -> None:
        """Set new priorities of items."""
        if buffer_id in self._buffers:
            self._buffers[buffer_id].update(priority_info)

    def take_needed(self) -> list[str]:
        """Data ids that came into a buffer since the last call.

        Only buffers with `enable_track_used_data` report these, here and in `take_freed`.
        """
        return [data_id for buffer in self._buffers.values() for data_id in buffer.take_new()]

    def take_freed(self) -> list[str]:
        """Data ids that left a buffer since the last call."""
        return [data_id for buffer in self._buffers.values() for data_id in buffer.take_used()]

    def close(self, task_id: str, buffer_id: str = "") -> None:
        """Drop the buffer of a learner task, or that of a name; its files stay."""
        for name in (self._of_task.pop(task_id, ""), buffer_id):
            self._buffers.pop(name, None)

    def state_dict(self) -> dict[str, Any]:
        """State of each buffer, by name."""
        return {name: buffer.state_dict() for name, buffer in self._buffers.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Replace all buffers by those of a `state_dict`."""
        self._buffers.clear()
        for name, state in state_dict.items():
            self._buffers[name] = self._make_buffer(name)
            self._buffers[name].load_state_dict(state)


class Coordinator(Closing, Configurable):
    """Rank 0: hands messages to the scheduler, and sends its orders.

    Args:
        cfg: an `ExperimentConfig`, or DI-engine's mapping with ``main`` and ``system``.
        link: to the workers; by default a world of its own, for use as a library.
        layout: the run folder; without one nothing is written.
        workers: ranks that take part; by default all others of the link's world.
        stop_request: returns, once, the message that a signal asked for.
        is_terminal: whether a person watches the progress line.
    """

    Config = CoordinatorConfig

    def __init__(
        self,
        cfg: Any,
        link: Link | None = None,
        layout: RunLayout | None = None,
        workers: Sequence[int] | None = None,
        *,
        stop_request: Callable[[], Message | None] = lambda: None,
        is_terminal: bool = False,
    ) -> None:
        config = as_experiment(cfg)
        self._link: Link = link if link is not None else LocalWorld(1).link(0)
        self._layout = layout
        self._lock = threading.RLock()
        self._view = RunView(config, layout, is_terminal=is_terminal)
        self._keeper: SnapshotKeeper | None = None
        if layout is not None:
            keep, keep_data = config.system.keep_snapshots, config.system.storage.keep_data
            self._keeper = SnapshotKeeper(layout, keep, keep_data=keep_data)
        ranks = range(1, self._link.size) if workers is None else workers
        replay = create_replays(config, self._view.curves, len(ranks))
        self._items = ItemBuffers(replay.of[MAIN].make_buffer)
        faults = FaultPolicy.of(config, is_possible=self._link.ranks_may_die)
        self._scheduler = scheduler_type(config, len(ranks))(
            create_parallel_commander(config),
            replay,
            SnapshotClock(
                config.system.snapshot_s, self._keeper.new if self._keeper is not None else None
            ),
            Workers(ranks, learners_of(config), faults, Timeouts.of(config), platform.node()),
            self._observe,
        )
        collector = config.policy.collect.collector
        if collector.collector_max is not None:
            self._scheduler.want_collectors(collector.collector_num)
        self._stop_request = stop_request
        self._tasks: dict[str, TaskState] = {}
        self._thread: BackgroundThread | None = None
        self._orders: deque[Order] = deque()  # only the loop speaks MPI: callers' orders wait here
        self._heartbeat_at = 0.0

    # ---------------------------------------------------------------------------------------- life

    def run(self) -> Outcome:
        """Run the loop until the run is over."""
        scheduler, link, meter = self._scheduler, self._link, self._view.meter
        if self._keeper is not None:
            self._keeper.keep_beginning(self.state_dict)
        while not scheduler.finished:
            arrived = link.receive(scheduler.patience_s)
            meter.mark("wait")
            with self._lock:
                for rank, message in arrived:
                    self._handle(message, rank)
                request = self._stop_request()
                if request is not None:
                    self._handle(request, link.rank)
                self._orders += scheduler.tick(time.monotonic())
                self._beat(time.monotonic())
                self._send_orders()
                needed, freed = self._items.take_needed(), self._items.take_freed()
            meter.mark("schedule")
            self._tend_files(needed, freed)
            self._view.look(scheduler)
            meter.mark("show")
        self._flush()
        self._finish_snapshots()
        return scheduler.outcome or Outcome("stopped", "closed", 0)

    def start(self) -> None:
        """Run the loop in a thread; under MPI, call `run` on the main thread instead."""
        if self._thread is None:
            self._thread = BackgroundThread(self._run_in_thread, "coordinator")

    def close(self) -> None:
        """End the run, if it is on, and close what is open. Idempotent."""
        with self._lock:
            self._orders += self._scheduler.stop(Outcome("stopped", "closed", 0), time.monotonic())
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.join()
            self._close_files()
            thread.check()
        self._send_orders()
        self._close_files()

    @property
    def system_shutdown_flag(self) -> bool:
        """True if the run has reached its end; once true it stays true."""
        return not self._scheduler.is_on

    @property
    def silent(self) -> dict[int, str]:
        """Role of each rank that has not said goodbye."""
        workers = self._scheduler.workers
        return {rank: workers[rank].role for rank in workers.silent}

    @property
    def lost(self) -> dict[int, str]:
        """Role of each rank that has died while the run went on."""
        return self._scheduler.workers.lost

    def summary(self) -> list[str]:
        """Closing lines for people."""
        return self._view.summary(self._scheduler)

    def figures(self) -> dict[str, Any]:
        """Closing figures for programs: plain data."""
        return self._view.figures(self._scheduler)

    def state_dict(self) -> dict[str, Any]:
        """Commander, counters, tasks and the replay buffers: plain data and arrays."""
        with self._lock:
            return {
                "commander": self._scheduler.commander.state_dict(),
                "counters": self._scheduler.counters.state_dict(),
                "tasks": {task.task_id: task.start_time for task in self._tasks.values()},
                "replay": {
                    **self._scheduler.replay.state_dict(),
                    "named": self._items.state_dict(),
                },
            }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a `state_dict`, except for blocks that learners must read again first."""
        with self._lock:
            self._scheduler.commander.load_state_dict(state_dict["commander"])
            self._scheduler.counters.load_state_dict(state_dict["counters"])
            self._scheduler.replay.load_state_dict(state_dict["replay"])
            self._items.load_state_dict(state_dict["replay"]["named"])
            self._tasks.clear()
            for task_id, start_time in state_dict["tasks"].items():
                self._tasks[task_id] = TaskState(task_id)
                self._tasks[task_id].start_time = start_time

    def snapshot_s(self) -> float:
        """Seconds until the last snapshot was whole."""
        return self._keeper.last_took_s if self._keeper is not None else 0.0

    def resume(self, resumed: Resumed) -> None:
        """Resume from a snapshot of the run, before the loop begins."""
        self.load_state_dict(resumed.state)
        scheduler = self._scheduler
        done = resumed.facts.get("players", {MAIN: resumed.facts["train_iter"]})
        for player, train_iter in done.items():
            scheduler.counters.iterations_of[player] = int(train_iter)
        for path in sorted(resumed.after):
            scheduler.count_block(resumed.published[path])
        scheduler.resume_counters()
        scheduler.replay.load_state_dict(resumed.state["replay"], resumed.published)
        scheduler.snapshots.resume = resumed.folder
        if self._keeper is not None:
            self._keeper.adopt(resumed)

    # ----------------------------------------------------------------------- DI-engine's callbacks

    def deal_with_collector_send_data(
        self, task_id: str, buffer_id: str, data_id: str, data: Mapping[str, Any]
    ) -> None:
        """Add one item's metadata to a buffer."""
        self._tasks.setdefault(task_id, TaskState(task_id))
        with self._lock:
            self._items.push(buffer_id, data_id, data)

    def deal_with_collector_finish_task(
        self, task_id: str, finished_task: Mapping[str, Any]
    ) -> None:
        """Hand over the result of a collect or evaluation task."""
        self._tasks.pop(task_id, None)
        returns = finished_task.get("reward_raw", [])
        lengths = [finished_task.get("avg_step_per_episode", 0)] * len(returns)
        self._hand_over(
            CollectResult(
                task_id,
                bool(finished_task.get("eval_flag", False)),
                int(finished_task.get("train_iter", 0)),
                int(finished_task.get("step_count", 0)),
                float(finished_task.get("duration", 0.0)),
                np.asarray(returns, dtype=np.float64),
                np.asarray(lengths, dtype=np.int64),
            )
        )

    def deal_with_learner_get_data(
        self, task_id: str, buffer_id: str, batch_size: int, cur_learner_iter: int
    ) -> list[dict[str, Any]] | None:
        """Draw items' metadata; None where there are too few."""
        self._tasks.setdefault(task_id, TaskState(task_id))
        with self._lock:
            return self._items.sample(task_id, buffer_id, batch_size, cur_learner_iter)

    def deal_with_learner_send_info(
        self, task_id: str, buffer_id: str, info: Mapping[str, Any]
    ) -> None:
        """Hand over a learner's new priorities and its iteration."""
        with self._lock:
            if info.get("priority_info"):
                self._items.update(buffer_id, info["priority_info"])
        self._hand_over(LearnInfo(task_id, int(info.get("learner_step", 0)), {}, {}))

    def deal_with_learner_finish_task(self, task_id: str, finished_task: Mapping[str, Any]) -> None:
        """End a learner's task, and drop its buffer: also the one that ``buffer_id`` names."""
        self._tasks.pop(task_id, None)
        with self._lock:
            self._items.close(task_id, str(finished_task.get("buffer_id", "")))
        self._hand_over(LearnResult(task_id, int(finished_task.get("learner_step", 0))))

    def deal_with_collector_judge_finish(self, task_id: str, data: Mapping[str, Any]) -> bool:
        """Returns whether a collector's data mean that its task has ended."""
        return self._scheduler.commander.judge_collector_finish(task_id, data)

    def deal_with_learner_judge_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Returns whether a learner's info means that its task has ended."""
        return self._scheduler.commander.judge_learner_finish(task_id, info)

    def deal_with_increase_collector(self) -> None:
        """Let one collector more work, if there is one."""
        with self._lock:
            wanted = self._scheduler.collectors_wanted
            if wanted is not None:  # else all there are work
                self._scheduler.want_collectors(wanted + 1)

    def deal_with_decrease_collector(self) -> None:
        """Let one collector less work; the last one stays."""
        with self._lock:
            collectors = self._scheduler.collectors
            wanted = collectors["there"] if collectors["wanted"] is None else collectors["wanted"]
            self._scheduler.want_collectors((wanted or 0) - 1)

    def info(self, s: str) -> None:
        """Log a line."""
        LOGGER.info(s)

    def error(self, s: str) -> None:
        """Log an error."""
        LOGGER.error(s)

    # ----------------------------------------------------------------------------------- internals

    def _run_in_thread(self) -> None:
        self.run()

    def _hand_over(self, message: Message) -> None:
        with self._lock:
            self._handle(message, self._link.rank)

    def _handle(self, message: Message, rank: int) -> None:
        """Have a message handled; of a rank that has died, what it could not announce before."""
        scheduler, now = self._scheduler, time.monotonic()
        if isinstance(message, RankLost) and self._layout is not None:
            for ready in unannounced(self._layout, rank, scheduler.replay.newest_of(rank)):
                self._orders += scheduler.handle(ready, rank, now)
        self._orders += scheduler.handle(message, rank, now)

    def _beat(self, now: float) -> None:
        """Send heartbeats, so that workers hear of rank 0 where it has no orders for them."""
        if now - self._heartbeat_at >= HEARTBEAT_S:
            self._heartbeat_at = now
            self._orders += [Order(rank, Heartbeat()) for rank in self.silent]

    def _send_orders(self) -> None:
        while self._orders:
            order = self._orders.popleft()
            if isinstance(order.message, KillFrozen) and order.rank == self._link.rank:
                kill_frozen(order.message)
                continue
            if isinstance(order.message, TakeSnapshot):
                self._take_part(order.message)
            self._link.send(order.rank, order.message)

    def _observe(self, rank: int, message: Message | Notice) -> None:
        if isinstance(message, BlockReady) and self._keeper is not None:
            self._keeper.published(message.shard.path)
        self._view.observe(rank, message)

    def _take_part(self, order: TakeSnapshot) -> None:
        """Take rank 0's part of a snapshot, before the first learner is ordered to take its own."""
        scheduler = self._scheduler
        if self._keeper is None or self._keeper.has_begun(order.name):
            return
        facts = {
            "env_steps": scheduler.counters.env_steps,
            "learners": sorted(scheduler.replay.partitions),
        }
        groups = enumerate(scheduler.workers.groups.values())
        lost = [of_agent(agent, "") for agent, group in groups if agent and not group.size]
        self._keeper.begin(order, self.state_dict(), facts, lost)

    def _tend_files(self, needed: Sequence[str] = (), freed: Sequence[str] = ()) -> None:
        """Finish snapshots, and remove shards that nobody needs.

        Args:
            needed: files that item buffers need since the last call.
            freed: files that item buffers do not need any more.
        """
        if self._keeper is None:
            return
        self._keeper.need(needed)
        self._keeper.drop([*self._scheduler.replay.take_freed(), *freed])
        for result in self._keeper.tend(self._scheduler.snapshots.take_complete()):
            self._view.snapshot(result, self._scheduler)

    def _finish_snapshots(self) -> None:
        """Wait until all snapshots are whole that can be; the loop has ended."""
        self._tend_files()
        if self._keeper is not None:
            self._keeper.close()
        self._tend_files()

    def _close_files(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
        self._view.close()

    def _flush(self) -> None:
        deadline = time.monotonic() + 1.0
        while self._link.unsent() and time.monotonic() < deadline:
            self._link.receive(0.01)
        if self._link.ranks_may_die:
            self._link.receive(_SENT_S)


def as_experiment(cfg: Any) -> ExperimentConfig:
    """The experiment itself, or compiled from DI-engine's mapping with ``main`` and ``system``.

    Raises:
        ConfigError: with every problem of the mapping.
    """
    if isinstance(cfg, ExperimentConfig):
        return cfg
    mapping = dict(cfg)
    source = "the coordinator's configuration"
    odd = sorted(mapping.keys() - {"main", "system", "seed"})
    if odd:
        known = "unknown key; known here: main, seed, system"
        raise ConfigError([Problem(str(key), known) for key in odd], source)
    main = dict(mapping.pop("main", {}))
    config = compile_config({**main, **mapping}, source).config
    problems = check_over_ranks(config)
    if problems:
        raise ConfigError(problems, source)
    return config
