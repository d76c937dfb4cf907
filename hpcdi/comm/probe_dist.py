"""Whether torch.distributed connects ranks here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from mpi4py import MPI

from hpcdi.comm.probe_facts import Reduced
from hpcdi.errors import CommError

_VALUES = 1_000_000
_TAG = 2


def reduce_together(
    comm: MPI.Intracomm,
    ranks: Sequence[int],
    backend: str,
    timeout_s: float,
    doing: Callable[[str], None] = lambda _what: None,
) -> Reduced:
    """Form a process group of some ranks and average an array; collective over them only.

    Args:
        comm: communicator of all.
        ranks: the members.
        backend: "gloo" or "nccl".
        timeout_s: for the group to form, and for the array.
        doing: told what is waited for.

    Raises:
        CommError: the members do not find each other in time, or the average is wrong.
    """
    doing("the import of torch")
    start = time.perf_counter()
    import torch

    from hpcdi.comm.dist import allreduce, dist_finalize, dist_init

    import_s = time.perf_counter() - start
    doing(f"ranks {list(ranks)} to form a {backend} group")
    everybody = comm.Get_group()
    members = everybody.Incl(list(ranks))
    group = comm.Create_group(members, _TAG)
    try:
        group.Barrier()  # all have imported torch
        start = time.perf_counter()
        mine, size = dist_init(backend, timeout=timeout_s, group=group)
        form_s = time.perf_counter() - start
        doing(f"an all-reduce over {backend} of ranks {list(ranks)}")
        device = "cuda" if backend == "nccl" else "cpu"
        for _ in range(2):
            values = torch.full((_VALUES,), float(mine), device=device)
            start = time.perf_counter()
            allreduce(values)
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
        members.Free()
        everybody.Free()
    return Reduced(tuple(ranks), import_s, form_s, reduce_s)
