"""Environment variables of the launcher (mpirun, srun) and of the batch system."""

from __future__ import annotations

import base64
import json
import os
import re
import zlib
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from hpcdi.dataclass import dataclass
from hpcdi.errors import LaunchError
from hpcdi.run.hostlist import compress, expand

LAUNCHER_VARIABLE = "HPCDI_LAUNCHER"
"""Set by `hpcdi train` for the ranks that it starts: its id. It returns the exit code itself."""
TERMINAL_VARIABLE = "HPCDI_TERMINAL"
"""Set to 1 where a person watches: ranks see a pipe, not the terminal."""
EXPERIMENT_VARIABLE = "HPCDI_EXPERIMENT"
"""Set by `hpcdi train` for the ranks that it starts: the experiment that it has checked."""
REFUSED = 3
"""Exit code of rank 0 for `hpcdi train`, which returns 1 for it: mpirun's own 1 says nothing."""
REFUSED_VARIABLE = "HPCDI_REFUSED"
"""Set by batch scripts that understand `REFUSED`, too: srun's own 1 says nothing, either."""

WITHOUT_NETWORK = ("OMPI_MCA_btl", "^ofi,tcp")
"""Setting of Open MPI where all ranks are on one host: they share memory, no rank opens a port to
the network, and none searches a second long for a fast one."""

_RANK_VARIABLES = (
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "PALS_RANKID",
    "MV2_COMM_WORLD_RANK",
    "JSM_NAMESPACE_RANK",  # of jsrun, on LSF
)
_SIZE_VARIABLES = (
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "JSM_NAMESPACE_SIZE",
)
_MPIRUN_ONLY = ("OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID")  # of Open MPI and hydra, never of srun
_LARGEST_STEP = 4_294_960_000  # Slurm numbers batch, interactive and other special steps above


@dataclass(frozen=True)
class LaunchEnvironment:
    """The launcher of this process.

    Attributes:
        launcher: "mpirun", "srun" or "none".
        tasks: number of processes that the launcher started; 1 if unknown.
    """

    launcher: str
    tasks: int

    @property
    def is_world(self) -> bool:
        """True if a launcher started this process as a rank."""
        return self.launcher != "none"


def detect(variables: Mapping[str, str]) -> LaunchEnvironment:
    """Detect the launcher from its variables."""
    tasks = int(variables.get("SLURM_NTASKS") or "1")
    if _is_slurm_step(variables):
        if tasks > 1:
            return LaunchEnvironment("srun", tasks)
        # a shell (srun --pty bash), for which the site's default plugin may set a rank
        return LaunchEnvironment("none", 1)
    if any(name in variables for name in _RANK_VARIABLES):
        sizes = [int(variables[name]) for name in _SIZE_VARIABLES if name in variables]
        return LaunchEnvironment("mpirun", sizes[0] if sizes else 1)
    return LaunchEnvironment("none", 1)


def hand_over(experiment: Mapping[str, Any]) -> str:
    """Returns the value of `EXPERIMENT_VARIABLE` for an experiment, as a mapping."""
    return base64.b64encode(zlib.compress(json.dumps(experiment).encode())).decode()


def take_handed_over(variables: MutableMapping[str, str]) -> dict[str, Any] | None:
    """Returns the experiment that this job's launcher has checked; None: no launcher of ours has.

    The variable is removed: children of a rank do not need it.
    """
    text = variables.pop(EXPERIMENT_VARIABLE, None)
    if text is None:
        return None
    experiment: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
    return experiment


def rank_of(variables: Mapping[str, str]) -> str:
    """Returns this process's rank by its launcher; "?" where it has none."""
    names = [*_RANK_VARIABLES, *(["SLURM_PROCID"] if _is_slurm_step(variables) else [])]
    return next((variables[name] for name in names if name in variables), "?")


def local_rank_of(variables: Mapping[str, str]) -> int:
    """Returns this process's number among the ranks of its host; 0 where no launcher says."""
    names = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
    return next((int(variables[name]) for name in names if name in variables), 0)


def step_of(variables: Mapping[str, str]) -> str:
    """Returns the Slurm step whose task this process is, as scancel names it; empty: none."""
    if not _is_slurm_step(variables):
        return ""
    step = variables.get("SLURM_STEP_ID", variables.get("SLURM_STEPID", ""))
    return f"{variables.get('SLURM_JOB_ID', '')}.{step}"


def is_first(variables: Mapping[str, str]) -> bool:
    """Returns whether this process is rank 0 for its launcher, or has no launcher."""
    names = ("SLURM_PROCID", *_RANK_VARIABLES)
    return all(variables[name] == "0" for name in names if name in variables)


def all_ranks_are_here(variables: Mapping[str, str]) -> bool:
    """Returns whether a launcher has started all ranks on this host; False where it is unknown."""
    size = variables.get("OMPI_COMM_WORLD_SIZE")
    if size is not None:
        return variables.get("OMPI_COMM_WORLD_LOCAL_SIZE") == size
    return variables.get("SLURM_STEP_NUM_NODES") == "1" and "SLURM_HET_SIZE" not in variables


