"""Ranks that did not find each other: each is a world of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CARTPOLE = Path(__file__).parent.parent.parent / "configs" / "cartpole_dqn.yaml"


def test_one_says_why_and_nothing_is_left_in_shared_memory(tmp_path: Path) -> None:
    """Open MPI leaves what a process had that no launcher has started."""
    memory = tmp_path / "memory"
    memory.mkdir()
    wrong = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_MCA", "PMIX", "PRTE"))}
    said, run = [], tmp_path / "run"
    for rank in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "hpcdi", "train", str(CARTPOLE), "--run-dir", str(run)],
            env={
                **kept, **wrong, "SLURM_PROCID": str(rank),
                "OMPI_MCA_btl_sm_backing_directory": str(memory),
            },
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        said.append(done.stderr)
    assert "each is rank 0 of a world of 1" in said[0]
    assert said[1] == ""
    assert not list(memory.iterdir())


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
