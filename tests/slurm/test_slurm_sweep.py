"""Sweeps on a real Slurm: as an array job, of which one run fails; packed into one job."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from slurm_jobs import CARTPOLE, QUICK, Cluster, Job, solved_after

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


@pytest.mark.early
def test_the_run_that_failed_is_submitted_again_alone(planted: Cluster, tmp_path: Path) -> None:
    root = tmp_path / "sweep"
    (tmp_path / "planted").write_text("001")
    said = planted.hpcdi(
        "sweep", CARTPOLE, "seed=0..2", *QUICK, "policy.type=planted_run",
        "policy.import_names=[fakes.planted_policies]", "policy.collect.collector.collector_num=1",
        "--array-parallelism", "2", "--time", "0:10:00", "--option=--hold",
        "--sweep-dir", root,
    )  # fmt: skip
    number = runs(root)[0]["job"].partition("_")[0]
    assert f"job {number}\n" in said
    assert [run["job"] for run in runs(root)] == [f"{number}_{i}" for i in range(3)]
    said = planted.hpcdi("sweep", "status", root)
    assert "3 runs" in said
    assert {run["state"] for run in runs(root)} == {"pending"}
    assert "nothing to start" in planted.hpcdi("sweep", "resume", root)
    planted.run("scontrol", "release", number)
    wait(planted, root, 0, 1, 2)
    planted.hpcdi("sweep", "status", root, code=1)
    assert [run["state"] for run in runs(root)] == ["done", "failed", "done"]
    assert "planted in run 001" in (root / "output" / f"slurm-{number}_1.out").read_text()
    before = {run: (root / run / "run.json").read_text() for run in ("000", "002")}

    (tmp_path / "planted").unlink()
    planted.hpcdi("sweep", "resume", root)
    again = runs(root)[1]["job"]
    assert again.endswith("_1")
    assert not again.startswith(f"{number}_")
    assert runs(root)[2]["job"] == f"{number}_2"
    planted.run("scontrol", "release", again)
    wait(planted, root, 1)
    said = planted.hpcdi("sweep", "status", root)
    assert "cartpole_dqn: 3 runs, 3 done" in said
    assert before == {run: (root / run / "run.json").read_text() for run in before}
    found = json.loads(planted.hpcdi("status", again, "--json", cwd=tmp_path))
    assert (found["run"], found["state"]) == (str(root / "001"), "done")


@pytest.mark.early
def test_a_packed_sweep_goes_on_when_its_job_is_requeued(cluster: Cluster, tmp_path: Path) -> None:
    root = tmp_path / "sweep"
    said = cluster.hpcdi(
        "sweep", CARTPOLE, "seed=0..2", *solved_after(0, tmp_path, seen := tmp_path / "seen"),
        "policy.collect.collector.collector_num=1",
        "--pack", "--nodes", "2", "--ntasks-per-node", "3", "--time", "0:10:00",
        "--sweep-dir", root,
    )  # fmt: skip
    number = json.loads((root / "sweep.json").read_text())["job"]
    assert f"job {number}\n" in said
    job = Job(cluster, number, root / "submit" / f"slurm-{number}.out", root / "001")
    job.until(lambda: job.state == "RUNNING")
    assert f"{number} is RUNNING" in cluster.hpcdi("sweep", "status", root)
    assert "it runs this sweep" in cluster.hpcdi("sweep", "resume", root, "--local", code=2)
    job.until(lambda: job.progress.get("train_iter"))
    cluster.run("scancel", "--batch", "--signal=USR2", number)  # as before its time limit
    job.until(lambda: job.restarts == 1)
    seen.touch()
    said = job.wait()
    assert job.restarts == 1
    assert said.count("2 of 3 runs at a time") == 2
    assert "run 1 (seed=1) stopped after" in said
    assert "3 runs, 3 done" in cluster.hpcdi("sweep", "status", root)
    placements = [json.loads((root / name / "run.json").read_text())["placement"]
                  for name in ("000", "001")]  # fmt: skip
    hosts = [{place["host"] for place in placement} for placement in placements]
    assert all(len(each) == 1 for each in hosts)


def test_a_cluster_that_cannot_run_it_says_so_before_there_is_a_folder(
    cluster: Cluster, tmp_path: Path
) -> None:
    root = tmp_path / "sweep"
    sweep = ("sweep", CARTPOLE, "seed=0..3", "--sweep-dir", root)
    said = cluster.hpcdi(*sweep, "--partition", "nowhere", code=2)
    assert "invalid partition specified: nowhere" in said
    assert "--serial goes with --local or --pack" in cluster.hpcdi(*sweep, "--serial", code=2)
    assert not root.exists()
