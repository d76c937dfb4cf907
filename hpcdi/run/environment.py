"""Environment variables of the launcher (mpirun, srun) and of the batch system."""

from __future__ import annotations

import base64
import os
import platform
import re
import zlib
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from hpcdi.dataclass import dataclass
from hpcdi.errors import HpcdiError, LaunchError, RankMissingError
from hpcdi.run.hostlist import compress, expand
from hpcdi.utils.host import count_in

LAUNCHER_VARIABLE = "HPCDI_LAUNCHER"
"""Set by `hpcdi train` for the ranks that it starts: its id. It returns the exit code itself."""
TERMINAL_VARIABLE = "HPCDI_TERMINAL"
"""Set to 1 where a person watches: ranks see a pipe, not the terminal."""
EXPERIMENT_VARIABLE = "HPCDI_EXPERIMENT"
"""Set by `hpcdi train` for the ranks that it starts: the experiment that it has checked."""
_LARGEST_VARIABLE = 120_000
"""Bytes of a variable; Linux takes 128 KiB with its name."""
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
_STEP_VARIABLES = ("SLURM_STEP_ID", "SLURM_STEPID")
OF_A_RANK = (
    "OMPI_COMM_WORLD_", "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER_", "PMIX_GDS_MODULE",
    "PMIX_DSTORE_", "PMIX_BFROP_", "PMIX_SECURITY_MODE", "PMIX_HOSTNAME", "PMIX_VERSION",
    "PMI_RANK", "PMI_SIZE", "PMI_FD", "PMI_PORT", "PMI_ID", "PMI_JOBID", "PMI_SPAWNED",
    "PALS_RANKID", "MV2_COMM_WORLD_", "JSM_NAMESPACE_", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
    "SLURM_STEP_", "SLURM_STEPID",
)  # fmt: skip
"""How variables begin that a launcher gives to its ranks: a job that inherits them is none of them.

Settings of users, such as PMIX_MCA_gds or PMI_MMAP_SYNC_WAIT_TIME, are not among them."""
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
    tasks = count_in(variables, "SLURM_NTASKS", 1)
    if _is_slurm_step(variables):
        if tasks > 1 and not _is_in_shell(variables):
            return LaunchEnvironment("srun", tasks)
        # a shell (srun --pty bash), for which the site's default plugin may set a rank
        return LaunchEnvironment("none", 1)
    if any(name in variables for name in _RANK_VARIABLES):
        sizes = (count_in(variables, name, 1) for name in _SIZE_VARIABLES if name in variables)
        return LaunchEnvironment("mpirun", next(sizes, 1))
    return LaunchEnvironment("none", 1)


def hand_over(experiment: Mapping[str, Any]) -> str:
    """Returns the value of `EXPERIMENT_VARIABLE` for an experiment, as a mapping.

    Empty: it is too large for a variable, and ranks read it themselves.
    """
    from hpcdi.comm.codec import to_bytes  # with it numpy, which `--help` does without

    text = base64.b64encode(zlib.compress(to_bytes(experiment).tobytes())).decode()
    return text if len(text) < _LARGEST_VARIABLE else ""


def take_handed_over(variables: MutableMapping[str, str]) -> dict[str, Any] | None:
    """Returns the experiment that this job's launcher has checked; None: no launcher of ours has.

    The variable is removed: children of a rank do not need it.
    """
    text = variables.pop(EXPERIMENT_VARIABLE, None)
    if text is None:
        return None
    import numpy as np

    from hpcdi.comm.codec import from_bytes

    packed = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    experiment: dict[str, Any] = from_bytes(packed)
    return experiment


def rank_of(variables: Mapping[str, str]) -> str:
    """Returns this process's rank by its launcher; "?" where it has none."""
    names = [*_RANK_VARIABLES, *(["SLURM_PROCID"] if _is_slurm_step(variables) else [])]
    return next((variables[name] for name in names if name in variables), "?")


def local_rank_of(variables: Mapping[str, str]) -> int:
    """Returns this process's number among the ranks of its host; 0 where no launcher says."""
    names = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
    return next((count_in(variables, name) for name in names if name in variables), 0)


def step_of(variables: Mapping[str, str]) -> str:
    """Returns the Slurm step whose task this process is, as scancel names it; empty: none."""
    if not _is_slurm_step(variables):
        return ""
    return f"{variables.get('SLURM_JOB_ID', '')}.{_step_number(variables)}"


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


