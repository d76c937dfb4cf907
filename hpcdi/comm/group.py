"""The learners' process group: torch.distributed beside MPI.

Messages go by MPI, gradients by NCCL or gloo. The group is formed from MPI ranks, without a port
for the user to choose: its rank 0 opens torch's TCPStore and shares the address by MPI. The store
does not authenticate, so it listens on one address alone: loopback where all members are on one
host, else that of the network between the hosts; and its keys have a prefix that is drawn anew for
each group.

Everything here is collective: every member calls it, in the same order. Without a group, a process
is a group of one.
"""

from __future__ import annotations

import fcntl
import numbers
import os
import platform
import secrets
import socket
import struct
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist

from hpcdi.comm.codec import from_bytes, to_bytes
from hpcdi.dataclass import dataclass
from hpcdi.errors import CommError, GroupBrokenError, GroupNotFormedError
from hpcdi.utils.watchdog import WAITING

if TYPE_CHECKING:
    from mpi4py import MPI

Address = tuple[str, int, str]
"""Host and port of a group's store, and the prefix of the group's keys."""
Group = dist.ProcessGroup | None
"""A group of some members, see `new_group`; None: all members."""

DEFAULT_TIMEOUT_S = 300.0
ADDRESS_VARIABLE = "HPCDI_MASTER_ADDR"
"""Address of member 0, for users on hosts with several networks; one of that host's own."""

_INTERFACE = "GLOO_SOCKET_IFNAME"
_NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"
_ASK_INTERFACE = 0x8915  # SIOCGIFADDR of ioctl: the address of an interface
_DISCARD_PORT = 9  # any would do: nothing is sent
_RANKS_OF_MPI = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
"""Variables that launchers set."""
_set_by_us: list[str] = []  # environment variables to remove when the group is left
_limit = timedelta(seconds=DEFAULT_TIMEOUT_S)  # time limit of the group joined last


def get_rank() -> int:
    """Returns the rank in the process group; 0 without one."""
    return dist.get_rank() if dist.is_initialized() else 0


def get_world_size(group: Group = None) -> int:
    """Returns the number of members of the process group, or of `group`; 1 without one."""
    return dist.get_world_size(group) if dist.is_initialized() else 1


def is_joined() -> bool:
    """Returns whether this process is in a process group, which may have no other members."""
    return dist.is_initialized()


# ------------------------------------------------------------------------------ joining and leaving


@dataclass(frozen=True)
class Meeting:
    """How members of a future process group find each other.

    Attributes:
        rank: rank of this member.
        hosts: node of each member, in order of ranks.
        share: sends its argument, the store's address, to all members (on member 0), or takes None
            and returns the address (on the others). Raises CommError if member 0 does not answer.
    """

    rank: int
    hosts: Sequence[str]
    share: Callable[[Address | None], Address]


class GroupUser(Protocol):
    """Refers to groups of `new_group`, or to unfinished sums of `start_sum`."""

    def group_left(self) -> None:
        """Drop these: while a reference lives, other members do not notice that one has left."""


