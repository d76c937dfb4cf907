"""What environments share with their process: signals, output, logs, modes, folder, its end.

Simulators take signals when they are made or reset (rospy, Java, CoppeliaSim), by Python or in C,
after which a run would not hear a batch system's. SIGALRM and timers are theirs: nothing here needs
them.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import random
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, MethodType, TracebackType
from typing import Any, NamedTuple, NoReturn, TypeVar, TypeVarTuple

import numpy as np

from hpcdi.utils.log import LOGGER
from hpcdi.utils.threads import BackgroundThread

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_GUARDED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM,
    signal.SIGCONT, signal.SIGXCPU,
)  # fmt: skip
SENT_TO_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What launchers, batch systems and people send to all processes of a job at once."""
_MPI, _PYGAME = "mpi4py.MPI", "pygame"
_ALWAYS = 10  # times; then once in a while, unless one was taken
_EVERY_S = 1.0
_ACTION_BYTES = 256  # C's struct sigaction has fewer
_HANDLER = slice(0, ctypes.sizeof(ctypes.c_void_p))  # its first member
_LIBC = ctypes.PyDLL(None)


class SignalGuard:
    """``with guard:`` around what an environment does; then handlers of signals are as before.

    So are logging (see `_Logs`), and standard output and standard error, which an environment
    may silence for good.

    What is taken is put back, signals and output with a warning, once, but for SIGHUP where MPI is
    imported, and SIGQUIT where pygame is. The first times and where one was taken it looks for
    those each time, else once a second: environments may be reset often.

    Args:
        keeps_output: False: output is the environment's own, as its process.
    """

    def __init__(self, *, keeps_output: bool = True) -> None:
        self._looks, self._next = 0, 0.0
        self._is_taken = self._is_output_taken = False
        self._before: list[tuple[signal.Signals, Any, bytes]] = []
        self._had_mpi = False
        self._keeps_output, self._output, self._logs = keeps_output, list[_Output](), _Logs.now()

    def __enter__(self) -> None:
        self._logs = _Logs.now()
        now, is_taken = time.monotonic(), self._is_taken or self._is_output_taken
        if self._looks >= _ALWAYS and not is_taken and now < self._next:
            self._before, self._output = [], []
            return
        self._looks, self._next = self._looks + 1, now + _EVERY_S
        self._before = [(each, signal.getsignal(each), _action_of(each)) for each in _GUARDED]
        self._had_mpi = _MPI in sys.modules
        if self._keeps_output:
            self._output = [_Output.now(name, number) for name, number in _OUTPUT]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._logs.put_back()
        others = [output.name for output in self._output if output.put_back()]
        if others and not self._is_output_taken:
            self._is_output_taken = True
            LOGGER.warning(
                "the environment, or a library of its, takes %s: put back after each time that it "
                "is made or reset", " and ".join(others),
                extra={"once": "an environment takes the output"},
            )  # fmt: skip
        taken = [
            each.name for each, handler, action in self._before if _put_back(each, handler, action)
        ]
        if _MPI in sys.modules and not self._had_mpi:  # Open MPI takes it as it is loaded
            taken = [each for each in taken if each != signal.SIGHUP.name]
        if _PYGAME in sys.modules:  # it takes it in its own `init`, whatever an environment does
            taken = [each for each in taken if each != signal.SIGQUIT.name]
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


def _put_back(number: int, handler: Any, action: bytes) -> bool:
    """Put a handler back, Python's and C's; returns whether it was another one."""
    is_same_in_python = signal.getsignal(number) is handler or handler is None
    if not is_same_in_python and threading.current_thread() is threading.main_thread():
        signal.signal(number, handler)
    is_same_in_c = _action_of(number)[_HANDLER] == action[_HANDLER]
    if not is_same_in_c:
        _LIBC.sigaction(int(number), action, None)
    return not (is_same_in_python and is_same_in_c)


class _Logs(NamedTuple):
    """What keeps logs from being written: `logging.config` disables all loggers that it meets."""

    is_disabled: bool
    disabled_up_to: int

    @classmethod
    def now(cls) -> _Logs:
        """As logging is now."""
        return cls(LOGGER.disabled, logging.root.manager.disable)

    def put_back(self) -> None:
        """Have logging so again."""
        LOGGER.disabled = self.is_disabled
        if logging.root.manager.disable != self.disabled_up_to:
            logging.disable(self.disabled_up_to)


