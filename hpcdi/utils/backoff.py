"""Waiting. Only this file sleeps; every caller has a deadline and reports what it waits for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from hpcdi.utils.variables import variables_set

T = TypeVar("T")
_SPIN_COUNT, _SPINS = "GOMP_SPINCOUNT", "2000"
"""Looks of an idle thread of GNU's OpenMP, some 0.1 ms, before it sleeps; it would look 300,000
times, up to 14 ms."""
PROBES = 10
"""Probes before each nap: one MPI probe is one turn of MPI's progress engine, and a message may
need several turns to become visible."""


class Wake(Protocol):
    """What ends a nap early, such as a `threading.Event`."""

    def wait(self, timeout: float) -> bool:
        """Sleep, at most so many seconds; returns whether it was ended early."""
        ...


class Backoff:
    """Naps that get longer while nothing happens and short again when something does.

    A loop probes `PROBES` times, then calls `nap()`; when it has found something, `reset()`.

    Args:
        shortest_s: first nap after a reset.
        longest_s: each nap is 1.5 times as long as the one before, up to this.
        wake: ends a nap early.
    """

    def __init__(
        self,
        shortest_s: float = 100e-6,
        longest_s: float = 2e-3,
        wake: Wake | None = None,
    ) -> None:
        self._shortest_s, self._longest_s = shortest_s, longest_s
        self._next_s = shortest_s
        self._wake = wake

    def reset(self) -> None:
        """Start with the shortest nap again."""
        self._next_s = self._shortest_s

    def nap(self, at_most_s: float = float("inf")) -> None:
        """Sleep once, at most `at_most_s`."""
        nap_s = max(0.0, min(self._next_s, at_most_s))
        self._next_s = min(self._next_s * 1.5, self._longest_s)
        if self._wake is None:
            time.sleep(nap_s)
        elif self._wake.wait(nap_s):  # the owner of the event clears it
            self.reset()


def probed(look: Callable[[], T | None]) -> T | None:
    """Look `PROBES` times for something; returns it, or None.

    The core is offered to others after each look: MPICH's progress never does, and there may be
    more ranks than cores.
    """
    for _ in range(PROBES):
        if (seen := look()) is not None:
            return seen
        os.sched_yield()
    return None


def wait_s(seconds: float) -> None:
    """Sleep once; for loops with a deadline."""
    time.sleep(seconds)


@contextmanager
def idle_threads_sleep() -> Iterator[None]:
    """Let idle threads of OpenMP sleep soon, where torch is imported in it.

    They spin for longer than most layers take, on cores that others need: a second run with
    pictures beside the first made both 3 to 10 times as slow (`tools/bench_beside.py`). Does
    nothing if the user has said how they wait.
    """
    is_said = not os.environ.keys().isdisjoint(("OMP_WAIT_POLICY", _SPIN_COUNT))
    with variables_set({} if is_said else {_SPIN_COUNT: _SPINS}):
        yield


def let_idle_threads_spin() -> None:
    """Undo `idle_threads_sleep`, for a program of the user's that this process becomes."""
    if os.environ.get(_SPIN_COUNT) == _SPINS:
        del os.environ[_SPIN_COUNT]
