"""n-step returns against a reference that goes transition by transition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdi.policy.returns import NStep, n_step

Item = tuple[list[int], bool]  # rewards of its transitions; whether it ended by termination

items = st.lists(
    st.tuples(st.lists(st.integers(-8, 8), min_size=1, max_size=9), st.booleans()), max_size=6
)


def reference(
    rewards: list[int], terminated: bool, gamma: float, n: int
) -> list[tuple[float, int, float]]:
    """Return, steps and bootstrap discount of each transition of one item, by the definition."""
    rows = []
    for t in range(len(rewards)):
        window = rewards[t : t + n]
        value = sum(gamma**k * reward for k, reward in enumerate(window))
        sees_the_end = t + len(window) == len(rewards)
        rows.append(
            (value, len(window), 0.0 if terminated and sees_the_end else gamma ** len(window))
        )
    return rows


def computed(given_items: list[Item], gamma: float, n: int) -> NStep:
    rewards = [reward for item, _ in given_items for reward in item]
    ends = [
        terminated and t == len(item) - 1
        for item, terminated in given_items
        for t in range(len(item))
    ]
    lengths = [len(item) for item, _ in given_items]
    return n_step(
        np.array(rewards, dtype=np.float32), np.array(ends, dtype=bool),
        np.array(lengths, dtype=np.int32), gamma, n,
    )  # fmt: skip


@given(items, st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.integers(1, 12))
def test_equals_the_definition(given_items: list[Item], gamma: float, n: int) -> None:
    """The discounts are powers of two, so that float32 holds every sum exactly."""
    steps = computed(given_items, gamma, n)
    rows = [row for item, end in given_items for row in reference(item, end, gamma, n)]
    assert steps.returns.tolist() == [value for value, _, _ in rows]
    assert steps.steps.tolist() == [count for _, count, _ in rows]
    assert steps.discount.tolist() == [discount for _, _, discount in rows]


@given(items, st.floats(0, 1), st.integers(1, 12))
def test_any_discount(given_items: list[Item], gamma: float, n: int) -> None:
    steps = computed(given_items, gamma, n)
    rows = [row for item, end in given_items for row in reference(item, end, gamma, n)]
    np.testing.assert_allclose(steps.returns, [row[0] for row in rows], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(steps.discount, [row[2] for row in rows], rtol=1e-5, atol=1e-37)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_dtypes_are_those_that_are_stored(count: int) -> None:
    steps = computed([([1] * count, True)] if count else [], 0.5, 2)
    assert [array.dtype for array in steps] == [np.float32, np.uint16, np.float32]
    assert [array.shape for array in steps] == [(count,)] * 3


def test_a_cut_item_is_bootstrapped_and_a_terminated_one_is_not() -> None:
    cut, terminated = computed([([1, 2], False)], 0.5, 1), computed([([1, 2], True)], 0.5, 1)
    assert cut.discount.tolist() == [0.5, 0.5]
    assert terminated.discount.tolist() == [0.5, 0.0]
    assert cut.returns.tolist() == terminated.returns.tolist() == [1.0, 2.0]


def test_a_horizon_far_beyond_the_items_costs_nothing() -> None:
    """The work follows the items, not n: this would take minutes and gigabytes otherwise."""
    steps = computed([([1, 1, 1], True)], 1.0, 10**9)
    assert steps.returns.tolist() == [3.0, 2.0, 1.0]
    assert steps.steps.tolist() == [3, 2, 1]
