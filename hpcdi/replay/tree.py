"""Draws in proportion to an array of masses that changes, whole batches at a time.

A tree of fan-out 16 over `capacity` leaves; its top level, of at most 4,096 nodes, has no parent. A
batch of m updates or draws passes through the levels together, so a level costs a few array
operations, whatever m is: a million leaves are three levels. Leaves are float32 (sixteen of them
are one cache line), sums float64.

The order of every addition is fixed, so equal leaves have equal sums and equal draws: whether they
were set one by one, in batches or from a snapshot, and whether numpy does the work (`PriorityTree`)
or, where numba is installed, compiled loops (`CompiledTree`). The first use of a compiled loop
takes seconds; numba caches the code for later runs. Importing this module imports numba, so only
buffers that draw by priority do.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

from hpcdi.types import Array

try:
    from numba import njit
except ImportError:
    njit = None

TOP_NODES = 4096
FAN_OUT = 16
GROUP_SHIFT = 4  # leaf or node index >> 4: its parent
BLOCK_SHIFT = 12  # leaf index >> 12: the block whose smallest leaf is tracked
_FEW = 160
"""Below so many draws numpy's own running sum is faster than fifteen additions."""
_SIDE_BY_SIDE = 32
"""Draws that a compiled loop takes down a level together: their additions fill vector registers."""

Indices = npt.NDArray[np.int64]
Loop = TypeVar("Loop", bound=Callable[..., object])


