"""Environments that are MPI programs: as `hpcdi train` runs them, and their groups alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from jobs import PYTHONPATH, ROOT, TESTS, Running, logged

from fakes.patience import stretched
from hpcdi.cli import main
from hpcdi.env.mpi import build
from hpcdi.run.local import mpi_folders, mpirun_command, rank_environment

pytestmark = pytest.mark.job
Start = Callable[..., Running]

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None, reason="NO C COMPILER: compiled solvers are not tested here"
)
COUNTER = f"{TESTS}/fakes/solvers/counter.c"
UNMODIFIED = ROOT / "configs" / "solvers" / "unmodified.c"


def job(folder: Path, *programs: dict[str, Any], may_die: bool = True, **spec: Any) -> Any:
    """Have a controller do what the SPEC says with groups of ranks; returns its result."""
    file = folder / "spec.json"
    file.write_text(json.dumps({"folder": str(folder), "programs": programs, **spec}))
    ranks = 1 + sum(program["ranks"] for program in programs)
    with mpi_folders(True) as folders:
        done = subprocess.run(
            [*mpirun_command(ranks, may_die=may_die), sys.executable, "-m", "fakes.solver_job",
             str(file)],
            env={**rank_environment({**os.environ, **folders}), **PYTHONPATH},
            capture_output=True, text=True, timeout=stretched(), check=False,
        )  # fmt: skip
    logs = [f"{path}:\n{path.read_text()}" for path in folder.glob("env*/*.log")]
    assert (folder / "result.json").exists(), "\n".join([done.stdout, done.stderr, *logs])
    return json.loads((folder / "result.json").read_text())


def test_a_class_is_trained_on_groups_of_ranks_and_survives_a_death(
    start: Start, tmp_path: Path
) -> None:
    """Two groups of two ranks and a spare one; evaluations share them, and a rank is killed."""
    ended = start(TESTS / "fakes" / "python_solvers.yaml", "--survive").wait()
    ended.check(0, "done")
    figures = ended.run["figures"]
    assert figures["env_steps"] >= 600
    (failed,) = logged(ended.run_dir, 2, "environment 0 failed")
    assert "rank 3 has died" in failed["message"]
    # {sum of actions, step, seed, ranks}: within an item steps follow each other, on two ranks
    for path in (ended.run_dir / "data").rglob("*.h5"):
        with h5py.File(path) as shard:
            seen = shard["observation"][:]
            for at, size in zip(shard["item_start"][:], shard["item_len"][:], strict=True):
                steps = seen[at : at + size + 1, 1]
                np.testing.assert_array_equal(steps, steps[0] + np.arange(size + 1))
                assert (seen[at : at + size, 3] == 2).all()
    logs = sorted((ended.run_dir / "solvers").glob("env*/rank*.log"))
    assert [path.parent.name for path in logs] == ["env00000"] * 2 + ["env00001"] * 2 + [
        "env00002"
    ] * 2
    assert all("episode" in path.read_text() for path in logs)  # the spare ranks worked, too
    assert all("closed on 2 ranks" in path.read_text() for path in logs[2:])


@needs_compiler
@pytest.mark.slow
def test_compiled_groups_answer_and_every_kind_of_death_is_seen(tmp_path: Path) -> None:
    """Six groups in one job, each with an end of its own; the seventh is not disturbed."""
    kinds = ["abort", "fault", "exit", "error", "nan", "hang"]
    says = {"abort": "calls MPI_Abort with code 3", "exit": "exits without", "error": "MPI fails"}
    programs = [{"command": [COUNTER, "3", how, "1"], "ranks": 2} for how in kinds]
    programs += [{"command": [COUNTER], "ranks": 2}] * 2
    programs += [{"command": [COUNTER], "ranks": 2, "spare": True}]
    result = job(
        tmp_path, *programs, do="faults", steps=6, sizes=(4, 2), limits={"step_s": 3.0},
        states=["/states/a=b.npz"],
        faults=[{"at": 4, "environment": 6, "rank": 0, "signal": signal.SIGKILL}],
    )  # fmt: skip
    failures = {number: found for number, *found in result["failures"]}
    assert sorted(failures) == list(range(7))
    assert result["done"][7] == 6
    for number, kind in enumerate(kinds):
        cause, seconds, words = failures[number]
        if kind == "nan":
            assert cause == "NaN"
        elif kind == "hang":
            assert cause == "a step took longer than 3 s"
        else:
            assert cause.startswith(f"rank {2 + 2 * number} has died")  # and not its neighbour
            assert says.get(kind, "") in cause
            assert seconds < 3.0
            assert f"it goes wrong: {kind}" in words
    assert "rank 13 has died" in failures[6][0]
    again = [answer for answer in result["again"] if not isinstance(answer, str)]
    assert again == [[0.0, 0.0, 1000.0, 2.0]]  # on the spare ranks
    assert all("no spare ranks" in why for why in result["again"] if isinstance(why, str))
    for log in tmp_path.glob("env*/*.log"):
        assert re.match(r"episode \d+ /states/a=b.npz\n", log.read_text())


def wide(how: str, ranks: int, **kwargs: Any) -> dict[str, Any]:
    kwargs = {"at": 2, "how": how, "culprit": ranks - 1, **kwargs}
    solver = "fakes.python_solvers:Wide" if how else "fakes.solver_with_mpi:WithMpi"
    return {"python": solver, "kwargs": kwargs, "ranks": ranks}


@pytest.mark.slow
def test_spare_ranks_replace_a_group_of_which_a_rank_hangs_where_no_other_waits_for_it(
    tmp_path: Path,
) -> None:
    """They are met as soon as it is killed, when MPI may not have seen that yet."""
    result = job(
        tmp_path, wide("hang", 2), {**wide("", 2), "spare": True}, do="faults", steps=5,
        sizes=(4, 3000), limits={"step_s": 3.0, "start_s": 60.0},
    )  # fmt: skip
    assert result["done"] == [2]
    assert [failure[1] for failure in result["failures"]] == ["a step took longer than 3 s"]
    assert result["again"] == [[0.0, 0.0, 1000.0, 2.0]]


@pytest.mark.slow
def test_every_way_in_which_a_class_ends_its_rank_is_seen(tmp_path: Path) -> None:
    """Where the ranks of others go on; 300 numbers of an info are no reason to end."""
    said = {
        "abort world": "it calls Abort with code 3", "abort part": "it calls Abort with code 3",
        "os._exit": "os._exit(5) was called", "exit in C": "", "": "",
    }  # fmt: skip
    result = job(
        tmp_path, *(wide(how, 1) for how in said), do="faults", steps=3, sizes=(4, 3000),
        limits={"step_s": 60.0},
    )  # fmt: skip
    assert result["done"] == [1, 1, 1, 1, 3]
    for (number, cause, _, words), why in zip(result["failures"], said.values(), strict=False):
        assert f"rank {1 + number} has died" in cause
        assert why in words


def alone_and_in_two_groups(folder: Path, *command: str, inputs: dict[str, str]) -> list[Path]:
    """Run a program by mpirun, and in two groups of one job, each in a world of its own.

    Returns:
        The three folders in which it ran, with the texts of `inputs` by names of files.
    """
    folders = [folder / name for name in ("alone", "env0", "env1")]
    for each in folders:
        each.mkdir()
        for name, text in inputs.items():
            (each / name).write_text(text)
    libraries = {"LD_LIBRARY_PATH": str(Path(sys.executable).parents[1] / "lib")}
    with mpi_folders(True) as found:
        subprocess.run(
            [*mpirun_command(2), *command],
            cwd=folders[0],
            check=True,
            capture_output=True,
            env={**rank_environment({**os.environ, **found}), **libraries},
            timeout=stretched(),
        )
    program = {
        "command": command, "ranks": 2, "is_unmodified": True, "variables": libraries,
    }  # fmt: skip
    result = job(folder, program, program, do="ends")
    assert result["reasons"] == ["its program has ended"] * 2
    return folders


@needs_compiler
@pytest.mark.slow
def test_an_unmodified_program_computes_the_same_to_the_bit(tmp_path: Path) -> None:
    """Two groups in one job, each in a world of its own, against the program alone."""
    alone, *groups = alone_and_in_two_groups(tmp_path, str(build.compiled([UNMODIFIED])), inputs={})
    for group in groups:
        assert (group / "field.bin").read_bytes() == (alone / "field.bin").read_bytes()


def needs_program(name: str) -> Any:
    """Of Debian's, built with its Open MPI: it runs with the wheel's, not with MPICH's."""
    reason = f"NO {name}, or not with Open MPI: a program of someone else's is not tested here"
    found = shutil.which(name) and (Path(sys.executable).parents[1] / "lib/libmpi.so.40").exists()
    return pytest.mark.skipif(not found, reason=reason)


