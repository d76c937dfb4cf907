"""Probes of MPI and torch.distributed: start-up, fault tolerance, speed, clocks, process groups.

MPI is imported by `start_mpi` or by the first probe, not by this module: the start is one of the
things that are looked at.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import mpi4py
import numpy as np

from hpcdi.comm.codec import sendable
from hpcdi.dataclass import dataclass
from hpcdi.errors import CommError
from hpcdi.utils.console import redirected
from hpcdi.utils.variables import variables_set

if TYPE_CHECKING:
    from mpi4py import MPI

_DISPLAY = "OMPI_MCA_ompi_display_comm"
_METHOD = re.compile(r"^\s*(on|off)-host:\s+(?:all connections are )?(.+?)\s*$", re.MULTILINE)
_TABLE = re.compile(r"^Host 0 \[.*?^\s*off-host:[^\n]*\n", re.MULTILINE | re.DOTALL)
_SMALL_BYTES = 64
_LARGE_BYTES = 8_000_000
_WARM_UP = 10
_SMALL_ROUNDS = 200
_LARGE_ROUNDS = 6
_CLOCK_ROUNDS = 20
_GROUP_VALUES = 1_000_000
_PAIR_TAG, _GROUP_TAG = 1, 2


@sendable
@dataclass(frozen=True)
class LinkSpeed:
    """Speed of messages between rank 0 and `rank`, one way: small ones in s, large in bytes/s."""

    rank: int
    latency_s: float
    bytes_per_s: float


@sendable
@dataclass(frozen=True)
class GroupSpeed:
    """A process group of torch.distributed that has worked.

    Attributes:
        ranks: its members, by their ranks in the world.
        import_s: to import torch.
        form_s: to form the group.
        reduce_s: to average a million float32, after a first time.
    """

    ranks: tuple[int, ...]
    import_s: float
    form_s: float
    reduce_s: float


def start_mpi(*, asks_transports: bool = True) -> tuple[float, dict[str, str]]:
    """Start MPI by importing it; returns the seconds it took, and its transports.

    Transports: "on" and "off" the host -> what carries messages there. Only Open MPI 5 reports
    them, on rank 0, and only at its start.

    Args:
        asks_transports: have them reported. Not under srun: ranks send messages for it at the end
            of ``MPI_Init``, and a rank that has not come so far can be ended by one, see `pmix`
            (one start of some 50, 4 ranks on two busy nodes; none of 100 without).
    """
    asked = {_DISPLAY: "mpi_init"} if asks_transports and _DISPLAY not in os.environ else {}
    start = time.perf_counter()
    with variables_set(asked), _standard_output() as printed:
        from hpcdi.comm import world  # noqa: F401 (starts MPI)
    start_s = time.perf_counter() - start
    text = "".join(printed)
    if warnings := _TABLE.sub("", text).strip():  # other output of the library is for people
        sys.stderr.write(warnings + "\n")
    return start_s, parse_transports(text)


@contextlib.contextmanager
def without_starting_mpi() -> Iterator[None]:
    """What is imported within does not start MPI; where that runs already, nothing changes."""
    before, mpi4py.rc.initialize = mpi4py.rc.initialize, False
    try:
        yield
    finally:
        mpi4py.rc.initialize = before


def parse_transports(text: str) -> dict[str, str]:
    """Returns the transports of Open MPI's connection summary, without those it has none of."""
    return {where: method for where, method in _METHOD.findall(text) if method != "n/a"}


@contextlib.contextmanager
def _standard_output() -> Iterator[list[str]]:
    """Catch what C code prints; it is in the list when the block has ended."""
    printed: list[str] = []
    with tempfile.TemporaryFile() as caught:
        with redirected(caught.fileno(), 1):
            yield printed
        caught.seek(0)
        printed.append(caught.read().decode(errors="replace").replace("\0", ""))


def fault_tolerance() -> str:
    """Returns whether ranks can outlive a dead one: "active", "inactive" (not asked for), "absent".

    Open MPI is asked for its parameter: without fault tolerance its `Revoke` does not refuse, and
    hangs later.
    """
    from mpi4py import MPI

    try:
        MPI.COMM_SELF.Is_revoked()
    except (NotImplementedError, MPI.Exception):
        return "absent"
    return "active" if control_variable("mpi_ft_enable") else "inactive"