def check_world_size(
    environment: LaunchEnvironment,
    world_size: int,
    variables: Mapping[str, str] = os.environ,
    command: str = "train CONFIG",
) -> None:
    """Check that the processes have found each other.

    Args:
        environment: the launcher of this process, by its variables.
        world_size: ranks that MPI has found.
        variables: environment variables.
        command: of ours, that this process runs.

    Raises:
        LaunchError: the launcher started several, and each is a world of its own; or this one
            alone, and by its variables it is a rank, which starts no others.
    """
    if world_size > 1:
        return
    if environment.tasks > 1:
        how = (
            "srun's PMI plugin does not fit the MPI library: start it with\n"
            f"    srun --mpi=pmix python -m hpcdi {command}        (Open MPI), or\n"
            f"    srun --mpi=pmi2 python -m hpcdi {command}        (MPICH, Intel MPI);\n"
            "  `srun --mpi=list` shows what this cluster has"
            if environment.launcher == "srun"
            else "this mpirun belongs to another MPI library than mpi4py uses; start it with "
            f"`hpcdi {command.split()[0]}`, which takes the right one"
        )
        raise LaunchError(
            f"{environment.tasks} processes were started, but each is rank 0 of a world of 1.\n"
            f"  {how}.\n"
            f"  {if_inherited(variables)}"
        )
    if environment.launcher == "mpirun":
        raise LaunchError(
            "by its environment a launcher has started this process as a rank, so it starts no "
            "others, whatever -n says; but MPI finds it alone.\n"
            "  Start `hpcdi train` outside of mpirun, or several ranks by mpirun.\n"
            f"  {if_inherited(variables)}"
        )


def if_inherited(variables: Mapping[str, str]) -> str:
    """Returns a sentence: what to do where no launcher has started this process as a rank."""
    told_by = " ".join(name for name in (*_RANK_VARIABLES, *_STEP_VARIABLES) if name in variables)
    return f"If there is no launcher, the environment has been inherited from one: unset {told_by}"


def own_words(error: HpcdiError, launched: LaunchEnvironment, variables: Mapping[str, str]) -> str:
    """Returns what this rank says of an error at MPI's start: rank 0 says for all why none begins.

    Of a death, or of a broken network, others may hear alone. And rank 0 says nothing where there
    is none: this process may have inherited another rank's variables.
    """
    if is_first(variables):
        return str(error)
    rank = f"rank {rank_of(variables)} (host {platform.node()})"
    if isinstance(error, RankMissingError):
        return f"{rank}: {error}"
    if launched.launcher == "srun":
        return ""
    return f"{rank} does not begin, see rank 0. {if_inherited(variables)}"


def _step_number(variables: Mapping[str, str]) -> str:
    """Returns what Slurm calls the step of this process; empty: it is in none."""
    return next((variables[name] for name in _STEP_VARIABLES if name in variables), "")


def _is_slurm_step(variables: Mapping[str, str]) -> bool:
    """Returns whether srun started this process (not a batch script or an interactive shell)."""
    step = _step_number(variables)
    if not step.isdigit() or int(step) > _LARGEST_STEP:
        return False
    # mpirun inside an allocation starts its daemons with srun; their children are mpirun's ranks
    return not any(name in variables for name in _MPIRUN_ONLY)


def _is_in_shell(variables: Mapping[str, str]) -> bool:
    """Returns whether this process is a job of a shell that srun has started (srun -n4 --pty bash).

    The shell leads the session, and gives each command a process group. SLURM_PTY_PORT says
    nothing: ranks of an srun that is typed there, and jobs that are submitted there, inherit it.
    In a container with process numbers of its own a leader outside of it is 0.
    """
    task = count_in(variables, "SLURM_TASK_PID")
    return 0 < task == os.getsid(0) != os.getpgrp()


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
    return next((job_of(variables) for name, job_of in JOBS.items() if name in variables), None)


def is_outside_allocation(variables: Mapping[str, str] = os.environ) -> bool:
    """Returns whether no batch system has given us hosts: mpirun starts all ranks on this one."""
    return JOBS.keys().isdisjoint(variables)


def slurm_job_of(variables: Mapping[str, str]) -> str:
    """Returns the job that Slurm's variables name, of an array the task ``12_3``; empty: none."""
    array, index = variables.get("SLURM_ARRAY_JOB_ID"), variables.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{index}" if array and index else variables.get("SLURM_JOB_ID", "")


