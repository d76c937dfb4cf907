"""Sum and minimum over an array that changes, in whole batches of numpy operations.

A complete binary tree over `capacity` leaves (rounded up to a power of two), stored as one flat
array: node 1 is the root, node k has children 2k and 2k+1, leaf i is node `leaves + i`. A batch of
m updates or searches walks all m paths level by level, so the cost is log2(capacity) numpy calls,
whatever m is.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


class _SegmentTree:
    """Array of float64 leaves with a reduction kept for every subtree."""

    _reduce: np.ufunc
    _neutral: float

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._leaves = 1 << max(capacity - 1, 1).bit_length()
        self._nodes = np.full(2 * self._leaves, self._neutral, dtype=np.float64)

    @property
    def values(self) -> Values:
        """The leaves, shape [capacity]: a read-only view."""
        view = self._nodes[self._leaves : self._leaves + self.capacity]
        view.flags.writeable = False
        return view

    def reduce(self) -> float:
        """The reduction of all leaves."""
        return float(self._nodes[1])

    def update(self, indices: Indices, values: Values | float) -> None:
        """Set leaves `indices` [m] to `values` [m]; of equal indices the last one counts."""
        node = np.asarray(indices, dtype=np.int64) + self._leaves
        if node.size == 0:
            return
        self._nodes[node] = values
        while node[0] > 1:
            node = node >> 1
            if node.size > 32:  # neighbours share their parents: walk each path once
                node = _without_repeats(node)
            child = node << 1
            self._nodes[node] = self._reduce(self._nodes[child], self._nodes[child + 1])

    def fill(self, values: Values) -> None:
        """Set all leaves from `values` [capacity] and rebuild the tree."""
        self._nodes[:] = self._neutral
        self._nodes[self._leaves : self._leaves + self.capacity] = values
        level = self._leaves
        while level > 1:
            children = self._nodes[level : 2 * level]
            level >>= 1
            self._nodes[level : 2 * level] = self._reduce(children[0::2], children[1::2])


class SumTree(_SegmentTree):
    """Leaves with the sum of every subtree: draws an index in proportion to its leaf."""

    _reduce = np.add
    _neutral = 0.0

    def find(self, mass: Values) -> Indices:
        """For each `mass` [m] in [0, sum), the leaf at which the running sum passes it."""
        mass = np.array(mass, dtype=np.float64)
        node = np.ones(mass.shape, dtype=np.int64)
        for _ in range(self._leaves.bit_length() - 1):
            node <<= 1
            left = self._nodes[node]
            # A right subtree without mass is never entered, whatever rounding says.
            right = (mass >= left) & (self._nodes[node + 1] > 0.0)
            mass -= np.where(right, left, 0.0)
            node += right
        return np.minimum(node - self._leaves, self.capacity - 1)


class MinTree(_SegmentTree):
    """Leaves with the minimum of every subtree; an empty leaf is infinite."""

    _reduce = np.minimum
    _neutral = np.inf


def _without_repeats(sorted_or_not: Indices) -> Indices:
    """Drop equal neighbours (all repeats, where the input is sorted)."""
    keep = np.empty(sorted_or_not.shape, dtype=bool)
    keep[0] = True
    np.not_equal(sorted_or_not[1:], sorted_or_not[:-1], out=keep[1:])
    return sorted_or_not[keep]
