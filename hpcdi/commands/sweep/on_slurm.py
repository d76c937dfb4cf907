"""A sweep as a job of Slurm: an array whose task n is run n, or one job that runs all of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from hpcdi.commands.batch_script import BatchJob, script_text
from hpcdi.commands.run_state import jobs_of
from hpcdi.commands.submit import check_job, resolved, sbatch
from hpcdi.commands.sweep.runs import Sweep
from hpcdi.config.load import load
from hpcdi.config.schema import SlurmConfig
from hpcdi.errors import LaunchError
from hpcdi.run import slurm_queue
from hpcdi.run.run_folder import from_here
from hpcdi.store.atomic import write_text
from hpcdi.store.disk_full import or_refuse
from hpcdi.store.layout import RunLayout
from hpcdi.utils.metrics import ranges


def array_job(sweep: Sweep, slurm: SlurmConfig) -> BatchJob:
    """Returns a sweep as an array job, with the resources of each run."""
    return BatchJob(
        f"hpcdi-{sweep.exp_name}",
        sweep.root.absolute(),
        resolved(slurm, sweep.ranks),
        sys.executable,
        array=array_of(range(len(sweep.elements)), sweep.parallel),
    )


def resources_of(sweep: Sweep) -> SlurmConfig:
    """Returns the resources of each run, or trial, of a sweep on disk."""
    is_search = sweep.search is not None
    return load(sweep.experiment_of_all if is_search else sweep.experiment(0)).config.slurm


def array_of(indices: Sequence[int], parallel: int) -> str:
    """Returns indices as ``sbatch --array`` takes them: ``0-3,7%2``."""
    return ",".join(ranges(indices)) + (f"%{parallel}" if parallel else "")


def packed_into(sweep: Sweep, slurm: SlurmConfig, jobs: int | None) -> BatchJob:
    """Returns a sweep as one job, in which `jobs` runs at a time share the resources.

    Raises:
        LaunchError: nothing says how large it is.
    """
    if not (jobs or slurm.ntasks_per_node):
        raise LaunchError(
            "--pack needs the size of the job: --nodes and --ntasks-per-node (a core for each rank "
            f"of the runs at a time; each run has {sweep.ranks}), or --jobs, the runs at a time"
        )
    return _packed(sweep, resolved(slurm, max(1, sweep.ranks) * (jobs or 0)), jobs or 0)


def searching_tasks(sweep: Sweep, slurm: SlurmConfig, jobs: int) -> BatchJob:
    """Returns a search as an array job: each task does trials, one after another."""
    resources = resolved(slurm, max(1, sweep.ranks))
    return _packed(sweep, resources, 1, array_of(range(jobs), 0))


def _packed(sweep: Sweep, resources: SlurmConfig, jobs: int, array: str = "") -> BatchJob:
    """Returns a job, or an array of them, that does so many runs at a time; 0: as many as fit."""
    return BatchJob(
        f"hpcdi-{sweep.exp_name}",
        sweep.root.absolute(),
        replace(resources, launcher="mpirun"),  # the script passes signals on, as it does for that
        sys.executable,
        array=array,
        packed=("--jobs", str(jobs)) if jobs else (),
    )


def check(sweep: Sweep, job: BatchJob) -> None:
    """Check that Slurm accepts a sweep.

    Raises:
        LaunchError: it does not; or the runs of an array are of one process each.
    """
    if not sweep.ranks and job.packed is None:
        raise LaunchError(
            "--serial goes with --local or --pack: a job of a cluster has several ranks"
        )
    check_job(job)


def command_to_submit(sweep: Sweep, indices: Sequence[int], job: BatchJob) -> list[str]:
    """Returns sbatch's command line for some runs of a sweep."""
    return ["sbatch", *_array(sweep, indices, job), str(from_here(job.script))]


def _array(sweep: Sweep, indices: Sequence[int], job: BatchJob) -> list[str]:
    return [] if job.packed is not None else [f"--array={array_of(indices, sweep.parallel)}"]


def submit(sweep: Sweep, indices: Sequence[int], job: BatchJob) -> str:
    """Submit some runs of a sweep as an array job, or what is left of it; returns the job's id.

    Raises:
        LaunchError: Slurm refuses it, or the folder cannot be written.
    """
    with or_refuse(str(job.script)):
        write_text(job.script, script_text(job))
    number = sbatch(job, *_array(sweep, indices, job))
    if job.packed is not None:
        replace(sweep, job=number).save()
    else:
        sweep.with_jobs({index: f"{number}_{index}" for index in indices}).save()
    return number


def packed_job(sweep: Sweep) -> slurm_queue.QueueJob | None:
    """Returns the job that runs a packed sweep, or will go on with it, while it waits or runs."""
    if not sweep.job:
        return None
    for job_id in (sweep.job, *jobs_of(RunLayout(sweep.root), {})):
        job = slurm_queue.ask(job_id)
        if job is not None and (job.waits or job.is_on):
            return job
    return None
