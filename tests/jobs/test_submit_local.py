"""`hpcdi submit --local`: the job of a cluster on this host, through submitit's local executor."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from jobs import CARTPOLE, ENDLESS, QUICK, Ended, hpcdi, logged, until, wait_until_gone

pytestmark = [pytest.mark.job, pytest.mark.slow]

THREE_RANKS = ("--ntasks-per-node", "3")


def submit(run_dir: Path, *words: str) -> Ended:
    return hpcdi("submit", CARTPOLE, *QUICK, "--local", *words, "--run-dir", run_dir)


def state_of(run_dir: Path) -> str:
    file = run_dir / "run.json"
    text = file.read_text() if file.exists() else ""  # empty: it is just being claimed
    return str(json.loads(text)["state"]) if text else ""


def restarts_of(run_dir: Path) -> int:
    """How often the run that runs now has been started again."""
    if state_of(run_dir) != "running":
        return 0
    return int(json.loads((run_dir / "run.json").read_text()).get("restarts", 0))


def test_a_run_that_is_waited_for(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = submit(run_dir, "--wait", *THREE_RANKS)
    assert done.code == 0, done.err
    assert "3 ranks on this host" in done.out
    assert "solved: " in done.out
    assert state_of(run_dir) == "done"
    again = submit(run_dir, "--wait")  # the folder is another run's now
    assert again.code == 2
    assert "holds another run" in again.err


def test_a_run_that_goes_on_when_the_command_has_ended(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = submit(run_dir, "env.stop_value=1000", *THREE_RANKS)
    assert done.code == 0, done.err
    (number,) = re.findall(r"^local job (\d+): 3 ranks", done.out, flags=re.MULTILINE)
    assert f"  kill {number}\n" in done.out
    until(lambda: bool(logged(run_dir, 1, '"scalars"')), "it does not learn")
    (limit_s,) = re.findall(
        rb"SUBMITIT_LOCAL_TIMEOUT_S=(\d+)", Path(f"/proc/{number}/environ").read_bytes()
    )
    assert int(limit_s) > 365 * 86400, "the time limit of a queue ends no job here"
    os.kill(json.loads((run_dir / "run.json").read_text())["pid"], signal.SIGUSR2)
    until(lambda: bool(restarts_of(run_dir)), "it has not started again")
    os.kill(int(number), signal.SIGTERM)
    until(lambda: state_of(run_dir) == "stopped", "it has not stopped")
    wait_until_gone(run_dir)
    assert list((run_dir / "snapshots").iterdir())
    said = "".join(path.read_text() for path in run_dir.glob("submit/submitit/*.err"))
    assert "Traceback" not in said


def test_a_run_that_fails_as_its_network_diverges(tmp_path: Path) -> None:
    wrong = (*ENDLESS, "policy.learn.learning_rate=1e38", *THREE_RANKS)
    failed = submit(tmp_path / "run", "--wait", *wrong)
    assert failed.code == 1
    assert state_of(tmp_path / "run") == "failed"
    assert "the network has diverged" in (tmp_path / "run" / "run.json").read_text()
    assert "hpcdi: rank " in failed.said
    assert "Lower policy.learn.learning_rate" in failed.said
