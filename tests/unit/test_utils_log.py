"""JSON-lines logs and lines on the terminal."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcdi.utils.log import LOGGER, close_log, open_log, say


@pytest.fixture(autouse=True)
def _logger_as_it_was() -> Iterator[None]:
    level, propagate = LOGGER.level, LOGGER.propagate
    yield
    close_log()
    LOGGER.setLevel(level)
    LOGGER.propagate = propagate


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_line_is_json_and_says_who_and_when(tmp_path: Path) -> None:
    path = tmp_path / "log" / "rank00003.jsonl"  # the folder is made
    open_log(path, 3, "collector")
    LOGGER.info("episode %d\nof two lines", 7, extra={"episode_return": 1.5, "ids": [1, 2]})
    LOGGER.debug("not told")
    (entry,) = lines_of(path)
    assert entry["message"] == "episode 7\nof two lines"
    assert (entry["rank"], entry["role"], entry["level"]) == (3, "collector", "INFO")
    assert (entry["episode_return"], entry["ids"]) == (1.5, [1, 2])
    assert entry["time"] > 1.6e9
    assert entry.keys() >= {"host", "pid"}
    assert entry["restart"] == 0


def test_a_restart_goes_on_in_the_same_file_and_says_which_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for restart in range(3):
        open_log(path, 0, "coordinator", restart)
        LOGGER.info("here")
    assert [entry["restart"] for entry in lines_of(path)] == [0, 1, 2]


def test_a_traceback_is_a_field(tmp_path: Path) -> None:
    open_log(tmp_path / "log.jsonl", 0, "coordinator")
    try:
        int("planted")
    except ValueError:
        LOGGER.exception("it failed")
    (entry,) = lines_of(tmp_path / "log.jsonl")
    assert entry["message"] == "it failed"
    assert entry["level"] == "ERROR"
    assert entry["traceback"].startswith("Traceback")
    assert entry["traceback"].endswith("invalid literal for int() with base 10: 'planted'")


def test_what_json_does_not_know(tmp_path: Path) -> None:
    open_log(tmp_path / "log.jsonl", 0, "coordinator")
    told = {"path": Path("a/b"), "number": np.float32(1.5), "lost": float("nan"), "all": [np.inf]}
    LOGGER.info("x", extra={**told, "nested": {"count": np.int64(3)}})
    (entry,) = lines_of(tmp_path / "log.jsonl")
    assert (entry["path"], entry["number"], entry["nested"]) == ("a/b", 1.5, {"count": 3})
    assert (entry["lost"], entry["all"]) == (None, [None])


def test_a_record_cannot_hide_who_speaks(tmp_path: Path) -> None:
    open_log(tmp_path / "log.jsonl", 0, "coordinator")
    LOGGER.info("x", extra={"rank": 7, "role": "learner"})
    (entry,) = lines_of(tmp_path / "log.jsonl")
    assert (entry["rank"], entry["role"]) == (0, "coordinator")


def test_opening_again_closes_the_first_log(tmp_path: Path) -> None:
    open_log(tmp_path / "a.jsonl", 0, "coordinator")
    open_log(tmp_path / "b.jsonl", 0, "coordinator")
    LOGGER.info("x")
    assert lines_of(tmp_path / "a.jsonl") == []
    assert len(lines_of(tmp_path / "b.jsonl")) == 1
    assert len(LOGGER.handlers) == 2


def test_closing_twice_is_fine(tmp_path: Path) -> None:
    open_log(tmp_path / "a.jsonl", 0, "coordinator")
    assert not LOGGER.propagate
    close_log()
    close_log()
    assert LOGGER.handlers == []
    assert LOGGER.propagate, "as it was before"


@pytest.mark.parametrize(
    ("rank", "line"),
    [(0, "warning: disk is full\n"), (2, "[rank 2 collector] warning: disk is full\n")],
)
def test_warnings_reach_the_terminal_and_say_who(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rank: int, line: str
) -> None:
    open_log(tmp_path / "a.jsonl", rank, "collector")
    LOGGER.info("only in the file")
    LOGGER.warning("disk is full")
    assert capsys.readouterr().err == line


def test_records_do_not_reach_the_root_logger(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_log(tmp_path / "a.jsonl", 0, "coordinator")
    with caplog.at_level(logging.INFO):
        LOGGER.warning("x")
    assert caplog.records == []


def test_say_prints_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    say("solved")
    say()
    assert capsys.readouterr().out == "solved\n\n"


def test_like_warnings_are_shown_once_with_their_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.jsonl"
    open_log(path, 2, "collector")
    for number in range(48):
        LOGGER.warning("environment %d failed", number % 8, extra={"once": "an environment failed"})
    LOGGER.warning("another")
    LOGGER.warning("another")
    close_log()
    assert capsys.readouterr().err.splitlines() == [
        "[rank 2 collector] warning: environment 0 failed",
        "[rank 2 collector] warning: another",
        "[rank 2 collector] warning: another",
        "[rank 2 collector] warning: 48 times: an environment failed",
    ]
    assert len(lines_of(path)) == 50, "the file has all of them"
