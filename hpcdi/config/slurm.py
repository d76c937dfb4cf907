"""What `hpcdi submit` asks a batch system for."""

from __future__ import annotations

from dataclasses import dataclass

from hpcdi.config.fields import setting


@dataclass(frozen=True)
class SlurmConfig:
    """Resources and surroundings of a batch job; runs that are not submitted do not read it."""

    partition: str = setting("", "partition, or several: a,b; empty: the site's default")
    account: str = setting("", "account that pays; empty: the user's default")
    qos: str = setting("", "quality of service; empty: the default")
    constraint: str = setting("", "features that nodes must have, such as a100|h100")
    time: str = setting("01:00:00", "time limit of a part of the run; in YAML write it in quotes")
    nodes: int = setting(1, "nodes", minimum=1)
    ntasks_per_node: int = setting(
        0, "ranks on each node; 0: as many as the experiment asks for, shared out", minimum=0
    )
    cpus_per_task: int = setting(1, "cores of each rank", minimum=1)
    gpus_per_node: int = setting(0, "GPUs of each node, one to a learner", minimum=0)
    mem: str = setting("", "memory of each node, such as 64G; empty: the site's default")
    launcher: str = setting("srun", "what starts the ranks in the job", choices=("srun", "mpirun"))
    mpi: str = setting(
        "", "PMI plugin of srun; empty: pmi2 where this Python has MPICH's wheel, else pmix"
    )
    signal_delay_s: int = setting(
        120,
        "seconds before the time limit at which ranks are told to take a snapshot; more where the "
        "last snapshot of a resumed run has taken long",
        minimum=30,
    )
    modules: tuple[str, ...] = setting((), "modules to load before Python starts")
    setup: tuple[str, ...] = setting((), "lines of bash to run before Python starts")
    container: str = setting(
        "", "what Python is started by, such as: apptainer exec --nv hpcdi.sif"
    )
    options: tuple[str, ...] = setting((), "further options of sbatch, such as --exclusive")
