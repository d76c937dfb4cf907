"""DI-engine's serial entries, and a program, with one changed import, beside DI-engine itself.

Both draw the same samples from their buffers (`entry.SameDraws`), so everything else must be the
same for the evaluations to come at the same steps and to have the same returns.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CARTPOLE, PENDULUM = (f"classic_control.{name}.config.{name}" for name in ("cartpole", "pendulum"))
RUNS = [  # each is evaluated again after it has learnt
    ("serial", f"{CARTPOLE}_dqn_config", 600, 40),
    ("onpolicy", f"{CARTPOLE}_ppo_config", 1500, 16),
    ("onpolicy", f"{CARTPOLE}_a2c_config", 1000, 5),
    ("onpolicy", f"{CARTPOLE}_pg_config", 4000, 1),
    ("serial", f"{CARTPOLE}_impala_config", 1000, 30),
    ("serial", f"{CARTPOLE}_r2d2_config", 1500, 5),
    ("serial", f"{CARTPOLE}_c51_config", 700, 20),
    ("serial", f"{CARTPOLE}_rainbow_config", 1000, 15),
    ("serial", f"{CARTPOLE}_acer_config", 1000, 10),
    ("ngu", f"{CARTPOLE}_ngu_config", 400, 5),
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


@pytest.fixture(scope="module")
def servers() -> Iterator[list[subprocess.Popen[str]]]:
    """DI-engine and hpcdi, each in a process that forks one for each run."""
    environment = {"PYTHONPATH": str(HERE.parent.parent), "PYTHONWARNINGS": "ignore"}
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, HERE / "entry.py", package],
                    env={**os.environ, **environment},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for package in ("ding", "hpcdi")
        ]  # whose end of file, as the stack closes, is their end


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run[1].rpartition(".")[2])
def test_one_changed_import(
    servers: list[subprocess.Popen[str]], run: tuple[str, str, int, int]
) -> None:
    for server in servers:  # both run at the same time
        assert server.stdin is not None
        server.stdin.write(" ".join(map(str, run)) + "\n")
        server.stdin.flush()
    lines = [server.stdout.readline() for server in servers if server.stdout is not None]
    assert "\n" not in lines, "one has failed, see what it has written to stderr"
    theirs, ours = map(json.loads, lines)
    assert len(theirs) >= 2
    for one, other in zip(ours, theirs, strict=True):
        # DI-engine's evaluator shortens returns to float32
        assert one["returns"] == pytest.approx(other["returns"], rel=1e-6)
        for key in ("train_iter", "envstep"):
            assert one[key] == other[key]
