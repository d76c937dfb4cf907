"""Guests in a partition that preempts them: they come back, and nothing is counted twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_jobs import CARTPOLE, Cluster, solved_after

from hpcdi.store.inspect import inspect
from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import survey

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.early]


def stored_steps(run_dir: Path) -> int:
    layout = RunLayout(run_dir)
    blocks = [b for path in layout.shard_numbers() for b in survey(run_dir / path, path).blocks]
    return sum(block.transitions for _, block in blocks)


def test_guests_that_are_preempted_come_back(cluster: Cluster, tmp_path: Path) -> None:
    settings = solved_after(0, tmp_path, seen := tmp_path / "seen")
    size = ("--nodes=1", "--ntasks-per-node=4", "--time=20")
    job = cluster.submit(tmp_path, CARTPOLE, *size, *settings)
    job.until(lambda: job.env_steps > 200)
    where = ("--partition=preempt", "--time=10")
    said = cluster.hpcdi("submit", job.run_dir, "--guests", "0-1", *where)
    array = said.split()[1].rstrip(":")

    def guests() -> tuple[int, int]:
        now = job.progress.get("guests") or {"here": {}, "gone": 0}
        return len(now["here"]), now["gone"]

    job.until(lambda: guests() == (2, 0))
    host = job.run["placement"][0]["host"]
    all_others = ("--nodes=3", "--ntasks-per-node=4", f"--exclude={host}", "--partition=debug")
    cluster.run("sbatch", "--output=/dev/null", *all_others, "--wrap=sleep 3")
    job.until(lambda: guests()[1] == 2)
    job.until(lambda: guests() == (2, 2))
    assert "2 here" in cluster.hpcdi("status", job.run_dir)
    seen.touch()
    job.wait()
    assert job.progress["guests"]["env_steps"] > 0
    assert job.progress["env_steps"] == stored_steps(job.run_dir)
    assert not inspect(job.run_dir).errors
    cluster.array_states(type(job)(cluster, array, job.output, job.run_dir),
                         {"0": "COMPLETED", "1": "COMPLETED"})  # fmt: skip
