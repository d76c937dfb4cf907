"""Signals: a handler sets a flag, loops look at it."""

from __future__ import annotations

import faulthandler
import os
import signal
from types import FrameType
from typing import TYPE_CHECKING

from hpcdi.errors import EXIT_INTERRUPTED, EXIT_REQUEUE, EXIT_TERMINATED, LaunchError

if TYPE_CHECKING:
    from hpcdi.comm.messages import StopRequest

PREEMPT_VARIABLE = "HPCDI_PREEMPT_SIGNAL"
"""Names a signal by which the queue tells that it wants the nodes back, beside USR2."""

_ENDING = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}
"""Signals of which a second one ends the process at once, with this exit code."""


def preempt_signals() -> list[signal.Signals]:
    """Signals that ask, beside SIGTERM, for a last snapshot and the exit code "requeue me".

    Raises:
        LaunchError: the variable names no signal, or one that means something else.
    """
    given = os.environ.get(PREEMPT_VARIABLE, "").strip().upper().removeprefix("SIG")
    if given in ("", "TERM"):  # TERM asks for the same, but a second one ends at once
        return [signal.SIGUSR2]
    number = getattr(signal, f"SIG{given}", None)
    if not isinstance(number, signal.Signals) or number in (*_ENDING, signal.SIGKILL):
        raise LaunchError(
            f"{PREEMPT_VARIABLE}={os.environ[PREEMPT_VARIABLE]} names no signal that can be used; "
            "name one such as USR1 or HUP"
        )
    return sorted({signal.SIGUSR2, number})


class SignalFlag:
    """Remembers the first signal; a second SIGINT or SIGTERM ends the process at once.

    Args:
        hint: what to tell the person who pressed Ctrl-C; empty: nothing.
    """

    def __init__(self, hint: str = "") -> None:
        self._hint = hint
        self._received: int | None = None
        self._taken = False
        self._is_ending = False  # SIGINT or SIGTERM has come

    def install(self) -> None:
        """Take over SIGINT, SIGTERM and `preempt_signals`; SIGUSR1 shows all stacks (main thread).

        Raises:
            LaunchError: see `preempt_signals`.
        """
        taken = [*_ENDING, *preempt_signals()]
        for number in taken:
            signal.signal(number, self._handle)
        if signal.SIGUSR1 not in taken:
            faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)

    def take(self) -> StopRequest | None:
        """What a signal asked for, once."""
        if self._received is None or self._taken:
            return None
        from hpcdi.comm.messages import StopRequest  # late: numpy comes after the threads are set

        self._taken = True
        number = signal.Signals(self._received)
        exit_code = EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_REQUEUE
        return StopRequest(f"received {number.name}", exit_code)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        ends = number in _ENDING
        if ends and self._is_ending:
            os._exit(_ENDING[signal.Signals(number)])
        self._is_ending |= ends
        if self._received is None:
            self._received = number
            if self._hint:  # printing is not for signal handlers
                os.write(2, f"\nhpcdi: {self._hint}\n".encode())
