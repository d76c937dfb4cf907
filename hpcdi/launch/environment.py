"""What the launcher has said to this process: pure functions of the environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcdi.errors import LaunchError

LAUNCHER_VARIABLE = "HPCDI_LAUNCHER"
"""Set by `hpcdi train` for the ranks that it starts: which `hpcdi train` that was. It gives the
exit code itself."""

_RANK_VARIABLES = (
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "PALS_RANKID",
    "MV2_COMM_WORLD_RANK",
    "JSM_NAMESPACE_RANK",  # of jsrun, on LSF
)
_SIZE_VARIABLES = (
    "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE",
)  # fmt: skip
_MPIRUN_ONLY = ("OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID")  # of Open MPI and hydra, never of srun
_LARGEST_STEP = 4_294_960_000  # Slurm numbers batch, interactive and other special steps above


@dataclass(frozen=True)
class LaunchEnvironment:
    """How this process was started.

    Attributes:
        launcher: "mpirun", "srun" or "none".
        tasks: processes that the launcher says it started; 1 where it does not say.
    """

    launcher: str
    tasks: int

    @property
    def is_world(self) -> bool:
        """Whether this process is one of an MPI job, or was meant to be."""
        return self.launcher != "none"


def detect(variables: Mapping[str, str]) -> LaunchEnvironment:
    """Read the launcher's variables."""
    tasks = int(variables.get("SLURM_NTASKS", "1"))
    if _is_slurm_step(variables):
        if tasks > 1:
            return LaunchEnvironment("srun", tasks)
        # a shell (srun --pty bash), in which the site's default plugin may name a rank
        return LaunchEnvironment("none", 1)
    if any(name in variables for name in _RANK_VARIABLES):
        sizes = [int(variables[name]) for name in _SIZE_VARIABLES if name in variables]
        return LaunchEnvironment("mpirun", sizes[0] if sizes else 1)
    return LaunchEnvironment("none", 1)


def is_first(variables: Mapping[str, str]) -> bool:
    """Whether the launcher calls this process its first one, or says nothing."""
    names = ("SLURM_PROCID", *_RANK_VARIABLES)
    return all(variables[name] == "0" for name in names if name in variables)


def check_world_size(environment: LaunchEnvironment, world_size: int) -> None:
    """See that the processes have found each other.

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
    """Whether srun started this process (and not a batch script or an interactive shell)."""
    step = variables.get("SLURM_STEP_ID", variables.get("SLURM_STEPID", ""))
    if not step.isdigit() or int(step) > _LARGEST_STEP:
        return False
    # mpirun inside an allocation starts its daemons by srun; ranks below them are mpirun's
    return not any(name in variables for name in _MPIRUN_ONLY)
