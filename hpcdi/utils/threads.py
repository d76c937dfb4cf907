"""Background threads whose errors are not lost. Only this file starts threads.

They are daemons: an ordinary thread would keep the interpreter, and so the whole MPI job, alive
after an error. While the interpreter ends they no longer run, so that then nobody waits for
them: a `__del__` may run as late as that.

Others, a simulator say, may leave threads that go on for ever and are no daemons. Python waits for
these, and so would a batch job's nodes: see `end_in_spite_of_threads`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import queue
import sys
import threading
import time
from collections.abc import Callable

from hpcdi.utils.lifetime import Closing

_LOOK_S = 0.5
_EXIT_S = 10.0
"""How long a thread may take to end with the program."""
_PATIENCE_S = 10.0
"""For a thread of others that has something to finish; a pool's ends by itself."""
_SYSCALLS = {"x86_64": (315, 314), "aarch64": (275, 274), "ppc64le": (356, 355)}
"""By machine, the numbers of sched_getattr and sched_setattr."""
_SLICE_NS = 100_000
"""The shortest that Linux takes; by default it is some milliseconds."""


class _Scheduling(ctypes.Structure):
    """Linux's `sched_attr`, of its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def wake_this_thread_soon() -> None:
    """Ask Linux to let this thread run as soon as it wakes, where others use all cores.

    Its share of the cores stays as it is: it takes that in slices of 0.1 ms, and who asks for less
    at a time may run earlier. Linux has this since 6.12; older kernels ignore it. What this thread
    starts inherits it.
    """
    numbers = _SYSCALLS.get(os.uname().machine) if sys.platform == "linux" else None
    if numbers is None or os.sched_getscheduler(0) not in (os.SCHED_OTHER, os.SCHED_BATCH):
        return
    read, write = numbers
    syscall = ctypes.CDLL(None).syscall
    attributes = _Scheduling()
    size = ctypes.sizeof(attributes)
    if syscall(read, 0, ctypes.byref(attributes), size, 0) == 0:
        attributes.runtime_ns = _SLICE_NS
        syscall(write, 0, ctypes.byref(attributes), 0)


class BackgroundThread:
    """Runs a function on a thread of its own, and keeps what it raises for `check`.

    Args:
        target: the function.
        name: of the thread, for stack dumps.
        on_failure: called on the thread after `target` has raised.
        at_exit: called where the program ends before `target`, which must end by it soon: a thread
            that is within a library of C++ then, such as torch, aborts the program.
    """

    def __init__(
        self,
        target: Callable[[], object],
        name: str,
        on_failure: Callable[[], None] | None = None,
        at_exit: Callable[[], None] | None = None,
    ) -> None:
        self._target, self._on_failure, self._at_exit = target, on_failure, at_exit
        self._failure: BaseException | None = None
        if at_exit is not None:
            atexit.register(self._end_with_program)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what the function raised, once."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the function to end; does nothing if called from within it."""
        if self._thread is not threading.current_thread() and not sys.is_finalizing():
            self._thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        """True if the function is still running, and will go on."""
        return self._thread.is_alive() and not sys.is_finalizing()

    def _end_with_program(self) -> None:
        if self._at_exit is not None:
            self._at_exit()
        self.join(_EXIT_S)

    def _run(self) -> None:
        try:
            self._target()
        except BaseException as error:  # raised where `check` is called
            self._failure = error
            if self._on_failure is not None:
                self._on_failure()
        finally:
            atexit.unregister(self._end_with_program)


class JobThread(Closing):
    """Runs jobs one after the other on a thread of its own, which the first job starts.

    Args:
        name: of the thread, for stack dumps.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: BackgroundThread | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Queue a job; raises what an earlier job raised, after which none are run."""
        if self._thread is None:
            self._thread = BackgroundThread(self._run, self._name)
        self._thread.check()
        self._jobs.put(job)

    def wait(self) -> None:
        """Wait for all jobs so far; raises, once, what one of them raised."""
        done = threading.Event()
        self.submit(done.set)
        while (thread := self._thread) is not None and not done.is_set():
            if not thread.is_alive:
                thread.check()
                return
            done.wait(_LOOK_S)

    def close(self) -> None:
        """Finish all jobs and end; raises what one of them raised. Idempotent."""
        self.end(None)

    def end(self, timeout_s: float | None) -> bool:
        """Close, but wait no longer than so many seconds; returns whether all jobs have ended."""
        thread, self._thread = self._thread, None
        if thread is None:
            return True
        self._jobs.put(None)
        thread.join(timeout_s)
        thread.check()
        return not thread.is_alive

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def end_in_spite_of_threads(exit_code: int) -> None:
    """Have this process exit with a code even if threads stay; its last call before it ends.

    Functions of `atexit` run before: they close what others wait for. MPI has ended already.
    """
    if _left():
        BackgroundThread(lambda: _watch(exit_code), "ending")


def _left() -> list[threading.Thread]:
    """Threads for which Python waits when it ends."""
    own = (threading.main_thread(), threading.current_thread())
    return [thread for thread in threading.enumerate() if not thread.daemon and thread not in own]


def _watch(exit_code: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while left := _left():
        patience_s = deadline - time.monotonic()
        if patience_s <= 0:
            break
        left[0].join(patience_s)
    else:
        return
    names = ", ".join(thread.name for thread in left)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(
            f"hpcdi: threads of the environment, or of a library, have not ended: {names}; they "
            "are left behind\n"
        )
    BackgroundThread(_end_in_order, "ending-functions").join(_PATIENCE_S)
    os._exit(exit_code)


def _end_in_order() -> None:
    """What Python and C do last; for ever where a thread that stays holds a stream."""
    try:
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # the reader may be gone already
                stream.flush()
        ctypes.CDLL(None).fflush(None)
