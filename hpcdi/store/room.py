"""Writing where there may be no room: what waits for it, and what is told and skipped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from hpcdi.errors import StoreError
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.disk import is_full, shortage
from hpcdi.utils.log import LOGGER
from hpcdi.utils.metrics import human_time

T = TypeVar("T")

_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.1, 2.0


def or_warn(what: str, write: Callable[[], object]) -> bool:
    """Write something that the run can go on without; whether it is written.

    Args:
        what: it is, for people.
        write: writes it; what a file system refuses is told, and no error.
    """
    try:
        write()
    except (StoreError, OSError) as error:
        LOGGER.warning("no %s could be written: %s. Free some space", what, _told(error))
        return False
    return True


class DiskPatience:
    """Tries a write again while the disk is full; says once that it waits, and that it is over.

    Life of a lack of room::

        full ──told──► waiting ──there is room──► goes on, told
                          │
                          ├── longer than `patience_s` ──► `give_up`, once; waits on
                          └── `hurry` was called ──► what has no room soon is lost

    Args:
        patience_s: how long to wait.
        give_up: called with the reason when that is over; it ends the run, which calls `hurry`.
        waiting: called at every try, on the thread that waits.
    """

    def __init__(
        self,
        patience_s: float,
        give_up: Callable[[str], None],
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self._patience_s, self._give_up, self._waiting = patience_s, give_up, waiting
        self._lock = threading.Lock()  # two threads of a rank may lack room at the same time
        self._full_since: float | None = None
        self._has_given_up = False
        self._ends_at = float("inf")

    def hurry(self, within_s: float) -> None:
        """The run ends: wait no longer than `within_s` from now; any thread may call it."""
        self._ends_at = min(self._ends_at, time.monotonic() + within_s)

    def write(self, write: Callable[[], T]) -> T | None:
        """What `write` gives, as soon as there is room for it; None where it must not wait longer.

        Raises:
            StoreError, OSError: it cannot be written for another reason.
        """
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                written = write()
            except (StoreError, OSError) as error:
                if not is_full(error):
                    raise
                self._note(error)
            else:
                self._note_room()
                return written
            if time.monotonic() > self._ends_at:
                return None
            self._waiting()
            wait_s(min(retry_s, max(0.0, self._ends_at - time.monotonic()) + _FIRST_RETRY_S))
            retry_s = min(2 * retry_s, _LONGEST_RETRY_S)

    def _note(self, error: StoreError | OSError) -> None:
        now = time.monotonic()
        with self._lock:
            if self._full_since is None:
                self._full_since = now
                LOGGER.warning(
                    "the disk is full: %s. Collecting pauses, what is collected waits in "
                    "memory. Free some space and it goes on by itself; after %s "
                    "(system.storage.disk_patience_s) the run ends",
                    _told(error), human_time(self._patience_s),
                )  # fmt: skip
            if self._has_given_up or now - self._full_since <= self._patience_s:
                return
            self._has_given_up = True
        self._give_up(
            f"the disk has been full for {human_time(self._patience_s)} "
            f"(system.storage.disk_patience_s): {_told(error)}. Free some "
            "space, then go on with the run by --resume"
        )

    def _note_room(self) -> None:
        with self._lock:
            since, self._full_since = self._full_since, None
        if since is not None:
            waited = human_time(time.monotonic() - since)
            LOGGER.warning("there is room on the disk again, after %s: collecting goes on", waited)


def _told(error: StoreError | OSError) -> str:
    """An error, with what is free where it happened if that is why."""
    place = error.path if isinstance(error, StoreError) else error.filename
    return f"{error} ({shortage(place, error)})" if place and is_full(error) else str(error)
