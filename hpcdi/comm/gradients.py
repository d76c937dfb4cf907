"""Gradients of several learners: their mean, computed while the backward pass still runs.

Why not torch's DistributedDataParallel: it notices a step only if ``forward`` is called through its
wrapper, which policies with several losses and networks do not do; it is bound to the group that it
was made in, while here the group may change after any step; and an error within a step leaves its
members out of step, while here all members give the step up. It is no faster: two learners with one
thread each on a shared host of 2 cores (gloo, medians of 40 rounds, tools/bench_learners.py) used,
in ms of CPU a step,

    =====================  ==========  ==========
    network                  1.2 MiB     6.5 MiB
    =====================  ==========  ==========
    not synchronised          3.0         17.9
    GradientSync              5.0         26.2
    DDP                       5.0         25.7
    a message a parameter     8.3         32.0
    all in one, after         5.2         26.1
    =====================  ==========  ==========

Bucket sizes there: with 1.2 MiB one message is the cheapest (4 MiB buckets 4.6 ms, 1 MiB 5.3, 64
KiB 5.8); with 6.5 MiB 1, 4 and 16 MiB are alike (24.4, 24.6, 24.5), 64 KiB is worse (25.9). So 4
MiB: small networks go as one message, larger ones send some buckets while they still compute. With
both cores computing, the overlap hides next to nothing; it takes a GPU or idle cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from hpcdi.comm.group import (
    Group,
    broadcast,
    gather_objects,
    get_rank,
    get_world_size,
    new_group,
    waiting_for,
)
from hpcdi.dataclass import dataclass
from hpcdi.errors import CommError, GroupBrokenError

DEFAULT_BUCKET_BYTES = 4 * 2**20  # as measured above
ALIGNMENT_BYTES = 64  # of each tensor within a bucket, for vector instructions
_STATE_BUCKET_BYTES = 64 * 2**20
_GRADIENTS = "the others' gradients"


@dataclass
class Bucket:
    """Many tensors in one flat one, so that one message carries what many would.

    Attributes:
        memory: one dimension; holds the views, gaps of zeros between them, and at the end one spare
            element.
        tensors: the originals; the views have their sizes, strides and dtype.
        views: parts of `memory`, one for each tensor.
        missing: positions of parameters without a gradient so far, in a step.
        work: torch's handle while the memory is reduced.
    """

    memory: torch.Tensor
    tensors: tuple[torch.Tensor, ...]
    views: tuple[torch.Tensor, ...]
    missing: set[int] = field(default_factory=set)
    work: dist.Work | None = None


def make_buckets(tensors: Sequence[torch.Tensor], bucket_bytes: int) -> list[Bucket]:
    """Buckets of at most `bucket_bytes` for tensors of one dtype and device each; all values are 0.

    A larger tensor has a bucket of its own. Buckets are in the order of their last tensor: if
    tensors are made one after the other, so are buckets completed.
    """
    filling: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    filled_bytes = Counter[tuple[torch.dtype, torch.device]]()
    full: list[list[int]] = []
    for position, tensor in enumerate(tensors):
        key = (tensor.dtype, tensor.device)
        size = _aligned(tensor) * tensor.element_size()
        if key in filling and filled_bytes[key] + size > bucket_bytes:
            full.append(filling.pop(key))
            filled_bytes[key] = 0
        filling.setdefault(key, []).append(position)
        filled_bytes[key] += size
    chosen = sorted([*full, *filling.values()], key=lambda positions: positions[-1])
    return [_make_bucket([tensors[position] for position in positions]) for positions in chosen]


def _aligned(tensor: torch.Tensor) -> int:
    """Elements that a tensor takes up in a bucket."""
    step = max(ALIGNMENT_BYTES // tensor.element_size(), 1)
    return -(-tensor.numel() // step) * step


def _make_bucket(tensors: list[torch.Tensor]) -> Bucket:
    first = tensors[0]
    length = sum(map(_aligned, tensors)) + 1
    memory = torch.zeros(length, dtype=first.dtype, device=first.device)
    views, offset = [], 0
    for tensor in tensors:
        strides = torch.empty_like(tensor, device="meta").stride()  # those of its gradients
        views.append(memory.as_strided(tensor.shape, strides, offset))
        offset += _aligned(tensor)
    return Bucket(memory, tuple(tensors), tuple(views))


class GradientSync:
    """Means of gradients over the learners' group, bucket by bucket, while the backward pass runs.

    A step is `zero`, backward passes, `finish`, and then the optimizer's step. A learner alone has
    no hooks and sends nothing. `zero` notices a group that was formed or left between two steps,
    and is collective then; several objects may be in a step at the same time.

    After `finish` the gradients lie in memory that the next step reuses: copy one to keep it.

    Args:
        parameters: the same on all learners, in the same order. Those that need no gradient are
            skipped for as long as they need none.
        bucket_bytes: of one message.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, bucket_bytes: int = DEFAULT_BUCKET_BYTES
    ) -> None:
        self._parameters = list(dict.fromkeys(parameters))
        self._bucket_bytes = bucket_bytes
        self._group: Group = None  # all members, for this object alone; None: not set up
        self._buckets: list[Bucket] = []
        self._hooks: dict[int, RemovableHandle] = {}  # by id of the parameter
        self._is_in_step = False  # of several learners
        self._launched = 0  # buckets under way
        self._is_begun = False  # gradients have come in this step
        self._is_paused = False

    def zero(self) -> None:
        """Begin a step: no parameter has a gradient. Comes before the first backward pass.

        A step with gradients that was not finished is given up: the other learners' `finish` raises
        too, so that nobody takes a step that others do not take.

        Raises:
            CommError: the learners have different parameters, or one of them does not answer.
        """
        if self._is_begun and self._is_in_step and self._group is not None:
            self._complete(gave_up=True)
        self._is_in_step = self._is_begun = False
        self._set_up()
        for parameter in self._parameters:
            parameter.grad = None
        if self._group is not None:
            self._is_in_step, self._launched = True, 0
            for bucket in self._buckets:
                bucket.missing = set(range(len(bucket.tensors)))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Backward passes inside only accumulate on this learner; the last one comes outside."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def finish(self) -> None:
        """End a step: every parameter's gradient is the mean over the learners, bitwise equal.

        A parameter without a gradient counts as zeros.

        Raises:
            CommError: a learner has left, did not answer in time or gave this step up, or `zero`
                was not called before. The gradients are undefined then.
        """
        if not self._is_in_step:
            if get_world_size() == 1:
                return
            raise CommError("finish() without zero(): a step of several learners begins with it")
        if self._group is None:
            self._is_in_step = False
            raise CommError("the learners' group was left between zero() and finish()")
        if self._complete(gave_up=False):
            raise GroupBrokenError(
                "another learner gave this step up, see its own error. Begin the step again, with "
                "zero()"
            )
        for bucket in self._buckets:
            bucket.memory.div_(get_world_size())

    def close(self) -> None:
        """Remove the hooks. Idempotent."""
        group = self._group
        self.group_left()
        self._is_in_step = False
        if group is not None:
            dist.destroy_process_group(group)

    def group_left(self) -> None:
        """The learners' group is left: drop everything that keeps its connections open."""
        for hook in self._hooks.values():
            hook.remove()
        for bucket in self._buckets:  # a traceback may hold them
            bucket.work = None
        self._hooks.clear()
        self._buckets = []
        self._group = None

    def _set_up(self) -> None:
        """Make buckets and hooks for a new group, or for parameters that need gradients now."""
        if get_world_size() == 1:
            return
        needing = [parameter for parameter in self._parameters if parameter.requires_grad]
        if self._group is not None and all(id(parameter) in self._hooks for parameter in needing):
            return
        self.close()
        needing.reverse()  # the last layers' gradients come first
        _check_agreement(needing)
        self._buckets = make_buckets(needing, self._bucket_bytes)
        self._group = new_group(user=self)
        for number, bucket in enumerate(self._buckets):
            for position, parameter in enumerate(bucket.tensors):
                on_gradient = partial(self._on_gradient, number, position)
                hook = parameter.register_post_accumulate_grad_hook(on_gradient)  # type: ignore[no-untyped-call]
                self._hooks[id(parameter)] = hook

    def _on_gradient(self, number: int, position: int, _parameter: torch.Tensor) -> None:
        """A backward pass has made a parameter's gradient."""
        self._is_begun = True
        if not self._is_in_step or self._is_paused:
            return
        missing = self._buckets[number].missing
        if position not in missing:
            raise CommError(
                "a second backward pass reached a parameter within one step: all passes but the "
                "last belong inside paused()"
            )
        missing.remove(position)
        # The last bucket waits for `finish`, since it says whether the step was given up. It is
        # full when the backward pass ends: there is nothing left to hide it behind.
        while self._launched < len(self._buckets) - 1 and not self._next_bucket.missing:
            self._launch()

    @property
    def _next_bucket(self) -> Bucket:
        return self._buckets[self._launched]

    def _launch(self) -> None:
        """Send the next bucket off. All learners send them in the same order."""
        bucket = self._next_bucket
        gradients, places = [], []
        for parameter, view in zip(bucket.tensors, bucket.views, strict=True):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad is not view:
                gradients.append(parameter.grad)
                places.append(view)
            if parameter.requires_grad:
                parameter.grad = view
        if gradients:
            with torch.no_grad():
                torch._foreach_copy_(places, gradients)
        with waiting_for(_GRADIENTS):
            bucket.work = dist.all_reduce(bucket.memory, group=self._group, async_op=True)
        self._launched += 1

    def _complete(self, *, gave_up: bool) -> bool:
        """Send the rest, wait for all of it; returns whether a learner gave the step up."""
        if not self._buckets:  # nothing needs gradients
            self._is_in_step = False
            return False
        mark = self._buckets[-1].memory[-1]
        mark.fill_(float(gave_up))
        try:
            while self._launched < len(self._buckets):
                self._launch()
            for bucket in self._buckets:
                if bucket.work is not None:
                    with waiting_for(_GRADIENTS):
                        bucket.work.wait()
                bucket.work = None
        except GroupBrokenError:
            self.group_left()
            raise
        finally:
            self._is_in_step = False
        return bool(mark.item() != 0)


