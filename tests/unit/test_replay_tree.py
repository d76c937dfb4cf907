"""The priority tree against plain sums and minima; numpy against compiled loops."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdi.replay import tree as priority_tree
from hpcdi.replay.samplers import mark_drawn
from hpcdi.replay.tree import (
    CompiledTree,
    PriorityTree,
    mark_drawn_compiled,
    new_tree,
)
from hpcdi.types import Array

QUICK = settings(deadline=None, max_examples=60)
KINDS = pytest.mark.parametrize("kind", [PriorityTree, CompiledTree], ids=["numpy", "numba"])

# multiples of 1/8: their sums are exact, so == is allowed
masses = st.integers(0, 400).map(lambda n: n / 8)
Batches = list[tuple[list[int], list[float]]]


@pytest.fixture(autouse=True)
def _small_top(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few leaves are enough for three levels."""
    monkeypatch.setattr(priority_tree, "TOP_NODES", 2)


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, Batches]:
    """A capacity and batches of updates; indices repeat often, within a batch too."""
    capacity = draw(st.integers(1, 300))
    pairs = st.lists(st.tuples(st.integers(0, capacity - 1), masses), max_size=90)
    batches = draw(st.lists(pairs, max_size=4))
    return capacity, [([i for i, _ in batch], [v for _, v in batch]) for batch in batches]


def indices(values: list[int]) -> Array:
    return np.array(values, dtype=np.int64)


def smallest(leaves: list[float]) -> float:
    return min((mass for mass in leaves if mass > 0), default=np.inf)


@KINDS
def test_sums_and_minima_are_those_of_a_plain_list(kind: Any) -> None:
    @QUICK
    @given(histories())
    def check(history: tuple[int, Batches]) -> None:
        capacity, batches = history
        tree, one_by_one = kind(capacity), kind(capacity)
        leaves = [0.0] * capacity
        for where, what in batches:
            tree.set(indices(where), np.array(what))
            for index, value in zip(where, what, strict=True):
                leaves[index] = value
                one_by_one.set_one(index, value)
            for each in (tree, one_by_one):
                assert each.leaves.tolist() == leaves
                *_, total, least = each.draw(np.zeros(1))
                assert (total, least) == (sum(leaves), smallest(leaves))

    check()


@KINDS
def test_a_draw_gives_the_leaf_at_which_the_running_sum_passes_its_goal(kind: Any) -> None:
    @QUICK
    @given(st.lists(masses, min_size=1, max_size=300), st.integers(1, 400), st.integers(0, 2**32))
    def check(leaves: list[float], count: int, seed: int) -> None:
        if sum(leaves) == 0:
            return
        tree = kind(len(leaves))
        tree.fill(np.array(leaves))
        uniforms = np.random.default_rng(seed).integers(0, 8, count) / 8  # goals that meet sums
        found, mass, total, _ = tree.draw(uniforms)
        goals = (uniforms + np.arange(count)) * (total / count)
        expected = np.searchsorted(np.cumsum(leaves), goals, side="right")
        assert found.tolist() == expected.tolist()
        assert mass.tolist() == [leaves[leaf] for leaf in expected]

    check()


@KINDS
@pytest.mark.parametrize("capacity", [1, 15, 16, 17, 31, 33, 255, 256, 257, 5000])
def test_no_leaf_of_mass_zero_is_drawn(kind: Any, capacity: int) -> None:
    """Masses that no float64 holds exactly, and goals at and beyond the sum: rounding is here."""
    rng = np.random.default_rng(capacity)
    mass = (rng.random(capacity) * 10.0 ** rng.integers(-6, 6, capacity)).astype(np.float32)
    mass[rng.random(capacity) < 0.5] = 0.0
    mass[capacity // 2] = 0.1
    tree = kind(capacity)
    tree.fill(mass)
    for last in (np.nextafter(1.0, 0.0), 1.0, np.nextafter(1.0, 2.0)):
        for uniforms in (np.append(rng.random(500), last), np.array([last]), np.zeros(1)):
            found, masses, *_ = tree.draw(uniforms)
            assert (masses > 0).all()
            assert tree.leaves[found].tolist() == masses.tolist()


def test_both_kinds_of_tree_agree_to_the_last_bit() -> None:
    """And so do leaves that were set one by one, in batches, and at once."""
    rng = np.random.default_rng(3)
    size = 40_000
    trees = [PriorityTree(size), CompiledTree(size)]
    singly = PriorityTree(size)
    for _ in range(20):
        where = rng.integers(0, size, rng.integers(1, 400))
        what = rng.random(len(where)) * (rng.random(len(where)) < 0.9)
        for tree in trees:
            tree.set(where, what)
        for index, value in zip(where.tolist(), what.tolist(), strict=True):
            singly.set_one(index, value)
    filled = CompiledTree(size)
    filled.fill(singly.leaves)
    for count in (1, 100, 5000):
        uniforms = rng.random(count)
        first, *others = [tree.draw(uniforms) for tree in (*trees, singly, filled)]
        for other in others:
            assert other[2:] == first[2:]
            assert all((a == b).all() for a, b in zip(first[:2], other[:2], strict=True))


@pytest.mark.parametrize("newest", [6, 7, 40])
def test_both_mark_draws_alike(newest: int) -> None:
    """Of eight slots, some drawn twice: their uses, ages and ids are those of plain arithmetic."""
    slots = indices([3, 0, 3, 6, 5])
    made = np.array([4, -1, 2, 9, 0, -1, 7, 12])
    here = {n % 8: n for n in range(newest - 7, newest + 1)}
    for mark in (mark_drawn, mark_drawn_compiled):
        marks = np.stack([np.full(8, 10), made], axis=1).astype(np.int32)
        use, staleness, ids = mark(marks, slots, newest, 10)
        assert use.tolist() == [12, 11, 12, 11, 11]
        assert staleness.tolist() == [1, 6, 1, 3, -1]
        assert ids.tolist() == [here[slot] for slot in slots.tolist()]
        assert marks[:, 0].tolist() == [11, 10, 10, 12, 10, 11, 11, 10]


def test_without_numba_numpy_does_it() -> None:
    program = (
        "import sys; sys.modules['numba'] = None\n"
        "from hpcdi.replay.tree import new_tree\n"
        "print(type(new_tree(5)).__name__)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "PriorityTree"
    assert isinstance(new_tree(5), CompiledTree)


def test_loops_are_compiled_where_there_is_no_place_for_numbas_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Packages that nobody may write to, and no home folder."""

    def njit(*loops: object, cache: bool = False) -> object:
        if cache:
            raise RuntimeError("cannot cache function 'x': no locator available for file 'x.py'")
        return ("compiled", *loops)

    monkeypatch.setattr(priority_tree, "njit", njit)
    assert priority_tree._jit(len) == ("compiled", len)
