"""Draws in proportion to an array that changes, in whole batches.

A tree of fan-out 16 over `capacity` leaves; its top level, of at most 4,096 nodes, has no parent. A
batch of m updates or draws goes through the levels together, so a level costs a few array
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
from hpcdi.utils.kernels import BLOCK_SHIFT, FAN_OUT, Indices, Levels, kernels

TOP_NODES = 4096


class PriorityTree:
    """Masses of `capacity` leaves: their sum, the smallest positive one, draws in proportion.

    Args:
        capacity: leaves, all of mass 0 at first.
        inner: the inner loops; by default the fastest that are there.
    """

    def __init__(self, capacity: int, inner: Any = None) -> None:
        self.capacity = capacity
        self._inner = inner if inner is not None else kernels()
        self._levels = Levels.of(capacity, TOP_NODES)
        self._stale: list[int] = []  # leaves that were set one by one; their parents are not yet

    @property
    def leaves(self) -> Array:
        """Masses of all leaves, float32 [capacity]: the tree's own, not to be written."""
        return self._levels.leaves[: self.capacity]

    def set(self, leaves: Indices, mass: Array | float) -> None:
        """Set leaves [m] to masses [m] or one; of equal leaves the last one counts."""
        if len(leaves):
            self._inner.write(self._levels, leaves, np.asarray(mass, dtype=np.float32))

    def set_one(self, leaf: int, mass: float) -> None:
        """Set one leaf; what follows from it is put off until it is asked for."""
        self._levels.leaves[leaf] = mass
        self._stale.append(leaf)

    def fill(self, mass: Array) -> None:
        """Set all leaves from masses [capacity]."""
        self._levels.leaves[: self.capacity] = mass
        self._stale = []
        self._doubt(slice(None))
        self._inner.resum(self._levels, np.arange(0, self.capacity, FAN_OUT))

    def draw(self, uniforms: Array) -> tuple[Indices, Array, float, float]:
        """Draw one leaf from each of m strata of equal mass, by numbers [m] in [0, 1).

        A leaf of mass 0 is not drawn, unless all are 0.

        Returns:
            Leaves [m], their masses [m], the sum of all masses, and the smallest positive one (inf
            where all are 0).
        """
        if self._stale:
            leaves, self._stale = np.array(self._stale), []
            self._doubt(leaves >> BLOCK_SHIFT)
            self._inner.resum(self._levels, leaves)
        drawn: tuple[Indices, Array, float, float] = self._inner.draw(self._levels, uniforms)
        return drawn

    def _doubt(self, blocks: Any) -> None:
        self._levels.low[blocks], self._levels.doubtful[blocks] = 0.0, True
