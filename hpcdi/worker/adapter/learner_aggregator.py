"""A group of learners that share their gradients, seen as one learner.

The seeds' public class: rank 0 itself asks `worker.coordinator.workers`, which this wraps::

    rank 1 ──DataDemand──┐
    rank 2 ──DataDemand──┴─► LearnerAggregator ──► one DataDemand: the batches that all have asked
                                                   for, batch sizes summed
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.comm.messages import DataDemand, LearnInfo, LearnResult, LearnTask, WorkerReady
from hpcdi.errors import CommError
from hpcdi.worker.coordinator.workers import Workers

_OF_THE_GROUP = ("learner_step", "buffer_id", "task_id", "learner_done")
"""Keys of a learner's info that are the same on all members."""
_TASKS = {
    "learner_start_task": "deal_with_learner_start",
    "learner_get_data_task": "deal_with_get_data",
    "learner_learn_task": "deal_with_learn",
}
"""Name of a task dict -> what is called with it."""


class LearnerAggregatorSlave:
    """Translates the task dicts of DI-engine's callers into calls of an aggregator.

    Args:
        callback_fn: ``deal_with_get_resource, deal_with_learner_start, deal_with_get_data,
            deal_with_learn``.
    """

    def __init__(
        self, *_args: Any, callback_fn: Mapping[str, Callable[..., Any]], **_kwargs: Any
    ) -> None:
        self._callback_fn = callback_fn

    def _process_task(self, task: Mapping[str, Any]) -> Any:
        """Does a task: ``resource``, or ``learner_*_task`` of ``start, get_data, learn``.

        Raises:
            CommError: the task is of another name.
        """
        name = task.get("name")
        if name == "resource":
            return self._callback_fn["deal_with_get_resource"]()
        if name not in _TASKS:
            raise CommError(f"a learner aggregator knows no task {name!r}")
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
        self._workers = Workers((), learners=self.size)

    def close(self) -> None:
        """End the present task, whatever the members send afterwards."""
        self._workers.end_learn_task()

    def join(self, rank: int, ready: WorkerReady) -> None:
        """A member has reported."""
        self._workers.report(rank, ready)

    @property
    def is_complete(self) -> bool:
        """True if all members have reported."""
        return len(self._workers.available("learner")) >= self.size

    def deal_with_get_resource(self) -> dict[str, int]:
        """Sum of ``gpu`` and ``cpu`` over all members that have reported."""
        members = self._workers.available("learner")
        return {"gpu": sum(m.gpus for m in members), "cpu": sum(m.cpus for m in members)}

    def deal_with_learner_start(self, task: LearnTask) -> dict[int, LearnTask]:
        """The task, for each member.

        Raises:
            CommError: members are missing, or do another task.
        """
        if not self.is_complete:
            come = len(self._workers.available("learner"))
            raise CommError(f"{come} of {self.size} learners have come; all are needed")
        if self._workers.learn_task is not None:
            raise CommError(f"the learners do task {self._workers.learn_task.task_id} still")
        return dict.fromkeys(self._workers.start_learners(task, 0.0), task)

    def deal_with_get_data(self, task: DataDemand, rank: int = 0) -> DataDemand | None:
        """The group's demand, once every member has asked since its last one; None until then.

        Its `train_iter` is what all members have done. New priorities are not in it: those are for
        the member's own part of the buffer.
        """
        demands = self._workers.group_demand(rank, task)
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
        """A member's message with the means of all members; see `Workers.group_info`."""
        return self._workers.group_info(rank, task)

    def deal_with_learner_close(self, task: LearnResult, rank: int = 0) -> LearnResult | None:
        """The group's result once all members have ended the task; see `Workers.group_result`."""
        return self._workers.group_result(rank, task)

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
                name: found[0] if name in _OF_THE_GROUP else LearnerAggregator.merge_info(found)
                for name, found in values.items()
            }
        if isinstance(info[0], list | tuple):
            return [element for one in info for element in one]
        return list(info)
