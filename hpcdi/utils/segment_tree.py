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

from hpcdi.types import Array
from hpcdi.utils.kernels import BLOCK_SHIFT, FAN_OUT, INFINITE, Indices, kernels

TOP_NODES = 4096
_SHIFT = 4  # of an index, to its parent's


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
        self._groups = [level.reshape(-1, FAN_OUT) for level in self._sums[:-1]]  # views
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
            self._low[block] = np.where(leaves > 0, leaves, INFINITE).min()
            self._doubtful[block] = False
        return float(self._low[block])

    def find(self, mass: Array) -> Indices:
        """For each `mass` [m] in [0, total), the leaf at which the running sum passes it.

        `total` must have been called since the last change. A leaf of mass 0 is never found.
        """
        nodes, left = self._inner.search(self._top, mass)
        for level in range(len(self._groups) - 1, -1, -1):
            nodes, left = self._inner.descend(self._groups[level], nodes, left, level == 0)
        found: Indices = nodes
        return found

    def _settle(self) -> None:
        if self._stale:
            leaves, self._stale = np.array(self._stale), []
            self._low[leaves >> BLOCK_SHIFT] = 0.0
            self._doubtful[leaves >> BLOCK_SHIFT] = True
            self._refresh(leaves)

    def _refresh(self, changed: Indices) -> None:
        for groups, sums in zip(self._groups, self._sums[1:], strict=True):
            changed = changed >> _SHIFT
            self._inner.resum(groups, changed, sums)
