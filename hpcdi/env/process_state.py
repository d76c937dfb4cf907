"""What environments share with their process: signal handlers, torch's modes, folder, generators.

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
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from hpcdi.utils.log import LOGGER

_GUARDED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM,
    signal.SIGCONT, signal.SIGXCPU,
)  # fmt: skip
SENT_TO_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What launchers, batch systems and people send to all processes of a job at once."""
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


_TORCH_OF_ENVS: dict[str, Any] = {}
"""Modes of torch that environments of this process have set otherwise than the run has them."""
_MODES = ("grad_enabled", "default_dtype", "num_threads")


class TorchOfEnvironments:
    """``with``: in it torch's modes are as environments have set them, afterwards as before.

    Gradients, the dtype of new tensors and threads: a process has one of each, as has a library
    that sets one when it is imported, and an environment may need it in every step. Within another
    one, of an environment that steps environments itself, it does nothing.
    """

    _is_within = False

    def __enter__(self) -> None:
        self._is_inner, TorchOfEnvironments._is_within = TorchOfEnvironments._is_within, True
        self._before = _modes_of_torch()
        if _TORCH_OF_ENVS and not self._is_inner:
            _set_modes_of_torch(_TORCH_OF_ENVS)

    def __exit__(self, *_error: object) -> None:
        if self._is_inner:
            return
        TorchOfEnvironments._is_within = False
        theirs, before = _modes_of_torch(), self._before
        if theirs and not before:  # imported within; how many threads there were is not known
            before = (True, sys.modules["torch"].float32, theirs[-1])
        _TORCH_OF_ENVS.clear()
        if theirs != before:
            both = zip(_MODES, theirs, before, strict=True)
            changed = {name: modes for name, *modes in both if modes[0] != modes[1]}
            _TORCH_OF_ENVS.update({name: own for name, (own, _) in changed.items()})
            _set_modes_of_torch({name: ours for name, (_, ours) in changed.items()})


def _modes_of_torch() -> tuple[Any, ...]:
    """`_MODES`; empty where torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return ()
    return torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()


def _set_modes_of_torch(modes: Mapping[str, Any]) -> None:
    for name, value in modes.items():
        getattr(sys.modules["torch"], f"set_{name}")(value)


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
