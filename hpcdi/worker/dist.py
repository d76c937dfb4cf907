"""DI-engine's helper for several learners: its names over `hpcdi.comm.group`.

Everything here is collective: every member of the process group calls it, in the same order.
Without a group, a process is a group of one.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, MutableMapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import torch

from hpcdi.comm.group import (
    Group,
    allgather,
    allreduce_data,
    broadcast,
    broadcast_object,
    call_when_left,
    dist_finalize,
    dist_init,
    gather_objects,
    get_rank,
    get_world_size,
    is_joined,
    new_group,
    replace_by_sum,
    start_sum,
    waiting_for,
)
from hpcdi.errors import CommError

P = ParamSpec("P")
T = TypeVar("T")

__all__ = [
    "DDPContext",
    "allgather",
    "allreduce",
    "allreduce_async",
    "allreduce_data",
    "allreduce_with_indicator",
    "broadcast",
    "broadcast_object",
    "broadcast_object_list",
    "dist_finalize",
    "dist_init",
    "dist_mode",
    "gather_objects",
    "get_group",
    "get_rank",
    "get_world_size",
    "new_group",
    "reduce_data",
    "simple_group_split",
    "synchronize",
    "to_ddp_config",
]


class DDPContext:
    """``with DDPContext():`` joins the process group, and leaves it at the end, error or not.

    A process that is in a group already stays in that one.

    Args:
        **join: arguments of `dist_init`.
    """

    def __init__(self, **join: Any) -> None:
        self._join = join
        self._was_inside = False

    def __enter__(self) -> tuple[int, int]:
        self._was_inside = is_joined()
        return dist_init(**self._join)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:  # after an error the others may be gone: do not wait for them
                synchronize()
        finally:
            if not self._was_inside:
                dist_finalize()


def dist_mode(func: Callable[P, T]) -> Callable[P, T]:
    """Decorator: runs `func` in the process group that the environment describes."""

    @functools.wraps(func)
    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        with DDPContext():
            return func(*args, **kwargs)

    return inside


def get_group(group_size: int | None = None) -> Group:
    """Returns this member's group of neighbours; None (all of them) for a process alone.

    Raises:
        CommError: the members cannot be split into groups of that size.
    """
    world_size = get_world_size()
    size = world_size if group_size is None else group_size
    if size < 1 or world_size % size:
        raise CommError(f"{world_size} learners cannot be split into groups of {size}")
    return simple_group_split(world_size, get_rank(), world_size // size)


def simple_group_split(world_size: int, rank: int, num_groups: int) -> Group:
    """Split members 0, 1, ... into equal contiguous groups; returns that of `rank`.

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


def allreduce(x: torch.Tensor, group: Group = None) -> None:
    """Replace `x` by its mean over the group, in place."""
    if get_world_size() > 1:
        replace_by_sum(x, group)
        x.div_(get_world_size(group))


def allreduce_with_indicator(grad: torch.Tensor, indicator: torch.Tensor) -> None:
    """Average over the members that contribute, in place.

    Args:
        grad: replaced by its sum over the group, divided by the number of contributors. A member
            that does not contribute passes zeros; without any contributor the result is 0.
        indicator: 1 if this member contributes, else 0; replaced by its sum. Any shape that can be
            broadcast to that of `grad`.
    """
    allreduce_data(grad, "sum")
    allreduce_data(indicator, "sum")
    grad.div_(torch.where(indicator > 0, indicator, torch.ones_like(indicator)))


class Reduction:
    """A mean under way; leave its tensor alone until `wait` or `synchronize` has returned.

    Args:
        name: for error messages.
        tensor: becomes the mean.
        work: torch's handle; None where there is nothing to wait for.
    """

    def __init__(self, name: str, tensor: torch.Tensor, work: Any) -> None:
        self.name = name
        self.tensor = tensor
        self._work = work
        self._is_lost = False
        if work is not None:
            _under_way.append(self)
            call_when_left(self)

    def wait(self) -> torch.Tensor:
        """Returns the mean; waits for it. Idempotent.

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
                with waiting_for(f"the mean of {self.name!r}"):
                    work.wait()
            finally:
                del work  # a traceback would keep its connections open
            self._is_lost = False
        return self.tensor

    def group_left(self) -> None:
        """Give up waiting."""
        if self in _under_way:
            _under_way.remove(self)
            self._work, self._is_lost = None, True


_under_way: list[Reduction] = []  # that nobody has waited for


def allreduce_async(name: str, x: torch.Tensor) -> Reduction:
    """Begin to replace `x` by its mean over the group, in place.

    `x` is the mean once the result's `wait`, or `synchronize`, has returned. The result may be
    dropped.
    """
    if get_world_size() == 1:
        return Reduction(name, x, None)
    x.div_(get_world_size())  # before: then nothing is left to do after
    if not x.is_contiguous():  # at once, see `in_one_piece`
        replace_by_sum(x)
        return Reduction(name, x, None)
    with waiting_for(f"the mean of {name!r}"):
        return Reduction(name, x, start_sum(x))


def synchronize() -> None:
    """Wait for all reductions under way, and for the CUDA device if there is one.

    Raises:
        CommError: a reduction failed; the others were waited for.
    """
    with ExitStack() as waits:  # raises the first error when all have been waited for
        if torch.cuda.is_available():
            waits.callback(torch.cuda.synchronize)
        for begun in reversed(_under_way):
            waits.callback(begun.wait)


def reduce_data(x: float | torch.Tensor, dst: int) -> float | torch.Tensor:
    """Sum a number, or a tensor in place, over the group; returns the sum on member `dst`.

    The other members get back `x` as it was.

    Raises:
        TypeError: `x` is neither a number nor a tensor.
    """
    total = allreduce_data(x.clone() if isinstance(x, torch.Tensor) else x, "sum")
    if get_rank() != dst:
        return x
    return x.copy_(total) if isinstance(x, torch.Tensor) else total  # type: ignore[arg-type]


def broadcast_object_list(object_list: list[Any], src: int = 0) -> None:
    """Replace the elements of a list by those of member `src`."""
    object_list[:] = broadcast_object(list(object_list), src)


def to_ddp_config(cfg: Any) -> Any:
    """Returns a copy of a configuration with this learner's share of all learners' sizes.

    ``policy.batch_size``, ``policy.learn.batch_size``, ``policy.collect.n_sample`` and
    ``policy.collect.n_episode`` are divided by the number of learners and rounded up, where they
    exist and are not None.

    Args:
        cfg: nested mappings with the key ``policy``.
    """
    shared = copy.deepcopy(cfg)
    policy = shared["policy"]
    learn, collect = policy.get("learn", {}), policy.get("collect", {})
    for section, key in (
        (policy, "batch_size"),
        (learn, "batch_size"),
        (collect, "n_sample"),
        (collect, "n_episode"),
    ):
        if isinstance(section, MutableMapping) and section.get(key) is not None:
            section[key] = math.ceil(section[key] / get_world_size())
    return shared
