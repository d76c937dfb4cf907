"""What the members of the learners' process group do together; a process alone does it for itself.

All of it is collective: every member calls it, in the same order. Callers import it from `dist`.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from hpcdi.comm.codec import pack, unpack
from hpcdi.errors import CommError, GroupBrokenError
from hpcdi.utils.watchdog import WAITING

Group = dist.ProcessGroup | None
"""Some of the members, see `dist.get_group`; None: all of them."""


def get_rank() -> int:
    """Rank in the process group; 0 where there is none."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def get_world_size() -> int:
    """Size of the process group; 1 where there is none."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@contextmanager
def together(what: str) -> Iterator[None]:
    """Around what all members do: torch's errors become ours.

    Args:
        what: for the error message: what is waited for.

    Raises:
        GroupBrokenError: a member has left or does not answer in time.
    """
    try:
        with WAITING:
            yield
    except RuntimeError as error:  # torch's DistError is one
        raise GroupBrokenError(
            f"learner {get_rank()} of {get_world_size()} waits in vain for {what}: "
            f"{str(error).rstrip('.')}. A learner has ended or hangs; its own log says more"
        ) from error


def allreduce(x: torch.Tensor, group: Group = None) -> None:
    """Replace `x` by its mean over the group, in place."""
    if get_world_size() > 1:
        with together("the others' means"):
            dist.all_reduce(x, group=group)
        x.div_(dist.get_world_size(group))


def allreduce_with_indicator(grad: torch.Tensor, indicator: torch.Tensor) -> None:
    """Mean over those that have something to give, in place.

    Args:
        grad: replaced by its sum over the group, divided by the number of contributors. Who
            contributes nothing gives zeros; where nobody contributes it stays as it is summed: 0.
        indicator: 1 if this member contributes, else 0; replaced by its sum. Any shape that can be
            broadcast to that of `grad`.
    """
    if get_world_size() > 1:
        with together("the others' means"):
            dist.all_reduce(grad)
            dist.all_reduce(indicator)
    grad.div_(torch.where(indicator > 0, indicator, torch.ones_like(indicator)))


class Reduction:
    """A mean under way; its tensor must be left alone until `wait` or `synchronize` is back.

    Args:
        name: for error messages.
        tensor: becomes the mean.
        work: of torch; None where there is nothing to wait for.
    """

    def __init__(self, name: str, tensor: torch.Tensor, work: dist.Work | None) -> None:
        self.name = name
        self.tensor = tensor
        self._work = work
        self._is_lost = False

    def wait(self) -> torch.Tensor:
        """The mean, once it is there; again: at once.

        Raises:
            CommError: a member has left or did not answer in time, or the group was left before.
        """
        if self._is_lost:
            raise CommError(
                f"the mean of {self.name!r} is lost: the group was left before it was waited for. "
                "Call synchronize() before dist_finalize()"
            )
        work, self._work = self._work, None
        if work is not None:
            _under_way.remove(self)
            self._is_lost = True
            try:
                with together(f"the mean of {self.name!r}"):
                    work.wait()
            finally:
                del work  # a traceback would keep its connections open
            self._is_lost = False
        return self.tensor

    def lose(self) -> None:
        """The group is left, and nobody has waited."""
        self._work, self._is_lost = None, True


_under_way: list[Reduction] = []  # that nobody has waited for


def allreduce_async(name: str, x: torch.Tensor) -> Reduction:
    """Begin to replace `x` by its mean over the group, in place.

    It is done once the `wait` of what is given back has returned, or `synchronize`; whoever drops
    it need not fear that nobody waits.
    """
    if get_world_size() == 1:
        return Reduction(name, x, None)
    x.div_(get_world_size())  # before: then nothing is left to do after
    with together(f"the mean of {name!r}"):
        begun = Reduction(name, x, dist.all_reduce(x, async_op=True))
    _under_way.append(begun)
    return begun


def synchronize() -> None:
    """Wait for all reductions under way, and for the CUDA device where there is one.

    Raises:
        CommError: a reduction failed; the others were waited for.
    """
    with ExitStack() as waits:  # it raises what failed, when all have had their turn
        if torch.cuda.is_available():
            waits.callback(torch.cuda.synchronize)
        for begun in reversed(_under_way):
            waits.callback(begun.wait)


def lose_reductions() -> None:
    """The group is left: what is under way will not come."""
    while _under_way:
        _under_way.pop().lose()


def reduce_data(x: float | torch.Tensor, dst: int) -> float | torch.Tensor:
    """Sum a number, or a tensor in place, over the group; member `dst` gets the result.

    The others get back what they gave.

    Raises:
        TypeError: `x` is neither a number nor a tensor.
    """
    given = _tensor_of(x)
    if get_world_size() == 1:
        return x
    total = given if get_rank() == dst else given.clone()  # gloo uses it as scratch memory
    with together("the others' sums"):
        dist.reduce(total, dst)
    return x if get_rank() != dst or isinstance(x, torch.Tensor) else total.item()


def allreduce_data(x: float | torch.Tensor, op: str) -> float | torch.Tensor:
    """Combine a number, or a tensor in place, over the group; every member gets the result.

    Args:
        x: a number or a tensor.
        op: "sum" or "avg"; a tensor of integers has no "avg", a number has.

    Raises:
        CommError: `op` is neither, or does not suit `x`.
        TypeError: `x` is neither a number nor a tensor.
    """
    if op not in ("sum", "avg"):
        raise CommError(f"allreduce_data knows 'sum' and 'avg', not {op!r}")
    total = _tensor_of(x)
    is_tensor = isinstance(x, torch.Tensor)
    if op == "avg" and is_tensor and not (total.is_floating_point() or total.is_complex()):
        raise CommError(f"a tensor of {total.dtype} cannot hold an average; give its .float()")
    if get_world_size() == 1:
        return x
    with together("the others' sums"):
        dist.all_reduce(total)
    if is_tensor:
        return total.div_(get_world_size()) if op == "avg" else total
    return total.item() / get_world_size() if op == "avg" else total.item()


def broadcast(x: torch.Tensor, src: int = 0, group: Group = None) -> None:
    """Replace `x` by member `src`'s, in place; `src` counts in the whole group."""
    if get_world_size() > 1:
        with together(f"what learner {src} gives"):
            dist.broadcast(x, src, group=group)


