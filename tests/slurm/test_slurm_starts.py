"""Starts that fail: those that are not the user's fault go on; see the table in slurm/README.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_jobs import CARTPOLE, QUICK, ROOT, Cluster

pytestmark = pytest.mark.slurm

SCRIPT = ROOT / "slurm" / "train_cpu.sbatch"
TWO_NODES = ("--nodes=2", "--ntasks-per-node=2")


def planted(cluster: Cluster, fault: str, once: Path | None) -> dict[str, str]:
    """Variables of a job that has a fault of `tools/start_faults`, once or at every start."""
    path = f"{ROOT / 'tools' / 'start_faults'}:{cluster.variables['PYTHONPATH']}"
    noted = {} if once is None else {"START_FAULT_ONCE": str(once)}
    return {"PYTHONPATH": path, "START_FAULT": fault, **noted}


@pytest.mark.parametrize("kind", ["killed_in_init", "import_error"])
def test_a_rank_that_dies_in_the_start(cluster: Cluster, tmp_path: Path, kind: str) -> None:
    fault = planted(cluster, f"{kind}:2", tmp_path / "once")
    job = cluster.sbatch(tmp_path, *TWO_NODES, SCRIPT, CARTPOLE, *QUICK, **fault)
    said = job.wait()
    assert job.restarts == 1
    assert f"a rank or node was lost; job {job.number} will start the run again" in said
    assert job.run["state"] == "done"
    assert not (job.run_dir / "submit" / "starts-in-vain").exists()


def test_a_start_that_dies_again_and_again(cluster: Cluster, tmp_path: Path) -> None:
    """Three starts have died before this one."""
    vain = tmp_path / "run" / "submit" / "starts-in-vain"
    vain.parent.mkdir(parents=True)
    vain.write_text("job 1: exit code 137\n" * 3)
    fault = planted(cluster, "killed_before_init:1", None)
    job = cluster.sbatch(tmp_path, *TWO_NODES, SCRIPT, CARTPOLE, *QUICK, **fault)
    said = job.wait("FAILED")
    assert job.facts()["ExitCode"] == "1:0"
    assert "it did not begin four times in a row, and is not started again" in said


def test_the_user_s_error_is_no_fault(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.sbatch(tmp_path, *TWO_NODES, SCRIPT, CARTPOLE, "policy.nonsense=1")
    said = job.wait("FAILED")
    assert job.facts()["ExitCode"] == "2:0"
    assert said.count("policy.nonsense") == 1
    assert job.restarts == 0


def test_a_start_of_mpirun_on_two_nodes_that_dies_on_the_second(
    cluster: Cluster, tmp_path: Path
) -> None:
    own = Cluster(
        cluster.folder,
        {**cluster.variables, **planted(cluster, "killed_in_init:3", tmp_path / "once")},
        cluster.has_accounting,
    )
    job = own.submit(
        tmp_path, CARTPOLE, *QUICK, "--launcher", "mpirun", "--nodes", "2",
        "--ntasks-per-node", "2",
    )  # fmt: skip
    said = job.wait()
    assert job.restarts == 1
    assert "hpcdi: rank 3 (host node2" in said
    assert job.run["state"] == "done"
