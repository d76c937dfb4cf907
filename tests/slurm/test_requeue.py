"""Jobs that are ended from outside go on from their newest snapshot, with no hand on them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from slurm_jobs import (
    CARTPOLE,
    ROOT,
    Cluster,
    Job,
    check_gone_on,
    solved_after,
    starts_in_vain,
)

from hpcdi.commands.batch_script import slurm_body

pytestmark = pytest.mark.slurm

SCRIPT = ROOT / "slurm" / "train_cpu.sbatch"
TWO_NODES = ("--nodes=2", "--ntasks-per-node=2")


@pytest.mark.early
def test_a_time_limit(cluster: Cluster, tmp_path: Path) -> None:
    """Of two minutes; Slurm's own signal does no harm."""
    options = (*TWO_NODES, "--nodelist=node[3-4]", "--time=2", "--signal=CONT@1")
    job = cluster.sbatch(tmp_path, *options, SCRIPT, CARTPOLE, *solved_after(1, tmp_path))
    said = job.wait()
    check_gone_on(job, job.restarts)  # one, unless this machine is very slow
    assert "the time limit is near" in said
    assert f"the run was stopped; job {job.number} will resume it" in said
    assert f"Slurm job {job.number} on node[3-4], restarted 1 x" in said


def test_a_signal(cluster: Cluster, tmp_path: Path) -> None:
    """That of preemption; `scontrol requeue` from outside is in test_submit.py."""
    settings = solved_after(1, tmp_path, seen := tmp_path / "seen")
    job = cluster.sbatch(tmp_path, *TWO_NODES, SCRIPT, CARTPOLE, *settings)
    job.until(lambda: job.env_steps > 300)
    with job.watched() as states:
        cluster.run("scancel", "--signal=TERM", job.number)
        job.until(lambda: states()[-2:] == ["starting", "running"])
        seen.touch()
        said = job.wait()
    before, again = map(starts_in_vain, said.split("stopped: received SIGTERM"))
    assert states() == ["running", *["pending", "starting"] * (1 + again), "running", "done"]
    check_gone_on(job, 1)
    assert job.restarts == 1 + before + again


def test_a_job_that_may_not_be_requeued_is_submitted_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    settings = solved_after(1, tmp_path)
    options = (*TWO_NODES, "--no-requeue", f"--chdir={tmp_path}", "--time=40", "--job-name=odd")
    sizes = ("--gpus-per-node=1", "--mem=3000")
    job = cluster.sbatch(tmp_path, *options, *sizes, SCRIPT, CARTPOLE, *settings)
    job.until(lambda: job.env_steps > 200)
    cluster.run("scancel", "--signal=USR2", job.number)
    said = job.wait("FAILED")
    assert job.facts()["ExitCode"] == "85:0"
    (number,) = re.findall(r"job (\d+) will resume it: this one may not be requeued", said)
    again = Job(cluster, number, Path(job.facts_of(number)["StdOut"]), job.run_dir)
    again.wait()
    check_gone_on(again, 1)
    kept = ("JobName", "TimeLimit", "NumNodes", "NumTasks", "Partition", "Account", "QOS")
    kept += ("TresPerNode", "MinMemoryNode")
    assert [again.facts()[name] for name in kept] == [job.facts()[name] for name in kept]


def test_a_cancelled_job_does_not_come_back(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.sbatch(tmp_path, *TWO_NODES, SCRIPT, CARTPOLE, *solved_after(1, tmp_path))
    job.until(lambda: job.env_steps > 200)
    cluster.run("scancel", job.number)
    job.wait("CANCELLED")
    listed = ("squeue", "--noheader", "--states=PD,R,CG", "--jobs", job.number)
    job.until(lambda: cluster.run(*listed) == "")
    assert job.state == "CANCELLED"
    assert job.restarts == 0
    assert "will resume" not in cluster.hpcdi("status", job.run_dir, code=None)


@pytest.mark.early
def test_a_lost_node(cluster: Cluster, tmp_path: Path) -> None:
    """The plug is pulled under collectors of an srun; the job goes on on nodes that are there."""
    settings = solved_after(1, tmp_path, seen := tmp_path / "seen")
    job = cluster.sbatch(tmp_path, *TWO_NODES, SCRIPT, CARTPOLE, *settings)
    job.until(lambda: job.snapshot_env_steps > 0)
    lost = job.run["placement"][-1]["host"]
    assert lost != job.run["placement"][0]["host"]
    with job.watched() as states:
        cluster.unplug(lost)
        try:
            job.until(lambda: states()[-2:] == ["starting", "running"])
            seen.touch()
            job.wait()
        finally:
            cluster.repair()
    said = [state for state in states() if state != "pending"]  # for an instant, if there are nodes
    assert said == ["running", "starting", "running", "done"]
    check_gone_on(job, 1)
    assert lost not in {place["host"] for place in job.run["placement"]}


@pytest.mark.early
def test_mpirun_and_its_lost_node(cluster: Cluster, tmp_path: Path) -> None:
    """One world over two nodes by mpirun, whose exit code says nothing of a node that is lost.

    mpirun sends rank 0 SIGTERM and kills it soon after: it may or may not have stopped in order.
    """
    settings = solved_after(1, tmp_path)
    job = cluster.submit(
        tmp_path, CARTPOLE, *settings, "--launcher", "mpirun", "--nodes", "2",
        "--ntasks-per-node", "2",
    )  # fmt: skip
    job.until(lambda: job.snapshot_env_steps > 0)  # rank 0 may not come to another one
    first, _, lost, again = [place["host"] for place in job.run["placement"]]
    assert first != lost == again
    cluster.unplug(lost)
    try:
        said = job.wait()
    finally:
        cluster.repair()
    stopped = f"the run was stopped; job {job.number} will resume it"
    assert stopped in said or "the job ended without a result" in said
    check_gone_on(job, 1)


def test_a_task_of_an_array_that_is_requeued_leaves_its_siblings_alone(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Three tasks: one is done before, one runs on, the last one (the array's own number) stops."""
    log, script = tmp_path / "log", tmp_path / "array.sbatch"
    script.write_text(f"""\
#!/bin/bash
#SBATCH --array=0-2
#SBATCH --ntasks=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --time=10
set -eo pipefail
PYTHON=(python)
RUN={tmp_path}/run$SLURM_ARRAY_TASK_ID
srun() {{  # in place of a run
    local task=$SLURM_ARRAY_TASK_ID code=0
    echo "$task starts, restart ${{SLURM_RESTART_COUNT:-0}}" >> {log}
    trap "echo $task is ended >> {log}; exit 1" TERM
    case $task in
        1) until grep -q "2 starts, restart 1" {log}; do sleep 0.5; done ;;
        2) if [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ]; then
               until grep -q "1 starts" {log} && grep -q "0 is done" {log}; do sleep 0.5; done
               sleep 3 # until task 0 has left
               code=85
           fi ;;
    esac
    [ $code = 85 ] || echo "$task is done" >> {log}
    printf '{{\\n  "exit_code": %d\\n}}\\n' $code > "$RUN/run.json"
    return $code
}}
{slurm_body("srun")}""")
    job = cluster.sbatch(tmp_path, script, HPCDI_RUN="")
    cluster.array_states(job, {"0": "COMPLETED", "1": "COMPLETED", "2": "COMPLETED"})
    said = log.read_text().splitlines()
    assert sorted(set(said) - {"2 is ended"}) == [
        "0 is done", "0 starts, restart 0", "1 is done", "1 starts, restart 0", "2 is done",
        "2 starts, restart 0", "2 starts, restart 1",
    ], job.read()  # fmt: skip
