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

import copy
import dataclasses
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from hpcdi.comm.messages import DataDemand, LearnInfo, LearnResult, LearnTask, WorkerReady
from hpcdi.config.fields import Parser
from hpcdi.config.replay import ThruputControllerConfig
from hpcdi.errors import CommError
from hpcdi.replay.limits import Limits
from hpcdi.replay.monitor import PeriodicThruput as PeriodicThruputMonitor
from hpcdi.replay.monitor import SampledData as SampledDataAttrMonitor
from hpcdi.roles.coordinator.groups import Learners
from hpcdi.roles.coordinator.workers import Worker
from hpcdi.utils.log import LOGGER
from hpcdi.worker.replay_buffer.state import generate_id as generate_id
from hpcdi.worker.slave import Slave

__all__ = [
    "CachePool",
    "CommCoordinator",
    "LearnerAggregator",
    "LearnerAggregatorSlave",
    "NaiveResourceManager",
    "OperatorServer",
    "PeriodicThruputMonitor",
    "SampledDataAttrMonitor",
    "TableLog",
    "ThruputController",
    "TickMonitor",
    "TrajBuffer",
    "UsedDataRemover",
    "generate_id",
    "get_simple_monitor_type",
    "register",
]

_HERE = "hpcdi.worker.names"
_SLAVES = "hpcdi.worker.slave"
_COORDINATOR = "hpcdi.worker.coordinator"
OLD_PATHS = {
    "adapter": _HERE,
    "adapter.learner_aggregator": _HERE,
    "collector.base_parallel_collector": "hpcdi.worker.collector.parallel_collectors",
    "collector.base_serial_evaluator": "hpcdi.worker.collector.evaluation",
    "collector.battle_episode_serial_collector": "hpcdi.worker.collector.serial_collectors",
    "collector.battle_interaction_serial_evaluator": "hpcdi.worker.collector.evaluation",
    "collector.battle_sample_serial_collector": "hpcdi.worker.collector.serial_collectors",
    "collector.comm.mpi_fs_collector": "hpcdi.roles.collector.mpi_fs_collector",
    "collector.comm.slave": "hpcdi.worker.collector.comm.flask_fs_collector",
    "collector.comm.utils": _SLAVES,
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
    "learner.comm.utils": _SLAVES,
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
    """Free and assigned workers by kind, "collector" or "learner"; the longest free comes first.

    Another kind is an AssertionError.
    """

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
        self._check(name)
        return worker_id in self._assigned[name]

    def update(self, name: str, worker_id: str, resource_info: Any) -> None:
        """Register a free worker and its resources, or free an assigned one."""
        self._check(name)
        self._assigned[name].pop(worker_id, None)
        self._free[name][worker_id] = resource_info

    def delete(self, name: str, worker_id: str) -> bool:
        """Forget a worker; returns whether it was known."""
        self._check(name)
        known = worker_id in self._free[name] or worker_id in self._assigned[name]
        self._free[name].pop(worker_id, None)
        self._assigned[name].pop(worker_id, None)
        return known

    def _check(self, name: str) -> None:
        if name not in self._free:
            raise AssertionError(f"a worker is one of {sorted(self._free)}, not {name!r}")

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


# ---------------------------------------------------------------------------------- logs and means


_COLUMNS = 4


class TableLog(logging.LoggerAdapter[logging.Logger]):
    """hpcdi's log, with tables for hooks and evaluators of a user's own."""

    def __init__(self) -> None:
        super().__init__(LOGGER, {})

    def get_tabulate_vars(self, variables: Mapping[str, Any]) -> str:
        """Returns a table with a line for each name and its value."""
        width = max(map(len, variables), default=0)
        return "".join(f"\n{name:<{width}}  {_text(one)}" for name, one in variables.items())

    def get_tabulate_vars_hor(self, variables: Mapping[str, Any]) -> str:
        """Returns a table with names above their values, four side by side."""
        pairs = [(name, _text(one)) for name, one in variables.items()]
        lines = []
        for start in range(0, len(pairs), _COLUMNS):
            part = pairs[start : start + _COLUMNS]
            widths = [max(map(len, pair)) for pair in part]
            lines += [
                "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
                for row in zip(*part, strict=True)
            ]
        return "".join(f"\n{line.rstrip()}" for line in lines)


def _text(value: Any) -> str:
    try:
        return f"{float(value):.6f}"
    except (TypeError, ValueError):
        return str(value)


class TickMonitor:
    """Means of the last values of a learner's variables, as DI-engine's hooks read them.

    A number that is set is a variable's newest value, which is what is read; ``avg[name]()`` and
    ``val[name]()`` are the mean of the values that are kept, and the newest one.

    Args:
        time_: attribute `time`; not used otherwise: every value that is set counts.
        expire: values of each variable that are kept.
    """

    def __init__(self, time_: Any = None, expire: float = 10) -> None:
        values: dict[str, deque[float]] = {}
        vars(self).update(
            _values=values,
            _expire=int(expire),
            time=time_,
            avg=_Figures(values, lambda kept: sum(kept) / max(len(kept), 1)),
            val=_Figures(values, lambda kept: kept[-1] if kept else 0.0),
        )

    def __setattr__(self, name: str, value: float) -> None:
        values: dict[str, deque[float]] = vars(self)["_values"]
        values.setdefault(name, deque(maxlen=vars(self)["_expire"])).append(float(value))

    def __getattr__(self, name: str) -> float:
        if values := vars(self).get("_values", {}).get(name):
            return float(values[-1])
        raise AttributeError(f"no value of {name!r} was set")


class _Figures(dict[str, Callable[[], float]]):
    """Name -> function that returns a figure of a variable's values."""

    def __init__(self, values: Mapping[str, Any], figure: Callable[[Any], float]) -> None:
        super().__init__()
        self._values, self._figure = values, figure

    def __missing__(self, name: str) -> Callable[[], float]:
        return lambda: self._figure(self._values.get(name, ()))


def get_simple_monitor_type(properties: Sequence[str] = ()) -> type[TickMonitor]:  # noqa: ARG001
    """Returns the class of monitors; variables need not be declared."""
    return TickMonitor


# --------------------------------------------------------------------------------------- collectors


class CachePool:
    """The last value of each environment, e.g. its observation or its policy's output.

    Of several players it is a list, one value a player, None where a player has none yet.

    Args:
        name: for messages.
        env_num: environments.
        deepcopy: keep copies, for environments that write each value over the one before.
    """

    def __init__(self, name: str, env_num: int, deepcopy: bool = False) -> None:
        self._name, self._deepcopy = name, deepcopy
        self._values: list[list[Any] | None] = [None] * env_num

    def update(self, data: Mapping[int, Any] | list[Mapping[int, Any]]) -> None:
        """Set values by environment: of one player, or of each of several.

        Raises:
            TypeError: `data` is neither a mapping nor a list of such.
        """
        of_players: Sequence[object] = data if isinstance(data, list) else [data]
        for player, values in enumerate(of_players):
            if not isinstance(values, Mapping):
                message = f"{self._name} takes values by environment"
                raise TypeError(f"{message}, not a {type(values).__name__}")
            for env, value in values.items():
                kept = [*(self._values[env] or ())]
                if len(kept) != len(of_players):
                    kept = [None] * len(of_players)
                kept[player] = copy.deepcopy(value) if self._deepcopy else value
                self._values[env] = kept

    def __getitem__(self, env: int) -> Any:
        values = self._values[env]
        return values[0] if values is not None and len(values) == 1 else values

    def reset(self, idx: int) -> None:
        """Forget an environment's value."""
        self._values[idx] = None


class TrajBuffer(list[Any]):
    """The newest `maxlen` transitions of a trajectory.

    Args:
        maxlen: how many; None or infinity: all.
        args: first items, an iterable.
        deepcopy: keep copies.
    """

    maxlen: float | None = None  # these two for pickle, which appends the items first
    _deepcopy: bool = False

    def __init__(
        self,
        maxlen: float | None,
        *args: Iterable[Any],
        deepcopy: bool = False,
    ) -> None:
        super().__init__(*args)
        self.maxlen, self._deepcopy = maxlen, deepcopy
        self._shorten()

    def append(self, data: Any) -> None:
        """Append an item; the oldest is dropped where there are too many."""
        super().append(copy.deepcopy(data) if self._deepcopy else data)
        self._shorten()

    def extend(self, data: Iterable[Any]) -> None:
        """Append several items; see `append`."""
        super().extend(copy.deepcopy(list(data)) if self._deepcopy else data)
        self._shorten()

    def __iadd__(self, items: Iterable[Any]) -> Self:  # type: ignore[misc]  # as extend: any items
        self.extend(items)
        return self

    def _shorten(self) -> None:
        if self.maxlen is not None and len(self) > self.maxlen:
            del self[: len(self) - int(self.maxlen)]


# ----------------------------------------------------------------------------------- replay buffers


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

    def add_used_data(self, data: Any) -> None:
        """Remove the file of an item, its ``data_id``.

        Raises:
            AssertionError: it has none.
        """
        if not isinstance(data, Mapping) or "data_id" not in data:
            raise AssertionError(f"an item that was used names its file by 'data_id', not {data!r}")
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
