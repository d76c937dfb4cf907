"""The scripts of slurm/, each as a user submits it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from slurm_jobs import CARTPOLE, QUICK, ROOT, Cluster, starts_in_vain

from hpcdi.cli import main

pytestmark = pytest.mark.slurm

SLURM = ROOT / "slurm"


def test_smoke(cluster: Cluster, tmp_path: Path) -> None:
    """The doctor and a run on two nodes, and what that has left."""
    job = cluster.sbatch(tmp_path, SLURM / "smoke.sbatch")
    said = job.wait()
    assert f"hpcdi works here: {job.run_dir}" in said
    assert Counter(place["host"] for place in job.run["placement"]) == {"node1": 2, "node2": 2}
    assert "  rank  host   role         cores  GPU" in said
    assert f"Slurm job {job.number} on node[1-2]" in said


def test_a_heterogeneous_job_is_one_world(cluster: Cluster, tmp_path: Path) -> None:
    """Rank 0 and collectors in the first component, the learner in the second."""
    job = cluster.sbatch(tmp_path, on_nodes(tmp_path, "node1", "node2"), CARTPOLE, *QUICK)
    said = job.wait()
    placement = job.run["placement"]
    assert [place["component"] for place in placement] == [0, 0, 0, 1, 1]
    assert [place["role"] for place in placement] == [
        "coordinator", "collector", "collector", "learner", "collector",
    ]  # fmt: skip
    assert len({place["host"] for place in placement}) == 2
    assert [len(place["gpus"]) for place in placement] == [0, 0, 0, 2, 2]
    assert "solved: " in said


def test_components_whose_nodes_are_out_of_order_are_named(
    cluster: Cluster, tmp_path: Path
) -> None:
    """By Slurm 22.05's PMIx plugin the first node's third rank dies in MPI_Init, at each start."""
    job = cluster.sbatch(tmp_path, on_nodes(tmp_path, "node2", "node1"), CARTPOLE, *QUICK)
    job.until(lambda: "will start the run again" in job.read())
    cluster.run("scancel", job.number)
    said = job.read()
    assert "has died before the run had begun" in said
    assert "nodes of this heterogeneous job's components are out of order" in said


def on_nodes(folder: Path, *nodes: str) -> Path:
    """Returns the script of heterogeneous jobs with a node for each component."""
    components = (SLURM / "train_het.sbatch").read_text().split("#SBATCH --nodes=1\n")
    script = folder / "train_het.sbatch"
    own = zip(nodes, components[1:], strict=True)
    lines = [f"#SBATCH --nodes=1\n#SBATCH --nodelist={node}\n{rest}" for node, rest in own]
    script.write_text("".join([components[0], *lines]))
    return script


def test_an_array_and_its_failed_run_again(cluster: Cluster, tmp_path: Path) -> None:
    settings = (SLURM / "sweep_array.sbatch").read_text()
    script = tmp_path / "sweep.sbatch"
    script.write_text(settings.replace("seed=1 policy.learn.learning_rate=0.001", "sead=1"))
    options = (f"--chdir={tmp_path}", "--array=0-1", "--ntasks-per-node=3")
    variables = {"HPCDI_RUN": ""}  # each by its index
    job = cluster.sbatch(tmp_path, *options, script, CARTPOLE, *QUICK, **variables)
    cluster.array_states(job, {"0": "COMPLETED", "1": "FAILED"})
    assert "did you mean 'seed'" in job.read()
    runs = tmp_path / "runs" / f"sweep-{job.number}"
    assert (runs / "0" / "policies" / "best.safetensors").exists()
    assert not list((runs / "1").iterdir())
    again = cluster.sbatch(
        tmp_path, *options, "--array=1", SLURM / "sweep_array.sbatch", CARTPOLE, *QUICK,
        HPCDI_SWEEP=job.number, **variables,
    )  # fmt: skip
    cluster.array_states(again, {"1": "COMPLETED"})
    assert (runs / "1" / "policies" / "best.safetensors").exists()


def test_the_script_for_gpus_is_accepted(cluster: Cluster) -> None:
    """Nothing can be learnt on these GPUs; but the job could be."""
    options = ("--test-only", "--ntasks-per-node=4", "--cpus-per-task=1", "--gpus-per-node=2")
    script = SLURM / "train_gpu.sbatch"
    assert "to start at" in cluster.run("sbatch", *options, script, CARTPOLE)
    said = cluster.run("sbatch", *options, "--gpus-per-node=3", script, CARTPOLE, code=1)
    assert "Requested node configuration is not available" in said


def test_the_wrong_pmi_plugin_is_named(cluster: Cluster, tmp_path: Path) -> None:
    options = ("--nodes=2", "--ntasks-per-node=2")
    script = SLURM / "train_cpu.sbatch"
    job = cluster.sbatch(tmp_path, *options, script, CARTPOLE, HPCDI_PMI="none")
    said = job.wait("FAILED")
    assert "4 processes were started, but each is rank 0 of a world of 1" in said
    assert "srun --mpi=pmix python -m hpcdi train" in said
    assert "the run has not begun (exit code " in said  # 2, or 143 where srun was faster


@pytest.mark.early
def test_environments_that_are_mpi_programs(cluster: Cluster, tmp_path: Path) -> None:
    """hpcdi's own ranks on one node, two groups of two on the other; a killed rank: it resumes."""
    job = cluster.sbatch(
        tmp_path, "--ntasks-per-node=4", SLURM / "train_mpi_env.sbatch",
        ROOT / "tests" / "fakes" / "python_solvers.yaml", "env.spares=0", "env.collector_env_num=1",
        "policy.collect.collector.collector_num=2", "system.snapshot_s=2",
        "policy.other.commander.max_env_step=300",
        f"env.kwargs.once={tmp_path / 'killed'}",
    )  # fmt: skip
    said = job.wait()
    assert job.restarts == 1 + starts_in_vain(said), said
    assert job.run["figures"]["env_steps"] >= 300
    assert Counter(place["host"] for place in job.run["placement"]) == {"node1": 4}
    logs = {path.parent.name: path.read_text() for path in job.run_dir.glob("solvers/*/*.log")}
    assert sorted(logs) == ["env00000", "env00001"]
    assert all("on node2" in text for text in logs.values())


def test_programs_may_be_started_each_as_itself(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By srun's --multi-prog, as `hpcdi plan --mpmd` writes it."""
    solvers = ROOT / "tests" / "fakes" / "python_solvers.yaml"
    program = ROOT / "tests" / "fakes" / "solvers" / "counter.c"
    settings = (
        f"env.env_id={program}", "env.kwargs={}", "env.spares=0", "env.collector_env_num=1",
        "env.observation.size=4", "env.action.size=2", "env.action.low=-1",
        "env.action.high=1", "env.variables.LENGTH=100",
        "policy.collect.collector.collector_num=2", "policy.other.commander.max_env_step=300",
    )  # fmt: skip
    assert main(["plan", str(solvers), "--mpmd", str(tmp_path / "run"), *settings]) == 0
    (tmp_path / "job.conf").write_text(capsys.readouterr().out)
    script = tmp_path / "mpmd.sbatch"
    lines = ("#!/bin/bash", f"srun --mpi=pmix --multi-prog {tmp_path}/job.conf")
    script.write_text("\n".join(lines))
    job = cluster.sbatch(tmp_path, "--nodes=2", "--ntasks-per-node=4", script)
    job.wait()
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (run["state"], run["figures"]["env_steps"] >= 300) == ("done", True)
    assert not (tmp_path / "run" / "solvers").exists()
