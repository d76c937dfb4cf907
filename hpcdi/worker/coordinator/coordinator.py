"""The coordinator for DI-engine's callers: its callbacks, and buffers of items by name.

The callbacks (`deal_with_*`) translate to messages for the scheduler, or ask `ItemBuffers`. They
may come from any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np

from hpcdi.comm.link import Link, LocalWorld
from hpcdi.comm.messages import LearnInfo, LearnResult, Message
from hpcdi.config.compat import Configurable, component_class
from hpcdi.config.compiled import compile_config
from hpcdi.config.schema import CoordinatorConfig, ExperimentConfig, check_over_ranks
from hpcdi.errors import ConfigError, Problem
from hpcdi.roles.coordinator.coordinator import Coordinator as RunCoordinator
from hpcdi.roles.coordinator.scheduler import Outcome
from hpcdi.roles.coordinator.snapshots import Resumed
from hpcdi.store.layout import RunLayout
from hpcdi.utils.log import LOGGER
from hpcdi.utils.registry import BUFFER_REGISTRY
from hpcdi.utils.threads import BackgroundThread
from hpcdi.worker.coordinator.commanders import (
    BaseCommander,
    as_collect_result,
    create_parallel_commander,
)
from hpcdi.worker.ding.convert import compiled, is_compiled
from hpcdi.worker.replay_buffer.advanced_buffer import AdvancedReplayBuffer


class TaskState:
    """A task of a caller, and when it was begun.

    Args:
        task_id: its name.
        start_time: seconds since the epoch; None: now.
    """

    def __init__(self, task_id: str, start_time: float | None = None) -> None:
        self.task_id = task_id
        self.start_time = time.time() if start_time is None else start_time


def _make_buffer(config: ExperimentConfig, curves: Any, name: str) -> AdvancedReplayBuffer:
    """A buffer of items, of the kind that an experiment has."""
    settings = config.policy.other.replay_buffer
    buffer: AdvancedReplayBuffer = component_class(BUFFER_REGISTRY, settings)(
        settings,
        curves,
        config.exp_name,
        name,
        rng=np.random.default_rng([config.seed, *name.encode()]),
        prioritized=config.policy.priority,
    )
    return buffer


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

    def files(self) -> list[str]:
        """Data ids that items have now; see `take_needed`."""
        ids = (data_id for buffer in self._buffers.values() for data_id in buffer.data_ids())
        return list(dict.fromkeys(ids))

    def close(self, task_id: str, buffer_id: str = "") -> None:
        """Drop the buffer of a learner task, or that of a name; its files stay."""
        for name in (self._of_task.pop(task_id, ""), buffer_id):
            self._buffers.pop(name, None)

    def state_dict(self) -> dict[str, Any]:
        """State of each buffer, by name."""
        return {name: buffer.state_dict().own for name, buffer in self._buffers.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Replace all buffers by those of a `state_dict`."""
        self._buffers.clear()
        for name, state in state_dict.items():
            self._buffers[name] = self._make_buffer(name)
            self._buffers[name].load_state_dict(state)


