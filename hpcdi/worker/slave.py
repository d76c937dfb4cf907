"""DI-engine's slaves: what a master's task dicts are handed to.

There they listened at an address; here whoever plays the master calls `Slave._process_task` itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from hpcdi.errors import CommError


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