DEBIANS = {"HPCDI_MPICC": "mpicc.openmpi", "MPI4PY_LIBMPI": "libmpi.so.40"}
"""The whole job uses Debian's Open MPI: the wheels bring no compiler for Fortran."""


@pytest.fixture
def _fortran(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("mpif90.openmpi") is None:
        pytest.skip("NO FORTRAN COMPILER (gfortran, libopenmpi-dev): not tested here")
    command = ["gcc", f"-print-file-name={DEBIANS['MPI4PY_LIBMPI']}"]
    library = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    for name, value in {**DEBIANS, "MPI4PY_LIBMPI": library}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
@pytest.mark.usefixtures("_fortran")
def test_the_solver_in_fortran_computes_what_the_one_in_c_does() -> None:
    sums = []
    for name in ("kuramoto.c", "kuramoto_fortran.f90"):
        program = build.compiled([ROOT / "configs" / "solvers" / name])
        alone = {**os.environ, "HPCDI_ALONE_STEPS": "20"}
        done = subprocess.run(
            [*mpirun_command(2), str(program)], env=rank_environment(alone), capture_output=True,
            text=True, timeout=stretched(), check=True,
        )  # fmt: skip
        what, _, total = done.stdout.strip().rpartition(" ")
        assert what == "kuramoto: 2 ranks, sum of rewards"
        sums.append(float(total))
    assert sums[0] < -10
    assert sums[1] == pytest.approx(sums[0], rel=1e-6)


ACTIONS = """
program actions
    use hpcdi
    integer :: comm, order
    double precision :: longer(2) = 7, shorter(0)
    call hpcdi_init(1, 1, comm)
    order = hpcdi_recv_action(longer)
    call hpcdi_send_observation(longer(:1), 0d0, .false., .false.)
    order = hpcdi_recv_action(longer)
    print '(2f4.1)', longer
    order = hpcdi_recv_action(shorter)
end program
"""


@pytest.mark.slow
@pytest.mark.usefixtures("_fortran")
def test_an_array_of_fortran_may_be_longer_than_an_action_but_not_shorter(tmp_path: Path) -> None:
    (tmp_path / "actions.f08").write_text(ACTIONS)
    program = build.compiled([tmp_path / "actions.f08"])
    done = subprocess.run(
        [*mpirun_command(1), str(program)], env=rank_environment(dict(os.environ)),
        capture_output=True, text=True, timeout=stretched(), check=False,
    )  # fmt: skip
    assert " 0.0 7.0" in done.stdout
    said = "is given an array of 0 numbers, and hpcdi_init was told of 1 actions"
    assert said in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("_fortran")
def test_a_beginning_in_fortran_passes_its_test_and_is_trained(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "env", "_flow", "--mpi", "fortran"]) == 0
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test__flow.py"], check=True, timeout=stretched()
    )
    (tmp_path / "cold.npz").touch()
    source = tmp_path / "_flow.f90"
    says = "if (rank == 0) print '(2a)', 'begins with ', hpcdi_state()\n            heat = "
    source.write_text(source.read_text().replace("heat = [(", f"{says}[(", 1))
    ended = start(
        tmp_path / "_flow.yaml", "policy.other.commander.max_env_step=300",
        "policy.learn.replay_ratio=1", "env.states=[cold.npz]",
    ).wait()  # fmt: skip
    ended.check(0, "done")
    assert ended.run["figures"]["env_steps"] >= 300
    said = "".join(path.read_text() for path in (ended.run_dir / "solvers").glob("env*/rank*0.log"))
    assert "2 ranks, " in said
    assert f"begins with {tmp_path / 'cold.npz'}\n" in said


