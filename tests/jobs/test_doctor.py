"""`hpcdi doctor`, from the command to its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jobs import HPCDI, Running

from hpcdi.run.local import mpirun_command, rank_environment

pytestmark = pytest.mark.job
DOCTOR = [*HPCDI, "doctor"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for runs."""
    path = tmp_path / "runs"
    path.mkdir()
    return path


def complaints(err: str) -> list[str]:
    """What is on stderr, but notices that something takes long on a busy machine."""
    return [line for line in err.splitlines() if " s, waiting for " not in line]


def test_alone_it_starts_ranks_and_shows_a_table(folder: Path, started: list[Running]) -> None:
    started.append(Running([*DOCTOR, str(folder)], folder, {}))
    ended = started[-1].wait()
    lines = ended.out.splitlines()
    assert max(map(len, lines)) <= 100
    status = {line[:14].strip(): line[14:20].strip() for line in lines[2:] if line[:1].strip()}
    verdict = lines[-1]
    assert "launcher      ok     mpirun: 3 ranks on " in ended.out
    assert {"mpi", "gloo", "folder", "sharing", "cores", "gpus", "packages"} < status.keys()
    assert ended.code == (1 if "FAIL" in status.values() else 0), ended.out
    assert verdict.startswith("NOT fit to run" if ended.code else "fit to run")
    assert status["sharing"] == "ok"
    assert not complaints(ended.err)
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_a_failure_is_a_row_and_the_exit_code_and_json_says_so(
    tmp_path: Path, started: list[Running]
) -> None:
    """Nobody, not even root, can make a folder in /proc."""
    started.append(Running([*DOCTOR, "/proc", "--json", "-n", "2"], tmp_path / "doctor", {}))
    ended = started[-1].wait()
    assert ended.code == 1
    assert not complaints(ended.err)
    said = json.loads(ended.out)
    assert said["ok"] is False
    rows = {check.pop("name"): check for check in said["checks"]}
    assert rows["folder"]["status"] == "FAIL"
    assert "/proc: cannot be written" in rows["folder"]["found"]
    assert "hpcdi doctor DIR" in rows["folder"]["advice"]
    assert not {"disk", "sharing"} & rows.keys()  # they make no sense without it
    assert "a run needs 3 ranks" in rows["launcher"]["advice"]


@pytest.mark.slow
def test_under_a_launcher_every_rank_takes_part(folder: Path, started: list[Running]) -> None:
    command = [*mpirun_command(4), *DOCTOR, str(folder), "--json"]
    started.append(Running(command, folder, rank_environment({})))
    ended = started[-1].wait()
    said = json.loads(ended.out)
    assert ended.code == (0 if said["ok"] else 1)
    assert said["checks"][0]["found"].startswith("mpirun: 4 ranks on ")
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_worlds_that_did_not_find_each_other(folder: Path, started: list[Running]) -> None:
    """As srun without a PMI plugin starts them: each is rank 0 of 1, one of them speaks."""
    for task in range(2):
        step = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_PROCID": str(task)}
        started.append(Running(DOCTOR, folder / f"{task}", {**rank_environment({}), **step}))
    first, second = [job.wait() for job in started]
    assert (first.code, second.code) == (1, 1)
    assert "launcher      FAIL   2 processes were started, but each is rank 0" in first.out
    assert "srun --mpi=pmix python -m hpcdi" in " ".join(first.out.split())
    assert second.out == ""
