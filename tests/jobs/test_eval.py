"""A run over ranks leaves a policy: `hpcdi eval` says what it is worth, `hpcdi export` gives it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import CARTPOLE, Running, temporary_files

pytestmark = pytest.mark.job

RANDOM_RETURN = 30.0
"""Acting at random gives 22 in CartPole."""

PLAY = """
import sys
import gymnasium
import torch

act = torch.export.load(sys.argv[1]).module()
env = gymnasium.make_vec("CartPole-v1", num_envs=20, vectorization_mode="sync")
observation, _ = env.reset(seed=1)
alive, total = torch.ones(20, dtype=torch.bool), 0
while alive.any():
    actions, _ = act(torch.from_numpy(observation))
    observation, _, terminated, truncated, _ = env.step(actions.numpy())
    total += int(alive.sum())
    alive &= ~torch.from_numpy(terminated | truncated)
assert "hpcdi" not in sys.modules
print(total / 20)
"""
"""Plays by the exported file alone; prints the mean return."""


def hpcdi(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "hpcdi", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)


def test_what_a_run_has_learnt(start: Callable[..., Running], tmp_path: Path) -> None:
    job = start(CARTPOLE, "-n", "3", "env.stop_value=60")
    best = job.run_dir / "policies" / "best.safetensors"
    job.until(best.is_file)
    early = hpcdi("eval", job.run_dir, "--json")  # while it is running
    assert early.returncode == 0, early.stderr
    ended = job.wait()
    assert ended.code == 0, ended.out + ended.err

    before = {path: path.stat().st_mtime_ns for path in job.run_dir.rglob("*")}
    first, again = (hpcdi("eval", job.run_dir, "--json", "--seed", "5") for _ in range(2))
    assert (first.returncode, first.stderr) == (0, "")
    said, other = json.loads(first.stdout), json.loads(again.stdout)
    assert said["returns"] == other["returns"]
    assert said["return_mean"] > 1.5 * RANDOM_RETURN
    assert said["train_iter"] >= json.loads(early.stdout)["train_iter"]
    assert {path: path.stat().st_mtime_ns for path in job.run_dir.rglob("*")} == before

    file = tmp_path / "out" / "policy.pt2"
    exported = hpcdi("export", job.run_dir, "-o", file)
    assert (exported.returncode, exported.stderr) == (0, "")
    assert not temporary_files(tmp_path)
    played = subprocess.run(
        [sys.executable, "-c", PLAY, str(file)], capture_output=True, text=True, check=False
    )
    assert played.returncode == 0, played.stderr
    assert float(played.stdout) > 1.5 * RANDOM_RETURN
