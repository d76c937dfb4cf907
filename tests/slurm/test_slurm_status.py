"""What `hpcdi status` says of a job that a real Slurm has ended, without accounting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from slurm_jobs import CARTPOLE, Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.early]


def test_a_job_that_lost_a_node_waits_and_cancelled_it_is_dead(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Its run folder still says "running"; the queue, and nobody else, knows better."""
    job = cluster.submit(
        tmp_path, CARTPOLE, "env.stop_value=1e9", "system.snapshot_s=1", "--nodes", "4",
    )  # fmt: skip
    job.until(lambda: any((job.run_dir / "snapshots").glob("snapshot_*")))
    job.until(lambda: job.progress.get("phase") == "running")  # written once a second
    told = json.loads(cluster.hpcdi("status", job.number, "--json", cwd=tmp_path))
    assert (told["state"], told["run"]) == ("running", str(job.run_dir))
    assert told["job"]["state"] == "RUNNING"
    assert 0 < told["time_left_s"] <= 3600
    assert told["hosts"] == ["node1", "node2", "node3", "node4"]
    try:
        cluster.unplug("node1")  # of rank 0
        cluster.run("scontrol", "update", "nodename=node1", "state=down", "reason=lost")
        job.until(lambda: job.state == "PENDING")  # it needs four nodes, and there are three
        told = json.loads(cluster.hpcdi("status", job.run_dir, "--json"))
        assert told["state"] == "pending"
        assert "it will resume from its newest snapshot" in told["why"]
        cluster.run("scancel", job.number)
        job.wait("CANCELLED")
        assert job.run["state"] == "running"  # it could not say any more
        told = json.loads(cluster.hpcdi("status", job.run_dir, "--json", code=1))
        assert told["state"] == "dead"
        assert f"job {job.number} is CANCELLED" in told["why"]
        assert told["next"][-1] == f"hpcdi submit --resume {job.run_dir}"
    finally:
        cluster.repair()
        cluster.run("scontrol", "update", "nodename=node1", "state=resume", code=None)
