"""A sweep on a Slurm cluster: one array job, whose task n is run n."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdi.commands.submit.batch_script import BatchJob, script_file, slurm_text
from hpcdi.commands.submit.job import resolved
from hpcdi.commands.submit.slurm_limits import ask_slurm, check_fits
from hpcdi.commands.sweep.folder import Sweep
from hpcdi.config.load import load
from hpcdi.config.slurm import SlurmConfig
from hpcdi.errors import LaunchError
from hpcdi.store.atomic import write_text

_INDEX = '$(printf %03d "$SLURM_ARRAY_TASK_ID")'


@dataclass(frozen=True)
class ArrayJob(BatchJob):
    """A sweep as an array job; `run_dir` is the sweep's folder.

    Attributes:
        tasks: indices of the runs, as sbatch takes them.
    """

    tasks: str = ""

    @property
    def array(self) -> str:
        """Tasks of the array."""
        return self.tasks

    @property
    def output(self) -> Path:
        """What a task's script prints to."""
        return self.run_dir / "output" / "slurm-%A_%a.out"

    def place(self) -> list[str]:
        """Lines of bash that set ``RUN``, and the experiment as argument."""
        return [
            f"SWEEP={shlex.quote(str(self.run_dir))}",
            f'RUN=${{HPCDI_RUN:-"$SWEEP/{_INDEX}"}}',
            f'set -- "$SWEEP/experiments/{_INDEX}.yaml"',
        ]


def array_job(sweep: Sweep, slurm: SlurmConfig) -> ArrayJob:
    """The job that a sweep becomes.

    Args:
        sweep: which sweep; its runs have several ranks.
        slurm: what each of them asks for.
    """
    return ArrayJob(
        f"hpcdi-{sweep.exp_name}", sweep.root.absolute(), resolved(slurm, sweep.ranks),
        sys.executable, tasks=array_of(range(len(sweep.elements)), sweep.parallel),
    )  # fmt: skip


def resources_of(sweep: Sweep) -> SlurmConfig:
    """What the runs of a sweep that is written ask for."""
    return load(sweep.experiment(0)).config.slurm


def array_of(indices: Sequence[int], parallel: int) -> str:
    """Indices as sbatch's ``--array`` takes them: ``0-3,7%2``."""
    parts: list[list[int]] = []
    for index in sorted(indices):
        if parts and index == parts[-1][-1] + 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    told = [str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts]
    return ",".join(told) + (f"%{parallel}" if parallel else "")


def check(sweep: Sweep, slurm: SlurmConfig) -> None:
    """See that the cluster of this host can run it.

    Raises:
        LaunchError: it cannot; or the runs are of one process each.
    """
    if not sweep.ranks:
        raise LaunchError("--serial goes with --local: a job of a cluster has several ranks")
    check_fits(array_job(sweep, slurm).slurm)


def submit(sweep: Sweep, indices: Sequence[int]) -> Sweep:
    """Submit some runs of a sweep as one array job; gives the sweep with their jobs' numbers.

    Raises:
        LaunchError: Slurm refuses it, or the folder cannot be written.
    """
    job = array_job(sweep, resources_of(sweep))
    script = script_file(job, "slurm")
    try:
        write_text(script, slurm_text(job))
    except OSError as error:
        raise LaunchError(f"{script} cannot be written: {error.strerror or error}") from error
    array = f"--array={array_of(indices, sweep.parallel)}"
    ask_slurm(["sbatch", "--test-only", array, str(script)])
    number = ask_slurm(["sbatch", "--parsable", array, str(script)]).strip().split(";")[0]
    submitted = sweep.with_jobs({index: f"{number}_{index}" for index in indices})
    submitted.save()
    return submitted