_users: weakref.WeakSet[GroupUser] = weakref.WeakSet()


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
        backend: "nccl" or "gloo". "nccl" becomes "gloo" for all members if one has no CUDA device,
            or two share one, which NCCL refuses; gloo copies tensors of a GPU through the host.
        addr: host of rank 0; needed only without MPI.
        port: port of rank 0; needed only without MPI.
        rank: this process's rank in the group; None: from `group`, else from the variable RANK,
            else from MPI, whose ranks are then all members.
        world_size: size of the group; None: from `group`, else WORLD_SIZE, else from MPI.
        timeout: seconds after which a collective that misses a member raises.
        group: MPI communicator of exactly the members, in rank order; or how else they meet.

    Returns:
        This process's rank in the group, and the group's size.

    Raises:
        CommError: rank or size is unknown.
        GroupNotFormedError: the members do not find each other in time.
    """
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if group is None and rank is None and _is_started_by_mpi():
        from mpi4py import MPI  # late: it starts MPI

        group = MPI.COMM_WORLD
    meeting = group if group is None or isinstance(group, Meeting) else _meeting_over(group)
    if meeting is not None:
        rank, world_size = meeting.rank, len(meeting.hosts)
    rank = _from_environment("RANK", rank)
    world_size = _from_environment("WORLD_SIZE", world_size)
    global _limit
    limit = _limit = timedelta(seconds=timeout)
    # a process that has computed on a device keeps that one
    may_choose = not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if backend == "nccl" and torch.cuda.is_available() and may_choose:
        hosts_before = None if meeting is None else list(meeting.hosts[:rank])
        local_rank = rank if hosts_before is None else hosts_before.count(platform.node())
        torch.cuda.set_device(local_device(local_rank))
    try:
        store = (
            _store_at(addr, port, rank, world_size, limit)
            if meeting is None
            else _store_of(meeting, limit)
        )
        if backend == "nccl" and not _have_a_device_each(store, rank, world_size):
            backend = "gloo"
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=world_size, timeout=limit
        )
    except (RuntimeError, ValueError, OSError) as error:  # torch's DistError is a RuntimeError
        raise GroupNotFormedError(
            f"learner {rank} of {world_size} could not join the {backend} process group: "
            f"{str(error).rstrip('.')}. On a host with several networks name the right one by "
            "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME, or the address of learner 0 by "
            f"{ADDRESS_VARIABLE}"
        ) from error
    return rank, world_size


def dist_finalize() -> None:
    """Leave the process group. Idempotent; without a group it does nothing.

    Call it before the interpreter ends: a group that exists then aborts the process.
    """
    for user in list(_users):
        user.group_left()
    _users.clear()
    if dist.is_initialized():
        dist.destroy_process_group()
    while _set_by_us:
        os.environ.pop(_set_by_us.pop(), None)


def call_when_left(user: GroupUser) -> None:
    """Call an object's `group_left`, while it lives, when the process group is left."""
    _users.add(user)


def new_group(ranks: Sequence[int] | None = None, user: GroupUser | None = None) -> Group:
    """Returns another group of some members, or all, with the same time limit.

    Collective over all members of the process group, also those that will not be in the new one.

    Args:
        ranks: its members; None means all.
        user: its `group_left` is called when the groups are left.
    """
    if get_world_size() == 1:
        return None
    if user is not None:
        call_when_left(user)
    group: Group = dist.new_group(ranks, timeout=_limit)
    return group


def local_device(local_learner: int) -> int:
    """Returns the CUDA device of a node's n-th learner, among those that the scheduler shows."""
    return local_learner % max(torch.cuda.device_count(), 1)


def _meeting_over(comm: MPI.Comm) -> Meeting:
    from hpcdi.comm.world import collect, share  # late: it starts MPI, which not every group has

    return Meeting(comm.Get_rank(), collect(comm, platform.node()), partial(share, comm))


def _store_of(meeting: Meeting, timeout: timedelta) -> dist.Store:
    """Returns the store that the members share; collective over them.

    Before it connects, a client of TCPStore looks up the name of the store's address. Its sockets
    are IPv6, so it looks for ::ffff:127.0.0.1, which is in no /etc/hosts, and asks DNS. A lost
    answer costs 5 s, once, at the start (seen where DNS lost 1.7 % of its answers). A FileStore in
    memory would need no look-up, but opens its file again when it is destroyed; if that is at the
    end of the interpreter, it never stops reading.
    """
    hosts, size = meeting.hosts, len(meeting.hosts)
    if _is_one_host(hosts):
        for name in (_INTERFACE, _NCCL_INTERFACE):
            if name not in os.environ:
                os.environ[name] = "lo"
                _set_by_us.append(name)
    if meeting.rank == 0:
        store, host, port = _serve(_own_address(hosts), 0, size, timeout)
        _, _, key = meeting.share((host, port, secrets.token_hex(16)))
    else:
        host, port, key = meeting.share(None)
        store = dist.TCPStore(host, port, size, False, timeout)
    return dist.PrefixStore(key, store)


def _have_a_device_each(store: dist.Store, rank: int, size: int) -> bool:
    """Returns whether each member has a CUDA device of its own; collective over them."""
    device = ""
    if torch.cuda.is_available():
        device = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    store.set(f"device{rank}", device)
    devices = {store.get(f"device{member}") for member in range(size)}
    return len(devices - {b""}) == size


def _is_one_host(hosts: Sequence[str]) -> bool:
    return len(set(hosts)) == 1


