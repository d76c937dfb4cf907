"""n-step returns and advantages against their definitions, transition by transition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdi.policy.returns import Advantages, NStep, gae, n_step

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


# ---------------------------------------------------------------------- advantages

Steps = tuple[list[tuple[int, int]], int, bool]
"""Reward and value of each transition; value after the last; whether it ended by termination."""

small = st.integers(-8, 8)
pieces = st.lists(
    st.tuples(st.lists(st.tuples(small, small), min_size=1, max_size=9), small, st.booleans()),
    max_size=6,
)
rates = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


def gae_by_definition(item: Steps, gamma: float, lam: float) -> list[float]:
    """``sum_k (gamma lambda)^k (r[t+k] + gamma V[t+k+1] - V[t+k])`` for each t, term by term."""
    steps, after, terminated = item
    values = [value for _, value in steps] + [0 if terminated else after]
    return [
        sum(
            (gamma * lam) ** (k - t) * (steps[k][0] + gamma * values[k + 1] - values[k])
            for k in range(t, len(steps))
        )
        for t in range(len(steps))
    ]


def advantages_of(given_items: list[Steps], gamma: float, lam: float) -> Advantages:
    steps = [step for item, _, _ in given_items for step in item]
    ends = [
        terminated and t == len(item) - 1
        for item, _, terminated in given_items
        for t in range(len(item))
    ]
    return gae(
        np.array([reward for reward, _ in steps], dtype=np.float32),
        np.array(ends, dtype=bool),
        np.array([value for _, value in steps], dtype=np.float32),
        np.array([after for _, after, _ in given_items], dtype=np.float32),
        np.array([len(item) for item, _, _ in given_items], dtype=np.int32),
        gamma,
        lam,
    )


@given(pieces, rates, rates)
def test_advantages_equal_the_definition(
    given_items: list[Steps], gamma: float, lam: float
) -> None:
    """Rates are short binary fractions, so that only the end's rounding to float32 is left."""
    made = advantages_of(given_items, gamma, lam)
    expected = [a for item in given_items for a in gae_by_definition(item, gamma, lam)]
    np.testing.assert_allclose(made.advantage, expected, rtol=1e-6, atol=1e-5)
    values = [value for item, _, _ in given_items for _, value in item]
    np.testing.assert_allclose(made.returns, np.add(expected, values), rtol=1e-6, atol=1e-5)


@given(pieces, rates, rates)
def test_items_know_nothing_of_each_other(
    given_items: list[Steps], gamma: float, lam: float
) -> None:
    together = advantages_of(given_items, gamma, lam).advantage.tolist()
    apart = [advantages_of([item], gamma, lam).advantage.tolist() for item in given_items]
    assert together == [advantage for item in apart for advantage in item]


def test_advantages_of_a_cut_item_is_bootstrapped_and_a_terminated_one_is_not() -> None:
    steps = [(1, 0), (2, 0)]
    cut, terminated = (
        advantages_of([(steps, 8, False)], 0.5, 1.0),
        advantages_of([(steps, 8, True)], 0.5, 1),
    )
    assert cut.advantage.tolist() == [1 + 0.5 * (2 + 0.5 * 8), 2 + 0.5 * 8]
    assert terminated.advantage.tolist() == [1 + 0.5 * 2, 2]


def test_a_terminated_item_may_end_where_there_is_no_value() -> None:
    made = gae(
        np.ones(2, np.float32), np.array([False, True]), np.zeros(2, np.float32),
        np.array([np.nan], np.float32), np.array([2], np.int32), 0.5, 0.5,
    )  # fmt: skip
    assert made.advantage.tolist() == [1.25, 1.0]


def test_lambda_from_the_td_error_to_the_return() -> None:
    item: Steps = ([(1, 4), (2, 6), (4, 8)], 16, False)
    assert advantages_of([item], 0.5, 0.0).advantage.tolist() == [0.0, 0.0, 4.0]
    full = advantages_of([item], 0.5, 1.0)
    assert full.returns.tolist() == [1 + 0.5 * 2 + 0.25 * 4 + 0.125 * 16, 2 + 2 + 4, 4 + 8]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_advantages_have_the_dtypes_that_are_stored(count: int) -> None:
    made = advantages_of([([(1, 1)] * count, 1, True)] if count else [], 0.5, 0.5)
    assert [array.dtype for array in made] == [np.float32, np.float32]
    assert [array.shape for array in made] == [(count,)] * 2


def test_what_is_given_is_left_as_it_was() -> None:
    reward, value = np.ones(3, np.float32), np.ones(3, np.float32)
    length = np.array([1, 2], np.int32)
    gae(reward, np.zeros(3, bool), value, np.ones(2, np.float32), length, 0.9, 0.9)
    assert reward.tolist() == value.tolist() == [1, 1, 1]
    assert length.tolist() == [1, 2]


def test_small_rewards_are_summed_in_double_precision() -> None:
    """The longest piece there may be, rewards of 0.1: a sum in float32 would be off by 1e-4."""
    count = 65_535
    made = gae(
        np.full(count, 0.1, np.float32), np.zeros(count, bool), np.zeros(count, np.float32),
        np.zeros(1, np.float32), np.array([count], np.int32), 1.0, 1.0,
    )  # fmt: skip
    assert made.returns[0] == pytest.approx(count * float(np.float32(0.1)), rel=1e-6)
