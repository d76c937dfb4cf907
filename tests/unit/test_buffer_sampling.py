"""How items are drawn: in proportion to priority^alpha, in strata, weighed against the bias."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.buffers import filled
from fakes.statistics import chi_square_p
from hpcdi.replay.samplers import PrioritizedSampler, UniformSampler, positions
from hpcdi.types import Array

PRIORITIES = np.array([0.0, 0.01, 0.5, 1.0, 1.0, 2.0, 7.5, 40.0])
"""The first slot holds nothing."""
HELD = np.arange(1, 8)
DRAWS = 8000


def prioritized(alpha: float, priorities: Array = PRIORITIES) -> PrioritizedSampler:
    sampler = PrioritizedSampler(len(priorities), alpha)
    held = np.flatnonzero(priorities)
    sampler.set(held, priorities[held])
    return sampler


def probabilities(alpha: float, priorities: Array = PRIORITIES) -> Array:
    """P(i) = p_i^alpha / sum_k p_k^alpha (Schaul et al. 2016, equation 1), by hand."""
    mass = np.array([p**alpha if p > 0 else 0.0 for p in priorities.tolist()])
    return mass / mass.sum()


def test_the_statistic_itself() -> None:
    """Points of the chi-square table with 7 degrees of freedom."""
    expected = np.full(8, 100.0)
    for x, p in [(14.067, 0.05), (24.322, 0.001)]:
        counts = expected + np.array([math.sqrt(x * 50), -math.sqrt(x * 50), *([0.0] * 6)])
        assert chi_square_p(counts, expected) == pytest.approx(p, rel=0.1)


# ------------------------------------------------------------------------------------ proportions


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_draws_follow_the_priorities(alpha: float) -> None:
    """Draws, each by itself: strata of one draw are no help to the statistic."""
    sampler, rng = prioritized(alpha), np.random.default_rng(7)
    slots = np.concatenate([sampler.draw(1, 7, 0.4, rng).slots for _ in range(DRAWS)])
    counts = np.bincount(slots, minlength=8).astype(float)
    assert chi_square_p(counts, DRAWS * probabilities(alpha)) > 1e-4


def test_the_test_would_notice_another_alpha() -> None:
    sampler, rng = prioritized(0.6), np.random.default_rng(7)
    slots = np.concatenate([sampler.draw(1, 7, 0.4, rng).slots for _ in range(DRAWS)])
    counts = np.bincount(slots, minlength=8).astype(float)
    assert chi_square_p(counts, DRAWS * probabilities(0.75)) < 1e-6


def test_draws_follow_priorities_after_updates_and_evictions() -> None:
    buffer = filled(30, 16, alpha=0.6)  # 14 to 29 are here
    rng = np.random.default_rng(3)
    priorities = rng.uniform(0.1, 5.0, 30)
    buffer.update_priorities(np.arange(30), priorities)
    buffer._index.evict(18)
    priorities[:18] = 0.0
    counts = np.zeros(30)
    for _ in range(4000):
        np.add.at(counts, buffer.sample_batch(8, 0).drawn.unique_ids, 1)
    expected = 32_000 * probabilities(0.6, priorities)
    # strata make counts steadier than chance would, so only the sum is tested loosely
    assert chi_square_p(counts, expected) > 1e-4


@pytest.mark.parametrize("size", [1, 2, 5, 64, 500])
def test_one_draw_of_each_stratum(size: int) -> None:
    """However they fall, an item's draws differ from size x P by less than two strata."""
    sampler, rng = prioritized(0.6), np.random.default_rng(1)
    for _ in range(50):
        slots = sampler.draw(size, 7, 0.4, rng).slots
        assert (np.diff(slots) >= 0).all()  # in the order of their strata
        counts = np.bincount(slots, minlength=8)
        assert (np.abs(counts - size * probabilities(0.6)) < 2).all()


# ---------------------------------------------------------------------------------------- weights


def weights_by_hand(alpha: float, beta: float) -> Array:
    """w_i = (N P(i))^-beta / max_k w_k, the maximum over all items (Schaul et al., section 3.4)."""
    p = probabilities(alpha)[HELD]
    w = (len(p) * p) ** -beta
    weights: Array = np.concatenate([[0.0], w / w.max()])
    return weights


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_importance_weights(alpha: float, beta: float) -> None:
    drawn = prioritized(alpha).draw(400, 7, beta, np.random.default_rng(0))
    assert drawn.weights.dtype == np.float32
    assert drawn.weights == pytest.approx(weights_by_hand(alpha, beta)[drawn.slots], rel=1e-5)
    assert drawn.weights.max() <= 1.0


def test_full_weights_undo_the_bias() -> None:
    """At beta 1 the weighted mean over draws is the plain mean over items, up to its scale."""
    sampler, rng = prioritized(0.6), np.random.default_rng(5)
    values = np.array([0.0, 3, -1, 4, 1, -5, 9, 2])
    drawn = sampler.draw(100_000, 7, 1.0, rng)
    weights = drawn.weights.astype(np.float64)
    mean = float((weights * values[drawn.slots]).sum() / weights.sum())
    assert mean == pytest.approx(values[HELD].mean(), abs=0.01)


def test_the_largest_weight_follows_what_is_there() -> None:
    """When the least likely item goes, the next one's weight is 1."""
    sampler = prioritized(1.0)
    sampler.remove(np.array([1]))
    drawn = sampler.draw(400, 6, 1.0, np.random.default_rng(0))
    assert drawn.weights[drawn.slots == 2] == pytest.approx(1.0)
    assert drawn.weights[drawn.slots == 7] == pytest.approx(0.5 / 40)


