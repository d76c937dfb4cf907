"""Names of ``ding.worker`` that nothing here uses: they are for callers of DI-engine.

`register` makes its import paths work where code lies elsewhere here, so that for instance
``from hpcdi.worker.collector.sample_serial_collector import SampleSerialCollector`` imports
`hpcdi.worker.collector.serial_collectors`. Then come the classes and functions that only such
callers need; `LearnerAggregator` shows the several learners of a run as one::

    rank 1 ──DataDemand──┐
    rank 2 ──DataDemand──┴─► LearnerAggregator ──► one DataDemand: the batches that all have asked
                                                   for, batch sizes summed
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hpcdi.comm.messages import DataDemand, LearnInfo, LearnResult, LearnTask, WorkerReady
from hpcdi.config.fields import Parser
from hpcdi.config.replay import ThruputControllerConfig
from hpcdi.config.schema import SystemConfig
from hpcdi.errors import CommError
from hpcdi.replay.limits import Limits
from hpcdi.replay.monitor import PeriodicThruput as PeriodicThruputMonitor
from hpcdi.replay.monitor import SampledData as SampledDataAttrMonitor
from hpcdi.roles.coordinator.groups import Learners
from hpcdi.roles.coordinator.workers import Worker
from hpcdi.store.block import Block
from hpcdi.store.layout import RunLayout
from hpcdi.transport import open_transport
from hpcdi.types import ITEM_DTYPE
from hpcdi.utils.nested import stack_columns
from hpcdi.worker.slave import Slave, TaskFail

__all__ = [
    "CommCoordinator",
    "LearnerAggregator",
    "LearnerAggregatorSlave",
    "NaiveCollector",
    "NaiveLearner",
    "NaiveResourceManager",
    "OperatorServer",
    "PeriodicThruputMonitor",
    "SampledDataAttrMonitor",
    "ThruputController",
    "UsedDataRemover",
    "generate_id",
    "register",
]

_HERE = "hpcdi.worker.names"
_COLLECTOR = "hpcdi.roles.collector"
_COORDINATOR = "hpcdi.worker.coordinator"
OLD_PATHS = {
    "adapter": _HERE,
    "adapter.learner_aggregator": _HERE,
    "collector.base_parallel_collector": f"{_COLLECTOR}.base_parallel_collector",
    "collector.base_serial_evaluator": "hpcdi.worker.collector.evaluation",
    "collector.battle_episode_serial_collector": "hpcdi.worker.collector.serial_collectors",
    "collector.battle_interaction_serial_evaluator": "hpcdi.worker.collector.evaluation",
    "collector.battle_sample_serial_collector": "hpcdi.worker.collector.serial_collectors",
    "collector.comm.mpi_fs_collector": f"{_COLLECTOR}.mpi_fs_collector",
    "collector.comm.slave": "hpcdi.worker.collector.comm.flask_fs_collector",
    "collector.comm.utils": _HERE,
    "collector.episode_serial_collector": "hpcdi.worker.collector.serial_collectors",
    "collector.interaction_serial_evaluator": "hpcdi.worker.collector.evaluation",
    "collector.marine_parallel_collector": "hpcdi.worker.collector.parallel_collectors",
    "collector.sample_serial_collector": "hpcdi.worker.collector.serial_collectors",
    "collector.zergling_parallel_collector": "hpcdi.worker.collector.parallel_collectors",
    "coordinator.base_parallel_commander": f"{_COORDINATOR}.commanders",
    "coordinator.base_serial_commander": f"{_COORDINATOR}.commanders",
    "coordinator.comm_coordinator": _HERE,
    "coordinator.one_vs_one_parallel_commander": f"{_COORDINATOR}.commanders",
    "coordinator.operator_server": _HERE,
    "coordinator.resource_manager": _HERE,
    "coordinator.solo_parallel_commander": f"{_COORDINATOR}.commanders",
    "learner.comm.utils": _HERE,
    "replay_buffer.elastic_buffer": "hpcdi.worker.replay_buffer.naive_buffer",
    "replay_buffer.sequence_buffer": "hpcdi.worker.replay_buffer.naive_buffer",
    "replay_buffer.utils": _HERE,
}
"""Path below `hpcdi.worker` -> the module that is imported instead."""


def register(package: str) -> None:
    """Make all `OLD_PATHS` importable.

    Args:
        package: name of `hpcdi.worker`.
    """
    for name in ("collector", "learner"):
        import_module(f"{package}.{name}.comm")
    for old, new in OLD_PATHS.items():
        module = import_module(new)
        parent, _, name = f"{package}.{old}".rpartition(".")
        sys.modules[f"{parent}.{name}"] = module
        setattr(sys.modules[parent], name, module)


# -------------------------------------------------------------------------------------- coordinator


class Absent:
    """A class that cannot be made; subclasses say why, and what to use.

    Raises:
        CommError: always.
    """

    instead: ClassVar[str]

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        raise CommError(f"{type(self).__name__}: {self.instead}")


class CommCoordinator(Absent):
    """It connected the coordinator to its workers."""

    instead = "ranks of an MPI program are connected from the start; use hpcdi.worker.Coordinator"


class OperatorServer(Absent):
    """It asked a Kubernetes operator for more workers."""

    instead = "MPI starts all ranks; `hpcdi scale <run> <collectors>` lets more or fewer work"


class NaiveResourceManager:
    """Free and assigned workers by kind, "collector" or "learner"; the longest free comes first."""

    def __init__(self) -> None:
        self._free: dict[str, dict[str, Any]] = {"collector": {}, "learner": {}}
        self._assigned: dict[str, dict[str, Any]] = {"collector": {}, "learner": {}}

    def assign_collector(self, collector_task: Any = None) -> dict[str, Any] | None:  # noqa: ARG002
        """Returns ``{"collector_id", "resource_info"}`` of a free collector, or None."""
        return self._assign("collector")

    def assign_learner(self, learner_task: Any = None) -> dict[str, Any] | None:  # noqa: ARG002
        """Returns ``{"learner_id", "resource_info"}`` of a free learner, or None."""
        return self._assign("learner")

    def have_assigned(self, name: str, worker_id: str) -> bool:
        """Returns whether a worker is assigned."""
        return worker_id in self._assigned[name]

    def update(self, name: str, worker_id: str, resource_info: Any) -> None:
        """Register a free worker and its resources, or free an assigned one."""
        self._assigned[name].pop(worker_id, None)
        self._free[name][worker_id] = resource_info

    def delete(self, name: str, worker_id: str) -> bool:
        """Forget a worker; returns whether it was known."""
        known = worker_id in self._free[name] or worker_id in self._assigned[name]
        self._free[name].pop(worker_id, None)
        self._assigned[name].pop(worker_id, None)
        return known

    def _assign(self, name: str) -> dict[str, Any] | None:
        if not self._free[name]:
            return None
        id_ = next(iter(self._free[name]))
        info = self._free[name].pop(id_)
        self._assigned[name][id_] = info
        return {f"{name}_id": id_, "resource_info": info}


# ----------------------------------------------------------------------------------------- learners


_OF_THE_GROUP = ("learner_step", "buffer_id", "task_id", "learner_done")
"""Keys of a learner's info that are the same on all members."""
_TASKS = {
    "learner_start_task": "deal_with_learner_start",
    "learner_get_data_task": "deal_with_get_data",
    "learner_learn_task": "deal_with_learn",
}
"""Name of a task dict -> what is called with it."""


