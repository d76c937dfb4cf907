"""mpirun on one host: nobody else can reach it. ``HPCDI_LOOPBACK=0`` switches this off.

mpirun waits for daemons of other hosts on all addresses, and no setting of it changes that (PRRTE 3
binds to INADDR_ANY). So its parent takes a second handle of the socket (Linux 5.6) and binds it to
the interface lo: from elsewhere the port is closed. Where the kernel or a container forbids it, the
sockets stay as they are.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import sys
import time
from functools import partial

from hpcdi.utils.processes import open_doors
from hpcdi.utils.threads import BackgroundThread

SWITCH = "HPCDI_LOOPBACK"
_PIDFD_GETFD = 438
_LOOK_S, _SETTLED_S, _LIMIT_S = 0.02, 1.0, 30.0


def begin(pid: int) -> None:
    """Keep a child to loopback, by a thread, unless the user has switched that off."""
    if sys.platform == "linux" and os.environ.get(SWITCH) != "0":
        BackgroundThread(partial(keep_to_loopback, pid), "loopback")


def keep_to_loopback(pid: int) -> None:
    """Bind sockets of a child that listen on all addresses to lo, as soon as it has them.

    Returns when it has had all of them for a while, or has ended.
    """
    began = ends = time.monotonic()
    ends += _LIMIT_S
    with contextlib.suppress(OSError):  # it has ended, or the kernel forbids it
        process = os.pidfd_open(pid)
        try:
            has_ended = False
            while time.monotonic() < ends and not has_ended:
                if sum(_bind(process, number) for number in open_doors(pid)):
                    ends = min(began + _LIMIT_S, time.monotonic() + _SETTLED_S)
                has_ended = bool(select.select([process], [], [], _LOOK_S)[0])
        finally:
            os.close(process)


def _bind(process: int, number: int) -> bool:
    """Bind a socket of a process to lo; returns whether it was open.

    Raises:
        OSError: the kernel forbids it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.syscall(_PIDFD_GETFD, process, number, 0)
    if handle < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    with socket.socket(fileno=handle) as door:
        if door.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).strip(b"\0"):
            return False
        door.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
    return True
