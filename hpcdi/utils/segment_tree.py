"""Sum and minimum over an array that changes, in whole batches of numpy operations.

A tree of fan-out 16 over `capacity` leaves; its top level, of at most 4,096 nodes, has no parent. A
batch of m updates or searches goes through the levels together, so a level costs a few array
operations, whatever m is: a million leaves are three levels. Leaves are float32 (sixteen of them
are one cache line), sums float64.

The order of every addition is fixed, so that equal leaves give equal sums and equal draws: however
they came about (one by one, in batches, from a snapshot), and whether the inner loops are numpy's
or, where numba is installed, compiled ones (`utils.compiled`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hpcdi.types import Array

FAN_OUT = 16
TOP_NODES = 4096
_SHIFT = 4  # of an index, to its parent's
BLOCK_SHIFT = 12  # of an index, to the block of which the smallest leaf is known
_INFINITE = np.float32(np.inf)

Indices = npt.NDArray[np.int64]


class NumpyKernels:
    """The inner loops, as numpy operations over whole batches."""

    def write(self, leaves: Array, at: Indices, mass: Array, low: Array, doubtful: Array) -> None:
        """Set leaves at indices [m] to masses (float32, [m] or one), and see to the blocks' lows.

        A block whose smallest leaf is overwritten is in doubt; see `PriorityTree.smallest`.
        """
        blocks = at >> BLOCK_SHIFT
        doubtful[blocks[leaves.take(at) <= low.take(blocks)]] = True
        leaves[at] = mass
        new = leaves.take(at)  # of equal indices, the last mass
        np.minimum.at(low, blocks, np.where(new > 0, new, _INFINITE))

    def resum(self, groups: Array, nodes: Indices, sums: Array) -> None:
        """Set `sums` (float64) at nodes [m] from the masses of their children [nodes, 16]."""
        nodes = _without_repeats(nodes)
        part = np.empty((FAN_OUT, len(nodes)))
        part[:] = groups.take(nodes, 0).T
        half = part[:8] + part[8:]
        half = half[:4] + half[4:]
        half = half[:2] + half[2:]
        sums[nodes] = half[0] + half[1]

    def running_sum(self, masses: Array, out: Array) -> None:
        """Set ``out[k + 1]`` to the sum of masses 0 to k, added one by one."""
        np.cumsum(masses, dtype=np.float64, out=out[1:])

    def search(self, top: Array, mass: Array) -> tuple[Indices, Array]:
        """For each mass [m], the node at which the running sum `top` passes it.

        Gives the nodes, and the mass that is left to pass below them.
        """
        last = top.searchsorted(top[-1]) - 1  # the last node that holds anything
        nodes = np.minimum(top[1:].searchsorted(mass, side="right"), last)
        return nodes, mass - top.take(nodes)

    def descend(self, groups: Array, nodes: Indices, mass: Array) -> tuple[Indices, Array]:
        """From nodes [m] to the children at which the running sum passes `mass` [m].

        Gives the children, and the mass that is left to pass below them.
        """
        count = len(nodes)
        before = np.empty((FAN_OUT + 1, count))
        before[0] = 0.0
        before[1:] = groups.take(nodes, 0).T
        rows = list(before)
        for child in range(2, FAN_OUT + 1):
            np.add(rows[child - 1], rows[child], out=rows[child])
        passes = before[1:] <= mass
        passed = np.add.reduce(passes.view(np.int8), axis=0, dtype=np.int64)
        if np.count_nonzero(passes[-1]):
            # rounding: the sum of a node and that of its children are a hair apart
            beyond = np.flatnonzero(passes[-1])
            passed[beyond] = _last_positive(groups[nodes[beyond]])
        left = mass - before.reshape(-1).take(passed * count + np.arange(count))
        return nodes * FAN_OUT + passed, left


_KERNELS: list[Any] = []


def kernels() -> Any:
    """The fastest inner loops that this machine has: compiled where numba is installed."""
    if not _KERNELS:
        try:
            from hpcdi.utils.compiled import CompiledKernels
        except ImportError:
            _KERNELS.append(NumpyKernels())
        else:
            _KERNELS.append(CompiledKernels())
    return _KERNELS[0]


class PriorityTree:
    """Masses of `capacity` leaves: their sum, the smallest positive one, draws in proportion.

    Args:
        capacity: leaves, all of mass 0 at first.
        inner: the inner loops; by default the fastest that are there.
    """

    def __init__(self, capacity: int, inner: Any = None) -> None:
        self.capacity = capacity
        self._inner = inner if inner is not None else kernels()
        sizes = [capacity]
        while sizes[-1] > TOP_NODES:
            sizes.append(-(-sizes[-1] // FAN_OUT))
        sizes[:-1] = [parents * FAN_OUT for parents in sizes[1:]]  # whole groups
        self._sums: list[Array] = [
            np.zeros(sizes[0], np.float32),
            *(np.zeros(size) for size in sizes[1:]),
        ]
        self._top = np.zeros(sizes[-1] + 1)  # running sum of the last level, from 0
        self._stale: list[int] = []  # leaves that were set one by one; their parents are not yet
        # The smallest positive leaf of every block, or a lower bound where the block is in doubt:
        # only the blocks that matter are looked at again, when the smallest of all is asked for.
        blocks = -(-sizes[0] // (1 << BLOCK_SHIFT))
        self._low = np.full(blocks, np.inf, dtype=np.float32)
        self._doubtful = np.zeros(blocks, dtype=bool)

    @property
    def leaves(self) -> Array:
        """Masses of all leaves, float32 [capacity]: the tree's own, not to be written."""
        return self._sums[0][: self.capacity]

    def set(self, leaves: Indices, mass: Array | float) -> None:
        """Set leaves [m] to masses [m] or one; of equal leaves the last one counts."""
        if not len(leaves):
            return
        mass = np.asarray(mass, dtype=np.float32)
        self._inner.write(self._sums[0], leaves, mass, self._low, self._doubtful)
        self._refresh(leaves)

    def set_one(self, leaf: int, mass: float) -> None:
        """Set one leaf; what follows from it is put off until it is asked for."""
        self._sums[0][leaf] = mass
        self._stale.append(leaf)

    def fill(self, mass: Array) -> None:
        """Set all leaves from masses [capacity]."""
        self._sums[0][: self.capacity] = mass
        self._stale = []
        self._low[:], self._doubtful[:] = 0.0, True
        self._refresh(np.arange(0, self.capacity, FAN_OUT))

    def total(self) -> float:
        """Sum of all masses."""
        self._settle()
        self._inner.running_sum(self._sums[-1], self._top)
        return float(self._top[-1])

    def smallest(self) -> float:
        """The smallest positive mass; inf where all are 0."""
        self._settle()
        while self._doubtful[(block := int(self._low.argmin()))]:
            leaves = self._sums[0][block << BLOCK_SHIFT : (block + 1) << BLOCK_SHIFT]
            self._low[block] = np.where(leaves > 0, leaves, _INFINITE).min()
            self._doubtful[block] = False
        return float(self._low[block])

    def find(self, mass: Array) -> Indices:
        """For each `mass` [m] in [0, total), the leaf at which the running sum passes it.

        `total` must have been called since the last change. A leaf of mass 0 is never found.
        """
        nodes, left = self._inner.search(self._top, mass)
        for sums in self._sums[-2::-1]:
            nodes, left = self._inner.descend(sums.reshape(-1, FAN_OUT), nodes, left)
        found: Indices = nodes
        return found

    def _settle(self) -> None:
        if self._stale:
            leaves, self._stale = np.array(self._stale), []
            self._low[leaves >> BLOCK_SHIFT] = 0.0
            self._doubtful[leaves >> BLOCK_SHIFT] = True
            self._refresh(leaves)

    def _refresh(self, changed: Indices) -> None:
        for level, sums in enumerate(self._sums[1:]):
            changed = changed >> _SHIFT
            self._inner.resum(self._sums[level].reshape(-1, FAN_OUT), changed, sums)


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
