"""Logs of ranks, read from behind, followed, and merged."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from hpcdi.commands.logs import LogReader, first_error, last_lines, logs_of, newest_lines, parse
from hpcdi.commands.tail import parse as parse_tail
from hpcdi.commands.tail import tail
from hpcdi.errors import LaunchError


def record(time: float, message: str, level: str = "INFO", **more: object) -> str:
    who = {"rank": 1, "role": "learner", "host": "h", "pid": 1, "restart": 0}
    return json.dumps({"time": time, "level": level, **who, "message": message, **more}) + "\n"


@pytest.mark.parametrize("count", [0, 1, 7, 1000, 5000])
def test_last_lines_are_the_last_whatever_their_length(tmp_path: Path, count: int) -> None:
    path = tmp_path / "log"
    lines = [f"{i} {'x' * (i % 977)}".encode() for i in range(1000)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert last_lines(path, count) == (lines[-count:] if count else [], path.stat().st_size)


def test_a_line_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    assert last_lines(path, 5) == ([b"one"], 4)
    path.write_bytes(b"tw")
    assert last_lines(path, 5) == ([], 0)
    path.write_bytes(b"")
    assert last_lines(path, 5) == ([], 0)


def test_a_reader_gives_what_is_added_and_takes_up_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "rank00001.jsonl"
    reader = LogReader(1, path)
    assert reader.take() == []
    path.write_text(record(1.0, "a") + record(2.0, "b")[:10])
    assert [line.entry["message"] for line in reader.take()] == ["a"]
    path.write_text(record(1.0, "a") + record(2.0, "b"))
    assert [line.entry["message"] for line in reader.take()] == ["b"]
    assert reader.take() == []
    path.rename(tmp_path / "rank00001.jsonl.1")  # rotated
    assert reader.take() == []
    path.write_text(record(3.0, "a longer one than all before it" * 9))
    assert [line.time for line in reader.take()] == [3.0]
    path.write_text(record(4.0, "c"))  # truncated
    assert [line.entry["message"] for line in reader.take()] == ["c"]


def test_a_torn_line_is_shown_where_it_stood() -> None:
    raw = [record(5.0, "before").encode().strip(), b'{"time": 6.0, "lev']
    before, torn = parse(3, raw)
    assert (torn.time, torn.rank, torn.level) == (5.0, 3, logging.WARNING)
    assert 'rank 3 (a torn line) {"time": 6.0, "lev' in str(torn)
    assert before.entry["message"] == "before"


def test_a_line_for_people() -> None:
    more = {"scalars": {"loss": 0.123456}, "train_iter": 7}
    (line,) = parse(1, [record(1.25, "train", "WARNING", **more).encode()])
    assert str(line).endswith(
        ".250 rank 1 learner     WARNING train  scalars (loss 0.1235), train_iter 7"
    )
    (raised,) = parse(1, [record(1.0, "oh", traceback="Traceback:\n  ValueError: 1").encode()])
    assert str(raised).endswith("rank 1 learner     oh\n    Traceback:\n      ValueError: 1")
    printed = [f"rank0000{rank}.log:\n    {99 * 'x'}" for rank in range(4)]
    detail = "\n".join(printed).replace("\n    ", "\n")
    (failed,) = parse(1, [record(1.0, "it failed", detail=detail, env_id=3).encode()])
    assert str(failed).endswith("\n    ".join(["it failed  env_id 3", *printed]))
    (table,) = parse(1, [record(1.0, "ranks", table=["  rank  role", "     0  x"], n=1).encode()])
    assert str(table).endswith("rank 1 learner     ranks  n 1\n      rank  role\n         0  x")


def write_logs(folder: Path) -> None:
    folder.mkdir()
    (folder / "rank00000.jsonl").write_text(
        record(1.0, "a") + record(3.0, "c", "WARNING") + record(5.0, "e")
    )
    (folder / "rank00012.jsonl").write_text(record(2.0, "b") + record(4.0, "d"))
    (folder / "notes.txt").write_text("")


def test_ranks_are_merged_by_time(tmp_path: Path) -> None:
    write_logs(tmp_path / "log")
    logs = logs_of(tmp_path / "log")
    assert list(logs) == [0, 12]
    lines, readers = newest_lines(logs, 3, logging.INFO)
    assert [(line.rank, line.entry["message"]) for line in lines] == [(0, "c"), (12, "d"), (0, "e")]
    assert [line for reader in readers for line in reader.take()] == []


def test_the_last_warning_is_found_behind_many_lines(tmp_path: Path) -> None:
    path = tmp_path / "rank00000.jsonl"
    path.write_text(record(1.0, "look", "WARNING") + record(2.0, "train") * 500)
    lines, _ = newest_lines({0: path}, 3, logging.WARNING)
    assert [line.entry["message"] for line in lines] == ["look"]


def test_the_first_error_of_a_part_of_the_run_is_the_one(tmp_path: Path) -> None:
    write_logs(tmp_path / "log")
    with (tmp_path / "log" / "rank00012.jsonl").open("a") as file:
        file.write(record(6.0, "old", traceback="T"))
        file.write(record(11.0, "this rank failed", traceback="T", restart=1))
    with (tmp_path / "log" / "rank00000.jsonl").open("a") as file:
        file.write(record(12.0, "this follows", "ERROR", restart=1))
    logs = logs_of(tmp_path / "log")
    found = first_error(logs, restart=1)
    assert found is not None
    assert (found.rank, found.time) == (12, 11.0)
    first = first_error(logs, restart=0)
    assert first is not None
    assert first.time == 6.0
    assert first_error(logs, restart=2) is None


def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    tail(parse_tail([str(tmp_path), "--json", *options]), lambda: (None, ""))
    return [json.loads(line)["message"] for line in capsys.readouterr().out.splitlines()]


def test_what_tail_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_logs(tmp_path / "log")
    assert shown(tmp_path, capsys) == ["a", "b", "c", "d", "e"]
    assert shown(tmp_path, capsys, "--lines", "2") == ["d", "e"]
    assert shown(tmp_path, capsys, "-n", "0") == []
    assert shown(tmp_path, capsys, "--rank", "12") == ["b", "d"]
    assert shown(tmp_path, capsys, "--level", "warning") == ["c"]


def test_tail_refuses_what_is_not_there(tmp_path: Path) -> None:
    def run(*options: str) -> None:
        tail(parse_tail([str(tmp_path), *options]), lambda: (0, ""))

    with pytest.raises(LaunchError, match=r"no rank has written to .* yet; -f waits"):
        run()
    write_logs(tmp_path / "log")
    with pytest.raises(LaunchError, match=r"no log of rank 3 in .*; it has ranks 0 to 12"):
        run("--rank", "3")


def test_tail_does_not_follow_a_rank_that_the_run_never_had(tmp_path: Path) -> None:
    write_logs(tmp_path / "log")
    with pytest.raises(LaunchError, match=r"no log of rank 99 in .*; it has ranks 0 to 12"):
        tail(parse_tail([str(tmp_path), "--rank", "99", "-f"]), lambda: (1, "it has failed"))


@pytest.mark.parametrize(("code", "returned"), [(0, 0), (1, 1), (85, 85), (130, 130)])
def test_tail_follows_to_the_end_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int, returned: int
) -> None:
    """What is written until the run is over is shown, of ranks that come later, too."""
    write_logs(tmp_path / "log")
    looks: list[int] = []

    def verdict() -> tuple[int | None, str]:
        looks.append(1)
        (tmp_path / "log" / "rank00013.jsonl").write_text(record(7.0, "late"))
        with (tmp_path / "log" / "rank00000.jsonl").open("a") as file:
            file.write(record(6.0, "last"))
        return code, "the run is over"

    given = parse_tail([str(tmp_path), "-n", "1", "--follow", "--json"])
    assert tail(given, verdict) == returned
    out, err = capsys.readouterr()
    assert [json.loads(line)["message"] for line in out.splitlines()] == ["e", "last", "late"]
    assert err == "hpcdi tail: the run is over\n"
    assert looks == [1]
