"""A learner that stands in for a real one in tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdi.errors import CommError

_TASKS = 6
_MARKS = ("replay_unique_id", "replay_buffer_idx", "priority")


class NaiveLearner:
    """Asks for batches of two, returns their priorities as they are, and ends after six of them.

    Args:
        _args: addresses, which mean nothing here.
        prefix: for callers that name its files; it writes none.
    """

    def __init__(self, *_args: Any, prefix: str = "", **_kwargs: Any) -> None:
        self._prefix = prefix
        self._names: dict[str, str] = {}
        self._count = 0

    def _process_task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Do task ``resource``, or ``learner_*_task`` of ``start, get_data, learn, close``.

        Raises:
            CommError: the task has another name, comes before a start, or has no data.
        """
        name = task.get("name")
        if name == "resource":
            return {"gpu": 0, "cpu": 1}
        if name == "learner_start_task":
            self._names = {key: task["task_info"][key] for key in ("task_id", "buffer_id")}
            self._count = 0
            return {"message": "learner task has started"}
        if not self._names:
            raise CommError(f"a naive learner cannot do {name!r} before it is started")
        if name == "learner_get_data_task":
            return {**self._names, "batch_size": 2, "cur_learner_iter": 1}
        if name == "learner_learn_task" and task.get("data"):
            self._count += 1
            marks = {key: [item[key] for item in task["data"]] for key in _MARKS}
            info = {"learner_step": self._count, "priority_info": marks}
            info["learner_done"] = self._count >= _TASKS
            return {**self._names, "info": info}
        if name == "learner_close_task":
            return dict(self._names)
        raise CommError(f"a naive learner cannot do {name!r} now")
