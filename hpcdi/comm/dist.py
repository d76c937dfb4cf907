"""The learners' process group: torch.distributed beside MPI.

Messages go by MPI, gradients by NCCL or gloo. The group is formed from MPI ranks, without a port
for anybody to choose: its rank 0 makes a store first, and tells the others by MPI where it is.

This is joining and leaving; what members do together is in `collectives`, and importable from here.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

import torch
import torch.distributed as dist

from hpcdi.comm.collectives import (
    Group,
    Reduction,
    allgather,
    allreduce,
    allreduce_async,
    allreduce_data,
    allreduce_with_indicator,
    broadcast,
    broadcast_object,
    gather_objects,
    get_rank,
    get_world_size,
    lose_reductions,
    reduce_data,
    synchronize,
)
from hpcdi.comm.rendezvous import Meeting, MpiMeeting, store_at, store_of
from hpcdi.comm.shares import to_ddp_config
from hpcdi.errors import CommError

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = [
    "DEFAULT_TIMEOUT_S", "DDPContext", "Group", "Reduction", "allgather", "allreduce",
    "allreduce_async", "allreduce_data", "allreduce_with_indicator", "broadcast",
    "broadcast_object", "dist_finalize", "dist_init", "dist_mode", "gather_objects", "get_group",
    "get_rank", "get_world_size", "local_device", "new_group", "reduce_data",
    "simple_group_split", "synchronize", "to_ddp_config",
]  # fmt: skip

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_TIMEOUT_S = 300.0
_INTERFACE = "GLOO_SOCKET_IFNAME"
_set_by_us: list[str] = []  # variables to take back when the group is left
_limit = timedelta(seconds=DEFAULT_TIMEOUT_S)  # of the group that was joined last


class Holder(Protocol):
    """Holds groups made by `new_group`, and must let go of them when all are left."""

    def group_left(self) -> None:
        """Forget the groups: while one is held the other members do not see that it was left."""


_holders: weakref.WeakSet[Holder] = weakref.WeakSet()


def dist_init(
    backend: str = "nccl",
    addr: str | None = None,
    port: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
    *,
    group: MPI.Comm | Meeting | None = None,
) -> tuple[int, int]:
    """Join the process group; collective over its members.

    Args:
        backend: "nccl", or "gloo". Without a CUDA device "nccl" becomes "gloo".
        addr: host of rank 0; needed only without MPI.
        port: port of rank 0; needed only without MPI.
        rank: this process's rank in the group; from `group`, else the environment's RANK.
        world_size: size of the group; from `group`, else the environment's WORLD_SIZE.
        timeout: seconds after which a collective that misses a member raises.
        group: MPI communicator of exactly the members, in rank order; or who else they are.

    Returns:
        This process's rank in the group, and the group's size.

    Raises:
        CommError: rank or size cannot be known, or the members do not find each other in time.
    """
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    meeting = _meeting_of(group)
    if meeting is not None:
        rank, world_size = meeting.rank, len(meeting.hosts)
    rank = _from_environment("RANK", rank)
    world_size = _from_environment("WORLD_SIZE", world_size)
    if backend == "nccl" and not torch.cuda.is_available():
        backend = "gloo"
    global _limit
    limit = _limit = timedelta(seconds=timeout)
    hosts = meeting.hosts if meeting is not None else []
    if backend == "nccl":
        before = list(hosts[:rank]).count(platform.node()) if hosts else rank
        torch.cuda.set_device(local_device(before))
    try:
        if meeting is None:
            store = store_at(addr, port, rank, world_size, limit)
        else:
            _choose_interface(hosts)
            store = store_of(meeting, limit)
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
    Means that `allreduce_async` began and nobody has waited for are given up: `synchronize` first.
    """
    lose_reductions()
    for holder in list(_holders):
        holder.group_left()
    _holders.clear()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    while _set_by_us:
        os.environ.pop(_set_by_us.pop(), None)


class DDPContext:
    """``with DDPContext():`` is in the process group inside, and has left it after, error or not.

    Where the process is in a group already it stays in that one.

    Args:
        **join: what `dist_init` takes.
    """

    def __init__(self, **join: Any) -> None:
        self._join = join
        self._was_inside = False

    def __enter__(self) -> tuple[int, int]:
        self._was_inside = dist.is_initialized()
        return dist_init(**self._join)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:  # else the others may be gone: there is nobody to wait for
                synchronize()
        finally:
            if not self._was_inside:
                dist_finalize()


def dist_mode(func: Callable[P, T]) -> Callable[P, T]:
    """Decorator: `func` runs in the process group that the environment describes, and gives all."""

    @functools.wraps(func)
    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        with DDPContext():
            return func(*args, **kwargs)

    return inside


def new_group(ranks: Sequence[int] | None = None, holder: Holder | None = None) -> Group:
    """A second group, of some members or all, with the same time limit.

    Collective over all members of the first one, whether they are in the second or not.

    Args:
        ranks: its members; None means all.
        holder: is told when the groups are left.
    """
    if get_world_size() == 1:
        return None
    if holder is not None:
        _holders.add(holder)
    made: Group = dist.new_group(ranks, timeout=_limit)
    return made


def get_group(group_size: int | None = None) -> Group:
    """This member's group of `group_size` neighbours; None (all of them) for a process alone.

    Raises:
        CommError: the members cannot be split into groups of that size.
    """
    world_size = get_world_size()
    size = world_size if group_size is None else group_size
    if size < 1 or world_size % size:
        raise CommError(f"{world_size} learners cannot be split into groups of {size}")
    return simple_group_split(world_size, get_rank(), world_size // size)


def simple_group_split(world_size: int, rank: int, num_groups: int) -> Group:
    """Split members 0, 1, ... into equal contiguous groups, and give that of `rank`; collective.

    Raises:
        CommError: the groups would not be equal, or `world_size` is not the number of members.
    """
    if num_groups < 1 or world_size % num_groups or world_size != get_world_size():
        raise CommError(
            f"{world_size} learners (of {get_world_size()}) cannot be split into {num_groups} "
            "equal groups"
        )
    size = world_size // num_groups
    groups = [new_group(range(first, first + size)) for first in range(0, world_size, size)]
    return groups[rank // size]


def local_device(local_learner: int) -> int:
    """CUDA device of the n-th learner of a node, among the devices that the scheduler shows it."""
    return local_learner % max(torch.cuda.device_count(), 1)


def _meeting_of(group: Any) -> Meeting | None:
    is_communicator = group is not None and hasattr(group, "Get_rank")
    meeting: Meeting | None = MpiMeeting(group) if is_communicator else group
    return meeting


def _choose_interface(hosts: Sequence[str]) -> None:
    """Have gloo speak over the loopback where all members are on one host."""
    if len(set(hosts)) == 1 and sys.platform == "linux" and _INTERFACE not in os.environ:
        os.environ[_INTERFACE] = "lo"
        _set_by_us.append(_INTERFACE)


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
