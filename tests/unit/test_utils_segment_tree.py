"""Segment trees against plain sums and minima."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdi.types import Array
from hpcdi.utils.segment_tree import MinTree, SumTree

QUICK = settings(deadline=None, max_examples=60)

# multiples of 1/8: their sums are exact, so == is allowed
masses = st.integers(0, 400).map(lambda n: n / 8)
capacities = st.integers(1, 70)


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[tuple[list[int], list[float]]]]:
    """A capacity and batches of updates; indices repeat often, within a batch too."""
    capacity = draw(capacities)
    pairs = st.lists(st.tuples(st.integers(0, capacity - 1), masses), max_size=90)
    batches = draw(st.lists(pairs, max_size=4))
    return capacity, [([i for i, _ in batch], [v for _, v in batch]) for batch in batches]


def indices(values: list[int]) -> Array:
    return np.array(values, dtype=np.int64)


@QUICK
@given(histories())
def test_sums_and_minima_are_those_of_a_plain_list(
    history: tuple[int, list[tuple[list[int], list[float]]]],
) -> None:
    capacity, batches = history
    sum_tree, min_tree = SumTree(capacity), MinTree(capacity)
    sums, minima = [0.0] * capacity, [np.inf] * capacity
    for where, what in batches:
        sum_tree.update(indices(where), np.array(what))
        min_tree.update(indices(where), np.array(what))
        for index, value in zip(where, what, strict=True):
            sums[index] = minima[index] = value
        assert sum_tree.values.tolist() == sums
        assert min_tree.values.tolist() == minima
        assert sum_tree.reduce() == sum(sums)
        assert min_tree.reduce() == min(minima)


@QUICK
@given(st.lists(masses, min_size=1, max_size=70), st.data())
def test_find_gives_the_leaf_at_which_the_running_sum_passes(
    leaves: list[float], data: st.DataObject
) -> None:
    total = sum(leaves)
    if total == 0:
        return
    tree = SumTree(len(leaves))
    tree.fill(np.array(leaves))
    asked = np.array(
        data.draw(st.lists(st.floats(0, total, exclude_max=True), min_size=1, max_size=20))
    )
    expected = np.searchsorted(np.cumsum(leaves), asked, side="right")
    assert tree.find(asked).tolist() == expected.tolist()


@QUICK
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=70), st.integers(0, 2**32 - 1))
def test_find_never_gives_a_leaf_without_mass(leaves: list[float], seed: int) -> None:
    """Whatever rounding does, and for the total mass itself too."""
    tree = SumTree(len(leaves))
    tree.update(np.arange(len(leaves)), np.array(leaves))
    if tree.reduce() == 0:
        return
    drawn = np.random.default_rng(seed).random(200) * tree.reduce()
    edges = np.append(np.cumsum(leaves), [0.0, tree.reduce()])
    asked = np.concatenate([drawn, edges[edges <= tree.reduce()]])
    assert (tree.values[tree.find(asked)] > 0).all()


@QUICK
@given(st.lists(masses, min_size=1, max_size=70))
def test_fill_is_an_update_of_all_leaves(leaves: list[float]) -> None:
    filled, updated = SumTree(len(leaves)), SumTree(len(leaves))
    filled.update(np.arange(len(leaves)), 99.0)  # an old state that must go
    filled.fill(np.array(leaves))
    updated.update(np.arange(len(leaves)), np.array(leaves))
    assert filled.reduce() == updated.reduce()
    assert filled.values.tolist() == leaves
    middle = np.array([sum(leaves) / 2])
    assert filled.find(middle).tolist() == updated.find(middle).tolist()


@pytest.mark.parametrize("repeats", [2, 31, 32, 33, 500])
def test_of_equal_indices_the_last_one_counts(repeats: int) -> None:
    """On both sides of the size at which repeated paths are left out."""
    tree = SumTree(5)
    tree.update(np.full(repeats, 3), np.arange(1.0, repeats + 1))
    assert tree.reduce() == repeats
    assert tree.values.tolist() == [0, 0, 0, repeats, 0]


@pytest.mark.parametrize("capacity", [1, 2, 3, 4, 5, 8, 9])
def test_small_capacities_and_no_powers_of_two(capacity: int) -> None:
    tree = SumTree(capacity)
    tree.update(np.arange(capacity), 1.0)
    assert tree.values.shape == (capacity,)
    assert tree.reduce() == capacity
    assert tree.find(np.arange(capacity) + 0.5).tolist() == list(range(capacity))


def test_new_trees_hold_the_neutral_element() -> None:
    assert SumTree(3).reduce() == 0.0
    assert MinTree(3).reduce() == np.inf


def test_an_update_of_nothing_changes_nothing() -> None:
    tree = MinTree(4)
    tree.update(indices([2]), 7.0)
    tree.update(indices([]), np.array([]))
    assert tree.reduce() == 7.0


def test_removed_leaves_leave_the_minimum() -> None:
    tree = MinTree(3)
    tree.update(indices([0, 1, 2]), np.array([3.0, 1.0, 2.0]))
    tree.update(indices([1]), np.inf)
    assert tree.reduce() == 2.0


def test_values_cannot_be_written_past_the_tree() -> None:
    tree = SumTree(3)
    with pytest.raises(ValueError, match="read-only"):
        tree.values[0] = 1.0


def test_values_follow_later_updates() -> None:
    tree = SumTree(3)
    view = tree.values
    tree.update(indices([1]), 4.0)
    assert view.tolist() == [0.0, 4.0, 0.0]


def test_find_leaves_its_argument_alone() -> None:
    tree = SumTree(4)
    tree.update(np.arange(4), 1.0)
    mass = np.array([0.5, 3.5])
    tree.find(mass)
    assert mass.tolist() == [0.5, 3.5]


def test_find_of_nothing_is_empty() -> None:
    tree = SumTree(4)
    tree.update(np.arange(4), 1.0)
    assert tree.find(np.array([])).shape == (0,)


@pytest.mark.parametrize("tiny", [5e-324, 1e-300])
def test_the_smallest_masses_are_found(tiny: float) -> None:
    tree = SumTree(6)
    tree.update(indices([4]), tiny)
    assert tree.find(np.array([0.0])).tolist() == [4]
