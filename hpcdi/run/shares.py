"""Shares of an allocation: jobs side by side, each on cores and GPUs of its own.

::

    shares() ─► Share 0 of 4 on host n1, 1 of 4, ... ─► share.command(job) ─► [srun to that host]
             ─► python -m hpcdi.run.shares 0/4 job: keeps to its quarter, and becomes the job

A job takes its share for a lone machine: it does not see the allocation, all its ranks are on one
host, and its mpirun is its own; `own_job` alone says whose share it is. So nothing that happens to
it can reach another job, whatever the MPI library, and what is free again goes to the next job.
Groups of ranks of one MPI world could do neither: only ULFM survives the death of a rank, not under
srun; a rank that exits without MPI_Finalize leaves the others waiting even so (seen with Open MPI
5.0.11); and ranks cannot join.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from hpcdi.dataclass import dataclass
from hpcdi.errors import LaunchError
from hpcdi.run.environment import (
    OF_A_RANK,
    OWN_PREFIX,
    allocation,
    kept_for_share,
    visible_gpus,
)
from hpcdi.run.job_end import END_VARIABLE
from hpcdi.run.slurm_queue import names_cluster
from hpcdi.utils.python import python_command

T = TypeVar("T")

_OF_BATCH_SYSTEMS = ("SLURM", "SRUN_", "PBS_", "LSB_", *OF_A_RANK, OWN_PREFIX)
_OF_A_STEP = (
    "SLURM_CPUS_PER_TASK",
    "SRUN_CPUS_PER_TASK",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_TRES_PER_TASK",
)
"""Read by srun as wishes: a share's step has one task and all cores of its host."""


@dataclass(frozen=True)
class Share:
    """Share `number` of `of` equal ones of a host; `host` is empty for this one."""

    number: int
    of: int
    host: str = ""

    def command(self, job: Sequence[str]) -> list[str]:
        """Returns the command that runs a job on this share."""
        step = [
            "srun",
            "--nodes=1",
            "--ntasks=1",
            f"--nodelist={self.host}",
            "--overlap",
            "--cpu-bind=none",
            "--mpi=none",
        ]
        taking = python_command("hpcdi.run.shares", f"{self.number}/{self.of}")
        return [*(step if self.host else []), *taking, *job]

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Returns the variables for `command`."""
        return {k: v for k, v in variables.items() if not self.host or k not in _OF_A_STEP}


def shares(
    cores: int, most: int, at_once: int | None, variables: Mapping[str, str] = os.environ
) -> list[Share]:
    """Returns shares of this allocation, or of this host: those of all hosts by turns.

    Args:
        cores: that a job would like to have.
        most: number of jobs.
        at_once: number of shares; None: as many as the cores allow, at least one a host.
        variables: of the environment.

    Raises:
        LaunchError: jobs cannot be placed on the hosts of this allocation.
    """
    hosts = _hosts(variables)
    fits = sum(max(1, count // cores) for count in hosts.values())
    taken = dict.fromkeys(hosts, 0)
    for _ in range(min(most, at_once or fits)):
        taken[min(hosts, key=lambda host: (taken[host] + 1) / hosts[host])] += 1
    ordered = sorted((k, i, host) for i, host in enumerate(hosts) for k in range(taken[host]))
    return [Share(number, taken[host], host) for number, _, host in ordered]


def _hosts(variables: Mapping[str, str]) -> dict[str, int]:
    """Returns the number of cores by host; this one, where it is the only one, has no name."""
    here = {"": len(os.sched_getaffinity(0))}
    job = allocation(variables)
    if job is None or job.hosts in ((), (variables.get("SLURMD_NODENAME", platform.node()),)):
        return here
    if job.scheduler != "slurm":
        if len(job.hosts) == 1:
            return here
        raise LaunchError(
            f"{job}: only Slurm's srun can place several jobs on several hosts. Take one host, "
            "or say --local, for this one alone"
        )
    if shutil.which("srun") is None:
        raise LaunchError(f"{job}: there is no srun here to place runs on these hosts")
    counts: list[int] = []
    for count, times in re.findall(
        r"(\d+)(?:\(x(\d+)\))?", variables.get("SLURM_JOB_CPUS_PER_NODE", "")
    ):
        counts += [int(count)] * int(times or 1)
    if len(counts) != len(job.hosts):
        raise LaunchError(
            f"{job}: SLURM_JOB_CPUS_PER_NODE does not say how many cores each of these has. Is "
            "it a heterogeneous job? Take one of one component"
        )
    return dict(zip(job.hosts, counts, strict=True))


def portion(items: Sequence[T], number: int, of: int) -> list[T]:
    """Returns part `number` of `of` disjoint ones; where there are too few, one item, by turns."""
    if 0 < len(items) < of:
        return [items[number % len(items)]]
    return list(items[len(items) * number // of : len(items) * (number + 1) // of])


def main(arguments: Sequence[str]) -> None:
    """Keep this process to a share, such as 0/4, and become the command; does not return."""
    number, of = map(int, arguments[0].split("/"))
    cores = sorted(os.sched_getaffinity(0), key=_first_of_core)
    os.sched_setaffinity(0, portion(cores, number, of))
    gpus = visible_gpus(os.environ)
    variables = {
        k: v
        for k, v in os.environ.items()
        if k == END_VARIABLE or names_cluster(k) or not k.startswith(_OF_BATCH_SYSTEMS)
    } | kept_for_share(os.environ)
    if gpus:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(portion(gpus, number, of))
    os.execve(arguments[1], list(arguments[1:]), variables)  # noqa: S606 (our own command line)


def _first_of_core(thread: int) -> tuple[int, int]:
    """Returns a key that sorts the hardware threads of a core together."""
    path = Path(f"/sys/devices/system/cpu/cpu{thread}/topology/thread_siblings_list")
    try:
        return int(re.split("[-,]", path.read_text())[0]), thread
    except (OSError, ValueError):  # not in this container
        return thread, thread


if __name__ == "__main__":
    main(sys.argv[1:])
