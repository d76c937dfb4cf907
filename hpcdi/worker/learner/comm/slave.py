"""The seeds' task dicts, for callers that still send them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcdi.comm.messages import LearnTask
from hpcdi.errors import CommError


class LearnerSlave:
    """Turns the seeds' task dicts into messages, and messages into calls of the message side.

    Args:
        callback_fn: ``deal_with_resource, deal_with_learner_start, deal_with_get_data,
            deal_with_learner_learn, deal_with_learner_close``.
    """

    def __init__(self, *_args: Any, callback_fn: Mapping[str, Callable[..., Any]], **_kwargs: Any):
        self._callback_fn = callback_fn

    def _process_task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Do a task: ``resource``, or ``learner_*_task`` of ``start, get_data, learn, close``.

        Raises:
            CommError: the task is of another name.
        """
        name = task.get("name")
        if name == "resource":
            return dict(self._callback_fn["deal_with_resource"]())
        if name == "learner_start_task":
            info = task["task_info"]
            message = LearnTask(info["task_id"], info["policy_id"], info["buffer_id"])
            self._callback_fn["deal_with_learner_start"](message)
            return {"message": "learner task has started"}
        if name == "learner_get_data_task":
            return dict(self._callback_fn["deal_with_get_data"]())
        if name == "learner_learn_task":
            return {"info": self._callback_fn["deal_with_learner_learn"](task["data"])}
        if name == "learner_close_task":
            self._callback_fn["deal_with_learner_close"]()
            return {"message": "learner task has ended"}
        raise CommError(f"a learner knows no task {name!r}")
