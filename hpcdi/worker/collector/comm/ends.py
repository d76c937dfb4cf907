"""What a collector has been told to end, and the full disk that may end the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hpcdi.comm.messages import Message, StopRequest
from hpcdi.errors import EXIT_FAILED
from hpcdi.store.disk_full import DiskPatience

_LAST_TRIES_S = 2.0
"""At the end of a run, what finds no room on the disk for so long is lost."""


class Ends:
    """Remembers what is to end; a word may come before the task that it is about has begun.

    Args:
        rank: of this collector.
        patience_s: with a disk that is full.
        tell: sends a message to rank 0, from any thread.
        waiting: called while there is no room, so that nobody takes this rank for hung.

    Attributes:
        everything: whether the run ends.
        patience: with a disk that is full; when it is over rank 0 is asked to end the run.
    """

    def __init__(
        self,
        rank: int,
        patience_s: float,
        tell: Callable[[Message], None],
        waiting: Callable[[], None],
    ) -> None:
        self.everything = False
        self.patience = DiskPatience(
            patience_s,
            lambda reason: tell(StopRequest(f"rank {rank}: {reason}", EXIT_FAILED)),
            waiting,
        )
        self._tasks: deque[str] = deque(maxlen=64)

    def concern(self, task_id: str) -> bool:
        """Whether a task is to end."""
        return self.everything or task_id in self._tasks

    def end_task(self, task_id: str) -> None:
        """A task is to end."""
        self._tasks.append(task_id)

    def end_run(self) -> None:
        """Everything is to end, soon."""
        self.everything = True
        self.patience.hurry(_LAST_TRIES_S)
