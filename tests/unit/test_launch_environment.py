"""Variables of launchers and batch systems."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdi.errors import EXIT_USAGE, LaunchError
from hpcdi.run import rank
from hpcdi.run.environment import (
    Allocation,
    LaunchEnvironment,
    allocation,
    check_world_size,
    detect,
    has_misplaced_nodes,
    job_component,
    local_rank_of,
    visible_gpus,
)
from hpcdi.run.request import RunRequest
from hpcdi.run.run_lock import this_process
from hpcdi.run.shared_memory import BACKING_VARIABLE, check_shared_memory
from hpcdi.utils.host import local_ranks

NONE = LaunchEnvironment("none", 1)


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (RunRequest("/local/node1/x.yaml", ("seed=1",), ranks=3), True),
        (RunRequest("/local/n2/x.yaml", ("seed=1",)), True),  # of its own host, n2
        (RunRequest("/local/node1/x.yaml", ("seed=2",)), False),
        (RunRequest("/local/node1/x.yaml", ("seed=1",), "run"), False),
        (RunRequest("/local/node3/x.yaml", ("seed=1",)), False),
    ],
)
def test_what_ranks_ask_for_is_compared(other: RunRequest, *, is_same: bool) -> None:
    first = RunRequest("/local/node1/x.yaml", ("seed=1",)).checksums("node1")
    assert bool(set(first) & set(other.checksums("n2"))) is is_same


def test_what_ranks_ask_for_may_have_their_hosts_short_names_and_folders_in_it() -> None:
    first, other = (
        RunRequest(f"/local/{host}/x.yaml", ("seed=1",), f"/tmp/{job}/run")
        .checksums(f"{host}.example.org", f"/tmp/{job}")
        for host, job in (("node1", "a7"), ("n2", "b8"))
    )  # fmt: skip
    assert first[0] != other[0]
    assert first[1] == other[1]


SHELL = {"HOME": "/root", "PATH": "/usr/bin", "RANK": "3", "WORLD_SIZE": "4"}

ALLOCATION = {  # of 2 nodes x 2 tasks
    "SLURM_JOB_ID": "71",
    "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_TASKS_PER_NODE": "2(x2)",
}
BATCH = {**ALLOCATION, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_TASK_PID": "4242"}
STEP = {
    **BATCH,
    "SLURM_STEP_ID": "0",
    "SLURM_STEPID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "2",
}
PMIX_4 = {
    "PMIX_RANK": "2",
    "PMIX_NAMESPACE": "slurm.pmix.71.0",
    "PMIX_SERVER_URI41": "slurm;tcp4://127.0.0.1:1",
    "PMIX_SERVER_URI21": "slurm;tcp4://127.0.0.1:1",
}
PMI_2 = {"PMI_FD": "12", "PMI_JOBID": "71.0", "PMI_RANK": "2", "PMI_SIZE": "4"}

# mpirun starts a daemon on each other node by srun: ranks below it see that step of 2 tasks
DAEMON_STEP = {**BATCH, "SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "SLURM_NTASKS": "2"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "PMIX_RANK": "2",
}
OPEN_MPI_5 = {**OPEN_MPI, "PMIX_SERVER_URI41": "prterun-vm-1@0.0;tcp4://127.0.0.1:2"}
OPEN_MPI_4 = {**OPEN_MPI, "PMIX_SERVER_URI3": "1;tcp4://127.0.0.1:2"}
HYDRA = {
    "PMI_FD": "9",
    "PMI_RANK": "2",
    "PMI_SIZE": "4",
    "MPI_LOCALRANKID": "0",
    "MPI_LOCALNRANKS": "2",
}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        pytest.param({}, NONE, id="nothing"),
        pytest.param(SHELL, NONE, id="plain shell"),
        pytest.param(ALLOCATION, NONE, id="salloc shell"),
        pytest.param(BATCH, NONE, id="batch script"),
        pytest.param({**BATCH, "SLURM_STEP_ID": "4294967291"}, NONE, id="batch step"),
        pytest.param({**BATCH, "SLURM_STEPID": "4294967290"}, NONE, id="interactive step"),
        pytest.param({**STEP, **PMIX_4}, LaunchEnvironment("srun", 4), id="srun --mpi=pmix"),
        pytest.param({**STEP, **PMI_2}, LaunchEnvironment("srun", 4), id="srun --mpi=pmi2"),
        pytest.param(STEP, LaunchEnvironment("srun", 4), id="srun with no plugin"),
        pytest.param({"SLURM_STEPID": "3"}, LaunchEnvironment("none", 1), id="step says nothing"),
        pytest.param(
            {**STEP, "SLURM_NTASKS": ""}, LaunchEnvironment("none", 1), id="an empty variable"
        ),
        pytest.param(
            {**STEP, "SLURM_NTASKS": "1"}, LaunchEnvironment("none", 1), id="srun --pty bash"
        ),
        pytest.param(
            {**STEP, "SLURM_NTASKS": "1", "PMIX_RANK": "0"},
            LaunchEnvironment("none", 1),
            id="srun --pty bash, where the default plugin is pmix",
        ),
        pytest.param(OPEN_MPI_5, LaunchEnvironment("mpirun", 4), id="mpirun of Open MPI 5"),
        pytest.param(OPEN_MPI_4, LaunchEnvironment("mpirun", 4), id="mpirun of Open MPI 4"),
        pytest.param(HYDRA, LaunchEnvironment("mpirun", 4), id="mpiexec of MPICH"),
        pytest.param(
            {**BATCH, **OPEN_MPI_5}, LaunchEnvironment("mpirun", 4), id="mpirun in a batch script"
        ),
        pytest.param(
            {**DAEMON_STEP, **OPEN_MPI_5}, LaunchEnvironment("mpirun", 4), id="and on other nodes"
        ),
        pytest.param(
            {**DAEMON_STEP, **OPEN_MPI_4}, LaunchEnvironment("mpirun", 4), id="of Open MPI 4 there"
        ),
        pytest.param({**DAEMON_STEP, **HYDRA}, LaunchEnvironment("mpirun", 4), id="of MPICH there"),
        pytest.param({"PMIX_RANK": "0"}, LaunchEnvironment("mpirun", 1), id="size unknown"),
        pytest.param({"PALS_RANKID": "1"}, LaunchEnvironment("mpirun", 1), id="Cray PALS"),
        pytest.param(
            {"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "4"},
            LaunchEnvironment("mpirun", 4),
            id="jsrun",
        ),
        pytest.param(
            {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "6"},
            LaunchEnvironment("mpirun", 6),
            id="MVAPICH",
        ),
    ],
)
def test_what_started_this_process(variables: dict[str, str], expected: LaunchEnvironment) -> None:
    assert detect(variables) == expected
    assert expected.is_world == (expected.launcher != "none")


SHELL_OF_SRUN = """
import os, pty, subprocess, sys
from hpcdi.run.environment import detect

