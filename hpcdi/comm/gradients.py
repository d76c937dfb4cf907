"""Gradients of several learners: their mean, while the backward pass still runs.

Why not torch's DistributedDataParallel: it sees a step only where ``forward`` is called through its
wrapper, which policies with several losses and networks do not do; it is bound to the group that it
was made in, whereas here the group may be another after any step; and an error within a step leaves
its members out of step, whereas here all of them give the step up. It is no faster: two learners of
one thread each on a shared host of 2 cores (gloo, medians of 40 rounds, tools/bench_learners.py)
used, in ms of CPU a step,

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
MiB: small networks go as one message, larger ones have something to send while they still compute.
With both cores computing there is next to nothing to hide behind; it takes a GPU or idle cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from hpcdi.comm.buckets import Flat, layout, pack
from hpcdi.comm.collectives import together
from hpcdi.comm.dist import (
    Group,
    broadcast,
    gather_objects,
    get_rank,
    get_world_size,
    new_group,
)
from hpcdi.errors import CommError, GroupBrokenError

DEFAULT_BUCKET_BYTES = 4 * 2**20  # as measured above
_STATE_BUCKET_BYTES = 64 * 2**20
_GRADIENTS = "the others' gradients"


@dataclass
class _Bucket:
    """Gradients that are reduced together; `missing` are positions that have none yet."""

    flat: Flat
    missing: set[int] = field(default_factory=set)
    work: dist.Work | None = None


class GradientSync:
    """Means of gradients over the learners' group, bucket by bucket, while the backward pass runs.

    A step is `zero`, backward passes, `finish`, and then the optimizer's step. A learner alone has
    no hooks and sends nothing. A group that is formed, left or formed anew between two steps is
    noticed by `zero`, which is collective then; several objects may be in a step at the same time.

    After `finish` the gradients lie in memory that the next step uses again: who wants to keep one
    copies it.

    Args:
        parameters: the same on all learners, in the same order. Those that need no gradient are
            passed over for as long as they need none.
        bucket_bytes: of one message.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, bucket_bytes: int = DEFAULT_BUCKET_BYTES
    ) -> None:
        self._parameters = list(dict.fromkeys(parameters))
        self._bucket_bytes = bucket_bytes
        self._group: Group = None  # all members, for this object alone; None: not ready for any
        self._buckets: list[_Bucket] = []
        self._hooks: dict[int, RemovableHandle] = {}  # by id of the parameter
        self._launched: int | None = None  # buckets under way; None between steps
        self._is_begun = False  # gradients have come in this step
        self._is_paused = False

    def zero(self) -> None:
        """Begin a step: no parameter has a gradient. Comes before the first backward pass.

        Where a step had gradients and was not finished, it is given up: the other learners'
        `finish` raises too, so that nobody takes a step that others do not take.

        Raises:
            CommError: the learners have not the same parameters, or one of them does not answer.
        """
        if self._is_begun and self._launched is not None and self._group is not None:
            self._complete(gave_up=True)
        self._launched, self._is_begun = None, False
        self._follow_the_group()
        for parameter in self._parameters:
            parameter.grad = None
        if self._group is not None:
            self._launched = 0
            for bucket in self._buckets:
                bucket.missing = set(range(len(bucket.flat.tensors)))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Backward passes inside only add up on this learner; the last one comes outside."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def finish(self) -> None:
        """End a step: every parameter's gradient is the mean over the learners, equal to the bit.

        A parameter without a gradient counts as one of zeros.

        Raises:
            CommError: a learner has left, did not answer in time or gave this step up, or `zero`
                was not called before. The gradients are of no use then.
        """
        if self._launched is None:
            if get_world_size() == 1:
                return
            raise CommError("finish() without zero(): a step of several learners begins with it")
        if self._group is None:
            self._launched = None
            raise CommError("the learners' group was left between zero() and finish()")
        if self._complete(gave_up=False):
            raise GroupBrokenError(
                "another learner gave this step up, its own error says why. Begin the step anew, "
                "with zero()"
            )
        for bucket in self._buckets:
            bucket.flat.memory.div_(get_world_size())

    def close(self) -> None:
        """Take the hooks away; again: nothing."""
        group = self._group
        self.group_left()
        self._launched = None
        if group is not None:
            dist.destroy_process_group(group)

    def group_left(self) -> None:
        """The learners' group is left: nothing here may keep its connections open."""
        for hook in self._hooks.values():
            hook.remove()
        for bucket in self._buckets:  # a traceback may hold them
            bucket.work = None
        self._hooks.clear()
        self._buckets = []
        self._group = None

    def _follow_the_group(self) -> None:
        """Be ready for the group that there is now, and for parameters that thawed."""
        if get_world_size() == 1:
            return
        needing = [parameter for parameter in self._parameters if parameter.requires_grad]
        if self._group is not None and all(id(parameter) in self._hooks for parameter in needing):
            return
        self.close()
        needing.reverse()  # the last layers' gradients come first
        _demand_agreement(needing)
        self._buckets = [_Bucket(flat) for flat in pack(needing, self._bucket_bytes)]
        self._group = new_group(holder=self)
        for number, bucket in enumerate(self._buckets):
            for position, parameter in enumerate(bucket.flat.tensors):
                on_gradient = partial(self._on_gradient, number, position)
                hook = parameter.register_post_accumulate_grad_hook(on_gradient)  # type: ignore[no-untyped-call]
                self._hooks[id(parameter)] = hook

    def _on_gradient(self, number: int, position: int, _parameter: torch.Tensor) -> None:
        """A backward pass has made a parameter's gradient."""
        self._is_begun = True
        if self._launched is None or self._is_paused:
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
    def _next_bucket(self) -> _Bucket:
        return self._buckets[self._launched or 0]

    def _launch(self) -> None:
        """Send the next bucket off. All learners send them in the same order."""
        bucket = self._next_bucket
        flat = bucket.flat
        made, places = [], []
        for parameter, view in zip(flat.tensors, flat.views, strict=True):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad is not view:
                made.append(parameter.grad)
                places.append(view)
            if parameter.requires_grad:
                parameter.grad = view
        if made:
            with torch.no_grad():
                torch._foreach_copy_(places, made)
        with together(_GRADIENTS):
            bucket.work = dist.all_reduce(flat.memory, group=self._group, async_op=True)
        self._launched = (self._launched or 0) + 1

    def _complete(self, *, gave_up: bool) -> bool:
        """Send what is left, wait for all of it; gives whether a learner gave the step up."""
        if not self._buckets:  # nothing needs gradients
            self._launched = None
            return False
        mark = self._buckets[-1].flat.memory[-1]
        mark.fill_(float(gave_up))
        try:
            while (self._launched or 0) < len(self._buckets):
                self._launch()
            for bucket in self._buckets:
                if bucket.work is not None:
                    with together(_GRADIENTS):
                        bucket.work.wait()
                bucket.work = None
        except GroupBrokenError:
            self.group_left()  # it is of no more use
            raise
        finally:
            self._launched = None
        return bool(mark.item() != 0)


