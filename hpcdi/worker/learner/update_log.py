"""What a policy says of an update: its logs, each with the batch that it is of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdi.errors import PolicyError
from hpcdi.types import Array
from hpcdi.utils.metrics import CHART, HISTOGRAM

_MARKS = (CHART, HISTOGRAM)


@dataclass(frozen=True)
class UpdateLog:
    """One log.

    Attributes:
        values: what the policy gave.
        data: the batch that it is of.
        task: "task0" or the like, where there are several; else empty.
    """

    values: Mapping[str, Any]
    data: Any
    task: str = ""

    def check(self, train_iter: int) -> None:
        """See that learning goes on.

        Args:
            train_iter: the present train iteration, counted from 1.

        Raises:
            PolicyError: the loss is not finite any more.
        """
        loss = self.values.get("total_loss", 0.0)
        if not math.isfinite(loss):
            where = f" of {self.task}" if self.task else ""
            raise PolicyError(
                f"total_loss{where} is {loss} in train iteration {train_iter}: the network has "
                "diverged and would not recover. Lower policy.learn.learning_rate, or look for "
                "observations or rewards that are not finite"
            )

    def scalars(self) -> Mapping[str, Any]:
        """The values, those of a task under names of its own."""
        if not self.task:
            return self.values
        return {_apart(name, self.task): value for name, value in self.values.items()}


def read_logs(outputs: Any, data: Any, *, is_multitask: bool) -> list[UpdateLog]:
    """The logs of what a policy's forward gave: one, a list of several passes, or one a task.

    Args:
        outputs: of the policy's forward.
        data: the batch; with several tasks a list, one of each.
        is_multitask: the logs are of one task each, which their ``task_id`` or their place names.
    """
    logs = outputs if isinstance(outputs, list) else [outputs]
    if not is_multitask:
        return [UpdateLog(values, data) for values in logs]
    if not isinstance(data, list | tuple) or len(data) != len(logs):
        count = len(data) if isinstance(data, list | tuple) else 1
        raise PolicyError(
            f"is_multitask_pipeline: the policy gave {len(logs)} logs of {count} batches; it must "
            "give a log for each task, in the order of the batches"
        )
    return [
        UpdateLog(values, part, f"task{values.get('task_id', place)}")
        for place, (values, part) in enumerate(zip(logs, data, strict=True))
    ]


def for_forward(data: Any, *, is_multitask: bool) -> Any:
    """A batch as the policy's forward takes it."""
    if is_multitask and isinstance(data, list | tuple):
        return [getattr(part, "columns", part) for part in data]
    return getattr(data, "columns", data)


def tell_priorities(logs: Sequence[UpdateLog]) -> dict[str, Any]:
    """Hand priorities to the batches that want to know.

    Returns:
        What a replay buffer's `update` takes: of several passes over a batch, one after the other,
        so that the last one stays. With several tasks, such a mapping for each task.

    Raises:
        PolicyError: priorities that are not one for each sample.
    """
    found: dict[str, dict[str, Any]] = {}
    for log in logs:
        ids, priority = _names_of(log.data), log.values.get("priority")
        if priority is None or not ids:
            continue
        priority = np.asarray(priority, dtype=np.float64)
        size = len(next(iter(ids.values())))
        if priority.shape != (size,):
            raise PolicyError(
                f"the policy gave priorities of shape {priority.shape} for a batch of {size}"
            )
        feedback = getattr(log.data, "feedback", None)
        if feedback is not None:
            feedback(priority)
        info = {**ids, "priority": priority if feedback is not None else priority.tolist()}
        before = found.get(log.task)
        found[log.task] = info if before is None else {k: _joined(before[k], info[k]) for k in info}
    return found.pop("", None) or found


def _apart(name: str, task: str) -> str:
    mark = next((mark for mark in _MARKS if name.startswith(mark)), "")
    return f"{mark}{task}/{name.removeprefix(mark)}"


def _names_of(data: Any) -> dict[str, Any]:
    """What names the samples of a batch; empty where nothing does."""
    ids = getattr(data, "unique_ids", None)
    if ids is not None:
        return {"unique_ids": ids}
    if isinstance(data, list) and data and isinstance(data[0], Mapping):
        names = ("replay_unique_id", "replay_buffer_idx")
        if all(name in data[0] for name in names):
            return {name: [item[name] for item in data] for name in names}
    return {}


def _joined(one: Any, other: Any) -> Array | list[Any]:
    return np.concatenate([one, other]) if isinstance(one, np.ndarray) else [*one, *other]