look = [sys.executable, "-c", "import os; from hpcdi.run.environment import detect; "
        "print(detect(os.environ).launcher, flush=True)"]
task, terminal = pty.fork()
if task == 0:
    os.environ["SLURM_TASK_PID"] = str(os.getpid())
    subprocess.run(look, process_group=0)  # a shell with job control: below srun --pty bash
    subprocess.run(look)  # a script that srun --pty has started
    os.environ["SLURM_TASK_PID"] = "1"
    subprocess.run(look, process_group=0)  # an srun that is typed in that shell
    os._exit(0)
try:
    while text := os.read(terminal, 4096):
        os.write(1, text)
except OSError:  # Linux says so that the other side has gone
    pass
os.waitpid(task, 0)
"""


def test_a_shell_of_several_tasks_is_no_rank() -> None:
    """As of ``srun -n4 --pty bash``, whose variables are those of a rank."""
    said = subprocess.check_output(
        [sys.executable, "-c", SHELL_OF_SRUN],
        env={**os.environ, **STEP, "SLURM_PTY_PORT": "4711"},
        text=True,
    )
    assert said.split() == ["none", "srun", "srun"]


def test_a_rank_in_a_container_is_no_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's leader is outside of its process numbers, and has 0 there."""
    monkeypatch.setattr(os, "getsid", lambda _: 0)
    assert detect({**STEP, "SLURM_TASK_PID": ""}).launcher == "srun"


@pytest.mark.parametrize(
    ("environment", "world_size"),
    [
        (NONE, 1),
        (LaunchEnvironment("srun", 4), 4),
        (LaunchEnvironment("srun", 1), 1),
        (LaunchEnvironment("mpirun", 4), 4),
        (LaunchEnvironment("mpirun", 1), 4),  # it did not say how many
    ],
)
def test_a_world_that_has_found_itself(environment: LaunchEnvironment, world_size: int) -> None:
    check_world_size(environment, world_size)


