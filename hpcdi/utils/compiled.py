"""The inner loops of `utils.segment_tree`, compiled by numba: the same additions, the same results.

Importing this fails where numba is not installed. The first use compiles, which takes seconds, and
keeps the code in numba's cache for later runs.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from hpcdi.types import Array


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _resum(groups: Any, lows: Any, nodes: Any, sums: Any, mins: Any) -> None:
    half = np.empty(8)
    for node in nodes:
        group = groups[node]
        for k in range(8):
            half[k] = np.float64(group[k]) + np.float64(group[k + 8])
        for k in range(4):
            half[k] += half[k + 4]
        half[0] += half[2]
        half[1] += half[3]
        sums[node] = half[0] + half[1]
        low = np.float32(np.inf)
        for k in range(16):
            if 0 < lows[node, k] < low:
                low = lows[node, k]
        mins[node] = low


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _descend(groups: Any, nodes: Any, mass: Any) -> Any:
    children, left = np.empty_like(nodes), np.empty_like(mass)
    for k in range(len(nodes)):
        group, goal = groups[nodes[k]], mass[k]
        before, running, child = 0.0, np.float64(group[0]), 0
        while running <= goal and child < 15:
            child += 1
            before = running
            running += np.float64(group[child])
        if running <= goal:  # rounding: back to the last child that holds anything
            while child > 0 and group[child] == 0:
                child -= 1
            before = 0.0
            for earlier in range(child):
                before += np.float64(group[earlier])
        children[k], left[k] = nodes[k] * 16 + child, goal - before
    return children, left


class CompiledKernels:
    """See `NumpyKernels`."""

    def resum(self, groups: Array, lows: Array, nodes: Array, sums: Array, mins: Array) -> None:
        """See `NumpyKernels.resum`."""
        _resum(groups, lows, nodes, sums, mins)

    def descend(self, groups: Array, nodes: Array, mass: Array) -> tuple[Array, Array]:
        """See `NumpyKernels.descend`."""
        children, left = _descend(groups, nodes, mass)
        return children, left
