"""A group of learners that share their gradients, seen as one learner.

Messages of the members go in, those of the whole group come out::

    rank 1 ──DataDemand──┐
    rank 2 ──DataDemand──┴─► LearnerAggregator ──► one DataDemand: the batches that all have asked
                                                   for, batch sizes summed
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.comm.messages import DataDemand, LearnInfo, LearnResult, LearnTask, WorkerReady
from hpcdi.errors import CommError

_OF_THE_GROUP = ("learner_step", "buffer_id", "task_id", "learner_done")
"""Keys of a learner's info that are the same on all members."""


class LearnerAggregator:
    """Rank 0's view of the learners; decides nothing.

    Args:
        cfg: ``learner``: the members' ranks. Older configurations have addresses there, by name:
            those mean nothing among MPI ranks, and only count.
    """

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        self.size = len(cfg["learner"])
        self._ready: dict[int, WorkerReady] = {}
        self._demands: dict[int, DataDemand] = {}
        self._infos: dict[int, LearnInfo] = {}
        self._results: dict[int, LearnResult] = {}
        self._task: LearnTask | None = None

    def start(self) -> None:
        """Forget all members: they are to come (again)."""
        self.close()
        self._ready.clear()

    def close(self) -> None:
        """The present task is over, whatever the members say of it afterwards."""
        self._task = None
        self._demands.clear()
        self._infos.clear()
        self._results.clear()

    def join(self, rank: int, ready: WorkerReady) -> None:
        """A member has come."""
        self._ready[rank] = ready

    def lose(self, rank: int) -> LearnResult | None:
        """A member has died; gives the group's result, where only its own was missing."""
        self.size -= 1
        for known in (self._ready, self._demands, self._infos, self._results):
            known.pop(rank, None)
        results = list(self._results.values())
        return self._whole_result(results[0]) if results else None

    @property
    def members(self) -> dict[int, WorkerReady]:
        """What each member has said as it came, in the order of ranks."""
        return dict(sorted(self._ready.items()))

    @property
    def is_complete(self) -> bool:
        """Whether all members have come."""
        return len(self._ready) >= self.size

    def deal_with_get_resource(self) -> dict[str, int]:
        """``gpu`` and ``cpu`` of all members that have come."""
        members = self._ready.values()
        return {"gpu": sum(m.gpus for m in members), "cpu": sum(m.cpus for m in members)}

    def deal_with_learner_start(self, task: LearnTask) -> dict[int, LearnTask]:
        """The task, for each member.

        Raises:
            CommError: members are missing, or do another task.
        """
        if not self.is_complete:
            raise CommError(f"{len(self._ready)} of {self.size} learners have come; all are needed")
        if self._task is not None:
            raise CommError(f"the learners do task {self._task.task_id} still")
        self._task = task
        return dict.fromkeys(sorted(self._ready), task)

    def deal_with_get_data(self, task: DataDemand, rank: int = 0) -> DataDemand | None:
        """The group's demand, once every member has asked since its last one; None until then.

        Its `train_iter` is what all members have done. New priorities are not in it: those are for
        the member's own part of the buffer.
        """
        self._demands[rank] = task
        if len(self._demands) < self.size:
            return None
        demands, self._demands = list(self._demands.values()), {}
        return dataclasses.replace(
            task,
            batches=min(d.batches for d in demands),
            batch_size=sum(d.batch_size for d in demands),
            train_iter=min(d.train_iter for d in demands),
            unique_ids=np.zeros(0, dtype=np.int64),
            priorities=np.zeros(0),
        )

    def deal_with_learn(self, task: LearnInfo, rank: int = 0) -> LearnInfo:
        """A member's words, with the means of what all have said last in the place of its own.

        A scalar that some members do not give is the mean over those who do; `shares` stay the
        member's.
        """
        self._infos[rank] = task
        infos = self._infos.values()
        merged = self.merge_info([i.scalars for i in infos])
        means = {name: float(np.mean(values)) for name, values in merged.items()}
        done = min(i.train_iter for i in infos) if len(infos) == self.size else 0
        return dataclasses.replace(task, train_iter=done, scalars=means)

    def deal_with_learner_close(self, task: LearnResult, rank: int = 0) -> LearnResult | None:
        """A member has ended its task; the group's result when all have, None until then.

        A result of a task that the group has not been given is passed on as it is.
        """
        if self._task is None or task.task_id != self._task.task_id:
            return task
        self._results[rank] = task
        return self._whole_result(task)

    def _whole_result(self, task: LearnResult) -> LearnResult | None:
        if len(self._results) < self.size:
            return None
        done = min(r.train_iter for r in self._results.values())
        self.close()
        return dataclasses.replace(task, train_iter=done)

    @staticmethod
    def merge_info(info: Sequence[Any]) -> Any:
        """Infos of all members as one.

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
