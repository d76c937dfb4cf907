"""What importing costs, and what it must not need."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "mpi4py", "gymnasium", "h5py", "tensorboard", "omegaconf", "numpy")


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    return set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def test_importing_hpcdi_imports_nothing_heavy() -> None:
    assert not modules_after("import hpcdi") & set(HEAVY)


@pytest.mark.parametrize(
    "statement",
    [
        "import hpcdi.worker, hpcdi.launch.experiment, hpcdi.commands.plan",
        "from hpcdi.worker import Coordinator, AdvancedReplayBuffer",
    ],
)
def test_the_rank_that_only_talks_needs_no_torch(statement: str) -> None:
    assert not modules_after(statement) & {"torch", "mpi4py.MPI"}


def test_help_needs_nothing_heavy() -> None:
    code = "import contextlib, hpcdi.cli\nwith contextlib.suppress(SystemExit):"
    code += " hpcdi.cli.main(['--help'])"
    assert not modules_after(code) & {"torch", "mpi4py", "gymnasium", "h5py"}
