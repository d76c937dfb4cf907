"""The inner loops of prioritized replay, over whole batches; compiled where numba is installed.

Each loop is here once in numpy operations, and once in `utils.compiled`, with the same additions in
the same order: the same results to the last bit.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcdi.types import Array

FAN_OUT = 16
GROUP_SHIFT = 4  # of an index, to its parent's
BLOCK_SHIFT = 12  # of a leaf's index, to the block of which the smallest leaf is known
INFINITE = np.float32(np.inf)
_FEW = 160
_ONCE = np.int32(1)

Indices = npt.NDArray[np.int64]


def ids_of(slots: Indices, newest: int, capacity: int) -> Indices:
    """Ids of the items in slots, where item n lies in slot n mod capacity and `newest` is last."""
    ids: Indices = newest - slots
    ids %= capacity
    np.subtract(newest, ids, out=ids)
    return ids


@dataclass(frozen=True)
class Levels:
    """The arrays of a priority tree, `utils.segment_tree`.

    Attributes:
        leaves: masses, float32, in whole groups of 16.
        upper: sums of groups, float64: level upon level, all but the last in whole groups.
        starts: where each of these levels begins in `upper`, and where the last one ends.
        sums: views of these levels.
        groups: views [nodes, 16] of what they are the sums of: the leaves first.
        top: running sum of the last level, from 0.
        low: the smallest positive leaf of every block, or a lower bound where that is in doubt:
            only the blocks that matter are looked at again, when the smallest of all is asked for.
        doubtful: where it is.
    """

    leaves: Array
    upper: Array
    starts: Indices
    sums: tuple[Array, ...]
    groups: tuple[Array, ...]
    top: Array
    low: Array
    doubtful: Array

    @classmethod
    def of(cls, capacity: int, top_nodes: int) -> Levels:
        """All masses 0; the last level has at most `top_nodes` nodes."""
        sizes = [-(-capacity // FAN_OUT)]
        leaves = np.zeros(sizes[0] * FAN_OUT, np.float32)
        while sizes[-1] > top_nodes:
            sizes.append(-(-sizes[-1] // FAN_OUT))
        sizes[:-1] = [parents * FAN_OUT for parents in sizes[1:]]
        starts = np.cumsum([0, *sizes])
        upper = np.zeros(starts[-1])
        sums = tuple(upper[start:stop] for start, stop in itertools.pairwise(starts))
        blocks = -(-len(leaves) // (1 << BLOCK_SHIFT))
        return cls(
            leaves, upper, starts, sums,
            tuple(level.reshape(-1, FAN_OUT) for level in (leaves, *sums[:-1])),
            np.zeros(sizes[-1] + 1),
            np.full(blocks, np.inf, np.float32), np.zeros(blocks, bool),
        )  # fmt: skip


class NumpyKernels:
    """The inner loops, as numpy operations over whole batches."""

    def write(self, levels: Levels, at: Indices, mass: Array) -> None:
        """Set leaves at indices [m] to masses (float32, [m] or one), and all sums of them.

        A block whose smallest leaf is overwritten is in doubt.
        """
        leaves, low = levels.leaves, levels.low
        blocks = at >> BLOCK_SHIFT
        lows = low.take(blocks)
        smallest = leaves.take(at) <= lows
        leaves[at] = mass
        new = leaves.take(at)  # of equal indices, the last mass
        smaller = new < lows
        if np.count_nonzero(smallest):  # few, if any, in most batches: they cost less than asking
            levels.doubtful[blocks[smallest]] = True
        if np.count_nonzero(smaller):
            smaller &= new > 0
            np.minimum.at(low, blocks[smaller], new[smaller])
        self.resum(levels, at)

    def resum(self, levels: Levels, changed: Indices) -> None:
        """Set all sums that leaves [m] are in from the masses of their groups."""
        for groups, sums in zip(levels.groups, levels.sums, strict=True):
            changed = _without_repeats(changed >> GROUP_SHIFT)
            part = np.empty((FAN_OUT, len(changed)))
            part[:] = groups.take(changed, 0).T
            for half in (8, 4, 2):
                np.add(part[:half], part[half : 2 * half], part[:half])
            sums[changed] = part[0] + part[1]

    def draw(self, levels: Levels, uniforms: Array) -> tuple[Indices, Array, float, float]:
        """See `PriorityTree.draw`."""
        top, count = levels.top, len(uniforms)
        np.add.accumulate(levels.sums[-1], out=top[1:])
        total = top[-1]
        left = uniforms + _strata(count)
        left *= total / count
        last = max(0, top.searchsorted(total) - 1)  # the last node that holds anything
        nodes = np.minimum(top[1:].searchsorted(left, side="right"), last)
        left -= top.take(nodes)
        for groups in levels.groups[:0:-1]:
            nodes, left = _descend(groups, nodes, left)
        nodes, _ = _descend(levels.groups[0], nodes, left)
        return nodes, levels.leaves.take(nodes), float(total), _smallest(levels)

    def mark_drawn(
        self, marks: Array, slots: Indices, newest: int, now: int
    ) -> tuple[Array, Array, Indices]:
        """Count draws of slots [m]; gives uses, staleness (-1: not known) and ids of their items.

        Args:
            marks: of every slot, uses and the train iteration it was made at, int32 [capacity, 2].
            slots: that were drawn; item n lies in slot n mod capacity.
            newest: id of the newest item.
            now: the learner's train iteration.
        """
        np.add.at(marks[:, 0], slots, _ONCE)
        use, made = marks.take(slots, axis=0).T
        staleness = np.subtract(now, made, dtype=np.int64)
        if np.count_nonzero(made < 0):
            staleness[made < 0] = -1
        return use, staleness, ids_of(slots, newest, len(marks))


def _descend(groups: Array, nodes: Indices, goals: Array) -> tuple[Indices, Array]:
    """From nodes [m] to the children at which the running sum passes `goals` [m].

    Gives the children, and how much is left to pass below them.
    """
    count = len(nodes)
    before = np.empty((FAN_OUT + 1, count))
    before[0] = 0.0
    sums = before[1:]
    sums[:] = groups.take(nodes, 0).T
    if count < _FEW:  # one operation strides through memory, fifteen do not
        np.add.accumulate(sums, axis=0, out=sums)
    else:
        for left, right in itertools.pairwise(sums):
            np.add(left, right, right)
    passes = sums <= goals
    passed = np.add.reduce(passes.view(np.int8), axis=0, dtype=np.int8).astype(np.int64)
    if np.count_nonzero(passes[-1]):
        # rounding: the sum of a node and that of its children are a hair apart
        beyond = np.flatnonzero(passes[-1])
        passed[beyond] = _last_positive(groups[nodes[beyond]])
    children = nodes * FAN_OUT
    children += passed
    passed *= count
    passed += np.arange(count)
    return children, goals - before.reshape(-1).take(passed)


def _smallest(levels: Levels) -> float:
    low, doubtful = levels.low, levels.doubtful
    while doubtful[(block := int(low.argmin()))]:
        leaves = levels.leaves[block << BLOCK_SHIFT : (block + 1) << BLOCK_SHIFT]
        low[block] = np.where(leaves > 0, leaves, INFINITE).min()
        doubtful[block] = False
    return float(low[block])


@functools.lru_cache(maxsize=16)
def _strata(count: int) -> Array:
    """Where strata of mass 1 begin, float64 [count]: not to be written."""
    starts = np.arange(count, dtype=np.float64)
    starts.flags.writeable = False
    return starts


@functools.cache
def kernels() -> Any:
    """The fastest inner loops that this machine has: compiled where numba is installed."""
    try:
        from hpcdi.utils.compiled import CompiledKernels
    except ImportError:
        return NumpyKernels()
    return CompiledKernels()


def _last_positive(groups: Array) -> Indices:
    """The last child of each group [m, 16] whose mass is not 0; the first where all are."""
    last: Indices = ((groups > 0) * np.arange(FAN_OUT)).max(axis=1)
    return last


def _without_repeats(indices: Indices) -> Indices:
    """Drop equal neighbours, where there are likely many: of leaves that were set in a row."""
    if not 0 <= indices[-1] - indices[0] < len(indices) - 1:
        return indices
    keep = np.empty(indices.shape, dtype=bool)
    keep[0] = True
    np.not_equal(indices[1:], indices[:-1], out=keep[1:])
    return indices[keep]