class LearnerAggregatorSlave(Slave):
    """Translates the task dicts of DI-engine's callers into calls of an aggregator.

    Args:
        callback_fn: ``deal_with_get_resource, deal_with_learner_start, deal_with_get_data,
            deal_with_learn``.
    """

    def _process_task(self, task: Mapping[str, Any]) -> Any:
        """Do a task: ``resource``, or ``learner_*_task`` of ``start, get_data, learn``.

        Raises:
            TaskFail: the task is of another name.
        """
        name = task.get("name")
        if name == "resource":
            return self._callback_fn["deal_with_get_resource"]()
        if name not in _TASKS:
            raise self._unknown(task, "learner aggregator")
        return self._callback_fn[_TASKS[name]](task)


class LearnerAggregator:
    """Several learners behind the interface of one.

    Args:
        cfg: ``learner``: the members' ranks. Older configurations have addresses there, by name:
            those mean nothing among MPI ranks, and only count.
    """

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        self.size = len(cfg["learner"])
        self.start()

    def start(self) -> None:
        """Forget all members: they are to report (again)."""
        self._learners = Learners(self.size)

    def close(self) -> None:
        """End the present task, whatever the members send afterwards."""
        self._learners.end_task()

    def join(self, rank: int, ready: WorkerReady) -> None:
        """A member has reported."""
        worker = Worker(rank)
        worker.enter(ready)
        self._learners.add(worker)

    @property
    def is_complete(self) -> bool:
        """True if all members have reported."""
        return len(self._learners) >= self.size

    def deal_with_get_resource(self) -> dict[str, int]:
        """Sum of ``gpu`` and ``cpu`` over all members that have reported."""
        members = list(self._learners)
        return {"gpu": sum(m.gpus for m in members), "cpu": sum(m.cpus for m in members)}

    def deal_with_learner_start(self, task: LearnTask) -> dict[int, LearnTask]:
        """The task, for each member.

        Raises:
            CommError: members are missing, or do another task.
        """
        if not self.is_complete:
            come = len(self._learners)
            raise CommError(f"{come} of {self.size} learners have reported; all are needed")
        if self._learners.task is not None:
            present = self._learners.task.task_id
            raise CommError(f"the learners are still doing task {present}")
        self._learners.begin(task, 0.0)
        return dict.fromkeys(self._learners.ranks, task)

    def deal_with_get_data(self, task: DataDemand, rank: int = 0) -> DataDemand | None:
        """The group's demand, once every member has asked since its last one; None until then.

        Its `train_iter` is what all members have done. New priorities are not in it: those are for
        the member's own part of the buffer.
        """
        self._member(rank).demand = task
        demands = self._learners.take_demands()
        if demands is None:
            return None
        return dataclasses.replace(
            task,
            batches=min(d.batches for d in demands),
            batch_size=sum(d.batch_size for d in demands),
            train_iter=min(d.train_iter for d in demands),
            unique_ids=np.zeros(0, dtype=np.int64),
            priorities=np.zeros(0),
        )

    def deal_with_learn(self, task: LearnInfo, rank: int = 0) -> LearnInfo:
        """A member's message with the means of all members; see `Learners.average`."""
        return self._learners.average(self._member(rank), task)

    def deal_with_learner_close(self, task: LearnResult, rank: int = 0) -> LearnResult | None:
        """The group's result once all members have ended the task; None until then."""
        present = self._learners.task
        if present is None or task.task_id != present.task_id:
            return task
        self._member(rank).result = task
        return self._learners.group_result()

    def _member(self, rank: int) -> Worker:
        """Returns the record of a member.

        Raises:
            CommError: it has not reported.
        """
        member = next((worker for worker in self._learners if worker.rank == rank), None)
        if member is None:
            raise CommError(f"rank {rank} is no member of this group: {self._learners.ranks} are")
        return member

    @staticmethod
    def merge_info(info: Sequence[Any]) -> Any:
        """Merge the infos of all members into one.

        Args:
            info: one of each member: mappings alike, or sequences, or single values.

        Returns:
            Of mappings, one whose values are merged, key by key, where they are there; what is the
            same on all members (``learner_step, buffer_id, task_id, learner_done``) is the first
            one's. Of sequences, all elements in turn; of anything else, a list.
        """
        if not info:
            return []
        if isinstance(info[0], Mapping):
            names = dict.fromkeys(name for one in info for name in one)
            values = {name: [one[name] for one in info if name in one] for name in names}
            return {
                name: infos[0] if name in _OF_THE_GROUP else LearnerAggregator.merge_info(infos)
                for name, infos in values.items()
            }
        if isinstance(info[0], list | tuple):
            return [element for one in info for element in one]
        return list(info)


