"""What MPI can do here: fault tolerance, latency and bandwidth of a pair, clocks."""

from __future__ import annotations

import ctypes
import time

import numpy as np
from mpi4py import MPI

from hpcdi.comm.probe_facts import Link

SMALL_BYTES = 64
LARGE_BYTES = 8_000_000
_WARM_UP = 10
_SMALL_ROUNDS = 200
_LARGE_ROUNDS = 6
_CLOCK_ROUNDS = 20
_TAG = 1


def fault_tolerance() -> str:
    """Whether ranks can outlive a dead one: "active", "inactive" (built, not asked for), "absent".

    Open MPI is asked for its parameter: without fault tolerance its `Revoke` does not refuse, and
    hangs later.
    """
    try:
        MPI.COMM_SELF.Is_revoked()
    except (NotImplementedError, MPI.Exception):
        return "absent"
    return "active" if control_variable("mpi_ft_enable") else "inactive"


def control_variable(name: str) -> int | None:
    """Value of one of the library's variables that is a number; None: it has no such variable."""
    library = ctypes.CDLL(MPI.__file__)  # what that was linked with is found through it
    index, count, level = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    handle, value = ctypes.c_void_p(), (ctypes.c_int * 16)()
    wanted = MPI.Query_thread()  # Open MPI takes it for MPI's own level, too
    if library.MPI_T_init_thread(wanted, ctypes.byref(level)) != MPI.SUCCESS:
        return None
    try:
        if library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)) != MPI.SUCCESS:
            return None
        made = library.MPI_T_cvar_handle_alloc(
            index, None, ctypes.byref(handle), ctypes.byref(count)
        )
        if made != MPI.SUCCESS or count.value != 1:
            return None
        has_read = library.MPI_T_cvar_read(handle, value) == MPI.SUCCESS
        library.MPI_T_cvar_handle_free(ctypes.byref(handle))
        return int(value[0]) if has_read else None
    finally:
        library.MPI_T_finalize()


def measure_link(comm: MPI.Comm, partner: int) -> Link:
    """Send messages to and fro; both ranks of the pair call it, and the lower one's figures count.

    Args:
        comm: a communicator that nobody else receives on.
        partner: the other rank.
    """
    _exchange(comm, partner, SMALL_BYTES, _WARM_UP)
    small = _exchange(comm, partner, SMALL_BYTES, _SMALL_ROUNDS)
    _exchange(comm, partner, LARGE_BYTES, 1)
    large = _exchange(comm, partner, LARGE_BYTES, _LARGE_ROUNDS)
    return Link(
        max(partner, comm.Get_rank()),
        float(np.median(small)) / 2,
        2 * LARGE_BYTES / float(np.median(large)),
    )


def clock_offset(comm: MPI.Comm, partner: int) -> float:
    """Seconds by which the partner's clock is ahead; both ranks of the pair call it.

    Of several exchanges the fastest counts: the answer was given within half its time. On the
    higher rank of the pair it is 0.
    """
    clock = np.zeros(1)
    if comm.Get_rank() > partner:
        for _ in range(_CLOCK_ROUNDS):
            comm.Recv(clock, partner, _TAG)
            clock[0] = time.time()
            comm.Send(clock, partner, _TAG)
        return 0.0
    tried = []
    for _ in range(_CLOCK_ROUNDS):
        sent, start = time.time(), time.perf_counter()
        comm.Send(clock, partner, _TAG)
        comm.Recv(clock, partner, _TAG)
        took_s = time.perf_counter() - start
        tried.append((took_s, float(clock[0]) - sent - took_s / 2))
    return min(tried)[1]


def _exchange(comm: MPI.Comm, partner: int, n_bytes: int, rounds: int) -> list[float]:
    """Seconds of each round: there and back."""
    data = np.zeros(n_bytes, np.uint8)
    is_first = comm.Get_rank() < partner
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        if is_first:
            comm.Send(data, partner, _TAG)
        comm.Recv(data, partner, _TAG)
        if not is_first:
            comm.Send(data, partner, _TAG)
        times.append(time.perf_counter() - start)
    return times
