"""The cluster of virtual nodes that the other tests here stand on."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pytest
from slurm_jobs import TOOL, Cluster

from hpcdi.utils.processes import has_ended

pytestmark = pytest.mark.slurm


def test_nodes_have_names_of_their_own(cluster: Cluster) -> None:
    assert set(cluster.run("srun", "-N4", "hostname").split()) == {f"node{i}" for i in range(1, 5)}


def test_a_node_is_lost_and_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    """Also a run on a share of it, which has no variable of Slurm's, is killed."""
    share = [sys.executable, "-m", "hpcdi.run.shares", "0/1", shutil.which("sh") or ""]
    script = shlex.join([*share, "-c", f"echo $$ > {tmp_path}/pid; sleep 300; true"])
    job = cluster.sbatch(tmp_path, "-w", "node4", "--no-requeue", "--wrap", script)
    job.until(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text()))
    cluster.unplug("node4")
    assert has_ended(int((tmp_path / "pid").read_text()))
    cluster.run(TOOL, "unplug", cluster.folder, "node4", code=1)  # it is not there any more
    cluster.repair()
    assert cluster.run("srun", "-w", "node4", "hostname").split() == ["node4"]


def test_ended_jobs_are_accounted_for(cluster: Cluster, tmp_path: Path) -> None:
    if not cluster.has_accounting:
        pytest.skip("no slurmdbd: tools/slurm_dev_cluster.sh install --accounting")
    job = cluster.sbatch(tmp_path, "--wrap", "exit 3")
    job.wait("FAILED")
    job.until(lambda: "FAILED|3:0" in cluster.run("sacct", "-nPXj", job.number, "-oState,ExitCode"))


def test_two_clusters_at_a_time(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What one stops is its own: jobs and daemons of the other go on."""
    other = cluster.folder.with_name(f"{cluster.folder.name}b")
    cluster.run(TOOL, "up", other, "--nodes", "1", "--gpus", "0")
    cluster.run(TOOL, "down", other, "--remove")
    assert not other.exists()
    assert cluster.run("srun", "hostname").startswith("node")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["up"], "up needs a folder"),
        (["up", "/tmp", "--nodes", "0"], "there must be a node"),
        (["up", "/tmp", "--gpu", "2"], "unknown option --gpu"),
        (["up", "/tmp", "--cpus", "many"], "--cpus needs a number"),
        (["down", "/tmp"], "there is no cluster of this script in /tmp"),
        (["up", "/tmp"], "/tmp is not empty, and no cluster of this script"),
        (["unplug", "/tmp", "node1"], "there is no cluster of this script in /tmp"),
    ],
)
def test_what_it_does_not_do(cluster: Cluster, arguments: list[str], said: str) -> None:
    assert said in cluster.run(TOOL, *arguments, code=1)
