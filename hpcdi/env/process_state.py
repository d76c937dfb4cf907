"""What environments share with their process: signal handlers, the present folder, generators.

Simulators take signals when they are made or reset (rospy, Java, CoppeliaSim), by Python or in C,
after which a run would not hear a batch system's. SIGALRM and timers are theirs: nothing here needs
them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np

from hpcdi.utils.log import LOGGER

_GUARDED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM,
    signal.SIGCONT, signal.SIGXCPU,
)  # fmt: skip
_ALWAYS = 10  # times; then once in a while, unless one was taken
_EVERY_S = 1.0
_ACTION_BYTES = 256  # C's struct sigaction has fewer
_HANDLER = slice(0, ctypes.sizeof(ctypes.c_void_p))  # its first member
_LIBC = ctypes.PyDLL(None)


class SignalGuard:
    """``with guard:`` around what an environment does; then handlers of signals are as before.

    What is taken is put back with a warning, once. The first times and where one was taken it looks
    each time, else once a second: environments may be reset often.
    """

    def __init__(self) -> None:
        self._looks, self._is_taken, self._next = 0, False, 0.0
        self._before: list[tuple[signal.Signals, Any, bytes]] = []

    def __enter__(self) -> None:
        now = time.monotonic()
        if self._looks >= _ALWAYS and not self._is_taken and now < self._next:
            self._before = []
            return
        self._looks, self._next = self._looks + 1, now + _EVERY_S
        self._before = [(each, signal.getsignal(each), _action_of(each)) for each in _GUARDED]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        taken = [
            each.name for each, handler, action in self._before if _put_back(each, handler, action)
        ]
        if taken and not self._is_taken:
            self._is_taken = True
            LOGGER.warning(
                "the environment, or a library of its, takes %s: the handlers are put back after "
                "each time that it is made or reset", ", ".join(taken),
                extra={"once": "an environment takes signals"},
            )  # fmt: skip


def handlers_of_signals() -> dict[str, tuple[Any, bytes]]:
    """Returns what the process does at each signal that is guarded, by Python and in C."""
    return {each.name: (signal.getsignal(each), _action_of(each)[_HANDLER]) for each in _GUARDED}


def _action_of(number: int) -> bytes:
    """What the process does at a signal, as C says it."""
    action = ctypes.create_string_buffer(_ACTION_BYTES)
    _LIBC.sigaction(int(number), None, action)
    return action.raw


def _put_back(number: signal.Signals, handler: Any, action: bytes) -> bool:
    """Put a handler back, Python's and C's; returns whether it was another one."""
    is_same_in_python = signal.getsignal(number) is handler or handler is None
    if not is_same_in_python and threading.current_thread() is threading.main_thread():
        signal.signal(number, handler)
    is_same_in_c = _action_of(number)[_HANDLER] == action[_HANDLER]
    if not is_same_in_c:
        _LIBC.sigaction(int(number), action, None)
    return not (is_same_in_python and is_same_in_c)


@contextlib.contextmanager
def same_folder() -> Iterator[None]:
    """Afterwards the present folder is the one that it was, also if that has been deleted."""
    folder = os.open(".", getattr(os, "O_PATH", os.O_RDONLY))
    try:
        yield
    finally:
        os.fchdir(folder)
        os.close(folder)


def seed_libraries(seed: int, *, with_torch: bool) -> None:
    """Seed the generators that a process has one of: `random`, numpy's, and torch's.

    Args:
        seed: any number.
        with_torch: where torch is imported; not in a process in which policies draw from it.
    """
    words = np.random.SeedSequence(seed).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    if with_torch and (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(int(words[2]))
