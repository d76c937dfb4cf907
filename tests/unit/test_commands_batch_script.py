"""The text of batch scripts: golden files, and the scripts that people edit.

After a wanted change set HPCDI_WRITE_GOLDEN=1 once, and read the diff.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hpcdi.commands.batch_script import BatchJob, script_text, slurm_body, slurm_options
from hpcdi.config.schema import SlurmConfig

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "submit"
RUN = Path("/scratch/me/runs/pong/20261122-120000")

SMALL = SlurmConfig(ntasks_per_node=4, mpi="pmix")
LARGE = SlurmConfig(
    partition="gpu", account="ab12", qos="long", constraint="a100|h100", time="1-12:00:00",
    nodes=2, ntasks_per_node=16, cpus_per_task=4, gpus_per_node=4, mem="200G",
    signal_delay_s=300, mpi="pmix", modules=("python/3.12", "cuda"), setup=("export FOO='a b'",),
    options=("--exclusive", "--mail-type=END,FAIL"),
)  # fmt: skip
CONTAINER = SlurmConfig(
    ntasks_per_node=4, container="apptainer exec --nv /images/hpcdi.sif", mpi="pmi2"
)
MPIRUN = SlurmConfig(nodes=2, ntasks_per_node=4, launcher="mpirun")
CASES = [
    ("small", SMALL),
    ("large", LARGE),
    ("container", CONTAINER),
    ("mpirun", MPIRUN),
]


def job_of(slurm: SlurmConfig) -> BatchJob:
    return BatchJob("hpcdi-pong", RUN, slurm, "/home/me/.venv/bin/python")


@pytest.mark.parametrize(("name", "slurm"), CASES)
def test_the_text(name: str, slurm: SlurmConfig) -> None:
    text = script_text(job_of(slurm))
    golden = GOLDEN / f"{name}.sbatch"
    if os.environ.get("HPCDI_WRITE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_there_is_no_other_golden_file() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == {name for name, _ in CASES}


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_only_the_shell_gets_the_signal_that_would_kill_the_daemons_of_mpirun(
    launcher: str,
) -> None:
    options = slurm_options(job_of(SlurmConfig(ntasks_per_node=1, launcher=launcher)))
    assert options["signal"] == ("B:USR2@120" if launcher == "mpirun" else "USR2@120")


def test_an_option_that_is_named_wins() -> None:
    options = slurm_options(job_of(SlurmConfig(ntasks_per_node=1, options=("--time=5", "--hold"))))
    assert options["time"] == "5"
    assert options["hold"] == ""


SCRIPTS = sorted((ROOT / "slurm").glob("*.sbatch"))


@pytest.mark.parametrize(
    "script", [s for s in SCRIPTS if s.name != "smoke.sbatch"], ids=lambda path: path.name
)
def test_scripts_for_people_do_what_submitted_ones_do(script: Path) -> None:
    body = slurm_body("srun", '"${HPCDI_PMI:-pmix}"')
    text = script.read_text()
    if script.name == "train_het.sbatch":  # a command for each component
        start = re.compile(r"^srun .*?code=\$\?$", flags=re.MULTILINE | re.DOTALL)
        (line,) = start.findall(text)
        assert "--kill-on-bad-exit=1" in line
        assert "--het-group=0" in line
        assert "--het-group=1" in line
        text, body = (
            re.sub(r"^hpcdi=.*\n", "", start.sub("", text), flags=re.MULTILINE),
            start.sub("", body),
        )
    assert text.endswith(body)
    for option in ("--signal=USR2@", "--requeue\n", "--open-mode=append\n"):
        assert f"#SBATCH {option}" in text


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_say_what_to_edit(script: Path) -> None:
    header = script.read_text().partition("#SBATCH")[0]
    assert f"sbatch slurm/{script.name}" in header
    assert "# Edit: " in header


@pytest.mark.parametrize(
    "script",
    [*SCRIPTS, *sorted(GOLDEN.iterdir()), ROOT / "tools" / "slurm_dev_cluster.sh"],
    ids=lambda path: path.name,
)
def test_scripts_are_sound(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck: apt-get install shellcheck")
    done = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
