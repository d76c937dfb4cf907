"""Task dicts of the seeds, translated to messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcdi.comm.messages import CollectTask
from hpcdi.errors import CommError


class CollectorSlave:
    """Translates the seeds' task dicts to calls of the message side.

    Args:
        callback_fn: ``deal_with_resource, deal_with_collector_start, deal_with_collector_data,
            deal_with_collector_close``.
    """

    def __init__(self, *_args: Any, callback_fn: Mapping[str, Callable[..., Any]], **_kwargs: Any):
        self._callback_fn = callback_fn
        self._buffer_id: dict[str, str] = {}  # the caller's name of the task's buffer

    def _process_task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Run task ``resource, collector_start_task, collector_data_task, collector_close_task``.

        Raises:
            CommError: the task has another name.
        """
        name = task.get("name")
        if name == "resource":
            return dict(self._callback_fn["deal_with_resource"]())
        if name == "collector_start_task":
            info = task["task_info"]
            self._buffer_id = {key: info[key] for key in ("buffer_id",) if key in info}
            self._callback_fn["deal_with_collector_start"](task_message(info))
            return {"message": "collector task has started"}
        if name == "collector_data_task":
            data = self._callback_fn["deal_with_collector_data"]()
            return {**self._buffer_id, **data} if data else {}
        if name == "collector_close_task":
            return dict(self._callback_fn["deal_with_collector_close"]())
        raise CommError(f"a collector knows no task {name!r}")


def task_message(info: Mapping[str, Any]) -> CollectTask:
    """The message of a task dict; ``collector_cfg`` holds ``eval_flag`` and ``collect_setting``."""
    cfg = info.get("collector_cfg", {})
    return CollectTask(
        info["task_id"],
        eval_flag=bool(cfg.get("eval_flag", False)),
        setting=dict(cfg.get("collect_setting", {})),
    )
