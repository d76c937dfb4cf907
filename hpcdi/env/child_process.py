"""An environment in a child process: the process, and the worker of its parent that talks to it.

The child leads a process group, in which is what the environment starts. The group dies with the
parent, however that ends and whatever the environment does: the kernel sends it SIGKILL when the
last writer of the parent's sentinel pipe is gone. The child ignores the signals with which a
launcher or a person stops all processes of a job: its parent stops it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import math
import multiprocessing
import os
import pickle
import select
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from multiprocessing import reduction
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from hpcdi.env.arguments import OWN_PROCESS
from hpcdi.env.base import EnvFailure, EnvFn, StepReply
from hpcdi.env.in_process import Command, LocalWorker, SharedArrays
from hpcdi.env.process_state import SENT_TO_ALL
from hpcdi.errors import EnvError
from hpcdi.utils.log import LOGGER
from hpcdi.utils.processes import children_of, stat_of
from hpcdi.utils.python import SAFE_PATH_VARIABLE

_LAUNCHER = ("OMPI_", "PMI_", "PMIX_", "PRTE_")
_DUMPS = reduction.ForkingPickler.dumps
_OK = bytes(_DUMPS(("ok", None)))
_CLOSED = "closed"
_PRELOAD = ["__main__", "hpcdi.env.child_process", "hpcdi.env.gymnasium"]
_START_S = 60.0  # beside the time of a reset, for a process to start and import its modules
_OURS = "hpcdi"
OPEN_FILES = 3
"""That a process has for each of its children with an environment."""
_EXIT_S = 1.0  # for a process to exit that has closed its environment, or its pipe
_LOOK_S = 0.01


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Not SIG_IGN, which a program that the environment starts would have, too."""


def _hear() -> None:
    """In a process that the environment forks: it ends when the environment terminates it."""
    for number in SENT_TO_ALL:
        if signal.getsignal(number) is _ignore:
            signal.signal(number, signal.SIG_DFL)
    _let_in()


_HELD = threading.local()  # what a thread that forks had blocked before


def _hold_back() -> None:
    """Before a fork: what is sent to the new process before it hears would be ignored there."""
    _HELD.before = signal.pthread_sigmask(signal.SIG_BLOCK, SENT_TO_ALL)


def _let_in() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _HELD.before)


def child_main(connection: Connection, make: EnvFn, is_battle: bool) -> None:
    """Do commands until the parent closes the environment or is gone."""
    OWN_PROCESS.append(os.getpid())
    _lead_group()
    _die_with_parent()
    # else what the environment starts would hold it open, when this process has died
    os.set_inheritable(connection.fileno(), False)
    os.register_at_fork(after_in_child=connection.close)
    for number in SENT_TO_ALL:
        signal.signal(number, _ignore)
        signal.siginterrupt(number, False)
    os.register_at_fork(before=_hold_back, after_in_parent=_let_in, after_in_child=_hear)
    for name in _launcher_variables():
        del os.environ[name]
    if os.environ.get(SAFE_PATH_VARIABLE) == _OURS:  # not for what an environment starts
        del os.environ[SAFE_PATH_VARIABLE]

    def tell(reply: StepReply) -> None:
        connection.send_bytes(bytes(_DUMPS(("resetting", tuple(reply)))))

    worker = LocalWorker(make, is_battle=is_battle, is_alone=True, on_reset=tell)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # no parent
        while _serve_one(connection, worker):
            pass


def _serve_one(connection: Connection, worker: LocalWorker) -> bool:
    command = connection.recv()
    if command[0] == "attach":
        _, layout, env = command
        arrays = SharedArrays(layout, reduction.recv_handle(connection))
        arrays.close()
        worker.attach(arrays, env)
        return True
    if command[0] == "shut":
        worker.shut()
        connection.send((_CLOSED, time.monotonic()))
        return False
    try:
        value = worker.do(command)
        reply = _OK if value is None else bytes(_DUMPS(("ok", value)))
    except BaseException as error:  # whatever an environment raises is its failure
        reply = bytes(_DUMPS(("failed", EnvFailure.of(error).fields)))
    connection.send_bytes(reply)
    return True


def _lead_group() -> None:
    """Lead a process group, which a terminal takes for one in the background."""
    os.setpgid(0, 0)
    for number in (signal.SIGTTIN, signal.SIGTTOU):  # also programs would stop at its terminal
        signal.signal(number, signal.SIG_IGN)


