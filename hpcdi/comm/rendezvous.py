"""Where the members of a process group find each other: torch's store.

Members on one host share a file in memory, not torch's TCPStore. A client of that one asks, before
it connects, which name belongs to the store's address; and since its sockets are IPv6's it asks for
::ffff:127.0.0.1, which no /etc/hosts knows, so that the question goes to DNS. An answer that is
lost costs 5 s, a DNS server that is not there 10 s: the defaults of resolv.conf. (Seen in 15 of 200
groups of 2 or 4 members, where DNS lost 1.7 % of its answers; with the file in none.)

Members on several hosts have no such file: there a TCPStore is the only one, DNS or not.
"""

from __future__ import annotations

import contextlib
import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from hpcdi.errors import CommError

if TYPE_CHECKING:
    from mpi4py import MPI

ADDRESS_VARIABLE = "HPCDI_MASTER_ADDR"
"""Address of the first member, where the user knows better."""

_descriptor = -1
"""This process's own way to the last memory file. It stays open, and the next group's file takes
its number: a store that somebody still holds writes its farewell there, by number."""


def store_of_ranks(group: MPI.Comm, hosts: list[str], timeout: timedelta) -> dist.Store:
    """The members' store; collective over them.

    Args:
        group: communicator of the members.
        hosts: of each member, its name.
        timeout: for the members to meet, and for what they wait for in the store.

    Raises:
        RuntimeError: they do not meet.
    """
    is_one_host = len(set(hosts)) == 1 and sys.platform == "linux"
    if is_one_host and not any(group.allgather(ADDRESS_VARIABLE in os.environ)):
        store = _memory_store(group, timeout)
        if store is not None:
            return store
    host = "127.0.0.1" if is_one_host else hosts[0]  # whatever names this host has
    host = os.environ.get(ADDRESS_VARIABLE, host)
    rank, size = group.Get_rank(), group.Get_size()
    if rank == 0:
        made = dist.TCPStore(host, 0, size, True, timeout, wait_for_workers=False)
        group.bcast((host, made.port), root=0)
        return made
    host, port = group.bcast(None, root=0)
    return dist.TCPStore(host, port, size, False, timeout)


def store_at(
    addr: str | None, port: int | None, rank: int, world_size: int, timeout: timedelta
) -> dist.Store:
    """The store at an address, else at the environment's MASTER_ADDR and MASTER_PORT.

    Raises:
        CommError: there is no port. ValueError: it is no number. RuntimeError: nobody is there.
    """
    host = addr or os.environ.get("MASTER_ADDR", "127.0.0.1")
    number = port if port is not None else int(os.environ.get("MASTER_PORT", "0"))
    if world_size > 1 and number == 0:
        raise CommError("a group of several processes needs MPI, or addr and port of rank 0")
    return dist.TCPStore(host, number, world_size, rank == 0, timeout)


def _memory_store(group: MPI.Comm, timeout: timedelta) -> dist.Store | None:
    """A store in a file of rank 0 that has no name and ends with its processes; collective.

    None where a member cannot open it: it sees another /proc, or none.
    """
    global _descriptor
    made, place = -1, None
    if group.Get_rank() == 0:
        with contextlib.suppress(OSError):  # some sandboxes have no such files
            made = os.memfd_create("hpcdi-group")
            place = (f"/proc/{os.getpid()}/fd/{made}", _identity(made))
    own = _opened(group.bcast(place, root=0))
    are_all_there = all(group.allgather(own >= 0))
    if made >= 0:
        os.close(made)
    if not are_all_there:
        if own >= 0:
            os.close(own)
        return None
    if _descriptor < 0:
        _descriptor = own
    else:
        os.dup2(own, _descriptor, inheritable=False)
        os.close(own)
    store = dist.FileStore(f"/proc/self/fd/{_descriptor}", group.Get_size())
    store.set_timeout(timeout)
    return store


def _opened(place: tuple[str, tuple[int, int]] | None) -> int:
    """A descriptor of the file of a path and identity; -1 where there is none, or another there."""
    if place is None:
        return -1
    path, identity = place
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if _identity(descriptor) == identity:
            return descriptor
        os.close(descriptor)
    return -1


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
