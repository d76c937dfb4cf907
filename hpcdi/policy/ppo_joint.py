"""What several PPO learners agree on about their minibatches, so that they learn like one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hpcdi.comm.dist import allreduce_data, get_rank, get_world_size


class Minibatch(NamedTuple):
    """What is learnt from; all [transitions, ...], float32 but observations and actions."""

    observation: Tensor
    action: Tensor
    """The one that was sampled, before any bounds."""
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor


class Joint(NamedTuple):
    """Of a joint minibatch: what all learners learn from in one step."""

    per_learner: float
    """Its transitions for each learner, on average: what a learner's sums are divided by, so that
    the mean over the learners is that over the transitions."""
    mean: Tensor
    """Of the advantages, like the next two; scalars."""
    deviation: Tensor
    largest: Tensor

    @classmethod
    def of(cls, advantage: Tensor) -> Joint:
        """Of a learner that is alone."""
        deviation = advantage.std(correction=0)  # 0, not NaN, of a single one
        return cls(len(advantage), advantage.mean(), deviation, advantage.max())


class JointMinibatches:
    """How the data of all learners are cut: in one number of minibatches on each.

    A learner that has less data than others has smaller minibatches, some of them empty perhaps.
    Collective over the learners' process group, as `with_joint` is.

    Args:
        count: this learner's transitions.
        batch_size: transitions of a learner's minibatch, at most.
        device: for what is exchanged.
    """

    def __init__(self, count: int, batch_size: int, device: torch.device) -> None:
        self._counts = [count]
        self._device = device
        if get_world_size() > 1:
            table = torch.zeros(get_world_size(), dtype=torch.float64, device=device)
            table[get_rank()] = count
            allreduce_data(table, "sum")
            self._counts = [int(each) for each in table.tolist()]
        self.parts = max(math.ceil(each / batch_size) for each in self._counts)
        """Minibatches of one pass over the data."""

    def with_joint(self, minibatches: Iterator[Minibatch]) -> Iterator[tuple[Minibatch, Joint]]:
        """Each minibatch of this learner with what is known of the joint one.

        Costs one exchange a pass; a pass is drawn from `minibatches` when it begins.
        """
        if len(self._counts) == 1:
            for minibatch in minibatches:
                yield minibatch, Joint.of(minibatch.advantage)
            return
        while of_pass := list(itertools.islice(minibatches, self.parts)):
            joint = self._exchange([minibatch.advantage for minibatch in of_pass])
            yield from zip(of_pass, joint, strict=True)

    def _exchange(self, advantages: Sequence[Tensor]) -> list[Joint]:
        """Moments of each joint minibatch from every learner's own (Chan et al. 1979, eq. 2.1)."""
        sizes = [self._sizes(part) for part in range(self.parts)]
        table = torch.zeros(
            3, len(self._counts), self.parts, dtype=torch.float64, device=self._device
        )
        own = [_moments(advantage.double()) for advantage in advantages]
        table[:, get_rank()] = torch.stack(own, dim=1)
        allreduce_data(table, "sum")  # to which each adds 0 but in its own places
        means, spreads, largest = table
        weights = torch.tensor(sizes, dtype=torch.float64, device=self._device).T
        counts = weights.sum(dim=0)
        mean = (weights * means).sum(dim=0) / counts
        spread = (spreads + weights * (means - mean).square()).sum(dim=0)
        found = torch.stack([mean, (spread / counts).sqrt(), largest.amax(dim=0)], dim=1).float()
        return [
            Joint(sum(size) / len(size), *row.unbind())
            for size, row in zip(sizes, found, strict=True)
        ]

    def _sizes(self, part: int) -> list[int]:
        """Rows of a minibatch on each learner, as `torch.tensor_split` cuts them."""
        return [each // self.parts + (part < each % self.parts) for each in self._counts]


def _moments(values: Tensor) -> Tensor:
    """Mean, sum of squared distances to it, and the largest, [3]; of none: 0, 0, -inf."""
    if not len(values):
        return values.new_tensor([0.0, 0.0, -math.inf])
    mean = values.mean()
    return torch.stack([mean, (values - mean).square().sum(), values.max()])
