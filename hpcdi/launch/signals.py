"""Signals set a flag; loops poll it."""

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
"""Environment variable that names the batch system's preemption signal, besides USR2."""

_ENDING = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}
"""Signals that end the process at once when they come twice, and the exit code."""


def preempt_signals() -> list[signal.Signals]:
    """Returns the signals, besides SIGTERM, that ask for a last snapshot and exit code 85.

    Raises:
        LaunchError: the variable names no signal, or one with another meaning.
    """
    given = os.environ.get(PREEMPT_VARIABLE, "").strip().upper().removeprefix("SIG")
    if given in ("", "TERM"):  # SIGTERM asks for the same; a second one ends at once
        return [signal.SIGUSR2]
    number = getattr(signal, f"SIG{given}", None)
    if not isinstance(number, signal.Signals) or number in (*_ENDING, signal.SIGKILL):
        raise LaunchError(
            f"{PREEMPT_VARIABLE}={os.environ[PREEMPT_VARIABLE]} is not a usable signal; name one "
            "such as USR1 or HUP"
        )
    return sorted({signal.SIGUSR2, number})


class SignalFlag:
    """Keeps the first signal; a second SIGINT or SIGTERM ends the process at once.

    Args:
        hint: printed at the first signal unless empty.
    """

    def __init__(self, hint: str = "") -> None:
        self._hint = hint
        self._received: int | None = None
        self._taken = False
        self._is_ending = False  # received SIGINT or SIGTERM

    def install(self) -> None:
        """Handle SIGINT, SIGTERM and `preempt_signals`; SIGUSR1 prints all stacks (main thread).

        Raises:
            LaunchError: see `preempt_signals`.
        """
        taken = [*_ENDING, *preempt_signals()]
        for number in taken:
            signal.signal(number, self._handle)
        if signal.SIGUSR1 not in taken:
            faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)

    def take(self) -> StopRequest | None:
        """Returns the request of a signal, once; else None."""
        if self._received is None or self._taken:
            return None
        from hpcdi.comm.messages import (
            StopRequest,  # late: numpy reads thread limits when it is imported
        )

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
            if self._hint:  # print() is not safe in signal handlers
                os.write(2, f"\nhpcdi: {self._hint}\n".encode())