def share_state(module: nn.Module, src: int = 0) -> None:
    """Parameters and buffers of learner `src`, on all learners, in place; collective.

    Raises:
        CommError: the learners have not the same parameters and buffers.
    """
    if get_world_size() == 1:
        return
    tensors = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
    _demand_agreement(tensors)
    for flat in pack(tensors, _STATE_BUCKET_BYTES):
        if get_rank() == src:
            torch._foreach_copy_(flat.views, flat.tensors)
        broadcast(flat.memory.view(torch.uint8), src)  # as bytes: not every backend has all dtypes
        torch._foreach_copy_(flat.tensors, flat.views)


def _demand_agreement(tensors: list[torch.Tensor] | list[nn.Parameter]) -> None:
    """All learners have tensors of the same shapes and dtypes; collective.

    Raises:
        CommError: they have not.
    """
    of_ranks = gather_objects(layout(tensors))
    for rank, other in enumerate(of_ranks):
        if other != of_ranks[0]:
            odd = [pair for pair in zip(of_ranks[0], other, strict=False) if pair[0] != pair[1]]
            raise CommError(
                f"learner {rank} has another network than learner 0: {len(other)} tensors against "
                f"{len(of_ranks[0])}"
                + (f", the first that differs is {odd[0][1]} against {odd[0][0]}" if odd else "")
            )
