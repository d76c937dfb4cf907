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

Indices = npt.NDArray[np.int64]


class NumpyKernels:
    """The inner loops, as numpy operations over whole batches."""

    def resum(self, groups: Array, lows: Array, nodes: Indices, sums: Array, mins: Array) -> None:
        """Set `sums` and `mins` of nodes [m] from their children.

        Args:
            groups: children's masses, [nodes of this level, 16].
            lows: children's smallest positive masses, of the same shape; the masses themselves,
                where the children are leaves.
            nodes: which.
            sums: of this level, float64; written at `nodes`.
            mins: smallest positive mass below each node of this level, float32; inf where none.
        """
        part = _by_child(groups, nodes)
        half = part[:8] + part[8:]
        half = half[:4] + half[4:]
        half = half[:2] + half[2:]
        sums[nodes] = half[0] + half[1]
        if lows is groups:
            part[part == 0.0] = np.inf
        else:
            part = lows.take(nodes, 0).T
        half = np.minimum(part[:8], part[8:])
        half = np.minimum(half[:4], half[4:])
        half = np.minimum(half[:2], half[2:])
        mins[nodes] = np.minimum(half[0], half[1])

    def descend(self, groups: Array, nodes: Indices, mass: Array) -> tuple[Indices, Array]:
        """From nodes [m] to the children at which the running sum passes `mass` [m].

        Gives the children, and the mass that is left to pass below them.
        """
        count = len(nodes)
        before = np.zeros((FAN_OUT + 1, count))
        before[1:] = _by_child(groups, nodes)
        rows = list(before)
        for child in range(2, FAN_OUT + 1):
            np.add(rows[child - 1], rows[child], out=rows[child])
        passed = (before[1:] <= mass).sum(axis=0)
        beyond = np.flatnonzero(passed == FAN_OUT)
        if beyond.size:  # rounding: the sum of a node and that of its children are a hair apart
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
        self._sums: list[Array] = []
        self._mins: list[Array] = []  # of every level above the leaves
        self._stale: list[int] = []  # leaves that were set one by one; their parents are not yet
        sizes = [capacity]
        while sizes[-1] > TOP_NODES:
            sizes.append(-(-sizes[-1] // FAN_OUT))
        sizes[:-1] = [parents * FAN_OUT for parents in sizes[1:]]  # whole groups
        self._sums += [np.zeros(sizes[0], np.float32), *(np.zeros(size) for size in sizes[1:])]
        self._mins += [np.full(size, np.inf, dtype=np.float32) for size in sizes[1:]]
        self._top = np.zeros(len(self._sums[-1]) + 1)  # running sum, from 0

    @property
    def leaves(self) -> Array:
        """Masses of all leaves, float32 [capacity]: the tree's own, not to be written."""
        return self._sums[0][: self.capacity]

    def set(self, leaves: Indices, mass: Array | float) -> None:
        """Set leaves [m] to masses [m] or one; of equal leaves the last one counts."""
        self._sums[0][leaves] = mass
        self._refresh(leaves)

    def set_one(self, leaf: int, mass: float) -> None:
        """Set one leaf; what follows from it is put off until it is asked for."""
        self._sums[0][leaf] = mass
        self._stale.append(leaf)

    def fill(self, mass: Array) -> None:
        """Set all leaves from masses [capacity]."""
        self._sums[0][: self.capacity] = mass
        self._stale = []
        self._refresh(np.arange(0, self.capacity, FAN_OUT))

    def total(self) -> float:
        """Sum of all masses."""
        self._settle()
        np.cumsum(self._sums[-1], dtype=np.float64, out=self._top[1:])
        return float(self._top[-1])

    def smallest(self) -> float:
        """The smallest positive mass; inf where all are 0."""
        self._settle()
        if self._mins:
            return float(self._mins[-1].min())
        positive = self._sums[0][self._sums[0] > 0]
        return float(positive.min()) if positive.size else np.inf

    def find(self, mass: Array) -> Indices:
        """For each `mass` [m] in [0, total), the leaf at which the running sum passes it.

        `total` must have been called since the last change. A leaf of mass 0 is never found.
        """
        last = self._top.searchsorted(self._top[-1]) - 1  # the last node that holds anything
        nodes = np.minimum(self._top[1:].searchsorted(mass, side="right"), last)
        left = mass - self._top[nodes]
        for sums in self._sums[-2::-1]:
            nodes, left = self._inner.descend(sums.reshape(-1, FAN_OUT), nodes, left)
        found: Indices = nodes
        return found

    def _settle(self) -> None:
        if self._stale:
            leaves, self._stale = np.array(self._stale), []
            self._refresh(leaves)

    def _refresh(self, changed: Indices) -> None:
        for level, mins in enumerate(self._mins):
            changed = _without_repeats(changed >> _SHIFT)
            groups = self._sums[level].reshape(-1, FAN_OUT)
            lows = self._mins[level - 1].reshape(-1, FAN_OUT) if level else groups
            self._inner.resum(groups, lows, changed, self._sums[level + 1], mins)


def _by_child(groups: Array, nodes: Indices) -> Array:
    """Masses of the children of nodes [m], float64 [16, m]."""
    return groups.take(nodes, 0).T.astype(np.float64, order="C")


def _last_positive(groups: Array) -> Indices:
    """The last child of each group [m, 16] whose mass is not 0."""
    last: Indices = FAN_OUT - 1 - (groups[:, ::-1] > 0).argmax(axis=1)
    return last


def _without_repeats(indices: Indices) -> Indices:
    """Drop equal neighbours (all repeats, where the input is sorted)."""
    if indices.size < 2:
        return indices
    keep = np.empty(indices.shape, dtype=bool)
    keep[0] = True
    np.not_equal(indices[1:], indices[:-1], out=keep[1:])
    return indices if keep.all() else indices[keep]