_OUTPUT = (("stdout", 1), ("stderr", 2))


class _Output(NamedTuple):
    """Where standard output, or standard error, goes: Python's stream, and a copy of C's."""

    name: str
    number: int
    stream: Any
    copy: int | None

    @classmethod
    def now(cls, name: str, number: int) -> _Output:
        """Where it goes now."""
        copy = None
        with contextlib.suppress(OSError):  # it is closed, or no file can be opened
            copy = os.dup(number)
        return cls(name, number, getattr(sys, name), copy)

    def put_back(self) -> bool:
        """Put it back; returns whether it went elsewhere."""
        is_same = getattr(sys, self.name) is self.stream
        if not is_same:
            setattr(sys, self.name, self.stream)
        if self.copy is not None:
            if not _are_one_file(self.number, self.copy) and _is_read(self.copy):
                os.dup2(self.copy, self.number)
                is_same = False
            os.close(self.copy)
        return not is_same


def _are_one_file(number: int, copy: int) -> bool:
    with contextlib.suppress(OSError):  # it was closed
        return os.path.samestat(os.fstat(number), os.fstat(copy))
    return False


def _is_read(number: int) -> bool:
    """Returns False where nobody reads a pipe, or a terminal has gone: we forget such output."""
    poll = select.poll()
    poll.register(number, 0)  # errors alone
    return not poll.poll(0)


@contextlib.contextmanager
def same_folder() -> Iterator[None]:
    """Afterwards the present folder is the one that it was, also if that has been deleted."""
    folder = os.open(".", getattr(os, "O_PATH", os.O_RDONLY))
    try:
        yield
    finally:
        os.fchdir(folder)
        os.close(folder)


@contextlib.contextmanager
def exits_are_failures() -> Iterator[None]:
    """In it `os._exit`, called by an environment on this thread, raises SystemExit.

    Else that would end a run as if all were done. A process that the environment forks ends by it.
    """
    end, pid, thread, is_over = os._exit, os.getpid(), threading.get_ident(), False

    def fail(status: int) -> NoReturn:
        if is_over or os.getpid() != pid or threading.get_ident() != thread:
            end(status)
        raise SystemExit(f"os._exit({status}) was called")

    os._exit = fail
    try:
        yield
    finally:
        is_over = True  # another thread may have kept it, to put it back
        os._exit = end


class TakesTooLongError(BaseException):
    """Is raised in the midst of what an environment does, whatever that suppresses."""


_INTERRUPT = signal.SIGRTMAX - 1
"""Sent to the main thread alone, to which a library may be bound: it ends what waits in Python."""
_AGAIN_S = 1.0
_HANGS_AFTER = 2  # interrupts
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def at_most(limit_s: float) -> Iterator[None]:
    """After so many seconds raise `TakesTooLongError` in it, each second until it is over.

    What hangs in C does not end by that: from then on signals that end a process, unless they are
    ignored, end this one at once, as nothing else could. On other threads than the main one, and
    where no thread begins any more, there is no limit.
    """
    main, over = threading.main_thread(), threading.Event()
    replaced: list[tuple[int, bytes]] = []
    watching: BackgroundThread | None = None

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if not over.is_set():
            raise TakesTooLongError(f"it took longer than {limit_s:g} s")

    def watch() -> None:
        tries, wait_s = 0, limit_s
        while not over.wait(wait_s):
            if tries == _HANGS_AFTER:
                heard = [each for each in _ENDING if signal.getsignal(each) is not signal.SIG_IGN]
                replaced.extend((each, _action_of(each)) for each in heard)
                for number in heard:
                    _LIBC.signal(int(number), None)  # SIG_DFL; Python's handlers run no more
            signal.pthread_kill(main.ident or 0, _INTERRUPT)
            tries, wait_s = tries + 1, _AGAIN_S

    if threading.current_thread() is not main:
        yield
        return
    before = signal.getsignal(_INTERRUPT), _action_of(_INTERRUPT)
    signal.signal(_INTERRUPT, interrupt)
    try:
        try:
            with contextlib.suppress(RuntimeError):  # Python ends, and begins none
                watching = BackgroundThread(watch, "close-watch")
            yield
        finally:
            over.set()
    finally:
        over.set()  # also where the first one was interrupted
        if watching is not None:
            watching.join()
        _put_back(_INTERRUPT, *before)
        for number, action in replaced:
            _LIBC.sigaction(number, action, None)


