"""Signals that come while a command imports: nothing has begun, so that the process just ends.

Python's KeyboardInterrupt within an import comes out as a traceback, as another error, or is lost.
`take_signals` is called before anything else is imported; SIGINT is Python's again (`give_back`)
when the command begins, the others are its run's as soon as that handles them (`replaced`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from collections.abc import Callable
from types import FrameType

from hpcdi.utils.python import is_spawned_child

PREEMPT_VARIABLE = "HPCDI_PREEMPT_SIGNAL"
"""Environment variable that names the batch system's preemption signal, besides USR2."""
NOT_FOR_HANDLERS = frozenset(
    {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
    | {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGTRAP}
)
"""Signals that no handler gets, or none should: of a child that has ended, of a fault."""
_OTHERS = NOT_FOR_HANDLERS | {signal.SIGCONT, signal.SIGPIPE}
"""Signals that cannot say that a job will end soon."""
_REQUEUE, _INTERRUPTED = 85, 130
"""Those of `hpcdi.errors`, which takes its time to import."""
NEAR_A_LIMIT = (signal.SIGUSR2, signal.SIGXCPU)
"""Slurm and LSF send the first near a limit of time, SGE and LSF the other near one of CPU time."""
_OF_RUNS = (signal.SIGTERM, signal.SIGHUP, *NEAR_A_LIMIT)
_OF_SWEEPS = (signal.SIGHUP, *NEAR_A_LIMIT)
_TAKEN = {"train": _OF_RUNS, "serial": _OF_RUNS, "join": _OF_RUNS, "sweep": _OF_SWEEPS}
"""Signals of batch systems, by the commands that end with 85 at them."""
_EXIT = os._exit  # an environment's is replaced while it is made: `exits_are_failures`
Handler = Callable[[int, FrameType | None], object] | int | None
_before: dict[int, Handler] = {}


def take_signals(words: list[str]) -> None:
    """End this process at SIGINT with 130; that of a run at a batch system's signal with 85.

    SIGUSR1 prints the stacks of a run or sweep, and ends nothing, unless it is one of those.
    What is ignored stays so: SIGINT in the background of a script, SIGHUP below nohup. In a child
    that is spawned, which imports its parent's program again, nothing changes.

    Args:
        words: of the command line, the command first.
    """
    if is_spawned_child():
        return
    pid = os.getpid()

    def end(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != pid:  # a child that was forked meanwhile
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        is_ctrl_c = number == signal.SIGINT
        said = "interrupted" if is_ctrl_c else "ended by a signal before the run began"
        with contextlib.suppress(OSError):  # nobody reads it
            os.write(2, f"hpcdi: {said}\n".encode())
        _EXIT(_INTERRUPTED if is_ctrl_c else _REQUEUE)

    others = list(_TAKEN.get(words[0], ())) if words else []
    if others:
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
        others += [number for number in [preempt_signal()] if number is not None]
    for number in (signal.SIGINT, *others):
        before = signal.getsignal(number)
        if before in (signal.SIG_DFL, signal.default_int_handler):
            _before[number] = before
            signal.signal(number, end)


def preempt_name() -> str:
    """Returns what `PREEMPT_VARIABLE` says, such as ``USR1``; empty: nothing."""
    return os.environ.get(PREEMPT_VARIABLE, "").strip().upper().removeprefix("SIG")


def preempt_signal() -> signal.Signals | None:
    """Returns the signal that `PREEMPT_VARIABLE` names; None: it names none that can be one."""
    number = getattr(signal, f"SIG{preempt_name()}", None)
    return number if isinstance(number, signal.Signals) and number not in _OTHERS else None


def give_back(number: int) -> None:
    """Put the handler of a signal back that there was before `take_signals`. Idempotent."""
    if number in _before:
        signal.signal(number, _before.pop(number))


def replaced(number: int, handler: Handler) -> Handler:
    """Returns the handler to be put back by one that has replaced, or will replace, `handler`.

    That is the one before `take_signals`, which no longer has the signal. Until it is replaced the
    signal ends the process in order: for no moment it has its default action.
    """
    return _before.pop(number, handler)