def allgather(tensor_list: list[torch.Tensor], x: torch.Tensor, group: Group = None) -> None:
    """Fill `tensor_list`, one tensor like `x` a member, with every member's `x`."""
    if get_world_size() > 1:
        with together("what the others give"):
            dist.all_gather(tensor_list, x, group=group)
    elif len(tensor_list) != 1:
        raise CommError(f"allgather got room for {len(tensor_list)} members, and there is 1")
    else:
        tensor_list[0].copy_(x)


def broadcast_object(value: Any, src: int = 0) -> Any:
    """Member `src`'s object, on every member; what the others give is not looked at."""
    if get_world_size() == 1:
        return value
    is_source = get_rank() == src
    data = _packed(value) if is_source else torch.empty(0, dtype=torch.uint8, device=_device())
    with together(f"what learner {src} gives"):
        size = torch.tensor([data.numel()], device=data.device)
        dist.broadcast(size, src)
        data = data if is_source else data.new_empty(int(size))
        dist.broadcast(data, src)
    return value if is_source else unpack(data.cpu().numpy())


def gather_objects(value: Any) -> list[Any]:
    """Every member's object, in the order of ranks, on every member."""
    if get_world_size() == 1:
        return [value]
    data = _packed(value)
    with together("what the others give"):
        sizes = [torch.empty(1, dtype=torch.int64, device=data.device) for _ in _members()]
        dist.all_gather(sizes, torch.tensor([data.numel()], device=data.device))
        longest = int(max(sizes))
        padded = torch.nn.functional.pad(data, (0, longest - data.numel()))
        gathered = [data.new_empty(longest) for _ in _members()]
        dist.all_gather(gathered, padded)
    return [
        unpack(own[: int(size)].cpu().numpy()) for own, size in zip(gathered, sizes, strict=True)
    ]


def _members() -> range:
    return range(get_world_size())


def _packed(value: Any) -> torch.Tensor:
    """A value's bytes where the group can send them from."""
    return torch.from_numpy(pack(value)).to(_device())


def _device() -> str:
    return "cuda" if get_world_size() > 1 and dist.get_backend() == "nccl" else "cpu"


def _tensor_of(x: Any) -> torch.Tensor:
    """The tensor itself, or the number as one of the backend's device."""
    if isinstance(x, torch.Tensor):
        return x
    if not isinstance(x, numbers.Real):  # numpy's are
        raise TypeError(f"not a number or a tensor: {type(x).__name__}")
    dtype = torch.int64 if isinstance(x, numbers.Integral) else torch.float64
    return torch.tensor(x, dtype=dtype, device=_device())
