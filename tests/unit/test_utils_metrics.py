"""Counters, means, rates, percentiles, and numbers for people."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdi.utils.metrics import (
    CountVar,
    Distribution,
    PartCurves,
    Rate,
    ScalarMonitor,
    brief,
    human_bytes,
    human_count,
    human_time,
    ranges,
    split_charts,
)
from hpcdi.utils.progress import Evaluation

QUICK = settings(deadline=None, max_examples=60)


def test_a_counter_is_shared_by_reference() -> None:
    counter = CountVar(3)
    same = counter
    same.add(4)
    assert counter.val == 7
    counter.update(1)
    assert same.val == 1
    assert CountVar().val == 0


def test_means_are_of_each_scalar_and_start_anew() -> None:
    monitor = ScalarMonitor()
    monitor.add({"loss": 1.0, "lr": 2})
    monitor.add({"loss": 3.0})
    assert monitor.take_means() == {"loss": 2.0, "lr": 2.0}
    assert monitor.take_means() == {}
    monitor.add({"loss": 5.0})
    assert monitor.take_means() == {"loss": 5.0}


def test_the_newest_value_of_each_scalar() -> None:
    monitor = ScalarMonitor()
    monitor.add({"loss": 1.0, "lr": 2})
    monitor.add({"loss": 3.0})
    assert {name: newest() for name, newest in monitor.val.items()} == {"loss": 3.0, "lr": 2.0}
    monitor.take_means()
    assert monitor.val["loss"]() == 3.0


def test_what_is_not_a_number_is_passed_over() -> None:
    monitor = ScalarMonitor()
    monitor.add({"loss": 1.0, "priority": [1.0, 2.0], "name": "x", "nothing": None})
    assert monitor.take_means() == {"loss": 1.0}


def test_numbers_of_numpy_are_numbers_too() -> None:
    monitor = ScalarMonitor()
    monitor.add({"a": np.float32(1.5), "b": np.int64(2), "c": np.array([1.0])})
    assert monitor.take_means() == {"a": 1.5, "b": 2.0}


def test_tensors_and_arrays_without_an_axis_are_numbers(caplog: pytest.LogCaptureFixture) -> None:
    monitor, loss = ScalarMonitor(), torch.ones((), requires_grad=True) * 0.5
    for _ in range(2):
        monitor.add({"loss": loss, "a": np.array(2), "q": torch.ones(3), "priority": np.ones(2)})
    assert monitor.take_means() == {"loss": 0.5, "a": 2.0}
    (line,) = caplog.messages
    assert "'q' is an array of shape (3,): it has no curve" in line


def test_charts_are_means_of_each_curve_and_arrays_the_latest() -> None:
    monitor = ScalarMonitor()
    for k in (1.0, 3.0):
        monitor.add({"[scalars]part/loss": {"a": k, "b": 1, "c": "x"}, "[histogram]q": [k]})
    monitor.add({"[scalars]odd": 4.0, "[histogram]number": 5.0, "lr": 2.0})
    means = monitor.take_means()
    assert means == {
        "[scalars]part/loss/a": 2.0, "[scalars]part/loss/b": 1.0, "[scalars]odd": 4.0, "lr": 2.0
    }  # fmt: skip
    curves, charts = split_charts(means)
    assert curves == {"odd": 4.0, "lr": 2.0}
    assert charts == {"part/loss": {"a": 2.0, "b": 1.0}}
    assert monitor.take_arrays() == {"q": [3.0], "number": 5.0}
    assert monitor.take_arrays() == {}


class Writer:
    """Keeps the points of curves, and how often it was closed."""

    def __init__(self) -> None:
        self.points: list[tuple[str, float, int]] = []
        self.done: list[str] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.points.append((tag, value, step))

    def flush(self) -> None:
        self.done.append("flush")

    def close(self) -> None:
        self.done.append("close")


def test_numbers_are_drawn_over_both_axes_until_the_curves_are_closed() -> None:
    writer = Writer()
    curves = PartCurves(writer, "collector")
    curves.add({"reward_mean": 1.5, "note": "no number", "count": 2}, 3, 40)
    assert writer.points == [
        ("collector_iter/reward_mean", 1.5, 3), ("collector_step/reward_mean", 1.5, 40),
        ("collector_iter/count", 2, 3), ("collector_step/count", 2, 40),
    ]  # fmt: skip
    for _ in range(2):
        curves.close()
    assert writer.done == ["flush", "close"]
    curves.add({"reward_mean": 2.5}, 4, 50)
    assert len(writer.points) == 4


def test_curves_without_a_writer_are_not_drawn() -> None:
    curves = PartCurves(None, "collector")
    curves.add({"reward_mean": 1.5}, 3, 40)
    curves.close()
    assert curves.writer is None


def test_a_rate_needs_two_points() -> None:
    rate = Rate()
    assert rate.per_second() == 0.0
    rate.add(1.0, 100.0)
    assert rate.per_second() == 0.0
    rate.add(3.0, 500.0)
    assert rate.per_second() == 200.0


def test_a_rate_looks_back_one_window() -> None:
    rate = Rate(window_s=10.0)
    for second in range(100):  # 1 a second, then 5 a second
        rate.add(second, second if second <= 50 else 50 + 5 * (second - 50))
    assert rate.per_second() == 5.0


def test_a_rate_survives_equal_times_and_a_long_silence() -> None:
    rate = Rate(window_s=1.0)
    rate.add(5.0, 1.0)
    rate.add(5.0, 2.0)
    assert rate.per_second() == 0.0
    rate.add(105.0, 102.0)
    assert rate.per_second() == 1.0


@QUICK
@given(st.lists(st.floats(0.01, 5.0), max_size=50), st.floats(0.0, 1000.0))
def test_a_steady_counter_has_its_slope(gaps: list[float], slope: float) -> None:
    rate = Rate(window_s=10.0)
    now = 0.0
    for gap in gaps:
        now += gap
        rate.add(now, slope * now)
    expected = slope if len(gaps) > 1 else 0.0
    assert rate.per_second() == pytest.approx(expected, abs=1e-6)


def test_percentiles_are_of_the_last_values() -> None:
    distribution = Distribution(size=3)
    for value in (100.0, 1.0, 2.0, 3.0):
        distribution.add(value)
    assert len(distribution) == 3
    assert distribution.percentile(50) == 2.0
    assert (distribution.percentile(0), distribution.percentile(100)) == (1.0, 3.0)


def test_no_values_have_no_percentile() -> None:
    distribution = Distribution()
    assert len(distribution) == 0
    assert math.isnan(distribution.percentile(50))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (9999.4, "9999"),
        (10_000, "10k"),
        (12_345, "12.3k"),
        (999_499, "999k"),
        (999_999, "1M"),
        (1_234_567, "1.23M"),
        (999_999_999, "1G"),
        (2.5e9, "2.5G"),
        (1e12, "1T"),
        (-20_000, "-20k"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
)
def test_counts_for_people(value: float, text: str) -> None:
    assert human_count(value) == text


@QUICK
@given(st.floats(0, 9e14))
def test_a_count_is_short_and_right_to_three_digits(value: float) -> None:
    text = human_count(value)
    scales = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    digits, scale = (text[:-1], scales[text[-1]]) if text[-1] in scales else (text, 1.0)
    assert "e" not in digits
    assert len(text) <= 6
    assert float(digits) * scale == pytest.approx(value, rel=0.0051, abs=0.5)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1023.7, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (5 * 1024**3, "5.0 GiB"),
        (3 * 1024**4, "3.0 TiB"),
        (5000 * 1024**4, "5000.0 TiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_sizes_for_people(value: float, text: str) -> None:
    assert human_bytes(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m00s"),
        (185, "3m05s"),
        (3599.9, "59m59s"),
        (3600, "1h00m"),
        (8040, "2h14m"),
        (90_000, "25h00m"),
        (float("inf"), "?"),
        (float("nan"), "?"),
    ],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert human_time(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 µs"),
        (32e-6, "32 µs"),
        (999.4e-6, "999 µs"),
        (999.6e-6, "1 ms"),
        (0.0125, "12.5 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (4.1, "4.1 s"),
        (185, "3m05s"),
    ],
)
def test_short_durations_for_people(seconds: float, text: str) -> None:
    assert brief(seconds) == text


@QUICK
@given(st.sets(st.integers(0, 60), max_size=30))
def test_ranges_name_every_number_once_and_are_apart(numbers: set[int]) -> None:
    spans = [tuple(map(int, text.split("-"))) for text in ranges(numbers)]
    named = [number for span in spans for number in range(span[0], span[-1] + 1)]
    assert named == sorted(numbers)
    assert all(later[0] > span[-1] + 1 for span, later in itertools.pairwise(spans))


def test_ranges() -> None:
    assert ranges([7, 2, 1, 0]) == ["0-2", "7"]
    assert ranges([]) == []


@pytest.mark.parametrize(
    ("returns", "said"),
    [
        ((475.3, 20.1, 400.2, 500.0), "475.3 ± 20.1 (400 to 500,"),
        ((13.5, 0.0, 13.5, 13.5), "13.5 ± 0.0 (13.5 to 13.5,"),
        ((-0.5, 0.5, -1.0, 1.0), "-0.50 ± 0.50 (-1 to 1,"),
        ((0.0556, 0.0021, 0.05, 0.06), "0.0556 ± 0.0021 (0.0500 to 0.0600,"),
        ((0.0, 0.0, 0.0, 0.0), "0.00 ± 0.00 (0 to 0,"),
        ((math.nan, math.nan, math.nan, math.inf), "nan ± nan (nan to inf,"),
    ],
)
def test_an_evaluation_has_the_decimals_that_its_returns_deserve(
    returns: tuple[float, float, float, float], said: str
) -> None:
    assert f"mean return {said}" in str(Evaluation(*returns, 20, 5, 1000))
