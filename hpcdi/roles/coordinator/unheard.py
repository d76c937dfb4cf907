"""Workers of rank 0's host whose process has ended without MPI noticing it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hpcdi.roles.coordinator.workers import Worker
from hpcdi.utils.processes import born_of

_LOOK_S = 1.0


class UnheardDeaths:
    """Looks, once a second, for processes that are gone: a simulator may call ``_exit`` in C.

    A worker counts as dead when two looks have missed it: what it sent before has arrived then, and
    so has MPI's own word, where it noticed.

    Args:
        host: of rank 0; of other hosts it knows nothing.
        is_there: decides whether a process lives.
    """

    def __init__(
        self, host: str, is_there: Callable[[int], bool] = lambda n: born_of(n) != ""
    ) -> None:
        self._host, self._is_there = host, is_there
        self._next, self._missed = 0.0, set[int]()

    def look(self, workers: Iterable[Worker], now: float) -> list[int]:
        """Returns the ranks that have died, each once.

        Args:
            workers: that have not ended, as far as is known.
            now: seconds on any clock.
        """
        if now < self._next:
            return []
        self._next = now + _LOOK_S
        missing = {
            worker.rank
            for worker in workers
            if worker.pid and worker.host == self._host and not self._is_there(worker.pid)
        }
        dead, self._missed = missing & self._missed, missing
        return sorted(dead)
