"""Exploration rates, and acting at random by them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdi.policy.exploration import epsilon_greedy, get_epsilon_greedy_fn

FOREVER = 10**12


@pytest.mark.parametrize(
    ("type_", "at_decay"), [("exp", 0.1 + 0.8 * math.exp(-1)), ("linear", 0.1)]
)
def test_schedule_at_the_start_after_one_decay_and_at_the_end(type_: str, at_decay: float) -> None:
    rate = get_epsilon_greedy_fn(0.9, 0.1, 1000, type_)
    assert rate(0) == 0.9
    assert rate(1000) == pytest.approx(at_decay, abs=1e-15)
    assert rate(FOREVER) == pytest.approx(0.1, abs=1e-15)


def test_linear_is_half_way_at_half_the_decay() -> None:
    rate = get_epsilon_greedy_fn(1.0, 0.0, 10, "linear")
    assert [rate(step) for step in (-1, 5, 10, 11)] == [1.0, 0.5, 0.0, 0.0]


@given(
    st.floats(0, 1), st.floats(0, 1), st.integers(1, 10**6), st.sampled_from(["exp", "linear"]),
    st.lists(st.integers(0, 10**7), min_size=2),
)  # fmt: skip
def test_schedule_goes_from_start_to_end_and_never_back(
    start: float, end: float, decay: int, type_: str, steps: list[int]
) -> None:
    rate = get_epsilon_greedy_fn(start, end, decay, type_)
    rates = [rate(step) for step in sorted(steps)]
    assert all(min(start, end) - 1e-12 <= value <= max(start, end) + 1e-12 for value in rates)
    assert rates == sorted(rates, reverse=start > end) or max(rates) - min(rates) < 1e-12


def test_unknown_schedule() -> None:
    with pytest.raises(ValueError, match="'exp' or 'linear', not 'cosine'"):
        get_epsilon_greedy_fn(1.0, 0.1, 100, "cosine")


def draw(eps: float, count: int = 20_000) -> np.ndarray:
    greedy = np.full(count, 2, dtype=np.int64)
    return epsilon_greedy(greedy, eps, 4, np.random.default_rng(0))


@pytest.mark.parametrize("eps", [0.0, 0.2, 1.0])
def test_share_of_random_actions(eps: float) -> None:
    """The greedy action is also drawn at random: each of 4 gets eps/4, the greedy one the rest."""
    actions = draw(eps)
    assert actions.dtype == np.int64
    shares = np.bincount(actions, minlength=4) / len(actions)
    np.testing.assert_allclose(shares, [eps / 4, eps / 4, 1 - 0.75 * eps, eps / 4], atol=0.015)
    assert set(np.unique(actions)) <= {0, 1, 2, 3}


def test_environments_explore_each_for_itself() -> None:
    actions = draw(0.5).reshape(-1, 2)
    is_random = actions != 2
    both = (is_random[:, 0] & is_random[:, 1]).mean()
    assert both == pytest.approx(is_random[:, 0].mean() * is_random[:, 1].mean(), abs=0.015)


def test_same_generator_same_actions_and_the_greedy_ones_stay() -> None:
    greedy = np.arange(5)
    first = epsilon_greedy(greedy, 0.5, 5, np.random.default_rng(7))
    again = epsilon_greedy(greedy, 0.5, 5, np.random.default_rng(7))
    assert first.tolist() == again.tolist()
    assert greedy.tolist() == [0, 1, 2, 3, 4]
    assert epsilon_greedy(np.zeros(0, dtype=np.int64), 0.5, 5, np.random.default_rng(7)).size == 0