def _own_address(hosts: Sequence[str]) -> str:
    """Returns the address at which the others reach this member, number 0."""
    configured = os.environ.get(ADDRESS_VARIABLE)
    if configured is not None:
        return configured
    if _is_one_host(hosts):
        return "127.0.0.1"
    for variable in (_INTERFACE, _NCCL_INTERFACE):
        interface = os.environ.get(variable, "")
        if interface in [name for _, name in socket.if_nameindex()]:
            return _address_of(interface)
    other = next((host for host in hosts if host != hosts[0]), hosts[0])
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            other, _DISCARD_PORT, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing; the kernel chooses the network
            address_here = str(probe.getsockname()[0])
    except OSError:  # the other host's name is unknown here
        return hosts[0]
    is_loopback = address_here.startswith("127.") or address_here == "::1"
    return hosts[0] if is_loopback else address_here


def _address_of(interface: str) -> str:
    """Returns the IPv4 address of a network interface of this host.

    Raises:
        OSError: it has none.
    """
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _ASK_INTERFACE, request)
    return socket.inet_ntoa(answer[20:24])


def _serve(
    host: str, port: int, world_size: int, timeout: timedelta, *, is_awaited: bool = False
) -> tuple[dist.TCPStore, str, int]:
    """Open a store that listens on one address alone; torch would listen on all.

    Args:
        host: name or address of this host.
        port: port number; 0: any free one.
        world_size: size of the group.
        timeout: longest wait of the store.
        is_awaited: return only when all members have connected.

    Returns:
        The store, its address and port.

    Raises:
        OSError: it is no address of this host, or the port is taken.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise OSError(f"{host} port {port}: {error.strerror or error}") from error
        listener.listen()
        where = listener.getsockname()
        store = dist.TCPStore(
            where[0],
            where[1],
            world_size,
            True,
            timeout,
            wait_for_workers=is_awaited,
            master_listen_fd=listener.detach(),
        )
    return store, str(where[0]), int(where[1])


def _store_at(
    addr: str | None, port: int | None, rank: int, world_size: int, timeout: timedelta
) -> dist.Store:
    """Returns the store at an address, else at the environment's MASTER_ADDR and MASTER_PORT."""
    host = addr or os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = port if port is not None else int(os.environ.get("MASTER_PORT", "0"))
    if world_size > 1 and port == 0:
        raise CommError("a group of several processes needs MPI, or addr and port of rank 0")
    if rank == 0:
        return _serve(host, port, world_size, timeout, is_awaited=True)[0]
    return dist.TCPStore(host, port, world_size, False, timeout)


def _is_started_by_mpi() -> bool:
    """Returns whether an MPI launcher started this process, and RANK is not set."""
    return "RANK" not in os.environ and any(name in os.environ for name in _RANKS_OF_MPI)


def _from_environment(name: str, argument: int | None) -> int:
    """Returns an argument, or else the environment's variable of that name."""
    if argument is not None:
        return argument
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        raise CommError(
            f"dist_init does not know its {name.lower()}: pass an MPI communicator (group=), or "
            "rank and world_size, or set RANK and WORLD_SIZE"
        ) from None


# -------------------------------------------------------------------------------------- collectives


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Turns errors of torch's collectives into `GroupBrokenError` (a context manager).

    Args:
        what: the result, for the error message.

    Raises:
        GroupBrokenError: a member has left or does not answer in time.
    """
    try:
        with WAITING:
            yield
    except RuntimeError as error:  # torch's DistError is one
        raise GroupBrokenError(
            f"learner {get_rank()} of {get_world_size()} waited in vain for {what}: "
            f"{str(error).rstrip('.')}. A learner has ended or hangs; see its own log"
        ) from error


@contextmanager
def in_one_piece(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields a tensor, or a copy for the time within, whose values follow each other in memory.

    torch's collectives take no other one: with gloo they would read and write the memory behind its
    first value, such as that of the whole table for a column.
    """
    if x.layout is not torch.strided or x.is_contiguous():
        yield x
        return
    piece = x.detach().contiguous()
    yield piece
    with torch.no_grad():
        x.copy_(piece)


def start_sum(x: torch.Tensor, group: Group = None) -> dist.Work:
    """Begin to replace a tensor by its sum over a group of several members; returns a handle.

    The tensor is `in_one_piece` until the handle was waited for.
    """
    work: dist.Work = dist.all_reduce(x, group=group, async_op=True)
    return work


def replace_by_sum(x: torch.Tensor, group: Group = None) -> None:
    """Replace a tensor by its sum over a group of several members, in place."""
    with in_one_piece(x) as piece, waiting_for("a sum"):
        start_sum(piece, group).wait()


