"""A run on this host that starts again, with a shell command in the place of `hpcdi train`."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdi.commands import submitted
from hpcdi.commands.submitted import JobFailedError, exit_code_in, run_here
from hpcdi.run import job_end

TRAIN = """#!/bin/bash
# $0 CODES, and words of hpcdi train: ends with the next of the codes; - before it: has not begun
trap : TERM
run=${@: -1}
echo "$*" >> "$run/starts"
code=$(sed -n "$(wc -l < "$run/starts")p" "$1")
case $code in -*) ;; *) date +%N > "$run/run.json" ;; esac
case $code in TERM) kill -TERM $PPID; sleep 0.2; exit 85 ;; esac
exit "${code#-}"
"""


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    numbers = (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)
    old = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in old.items():
        signal.signal(number, handler)


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *codes: object) -> int:
    """Run a job whose starts end so; returns its exit code."""
    (folder / "codes").write_text("".join(f"{code}\n" for code in codes))
    (folder / "train").write_text(TRAIN)
    (folder / "train").chmod(0o755)
    command = [str(folder / "train"), str(folder / "codes")]
    monkeypatch.setattr(submitted, "python_command", lambda *_words: command)
    monkeypatch.setattr(submitted, "IN_VAIN_S", 0.0)
    return run_here(str(folder), 3, "--run-dir")


def starts(folder: Path) -> int:
    return len((folder / "starts").read_text().splitlines())


@pytest.mark.parametrize(
    ("codes", "returned"),
    [
        ([0], 0),
        ([85, 85, 0], 0),
        ([-85, -85, -85, 85, -85, 0], 0),
        (["TERM"], 85),  # to the job itself, in the middle of the run
    ],
)
def test_a_run_starts_again_until_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes: list[object], returned: int
) -> None:
    assert run(tmp_path, monkeypatch, *codes, 77) == returned
    assert starts(tmp_path) == len(codes)


def test_near_the_end_of_a_job_around_it_it_does_not_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 50))
    assert run(tmp_path, monkeypatch, 85, 0) == 85
    assert starts(tmp_path) == 1


def test_where_the_job_around_it_was_prolonged_it_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 50))
    for left_s, code in ((3600.0, 0), (40.0, 85)):
        monkeypatch.setattr(job_end, "asked_end", lambda _variables, now, s=left_s: now + s)
        (tmp_path / "starts").unlink(missing_ok=True)
        assert run(tmp_path, monkeypatch, 85, 0) == code


@pytest.mark.parametrize("codes", [[1], [85, 143], [-85, -85, -85, -85]])
def test_a_run_that_fails_fails_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes: list[int]
) -> None:
    with pytest.raises(JobFailedError, match=f"exit code {abs(codes[-1])}$"):
        run(tmp_path, monkeypatch, *codes, 0)
    assert starts(tmp_path) == len(codes)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("failed:\n  raise\nhpcdi.x.JobFailedError: train a.yaml: exit code 2\nYou can", 2),
        ("x.JobFailedError: train: exit code 85", 1),  # starts in vain
        ("x.JobFailedError: train: exit code -9", 1),
        ("Job has not produced any output", 1),
    ],
)
def test_the_exit_code_is_that_of_the_last_start(said: str, code: int) -> None:
    assert exit_code_in(said) == code
