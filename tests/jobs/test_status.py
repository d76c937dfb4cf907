"""`hpcdi status` and `hpcdi tail` beside real runs: while they run, when they are gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import CARTPOLE, QUICK, Running, is_learning, processes_of

pytestmark = pytest.mark.job
Start = Callable[..., Running]

ENDLESS = ("env.stop_value=1e9", "policy.other.commander.max_env_step=1e9")


def hpcdi(*arguments: object, limit_s: float = 30.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hpcdi", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)


def status(run_dir: Path) -> tuple[int, dict[str, Any]]:
    asked = hpcdi("status", run_dir, "--json")
    assert asked.stdout, asked.stderr
    return asked.returncode, json.loads(asked.stdout)


def test_a_run_that_runs_dies_and_goes_on(start: Start, resume: Start) -> None:
    job = start(CARTPOLE, *ENDLESS, "system.snapshot_s=2")
    job.until(lambda: is_learning(job))
    job.until(lambda: any((job.run_dir / "snapshots").glob("snapshot_*")))
    job.until(lambda: status(job.run_dir)[1]["progress"].get("env_steps", 0) > 0)
    code, told = status(job.run_dir)
    assert (code, told["state"], told["why"]) == (0, "running", "")
    assert told["age_s"] < 20
    assert told["progress"]["env_steps"] > 0
    assert set(told["progress"]["idle"]) & {"1", "2", "3"}  # one may be evaluating since its start
    assert told["next"][0].startswith("hpcdi tail ")
    for pid in processes_of(job.run_dir):  # the launcher, too: nobody is left to say anything
        os.kill(pid, signal.SIGKILL)
    job.process.wait()
    assert processes_of(job.run_dir) == []
    code, told = status(job.run_dir)
    assert (code, told["state"]) == (1, "dead")
    assert "is gone; its last word is" in told["why"]
    assert json.loads((job.run_dir / "run.json").read_text())["state"] == "running"  # its own word
    steps = told["progress"]["env_steps"]
    followed = hpcdi("tail", job.run_dir, "-f", "-n", 5)
    assert followed.returncode == 1
    assert "hpcdi tail: the run is dead" in followed.stderr
    assert told["next"][-1] == f"hpcdi train --resume {job.run_dir}"

    again = resume(job.run_dir, "env.stop_value=20")
    watched = hpcdi("status", job.run_dir, "--watch", 0.5, limit_s=90)
    ended = again.wait()
    assert ended.code == 0, ended.out + ended.err
    assert watched.returncode in (0, 1)  # 1: it looked before the run was taken up again
    code, told = status(job.run_dir)
    assert (code, told["state"], told["restarts"]) == (0, "done", 1)
    assert told["progress"]["env_steps"] > steps / 2
    assert told["next"] == [f"hpcdi eval {job.run_dir}"]


def test_an_error_is_told_with_its_rank_and_traceback(start: Start, tmp_path: Path) -> None:
    variables = {"PLANTED_AT": str(tmp_path / "planted_at")}
    planted = ("policy.type=planted_collector", "policy.import_names=[planted]")
    ended = start(CARTPOLE, *ENDLESS, *planted, variables=variables).wait()
    assert ended.code == 1
    asked = hpcdi("status", ended.run_dir)
    assert asked.returncode == 1
    assert "failed; RuntimeError: planted in the collector" in asked.stdout
    assert "(collector, host " in asked.stdout
    assert 'raise RuntimeError(f"planted in the {where}")' in asked.stdout


def test_tail_follows_a_run_to_its_end(start: Start) -> None:
    job = start(CARTPOLE, *QUICK)
    job.until(lambda: (job.run_dir / "run.json").exists())
    followed = hpcdi("tail", job.run_dir, "-f", "--json", limit_s=90)
    ended = job.wait()
    assert ended.code == 0, ended.out + ended.err
    assert followed.returncode == 0, followed.stderr
    assert followed.stderr == "hpcdi tail: the run is done\n"
    shown = [json.loads(line) for line in followed.stdout.splitlines()]
    assert {line["rank"] for line in shown} >= {0, 1}
    written = [
        json.loads(line)
        for path in (ended.run_dir / "log").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert sorted(shown, key=json.dumps) == sorted(written, key=json.dumps)  # each once
