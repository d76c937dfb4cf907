"""Which libraries a process imports: what its role needs and nothing else, so it starts soon."""

from __future__ import annotations

import subprocess
import sys

import pytest

ACTS = """
from hpcdi.run.parts import columnar_policy
cfg = {"type": "dqn", "model": {"obs_shape": 4, "action_shape": 3}}
columnar_policy(cfg, ["collect", "eval"], gets_weights=True).collect_mode
"""
RANK = "import hpcdi.commands.train, hpcdi.run.rank, hpcdi.run.work\n"
COLLECTOR = RANK + "import hpcdi.roles.collector.mpi_fs_collector, hpcdi.env.gymnasium\n" + ACTS
LEARNER = RANK + "import hpcdi.roles.learner.role, hpcdi.policy.dqn\n"
HELP = "import hpcdi, hpcdi.cli, hpcdi.commands.train"
LAUNCHER = "import hpcdi.commands.train, hpcdi.run.local, hpcdi.run.experiment"
DOOR = ("hpcdi.worker", "hpcdi.roles.coordinator", "tensorboard", "submitit")


@pytest.mark.parametrize(
    ("program", "needless"),
    [
        pytest.param(HELP, ("numpy", "yaml", "hpcdi.api", *DOOR), id="train --help"),
        pytest.param(LAUNCHER, ("torch", "h5py", "mpi4py.MPI", *DOOR), id="the launcher"),
        pytest.param(COLLECTOR, ("torch", "omegaconf", "hpcdi.replay", *DOOR), id="a collector"),
        pytest.param(LEARNER, ("gymnasium", "omegaconf", "hpcdi.replay", *DOOR), id="a learner"),
        pytest.param(
            RANK + "import hpcdi.run.prepare, hpcdi.run.coordinate",
            ("torch", "gymnasium", *DOOR),
            id="rank 0 until its first line",
        ),
    ],
)
def test_a_process_imports_what_its_role_needs(program: str, needless: tuple[str, ...]) -> None:
    code = f"import sys\n{program}\nprint(*[n for n in {needless} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_readers_of_data_are_there_without_an_import_of_their_own() -> None:
    code = "import hpcdi; hpcdi.data.read_episodes"
    subprocess.run([sys.executable, "-c", code], check=True)
