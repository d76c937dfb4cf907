"""DI-engine's configuration files, as they come with it, by `hpcdi serial` and `hpcdi train`.

Policies, networks and environments are DI-engine's; collecting, replay, learning, evaluating and
snapshots are hpcdi's. The short runs show that each kind of data is learnt from; with
HPCDI_DING_SOLVE=1 all of them go on until they have reached their stop value.
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
SOLVES = bool(os.environ.get("HPCDI_DING_SOLVE"))
CARTPOLE, PENDULUM = (f"classic_control/{name}/config/{name}" for name in ("cartpole", "pendulum"))
FILES = [
    f"{CARTPOLE}_dqn_config.py",
    f"{CARTPOLE}_ppo_config.py",
    f"{CARTPOLE}_r2d2_config.py",
    f"{CARTPOLE}_impala_config.py",
    f"{PENDULUM}_sac_config.py",
    f"{CARTPOLE}_a2c_config.py",
    f"{CARTPOLE}_pg_config.py",
    f"{CARTPOLE}_c51_config.py",
]
LIMIT = "policy.other.commander.max_train_iter"

pytestmark = [
    pytest.mark.ding,
    pytest.mark.skipif(
        importlib.util.find_spec("dizoo") is None, reason="DI-engine is not here: make ding"
    ),
]


def run(folder: Path, command: str, file: str, *arguments: str) -> dict[str, Any]:
    """Trains; returns what the run says of itself."""
    path = Path(str(importlib.util.find_spec("dizoo").origin)).parent / file  # type: ignore[union-attr]
    root = str(HERE.parent.parent)
    done = subprocess.run(
        [sys.executable, "-m", "hpcdi", command, path, "--run-dir", folder / "run", *arguments],
        env={**os.environ, "PYTHONPATH": f"{HERE}:{root}", "PYTHONWARNINGS": "ignore"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "run" / "run.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("file", [FILES[0], FILES[4]], ids=lambda name: Path(name).stem)
def test_it_runs_in_one_process(tmp_path: Path, file: str) -> None:
    facts = run(tmp_path, "serial", file, f"{LIMIT}=60")
    assert facts["figures"]["train_iter"] >= 60


@pytest.mark.parametrize("file", [*FILES[1:4], FILES[6]], ids=lambda name: Path(name).stem)
def test_it_runs_over_ranks(tmp_path: Path, file: str) -> None:
    facts = run(tmp_path, "train", file, "-n", "3", f"{LIMIT}=20")
    assert facts["figures"]["train_iter"] >= 20
    assert facts["figures"]["blocks_lost"] == 0


@pytest.mark.skipif(not SOLVES, reason="takes ten minutes: set HPCDI_DING_SOLVE=1")
@pytest.mark.parametrize("command", ["serial", "train"])
@pytest.mark.parametrize("file", FILES, ids=lambda name: Path(name).stem)
def test_it_solves_its_task(tmp_path: Path, command: str, file: str) -> None:
    ranks = ("-n", "4") if command == "train" else ()
    facts = run(tmp_path, command, file, *ranks)
    assert "stop value reached" in facts["reason"]
