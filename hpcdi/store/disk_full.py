"""Writes that meet a full disk: those that wait for space, are skipped, or end a command."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from hpcdi.errors import LaunchError, StoreError
from hpcdi.utils.backoff import Backoff
from hpcdi.utils.disk import advice as space_advice
from hpcdi.utils.disk import is_full, shortage
from hpcdi.utils.log import LOGGER
from hpcdi.utils.metrics import human_time

T = TypeVar("T")

_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.1, 2.0
_LAST_TRIES_S = 2.0


def or_warn(what: str, write: Callable[[], object]) -> bool:
    """Write something that the run does not need; returns whether it was written.

    Args:
        what: its name in the warning.
        write: writes it; its `StoreError` or `OSError` becomes a warning.
    """
    try:
        write()
    except (StoreError, OSError) as error:
        LOGGER.warning("no %s could be written: %s%s", what, _text(error), space_advice(error))
        return False
    return True


@contextlib.contextmanager
def or_refuse(what: str, advice: str = "", if_full: str = "") -> Iterator[None]:
    """A block that writes something that a command cannot do without.

    Args:
        what: its name in the message.
        advice: what to do, a sentence of the message.
        if_full: the same, where space is short.

    Raises:
        LaunchError: in place of an `OSError` of the block.
    """
    try:
        yield
    except OSError as error:
        reason = f"{what} cannot be written: {error.strerror or error}"
        advice = if_full if if_full and is_full(error) else advice
        raise LaunchError(f"{reason}. {advice}" if advice else reason) from error


class DiskPatience:
    """Retries a write while the disk is full; logs once when that begins and when it is over.

    States::

        full ──logged──► waiting ──space is free──► continues, logged
                            │
                            ├── longer than `patience_s` ──► `give_up`, once; keeps waiting
                            └── `hurry` was called ──► data that cannot be written soon are lost

    Args:
        patience_s: how long to wait.
        give_up: called with the reason after that; it ends the run, which then calls `hurry`.
        waiting: called at every retry, on the thread that waits.
    """

    def __init__(
        self,
        patience_s: float,
        give_up: Callable[[str], None],
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self._patience_s, self._give_up, self._waiting = patience_s, give_up, waiting
        self._lock = threading.Lock()  # two threads of a rank may meet the full disk
        self._full_since: float | None = None
        self._refused = set[int]()  # threads whose write waits
        self._has_given_up = False
        self._ends_at = float("inf")

    def hurry(self, within_s: float = _LAST_TRIES_S) -> None:
        """Wait at most `within_s` from now, because the run ends; any thread may call it."""
        self._ends_at = min(self._ends_at, time.monotonic() + within_s)

    def write(self, write: Callable[[], T]) -> T | None:
        """Call `write` until the disk has space for it.

        Returns:
            The result of `write`; None if `hurry` ended the wait.

        Raises:
            StoreError, OSError: it cannot be written for another reason.
        """
        backoff = Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S)
        try:
            while True:
                try:
                    written = write()
                except (StoreError, OSError) as error:
                    if not is_full(error):
                        raise
                    self._note(error)
                else:
                    self._note_space()
                    return written
                if time.monotonic() > self._ends_at:
                    return None
                self._waiting()
                backoff.nap(max(0.0, self._ends_at - time.monotonic()) + _FIRST_RETRY_S)
        finally:
            self._refused.discard(threading.get_ident())

    def _note(self, error: StoreError | OSError) -> None:
        now = time.monotonic()
        with self._lock:
            self._refused.add(threading.get_ident())
            if self._full_since is None:
                self._full_since = now
                LOGGER.warning(
                    "the disk is full: %s. Collecting pauses, collected data wait in "
                    "memory. Free some space and it continues by itself; after %s "
                    "(system.storage.disk_patience_s) the run ends",
                    _text(error),
                    human_time(self._patience_s),
                )
            if self._has_given_up or now - self._full_since <= self._patience_s:
                return
            self._has_given_up = True
        self._give_up(
            f"the disk has been full for {human_time(self._patience_s)} "
            f"(system.storage.disk_patience_s): {_text(error)}. Free some "
            "space, then continue the run with --resume"
        )

    def _note_space(self) -> None:
        with self._lock:
            if self._refused - {threading.get_ident()}:  # a larger write still waits
                return
            since, self._full_since = self._full_since, None
        if since is not None:
            waited = human_time(time.monotonic() - since)
            LOGGER.warning("the disk has free space again, after %s: collecting continues", waited)


def _text(error: StoreError | OSError) -> str:
    """Text of an error; with the free space if the disk is full."""
    place = error.path if isinstance(error, StoreError) else error.filename
    return f"{error} ({shortage(place, error)})" if place and is_full(error) else str(error)
