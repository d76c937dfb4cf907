"""`hpcdi sweep --local`: real runs, of which one fails and is started again alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from jobs import CARTPOLE, HPCDI, PYTHONPATH, QUICK, hpcdi, until, wait_until_gone

from fakes.patience import stretched

pytestmark = [pytest.mark.job, pytest.mark.slow]

SWEEP = (
    "seed=0..2", *QUICK, "policy.type=planted_run", "policy.import_names=[fakes.planted_policies]",
    "--local", "--serial",
)  # fmt: skip


def states(root: Path) -> list[str]:
    return [run["state"] for run in json.loads((root / "sweep.json").read_text())["runs"]]


def test_the_run_that_failed_is_started_again_alone(tmp_path: Path) -> None:
    root, planted = tmp_path / "s", tmp_path / "planted"
    planted.write_text("001")
    variables = {"PLANTED_WHILE": str(planted)}
    ran = hpcdi("sweep", CARTPOLE, *SWEEP, "--jobs", 2, "--sweep-dir", root, variables=variables)
    assert ran.code == 1, ran.said
    assert "run 1 (seed=1) failed after" in ran.out
    assert "runs 1 are not done" in ran.err
    assert states(root) == ["done", "failed", "done"]
    assert "planted in run 001" in (root / "output" / "001.out").read_text()
    before = {run: (root / run / "run.json").read_text() for run in ("000", "002")}

    planted.unlink()
    again = hpcdi("sweep", "resume", root, "--local", variables=variables)
    assert again.code == 0, again.said
    assert [line.split()[1] for line in again.out.splitlines()] == ["1", "1"]
    assert states(root) == ["done"] * 3
    assert before == {run: (root / run / "run.json").read_text() for run in before}
    table = hpcdi("sweep", "status", root)
    assert table.code == 0
    assert "cartpole_dqn: 3 runs, 3 done" in table.out


def test_ctrl_c_ends_the_runs_in_order(tmp_path: Path) -> None:
    root = tmp_path / "s"
    command = [
        *HPCDI, "sweep", str(CARTPOLE), "seed=0..3", "env.stop_value=1e9", "--local", "--serial",
        "--sweep-dir", str(root),
    ]  # fmt: skip
    environment = {**os.environ, **PYTHONPATH}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, process_group=0, env=environment
    ) as process:
        try:
            until((root / "000" / "status.json").exists, "the first run has not begun")
            process.send_signal(signal.SIGINT)
            assert process.wait(stretched()) == 130
        finally:
            process.kill()
    assert states(root) == ["stopped", "waiting", "waiting", "waiting"]
    wait_until_gone(root)
