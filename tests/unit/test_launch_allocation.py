"""What batch systems say of a job. The Slurm variables are those of real jobs of Slurm 22.05."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdi.launch.allocation import Allocation, allocation, component, visible_gpus

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
            "Slurm job 576 on node[1-3], started again 2 x",
        ),
        (
            {**SLURM, "SLURM_ARRAY_JOB_ID": "570", "SLURM_ARRAY_TASK_ID": "6"},
            Allocation("slurm", "570_6", ("node1", "node2", "node3"), 2),
            "Slurm job 570_6 on node[1-3], started again 2 x",
        ),
        (
            HET_BATCH,
            Allocation("slurm", "576000", ("node1", "gpu02", "gpu03")),
            "Slurm job 576000 on node1,gpu[02-03]",
        ),
        (HET_STEP, Allocation("slurm", "576000", ("node1", "gpu02", "gpu03")), "Slurm job 576000"),
        ({"SLURM_JOB_ID": "1"}, Allocation("slurm", "1"), "Slurm job 1"),
        ({"PBS_JOBID": "12.head"}, Allocation("pbs", "12.head"), "PBS job 12.head"),
        (
            {"LSB_JOBID": "9", "LSB_MCPU_HOSTS": "hostA 4 hostB 8", "LSB_JOBINDEX": "0"},
            Allocation("lsf", "9", ("hostA", "hostB")),
            "LSF job 9 on hostA,hostB",
        ),
        (
            {"LSB_JOBID": "9", "LSB_HOSTS": "a a b", "LSB_JOBINDEX": "3", "LSB_RESTART": "Y"},
            Allocation("lsf", "9[3]", ("a", "b"), 1),
            "LSF job 9[3] on a,b, started again 1 x",
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
    assert component({**HET_STEP, "SLURMD_NODENAME": node}) == number
    assert component({**SLURM, "SLURMD_NODENAME": node}) == 0
    assert component({}) == 0


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