_TORCH_OF_ENVS: dict[str, Any] = {}
"""Modes of torch that environments of this process have set otherwise than the run has them."""
_MODES = ("grad_enabled", "default_dtype", "num_threads", "default_device")
_ERRORS_OF_ENVS: dict[str, Any] = {}
"""What they have set by `np.seterr` otherwise than the run has it."""
_IN_USE = threading.Lock()


class _Generators:
    """States of `random`'s and numpy's generator, one for each back-end whose environments draw.

    Environments seed them (`seed_libraries`). So those of evaluations that begin by the same seeds
    would have others, in the same process, draw the same numbers after each evaluation.
    """

    def __init__(self) -> None:
        self._states = weakref.WeakKeyDictionary[object, tuple[Any, Any]]()
        self._last: Callable[[], object] = lambda: None  # who was called last

    def go_on_for(self, owner: object) -> None:
        """Have them go on where they were when this back-end was called last; None: it is none."""
        last = self._last()
        if owner is None or owner is last:
            return
        if last is not None:
            self._states[last] = random.getstate(), np.random.get_state()
        self._last = weakref.ref(owner)
        if states := self._states.pop(owner, None):
            random.setstate(states[0])
            np.random.set_state(states[1])


_GENERATORS = _Generators()


def in_their_modes(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Call what calls environments: in it modes are as they have set them, afterwards as before.

    Logging is as before. Modes are numpy's errors; and torch's gradients, dtype and device of new
    tensors, and threads: a process has one of each, as has a library that sets one when it is
    imported, and an environment may need it in every step. Within another such call, of an
    environment that steps environments itself, and while another thread is in one, it is just
    called. Of a method of a back-end, the generators that a process has one of go on where they
    were when that back-end was called last.
    """
    if not _IN_USE.acquire(False):
        return function(*args)
    logs = _Logs.now()
    try:
        _GENERATORS.go_on_for(function.__self__ if isinstance(function, MethodType) else None)
        before = _modes_of_torch()
        if _TORCH_OF_ENVS:
            _set_modes_of_torch(_TORCH_OF_ENVS)
        errors = np.geterr()
        if _ERRORS_OF_ENVS:
            np.seterr(**_ERRORS_OF_ENVS)
        try:
            return function(*args)
        finally:
            if _ERRORS_OF_ENVS or np.geterr() != errors:
                _keep_errors_of_numpy(errors)
            theirs = _modes_of_torch()
            if _TORCH_OF_ENVS or theirs != before:
                _keep_modes_of_torch(theirs, before)
    finally:
        logs.put_back()
        _IN_USE.release()


def _keep_errors_of_numpy(before: Mapping[str, Any]) -> None:
    """See `_keep_modes_of_torch`; no context of its own: variables of one are the program's."""
    theirs = np.seterr(**before)
    _ERRORS_OF_ENVS.clear()
    _ERRORS_OF_ENVS.update({name: own for name, own in theirs.items() if own != before[name]})


def _keep_modes_of_torch(theirs: tuple[Any, ...], before: tuple[Any, ...]) -> None:
    """Keep those that environments have set otherwise, and put those back that were before."""
    if theirs and not before:  # imported within; how many threads there were is not known
        before = (True, sys.modules["torch"].float32, theirs[2], None)
    both = zip(_MODES, theirs, before, strict=True)
    changed = {name: modes for name, *modes in both if modes[0] != modes[1]}
    _TORCH_OF_ENVS.clear()
    _TORCH_OF_ENVS.update({name: own for name, (own, _) in changed.items()})
    _set_modes_of_torch({name: ours for name, (_, ours) in changed.items()})


def _modes_of_torch() -> tuple[Any, ...]:
    """`_MODES`; empty where torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return ()
    device = _device_of_torch() if torch._C._len_torch_function_stack() else None
    return torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads(), device


def _device_of_torch() -> Any:
    """The device of new tensors; None: torch's own, the CPU, without a look at each call."""
    device = sys.modules["torch"].get_default_device()
    return None if device.type == "cpu" else device


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
