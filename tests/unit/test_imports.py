"""Which libraries a process imports: what its role needs and nothing else, so it starts soon."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hpcdi.config.compiled import compile_config
from hpcdi.config.fields import to_mapping
from hpcdi.run.environment import thread_variables
from hpcdi.run.placement import Place
from hpcdi.run.rank import BeforeMpi, _import_torch
from hpcdi.run.signals import SignalFlag

ACTS = """
from hpcdi.run.policies import columnar_policy
cfg = {"type": "dqn", "model": {"obs_shape": 4, "action_shape": 3}}
columnar_policy(cfg, ["collect", "eval"], gets_weights=True).collect_mode
"""
RANK = "import hpcdi.commands.train, hpcdi.run.rank, hpcdi.run.work\n"
COLLECTOR = RANK + "import hpcdi.roles.collector.mpi_fs_collector, hpcdi.env.gymnasium\n" + ACTS
LEARNER = RANK + "import hpcdi.run.learner_rank, hpcdi.policy.dqn\n"
LAUNCHER = "import hpcdi.commands.train, hpcdi.run.local, hpcdi.run.experiment"
DOOR = ("hpcdi.worker", "hpcdi.roles.coordinator", "tensorboard", "submitit")


@pytest.mark.parametrize(
    ("program", "needless"),
    [
        pytest.param("import hpcdi", ("numpy", "yaml", "hpcdi.api", *DOOR), id="the package"),
        pytest.param("import hpcdi.cli", ("numpy", "yaml", *DOOR), id="the command line"),
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


def test_ranks_that_learn_import_torch_while_rank_0_prepares_the_run() -> None:
    given = {"env": {"env_id": "CartPole-v1"}, "policy": {"learn": {"learner": {"learner_num": 2}}}}
    config, chosen = to_mapping(compile_config(given).config), set(thread_variables(1))
    places = [Place("node1", cores=(0, 1))] * 5
    known, unknown = (BeforeMpi(SignalFlag(), given, None, chosen) for given in (config, None))
    importing = {rank: _import_torch(rank, places, known) for rank in (1, 2, 3, 4)}
    assert [rank for rank, thread in importing.items() if thread is not None] == [1, 2]
    assert _import_torch(1, places, unknown) is None
    assert _import_torch(1, places[:3], known) is None, "too few ranks: rank 0 says so"
    for thread in filter(None, importing.values()):
        thread.join()
        thread.check()
    assert "torch" in sys.modules
