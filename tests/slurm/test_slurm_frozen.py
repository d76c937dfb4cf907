"""Frozen ranks of a job: it goes on by itself; see the table in slurm/README.md."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from slurm_jobs import CARTPOLE, ROOT, Cluster, Job, check_gone_on, solved_after

from hpcdi.store.layout import RunLayout
from hpcdi.utils.backoff import wait_s

pytestmark = [pytest.mark.slurm, pytest.mark.early]

SCRIPT = ROOT / "slurm" / "train_cpu.sbatch"
TWO_NODES = ("--nodes=2", "--ntasks-per-node=2")
PATIENCE_S = 40


def freeze(job: Job, rank: int) -> None:
    """Freeze rank 0, or a collector whose data are there: it may still be starting before."""
    job.until(lambda: rank == 0 or bool(RunLayout(job.run_dir).shard_numbers(rank)))
    os.kill(int(job.run["placement"][rank]["pid"]), signal.SIGSTOP)


@pytest.mark.parametrize("rank", [0, 3], ids=["coordinator", "collector"])
def test_a_frozen_rank_of_srun(cluster: Cluster, tmp_path: Path, rank: int) -> None:
    patience = f"system.survival.worker_timeout_s={PATIENCE_S}"
    job = cluster.sbatch(tmp_path, *TWO_NODES, SCRIPT, CARTPOLE, patience,
                         *solved_after(1, tmp_path))  # fmt: skip
    job.until(lambda: job.snapshot_env_steps > 0)
    freeze(job, rank)
    said = job.wait()
    check_gone_on(job, 1)
    # its own timer ends it, stopped as it is: another rank or srun says so
    assert any(words in said for words in (f"rank {rank} ", "Killed", "silent for"))


def test_a_frozen_collector_of_mpirun_on_the_second_node_is_survived(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Rank 2, beside it, kills it."""
    job = cluster.submit(
        tmp_path, CARTPOLE, *solved_after(1, tmp_path), "--launcher", "mpirun", "--nodes", "2",
        "--ntasks-per-node", "2", f"system.survival.worker_timeout_s={PATIENCE_S}",
    )  # fmt: skip
    job.until(lambda: job.snapshot_env_steps > 0)
    freeze(job, 3)
    job.until(lambda: "rank 3 has died" in job.read())
    before = job.env_steps
    job.until(lambda: job.env_steps > before + 100)
    assert job.state == "RUNNING"
    cluster.run("scancel", "--signal=USR2", "--batch", job.number)
    job.wait()
    check_gone_on(job, 1)


def test_a_suspended_job_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    """After longer than any rank would wait for another, or for itself."""
    job = cluster.submit(
        tmp_path, CARTPOLE, "env.stop_value=1e9", "system.survival.worker_timeout_s=20",
    )  # fmt: skip
    job.until(lambda: job.progress.get("phase") == "running")
    cluster.run("scontrol", "suspend", job.number)
    wait_s(40)
    assert f"running; job {job.number} is SUSPENDED" in cluster.hpcdi("status", job.run_dir)
    before = job.env_steps
    cluster.run("scontrol", "resume", job.number)
    job.until(lambda: job.env_steps > before + 100)
    assert (job.state, job.restarts) == ("RUNNING", 0)
    cluster.run("scancel", job.number)