def job_component(variables: Mapping[str, str]) -> int:
    """Returns this process's component of a heterogeneous Slurm job, from 0."""
    host = variables.get("SLURMD_NODENAME", "")
    for number in range(count_in(variables, "SLURM_HET_SIZE")):
        if host in expand(variables.get(f"SLURM_JOB_NODELIST_HET_GROUP_{number}", "")):
            return number
    return 0


def has_misplaced_nodes(variables: Mapping[str, str]) -> bool:
    """Returns whether Slurm's PMIx plugin counts this rank's node's tasks as another node's.

    Slurm 22.05 lists the nodes of a heterogeneous job's step in order, and numbers them component
    by component. Where these differ (a first component on node4, a second one on node1) the plugin
    looks up a node's tasks at another node's place, and ranks that it has missed die in MPI_Init.
    """
    hosts = expand(variables.get("SLURM_STEP_NODELIST", ""))
    place = count_in(variables, "SLURM_NODEID")
    is_known = count_in(variables, "SLURM_HET_SIZE") > 1 and place < len(hosts)
    return is_known and hosts[place] != variables.get("SLURMD_NODENAME")


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
    parts = range(count_in(variables, "SLURM_HET_SIZE"))
    names = [f"SLURM_JOB_NODELIST_HET_GROUP_{number}" for number in parts]
    lists = [variables[name] for name in names if name in variables]
    lists = lists or [variables.get("SLURM_JOB_NODELIST", "")]
    hosts = [host for text in lists for host in expand(text)]
    restarts = count_in(variables, "SLURM_RESTART_COUNT")
    return Allocation("slurm", slurm_job_of(variables), _once(hosts), restarts)


def _pbs(variables: Mapping[str, str]) -> Allocation:
    hosts = _words_of_file(variables.get("PBS_NODEFILE", ""))  # one line per slot
    return Allocation("pbs", variables["PBS_JOBID"], _once(hosts))


def _lsf(variables: Mapping[str, str]) -> Allocation:
    words = variables.get("LSB_MCPU_HOSTS", "").split()  # hostA 4 hostB 8
    hosts = words[::2] or variables.get("LSB_HOSTS", "").split()
    if not hosts:
        hosts = _words_of_file(variables.get("LSB_DJOB_HOSTFILE", ""))
    job, index = variables["LSB_JOBID"], variables.get("LSB_JOBINDEX", "0")
    job = f"{job}[{index}]" if index != "0" else job
    return Allocation("lsf", job, _once(hosts), int(variables.get("LSB_RESTART", "N") == "Y"))


JOBS = {"SLURM_JOB_ID": _slurm, "PBS_JOBID": _pbs, "LSB_JOBID": _lsf}
"""What reads a batch job's variables, by the one that each batch system sets in its jobs."""
OWN_PREFIX = "HPCDI_OWN_"
"""Of our own names for these variables; those of an outer job mean nothing in a job that was
submitted there."""
_OWN_NAMES = (
    *JOBS,
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_RESTART_COUNT",
    "LSB_JOBINDEX",
)


def kept_for_share(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns what tells this process's job from others, by the names that a share has it under.

    A share of an allocation has no variables of the batch system, or its mpirun would take the
    whole allocation.
    """
    job = own_job(variables)
    return {f"{OWN_PREFIX}{name}": job[name] for name in _OWN_NAMES if name in job}


def own_job(variables: Mapping[str, str]) -> Mapping[str, str]:
    """Returns variables with those of this process's job, by the batch system's own names.

    Args:
        variables: of the environment: in a batch job as they are, in a share of it with
            `kept_for_share`.
    """
    if not is_outside_allocation(variables):
        return variables
    held = {name: variables.get(f"{OWN_PREFIX}{name}") for name in _OWN_NAMES}
    return {**variables, **{name: value for name, value in held.items() if value is not None}}


def _words_of_file(path: str) -> list[str]:
    file = Path(path)
    return re.findall(r"\S+", file.read_text()) if path and file.is_file() else []


def _once(hosts: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(hosts))


def need_home(variables: MutableMapping[str, str] = os.environ) -> None:
    """Set HOME where it is unset (cron, some containers): without it Open MPI does not start."""
    if "HOME" not in variables:
        try:
            variables["HOME"] = str(Path.home())
        except RuntimeError:  # the user has no entry in the password database
            variables["HOME"] = variables.get("TMPDIR", "/tmp")  # noqa: S108


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