def check_world_size(environment: LaunchEnvironment, world_size: int) -> None:
    """Check that the processes have found each other.

    Raises:
        LaunchError: the launcher started several, and each is a world of its own.
    """
    if environment.tasks > 1 and world_size == 1:
        how = (
            "srun's PMI plugin does not fit the MPI library: start it with\n"
            "    srun --mpi=pmix python -m hpcdi train CONFIG        (Open MPI)\n"
            "    srun --mpi=pmi2 python -m hpcdi train CONFIG        (MPICH, Intel MPI)\n"
            "  `srun --mpi=list` shows what this cluster has"
            if environment.launcher == "srun"
            else "this mpirun belongs to another MPI library than mpi4py uses; start it with "
            "`hpcdi train`, which takes the right one"
        )
        raise LaunchError(
            f"{environment.tasks} processes were started, but each is rank 0 of a world of 1.\n"
            f"  {how}"
        )


def _is_slurm_step(variables: Mapping[str, str]) -> bool:
    """Returns whether srun started this process (not a batch script or an interactive shell)."""
    step = variables.get("SLURM_STEP_ID", variables.get("SLURM_STEPID", ""))
    if not step.isdigit() or int(step) > _LARGEST_STEP:
        return False
    # mpirun inside an allocation starts its daemons with srun; their children are mpirun's ranks
    return not any(name in variables for name in _MPIRUN_ONLY)


@dataclass(frozen=True)
class Allocation:
    """A job of a batch system.

    Attributes:
        scheduler: "slurm", "pbs" or "lsf".
        job: its id; of an array, with the index.
        hosts: its hosts in the batch system's order; empty if unknown.
        restarts: how often the batch system has restarted it.
    """

    scheduler: str
    job: str
    hosts: tuple[str, ...] = ()
    restarts: int = 0

    def __str__(self) -> str:
        name = {"slurm": "Slurm", "pbs": "PBS", "lsf": "LSF"}[self.scheduler]
        where = f" on {compress(self.hosts)}" if self.hosts else ""
        again = f", restarted {self.restarts} x" if self.restarts else ""
        return f"{name} job {self.job}{where}{again}"


def allocation(variables: Mapping[str, str]) -> Allocation | None:
    """Returns the batch job that this process belongs to, or None."""
    if "SLURM_JOB_ID" in variables:
        return _slurm(variables)
    if "PBS_JOBID" in variables:
        # one line per slot
        hosts = _words_of_file(variables.get("PBS_NODEFILE", ""))
        return Allocation("pbs", variables["PBS_JOBID"], _once(hosts))
    if "LSB_JOBID" in variables:
        return _lsf(variables)
    return None


def job_component(variables: Mapping[str, str]) -> int:
    """Returns this process's component of a heterogeneous Slurm job, from 0."""
    host = variables.get("SLURMD_NODENAME", "")
    for number in range(int(variables.get("SLURM_HET_SIZE") or "0")):
        if host in expand(variables.get(f"SLURM_JOB_NODELIST_HET_GROUP_{number}", "")):
            return number
    return 0


def visible_gpus(variables: Mapping[str, str], devices: Path = Path("/dev")) -> tuple[str, ...]:
    """Returns the GPUs that this process may use, as the scheduler or else the driver names them.

    Args:
        variables: environment variables.
        devices: folder of device files.
    """
    variable = variables.get("CUDA_VISIBLE_DEVICES")
    if variable is None:
        numbers = [path.name.removeprefix("nvidia") for path in devices.glob("nvidia*")]
        if any((devices / other).exists() for other in ("kfd", "dxg")):  # AMD's; Windows's
            numbers.append("0")
        return tuple(sorted(filter(str.isdecimal, set(numbers)), key=int))
    names: list[str] = []
    for name in variable.split(","):
        if name.strip() in ("", "-1", "NoDevFiles"):  # CUDA ignores what follows
            break
        names.append(name.strip())
    return tuple(names)


def _slurm(variables: Mapping[str, str]) -> Allocation:
    parts = int(variables.get("SLURM_HET_SIZE") or "0")
    names = [f"SLURM_JOB_NODELIST_HET_GROUP_{number}" for number in range(parts)]
    lists = [variables[name] for name in names if name in variables]
    lists = lists or [variables.get("SLURM_JOB_NODELIST", "")]
    hosts = [host for text in lists for host in expand(text)]
    job = variables["SLURM_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in variables:
        job = f"{variables['SLURM_ARRAY_JOB_ID']}_{variables.get('SLURM_ARRAY_TASK_ID', '?')}"
    restarts = int(variables.get("SLURM_RESTART_COUNT") or "0")
    return Allocation("slurm", job, _once(hosts), restarts)


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


def limit_threads() -> set[str]:
    """Let numerical libraries use one thread; returns the variables that the user has set already.

    Call it before numpy is imported, which starts its threads then.
    """
    chosen = set(thread_variables(1)) & os.environ.keys()
    for name, value in thread_variables(1).items():
        os.environ.setdefault(name, value)
    return chosen


def thread_variables(threads: int) -> Mapping[str, str]:
    """Returns environment variables that limit the threads of numerical libraries."""
    names = (
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
    )
    return dict.fromkeys(names, str(threads))
