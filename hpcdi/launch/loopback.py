"""Limits the listening sockets of mpirun to loopback, where all ranks are on this host.

mpirun waits for daemons of other hosts on all addresses, and no setting of it changes that (PRRTE 3
binds to INADDR_ANY). So its parent takes a second handle of the socket (Linux 5.6) and binds it to
the interface lo: from elsewhere the port is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from hpcdi.utils.backoff import wait_s

_PIDFD_GETFD = 438
_LISTENS = "0A"
_ANY = {"00000000": "tcp", "0" * 32: "tcp6"}
_LOOK_S, _SETTLED_S, _LIMIT_S = 0.02, 1.0, 30.0


def keep_to_loopback(pid: int) -> None:
    """Bind sockets of a child that listen on all addresses to lo, as soon as it has them.

    Returns when it has had all of them for a while, or has ended. Where the kernel or a container
    forbids it the sockets stay as they are.
    """
    if sys.platform != "linux":
        return
    began = ends = time.monotonic()
    ends += _LIMIT_S
    with contextlib.suppress(OSError):  # it has ended, or the kernel forbids it
        process = os.pidfd_open(pid)
        try:
            while time.monotonic() < ends:
                if sum(_bind(process, number) for number in _open_doors(pid)):
                    ends = min(began + _LIMIT_S, time.monotonic() + _SETTLED_S)
                wait_s(_LOOK_S)
        finally:
            os.close(process)


def _open_doors(pid: int) -> Iterator[int]:
    """Yields descriptors of a process that listen on all addresses of all interfaces."""
    doors = {
        words[9]
        for table in _ANY.values()
        for words in map(str.split, _lines(Path(f"/proc/net/{table}")))
        if words[3] == _LISTENS and words[1].partition(":")[0] in _ANY
    }
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if str(entry.readlink()).removeprefix("socket:[").removesuffix("]") in doors:
                yield int(entry.name)


def _lines(table: Path) -> list[str]:
    try:
        return table.read_text().splitlines()[1:]
    except OSError:  # a kernel without IPv6
        return []


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
