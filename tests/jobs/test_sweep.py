"""`hpcdi sweep --local`: real runs, of which one fails and is started again alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import CARTPOLE, HERE, QUICK, processes_of

pytestmark = pytest.mark.job

SWEEP = (
    "seed=0..3", *QUICK, "policy.type=planted_run", "policy.import_names=[planted]",
    "--local", "--serial",
)  # fmt: skip


def hpcdi(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {"PYTHONPATH": str(HERE), "PLANTED_WHILE": str(tmp_path / "planted")}
    return subprocess.run(
        [sys.executable, "-m", "hpcdi", *arguments], capture_output=True, text=True, timeout=120,
        env={**os.environ, **variables}, check=False,
    )  # fmt: skip


def states(root: Path) -> list[str]:
    return [run["state"] for run in json.loads((root / "sweep.json").read_text())["runs"]]


def test_the_run_that_failed_is_started_again_alone(tmp_path: Path) -> None:
    root = tmp_path / "s"
    (tmp_path / "planted").write_text("002")
    ran = hpcdi(tmp_path, "sweep", str(CARTPOLE), *SWEEP, "--jobs", "2", "--sweep-dir", str(root))
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "run 2 (seed=2) failed after" in ran.stdout
    assert "runs 2 are not done" in ran.stderr
    assert states(root) == ["done", "done", "failed", "done"]
    assert "planted in run 002" in (root / "output" / "002.out").read_text()
    before = {run: (root / run / "run.json").read_text() for run in ("000", "001", "003")}

    (tmp_path / "planted").unlink()
    again = hpcdi(tmp_path, "sweep", "resume", str(root), "--local")
    assert again.returncode == 0, again.stdout + again.stderr
    assert [line.split()[1] for line in again.stdout.splitlines()] == ["2", "2"]
    assert states(root) == ["done"] * 4
    assert before == {run: (root / run / "run.json").read_text() for run in before}
    table = hpcdi(tmp_path, "sweep", "status", str(root))
    assert table.returncode == 0
    assert "cartpole_dqn: 4 runs, 4 done" in table.stdout


def test_ctrl_c_ends_the_runs_in_order(tmp_path: Path) -> None:
    root = tmp_path / "s"
    command = [
        sys.executable, "-m", "hpcdi", "sweep", str(CARTPOLE), "seed=0..3", "env.stop_value=1e9",
        "--local", "--serial", "--sweep-dir", str(root),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, process_group=0) as process:
        try:
            deadline = time.monotonic() + 60
            while not (root / "000" / "status.json").exists():
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
    assert states(root) == ["stopped", "waiting", "waiting", "waiting"]
    assert processes_of(root) == []
