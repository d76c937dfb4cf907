"""The inner loops of `utils.kernels`, compiled by numba: the same additions, the same results.

Importing this fails where numba is not installed. The first use compiles, which takes seconds, and
keeps the code in numba's cache for later runs.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from hpcdi.types import Array

_SIDE_BY_SIDE = 32


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _write(leaves: Any, at: Any, mass: Any, low: Any, doubtful: Any) -> None:
    for k in range(len(at)):
        leaf, new = at[k], mass[k] if len(mass) > 1 else mass[0]
        block = leaf >> 12
        if leaves[leaf] <= low[block]:
            doubtful[block] = True
        if 0 < new < low[block]:
            low[block] = new
        leaves[leaf] = new


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _search(top: Any, mass: Any, nodes: Any, left: Any) -> None:
    last = len(top) - 2
    while last > 0 and top[last] == top[last + 1]:
        last -= 1
    node = 0
    for k in range(len(mass)):
        goal = mass[k]
        if goal < top[node]:  # they mostly ascend; if not, begin again
            node = 0
        step = 1
        while node + step < last and top[node + step] <= goal:
            step *= 2
        high = min(node + step, last)
        while node < high:
            middle = (node + high) // 2
            if top[middle + 1] <= goal:
                node = middle + 1
            else:
                high = middle
        nodes[k], left[k] = node, goal - top[node]


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _resum(groups: Any, nodes: Any, sums: Any) -> None:
    half = np.empty(8)
    before = -1
    for node in nodes:
        if node == before:
            continue
        before = node
        for k in range(8):
            half[k] = np.float64(groups[node, k]) + np.float64(groups[node, k + 8])
        for k in range(4):
            half[k] += half[k + 4]
        half[0] += half[2]
        half[1] += half[3]
        sums[node] = half[0] + half[1]


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _running_sum(masses: Any, out: Any) -> None:
    running = 0.0
    for k in range(len(masses)):
        running += np.float64(masses[k])
        out[k + 1] = running


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _descend(groups: Any, nodes: Any, mass: Any, children: Any, left: Any) -> None:
    near, goal = np.empty((16, _SIDE_BY_SIDE)), np.empty(_SIDE_BY_SIDE)
    for start in range(0, len(nodes), _SIDE_BY_SIDE):
        count = min(_SIDE_BY_SIDE, len(nodes) - start)
        for m in range(count):
            goal[m] = mass[start + m]
            for k in range(16):
                near[k, m] = groups[nodes[start + m], k]
        running, before = np.zeros(_SIDE_BY_SIDE), np.zeros(_SIDE_BY_SIDE)
        passed = np.zeros(_SIDE_BY_SIDE)
        for k in range(16):
            for m in range(_SIDE_BY_SIDE):  # several in one instruction
                running[m] += near[k, m]
                passes = running[m] <= goal[m]
                before[m] = running[m] if passes else before[m]
                passed[m] += 1.0 if passes else 0.0
        for m in range(count):
            node, child = nodes[start + m], int(passed[m])
            if child == 16:  # rounding: back to the last child that holds anything
                child = 15
                while child > 0 and groups[node, child] == 0:
                    child -= 1
                before[m] = 0.0
                for k in range(child):
                    before[m] += np.float64(groups[node, k])
            children[start + m], left[start + m] = node * 16 + child, goal[m] - before[m]


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _mark_drawn(
    marks: Any, slots: Any, newest: int, now: int, use: Any, staleness: Any, ids: Any
) -> None:
    count, capacity = len(slots), len(marks)
    for k in range(count):
        marks[slots[k], 0] += 1
    for k in range(count):
        use[k], made = marks[slots[k], 0], marks[slots[k], 1]
        staleness[k] = now - made if made >= 0 else -1
        ids[k] = newest - (newest - slots[k]) % capacity


class CompiledKernels:
    """See `NumpyKernels`. Results are made here: an array that numba makes costs more."""

    def mark_drawn(
        self, marks: Array, slots: Array, newest: int, now: int
    ) -> tuple[Array, Array, Array]:
        """See `NumpyKernels.mark_drawn`."""
        count = len(slots)
        use, staleness = np.empty(count, np.int32), np.empty(count, np.int64)
        ids = np.empty(count, np.int64)
        _mark_drawn(marks, slots, newest, now, use, staleness, ids)
        return use, staleness, ids

    def write(self, leaves: Array, at: Array, mass: Array, low: Array, doubtful: Array) -> None:
        """See `NumpyKernels.write`."""
        _write(leaves, at, mass.reshape(-1), low, doubtful)

    def search(self, top: Array, mass: Array) -> tuple[Array, Array]:
        """See `NumpyKernels.search`."""
        nodes, left = np.empty(len(mass), np.int64), np.empty(len(mass))
        _search(top, mass, nodes, left)
        return nodes, left

    def resum(self, groups: Array, nodes: Array, sums: Array) -> None:
        """See `NumpyKernels.resum`."""
        _resum(groups, nodes, sums)

    def running_sum(self, masses: Array, out: Array) -> None:
        """See `NumpyKernels.running_sum`."""
        _running_sum(masses, out)

    def descend(
        self,
        groups: Array,
        nodes: Array,
        mass: Array,
        is_last: bool = False,  # noqa: ARG002
    ) -> tuple[Array, Array]:
        """See `NumpyKernels.descend`."""
        children, left = np.empty(len(nodes), np.int64), np.empty(len(nodes))
        _descend(groups, nodes, mass, children, left)
        return children, left
