"""The end of the allocation comes into sight."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import pytest

from hpcdi.comm.codec import from_bytes, to_bytes
from hpcdi.comm.messages import StopRequest
from hpcdi.errors import LaunchError
from hpcdi.run import job_end
from hpcdi.run.job_end import EndTime
from hpcdi.run.run_start import RunStart
from hpcdi.run.signals import TimeLimit, end_of, limit_of
from hpcdi.utils.threads import BackgroundThread


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("UNLIMITED", math.inf), ("Infinite", math.inf), ("-1", math.inf), ("0", math.inf),
        ("0:00:00", math.inf), (" unlimited ", math.inf), ("1:30", 90), ("2-12", 216000),
        ("90", 5400), ("1:30:00", 5400), ("2-12:30", 217800), ("2-12:00:05", 216005),
        (" 10:00 ", 600),
    ],
)  # fmt: skip
def test_a_limit_is_spelt_as_slurm_does_or_there_is_none(text: str, seconds: float) -> None:
    assert limit_of(text) == seconds
    assert end_of(text, {"SLURM_JOB_END_TIME": "5000"}, 1000.0).at == 1000.0 + seconds


@pytest.mark.parametrize("text", ["", "soon", "NONE", "1h", "-5", "1:2:3:4", "1-", "1.5"])
def test_what_is_no_time_limit_is_refused(text: str) -> None:
    with pytest.raises(LaunchError, match="is not a duration: write minutes"):
        limit_of(text)


def test_who_says_when_it_ends() -> None:
    assert end_of(None, {}, 1000.0).at == math.inf
    assert end_of(None, {"SLURM_JOB_END_TIME": "5000"}, 1000.0).at == 5000.0
    assert end_of("2:00", {"SLURM_JOB_END_TIME": "5000"}, 1000.0).at == 1120.0
    assert end_of(None, {"SLURM_JOB_END_TIME": "Unknown"}, 1000.0).at == math.inf
    assert end_of(None, {"SLURM_JOB_END_TIME": "0"}, 1000.0).at == math.inf


@pytest.mark.parametrize(("left_s", "snapshot_s", "asks"), [(100, 1, False), (25, 0, True)])
def test_the_end_is_asked_for_in_time(left_s: float, snapshot_s: float, asks: bool) -> None:
    limit = TimeLimit(EndTime(time.time() + left_s), lambda: None, lambda: snapshot_s)
    request = limit.take()
    assert (request is not None) is asks
    assert limit.take() is None, "once"
    if request is not None:
        assert request.exit_code == 85
        assert request.reason.startswith("the time limit is near")


def test_slow_snapshots_are_begun_earlier() -> None:
    limit = TimeLimit(EndTime(time.time() + 100), lambda: None, lambda: 30.0)
    assert limit.take() is not None


def test_what_a_signal_asks_for_comes_first() -> None:
    asked: list[Any] = [StopRequest("received SIGINT", 130)]
    limit = TimeLimit(EndTime(time.time() + 1), lambda: asked.pop() if asked else None, lambda: 0.0)
    assert limit.take() == StopRequest("received SIGINT", 130)


def test_a_clock_that_is_set_moves_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now, limit = time.time(), TimeLimit(EndTime(time.time() + 100), lambda: None, lambda: 0.0)
    for moved_s in (3600, -3600):
        monkeypatch.setattr(time, "time", lambda moved_s=moved_s: now + moved_s)
        assert limit.take() is None
    seconds = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: seconds + 75)
    assert limit.take() is not None


@pytest.mark.parametrize(
    ("may_move", "says_s", "asks"),
    [
        (True, 3600.0, False),  # prolonged, or suspended for long
        (True, 0.0, True),
        (True, math.inf, True),  # no answer
        (True, 70.0, True),  # as LSF, which says whole minutes
        (False, 3600.0, True),  # the user's own limit
    ],
)
def test_the_queue_is_asked_again_before_the_end_of_a_job(
    monkeypatch: pytest.MonkeyPatch, may_move: bool, says_s: float, asks: bool
) -> None:
    threads: list[BackgroundThread] = []
    monkeypatch.setattr(
        job_end,
        "BackgroundThread",
        lambda *arguments: threads.append(BackgroundThread(*arguments)),
    )
    monkeypatch.setattr(job_end, "asked_end", lambda _variables, now: now + says_s)
    limit = TimeLimit(EndTime(time.time() + 20, may_move=may_move), lambda: None, lambda: 0.0)
    first = limit.take()
    for thread in threads:
        thread.join(30)
    assert ((first or limit.take()) is not None) is asks
    assert limit.take() is None


@pytest.mark.parametrize(("says_s", "asks"), [(3600.0, False), (20.0, True)])
def test_a_job_may_be_prolonged_in_its_last_minute(
    monkeypatch: pytest.MonkeyPatch, says_s: float, asks: bool
) -> None:
    """After the queue has said that the end holds."""

    def run_at_once(ask: Callable[[], None], _name: str) -> None:
        ask()

    answers = [50.0, says_s]
    monkeypatch.setattr(job_end, "BackgroundThread", run_at_once)
    monkeypatch.setattr(job_end, "asked_end", lambda _variables, now: now + answers.pop(0))
    now, end = time.monotonic(), EndTime(time.time() + 50, may_move=True)
    limit = TimeLimit(end, lambda: None, lambda: 0.0)
    assert limit.take() is None
    assert limit.take() is None
    assert answers == [says_s], "the queue is not asked all the time"
    monkeypatch.setattr(time, "monotonic", lambda: now + 30)
    assert (limit.take() is not None) is asks
    assert not answers


def test_rank_0_tells_whether_the_end_is_that_of_its_job() -> None:
    for end in (EndTime(5.0, may_move=True), EndTime(5.0), EndTime()):
        start = RunStart({}, "", (), ends_at=end)
        assert from_bytes(to_bytes(start)).ends_at == end


def test_an_answer_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_end, "BackgroundThread", lambda *_arguments: None)
    now, end = time.monotonic(), EndTime(time.time() + 20, may_move=True)
    limit = TimeLimit(end, lambda: None, lambda: 0.0)
    assert limit.take() is None
    monkeypatch.setattr(time, "monotonic", lambda: now + 16)
    assert limit.take() is not None
