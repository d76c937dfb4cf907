"""DI-engine's message sides: objects between a learner or collector and who has its data.

A `Slave` is what a master's task dicts are handed to. There it listened at an address; here whoever
plays the master calls `Slave._process_task` itself. `NaiveLearner` and `NaiveCollector` do their
tasks without learning or collecting.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from hpcdi.config.compat import ConfigDict
from hpcdi.config.fields import ComponentConfig, to_mapping
from hpcdi.config.schema import SystemConfig
from hpcdi.dataclass import dataclass
from hpcdi.errors import CommError, Problem
from hpcdi.roles.context import WorkerContext
from hpcdi.store.block import Block
from hpcdi.store.layout import RunLayout
from hpcdi.transport import open_transport
from hpcdi.types import ITEM_DTYPE
from hpcdi.utils.nested import stack_columns
from hpcdi.utils.registry import Registry
from hpcdi.worker.registered import class_of


class TaskFail(CommError):
    """A task could not be done.

    Args:
        result: what its master is to know.
        message: why.
    """

    def __init__(self, result: Mapping[str, Any] | None = None, message: str = "") -> None:
        self.result, self.message = dict(result or {}), message
        super().__init__(message)


class Slave(ABC):
    """Does the tasks of a master.

    Args:
        *_args: an address, which means nothing here.
        callback_fn: functions that it hands tasks to, by name; None: it does them itself.
        **_kwargs: the address, by name.
    """

    CALLBACKS: ClassVar[tuple[str, ...]] = ()
    """Names of the functions in `callback_fn`."""

    def __init__(
        self,
        *_args: Any,
        callback_fn: Mapping[str, Callable[..., Any]] | None = None,
        **_kwargs: Any,
    ) -> None:
        self._callback_fn = callback_fn or {}
        self._task_info: Mapping[str, Any] = {}  # of the last task that was started
        self.is_open = False
        """Whether it has been started, and not closed."""

    @classmethod
    def of(cls, side: object) -> Self:
        """Returns a slave that hands tasks to the methods of an object."""
        return cls(callback_fn={name: getattr(side, name) for name in cls.CALLBACKS})

    def start(self) -> None:
        """Open it; nothing listens: tasks come by `_process_task`."""
        self.is_open = True

    def close(self) -> None:
        """Close it. Idempotent."""
        self.is_open = False

    @abstractmethod
    def _process_task(self, task: Mapping[str, Any]) -> Any:
        """Do a task; returns its result.

        Args:
            task: ``name``, and what else it needs.

        Raises:
            TaskFail: the task is of another name, or cannot be done now.
        """

    def _unknown(self, task: Mapping[str, Any], role: str) -> TaskFail:
        message = f"a {role} knows no task {task.get('name')!r}"
        return TaskFail({"message": "task name error"}, message)

    def _names(self) -> dict[str, Any]:
        """Returns names of the last task that was started: its own, and that of its buffer."""
        return {
            key: self._task_info[key] for key in ("task_id", "buffer_id") if key in self._task_info
        }


# --------------------------------------------------------------------------------- message sides


@dataclass(frozen=True)
class ConfigForPrograms(ComponentConfig):
    """Settings of a class that has no loop of its own: a run over ranks refuses it."""

    OF_RUNS: ClassVar[str]
    """Name of the class that is for such runs."""

    def problems(self) -> Iterator[Problem]:
        """There is one, always."""
        advice = f"derive it from {self.OF_RUNS} to have it on a rank of a run"
        yield Problem("type", f"{self.type!r} is for programs of your own; {advice}")


class CommSide(ABC):
    """Stands between a component and whoever has its data, in a program of a user's own.

    Args:
        cfg: settings, a mapping or a frozen dataclass, which are also attributes; any keys.
    """

    LENT: ClassVar[tuple[str, ...]]
    """Names of its methods that the component gets as its own."""

    def __init__(self, cfg: Any) -> None:
        self._cfg = ConfigDict(to_mapping(cfg if cfg is not None else {}))
        self._end_flag = True

    def start(self) -> None:
        """Accept tasks."""
        self._end_flag = False

    def close(self) -> None:
        """Accept no more tasks. Idempotent."""
        self._end_flag = True

    def _lend_methods(self, component: object) -> None:
        for name in self.LENT:
            setattr(component, name, getattr(self, name))


def comm_side(
    registry: Registry, cfg: Any, context: WorkerContext | None, of_runs: type, alone: type
) -> Any:
    """Returns the message side of a collector or a learner; see `class_of`.

    Args:
        registry: of its kind.
        cfg: its settings.
        context: a rank's place in a run; None: it is for a program of the caller's own.
        of_runs: the class that runs use, which DI-engine's types name, too.
        alone: the class for which these stand in such a program.

    Raises:
        CommError: it is made without a place in a run, and needs one.
    """
    cls = class_of(registry, cfg)
    if context is not None:
        return cls(cfg, context)
    if cls is of_runs and ConfigDict(to_mapping(cfg)).get("type") == "mpi_fs":
        raise CommError(
            f"a {registry.kind} of type mpi_fs needs its place in a run (context=): `hpcdi train` "
            "makes one on each rank; flask_fs is for programs of your own"
        )
    return (alone if cls is of_runs else cls)(cfg)


# ------------------------------------------------------------------- slaves that do without a run


_NAIVE_BATCHES = 6
_MARKS = ("replay_unique_id", "replay_buffer_idx", "priority")


class NaiveLearner(Slave):
    """Asks for batches of two, returns their priorities as they are, and ends after six of them.

    Args:
        _args: addresses, which mean nothing here.
        prefix: for callers that name its files; it writes none.
    """

    def __init__(self, *_args: Any, prefix: str = "", **_kwargs: Any) -> None:  # noqa: ARG002
        super().__init__()
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
            self._task_info, self._count = task["task_info"], 0
            return {"message": "learner task has started"}
        if not self._task_info:
            raise TaskFail(None, f"a naive learner cannot do {name!r} before it is started")
        if name == "learner_get_data_task":
            return {**self._names(), "batch_size": 2, "cur_learner_iter": 1}
        if name == "learner_learn_task" and task.get("data"):
            self._count += 1
            marks = {key: [item[key] for item in task["data"]] for key in _MARKS}
            info = {"learner_step": self._count, "priority_info": marks}
            info["learner_done"] = self._count >= _NAIVE_BATCHES
            return {**self._names(), "info": info}
        if name == "learner_close_task":
            return self._names()
        raise TaskFail({"message": "task name error"}, f"a naive learner cannot do {name!r} now")


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
            self._task_info, self._count = task["task_info"], 0
            return {"message": "collector task has started"}
        if name == "collector_data_task" and self._task_info:
            return self._next_data()
        if name == "collector_close_task" and self._task_info:
            self._task_info = {}
            return {"collector_done": True, "step_count": self._count * _NAIVE_STEPS}
        raise TaskFail({"message": "task name error"}, f"a naive collector cannot do {name!r} now")

    def _next_data(self) -> dict[str, Any]:
        names = self._names()
        if self._count == _NAIVE_FILES:
            return {"collector_done": True, "cur_step": self._count * _NAIVE_STEPS} | names
        self._count += 1
        path = f"data/naive/{self._prefix}{self._task_info['task_id']}/{self._count:06d}.h5"
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
