"""What a person reads: the progress line, lines about evaluations, the closing summary."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.replay import admitted, block, demand
from fakes.scheduler import INF, Shown, busy
from hpcdi.comm.messages import BlockAdmitted, Goodbye, StopRequest
from hpcdi.utils.progress import StatusLine
from hpcdi.worker.coordinator.view import status_of, summary


def progress_line(
    *, is_terminal: bool = False, limits: tuple[float, float] = (INF, INF), interval_s: float = 10.0
) -> StatusLine:
    return StatusLine(is_terminal=is_terminal, interval_s=interval_s, limits=limits, started=1000.0)


def refresh(line: StatusLine, run: Shown, now: float) -> None:
    line.refresh(lambda: status_of(run.scheduler, run.record), run.record.evaluations, now)


# -------------------------------------------------------------------------------------- the line


def test_the_first_line() -> None:
    run = Shown()
    text = progress_line().text(status_of(run.scheduler, run.record), 1000.0)
    assert text == "[00:00] env 0 (0/s) | train 0 (0/s) | buffer 0/100 | staleness 0"


def test_a_line_of_a_busy_run() -> None:
    run = busy()
    text = progress_line().text(status_of(run.scheduler, run.record), 1065.9)
    assert text == (
        "[01:05] env 12.3k (2000/s) | train 600 (150/s) | buffer 0/100 | staleness 10 | return 20.0"
    )


@pytest.mark.parametrize(
    ("limits", "eta"),
    [
        ((20_345, INF), "ETA 4s"),
        ((INF, 1200), "ETA 4s"),
        ((1e9, 900), "ETA 2s"),
        ((12_000, INF), "ETA 0s"),
        ((INF, INF), ""),
    ],
)
def test_the_nearest_limit_says_how_long_it_will_take(
    limits: tuple[float, float], eta: str
) -> None:
    run = busy()
    text = progress_line(limits=limits).text(status_of(run.scheduler, run.record), 1002.0)
    assert text.rpartition(" | ")[2] == (eta or "return 20.0")


def test_a_line_with_data_an_evaluation_and_the_end() -> None:
    run = Shown()
    run.hear(2, block(1, [8]))
    run.hear(1, admitted(1))
    run.evaluated(100.0, 150.0)
    run.hear(0, StopRequest("SIGINT", 130))
    text = progress_line().text(status_of(run.scheduler, run.record), 1000.0 + 3 * 3600 + 62)
    assert text == (
        "[3:01:02] env 0 (0/s) | train 0 (0/s) | buffer 8/100 | staleness 0 | eval 125.0 | ending"
    )


def test_lines_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    """One plain line an interval; an evaluation at once."""
    run, line = Shown(), progress_line()
    for now in (1000.0, 1009.9):
        refresh(line, run, now)
    assert capsys.readouterr().out == ""
    refresh(line, run, 1010.0)
    told = capsys.readouterr().out
    assert told == "[00:10] env 0 (0/s) | train 0 (0/s) | buffer 0/100 | staleness 0\n"
    run.evaluated(9.0, 11.0, version=123)
    run.evaluated(500.0)
    for now in (1011.0, 1011.1):
        refresh(line, run, now)
    assert capsys.readouterr().out == (
        "[00:11] evaluation 1: mean return 10.0 ± 1.0 (9 to 11, 2 episodes), "
        "policy of iteration 123, env step 0\n"
        "[00:11] evaluation 2: mean return 500.0 ± 0.0 (500 to 500, 1 episodes), "
        "policy of iteration 7, env step 0\n"
    )


def test_lines_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """The line moves twice a second; lines of their own go above it."""
    run, line = Shown(), progress_line(is_terminal=True, interval_s=60.0)
    refresh(line, run, 1000.4)
    assert capsys.readouterr().out == ""
    refresh(line, run, 1000.5)
    told = capsys.readouterr().out
    assert told.startswith("\r\x1b[K[00:00] env 0")
    assert not told.endswith("\n")
    line.say("by the way")
    assert capsys.readouterr().out == "\r\x1b[Kby the way\n"


# ----------------------------------------------------------------------------------- the summary


def report(role: str, cpu: float, **shares: float) -> dict[str, Any]:
    return {"role": role, "cpu": cpu, "shares": shares, "memory_bytes": 1}


def test_the_summary_of_nothing() -> None:
    run = Shown()
    assert summary(run.scheduler, run.record, 0.4, report("coordinator", 0.0)) == [
        "  0 env steps and 0 train iterations in 0s; 0 episodes; 0.00 samples drawn per transition",
        "  data: 0 shards, 0 B",
        "  nothing was learnt: the run ended before the first train iteration",
        "  rank 0    coordinator cpu   0%  ",
    ]


def test_the_summary_of_a_run() -> None:
    run = busy()
    for k in (1, 2, 3):
        run.hear(2, block(k, [8]))
        error = "torn" if k == 3 else ""
        run.hear(1, BlockAdmitted("buffer", k, 0.010 * k, error))
    run.hear(1, demand(2, 4))
    run.evaluated(5.0, version=3)
    run.look(1003.5)
    run.evaluated(150.0, 170.0, version=500)
    run.evaluated(20.0, version=600)
    run.hear(0, StopRequest("SIGINT", 130))
    run.hear(2, Goodbye(report("collector", 0.984, env=0.5, policy=0.3, wait=0.004, record=0.2)))
    run.hear(1, Goodbye(report("learner", 1.25, train=1.0)))
    told = summary(run.scheduler, run.record, 75.0, report("coordinator", 0.05, wait=0.9))
    assert told == [
        "  12.3k env steps and 600 train iterations in 1m15s; 3 episodes; "
        "0.50 samples drawn per transition",
        "  data: 3 shards, 2.9 KiB; from a full block to learnable p50 15 ms",
        "  best evaluation: mean return 160.0 at env step 12.3k, policy of iteration 500",
        "  1 block could not be read; the log says why",
        "  rank 0    coordinator cpu   5%  wait 90%",
        "  rank 1    learner    cpu 125%  train 100%",
        "  rank 2    collector  cpu  98%  env 50%, policy 30%, record 20%",
    ]


def test_a_rank_that_says_nothing_of_itself() -> None:
    run = Shown()
    run.hear(0, StopRequest("SIGINT", 130))
    run.hear(3, Goodbye())
    told = summary(run.scheduler, run.record, 1.0, report("coordinator", 0.0))
    assert told[-1] == "  rank 3    ?          cpu   0%  "