MELT = """
units lj
lattice fcc 0.8442
region box block 0 6 0 6 0 6
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix move all nve
run 300
write_data melt.data nocoeff
"""


@needs_compiler
@needs_program("lmp")
@pytest.mark.slow
def test_lammps_computes_the_same_to_the_bit(tmp_path: Path) -> None:
    """864 atoms melt; where they are at the end is written by all digits."""
    alone, *groups = alone_and_in_two_groups(
        tmp_path, "lmp", "-in", "melt.in", inputs={"melt.in": MELT}
    )
    for group in groups:
        assert (group / "melt.data").read_bytes() == (alone / "melt.data").read_bytes()


HPCC = """
HPL.out
8
1
200
1
40
0
1
1
2
16.0
1
2
1
4
1
2
1
1
1
1
1
0
2
64
0
0
1
8

0
0
0
0
"""


@needs_compiler
@needs_program("hpcc")
@pytest.mark.slow
def test_hpcc_s_own_checks_pass_in_two_worlds_at_once(tmp_path: Path) -> None:
    """HPC Challenge: matrices, FFT, random access, all collectives and many communicators."""
    lines = ["HPC Challenge, small", "its second title", *HPCC.strip().split("\n")]
    inputs = {"hpccinf.txt": "\n".join(lines) + "\n"}
    for folder in alone_and_in_two_groups(tmp_path, "hpcc", inputs=inputs):
        text = (folder / "hpccoutf.txt").read_text()
        said = dict(line.split("=") for line in text.splitlines() if line.count("=") == 1)
        assert (said["CommWorldProcs"], said["Success"]) == ("2", "1")
        for error in ("PTRANS_residual", "MPIRandomAccess_ErrorsFraction"):
            assert float(said[error]) == 0
        assert float(said["MPIFFT_maxErr"]) < 1e-12
        assert "0 tests completed and failed residual checks" in text


@needs_compiler
@pytest.mark.slow
def test_an_unmodified_program_finds_the_collector_in_its_world(tmp_path: Path) -> None:
    """Two of them, each coupled to its own controller by its own protocol."""
    program = build.compiled([TESTS / "fakes" / "solvers" / "coupled.c"])
    coupled = {
        "command": [str(program)], "ranks": 2, "is_unmodified": True, "has_collector": True,
    }  # fmt: skip
    result = job(
        tmp_path, coupled, coupled, do="steps", steps=3,
        coupling="fakes.python_solvers:Controller",
    )  # fmt: skip
    assert result["seen"] == [
        [[0, 2], [0, 2], [1, 2], [3, 2]],
        [[0, 2], [1, 2], [3, 2], [6, 2]],
    ]