def share_state(module: nn.Module) -> None:
    """Copy parameters and buffers of learner 0 to all learners, in place; collective.

    Raises:
        CommError: the learners have different parameters or buffers.
    """
    if get_world_size() == 1:
        return
    tensors = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
    _check_agreement(tensors)
    for bucket in make_buckets(tensors, _STATE_BUCKET_BYTES):
        if get_rank() == 0:
            torch._foreach_copy_(bucket.views, bucket.tensors)
        broadcast(bucket.memory.view(torch.uint8))  # as bytes: some backends lack some dtypes
        torch._foreach_copy_(bucket.tensors, bucket.views)


def _check_agreement(tensors: Iterable[torch.Tensor]) -> None:
    """Check that all learners have tensors of the same shapes and dtypes; collective.

    Raises:
        CommError: they differ.
    """
    of_ranks = gather_objects([(tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors])
    for rank, other in enumerate(of_ranks):
        if other != of_ranks[0]:
            odd = [pair for pair in zip(of_ranks[0], other, strict=False) if pair[0] != pair[1]]
            raise CommError(
                f"learner {rank} has another network than learner 0: {len(other)} tensors against "
                f"{len(of_ranks[0])}"
                + (f", the first that differs is {odd[0][1]} against {odd[0][0]}" if odd else "")
            )
