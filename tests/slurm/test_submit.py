"""`hpcdi submit` on a real Slurm, by submitit."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from slurm_jobs import (
    CARTPOLE,
    QUICK,
    Cluster,
    Job,
    check_gone_on,
    solved_after,
    starts_in_vain,
)

pytestmark = pytest.mark.slurm


def submitit_state(job: Job) -> str:
    """What submitit says of a job; it asks `sacct`."""
    folder = job.run_dir / "submit" / "submitit"
    program = (
        "from submitit import SlurmJob; "
        f"print(SlurmJob({str(folder)!r}, {job.number!r}).watcher.get_state({job.number!r}, "
        "mode='force'))"
    )
    said = job.cluster.run("python", "-c", program)
    return next(line for line in said.splitlines() if line.isupper())  # it warns, too


@pytest.mark.early
def test_a_run_from_its_submission_to_its_end(cluster: Cluster, tmp_path: Path) -> None:
    """It waits, runs, is requeued from outside, goes on and ends: told rightly all the time."""
    # without accounting `sacct` refuses, and submitit knows nothing
    conf = (cluster.folder / "etc" / "slurm.conf").read_text()
    bare = tmp_path / "slurm.conf"
    lines = [line for line in conf.splitlines() if "Accounting" not in line]
    bare.write_text("\n".join([*lines, "AccountingStorageType=accounting_storage/none", ""]))
    without = dataclasses.replace(cluster, variables={**cluster.variables, "SLURM_CONF": str(bare)})
    job = cluster.submit(
        tmp_path, CARTPOLE, *solved_after(1, tmp_path), "--nodes", "2", "--ntasks-per-node", "2",
        "--option=--hold", "--setup", "export GREETING='hello, node'", "--setup",
        'echo "$GREETING"',
    )  # fmt: skip

    def told() -> str:
        return without.hpcdi("status", job.run_dir, code=None).splitlines()[0]

    assert told() == f"run: pending; job {job.number} is PENDING (JobHeldUser)"
    again = cluster.hpcdi("submit", CARTPOLE, "seed=9", "--run-dir", job.run_dir, code=2)
    assert f"job {job.number} is PENDING for the run folder" in again
    cluster.run("scontrol", "release", job.number)
    job.until(lambda: job.env_steps > 300)
    assert ": running" in told()
    if cluster.has_accounting:
        assert submitit_state(job) == "RUNNING"
    cluster.run("scontrol", "requeue", job.number)
    said = job.wait()
    check_gone_on(job, 1)
    assert said.count("hello, node") == 2 + starts_in_vain(said)
    assert ": done" in told()
    assert cluster.hpcdi("tail", job.run_dir, "-n", "1")
    if cluster.has_accounting:
        job.until(lambda: submitit_state(job) == "COMPLETED")
    assert submitit_state(Job(without, job.number, job.output, job.run_dir)) == "UNKNOWN"


def test_the_script_in_the_run_folder_does_the_same(cluster: Cluster, tmp_path: Path) -> None:
    """A run that fails leaves a job that has failed; mended, it is begun anew from its folder."""
    wrong = (*QUICK, "policy.learn.learning_rate=.inf", "--ntasks-per-node", "3", "--wait")
    failed = cluster.submit(tmp_path, CARTPOLE, *wrong, code=1)
    failed.wait("FAILED")
    assert failed.run["state"] == "failed"
    experiment = failed.run_dir / "submit" / "experiment.yaml"
    text = experiment.read_text()
    assert "learning_rate: .inf" in text
    experiment.write_text(text.replace("learning_rate: .inf", "learning_rate: 0.001"))
    script = failed.run_dir / "submit" / "job.sbatch"
    number = cluster.run("sbatch", "--parsable", script).strip()
    job = Job(cluster, number, script.with_name(f"slurm-{number}.out"), failed.run_dir)
    assert "solved: " in job.wait()


def test_a_script_that_was_printed_runs_as_it_is(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "job.sbatch"
    asked = ("submit", CARTPOLE, *QUICK, "--ntasks-per-node", "3", "--print")
    script.write_text(cluster.hpcdi(*asked, cwd=tmp_path))
    number = cluster.run("sbatch", "--parsable", script, cwd=tmp_path).strip()
    (line,) = [line for line in script.read_text().splitlines() if line.startswith("RUN=")]
    run_dir = Path(line.removeprefix("RUN="))
    job = Job(cluster, number, tmp_path / f"slurm-{number}.out", run_dir)
    assert "solved: " in job.wait()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--partition", "gpus"], "Slurm refuses the job: invalid partition specified: gpus"),
        (["--gpus-per-node", "3"], "Requested node configuration is not available"),
        (["--cpus-per-task", "2"], "Requested node configuration is not available"),
        (["--nodes", "5"], "Slurm refuses the job: allocation failure: Node count"),
        (["--mem", "1T"], "Slurm refuses the job: "),
        (["--partition", "preempt", "--time", "2:00:00"], "Requested time limit is invalid"),
        (["--time", "soon"], "'soon' is not a duration"),
        (["--run-dir", "/proc/here"], "the run folder /proc/here cannot be written"),
    ],
)
def test_what_cannot_run_is_told_at_once(
    cluster: Cluster, tmp_path: Path, options: list[str], said: str
) -> None:
    before = cluster.run("squeue", "--noheader", "--states=all", "--format=%A")
    told = cluster.hpcdi("submit", CARTPOLE, *options, code=2, cwd=tmp_path)
    assert said in told
    assert "Traceback" not in told
    assert cluster.run("squeue", "--noheader", "--states=all", "--format=%A") == before
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
