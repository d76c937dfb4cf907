"""mpirun on one host: nobody else can reach it. ``HPCDI_LOOPBACK=0`` switches this off.

mpirun waits for daemons of other hosts on all addresses, and no setting of it changes that (PRRTE 3
binds to INADDR_ANY). So its parent takes a second handle of the socket (Linux 5.6) and binds it to
the interface lo: from elsewhere the port is closed. mpirun is traced until it forks its first rank,
and stands still when it is about to listen: so no port of it is ever open, not for a moment. What
listens later, or where tracing is forbidden, is bound as soon as it is seen. Where the kernel or a
container forbids that, too, the sockets stay as they are.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import select
import signal
import socket
import threading
import time

from hpcdi.utils.processes import open_doors, stat_of, status_field
from hpcdi.utils.threads import BackgroundThread

SWITCH = "HPCDI_LOOPBACK"
_PIDFD_GETFD = 438
_LOOK_S, _SETTLED_S, _LIMIT_S = 0.02, 1.0, 30.0
_RARELY_S = 0.5
"""From one look to the next, in the end: each takes a millisecond."""
_PATIENCE_S = 2.0
"""So long may a child sleep in one system call before it listens: mpirun reads files at most."""
_TRACE_ME, _SET_OPTIONS, _TO_SYSCALL, _DETACH, _SYSCALL_INFO = 0, 0x4200, 24, 17, 0x420E
_MARK_SYSCALLS, _SYSCALL_STOP, _ENTRY = 1, signal.SIGTRAP | 0x80, 1
_CLONE_THREAD = 0x10000
_CALLS = {  # listen, clone, and those that only fork
    "x86_64": (50, 56, (57, 58)),
    "aarch64": (201, 220, ()),
}


class _Syscall(ctypes.Structure):
    """The kernel's ptrace_syscall_info, at a call's entry."""

    _fields_ = (
        ("op", ctypes.c_uint8),
        ("arch", ctypes.c_uint32),
        ("instruction", ctypes.c_uint64),
        ("stack", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 6),
    )


def let_parent_trace() -> None:
    """In a child, before its program begins: let its parent see what it does, until `begin`."""
    if _is_on() and platform.machine() in _CALLS:
        with contextlib.suppress(OSError):  # the parent sees that it is not traced
            _ptrace(_TRACE_ME, 0)


def begin(pid: int) -> None:
    """Keep a child to loopback, unless the user has switched that off.

    Returns when a child that has called `let_parent_trace` is about to fork, or sleeps; what comes
    later is kept by a thread.
    """
    if not _is_on():
        return
    with contextlib.suppress(OSError):  # it has ended, or the kernel forbids it
        if status_field(pid, "TracerPid") == str(threading.get_native_id()):
            _watch_over(pid)
    BackgroundThread(functools.partial(keep_to_loopback, pid), "loopback")


def keep_to_loopback(pid: int) -> None:
    """Bind sockets of a child that listen on all addresses to lo, as soon as it has them.

    Returns when it has had all of them for a while, or has ended.
    """
    began = ends = time.monotonic()
    ends += _LIMIT_S
    look_s = _LOOK_S
    with contextlib.suppress(OSError):  # it has ended, or the kernel forbids it
        process = os.pidfd_open(pid)
        try:
            has_ended = False
            while time.monotonic() < ends and not has_ended:
                if sum(_bind(process, number) for number in open_doors(pid)):
                    ends = min(began + _LIMIT_S, time.monotonic() + _SETTLED_S)
                has_ended = bool(select.select([process], [], [], look_s)[0])
                look_s = min(1.2 * look_s, _RARELY_S)
        finally:
            os.close(process)


def _is_on() -> bool:
    return os.environ.get(SWITCH) != "0"


# --------------------------------------------------------------------------- a child that is traced


def _watch_over(pid: int) -> None:
    """Bind the sockets of a traced child before they listen, until it forks or sleeps.

    Raises:
        OSError: it has ended.
    """
    process, patience = os.pidfd_open(pid), _Patience(pid)
    listen, clone, forks = _CALLS[platform.machine()]
    number = 0
    try:
        number = _next_stop(pid)
        _ptrace(_SET_OPTIONS, pid, data=_MARK_SYSCALLS)
        while not patience.is_over:
            patience.calls += 1
            call = _syscall(pid) if number == _SYSCALL_STOP else None
            if call is not None and call.number == listen:
                with contextlib.suppress(OSError):  # the kernel forbids it
                    _bind(process, call.arguments[0], only_any=True)
            elif call is not None and (
                call.number in forks
                or (call.number == clone and not call.arguments[0] & _CLONE_THREAD)
            ):
                break
            _ptrace(_TO_SYSCALL, pid, data=_to_deliver(number))
            number = _next_stop(pid)
    finally:
        patience.end()
        with contextlib.suppress(OSError):
            _ptrace(_DETACH, pid, data=0 if patience.is_over else _to_deliver(number))
            if patience.is_over:
                os.kill(pid, signal.SIGCONT)
        os.close(process)


class _Patience:
    """Stops a traced child that sleeps, or is traced for too long, so that its parent lets it go.

    Attributes:
        calls: that the child has made, counted by its parent.
        is_over: whether the child is to be let go.
    """

    def __init__(self, pid: int) -> None:
        self.calls, self.is_over = 0, False
        self._pid, self._ended = pid, threading.Event()
        self._thread = BackgroundThread(self._look, "loopback patience")

    def end(self) -> None:
        """Look no more; returns when the child gets no signal from here any more."""
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        began, calls, since = time.monotonic(), -1, 0.0
        while not self._ended.wait(_PATIENCE_S / 4):
            now = time.monotonic()
            if self.calls != calls or stat_of(self._pid)[0] not in ("S", "D"):
                calls, since = self.calls, now
            if now - since > _PATIENCE_S or now - began > _LIMIT_S:
                self.is_over = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGSTOP)
                return


def _next_stop(pid: int) -> int:
    """Wait until a traced child stands still; returns by which signal.

    Raises:
        ChildProcessError: it has ended; its exit code is left for others.
    """
    how = os.WSTOPPED | os.WEXITED
    state = os.waitid(os.P_PID, pid, how | os.WNOWAIT)
    if state is None or state.si_code in (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED):
        raise ChildProcessError(pid)
    os.waitid(os.P_PID, pid, os.WSTOPPED)
    return int(state.si_status)


def _to_deliver(number: int) -> int:
    """Returns the signal that a child gets when it goes on from a stop; 0: none."""
    return 0 if number & 0x7F == signal.SIGTRAP else number


def _syscall(pid: int) -> _Syscall | None:
    """Returns the system call that a child is about to make; None: it comes back from one."""
    call = _Syscall()
    _ptrace(_SYSCALL_INFO, pid, ctypes.sizeof(call), ctypes.addressof(call))
    return call if call.op == _ENTRY else None


def _ptrace(request: int, pid: int, address: int = 0, data: int = 0) -> None:
    """Call ptrace.

    Raises:
        OSError: the kernel refuses it.
    """
    if _libc().ptrace(request, pid, address, data) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


@functools.cache
def _libc() -> ctypes.CDLL:
    """The C library; made once, since a child that is traced stops thousands of times."""
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    library.ptrace.restype = ctypes.c_long
    return library


def _bind(process: int, number: int, *, only_any: bool = False) -> bool:
    """Bind a socket of a process to lo; returns whether it was open.

    Args:
        process: its descriptor.
        number: of the socket.
        only_any: leave it if it is bound to one address, or is no socket of the network.

    Raises:
        OSError: the kernel forbids it.
    """
    handle = _libc().syscall(_PIDFD_GETFD, process, number, 0)
    if handle < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    with socket.socket(fileno=handle) as door:
        if only_any and (
            door.family not in (socket.AF_INET, socket.AF_INET6)
            or door.getsockname()[0] not in ("0.0.0.0", "::")  # noqa: S104 (that is what is sought)
        ):
            return False
        if door.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).strip(b"\0"):
            return False
        door.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
    return True
