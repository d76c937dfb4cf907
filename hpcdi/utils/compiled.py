"""The inner loops of `utils.kernels`, compiled by numba: the same additions, the same results.

Importing this fails where numba is not installed. The first use compiles, which takes seconds, and
keeps the code in numba's cache for later runs.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from hpcdi.types import Array
from hpcdi.utils.kernels import Levels

_SIDE_BY_SIDE = 32


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _write(
    leaves: Any, upper: Any, starts: Any, low: Any, doubtful: Any, at: Any, mass: Any
) -> None:
    for k in range(len(at)):
        leaf, new = at[k], mass[k] if len(mass) > 1 else mass[0]
        block = leaf >> 12
        if leaves[leaf] <= low[block]:
            doubtful[block] = True
        if 0 < new < low[block]:
            low[block] = new
        leaves[leaf] = new
    _resum(leaves, upper, starts, at)


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _resum(leaves: Any, upper: Any, starts: Any, changed: Any) -> None:
    _resum_level(leaves, changed, 4, upper[: starts[1]])
    for level in range(1, len(starts) - 1):
        below, sums = upper[starts[level - 1] :], upper[starts[level] :]
        _resum_level(below, changed, 4 * level + 4, sums)


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _resum_level(masses: Any, changed: Any, shift: int, sums: Any) -> None:
    half = np.empty(8)
    before = -1
    for k in range(len(changed)):
        node = changed[k] >> shift
        if node == before:
            continue
        before = node
        first = node * 16
        for k in range(8):
            half[k] = np.float64(masses[first + k]) + np.float64(masses[first + k + 8])
        for k in range(4):
            half[k] += half[k + 4]
        half[0] += half[2]
        half[1] += half[3]
        sums[node] = half[0] + half[1]


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _draw(
    leaves: Any, upper: Any, starts: Any, top: Any, low: Any, doubtful: Any,
    uniforms: Any, nodes: Any, left: Any, masses: Any,
) -> Any:  # fmt: skip
    levels, count = len(starts) - 1, len(uniforms)
    running, first = 0.0, starts[levels - 1]
    for k in range(len(top) - 1):
        running += upper[first + k]
        top[k + 1] = running
    each = running / count
    for k in range(count):
        left[k] = (uniforms[k] + k) * each
    _search(top, nodes, left)
    for level in range(levels - 1, 0, -1):
        _descend(upper[starts[level - 1] :], nodes, left)
    _descend(leaves, nodes, left)
    for k in range(count):
        masses[k] = leaves[nodes[k]]
    return running, _smallest(leaves, low, doubtful)


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _smallest(leaves: Any, low: Any, doubtful: Any) -> Any:
    while True:
        block = 0
        for k in range(1, len(low)):
            if low[k] < low[block]:
                block = k
        if not doubtful[block]:
            return low[block]
        low[block], doubtful[block] = np.inf, False
        for k in range(block << 12, min((block + 1) << 12, len(leaves))):
            if 0 < leaves[k] < low[block]:
                low[block] = leaves[k]


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _search(top: Any, nodes: Any, left: Any) -> None:
    last = len(top) - 2
    while last > 0 and top[last] == top[last + 1]:
        last -= 1
    node = 0
    for k in range(len(left)):
        goal = left[k]
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
def _descend(masses: Any, nodes: Any, left: Any) -> None:
    near, goal = np.empty((16, _SIDE_BY_SIDE)), np.empty(_SIDE_BY_SIDE)
    for start in range(0, len(nodes), _SIDE_BY_SIDE):
        count = min(_SIDE_BY_SIDE, len(nodes) - start)
        for m in range(count):
            goal[m] = left[start + m]
            for k in range(16):
                near[k, m] = masses[nodes[start + m] * 16 + k]
        running, before = np.zeros(_SIDE_BY_SIDE), np.zeros(_SIDE_BY_SIDE)
        passed = np.zeros(_SIDE_BY_SIDE)
        for k in range(16):
            for m in range(_SIDE_BY_SIDE):  # several in one instruction
                running[m] += near[k, m]
                passes = running[m] <= goal[m]
                before[m] = running[m] if passes else before[m]
                passed[m] += 1.0 if passes else 0.0
        for m in range(count):
            first, child = nodes[start + m] * 16, int(passed[m])
            if child == 16:  # rounding: back to the last child that holds anything
                child = 15
                while child > 0 and masses[first + child] == 0:
                    child -= 1
                before[m] = 0.0
                for k in range(child):
                    before[m] += np.float64(masses[first + k])
            nodes[start + m], left[start + m] = first + child, goal[m] - before[m]


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

    def write(self, levels: Levels, at: Array, mass: Array) -> None:
        """See `NumpyKernels.write`."""
        _write(
            levels.leaves, levels.upper, levels.starts, levels.low, levels.doubtful,
            at, mass.reshape(-1),
        )  # fmt: skip

    def resum(self, levels: Levels, changed: Array) -> None:
        """See `NumpyKernels.resum`."""
        _resum(levels.leaves, levels.upper, levels.starts, changed)

    def draw(self, levels: Levels, uniforms: Array) -> tuple[Array, Array, float, float]:
        """See `NumpyKernels.draw`."""
        count = len(uniforms)
        nodes, left = np.empty(count, np.int64), np.empty(count)
        masses = np.empty(count, np.float32)
        total, smallest = _draw(
            levels.leaves, levels.upper, levels.starts, levels.top, levels.low, levels.doubtful,
            uniforms, nodes, left, masses,
        )  # fmt: skip
        return nodes, masses, total, smallest