_NAIVE_BATCHES = 6
_MARKS = ("replay_unique_id", "replay_buffer_idx", "priority")


class NaiveLearner(Slave):
    """Asks for batches of two, returns their priorities as they are, and ends after six of them.

    Args:
        _args: addresses, which mean nothing here.
        prefix: for callers that name its files; it writes none.
    """

    def __init__(self, *_args: Any, prefix: str = "", **_kwargs: Any) -> None:
        super().__init__()
        self._prefix = prefix
        self._task: dict[str, Any] = {}
        self._count = 0

    def _process_task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Do task ``resource``, or ``learner_*_task`` of ``start, get_data, learn, close``.

        Raises:
            TaskFail: the task has another name, comes before a start, or has no data.
        """
        name = task.get("name")
        if name == "resource":
            return {"gpu": 0, "cpu": 1}
        if name == "learner_start_task":
            self._task = {key: task["task_info"][key] for key in ("task_id", "buffer_id")}
            self._count = 0
            return {"message": "learner task has started"}
        if not self._task:
            raise TaskFail(None, f"a naive learner cannot do {name!r} before it is started")
        if name == "learner_get_data_task":
            return {**self._task, "batch_size": 2, "cur_learner_iter": 1}
        if name == "learner_learn_task" and task.get("data"):
            self._count += 1
            marks = {key: [item[key] for item in task["data"]] for key in _MARKS}
            info = {"learner_step": self._count, "priority_info": marks}
            info["learner_done"] = self._count >= _NAIVE_BATCHES
            return {**self._task, "info": info}
        if name == "learner_close_task":
            return dict(self._task)
        raise TaskFail({"message": "task name error"}, f"a naive learner cannot do {name!r} now")


# --------------------------------------------------------------------------------------- collectors


_NAIVE_FILES = 20
_NAIVE_STEPS = 16


class NaiveCollector(Slave):
    """Publishes twenty shards of random steps, one a data task, then reports that it is done.

    Args:
        layout: the run folder; anything else, such as an address: the present folder.
        prefix: goes before the task's name in the shards' paths.
        seed: of the random steps.
    """

    def __init__(self, layout: Any = None, *_args: Any, prefix: str = "", seed: int = 0) -> None:
        super().__init__()
        layout = layout if isinstance(layout, RunLayout) else RunLayout(Path.cwd())
        self._transport, self._prefix = open_transport(SystemConfig(), layout), prefix
        self._rng = np.random.default_rng(seed)
        self._task: dict[str, Any] = {}
        self._count = 0

    def _process_task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Run task ``resource, collector_start_task, collector_data_task, collector_close_task``.

        Raises:
            TaskFail: the task has another name, or comes before a start.
        """
        name = task.get("name")
        if name == "resource":
            return {"gpu": 0, "cpu": 1}
        if name == "collector_start_task":
            self._task, self._count = dict(task["task_info"]), 0
            return {"message": "collector task has started"}
        if name == "collector_data_task" and self._task:
            return self._next_data()
        if name == "collector_close_task" and self._task:
            self._task = {}
            return {"collector_done": True, "step_count": self._count * _NAIVE_STEPS}
        raise TaskFail({"message": "task name error"}, f"a naive collector cannot do {name!r} now")

    def _next_data(self) -> dict[str, Any]:
        names = {key: self._task[key] for key in ("task_id", "buffer_id")}
        if self._count == _NAIVE_FILES:
            return {"collector_done": True, "cur_step": self._count * _NAIVE_STEPS, **names}
        self._count += 1
        path = f"data/naive/{self._prefix}{self._task['task_id']}/{self._count:06d}.h5"
        publisher = self._transport.publisher(lambda _shard, _block: None)
        items = np.zeros(1, dtype=ITEM_DTYPE)
        items["item_len"] = _NAIVE_STEPS
        publisher.submit(path, Block(stack_columns(self._get_timestep()), items))
        publisher.close()
        return {"collector_done": False, "data_id": path, "unroll_len": _NAIVE_STEPS, **names}

    def _get_timestep(self) -> list[dict[str, Any]]:
        """Random steps of one environment, sixteen."""
        return [
            {
                "obs": self._rng.random(4, dtype=np.float32),
                "action": self._rng.integers(0, 2),
                "reward": self._rng.random(dtype=np.float32),
                "done": np.False_,
            }
            for _ in range(_NAIVE_STEPS)
        ]


