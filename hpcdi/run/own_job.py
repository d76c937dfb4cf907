"""The batch job of this process, also where it has a share of the allocation and sees none.

A share has no variables of the batch system, or its mpirun would take the whole allocation. What
tells the job from others is handed on to it under names of ours (`kept`).
"""

from __future__ import annotations

from collections.abc import Mapping

from hpcdi.run.environment import JOBS, is_outside_allocation

PREFIX = "HPCDI_OWN_"
"""Of the names of ours; those of an outer job mean nothing in a job that was submitted there."""
_NAMES = (
    *JOBS,
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_RESTART_COUNT",
    "LSB_JOBINDEX",
)


def kept(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns what tells this process's job from others, under the names that a share has."""
    job = own_job(variables)
    return {f"{PREFIX}{name}": job[name] for name in _NAMES if name in job}


def own_job(variables: Mapping[str, str]) -> Mapping[str, str]:
    """Returns variables with those of this process's job, by the batch system's own names.

    Args:
        variables: of the environment: in a batch job as they are, in a share of it with `kept`.
    """
    if not is_outside_allocation(variables):
        return variables
    held = {name: variables.get(f"{PREFIX}{name}") for name in _NAMES}
    return {**variables, **{name: value for name, value in held.items() if value is not None}}
