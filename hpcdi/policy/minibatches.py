"""Minibatches of on-policy data, joint over all learners, so that they learn like one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcdi.comm.dist import allreduce_data, get_rank, get_world_size
from hpcdi.utils.packed import grouped, ungrouped


class Joint(NamedTuple):
    """Statistics of a joint minibatch: the samples that all learners learn from in one step."""

    per_learner: float
    """Its samples for each learner, on average: a learner's sums are divided by it, so that the
    mean over the learners is the mean over the samples."""
    mean: Tensor
    """Of the advantages, as the next two; scalars."""
    deviation: Tensor
    largest: Tensor

    @classmethod
    def of(cls, advantage: Tensor) -> Joint:
        """Of a minibatch of one learner alone."""
        deviation = advantage.std(correction=0)  # 0, not NaN, of a single one
        return cls(len(advantage), advantage.mean(), deviation, advantage.max())


def minibatches(
    columns: Mapping[str, Tensor], batch_size: int, passes: int, rng: np.random.Generator
) -> Iterator[tuple[dict[str, Tensor], Joint]]:
    """This learner's minibatches of all passes, and the statistics of the joint ones.

    All learners have the same number of minibatches: a learner with less data than others has
    smaller ones, some of them empty perhaps. Each pass has an order of its own.

    Collective over the learners' process group: one exchange at the start, and one a pass.

    Args:
        columns: name -> [samples, ...] or a group of such, ``advantage`` (float32) among them.
        batch_size: samples of a learner's minibatch, at most.
        passes: how often all samples are used.
        rng: shuffles the samples.
    """
    advantage, flat = columns["advantage"], ungrouped(columns)
    counts = _counts(len(advantage), advantage.device)
    parts = max(math.ceil(each / batch_size) for each in counts)
    for _ in range(passes):
        order = torch.from_numpy(rng.permutation(len(advantage))).to(advantage.device)
        shuffled = [torch.tensor_split(column[order], parts) for column in flat.values()]
        own = [grouped(dict(zip(flat, part, strict=True))) for part in zip(*shuffled, strict=True)]
        if len(counts) == 1:
            for minibatch in own:
                yield minibatch, Joint.of(minibatch["advantage"])
        else:
            yield from zip(own, _exchange([part["advantage"] for part in own], counts), strict=True)


def _counts(count: int, device: torch.device) -> list[int]:
    """Samples of each learner."""
    if get_world_size() == 1:
        return [count]
    table = torch.zeros(get_world_size(), dtype=torch.float64, device=device)
    table[get_rank()] = count
    allreduce_data(table, "sum")
    return [int(each) for each in table.tolist()]


def _exchange(advantages: Sequence[Tensor], counts: Sequence[int]) -> list[Joint]:
    """Moments of each joint minibatch from every learner's own (Chan et al. 1979, eq. 2.1)."""
    parts, device = len(advantages), advantages[0].device
    # rows of a minibatch on each learner, as `torch.tensor_split` cuts them
    sizes = [[each // parts + (part < each % parts) for each in counts] for part in range(parts)]
    table = torch.zeros(3, len(counts), parts, dtype=torch.float64, device=device)
    own = [_moments(advantage.double()) for advantage in advantages]
    table[:, get_rank()] = torch.stack(own, dim=1)
    allreduce_data(table, "sum")  # to which each adds 0 but in its own places
    means, spreads, largest = table
    weights = torch.tensor(sizes, dtype=torch.float64, device=device).T
    total = weights.sum(dim=0)
    mean = (weights * means).sum(dim=0) / total
    spread = (spreads + weights * (means - mean).square()).sum(dim=0)
    found = torch.stack([mean, (spread / total).sqrt(), largest.amax(dim=0)], dim=1).float()
    return [
        Joint(sum(size) / len(size), *row.unbind()) for size, row in zip(sizes, found, strict=True)
    ]


def _moments(values: Tensor) -> Tensor:
    """Mean, sum of squared distances to it, and the largest, [3]; of none: 0, 0, -inf."""
    if not len(values):
        return values.new_tensor([0.0, 0.0, -math.inf])
    mean = values.mean()
    return torch.stack([mean, (values - mean).square().sum(), values.max()])
