"""DI-engine's serial entries, and a program, with one changed import, beside DI-engine itself.

Both draw the same samples from their buffers (`entry.SameDraws`), so everything else must be the
same for the evaluations to come at the same steps and to have the same returns.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
CARTPOLE, PENDULUM = (f"classic_control.{name}.config.{name}" for name in ("cartpole", "pendulum"))
RUNS = [
    ("serial", f"{CARTPOLE}_dqn_config", 600, 40),
    ("onpolicy", f"{CARTPOLE}_ppo_config", 1500, 16),
    ("onpolicy", f"{CARTPOLE}_a2c_config", 1000, 5),
    ("onpolicy", f"{CARTPOLE}_pg_config", 4000, 1),
    ("serial", f"{CARTPOLE}_impala_config", 1500, 30),
    ("serial", f"{CARTPOLE}_r2d2_config", 2200, 5),
    ("serial", f"{CARTPOLE}_c51_config", 1000, 20),
    ("serial", f"{CARTPOLE}_rainbow_config", 1000, 15),
    ("serial", f"{CARTPOLE}_acer_config", 1500, 10),
    ("ngu", f"{CARTPOLE}_ngu_config", 1000, 10),
    ("ppg", f"{CARTPOLE}_ppg_config", 700, 10),
    ("serial", f"{PENDULUM}_sac_config", 1300, 10),
    ("serial", f"{PENDULUM}_td3_config", 1000, 5),
]

pytestmark = [
    pytest.mark.ding,
    pytest.mark.skipif(
        importlib.util.find_spec("dizoo") is None, reason="DI-engine is not here: make ding"
    ),
]


def evaluations(*arguments: object) -> Iterator[list[dict[str, Any]]]:
    """Evaluations by DI-engine and by hpcdi, each in a process of its own, at the same time."""
    root = str(HERE.parent.parent)
    started = [
        subprocess.Popen(
            [sys.executable, HERE / "entry.py", package, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": root, "PYTHONWARNINGS": "ignore"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for package in ("ding", "hpcdi")
    ]
    try:
        for process in started:
            out, err = process.communicate(timeout=300)
            assert process.returncode == 0, err[-3000:]
            yield json.loads(out.splitlines()[-1])
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run[1].rpartition(".")[2])
def test_one_changed_import(run: tuple[str, str, int, int]) -> None:
    theirs, ours = evaluations(*run)
    assert len(theirs) >= 2
    for one, other in zip(ours, theirs, strict=True):
        # DI-engine's evaluator shortens returns to float32
        assert one["returns"] == pytest.approx(other["returns"], rel=1e-6)
        for key in ("train_iter", "envstep"):
            assert one[key] == other[key]