class Coordinator(RunCoordinator, Configurable):
    """Rank 0 with DI-engine's callbacks, of which a lock keeps the loop's thread apart.

    Args:
        cfg: an `ExperimentConfig`, or DI-engine's mapping with ``main`` and ``system``.
        link: to the workers; by default a world of its own, for use as a library.
        layout: the run folder; without one nothing is written.
        workers: ranks that take part; by default all others of the link's world.
        is_terminal: whether a person watches the progress line.
    """

    Config = CoordinatorConfig
    UNUSED: ClassVar[Mapping[str, Any]] = {"operator_server": {}}

    def __init__(
        self,
        cfg: Any,
        link: Link | None = None,
        layout: RunLayout | None = None,
        workers: Sequence[int] | None = None,
        *,
        is_terminal: bool = False,
    ) -> None:
        config = as_experiment(cfg)
        super().__init__(
            config,
            link if link is not None else LocalWorld(1).link(0),
            layout,
            workers,
            make_commander=create_parallel_commander,
            is_terminal=is_terminal,
        )
        self._lock = threading.RLock()
        self._tasks: dict[str, TaskState] = {}
        self._items = ItemBuffers(partial(_make_buffer, config, self._view.curves))
        self._thread: BackgroundThread | None = None

    # ---------------------------------------------------------------------------------------- life

    def start(self) -> None:
        """Run the loop in a thread; under MPI, call `run` on the main thread instead."""
        if self._thread is None:
            self._thread = BackgroundThread(self.run, "coordinator")

    def turn(self, now: float, request: Message | None = None) -> bool:
        """See `RunCoordinator.turn`."""
        with self._lock:
            return super().turn(now, request)

    def summary(self) -> list[str]:
        """See `RunCoordinator.summary`; also while the run is on."""
        with self._lock:
            return super().summary()

    def figures(self) -> dict[str, Any]:
        """See `RunCoordinator.figures`; also while the run is on."""
        with self._lock:
            return super().figures()

    def close(self) -> None:
        """End the run, if it is on, and close what is open. Idempotent."""
        with self._lock:
            self._orders += self._scheduler.stop(Outcome("stopped", "closed", 0), time.monotonic())
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        super().close()
        if thread is not None:
            thread.check()

    @property
    def system_shutdown_flag(self) -> bool:
        """True if the run has reached its end; once true it stays true."""
        return not self._scheduler.is_on

    # --------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """See `RunCoordinator.state_dict`; with callers' tasks and buffers."""
        with self._lock:
            tasks = {task.task_id: task.start_time for task in self._tasks.values()}
            items = {"items": self._items.state_dict(), "item_files": self._items.files()}
            return {**super().state_dict(), "tasks": tasks, **items}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a `state_dict`, except for blocks that learners must read again first.

        An empty one, DI-engine's, changes nothing.
        """
        if not state_dict:
            return
        with self._lock:
            super().load_state_dict(state_dict)
            self._restore_items(state_dict)

    def resume(self, resumed: Resumed) -> None:
        """See `RunCoordinator.resume`."""
        with self._lock:
            super().resume(resumed)
            self._restore_items(resumed.state)

    def _restore_items(self, state: Mapping[str, Any]) -> None:
        """Restore callers' tasks and buffers; a snapshot of `hpcdi train` has none."""
        self._items.load_state_dict(state.get("items", {}))
        self._tasks = {name: TaskState(name, at) for name, at in state.get("tasks", {}).items()}

    def _tend_files(self) -> None:
        with self._lock:
            needed, freed = self._items.take_needed(), self._items.take_freed()
            if self._keeper is not None:
                self._keeper.need(needed)
                self._keeper.drop(freed)
            super()._tend_files()

    # ----------------------------------------------------------------------------------- callbacks

    def deal_with_collector_send_data(
        self, task_id: str, buffer_id: str, data_id: str, data: Mapping[str, Any]
    ) -> None:
        """Add one item's metadata to a buffer."""
        with self._lock:
            self._tasks.setdefault(task_id, TaskState(task_id))
            self._items.push(buffer_id, data_id, data)

    def deal_with_collector_finish_task(
        self, task_id: str, finished_task: Mapping[str, Any]
    ) -> None:
        """Hand over the result of a collect or evaluation task; None is as if it were not there.

        Raises:
            ReturnError: one of ``reward_raw`` is not one number, or an evaluation says no return.
        """
        result = as_collect_result(task_id, finished_task)
        with self._lock:
            self._tasks.pop(task_id, None)
            self._hand_over(result)

    def deal_with_learner_get_data(
        self, task_id: str, buffer_id: str, batch_size: int, cur_learner_iter: int
    ) -> list[dict[str, Any]] | None:
        """Draw items' metadata; None where there are too few."""
        with self._lock:
            self._tasks.setdefault(task_id, TaskState(task_id))
            return self._items.sample(task_id, buffer_id, batch_size, cur_learner_iter)

    def deal_with_learner_send_info(
        self, task_id: str, buffer_id: str, info: Mapping[str, Any]
    ) -> None:
        """Hand over a learner's new priorities and its iteration."""
        with self._lock:
            if info.get("priority_info"):
                self._items.update(buffer_id, info["priority_info"])
            self._commander.update_learner_info(task_id, info)
            self._hand_over(LearnInfo(task_id, int(info.get("learner_step", 0)), {}, {}))

    def deal_with_learner_finish_task(self, task_id: str, finished_task: Mapping[str, Any]) -> None:
        """End a learner's task, and drop its buffer: also the one that ``buffer_id`` names."""
        with self._lock:
            self._tasks.pop(task_id, None)
            self._items.close(task_id, str(finished_task.get("buffer_id", "")))
            self._hand_over(LearnResult(task_id, int(finished_task.get("learner_step", 0))))

    def deal_with_collector_judge_finish(self, task_id: str, data: Mapping[str, Any]) -> bool:
        """Returns whether a collector's data mean that its task has ended."""
        return self._commander.judge_collector_finish(task_id, data)

    def deal_with_learner_judge_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Returns whether a learner's info means that its task has ended."""
        return self._commander.judge_learner_finish(task_id, info)

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

    @property
    def _commander(self) -> BaseCommander:
        return cast(BaseCommander, self._scheduler.commander)

    def _hand_over(self, message: Message) -> None:
        self._orders += self._scheduler.request(message, time.monotonic())


def as_experiment(cfg: Any) -> ExperimentConfig:
    """The experiment itself, or compiled from DI-engine's mapping with ``main`` and ``system``.

    What DI-engine's ``compile_config_parallel`` returns is taken as it is: its policy and
    environment are DI-engine's, and its addresses mean nothing.

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
    if is_compiled(mapping.get("system", {})):
        mapping |= compiled(main, mapping["system"])
        main = {}
    config = compile_config({**main, **mapping}, source).config
    problems = check_over_ranks(config)
    if problems:
        raise ConfigError(problems, source)
    return config
