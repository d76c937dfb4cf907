"""Signals: a handler sets a flag, loops look at it."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import TYPE_CHECKING

from hpcdi.errors import EXIT_INTERRUPTED, EXIT_TERMINATED

if TYPE_CHECKING:
    from hpcdi.comm.messages import StopRequest

_EXIT_CODES = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}


class SignalFlag:
    """Remembers the first SIGINT or SIGTERM; a second one ends the process at once.

    Args:
        hint: what to tell the person who pressed Ctrl-C; empty: nothing.
    """

    def __init__(self, hint: str = "") -> None:
        self._hint = hint
        self._received: int | None = None
        self._taken = False

    def install(self) -> None:
        """Take over the two signals (main thread only)."""
        for number in _EXIT_CODES:
            signal.signal(number, self._handle)

    def take(self) -> StopRequest | None:
        """What a signal asked for, once."""
        if self._received is None or self._taken:
            return None
        from hpcdi.comm.messages import StopRequest  # late: numpy comes after the threads are set

        self._taken = True
        number = signal.Signals(self._received)
        return StopRequest(f"received {number.name}", _EXIT_CODES[number])

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._received is not None:
            os._exit(_EXIT_CODES[signal.Signals(number)])
        self._received = number
        if self._hint:  # printing is not for signal handlers
            os.write(2, f"\nhpcdi: {self._hint}\n".encode())