class PriorityTree:
    """Masses of `capacity` leaves: their sum, the smallest positive one, draws in proportion.

    Args:
        capacity: leaves, all of mass 0 at first.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        sizes = [-(-capacity // FAN_OUT)]
        self._leaves = np.zeros(sizes[0] * FAN_OUT, np.float32)  # in whole groups of 16
        while sizes[-1] > TOP_NODES:
            sizes.append(-(-sizes[-1] // FAN_OUT))
        sizes[:-1] = [parents * FAN_OUT for parents in sizes[1:]]
        self._starts: Indices = np.cumsum([0, *sizes])  # of each level of sums, and the end
        self._upper = np.zeros(self._starts[-1])  # all levels of sums, one after the other
        self._sums = [self._upper[start:stop] for start, stop in itertools.pairwise(self._starts)]
        self._groups = [a.reshape(-1, FAN_OUT) for a in (self._leaves, *self._sums[:-1])]
        self._top = np.zeros(sizes[-1] + 1)  # running sum of the last level, from 0
        # The smallest positive leaf of every block, or a lower bound where it is doubtful: only
        # blocks that could hold the overall minimum are searched again, when it is asked for.
        blocks = -(-len(self._leaves) // (1 << BLOCK_SHIFT))
        self._low = np.full(blocks, np.inf, np.float32)
        self._doubtful = np.zeros(blocks, bool)
        self._stale: list[int] = []  # leaves set one by one, whose parents are not updated yet

    @property
    def leaves(self) -> Array:
        """Masses of all leaves, float32 [capacity]: a read-only view by contract."""
        return self._leaves[: self.capacity]

    def set(self, leaves: Indices, mass: Array | float) -> None:
        """Set leaves [m] to masses [m] or to one mass; of equal leaves the last one counts."""
        if len(leaves):
            self._write(leaves, np.asarray(mass, dtype=np.float32))

    def set_one(self, leaf: int, mass: float) -> None:
        """Set one leaf; sums are updated at the next draw."""
        self._leaves[leaf] = mass
        self._stale.append(leaf)

    def fill(self, mass: Array) -> None:
        """Set all leaves to masses [capacity]."""
        self._leaves[: self.capacity] = mass
        self._stale = []
        self._doubt(slice(None))
        self._resum(np.arange(0, self.capacity, FAN_OUT))

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
            self._resum(leaves)
        return self._draw(uniforms)

    def _doubt(self, blocks: Indices | slice) -> None:
        self._low[blocks], self._doubtful[blocks] = 0.0, True

    def _write(self, at: Indices, mass: Array) -> None:
        """Set leaves [m] to masses (float32, [m] or one), and all sums above them."""
        leaves, low = self._leaves, self._low
        blocks = at >> BLOCK_SHIFT
        lows = low.take(blocks)
        smallest = leaves.take(at) <= lows
        leaves[at] = mass
        new = leaves.take(at)  # of equal indices, the last mass
        smaller = new < lows
        if np.count_nonzero(smallest):  # few, if any, in most batches: they cost less than asking
            self._doubtful[blocks[smallest]] = True
        if np.count_nonzero(smaller):
            smaller &= new > 0
            np.minimum.at(low, blocks[smaller], new[smaller])
        self._resum(at)

    def _resum(self, changed: Indices) -> None:
        """Recompute all sums above leaves [m]."""
        for groups, sums in zip(self._groups, self._sums, strict=True):
            changed = _without_repeats(changed >> GROUP_SHIFT)
            part = np.empty((FAN_OUT, len(changed)))
            part[:] = groups.take(changed, 0).T
            for half in (8, 4, 2):
                np.add(part[:half], part[half : 2 * half], part[:half])
            sums[changed] = part[0] + part[1]

    def _draw(self, uniforms: Array) -> tuple[Indices, Array, float, float]:
        top, count = self._top, len(uniforms)
        np.add.accumulate(self._sums[-1], out=top[1:])
        total = top[-1]
        left = uniforms + _strata(count)
        left *= total / count
        last = max(0, top.searchsorted(total) - 1)  # the last node that holds anything
        nodes = np.minimum(top[1:].searchsorted(left, side="right"), last)
        left -= top.take(nodes)
        for groups in self._groups[:0:-1]:
            nodes, left = _descend(groups, nodes, left)
        nodes, _ = _descend(self._groups[0], nodes, left)
        return nodes, self._leaves.take(nodes), float(total), self._smallest()

    def _smallest(self) -> float:
        low, doubtful = self._low, self._doubtful
        while doubtful[(block := int(low.argmin()))]:
            leaves = self._leaves[block << BLOCK_SHIFT : (block + 1) << BLOCK_SHIFT]
            low[block] = np.where(leaves > 0, leaves, np.float32(np.inf)).min()
            doubtful[block] = False
        return float(low[block])


class CompiledTree(PriorityTree):
    """The same tree with compiled loops; results are equal to the last bit.

    Result arrays are made here, because an array that numba allocates costs more.
    """

    def _write(self, at: Indices, mass: Array) -> None:
        _write_loop(
            self._leaves, self._upper, self._starts, self._low, self._doubtful, at, mass.reshape(-1)
        )

    def _resum(self, changed: Indices) -> None:
        _resum_loop(self._leaves, self._upper, self._starts, changed)

    def _draw(self, uniforms: Array) -> tuple[Indices, Array, float, float]:
        count = len(uniforms)
        nodes, left = np.empty(count, np.int64), np.empty(count)
        masses = np.empty(count, np.float32)
        total, smallest = _draw_loop(
            self._leaves,
            self._upper,
            self._starts,
            self._top,
            self._low,
            self._doubtful,
            uniforms,
            nodes,
            left,
            masses,
        )
        return nodes, masses, total, smallest


def new_tree(capacity: int) -> PriorityTree:
    """Returns the fastest tree that this installation has."""
    return PriorityTree(capacity) if njit is None else CompiledTree(capacity)


def _descend(groups: Array, nodes: Indices, goals: Array) -> tuple[Indices, Array]:
    """From nodes [m] to the children at which the running sum passes `goals` [m].

    Returns the children, and how much is left to pass below them.
    """
    count = len(nodes)
    before = np.empty((FAN_OUT + 1, count))
    before[0] = 0.0
    sums = before[1:]
    sums[:] = groups.take(nodes, 0).T
    if count < _FEW:  # one operation strides through memory, fifteen do not
        np.add.accumulate(sums, axis=0, out=sums)
    else:
        for left, right in itertools.pairwise(sums):
            np.add(left, right, right)
    passes = sums <= goals
    passed = np.add.reduce(passes.view(np.int8), axis=0, dtype=np.int8).astype(np.int64)
    if np.count_nonzero(passes[-1]):
        # rounding: the sum of a node and that of its children are a hair apart
        beyond = np.flatnonzero(passes[-1])
        passed[beyond] = _last_positive(groups[nodes[beyond]])
    children = nodes * FAN_OUT
    children += passed
    passed *= count
    passed += np.arange(count)
    return children, goals - before.reshape(-1).take(passed)


@functools.lru_cache(maxsize=16)
def _strata(count: int) -> Array:
    """Starts of strata of mass 1, float64 [count], read-only."""
    starts = np.arange(count, dtype=np.float64)
    starts.flags.writeable = False
    return starts


def _last_positive(groups: Array) -> Indices:
    """The last child of each group [m, 16] whose mass is not 0; the first where all are."""
    last: Indices = ((groups > 0) * np.arange(FAN_OUT)).max(axis=1)
    return last


def _without_repeats(indices: Indices) -> Indices:
    """Drop equal neighbours, where there are likely many: of leaves that were set in a row."""
    if not 0 <= indices[-1] - indices[0] < len(indices) - 1:
        return indices
    keep = np.empty(indices.shape, dtype=bool)
    keep[0] = True
    np.not_equal(indices[1:], indices[:-1], out=keep[1:])
    return indices[keep]


def _jit(loop: Loop) -> Loop:
    """The loop, compiled where numba is installed; it keeps the code where it finds a place."""
    if njit is None:
        return loop
    try:
        return cast(Loop, njit(cache=True)(loop))
    except RuntimeError:  # packages that nobody may write to, and no home folder
        return cast(Loop, njit(loop))


@_jit
def _write_loop(
    leaves: Array, upper: Array, starts: Array, low: Array, doubtful: Array, at: Array, mass: Array
) -> None:
    for k in range(len(at)):
        leaf, new = at[k], mass[k] if len(mass) > 1 else mass[0]
        block = leaf >> BLOCK_SHIFT
        if leaves[leaf] <= low[block]:
            doubtful[block] = True
        if 0 < new < low[block]:
            low[block] = new
        leaves[leaf] = new
    _resum_loop(leaves, upper, starts, at)


@_jit
def _resum_loop(leaves: Array, upper: Array, starts: Array, changed: Array) -> None:
    _resum_level_loop(leaves, changed, GROUP_SHIFT, upper[: starts[1]])
    for level in range(1, len(starts) - 1):
        below, sums = upper[starts[level - 1] :], upper[starts[level] :]
        _resum_level_loop(below, changed, GROUP_SHIFT * (level + 1), sums)


@_jit
def _resum_level_loop(masses: Array, changed: Array, shift: int, sums: Array) -> None:
    half = np.empty(8)
    before = -1
    for k in range(len(changed)):
        node = changed[k] >> shift
        if node == before:
            continue
        before = node
        first = node * FAN_OUT
        for k in range(8):
            half[k] = np.float64(masses[first + k]) + np.float64(masses[first + k + 8])
        for k in range(4):
            half[k] += half[k + 4]
        half[0] += half[2]
        half[1] += half[3]
        sums[node] = half[0] + half[1]


@_jit
def _draw_loop(
    leaves: Array,
    upper: Array,
    starts: Array,
    top: Array,
    low: Array,
    doubtful: Array,
    uniforms: Array,
    nodes: Array,
    left: Array,
    masses: Array,
) -> tuple[float, float]:
    levels, count = len(starts) - 1, len(uniforms)
    running, first = 0.0, starts[levels - 1]
    for k in range(len(top) - 1):
        running += upper[first + k]
        top[k + 1] = running
    each = running / count
    for k in range(count):
        left[k] = (uniforms[k] + k) * each
    _search_loop(top, nodes, left)
    for level in range(levels - 1, 0, -1):
        _descend_loop(upper[starts[level - 1] :], nodes, left)
    _descend_loop(leaves, nodes, left)
    for k in range(count):
        masses[k] = leaves[nodes[k]]
    return running, _smallest_loop(leaves, low, doubtful)


@_jit
def _smallest_loop(leaves: Array, low: Array, doubtful: Array) -> float:
    while True:
        block = 0
        for k in range(1, len(low)):
            if low[k] < low[block]:
                block = k
        if not doubtful[block]:
            return float(low[block])
        low[block], doubtful[block] = np.inf, False
        for k in range(block << BLOCK_SHIFT, min((block + 1) << BLOCK_SHIFT, len(leaves))):
            if 0 < leaves[k] < low[block]:
                low[block] = leaves[k]


@_jit
def _search_loop(top: Array, nodes: Array, left: Array) -> None:
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


@_jit
def _descend_loop(masses: Array, nodes: Array, left: Array) -> None:
    near, goal = np.empty((FAN_OUT, _SIDE_BY_SIDE)), np.empty(_SIDE_BY_SIDE)
    for start in range(0, len(nodes), _SIDE_BY_SIDE):
        count = min(_SIDE_BY_SIDE, len(nodes) - start)
        for m in range(count):
            goal[m] = left[start + m]
            for k in range(FAN_OUT):
                near[k, m] = masses[nodes[start + m] * FAN_OUT + k]
        running, before = np.zeros(_SIDE_BY_SIDE), np.zeros(_SIDE_BY_SIDE)
        passed = np.zeros(_SIDE_BY_SIDE)
        for k in range(FAN_OUT):
            for m in range(_SIDE_BY_SIDE):  # several in one instruction
                running[m] += near[k, m]
                passes = running[m] <= goal[m]
                before[m] = running[m] if passes else before[m]
                passed[m] += 1.0 if passes else 0.0
        for m in range(count):
            first, child = nodes[start + m] * FAN_OUT, int(passed[m])
            if child == FAN_OUT:  # rounding: back to the last child that holds anything
                child = FAN_OUT - 1
                while child > 0 and masses[first + child] == 0:
                    child -= 1
                before[m] = 0.0
                for k in range(child):
                    before[m] += np.float64(masses[first + k])
            nodes[start + m], left[start + m] = first + child, goal[m] - before[m]


@_jit
def _mark_drawn_loop(
    marks: Array, slots: Array, newest: int, now: int, use: Array, staleness: Array, ids: Array
) -> None:
    count, capacity = len(slots), len(marks)
    for k in range(count):
        marks[slots[k], 0] += 1
    for k in range(count):
        use[k], made_at = marks[slots[k], 0], marks[slots[k], 1]
        staleness[k] = now - made_at if made_at >= 0 else -1
        ids[k] = newest - (newest - slots[k]) % capacity


def mark_drawn_compiled(
    marks: Array, slots: Indices, newest: int, now: int
) -> tuple[Array, Array, Indices]:
    """`samplers.mark_drawn`, compiled."""
    count = len(slots)
    use, staleness = np.empty(count, np.int32), np.empty(count, np.int64)
    ids = np.empty(count, np.int64)
    _mark_drawn_loop(marks, slots, newest, now, use, staleness, ids)
    return use, staleness, ids