def control_variable(name: str) -> int | None:
    """Returns a numeric control variable of the MPI library; None: it has no such variable."""
    from mpi4py import MPI

    library = ctypes.CDLL(MPI.__file__)  # what that was linked with is found through it
    index, count, level = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    handle, value = ctypes.c_void_p(), (ctypes.c_int * 16)()
    wanted = MPI.Query_thread()  # Open MPI takes it for MPI's own level, too
    if library.MPI_T_init_thread(wanted, ctypes.byref(level)) != MPI.SUCCESS:
        return None
    try:
        if library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)) != MPI.SUCCESS:
            return None
        status = library.MPI_T_cvar_handle_alloc(
            index, None, ctypes.byref(handle), ctypes.byref(count)
        )
        if status != MPI.SUCCESS or count.value != 1:
            return None
        has_read = library.MPI_T_cvar_read(handle, value) == MPI.SUCCESS
        library.MPI_T_cvar_handle_free(ctypes.byref(handle))
        return int(value[0]) if has_read else None
    finally:
        library.MPI_T_finalize()


def measure_link(comm: MPI.Comm, partner: int) -> LinkSpeed:
    """Ping-pong; both ranks of the pair call it, and the lower one's figures count.

    Args:
        comm: a communicator on which nobody else receives.
        partner: the other rank.
    """
    _exchange(comm, partner, _SMALL_BYTES, _WARM_UP)
    small = _exchange(comm, partner, _SMALL_BYTES, _SMALL_ROUNDS)
    _exchange(comm, partner, _LARGE_BYTES, 1)
    large = _exchange(comm, partner, _LARGE_BYTES, _LARGE_ROUNDS)
    return LinkSpeed(
        max(partner, comm.Get_rank()),
        float(np.median(small)) / 2,
        2 * _LARGE_BYTES / float(np.median(large)),
    )


def clock_offset(comm: MPI.Comm, partner: int) -> float:
    """Returns the seconds by which the partner's clock is ahead; both ranks of the pair call it.

    The fastest of several exchanges counts (Cristian's algorithm). 0 on the higher rank.
    """
    clock = np.zeros(1)
    if comm.Get_rank() > partner:
        for _ in range(_CLOCK_ROUNDS):
            comm.Recv(clock, partner, _PAIR_TAG)
            clock[0] = time.time()
            comm.Send(clock, partner, _PAIR_TAG)
        return 0.0
    tried = []
    for _ in range(_CLOCK_ROUNDS):
        sent, start = time.time(), time.perf_counter()
        comm.Send(clock, partner, _PAIR_TAG)
        comm.Recv(clock, partner, _PAIR_TAG)
        took_s = time.perf_counter() - start
        tried.append((took_s, float(clock[0]) - sent - took_s / 2))
    return min(tried)[1]


def _exchange(comm: MPI.Comm, partner: int, n_bytes: int, rounds: int) -> list[float]:
    """Returns the seconds of each round trip."""
    data = np.zeros(n_bytes, np.uint8)
    is_first = comm.Get_rank() < partner
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        if is_first:
            comm.Send(data, partner, _PAIR_TAG)
        comm.Recv(data, partner, _PAIR_TAG)
        if not is_first:
            comm.Send(data, partner, _PAIR_TAG)
        times.append(time.perf_counter() - start)
    return times


def reduce_together(
    comm: MPI.Intracomm,
    ranks: Sequence[int],
    backend: str,
    timeout_s: float,
    doing: Callable[[str], None] = lambda _what: None,
) -> GroupSpeed:
    """Form a process group of some ranks and average an array; collective over them only.

    Args:
        comm: communicator of all.
        ranks: the members.
        backend: "gloo" or "nccl".
        timeout_s: for the group to form, and for the array.
        doing: called with what this rank waits for.

    Raises:
        CommError: the members do not find each other in time, or the average is wrong.
    """
    doing("the import of torch")
    start = time.perf_counter()
    import torch

    from hpcdi.comm.group import allreduce_data, dist_finalize, dist_init
    from hpcdi.comm.world import communicator

    import_s = time.perf_counter() - start
    doing(f"ranks {list(ranks)} to form a {backend} group")
    group = communicator(comm, ranks, _GROUP_TAG, from_group=False)
    try:
        group.Barrier()  # all have imported torch
        start = time.perf_counter()
        mine, size = dist_init(backend, timeout=timeout_s, group=group)
        form_s = time.perf_counter() - start
        doing(f"an all-reduce over {backend} of ranks {list(ranks)}")
        device = "cuda" if backend == "nccl" else "cpu"
        for _ in range(2):
            values = torch.full((_GROUP_VALUES,), float(mine), device=device)
            start = time.perf_counter()
            allreduce_data(values, "avg")
            average = float(values[-1])  # waits for the device, too
            reduce_s = time.perf_counter() - start
        if average != (size - 1) / 2:
            raise CommError(
                f"{backend} averaged ranks 0 to {size - 1} of ranks {list(ranks)} to {average}"
            )
    except RuntimeError as error:
        raise CommError(f"an all-reduce over {backend} failed: {error}") from error
    finally:
        dist_finalize()
        group.Free()
    return GroupSpeed(tuple(ranks), import_s, form_s, reduce_s)