# ----------------------------------------------------------------------------------- replay buffers


def generate_id(name: str, data_id: int) -> str:
    """The ``replay_unique_id`` of a buffer's item."""
    return f"{name}_{data_id}"


class UsedDataRemover:
    """Removes data files that are named to it: at once after `start`, else at `close`."""

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._is_on = False

    def start(self) -> None:
        """Remove files at once from now on."""
        self._is_on = True
        self._remove()

    def close(self) -> None:
        """Remove what still waits."""
        self._remove()
        self._is_on = False

    def add_used_data(self, data: Mapping[str, Any]) -> None:
        """Remove the file of an item, its ``data_id``."""
        self._waiting.append(str(data["data_id"]))
        if self._is_on:
            self._remove()

    def _remove(self) -> None:
        while self._waiting:
            Path(self._waiting.pop()).unlink(missing_ok=True)


class ThruputController:
    """Says whether items may be pushed or drawn, by their rate over the last seconds.

    Args:
        cfg: ``push_sample_rate_limit`` with ``min`` and ``max``, and ``window_seconds``.
    """

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        config = Parser().parse(ThruputControllerConfig, cfg)
        self._limits = Limits(config, 0)

    def can_push(self, push_size: int) -> tuple[bool, str]:
        """Whether so many items may be pushed, and the reason."""
        reason = self._limits.why_not_push(push_size)
        return not reason, reason or "Can push."

    def can_sample(self, sample_size: int) -> tuple[bool, str]:
        """Whether so many items may be drawn, and the reason."""
        reason = self._limits.why_not_draw(sample_size, 1 << 62)
        return not reason, reason or "Can sample."

    def note(self, pushed: int = 0, drawn: int = 0) -> None:
        """Items were pushed, or drawn."""
        self._limits.note(pushed, drawn)

    def close(self) -> None:
        """Nothing runs in the background."""