@pytest.mark.parametrize(
    ("variable", "codes"),
    [("HPCDI_LAUNCHER", [3, 2, 85]), ("HPCDI_REFUSED", [3, 2, 85]), ("HOME", [1, 2, 85])],
)
def test_a_rank_says_1_so_that_it_is_not_the_launcher_s(
    monkeypatch: pytest.MonkeyPatch, variable: str, codes: list[int]
) -> None:
    for name in ("HPCDI_LAUNCHER", "HPCDI_REFUSED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "3")
    assert [rank._refusal(code) for code in (1, 2, 85)] == codes


@pytest.mark.parametrize(
    ("launcher", "commands"),
    [
        (
            "srun",
            [
                "srun --mpi=pmix python -m hpcdi train CONFIG",
                "srun --mpi=pmi2 python -m hpcdi train CONFIG",
                "srun --mpi=list",
            ],
        ),
        ("mpirun", ["hpcdi train"]),
    ],
)
def test_processes_that_do_not_find_each_other_are_told_the_command(
    launcher: str, commands: list[str]
) -> None:
    with pytest.raises(LaunchError) as caught:
        check_world_size(LaunchEnvironment(launcher, 4), 1)
    message = str(caught.value)
    assert message.startswith("4 processes were started, but each is rank 0 of a world of 1")
    assert all(command in message for command in commands)
    assert caught.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"OMPI_COMM_WORLD_RANK": "0"}, "unset OMPI_COMM_WORLD_RANK"),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "PMIX_RANK": "0"},
            "unset OMPI_COMM_WORLD_RANK PMIX_RANK",
        ),
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, "unset PMI_RANK"),
        ({"PMIX_RANK": "0"}, "unset PMIX_RANK"),
        ({**BATCH, "SLURM_STEP_ID": "0"}, "unset SLURM_STEP_ID"),
    ],
)
def test_variables_that_have_been_inherited_are_named(
    variables: dict[str, str], named: str
) -> None:
    launched = detect(variables)
    assert launched.is_world
    with pytest.raises(LaunchError, match=f"{named}$"):
        check_world_size(launched, 1, variables)
    check_world_size(launched, 3, variables)


def test_what_says_no_number_counts_as_not_said() -> None:
    odd = {
        "SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "abc", "SLURM_HET_SIZE": "x",
        "SLURM_RESTART_COUNT": "(null)", "SLURM_LOCALID": "?",
    }  # fmt: skip
    assert detect(odd) == NONE
    assert allocation(odd) == Allocation("slurm", "5")
    assert job_component(odd) == 0
    assert local_rank_of(odd) == 0
    assert this_process(odd).job_restarts == 0
    assert detect({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "y"}) == LaunchEnvironment("mpirun", 1)
    assert local_ranks({"OMPI_COMM_WORLD_LOCAL_SIZE": "z"}) == 0


# ------------------------------------------------------------------------------------ batch systems


SLURM = {"SLURM_JOB_ID": "576", "SLURM_JOB_NODELIST": "node[1-3]", "SLURM_RESTART_COUNT": "2"}
HET_BATCH = {  # in the batch script SLURM_JOB_NODELIST is that of the first component
    "SLURM_JOB_ID": "576000",
    "SLURM_JOB_NODELIST": "node1",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "node1",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "gpu[02-03]",
}
HET_STEP = {**HET_BATCH, "SLURM_JOB_NODELIST": "node1,gpu[02-03]"}


