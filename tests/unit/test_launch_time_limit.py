"""The end of the allocation comes into sight."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from hpcdi.comm.messages import StopRequest
from hpcdi.errors import LaunchError
from hpcdi.run.signals import TimeLimit, end_of, limit_of, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400), ("1:30", 90), ("1:30:00", 5400), ("2-12", 216000), ("2-12:30", 217800),
        ("2-12:00:05", 216005), (" 10:00 ", 600), ("0", 0),
    ],
)  # fmt: skip
def test_durations_are_spelt_as_slurm_does(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "1h", "-5", "1:2:3:4", "1-", "1.5"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(LaunchError, match="is not a duration: write minutes"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("UNLIMITED", math.inf), ("Infinite", math.inf), ("-1", math.inf), ("0", math.inf),
        ("0:00:00", math.inf), (" unlimited ", math.inf), ("1:30", 90), ("2-12", 216000),
    ],
)  # fmt: skip
def test_a_job_may_have_no_time_limit(text: str, seconds: float) -> None:
    assert limit_of(text) == seconds
    assert end_of(text, {"SLURM_JOB_END_TIME": "5000"}, 1000.0) == 1000.0 + seconds


@pytest.mark.parametrize("text", ["", "soon", "-5", "NONE"])
def test_what_is_no_time_limit_is_refused(text: str) -> None:
    with pytest.raises(LaunchError, match="is not a duration: write minutes"):
        limit_of(text)


def test_who_says_when_it_ends() -> None:
    assert end_of(None, {}, 1000.0) == math.inf
    assert end_of(None, {"SLURM_JOB_END_TIME": "5000"}, 1000.0) == 5000.0
    assert end_of("2:00", {"SLURM_JOB_END_TIME": "5000"}, 1000.0) == 1120.0
    assert end_of(None, {"SLURM_JOB_END_TIME": "Unknown"}, 1000.0) == math.inf
    assert end_of(None, {"SLURM_JOB_END_TIME": "0"}, 1000.0) == math.inf


@pytest.mark.parametrize(("left_s", "snapshot_s", "asks"), [(100, 1, False), (25, 0, True)])
def test_the_end_is_asked_for_in_time(left_s: float, snapshot_s: float, asks: bool) -> None:
    limit = TimeLimit(time.time() + left_s, lambda: None, lambda: snapshot_s)
    request = limit.take()
    assert (request is not None) is asks
    assert limit.take() is None, "once"
    if request is not None:
        assert request.exit_code == 85
        assert request.reason.startswith("the time limit is near")


def test_slow_snapshots_are_begun_earlier() -> None:
    limit = TimeLimit(time.time() + 100, lambda: None, lambda: 30.0)
    assert limit.take() is not None


def test_what_a_signal_asks_for_comes_first() -> None:
    asked: list[Any] = [StopRequest("received SIGINT", 130)]
    limit = TimeLimit(time.time() + 1, lambda: asked.pop() if asked else None, lambda: 0.0)
    assert limit.take() == StopRequest("received SIGINT", 130)
