"""Waiting. Only this file sleeps; everything that waits says for what, and until when."""

from __future__ import annotations

import threading
import time

PROBES = 10
"""How often to look before each nap: one MPI probe is one turn of MPI's progress engine, and a
message that has arrived may need several turns to be seen."""


class Backoff:
    """Naps that grow while nothing happens and start short again when something does.

    A loop looks `PROBES` times, then calls `nap()`; when it found something it calls `reset()`.

    Args:
        shortest_s: first nap after something happened.
        longest_s: naps grow by half each, up to this.
        wake: an event that ends a nap early; without one a nap lasts.
    """

    def __init__(
        self,
        shortest_s: float = 100e-6,
        longest_s: float = 2e-3,
        wake: threading.Event | None = None,
    ) -> None:
        self._shortest_s, self._longest_s = shortest_s, longest_s
        self._next_s = shortest_s
        self._wake = wake

    def reset(self) -> None:
        """Something happened: nap briefly again."""
        self._next_s = self._shortest_s

    def nap(self, at_most_s: float = float("inf")) -> None:
        """Sleep once, at most `at_most_s`."""
        nap_s = max(0.0, min(self._next_s, at_most_s))
        self._next_s = min(self._next_s * 1.5, self._longest_s)
        if self._wake is None:
            time.sleep(nap_s)
        elif self._wake.wait(nap_s):  # whoever waits for the event clears it
            self.reset()


def wait_s(seconds: float) -> None:
    """Sleep once, in a loop that says what it waits for and until when."""
    time.sleep(seconds)