@pytest.mark.parametrize(
    ("variables", "expected", "said"),
    [
        (
            SLURM,
            Allocation("slurm", "576", ("node1", "node2", "node3"), 2),
            "Slurm job 576 on node[1-3], restarted 2 x",
        ),
        (
            {**SLURM, "SLURM_ARRAY_JOB_ID": "570", "SLURM_ARRAY_TASK_ID": "6"},
            Allocation("slurm", "570_6", ("node1", "node2", "node3"), 2),
            "Slurm job 570_6 on node[1-3], restarted 2 x",
        ),
        (
            HET_BATCH,
            Allocation("slurm", "576000", ("node1", "gpu02", "gpu03")),
            "Slurm job 576000 on node1,gpu[02-03]",
        ),
        (HET_STEP, Allocation("slurm", "576000", ("node1", "gpu02", "gpu03")), "Slurm job 576000"),
        ({"SLURM_JOB_ID": "1"}, Allocation("slurm", "1"), "Slurm job 1"),
        (
            {"SLURM_JOB_ID": "1", "SLURM_HET_SIZE": "", "SLURM_RESTART_COUNT": ""},
            Allocation("slurm", "1"),
            "Slurm job 1",
        ),
        ({"PBS_JOBID": "12.head"}, Allocation("pbs", "12.head"), "PBS job 12.head"),
        (
            {"LSB_JOBID": "9", "LSB_MCPU_HOSTS": "hostA 4 hostB 8", "LSB_JOBINDEX": "0"},
            Allocation("lsf", "9", ("hostA", "hostB")),
            "LSF job 9 on hostA,hostB",
        ),
        (
            {"LSB_JOBID": "9", "LSB_HOSTS": "a a b", "LSB_JOBINDEX": "3", "LSB_RESTART": "Y"},
            Allocation("lsf", "9[3]", ("a", "b"), 1),
            "LSF job 9[3] on a,b, restarted 1 x",
        ),
    ],
)
def test_the_job(variables: dict[str, str], expected: Allocation, said: str) -> None:
    found = allocation(variables)
    assert found == expected
    assert str(found).startswith(said)


def test_no_job() -> None:
    assert allocation({"HOME": "/root", "RANK": "3"}) is None


def test_a_file_of_slots(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("n1\nn1\nn2\nn2\n")
    found = allocation({"PBS_JOBID": "7", "PBS_NODEFILE": str(nodes)})
    assert found == Allocation("pbs", "7", ("n1", "n2"))
    found = allocation({"LSB_JOBID": "7", "LSB_DJOB_HOSTFILE": str(nodes)})
    assert found == Allocation("lsf", "7", ("n1", "n2"))
    assert allocation({"PBS_JOBID": "7", "PBS_NODEFILE": str(tmp_path)}) == Allocation("pbs", "7")


@pytest.mark.parametrize(("node", "number"), [("node1", 0), ("gpu02", 1), ("gpu03", 1), ("x", 0)])
def test_components_of_a_heterogeneous_job(node: str, number: int) -> None:
    assert job_component({**HET_STEP, "SLURMD_NODENAME": node}) == number
    assert job_component({**SLURM, "SLURMD_NODENAME": node}) == 0
    assert job_component({}) == 0
    assert job_component({"SLURM_HET_SIZE": ""}) == 0


@pytest.mark.parametrize(
    ("hosts", "place", "is_misplaced"),
    [("node[1,4]", 0, False), ("node[1,4]", 1, True), ("", 0, False)],
)
def test_components_whose_nodes_are_out_of_order(
    hosts: str, place: int, is_misplaced: bool
) -> None:
    step = {"SLURM_STEP_NODELIST": hosts, "SLURM_NODEID": str(place), "SLURMD_NODENAME": "node1"}
    assert has_misplaced_nodes({**step, "SLURM_HET_SIZE": "2"}) is is_misplaced
    assert not has_misplaced_nodes(step), "one component"


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        ("0,1", ("0", "1")),
        ("3", ("3",)),
        ("", ()),
        ("-1", ()),
        ("0,-1,2", ("0",)),
        ("NoDevFiles", ()),
        ("GPU-5a1b, GPU-77", ("GPU-5a1b", "GPU-77")),
    ],
)
def test_gpus_that_the_scheduler_shows(variable: str, names: tuple[str, ...]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": variable}) == names


def test_gpus_of_the_driver(tmp_path: Path) -> None:
    assert visible_gpus({}, tmp_path) == ()
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ("0", "2", "10")
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == ()


@pytest.mark.parametrize("device", ["kfd", "dxg"])
def test_a_gpu_of_another_maker_may_be_there(device: str, tmp_path: Path) -> None:
    (tmp_path / device).touch()
    assert visible_gpus({}, tmp_path) == ("0",)


def test_a_host_without_shared_memory_is_no_place_for_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No requeue mends it: it is no 85."""
    state = os.statvfs(tmp_path)
    small = os.statvfs_result((4096, 4096, 4096, *state[3:]))  # 16 MB, all of them free
    monkeypatch.setattr(os, "statvfs", lambda _: small)
    with pytest.raises(LaunchError, match=r"16.0 MiB in all on this host.*--shm-size") as refused:
        check_shared_memory({"PMI_RANK": "0"}, tmp_path)
    assert refused.value.exit_code == EXIT_USAGE
    check_shared_memory({"OMPI_COMM_WORLD_SIZE": "2", BACKING_VARIABLE: "/tmp/x"}, tmp_path)
