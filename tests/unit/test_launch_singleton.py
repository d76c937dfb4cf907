"""Ranks that did not find each other: each is a world of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CARTPOLE = Path(__file__).parent.parent.parent / "configs" / "cartpole_dqn.yaml"


@pytest.mark.parametrize(
    ("wrong", "number", "of_others"),
    [
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, "SLURM_PROCID", ""),
        (  # of another library's mpirun; or inherited from its rank 1: then there is no rank 0
            {"PMI_SIZE": "2"},
            "PMI_RANK",
            r"hpcdi: rank 1 .* see rank 0\. If there is no launcher, .* unset PMI_RANK\n",
        ),
    ],
)
def test_one_says_why_and_nothing_is_left_in_shared_memory(
    tmp_path: Path, wrong: dict[str, str], number: str, of_others: str
) -> None:
    """Open MPI leaves what a process had that no launcher has started."""
    memory = tmp_path / "memory"
    memory.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_MCA", "PMIX", "PRTE"))}
    said, run = [], tmp_path / "run"
    for rank in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "hpcdi", "train", str(CARTPOLE), "--run-dir", str(run)],
            env={
                **kept, **wrong, number: str(rank),
                "OMPI_MCA_btl_sm_backing_directory": str(memory),
            },
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        said.append(done.stderr)
    assert "each is rank 0 of a world of 1" in said[0]
    assert re.fullmatch(of_others, said[1])
    assert not list(memory.iterdir())


def test_a_death_that_one_rank_hears_of_is_said_by_it(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom hpcdi import cli\nfrom hpcdi.comm import world\n"
        "from hpcdi.errors import RankMissingError\ndef missed(_own):\n"
        "    raise RankMissingError('a call of all ranks has failed')\n"
        "world.open_world = missed\nsys.exit(cli.main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "train", str(CARTPOLE), "--run-dir", str(tmp_path / "run")],
        env={**os.environ, "PMI_SIZE": "2", "PMI_RANK": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert re.fullmatch(r"hpcdi: rank 1 \(host .*\): a call of all ranks has failed\n", done.stderr)


def test_one_says_that_a_signal_cannot_be_the_queues() -> None:
    said = []
    for rank in range(2):
        variables = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2"}
        done = subprocess.run(
            [sys.executable, "-m", "hpcdi", "train", str(CARTPOLE)],
            env={**os.environ, **variables, "HPCDI_PREEMPT_SIGNAL": "KILL"},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        said.append(done.stderr)
    assert "HPCDI_PREEMPT_SIGNAL=KILL is not a usable signal" in said[0]
    assert said[1] == ""


def test_variables_of_a_launcher_that_has_gone_do_not_crash_it() -> None:
    """Open MPI's MPI_Finalize ends in a segmentation fault there."""
    gone = {"PMIX_RANK": "0", "PMIX_NAMESPACE": "x", "PMIX_SERVER_URI41": "foo", "PMI_SIZE": "4"}
    for words, exit_code in (("train", str(CARTPOLE)), 2), (("doctor",), 1):
        done = subprocess.run(
            [sys.executable, "-m", "hpcdi", *words], env={**os.environ, **gone},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == exit_code, done.stderr
        assert "unset PMIX_RANK" in " ".join((done.stdout + done.stderr).split())


def test_a_doctor_that_has_inherited_another_rank_than_0_says_so() -> None:
    variables = {"PMI_SIZE": "4", "PMI_RANK": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "hpcdi", "doctor"], env={**os.environ, **variables},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"hpcdi doctor: rank 1 .* see rank 0\. .* unset PMI_RANK\n", done.stderr)


def test_a_wrong_setting_beside_solvers_is_refused_before_mpi_begins() -> None:
    """Programs that are started each as itself would wait for their collectors there for ever."""
    program = (
        "import sys\nfrom hpcdi import cli\nfrom hpcdi.comm import world\n"
        "def begun(_own):\n    raise SystemExit('MPI has begun')\n"
        "world.open_world = begun\nsys.exit(cli.main(sys.argv[1:]))"
    )
    of_solvers = str(CARTPOLE.with_name("kuramoto_sac.yaml"))
    done = subprocess.run(
        [sys.executable, "-c", program, "train", of_solvers, "foo"],
        env={**os.environ, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "override 'foo' is not of the form key=value" in done.stderr
