"""The command `hpcdi submit`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from hpcdi.commands import status, tail
from hpcdi.commands.options import (
    add_experiment,
    add_run_folder,
    add_short_settings,
    experiment_of,
    make_parser,
)
from hpcdi.commands.submit.batch_script import TEXTS, BatchJob
from hpcdi.commands.submit.job import (
    SubmitArguments,
    discard,
    prepare,
    to_local,
    to_slurm,
    write,
)
from hpcdi.commands.submit.slurm_limits import check_fits, check_script
from hpcdi.config.slurm import SlurmConfig
from hpcdi.errors import EXIT_DONE, EXIT_FAILED, LaunchError
from hpcdi.launch.run_folder import read, short

HELP = """\
Submit a run as a batch job. It goes on over time limits, preemptions and lost nodes by starting
again from its newest snapshot. Whatever is wrong is said at once, before anything waits in a queue.

  hpcdi submit configs/cartpole_dqn.yaml --nodes 2 --time 12:00:00
  hpcdi submit configs/cartpole_dqn.yaml --nodes 2 --gpus-per-node 4 policy.cuda=true
  hpcdi submit configs/cartpole_dqn.yaml --print            the script, and nothing else
  hpcdi submit configs/cartpole_dqn.yaml --local --wait     the same job on this host
  hpcdi submit --resume runs/cartpole_dqn/latest --time 4:00:00

The flags set keys of the section `slurm` of the configuration, which may stand in the YAML file as
well. The run folder gets the script (submit/job.sbatch), the experiment and the versions of all
packages: `sbatch RUN/submit/job.sbatch` does the same without this command.
"""
_FLAGS = {
    "partition": "NAME", "account": "NAME", "qos": "NAME", "constraint": "LIST", "time": "TIME",
    "nodes": "N", "ntasks_per_node": "N", "cpus_per_task": "N", "gpus_per_node": "N",
    "mem": "SIZE", "launcher": "NAME", "mpi": "PLUGIN", "container": "LINE",
}  # fmt: skip
_LISTS = {"module": "modules", "setup": "setup", "option": "options"}


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError, LaunchError: the job cannot be what is asked for.
    """
    parser = make_parser("submit", HELP)
    _add_options(parser)
    given = parser.parse_intermixed_args(arguments)
    config, overrides = experiment_of(given)
    asked = SubmitArguments(config, (*overrides, *settings_of(given)), given.run_dir, given.resume)
    if given.print:
        submission = prepare(asked, makes_folder=False)
        sys.stdout.write(TEXTS[given.scheduler](submission.job))
        return EXIT_DONE
    if given.scheduler != "slurm":
        return _script_only(asked, given.scheduler)
    if given.local:
        return _locally(asked, is_waited_for=given.wait or given.follow)
    return _by_slurm(asked, is_waited_for=given.wait, is_followed=given.follow)


def _by_slurm(asked: SubmitArguments, *, is_waited_for: bool, is_followed: bool) -> int:
    check_fits(prepare(asked, makes_folder=False).job.slurm)  # before there is a folder
    submission = prepare(asked, makes_folder=True)
    job = submission.job
    try:
        script = write(submission)
        check_script(script)
        number = to_slurm(job, script)
    except LaunchError:
        discard(job)
        raise
    _say(f"job {number}: {_words(job)}", job)
    _say_commands(job, f"scancel {number}")
    if is_followed:
        return tail.main([str(job.run_dir), "--follow"])
    if is_waited_for:
        return status.main([str(job.run_dir), "--watch", "5"])
    return EXIT_DONE


def _script_only(asked: SubmitArguments, scheduler: str) -> int:
    submission = prepare(asked, makes_folder=True)
    script = write(submission, scheduler)
    command = "qsub" if scheduler == "pbs" else "bsub <"
    _say(f"a script for {scheduler.upper()}, not tested on a real one: read it", submission.job)
    sys.stdout.write(f"  {command} {short(script)}\n")
    return EXIT_DONE


def _locally(asked: SubmitArguments, *, is_waited_for: bool) -> int:
    submission = prepare(asked, makes_folder=True)
    job = submission.job
    write(submission)
    local = to_local(job)
    _say(f"local job {local.job_id}: {job.ranks} ranks on this host", job)
    _say_commands(job, f"kill {local.job_id}")
    if not is_waited_for:
        return EXIT_DONE
    local.exception()  # waits; what became of the run stands in its folder
    sys.stdout.write(local.stdout() or "")
    sys.stderr.write(local.stderr() or "")
    return int(read(job.run_dir).get("exit_code", EXIT_FAILED))


def _words(job: BatchJob) -> str:
    asked = job.slurm
    nodes = f"{asked.nodes} node{'s' * (asked.nodes > 1)}"
    gpus = f", {asked.gpus_per_node} GPUs each" if asked.gpus_per_node else ""
    return f"{job.ranks} ranks on {nodes}{gpus}, {asked.time} at a time"


def _say(title: str, job: BatchJob) -> None:
    sys.stdout.write(f"{title}\n  run folder   {short(job.run_dir)}\n")


def _say_commands(job: BatchJob, cancel: str) -> None:
    run = short(job.run_dir)
    sys.stdout.write(f"  hpcdi status {run}\n  hpcdi tail {run} -f\n  {cancel}\n")
    sys.stdout.flush()


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser, is_optional=True)
    add_run_folder(parser, "a run")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--print", "--dry-run", dest="print", action="store_true",
        help="print the script; submit and write nothing",
    )  # fmt: skip
    how.add_argument(
        "--local", action="store_true", help="start it on this host, by mpirun, in the background"
    )
    parser.add_argument(
        "--scheduler", choices=tuple(TEXTS), default="slurm",
        help="pbs, lsf: a script to submit yourself (not tested on real ones)",
    )  # fmt: skip
    add_short_settings(parser)
    parser.add_argument("--wait", action="store_true", help="until the run is over; its exit code")
    parser.add_argument("--follow", action="store_true", help="the same, showing its log")
    add_resources(parser)


def add_resources(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each key of the section `slurm`."""
    resources = parser.add_argument_group("resources, see `slurm` in RUN/config.yaml")
    abouts = {field.name: field.metadata["about"] for field in dataclasses.fields(SlurmConfig)}
    for name, metavar in _FLAGS.items():
        resources.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=abouts[name])
    for flag, name in _LISTS.items():
        resources.add_argument(
            f"--{flag}", action="append", default=[], metavar="TEXT",
            help=f"{abouts[name]} (may be said several times)",
        )  # fmt: skip


def settings_of(given: argparse.Namespace) -> list[str]:
    """The flags as overrides of the configuration; texts in quotes, so that YAML leaves them."""
    settings = []
    kinds = {field.name: type(getattr(SlurmConfig(), field.name)) for field in _fields()}
    for name in _FLAGS:
        value = getattr(given, name)
        if value is not None:
            settings.append(f"slurm.{name}={value if kinds[name] is int else _quoted(value)}")
    for flag, name in _LISTS.items():
        values = getattr(given, flag)
        if values:
            settings.append(f"slurm.{name}=[{', '.join(map(_quoted, values))}]")
    return settings


def _fields() -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(SlurmConfig)


def _quoted(text: str) -> str:
    """A text as YAML takes it for one."""
    escaped = text.replace("'", "''")
    return f"'{escaped}'"