def allreduce_data(x: float | torch.Tensor, op: str) -> float | torch.Tensor:
    """Combine a number, or a tensor in place, over the group; every member gets the result.

    Args:
        x: a number or a tensor.
        op: "sum" or "avg"; "avg" is refused for a tensor of integers, not for a number.

    Raises:
        CommError: `op` is neither, or does not suit `x`.
        TypeError: `x` is neither a number nor a tensor.
    """
    if op not in ("sum", "avg"):
        raise CommError(f"allreduce_data can do 'sum' and 'avg', not {op!r}")
    total = _number_as_tensor(x)
    is_tensor = isinstance(x, torch.Tensor)
    if op == "avg" and is_tensor and not (total.is_floating_point() or total.is_complex()):
        raise CommError(f"a tensor of {total.dtype} cannot hold an average; pass its .float()")
    if get_world_size() == 1:
        return x
    replace_by_sum(total)
    if is_tensor:
        return total.div_(get_world_size()) if op == "avg" else total
    return total.item() / get_world_size() if op == "avg" else total.item()


def broadcast(x: torch.Tensor, src: int = 0, group: Group = None) -> None:
    """Replace `x` by that of member `src`, in place; `src` is a rank in the process group."""
    if get_world_size() > 1:
        with in_one_piece(x) as piece, waiting_for(f"a tensor of learner {src}"):
            dist.broadcast(piece, src, group=group)


def allgather(tensor_list: list[torch.Tensor], x: torch.Tensor, group: Group = None) -> None:
    """Fill `tensor_list`, one tensor like `x` for each member, with every member's `x`."""
    if get_world_size() > 1:
        with ExitStack() as stack, waiting_for("the others' tensors"):
            pieces = [stack.enter_context(in_one_piece(each)) for each in tensor_list]
            dist.all_gather(pieces, x.contiguous(), group=group)
    elif len(tensor_list) != 1:
        raise CommError(f"allgather got tensors for {len(tensor_list)} members, and there is 1")
    else:
        tensor_list[0].copy_(x)


def broadcast_object(value: Any, src: int = 0) -> Any:
    """Returns member `src`'s object, on every member; the others' `value` is ignored."""
    if get_world_size() == 1:
        return value
    is_source = get_rank() == src
    data = _to_tensor(value) if is_source else torch.empty(0, dtype=torch.uint8, device=_device())
    with waiting_for(f"an object of learner {src}"):
        size = torch.tensor([data.numel()], device=data.device)
        dist.broadcast(size, src)
        data = data if is_source else data.new_empty(int(size))
        dist.broadcast(data, src)
    return value if is_source else from_bytes(data.cpu().numpy())


def gather_objects(value: Any) -> list[Any]:
    """Returns every member's object, in the order of ranks, on every member."""
    if get_world_size() == 1:
        return [value]
    encoded, members = _to_tensor(value), range(get_world_size())
    with waiting_for("the others' objects"):
        sizes = [torch.empty(1, dtype=torch.int64, device=encoded.device) for _ in members]
        dist.all_gather(sizes, torch.tensor([encoded.numel()], device=encoded.device))
        longest = int(max(sizes))
        padded = torch.nn.functional.pad(encoded, (0, longest - encoded.numel()))
        gathered = [encoded.new_empty(longest) for _ in members]
        dist.all_gather(gathered, padded)
    return [
        from_bytes(data[: int(size)].cpu().numpy())
        for data, size in zip(gathered, sizes, strict=True)
    ]


def _to_tensor(value: Any) -> torch.Tensor:
    """Returns a value encoded as bytes, uint8 [n], on the device of the group's backend."""
    return torch.from_numpy(to_bytes(value)).to(_device())


def _device() -> str:
    return "cuda" if get_world_size() > 1 and dist.get_backend() == "nccl" else "cpu"


def _number_as_tensor(x: object) -> torch.Tensor:
    """Returns the tensor itself, or the number as a tensor on the backend's device."""
    if isinstance(x, torch.Tensor):
        return x
    if not isinstance(x, numbers.Real):  # numpy's numbers are, too
        raise TypeError(f"not a number or a tensor: {type(x).__name__}")
    dtype = torch.int64 if isinstance(x, numbers.Integral) else torch.float64
    return torch.tensor(x, dtype=dtype, device=_device())
