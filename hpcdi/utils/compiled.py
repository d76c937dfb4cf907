"""The inner loops of `utils.kernels`, compiled by numba: the same additions, the same results.

Importing this fails where numba is not installed. The first use compiles, which takes seconds, and
keeps the code in numba's cache for later runs.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from hpcdi.types import Array


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
def _search(top: Any, mass: Any) -> Any:
    nodes, left = np.empty(len(mass), np.int64), np.empty_like(mass)
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
    return nodes, left


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
def _descend(groups: Any, nodes: Any, mass: Any) -> Any:
    children, left = np.empty_like(nodes), np.empty_like(mass)
    near = np.empty((len(nodes), 16))
    for m in range(len(nodes)):  # fetched first: many cache misses are under way at once
        for k in range(16):
            near[m, k] = groups[nodes[m], k]
    for m in range(len(nodes)):
        node, goal = nodes[m], mass[m]
        running, before, child = 0.0, 0.0, 0
        for k in range(16):  # no branches to foretell
            running += near[m, k]
            passed = running <= goal
            before = running if passed else before
            child += passed
        if child == 16:  # rounding: back to the last child that holds anything
            child = 15
            while child > 0 and groups[node, child] == 0:
                child -= 1
            before = 0.0
            for k in range(child):
                before += np.float64(groups[node, k])
        children[m], left[m] = node * 16 + child, goal - before
    return children, left


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _mark_drawn(marks: Any, slots: Any, newest: int, now: int) -> Any:
    count, capacity = len(slots), len(marks)
    use, staleness = np.empty(count, np.int32), np.empty(count, np.int64)
    ids = np.empty(count, np.int64)
    for k in range(count):
        marks[slots[k], 0] += 1
    for k in range(count):
        use[k], made = marks[slots[k], 0], marks[slots[k], 1]
        staleness[k] = now - made if made >= 0 else -1
        ids[k] = newest - (newest - slots[k]) % capacity
    return use, staleness, ids


class CompiledKernels:
    """See `NumpyKernels`."""

    def mark_drawn(self, marks: Array, slots: Array, newest: int, now: int) -> Any:
        """See `NumpyKernels.mark_drawn`."""
        return _mark_drawn(marks, slots, newest, now)

    def write(self, leaves: Array, at: Array, mass: Array, low: Array, doubtful: Array) -> None:
        """See `NumpyKernels.write`."""
        _write(leaves, at, mass.reshape(-1), low, doubtful)

    def search(self, top: Array, mass: Array) -> tuple[Array, Array]:
        """See `NumpyKernels.search`."""
        nodes, left = _search(top, mass)
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
        children, left = _descend(groups, nodes, mass)
        return children, left
