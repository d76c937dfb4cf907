"""What the batch system has said of this job: pure functions of the environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcdi.launch.hostlist import compress, expand


@dataclass(frozen=True)
class Allocation:
    """A job of a batch system.

    Attributes:
        scheduler: "slurm", "pbs" or "lsf".
        job: its number; of an array, with the index.
        hosts: that it has, each once, in the batch system's order; empty where it does not say.
        restarts: how often the batch system has started it again.
    """

    scheduler: str
    job: str
    hosts: tuple[str, ...] = ()
    restarts: int = 0

    def __str__(self) -> str:
        name = {"slurm": "Slurm", "pbs": "PBS", "lsf": "LSF"}[self.scheduler]
        where = f" on {compress(self.hosts)}" if self.hosts else ""
        again = f", started again {self.restarts} x" if self.restarts else ""
        return f"{name} job {self.job}{where}{again}"


def allocation(variables: Mapping[str, str]) -> Allocation | None:
    """The job that this process belongs to; None outside of one."""
    if "SLURM_JOB_ID" in variables:
        return _slurm(variables)
    if "PBS_JOBID" in variables:
        # one line a slot; the last jobs' hosts are no matter of a later one
        hosts = _words_of_file(variables.get("PBS_NODEFILE", ""))
        return Allocation("pbs", variables["PBS_JOBID"], _once(hosts))
    if "LSB_JOBID" in variables:
        return _lsf(variables)
    return None


def component(variables: Mapping[str, str]) -> int:
    """Number of the component of a heterogeneous Slurm job in which this process runs, from 0."""
    own = variables.get("SLURMD_NODENAME", "")
    for number in range(int(variables.get("SLURM_HET_SIZE", "0"))):
        if own in expand(variables.get(f"SLURM_JOB_NODELIST_HET_GROUP_{number}", "")):
            return number
    return 0


def visible_gpus(variables: Mapping[str, str], devices: Path = Path("/dev")) -> tuple[str, ...]:
    """GPUs that this process may use, as the scheduler names them, else by the driver's numbers.

    Args:
        variables: of the environment.
        devices: the folder of device files.
    """
    given = variables.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        found = [path.name.removeprefix("nvidia") for path in devices.glob("nvidia*")]
        if any((devices / other).exists() for other in ("kfd", "dxg")):  # AMD's; Windows's
            found.append("0")
        return tuple(sorted(filter(str.isdecimal, set(found)), key=int))
    names: list[str] = []
    for name in given.split(","):
        if name.strip() in (
            "",
            "-1",
            "NoDevFiles",
        ):  # as CUDA reads it: what follows does not count
            break
        names.append(name.strip())
    return tuple(names)


def _slurm(variables: Mapping[str, str]) -> Allocation:
    parts = int(variables.get("SLURM_HET_SIZE", "0"))
    names = [f"SLURM_JOB_NODELIST_HET_GROUP_{number}" for number in range(parts)]
    lists = [variables[name] for name in names if name in variables]
    lists = lists or [variables.get("SLURM_JOB_NODELIST", "")]
    hosts = [host for text in lists for host in expand(text)]
    job = variables["SLURM_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in variables:
        job = f"{variables['SLURM_ARRAY_JOB_ID']}_{variables.get('SLURM_ARRAY_TASK_ID', '?')}"
    return Allocation("slurm", job, _once(hosts), int(variables.get("SLURM_RESTART_COUNT", "0")))


def _lsf(variables: Mapping[str, str]) -> Allocation:
    words = variables.get("LSB_MCPU_HOSTS", "").split()  # hostA 4 hostB 8
    hosts = words[::2] or variables.get("LSB_HOSTS", "").split()
    if not hosts:
        hosts = _words_of_file(variables.get("LSB_DJOB_HOSTFILE", ""))
    job, index = variables["LSB_JOBID"], variables.get("LSB_JOBINDEX", "0")
    job = f"{job}[{index}]" if index != "0" else job
    return Allocation("lsf", job, _once(hosts), int(variables.get("LSB_RESTART", "N") == "Y"))


def _words_of_file(path: str) -> list[str]:
    file = Path(path)
    return re.findall(r"\S+", file.read_text()) if path and file.is_file() else []


def _once(hosts: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(hosts))
