"""A sweep as an array job of a real Slurm: one run fails, and is submitted again alone."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from slurm_jobs import CARTPOLE, QUICK, Cluster, Job

pytestmark = pytest.mark.slurm


@pytest.fixture
def planted(cluster: Cluster, tmp_path: Path) -> Cluster:
    """The cluster for a user who has policies of the tests, one of which is to fail."""
    planted_while = {"PLANTED_WHILE": str(tmp_path / "planted")}
    return dataclasses.replace(cluster, variables={**cluster.variables, **planted_while})


def runs(root: Path) -> list[dict[str, str]]:
    return list(json.loads((root / "sweep.json").read_text())["runs"])


def wait(cluster: Cluster, root: Path, *indices: int) -> None:
    """Wait until these runs' jobs have left the queue."""
    for index in indices:
        job = runs(root)[index]["job"]
        output = root / "output" / f"slurm-{job}.out"
        held = Job(cluster, job, output, root / f"{index:03d}")
        held.until(lambda j=job: not on_queue(cluster, j))


def on_queue(cluster: Cluster, job: str) -> bool:
    return bool(cluster.run("squeue", "--noheader", "--jobs", job, code=None).strip())


def test_the_run_that_failed_is_submitted_again_alone(planted: Cluster, tmp_path: Path) -> None:
    root = tmp_path / "sweep"
    (tmp_path / "planted").write_text("002")
    said = planted.hpcdi(
        "sweep", CARTPOLE, "seed=0..3", *QUICK, "policy.type=planted_run",
        "policy.import_names=[fakes.planted_policies]", "policy.collect.collector.collector_num=1",
        "--array-parallelism", "2", "--time", "0:10:00",
        "--sweep-dir", root,
    )  # fmt: skip
    number = runs(root)[0]["job"].partition("_")[0]
    assert f"job {number}\n" in said
    assert [run["job"] for run in runs(root)] == [f"{number}_{i}" for i in range(4)]
    said = planted.hpcdi("sweep", "status", root)
    assert "4 runs" in said
    assert all(run["state"] in ("pending", "starting", "running", "done") for run in runs(root))
    assert "nothing to start" in planted.hpcdi("sweep", "resume", root)
    wait(planted, root, 0, 1, 2, 3)
    planted.hpcdi("sweep", "status", root, code=1)
    assert [run["state"] for run in runs(root)] == ["done", "done", "failed", "done"]
    assert "planted in run 002" in (root / "output" / f"slurm-{number}_2.out").read_text()
    before = {run: (root / run / "run.json").read_text() for run in ("000", "001", "003")}

    (tmp_path / "planted").unlink()
    planted.hpcdi("sweep", "resume", root)
    again = runs(root)[2]["job"]
    assert again.endswith("_2")
    assert not again.startswith(f"{number}_")
    assert runs(root)[1]["job"] == f"{number}_1"
    wait(planted, root, 2)
    said = planted.hpcdi("sweep", "status", root)
    assert "cartpole_dqn: 4 runs, 4 done" in said
    assert before == {run: (root / run / "run.json").read_text() for run in before}
    found = json.loads(planted.hpcdi("status", again, "--json", cwd=tmp_path))
    assert (found["run"], found["state"]) == (str(root / "002"), "done")


def test_a_cluster_that_cannot_run_it_says_so_before_there_is_a_folder(
    cluster: Cluster, tmp_path: Path
) -> None:
    root = tmp_path / "sweep"
    sweep = ("sweep", CARTPOLE, "seed=0..3", "--sweep-dir", root)
    said = cluster.hpcdi(*sweep, "--partition", "nowhere", code=2)
    assert "invalid partition specified: nowhere" in said
    assert "--serial goes with --local" in cluster.hpcdi(*sweep, "--serial", code=2)
    assert not root.exists()
