"""DI-engine's serial entries with one changed import, beside DI-engine itself.

Both draw the same samples from their buffers (`entry.SameDraws`), so everything else must be the
same for the evaluations to come at the same steps and to have the same returns.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
CARTPOLE, PENDULUM = (f"classic_control.{name}.config.{name}" for name in ("cartpole", "pendulum"))
RUNS = [
    ("serial", f"{CARTPOLE}_dqn_config", 600, 40),
    ("onpolicy", f"{CARTPOLE}_ppo_config", 1500, 16),
    ("onpolicy", f"{CARTPOLE}_a2c_config", 1000, 5),
    ("serial", f"{CARTPOLE}_impala_config", 1500, 30),
    ("serial", f"{CARTPOLE}_r2d2_config", 2200, 5),
    ("serial", f"{CARTPOLE}_c51_config", 1000, 20),
    ("serial", f"{CARTPOLE}_rainbow_config", 1000, 15),
    ("serial", f"{PENDULUM}_sac_config", 1300, 10),
    ("serial", f"{PENDULUM}_td3_config", 1000, 5),
]

pytestmark = [
    pytest.mark.ding,
    pytest.mark.skipif(
        importlib.util.find_spec("dizoo") is None, reason="DI-engine is not here: make ding"
    ),
]


def evaluations(package: str, *arguments: object) -> list[dict[str, Any]]:
    """Evaluations of a run in a process of its own."""
    root = str(HERE.parent.parent)
    done = subprocess.run(
        [sys.executable, HERE / "entry.py", package, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": root, "PYTHONWARNINGS": "ignore"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run[1].rpartition(".")[2])
def test_one_changed_import(run: tuple[str, str, int, int]) -> None:
    theirs, ours = evaluations("ding", *run), evaluations("hpcdi", *run)
    assert len(theirs) >= 2
    assert ours == theirs
