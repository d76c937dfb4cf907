"""Where the members of a process group find each other: torch's store.

A client of torch's TCPStore asks, before it connects, which name belongs to the store's address;
since its sockets are IPv6's it asks for ::ffff:127.0.0.1, which no /etc/hosts knows, so that the
question goes to DNS. An answer that is lost costs 5 s, once, at the start (seen where DNS lost 1.7
% of its answers). A FileStore in memory would ask nobody, but it opens its file anew when it goes,
which may be at the end of the interpreter, and reads for ever what lies there then.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import torch.distributed as dist

from hpcdi.errors import CommError

if TYPE_CHECKING:
    from mpi4py import MPI

ADDRESS_VARIABLE = "HPCDI_MASTER_ADDR"
"""Address of the first member, where the user knows better."""


class Meeting(Protocol):
    """Members who know of each other, and can tell one thing to all."""

    @property
    def rank(self) -> int:
        """This one's number among them."""
        ...

    @property
    def hosts(self) -> Sequence[str]:
        """Of each member, in order."""
        ...

    def share(self, address: tuple[str, int] | None) -> tuple[str, int]:
        """Tell all members an address, or learn it from the first one.

        Raises:
            CommError: the first one does not say it.
        """
        ...


class MpiMeeting:
    """The members are the ranks of a communicator.

    Args:
        comm: of exactly the members, in order.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        from hpcdi.comm.world import collect  # late: it starts MPI, which not every group has

        self.rank: int = comm.Get_rank()
        self.hosts: Sequence[str] = collect(comm, platform.node())
        self._comm = comm

    def share(self, address: tuple[str, int] | None) -> tuple[str, int]:
        """See `Meeting.share`; collective."""
        from hpcdi.comm.world import share

        shared: tuple[str, int] = share(self._comm, address)
        return shared


def store_of(meeting: Meeting, timeout: timedelta) -> dist.Store:
    """The members' store; collective over them.

    Args:
        meeting: the members.
        timeout: for the members to meet, and for what they wait for in the store.

    Raises:
        RuntimeError: they do not meet.
    """
    hosts, size = meeting.hosts, len(meeting.hosts)
    is_one_host = len(set(hosts)) == 1 and sys.platform == "linux"
    host = "127.0.0.1" if is_one_host else hosts[0]  # whatever names this host has
    host = os.environ.get(ADDRESS_VARIABLE, host)
    if meeting.rank == 0:
        made = dist.TCPStore(host, 0, size, True, timeout, wait_for_workers=False)
        meeting.share((host, made.port))
        return made
    host, port = meeting.share(None)
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
