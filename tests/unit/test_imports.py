"""What importing costs, and what it must not need."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
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
        "import hpcdi.worker, hpcdi.run.experiment, hpcdi.commands.plan",
        "from hpcdi.worker import Coordinator, AdvancedReplayBuffer",
    ],
)
def test_the_rank_that_only_talks_needs_no_torch(statement: str) -> None:
    assert not modules_after(statement) & {"torch", "mpi4py.MPI"}


def test_a_plan_needs_no_torch() -> None:
    command = f"hpcdi.cli.main(['plan', {str(ROOT / 'configs' / 'cartpole_ppo.yaml')!r}])"
    assert not modules_after(f"import hpcdi.cli\n{command}") & {"torch", "mpi4py", "tensorboard"}


def test_a_rank_limits_threads_before_numpy_starts_them() -> None:
    statement = "import hpcdi.commands.train, hpcdi.run.start_guard"
    assert "numpy" not in modules_after(statement)


def test_help_needs_nothing_heavy() -> None:
    code = "import contextlib, hpcdi.cli\nwith contextlib.suppress(SystemExit):"
    code += " hpcdi.cli.main(['--help'])"
    assert not modules_after(code) & {"torch", "mpi4py", "gymnasium", "h5py"}


def test_an_editable_install_wins_over_a_clone_beside_the_script(tmp_path: Path) -> None:
    clone = tmp_path / "hpcdi"  # a script beside it sees a namespace package of that name
    clone.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    (clone / "hpcdi").mkdir()
    shutil.copy(ROOT / "hpcdi" / "__init__.py", clone / "hpcdi")
    build = "from setuptools.build_meta import build_editable; build_editable('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=clone, check=True, capture_output=True)
    (wheel,) = (clone / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "site")
    script = tmp_path / "script.py"
    script.write_text(
        f"import site\nsite.addsitedir({str(tmp_path / 'site')!r})\n"
        "import hpcdi\nprint(hpcdi.__file__)"
    )
    ran = subprocess.run(
        [sys.executable, "-ES", script], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == str(clone / "hpcdi" / "__init__.py")


def test_a_learner_needs_no_compiler() -> None:
    """Torch's takes a second to import, at the first step of its own optimizers."""
    code = """import torch
from hpcdi.config.policy import LearnConfig
from hpcdi.policy import optimizers
network = torch.nn.Linear(2, 1)
optimizer = optimizers.make_optimizer(network, LearnConfig())
network(torch.ones(1, 2)).sum().backward()
optimizers.step(optimizer)
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())"""
    assert "torch._dynamo" not in modules_after(code)
