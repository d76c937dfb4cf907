"""Shares of an allocation: which there are, and what a job on one may use."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcdi.errors import LaunchError
from hpcdi.run.environment import kept_for_share
from hpcdi.run.shares import Share, portion, shares

HERE = len(os.sched_getaffinity(0))
NODES = {
    "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2],big", "SLURMD_NODENAME": "n1",
    "SLURM_JOB_CPUS_PER_NODE": "4(x2),16",
}  # fmt: skip


def test_on_this_host() -> None:
    assert shares(1, 99, None, {}) == [Share(k, HERE) for k in range(HERE)]
    assert shares(10 * HERE, 99, None, {}) == [Share(0, 1)]  # it is too small for one
    assert shares(1, 99, 3 * HERE, {}) == [Share(k, 3 * HERE) for k in range(3 * HERE)]
    assert shares(1, 1, None, {}) == [Share(0, 1)]  # all for the only one
    one = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURMD_NODENAME": "n1"}
    assert shares(1, 1, None, one) == [Share(0, 1)]
    assert shares(1, 1, None, {"PBS_JOBID": "7.pbs"}) == [Share(0, 1)]


@pytest.fixture
def _srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


@pytest.mark.usefixtures("_srun")
def test_on_several_hosts() -> None:
    found = shares(4, 99, None, NODES)
    assert found == [
        Share(0, 1, "n1"), Share(0, 1, "n2"), Share(0, 4, "big"),
        Share(1, 4, "big"), Share(2, 4, "big"), Share(3, 4, "big"),
    ]  # fmt: skip
    assert [share.host for share in shares(1, 3, None, NODES)] == ["big"] * 3
    assert [share.host for share in shares(4, 99, 6, NODES)].count("big") == 4
    login = {k: v for k, v in NODES.items() if k != "SLURMD_NODENAME"}
    alone = {**login, "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_CPUS_PER_NODE": "4"}
    assert shares(4, 2, None, alone) == [Share(0, 1, "n1")]  # salloc leaves one on the login node


@pytest.mark.usefixtures("_srun")
@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "a 4 b 4"}, r"LSF job 7 on a,b: only Slurm's srun"),
        ({**NODES, "SLURM_JOB_CPUS_PER_NODE": "4(x2)"}, "heterogeneous"),
    ],
)
def test_hosts_that_it_cannot_share(variables: dict[str, str], said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        shares(1, 1, None, variables)


@pytest.mark.parametrize(("count", "of"), [(16, 3), (2, 2), (7, 1)])
def test_portions_are_disjoint_and_leave_nothing(count: int, of: int) -> None:
    parts = [portion(range(count), number, of) for number in range(of)]
    assert [item for part in parts for item in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_portions_of_too_few() -> None:
    assert [portion("ab", number, 5) for number in range(5)] == [["a"], ["b"], ["a"], ["b"], ["a"]]
    assert portion([], 3, 5) == []


def test_a_job_sees_its_share_and_no_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)  # it names a cluster, and no allocation
    program = (
        "import os; print(len(os.sched_getaffinity(0)), os.environ['CUDA_VISIBLE_DEVICES'], "
        "sorted(k for k in os.environ "
        "if k.startswith(('SLURM', 'PBS', 'LSB', 'PMI', 'OMPI_COMM'))))"
    )
    command = Share(1, 2).command([sys.executable, "-c", program])
    given = {"CUDA_VISIBLE_DEVICES": "4,5,6,7", "SLURM_JOB_END_TIME": "9", "SLURMD_NODENAME": "n"}
    given |= {"PMIX_RANK": "0", "PMI_FD": "7", "OMPI_COMM_WORLD_SIZE": "1"}  # of an srun's shell
    said = subprocess.check_output(command, env={**os.environ, **NODES, **given}, text=True)
    assert said == f"{max(1, HERE - HERE // 2)} 6,7 ['SLURM_JOB_END_TIME']\n"


def test_a_job_knows_whose_share_it_has(tmp_path: Path) -> None:
    """By its lock, its run.json and what it asks Slurm, where it sees no allocation."""
    program = (
        "import os; from pathlib import Path; from hpcdi.run import run_folder, run_lock; "
        "from hpcdi.run.environment import allocation; from hpcdi.run.job_end import job_end; "
        "me = run_lock.this_process(); "
        f"made = run_folder.claim(Path('{tmp_path}/r'), {{'exp_name': 'x'}}, [], mpi=''); "
        "slurm = run_folder.read(made.root)['slurm']; "
        "print(allocation(os.environ), me.job, me.job_restarts, slurm['SLURM_ARRAY_TASK_ID'], "
        "os.environ['SLURM_CONF'], job_end(os.environ, 1000.0).at == float(os.environ['ENDS']))"
    )
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        "#!/bin/sh\ntest $4 = 5_3 && "
        "echo JobId=7 JobState=RUNNING EndTime=2026-11-26T15:04:05 Partition=x\n"
    )
    scontrol.chmod(0o755)
    given = {
        "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "3", "SLURM_RESTART_COUNT": "2",
        "SLURM_CONF": "/etc/s", "SLURM_JOB_END_TIME": "900", "PATH": str(tmp_path),
        "ENDS": str(time.mktime((2026, 11, 26, 15, 4, 5, 0, 0, -1))),
    }  # fmt: skip
    command = Share(0, 1).command([sys.executable, "-c", program])
    said = subprocess.check_output(command, env={**os.environ, **NODES, **given}, text=True)
    assert said == "None 7 2 3 /etc/s True\n"


def test_a_job_that_was_submitted_from_a_share_is_none_of_it() -> None:
    """sbatch has handed on what a task of an array knew of its job."""
    array = {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "3", "SLURM_RESTART_COUNT": "2"}
    inherited = kept_for_share({"SLURM_JOB_ID": "7", **array})
    program = (
        "import os; from hpcdi.run import environment, run_lock; "
        "print(environment.slurm_job_of(environment.own_job(os.environ)), "
        "run_lock.this_process().job_restarts)"
    )
    outside = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
    command = Share(0, 1).command([sys.executable, "-c", program])
    given = {**outside, **inherited, "SLURM_JOB_ID": "8"}
    assert subprocess.check_output(command, env=given, text=True) == "8 0\n"


def test_a_job_on_another_host_is_a_step() -> None:
    share = Share(1, 4, "n2")
    command = share.command(["job"])
    assert command[0] == "srun"
    assert "--nodelist=n2" in command
    assert command[-2:] == ["1/4", "job"]
    assert share.environment({"SLURM_CPUS_PER_TASK": "1", "A": "b"}) == {"A": "b"}
    assert Share(1, 4).environment({"A": "b"}) == {"A": "b"}
