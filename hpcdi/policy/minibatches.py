"""Minibatches of on-policy data, joint over all learners, so that they learn like one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcdi.comm.group import allreduce_data, get_rank, get_world_size
from hpcdi.policy import memories


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
    columns: Mapping[str, Tensor],
    batch_size: int,
    passes: int,
    rng: np.random.Generator,
    of: str = "advantage",
) -> Iterator[tuple[dict[str, Tensor], Joint]]:
    """This learner's minibatches of all passes, and the statistics of the joint ones.

    All learners have the same number of minibatches: a learner with less data than others has
    smaller ones, some of them empty perhaps. Each pass has an order of its own. Of sequences for a
    memory each minibatch has whole ones, and `batch_size` samples on average.

    Collective over the learners' process group: one exchange at the start, and one a pass.

    Args:
        columns: name -> [samples, ...]; maybe with those of sequences, see `memories.chosen`.
        batch_size: samples of a learner's minibatch, at most.
        passes: how often all samples are used.
        rng: shuffles the samples.
        of: column, float32, whose moments are wanted.
    """
    advantage = columns[of]
    units = columns.get(memories.LENGTH, advantage)  # what is shuffled: samples, or sequences
    parts = _most(min(math.ceil(len(advantage) / batch_size), len(units)), advantage.device)
    for _ in range(passes):
        order = torch.from_numpy(rng.permutation(len(units))).to(advantage.device)
        if units is advantage:
            shuffled = [torch.tensor_split(column[order], parts) for column in columns.values()]
            own = [dict(zip(columns, part, strict=True)) for part in zip(*shuffled, strict=True)]
        else:
            own = memories.parts_of(columns, order, parts)
        if get_world_size() == 1:
            for minibatch in own:
                yield minibatch, Joint.of(minibatch[of])
        else:
            yield from zip(own, _exchange([part[of] for part in own]), strict=True)


def _most(parts: int, device: torch.device) -> int:
    """The largest number of minibatches that a learner has."""
    if get_world_size() == 1:
        return parts
    table = torch.zeros(get_world_size(), dtype=torch.float64, device=device)
    table[get_rank()] = parts
    allreduce_data(table, "sum")
    return int(table.max())


def _exchange(advantages: Sequence[Tensor]) -> list[Joint]:
    """Moments of each joint minibatch from every learner's own (Chan et al. 1979, eq. 2.1)."""
    learners, device = get_world_size(), advantages[0].device
    table = torch.zeros(4, learners, len(advantages), dtype=torch.float64, device=device)
    own = [_moments(advantage.double()) for advantage in advantages]
    table[:, get_rank()] = torch.stack(own, dim=1)
    allreduce_data(table, "sum")  # to which each adds 0 but in its own places
    sizes, means, spreads, largest = table
    total = sizes.sum(dim=0)
    mean = (sizes * means).sum(dim=0) / total
    spread = (spreads + sizes * (means - mean).square()).sum(dim=0)
    found = torch.stack([mean, (spread / total).sqrt(), largest.amax(dim=0)], dim=1).float()
    return [
        Joint(size / learners, *row.unbind())
        for size, row in zip(total.tolist(), found, strict=True)
    ]


def _moments(values: Tensor) -> Tensor:
    """Number, mean, sum of squared distances to it, largest, [4]; of none 0, 0, 0, -inf."""
    if not len(values):
        return values.new_tensor([0.0, 0.0, 0.0, -math.inf])
    mean = values.mean()
    spread = (values - mean).square().sum()
    return torch.stack([values.new_tensor(float(len(values))), mean, spread, values.max()])
