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
from hpcdi.store.rows import SEQUENCE_LEN

_JOINT = "joint"


class Joint(NamedTuple):
    """Statistics of a joint minibatch: the samples that all learners learn from in one step."""

    per_learner: float
    """Mean number of samples of a learner: each divides its sums by it, so that the mean over the
    learners is the mean over the samples."""
    mean: Tensor
    """Mean of the advantages; this, standard deviation and largest are float32 scalars."""
    deviation: Tensor
    largest: Tensor

    @classmethod
    def of(cls, advantage: Tensor) -> Joint:
        """Returns the statistics of a minibatch of a single learner."""
        deviation = advantage.std(correction=0)  # of one sample 0, not NaN
        return cls(len(advantage), advantage.mean(), deviation, advantage.max())

    def columns(self) -> dict[str, Tensor]:
        """Its tensors, to be columns beside those of the minibatch."""
        return {_JOINT: torch.stack((self.mean, self.deviation, self.largest))}

    @classmethod
    def taken_from(
        cls, columns: Mapping[str, Tensor], per_learner: float
    ) -> tuple[Joint, dict[str, Tensor]]:
        """The inverse of `columns`: the statistics, and the minibatch alone."""
        minibatch = {name: column for name, column in columns.items() if name != _JOINT}
        return cls(per_learner, *columns[_JOINT].unbind()), minibatch


def minibatches(
    columns: Mapping[str, Tensor],
    batch_size: int,
    passes: int,
    rng: np.random.Generator,
    of: str = "advantage",
) -> Iterator[tuple[dict[str, Tensor], Joint]]:
    """Yields this learner's minibatches of all passes, each with statistics of the joint one.

    All learners have the same number of minibatches: a learner with less data than others has
    smaller ones, and some may be empty. Each pass shuffles anew. With a memory a minibatch has
    complete sequences, and `batch_size` samples on average.

    Collective over the learners' process group: one exchange at the start, and one a pass.

    Args:
        columns: name -> [samples, ...]; maybe with those of sequences, see `memories.chosen`.
        batch_size: samples of a learner's minibatch, at most.
        passes: how often all samples are used.
        rng: shuffles the samples.
        of: name of the column, float32, of which the statistics are.
    """
    advantage = columns[of]
    units = columns.get(SEQUENCE_LEN, advantage)  # sequences, or samples: these are shuffled
    parts = _most(min(math.ceil(len(advantage) / batch_size), len(units)), advantage.device)
    for _ in range(passes):
        order = torch.from_numpy(rng.permutation(len(units))).to(advantage.device)
        if units is advantage:
            shuffled = [torch.tensor_split(column[order], parts) for column in columns.values()]
            pieces = [dict(zip(columns, part, strict=True)) for part in zip(*shuffled, strict=True)]
        else:
            pieces = memories.split(columns, order, parts)
        if get_world_size() == 1:
            for minibatch in pieces:
                yield minibatch, Joint.of(minibatch[of])
        else:
            yield from zip(pieces, _exchange([piece[of] for piece in pieces]), strict=True)


def _most(parts: int, device: torch.device) -> int:
    """Returns the largest number of minibatches that a learner has."""
    if get_world_size() == 1:
        return parts
    table = torch.zeros(get_world_size(), dtype=torch.float64, device=device)
    table[get_rank()] = parts
    allreduce_data(table, "sum")
    return int(table.max())


def _exchange(advantages: Sequence[Tensor]) -> list[Joint]:
    """Returns moments of the joint minibatches from all learners' (Chan et al. 1979, eq. 2.1).

    Args:
        advantages: of each minibatch of this learner, float32 [samples].
    """
    learners, device = get_world_size(), advantages[0].device
    table = torch.zeros(4, learners, len(advantages), dtype=torch.float64, device=device)
    moments = [_moments(advantage.double()) for advantage in advantages]
    table[:, get_rank()] = torch.stack(moments, dim=1)
    allreduce_data(table, "sum")  # each learner adds 0 in the others' columns
    sizes, means, spreads, largest = table
    total = sizes.sum(dim=0)
    mean = (sizes * means).sum(dim=0) / total
    spread = (spreads + sizes * (means - mean).square()).sum(dim=0)
    joint = torch.stack([mean, (spread / total).sqrt(), largest.amax(dim=0)], dim=1).float()
    return [
        Joint(size / learners, *row.unbind())
        for size, row in zip(total.tolist(), joint, strict=True)
    ]


def _moments(values: Tensor) -> Tensor:
    """Returns count, mean, sum of squared deviations and maximum, [4]; of none 0, 0, 0, -inf."""
    if not len(values):
        return values.new_tensor([0.0, 0.0, 0.0, -math.inf])
    mean = values.mean()
    spread = (values - mean).square().sum()
    return torch.stack([values.new_tensor(float(len(values))), mean, spread, values.max()])
