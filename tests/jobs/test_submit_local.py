"""`hpcdi submit --local`: the job of a cluster on this host, through submitit's local executor."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import CARTPOLE, QUICK, processes_of

pytestmark = pytest.mark.job


def submit(run_dir: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "hpcdi", "submit", CARTPOLE, *QUICK, "--local", *words]
    return subprocess.run(
        [*line, "--run-dir", run_dir], capture_output=True, text=True, timeout=120, check=False
    )


def state_of(run_dir: Path) -> str:
    file = run_dir / "run.json"
    text = file.read_text() if file.exists() else ""  # empty: it is just being claimed
    return str(json.loads(text)["state"]) if text else ""


def is_learning(run_dir: Path) -> bool:
    log = run_dir / "log" / "rank00001.jsonl"
    return log.exists() and '"scalars"' in log.read_text()


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_run_that_is_waited_for(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = submit(run_dir, "--wait", "--ntasks-per-node", "3")
    assert done.returncode == 0, done.stderr
    assert "3 ranks on this host" in done.stdout
    assert "solved: " in done.stdout
    assert state_of(run_dir) == "done"
    again = submit(run_dir, "--wait")  # the folder is another run's now
    assert again.returncode == 2
    assert "holds another run" in again.stderr


def test_a_run_that_goes_on_when_the_command_has_ended(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = submit(run_dir, "env.stop_value=1000")  # it cannot be over yet
    assert done.returncode == 0, done.stderr
    (number,) = re.findall(r"^local job (\d+): 4 ranks", done.stdout, flags=re.MULTILINE)
    assert f"  kill {number}\n" in done.stdout
    until(lambda: state_of(run_dir) == "running" and is_learning(run_dir))
    os.kill(int(number), signal.SIGTERM)
    until(lambda: state_of(run_dir) != "running" and not processes_of(run_dir))
    assert state_of(run_dir) == "stopped"
    assert list((run_dir / "snapshots").iterdir())


def test_a_run_that_fails(tmp_path: Path) -> None:
    failed = submit(tmp_path / "run", "--wait", "policy.learn.learning_rate=.inf")
    assert failed.returncode == 1
    assert state_of(tmp_path / "run") == "failed"
    assert "hpcdi: rank " in failed.stdout + failed.stderr