def _die_with_parent() -> None:
    """Have the kernel kill this process and its group when its parent is gone."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    line = parent.sentinel
    fcntl.fcntl(line, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(line, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(line, fcntl.F_SETFL, fcntl.fcntl(line, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([line], [], [], 0)[0]:  # it was gone before
        os._exit(1)


def _launcher_variables() -> list[str]:
    return [name for name in os.environ if name.startswith(_LAUNCHER)]


@contextlib.contextmanager
def variables_of_a_child() -> Iterator[None]:
    """A child that took itself for a rank of this job would join or end it.

    Nor does it search the present folder first, which a new Python does.
    """
    hidden = {name: os.environ.pop(name) for name in _launcher_variables()}
    is_safe = SAFE_PATH_VARIABLE in os.environ
    os.environ.setdefault(SAFE_PATH_VARIABLE, _OURS)
    try:
        yield
    finally:
        os.environ.update(hidden)
        if not is_safe:
            del os.environ[SAFE_PATH_VARIABLE]


_WORKERS: weakref.WeakSet[ChildWorker] = weakref.WeakSet()
os.register_at_fork(after_in_child=_WORKERS.clear)  # a copy of this process has no children


@atexit.register  # before multiprocessing's own handler, which would wait for them
def _close_all() -> None:
    for worker in list(_WORKERS):
        worker.kill()


class ChildWorker:
    """An environment in a child process, which the command `make` starts; see `EnvWorker`.

    Args:
        make: makes the environment; goes to the child by pickle.
        start_method: ``spawn`` or ``forkserver``.
        is_battle: whether it is a battle environment.
        step_timeout_s: of a step; None: no limit.
        reset_timeout_s: of a reset; creating may take `_START_S` longer; None: no limit.
    """

    def __init__(
        self,
        make: EnvFn,
        *,
        start_method: str,
        is_battle: bool,
        step_timeout_s: float | None,
        reset_timeout_s: float | None,
    ) -> None:
        self._context: Any = multiprocessing.get_context(start_method)
        self._target = (make, is_battle)
        making_s = None if reset_timeout_s is None else reset_timeout_s + _START_S
        self._timeouts = {"step": step_timeout_s, "make": making_s}
        self._reset_timeout_s = reset_timeout_s
        self._process: Any = None
        self._connection: Connection | None = None
        self._asked: tuple[str, float] = ("", 0.0)
        self._arrived: tuple[str, Any] | None = None  # an answer that `has_answer` has found
        self._ended: StepReply | None = None  # of a step that is over, and whose reset is not
        self._closed_at = 0.0

    @property
    def pid(self) -> int | None:
        """Number of the child process; None: there is none."""
        return None if self._process is None else self._process.pid

    def ask(self, command: Command) -> None:
        """Send a command; ``make`` starts a process, where the one there was is closed."""
        self._asked, self._arrived, self._ended = (command[0], time.monotonic()), None, None
        if command[0] == "make":
            self._start()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `answer` says so
            if self._connection is not None:
                self._connection.send(command)

    @property
    def connection(self) -> Connection | None:
        """Readable when something has come; None: the process was killed."""
        return self._connection

    @property
    def _limit_s(self) -> float | None:
        """Seconds that the command may take; None: any number."""
        return self._timeouts.get(self._asked[0], self._reset_timeout_s)

    @property
    def left_s(self) -> float:
        """Seconds until the command takes too long; infinite: never."""
        (_, since), limit_s = self._asked, self._limit_s
        return math.inf if limit_s is None else max(0.0, since + limit_s - time.monotonic())

    def has_answer(self) -> bool:
        """Returns whether `answer` returns, or raises, at once."""
        while self._arrived is None and self._connection is not None:
            if not self._connection.poll():
                return self.left_s == 0.0
            self._receive()
        return True

    def answer(self) -> Any:
        """Wait for the command's result; see `EnvWorker.answer`."""
        try:
            return self._answer()
        except EnvFailure as failure:
            if self._ended is None:
                raise
            return self._ended._replace(failure=failure)

    def _answer(self) -> Any:
        while self._arrived is None:
            if self._connection is None:
                raise EnvFailure("its process was killed", is_gone=True)
            left_s = self.left_s
            if left_s < math.inf and not self._connection.poll(left_s):
                self.kill()
                took = f"{self._asked[0]} took longer than {self._limit_s:g} s"
                raise EnvFailure(took, is_gone=True)
            self._receive()
        (state, value), self._arrived = self._arrived, None
        if state == "ok":
            return value
        raise EnvFailure(*value)

    def _receive(self) -> None:
        """Take what the process has sent: an answer, or that a step is over and a reset begins."""
        try:
            received = self._connection.recv()  # type: ignore[union-attr]
        except (EOFError, ConnectionResetError):
            self._arrived = ("failed", (self._exit_reason(), "", True))
            return
        if received[0] == "resetting":
            self._asked, self._ended = ("reset", time.monotonic()), StepReply(*received[1])
        else:
            self._arrived = received

    def attach(self, arrays: SharedArrays, env: int) -> None:
        """Send the arrays' descriptor."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `answer` will say so
            if self._connection is not None:
                self._connection.send(("attach", arrays.layout, env))
                reduction.send_handle(self._connection, arrays.fd, self._process.pid)

    def begin_close(self) -> None:
        """Ask the environment to close."""
        self.ask(("shut",))

    def close(self, patience_s: float) -> bool:
        """Wait for the environment to close and its process to exit, then kill what is left."""
        if self._connection is None:
            return True
        deadline = time.monotonic() + patience_s
        try:
            if not self._closes(deadline):
                return False
            if self._process is not None:
                _wait_for_exit(self._process, min(deadline, self._closed_at + _EXIT_S))
        finally:
            self.kill()
        return True

    def _closes(self, deadline: float) -> bool:
        """Wait until the environment is closed; returns False if it takes too long."""
        connection: Any = self._connection
        with contextlib.suppress(EOFError, ConnectionResetError):
            while connection.poll(max(0.0, deadline - time.monotonic())):
                state, value = connection.recv()
                if state == _CLOSED:  # after what it was asked before
                    self._closed_at = value  # of all at the same time: each waits from there on
                    return True
            return False
        reason = self._exit_reason()
        LOGGER.warning(
            "close() of an environment failed (%s)", reason,
            extra={"once": f"close() failed ({reason})"},
        )  # fmt: skip
        return True

    def _start(self) -> None:
        connection, other = self._context.Pipe()
        make, is_battle = self._target
        process = self._context.Process(
            target=child_main, args=(other, make, is_battle), name="hpcdi-env"
        )  # no daemon: those may have no children
        self._context.set_forkserver_preload(_PRELOAD)
        try:
            with variables_of_a_child():
                process.start()
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            connection.close()
            raise EnvError(
                f"the environment's callable {make!r} cannot be sent to a child process: {error}; "
                "name a function of a module (no lambda, nothing nested), or functools.partial of "
                "one, or set the manager's type to 'base'"
            ) from error
        except (RuntimeError, OSError) as error:
            connection.close()
            raise EnvError(
                f"an environment's child process cannot be started: {error}; a script of your own "
                "that makes child processes must be guarded by if __name__ == '__main__':"
            ) from error
        finally:
            other.close()
        self._process, self._connection = process, connection
        _WORKERS.add(self)

    def _exit_reason(self) -> str:
        process = self._process
        process.join(_EXIT_S)
        code = process.exitcode
        self.kill()
        if code is None:
            return "its process closed its pipe"
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        return f"its process exited with code {code}"

    def kill(self) -> None:
        """Kill the process, and what it has started. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            _kill_with_descendants(process)
            process.join()
            process.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _wait_for_exit(process: Any, deadline: float) -> None:
    """Wait for the process to exit, and for what it has told to end."""
    process.join(max(0.0, deadline - time.monotonic()))
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(_LOOK_S)


def _kill_with_descendants(process: Any) -> None:
    """Kill a process with its group, and what it has started in groups of their own."""
    leader, others = process.pid, list[int]()
    if process.exitcode is None:
        others = _descendants(leader)
    elif stat_of(leader)[0]:  # another's by now: nothing is left of the group
        return
    for kill, number in ((os.killpg, leader), *((os.kill, other) for other in others)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(number, signal.SIGKILL)
    process.kill()  # where it does not lead its group yet


def _descendants(pid: int) -> list[int]:
    return [each for child in children_of(pid) for each in (child, *_descendants(child))]