# ------------------------------------------------------------------------------------------- beta


def test_beta_rises_to_one_over_the_draws() -> None:
    buffer = filled(2, beta=0.4, anneal_step=3)
    betas = [buffer.beta]
    for _ in range(5):
        buffer.sample(1, 0)
        betas.append(buffer.beta)
    assert betas == pytest.approx([0.4, 0.6, 0.8, 1.0, 1.0, 1.0])


def test_the_first_draw_weighs_by_the_first_beta() -> None:
    buffer = filled(2, beta=0.0, anneal_step=1, alpha=1.0)
    buffer.update_priorities(np.arange(2), np.array([1.0, 9.0]))
    assert {d["IS"] for d in buffer.sample(2, 0)} == {1.0}
    assert {round(d["IS"], 5) for d in buffer.sample(2, 0)} <= {1.0, round(1 / 9, 5)}


def test_a_draw_for_many_batches_counts_as_many() -> None:
    buffer = filled(8, beta=0.0, anneal_step=8)
    buffer.sample_batch(6, 0, draws=3)
    assert buffer.beta == pytest.approx(3 / 8)


def test_a_draw_of_nothing_does_not_anneal() -> None:
    buffer = filled(3, beta=0.0, anneal_step=4)
    assert buffer.sample(4, 0) is None
    assert buffer.sample(2, 0, slice(3, 4)) is None
    assert buffer.beta == 0.0


def test_beta_can_be_set() -> None:
    buffer = filled(2, anneal_step=2)
    buffer.sample(1, 0)
    buffer.beta = 0.5
    assert buffer.beta == 0.5
    buffer.sample(1, 0)
    assert buffer.beta == pytest.approx(0.75)


# ---------------------------------------------------------------------------------- the samplers


@given(
    st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40),
    st.floats(0.0, 2.0),
    st.integers(1, 64),
    st.data(),
)
def test_only_what_is_held_is_drawn(
    priorities: list[float], alpha: float, size: int, data: st.DataObject
) -> None:
    count = len(priorities)
    gone = data.draw(st.sets(st.integers(0, count - 1), max_size=count - 1))
    left = set(range(count)) - gone
    for sampler in (PrioritizedSampler(count, alpha), UniformSampler(count)):
        sampler.set(np.arange(count), np.array(priorities))
        sampler.remove(np.array(sorted(gone), dtype=np.int64))
        drawn = sampler.draw(size, len(left), 0.5, np.random.default_rng(size))
        assert set(drawn.slots.tolist()) <= left
        assert ((drawn.weights > 0) & (drawn.weights <= 1)).all()
        assert sampler.alive(np.arange(count)).tolist() == [k in left for k in range(count)]


def test_priorities_are_given_back_as_they_were_set() -> None:
    assert prioritized(0.6).priority(HELD) == pytest.approx(PRIORITIES[HELD])
    assert prioritized(0.0).priority(HELD) == pytest.approx(np.ones(7))


@pytest.mark.parametrize("alive", [1, 2, 40, 63, 64])
def test_the_uniform_sampler_draws_each_alike(alive: int) -> None:
    """Few alive are listed, many are hit by trial: both ways give each the same chance."""
    sampler, rng = UniformSampler(64), np.random.default_rng(11)
    held = rng.choice(64, alive, replace=False)
    sampler.set(held, 1.0)
    drawn = sampler.draw(100 * alive, alive, 0.4, rng)
    counts = np.bincount(drawn.slots, minlength=64).astype(float)
    expected = np.where(sampler.mass() > 0, 100.0, 0.0)
    assert (drawn.weights == 1.0).all()
    assert alive == 1 or chi_square_p(counts, expected) > 1e-4
    assert not counts[expected == 0].any()


@pytest.mark.parametrize("make", [lambda: PrioritizedSampler(9, 0.6), lambda: UniformSampler(9)])
def test_a_sampler_is_restored_from_its_masses(make: Any) -> None:
    sampler, again = make(), make()
    sampler.set(np.array([1, 4, 8]), np.array([1.0, 2.0, 3.0]))
    again.set(np.arange(9), 5.0)
    again.restore(sampler.mass())
    draws = [s.draw(6, 3, 0.5, np.random.default_rng(2)) for s in (sampler, again)]
    assert draws[0].slots.tolist() == draws[1].slots.tolist()
    assert draws[0].weights.tolist() == draws[1].weights.tolist()


@given(st.integers(1, 2**50), st.sampled_from([0.0, 0.5, 1 - 2**-53]))
def test_no_position_is_beyond_the_last(count: int, double: float) -> None:
    """Of the largest double that is drawn, too."""

    class Source:
        def random(self, size: int) -> Array:
            return np.full(size, double)

    drawn = positions(Source(), count, 3)  # type: ignore[arg-type]
    assert drawn.dtype == np.int64
    assert drawn.tolist() == [count - 1 if double > 0.5 else math.floor(double * count)] * 3


@pytest.mark.parametrize("count", [1, 7, 100])
def test_every_position_is_as_likely(count: int) -> None:
    drawn = positions(np.random.default_rng(4), count, DRAWS)
    counts = np.bincount(drawn, minlength=count)
    assert counts.shape == (count,)
    assert count == 1 or chi_square_p(counts, np.full(count, DRAWS / count)) > 1e-4
