"""The inner loops of prioritized replay, over whole batches; compiled where numba is installed.

Each loop is here once in numpy operations, and once in `utils.compiled`, with the same additions in
the same order: the same results to the last bit.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcdi.types import Array

FAN_OUT = 16
BLOCK_SHIFT = 12  # of a leaf's index, to the block of which the smallest leaf is known
INFINITE = np.float32(np.inf)
_ONCE = np.int32(1)

Indices = npt.NDArray[np.int64]


def ids_of(slots: Indices, newest: int, capacity: int) -> Indices:
    """Ids of the items in slots, where item n lies in slot n mod capacity and `newest` is last."""
    ids: Indices = newest - slots
    ids %= capacity
    np.subtract(newest, ids, out=ids)
    return ids


class NumpyKernels:
    """The inner loops, as numpy operations over whole batches."""

    def write(self, leaves: Array, at: Indices, mass: Array, low: Array, doubtful: Array) -> None:
        """Set leaves at indices [m] to masses (float32, [m] or one), and see to the blocks' lows.

        A block whose smallest leaf is overwritten is in doubt; see `PriorityTree.smallest`.
        """
        blocks = at >> BLOCK_SHIFT
        lows = low.take(blocks)
        smallest = leaves.take(at) <= lows
        leaves[at] = mass
        new = leaves.take(at)  # of equal indices, the last mass
        smaller = new < lows
        if np.count_nonzero(smallest):  # few, if any, in most batches: they cost less than asking
            doubtful[blocks[smallest]] = True
        if np.count_nonzero(smaller):
            smaller &= new > 0
            np.minimum.at(low, blocks[smaller], new[smaller])

    def resum(self, groups: Array, nodes: Indices, sums: Array) -> None:
        """Set `sums` (float64) at nodes [m] from the masses of their children [nodes, 16]."""
        nodes = _without_repeats(nodes)
        part = np.empty((FAN_OUT, len(nodes)))
        part[:] = groups.take(nodes, 0).T
        for half in (8, 4, 2):
            np.add(part[:half], part[half : 2 * half], part[:half])
        sums[nodes] = part[0] + part[1]

    def running_sum(self, masses: Array, out: Array) -> None:
        """Set ``out[k + 1]`` to the sum of masses 0 to k, added one by one."""
        np.add.accumulate(masses, out=out[1:])

    def search(self, top: Array, mass: Array) -> tuple[Indices, Array]:
        """For each mass [m], the node at which the running sum `top` passes it.

        Gives the nodes, and the mass that is left to pass below them.
        """
        last = top.searchsorted(top[-1]) - 1  # the last node that holds anything
        nodes = np.minimum(top[1:].searchsorted(mass, side="right"), last)
        return nodes, mass - top.take(nodes)

    def descend(
        self, groups: Array, nodes: Indices, mass: Array, is_last: bool = False
    ) -> tuple[Indices, Array]:
        """From nodes [m] to the children at which the running sum passes `mass` [m].

        Gives the children, and the mass that is left to pass below them: anything if `is_last`.
        """
        count = len(nodes)
        before = np.empty((FAN_OUT + 1, count))
        before[0] = 0.0
        sums = before[1:]
        sums[:] = groups.take(nodes, 0).T
        for left, right in itertools.pairwise(sums):
            np.add(left, right, right)
        passes = sums <= mass
        passed = np.add.reduce(passes.view(np.int8), axis=0, dtype=np.int8).astype(np.int64)
        if np.count_nonzero(passes[-1]):
            # rounding: the sum of a node and that of its children are a hair apart
            beyond = np.flatnonzero(passes[-1])
            passed[beyond] = _last_positive(groups[nodes[beyond]])
        children = nodes * FAN_OUT
        children += passed
        if is_last:
            return children, mass
        passed *= count
        passed += np.arange(count)
        return children, mass - before.reshape(-1).take(passed)

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


@functools.cache
def kernels() -> Any:
    """The fastest inner loops that this machine has: compiled where numba is installed."""
    try:
        from hpcdi.utils.compiled import CompiledKernels
    except ImportError:
        return NumpyKernels()
    return CompiledKernels()


def _last_positive(groups: Array) -> Indices:
    """The last child of each group [m, 16] whose mass is not 0."""
    last: Indices = FAN_OUT - 1 - (groups[:, ::-1] > 0).argmax(axis=1)
    return last


def _without_repeats(indices: Indices) -> Indices:
    """Drop equal neighbours, where there are likely many: of leaves that were set in a row."""
    if not 0 <= indices[-1] - indices[0] < len(indices) - 1:
        return indices
    keep = np.empty(indices.shape, dtype=bool)
    keep[0] = True
    np.not_equal(indices[1:], indices[:-1], out=keep[1:])
    return indices[keep]
