"""The learners' process group: torch.distributed beside MPI.

Messages go by MPI, gradients by NCCL or gloo. The group is formed from MPI ranks, without a port
for anybody to choose: its rank 0 binds a store to a free port first, and tells the others by MPI.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from hpcdi.errors import CommError

if TYPE_CHECKING:
    from mpi4py import MPI

DEFAULT_TIMEOUT_S = 300.0
_INTERFACE = "GLOO_SOCKET_IFNAME"
_set_by_us: list[str] = []  # variables to take back when the group is left
_limit = timedelta(seconds=DEFAULT_TIMEOUT_S)  # of the group that was joined last


def dist_init(
    backend: str = "nccl",
    addr: str | None = None,
    port: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
    *,
    group: MPI.Comm | None = None,
) -> tuple[int, int]:
    """Join the process group; collective over its members.

    Args:
        backend: "nccl", or "gloo". Without a CUDA device "nccl" becomes "gloo".
        addr: host of rank 0; needed only without MPI.
        port: port of rank 0; needed only without MPI.
        rank: this process's rank in the group; from `group`, else the environment's RANK.
        world_size: size of the group; from `group`, else the environment's WORLD_SIZE.
        timeout: seconds after which a collective that misses a member raises.
        group: MPI communicator of exactly the members, in rank order.

    Returns:
        This process's rank in the group, and the group's size.

    Raises:
        CommError: rank or size cannot be known, or the members do not find each other in time.
    """
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if group is not None:
        rank, world_size = group.Get_rank(), group.Get_size()
    rank = _from_environment("RANK", rank)
    world_size = _from_environment("WORLD_SIZE", world_size)
    if backend == "nccl" and not torch.cuda.is_available():
        backend = "gloo"
    global _limit
    limit = _limit = timedelta(seconds=timeout)
    hosts = group.allgather(platform.node()) if group is not None else []
    if backend == "nccl":
        torch.cuda.set_device(local_device(hosts[:rank].count(platform.node()) if hosts else rank))
    try:
        store = _open_store(group, hosts, (addr, port), rank, world_size, limit)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=world_size, timeout=limit
        )
    except (RuntimeError, ValueError) as error:  # torch's DistError is a RuntimeError
        raise CommError(
            f"learner {rank} of {world_size} could not join the {backend} process group: "
            f"{str(error).rstrip('.')}. On a host with several networks name the right one by "
            "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME, or the address of learner 0 by "
            "HPCDI_MASTER_ADDR"
        ) from error
    return rank, world_size


def dist_finalize() -> None:
    """Leave the process group; does nothing where there is none, and can be called again.

    Must come before the interpreter ends: a group that is torn down with it aborts the process.
    """
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    while _set_by_us:
        os.environ.pop(_set_by_us.pop(), None)


def new_group(ranks: Sequence[int] | None = None) -> dist.ProcessGroup:
    """A second group, of some members or all, with the same time limit.

    Collective over all members of the first one, whether they are in the second or not.
    """
    made: dist.ProcessGroup = dist.new_group(ranks, timeout=_limit)
    return made


def local_device(local_learner: int) -> int:
    """CUDA device of the n-th learner of a node, among the devices that the scheduler shows it."""
    return local_learner % max(torch.cuda.device_count(), 1)


def get_rank() -> int:
    """Rank in the process group; 0 where there is none."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def get_world_size() -> int:
    """Size of the process group; 1 where there is none."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def allreduce(x: torch.Tensor) -> None:
    """Replace `x` by its mean over the group, in place."""
    if get_world_size() > 1:
        dist.all_reduce(x)
        x.div_(get_world_size())


def allreduce_data(x: float | torch.Tensor, op: str) -> float | torch.Tensor:
    """Combine a number, or a tensor in place, over the group; every member gets the result.

    Args:
        x: a number or a tensor.
        op: "sum" or "avg".

    Raises:
        CommError: `op` is neither.
    """
    if op not in ("sum", "avg"):
        raise CommError(f"allreduce_data knows 'sum' and 'avg', not {op!r}")
    if get_world_size() == 1:
        return x
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    total = (
        x if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=torch.float64, device=device)
    )
    dist.all_reduce(total)
    if op == "avg":
        total /= get_world_size()
    return x if isinstance(x, torch.Tensor) else total.item()


def broadcast(x: torch.Tensor, src: int = 0) -> None:
    """Replace `x` by member `src`'s, in place."""
    if get_world_size() > 1:
        dist.broadcast(x, src)


def broadcast_object(value: Any, src: int = 0) -> Any:
    """Member `src`'s object, on every member; what the others give is not looked at."""
    if get_world_size() == 1:
        return value
    box = [value if get_rank() == src else None]
    dist.broadcast_object_list(box, src)
    return box[0]


def gather_objects(value: Any) -> list[Any]:
    """Every member's object, in the order of ranks, on every member."""
    if get_world_size() == 1:
        return [value]
    gathered: list[Any] = [None] * get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def _open_store(
    group: MPI.Comm | None,
    hosts: list[str],
    address: tuple[str | None, int | None],
    rank: int,
    world_size: int,
    timeout: timedelta,
) -> dist.Store:
    if group is None:
        addr, port = address
        host = addr or os.environ.get("MASTER_ADDR", "127.0.0.1")
        number = port if port is not None else int(os.environ.get("MASTER_PORT", "0"))
        if world_size > 1 and number == 0:
            raise CommError("a group of several processes needs MPI, or addr and port of rank 0")
        return dist.TCPStore(host, number, world_size, rank == 0, timeout)
    host = hosts[0]
    if len(set(hosts)) == 1 and sys.platform == "linux":  # whatever names this host has
        host = "127.0.0.1"
        if _INTERFACE not in os.environ:
            os.environ[_INTERFACE] = "lo"
            _set_by_us.append(_INTERFACE)
    host = os.environ.get("HPCDI_MASTER_ADDR", host)
    if rank == 0:
        store = dist.TCPStore(host, 0, world_size, True, timeout, wait_for_workers=False)
        group.bcast((host, store.port), root=0)
        return store
    host, number = group.bcast(None, root=0)
    return dist.TCPStore(host, number, world_size, False, timeout)


def _from_environment(name: str, given: int | None) -> int:
    if given is not None:
        return given
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        raise CommError(
            f"dist_init does not know its {name.lower()}: give it an MPI communicator (group=), or "
            "rank and world_size, or set RANK and WORLD_SIZE"
        ) from None
