"""`hpcdi plan`: what a run would take of a machine, without MPI and without starting anything."""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from hpcdi.comm.solver_protocol import SolverPlace, ranks_text
from hpcdi.commands.batch_script import time_limit_of
from hpcdi.commands.options import (
    add_experiment,
    add_ranks,
    make_parser,
    print_lines,
    seconds_from,
)
from hpcdi.commands.quotas import mount_of, quotas_of
from hpcdi.config.mpi_env import MpiEnvConfig
from hpcdi.config.schema import ExperimentConfig, blocks_are_stored, offline_iterations
from hpcdi.env.arguments import ENV_INDEX, make_numbered, numbered
from hpcdi.env.mpi.launch import Program, located
from hpcdi.errors import EXIT_DONE, LaunchError
from hpcdi.run.environment import visible_gpus
from hpcdi.run.experiment import check_data, load_experiment
from hpcdi.run.forecast import Forecast, forecast
from hpcdi.run.kept_costs import keep, kept
from hpcdi.run.placement import (
    HostShare,
    Place,
    learner_count,
    roles_of,
    threads_of,
    working_collectors,
)
from hpcdi.run.signals import limit_of
from hpcdi.run.sizes import blocks_per_s_of, does_not_fit, memory_of, row_size
from hpcdi.run.solver_ranks import default_ranks, plan_ranks
from hpcdi.run.start import as_yaml
from hpcdi.types import Spaces
from hpcdi.utils.console import others_to_stderr
from hpcdi.utils.metrics import brief, counted, human_bytes, human_count, human_time

_LARGE_SHARE = 0.5
"""Of the files that can still be made: a run that would make more is warned of."""
_MEASURED_S, _MOST_COLLECTORS = 5.0, 4096
_WORTH = 1.1
"""Times that twice as many collectors must bring, to be worth showing still more."""
_STEPS_PER_S = 20_000
"""Assumed speed of one collector; cheap environments reach it on one core."""


HELP = """\
Show what a run would take, without MPI and without starting it: each rank's role, device, threads,
environments and memory, and bytes and blocks per second, and files. With --measure the experiment
runs for some seconds in this process, from which follows how fast it is with how many ranks, and
what holds it then. What was measured is kept (in ~/.cache/hpcdi) and shown from then on.

  hpcdi plan configs/cartpole_dqn.yaml                               with its default ranks
  hpcdi plan configs/cartpole_dqn.yaml -n 64 env.collector_env_num=16         before asking Slurm
  hpcdi plan configs/cartpole_dqn.yaml -n 64 --measure               how fast it will be
  hpcdi plan configs/kuramoto_sac.yaml --mpmd RUN    prints what srun --multi-prog, mpirun take
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    parser = make_parser("plan", HELP)
    add_experiment(parser)
    add_ranks(parser)
    parser.add_argument(
        "--mpmd", metavar="RUN", type=Path,
        help="print, for a run in this folder, the file for srun --multi-prog and the line of "
        "mpirun by which programs that are environments start as themselves",
    )  # fmt: skip
    parser.add_argument(
        "--measure", action="store_true", help="run it for a while here, and forecast its speed"
    )
    parser.add_argument(
        "--seconds", metavar="S", type=seconds_from(0.1),
        help=f"with --measure: of learning that are measured ({_MEASURED_S:g})",
    )  # fmt: skip
    options = parser.parse_intermixed_args(arguments)
    if options.seconds and not options.measure:
        parser.error("--seconds goes with --measure")
    measured_s = (options.seconds or _MEASURED_S) if options.measure else 0.0
    with others_to_stderr(options.mpmd is not None), as_yaml(options.config) as config:
        compiled, spaces = load_experiment(str(config), [*options.override, *options.short])
        check_data(compiled.config, spaces)
    ranks = options.ranks if options.ranks is not None else default_ranks(compiled.config)
    if options.mpmd is not None:
        words = [str(Path(options.config).absolute()), "--run-dir", str(options.mpmd.absolute())]
        words += [*options.override, *options.short]
        located_env = located(compiled.config.env, Path(options.config).parent)
        experiment = dataclasses.replace(compiled.config, env=located_env)
        print_lines(programs_of(experiment, ranks, ["-m", "hpcdi", "train", *words]))
        return EXIT_DONE
    print_lines(plan(compiled.config, spaces, ranks))
    print_lines(speeds(compiled.config, spaces, ranks, measured_s))
    print_lines(f"note: {note}" for note in compiled.notes)
    return EXIT_DONE


def programs_of(config: ExperimentConfig, ranks: int, own: Sequence[str]) -> list[str]:
    """Returns a file for ``srun --multi-prog``, with the command for mpirun in its first lines.

    Args:
        config: of environments that are programs.
        ranks: of the whole job.
        own: what Python is told in hpcdi's own ranks.

    Raises:
        LaunchError: the experiment does not fit so many ranks, has no programs, or one that
            hpcdi's own ranks must become.
    """
    by_rank, env = plan_ranks(ranks, config), config.env
    if not isinstance(env, MpiEnvConfig) or _needs_hpcdi(env):
        raise LaunchError(
            "--mpmd is for environments of type 'mpi' that are programs changed by hpcdi.h, "
            "without env.gpus_per_rank or {folder}; others are started by one command for all ranks"
        )
    program = Program.of(env).prepare()
    starts = [(range(by_rank.own), [sys.executable, *own])]
    for group in by_rank.groups:
        of_each = (list(program.command), program.variables)
        command, given = make_numbered(partial(numbered, of_each), group.environment)
        variables = {**group.variables(), **given, ENV_INDEX: group.environment}
        settings = [f"{name}={value}" for name, value in variables.items()]
        starts.append(
            (range(group.ranks[0], group.ranks[-1] + 1), ["env", *settings, *map(str, command)])
        )
    contexts = [f"-n {len(of)} {shlex.join(words)}" for of, words in starts]
    return [
        f"# srun -n {ranks} --multi-prog FILE, where FILE has these lines; or:",
        f"# mpirun {' : '.join(contexts)}",
        *(f"{ranks_text(tuple(of))} {shlex.join(words)}" for of, words in starts),
    ]


def _needs_hpcdi(env: MpiEnvConfig) -> bool:
    """Whether what hpcdi does before a program begins is needed."""
    has_folder = any("{folder}" in str(word) for word in (*env.arguments, *env.variables.values()))
    return env.is_class or bool(env.coupling) or bool(env.gpus_per_rank) or has_folder


def plan(config: ExperimentConfig, spaces: Spaces, ranks: int) -> list[str]:
    """Returns the lines to print.

    Raises:
        LaunchError: the experiment does not fit so many ranks.
    """
    by_rank = plan_ranks(ranks, config)
    cores = len(os.sched_getaffinity(0))
    lines = [
        f"{config.exp_name}: {ranks} ranks on {counted(cores, 'core')} of this host",
        "",
        "rank  role         device  threads  environments  memory of data",
    ]
    row_bytes = row_size(config, spaces)
    gpus = visible_gpus(os.environ)
    share = HostShare(cores, ranks - learner_count(config), learner_count(config))
    for rank, role in enumerate(roles_of([Place("")] * by_rank.own, config)):
        threads = threads_of(role, share, config.policy)
        is_on_gpu = role == "learner" and config.policy.cuda
        # by the learner's number; with fewer devices than learners, those in turn (`local_device`)
        device = f"cuda:{(rank - 1) % (len(gpus) or ranks)}" if is_on_gpu else "cpu"
        envs = str(config.env.collector_env_num) if role == "collector" else "-"
        memory = human_bytes(memory_of(role, config, row_bytes))
        lines.append(f"{rank:>4}  {role:<12} {device:<7} {threads:>7}  {envs:>12}  {memory}")
    lines += [
        f"{ranks_text(group.ranks):>4}  solver       {'cpu':<7} {1:>7}  {whose_of(group):>12}"
        for group in by_rank.groups
    ]
    collectors = working_collectors(by_rank.own, config)
    spare = by_rank.own - 1 - learner_count(config) - collectors
    lines += [
        *([f"{spare} of the collectors wait until they are needed"] if spare else []),
        "",
        f"a stored transition: {row_bytes} bytes (observation {spaces.observation_bytes})",
        *_of_given(config),
    ]
    blocks_per_s = 0.0
    if not math.isinf(offline_iterations(config)):
        blocks_per_s = collectors * blocks_per_s_of(config, _STEPS_PER_S, row_bytes)
        lines += [
            _of_collected(config, collectors, row_bytes, blocks_per_s),
            forecast_of_files(config, row_bytes, by_rank.own),
        ]
    lines += [
        *_warnings(ranks, cores, blocks_per_s),
        *(f"warning: {problem}" for problem in does_not_fit(config, spaces)),
        *(_warnings_of_gpus(learner_count(config), len(gpus)) if config.policy.cuda else []),
    ]
    return lines


def speeds(config: ExperimentConfig, spaces: Spaces, ranks: int, seconds: float) -> Iterator[str]:
    """Yields lines: what an experiment's parts cost, and how fast it is with more ranks.

    Args:
        config: the experiment.
        spaces: its environment's.
        ranks: of the run that is planned.
        seconds: for which it is measured now; 0: what was measured before counts, or nothing is
            yielded.

    Raises:
        LaunchError: it cannot be measured.
    """
    learners, row_bytes = learner_count(config), row_size(config, spaces)
    if seconds:
        from hpcdi.run.measure import measure  # with it torch

        costs, when = measure(config, spaces, seconds), "measured here"
        try:
            keep(config, costs)
        except OSError as error:
            yield f"note: what was measured is not kept: {error}"
    elif (known := kept(config)) is not None:
        costs, age_s = known
        when = f"measured on such a machine {_age(age_s)} ago (--measure does it again)"
    else:
        return
    yield (
        f"{when}: a step takes a collector {brief(costs.step_s)}, computing for "
        f"{costs.step_cpu_s / costs.step_s:.0%} of that; a train iteration a learner "
        f"{brief(costs.update_s)}"
    )
    yield ""
    yield "ranks   cores    steps/s  iterations/s  rank 0  held by"
    own = plan_ranks(ranks, config).own
    here, asked = len(os.sched_getaffinity(0)), working_collectors(own, config)
    of = partial(forecast, config, costs, row_bytes, learners=learners)
    yield _speed(1 + learners + asked, str(here), of(collectors=asked, cores=here))
    collectors, with_half = asked, 0.0
    while collectors <= _MOST_COLLECTORS:
        shown = of(collectors=collectors, cores=math.inf)
        yield _speed(1 + learners + collectors, "each one", shown)
        if shown.steps_per_s < _WORTH * with_half:
            return
        collectors, with_half = 2 * collectors, shown.steps_per_s


def _age(seconds: float) -> str:
    """Formats the age of a measurement."""
    days = int(seconds / 86400)
    return counted(days, "day") if days else human_time(seconds)


def _speed(ranks: int, cores: str, shown: Forecast) -> str:
    """A line of `speeds`."""
    return (
        f"{ranks:>5}  {cores:>6}  {human_count(round(shown.steps_per_s)):>9}  "
        f"{shown.updates_per_s:>12.4g}  {shown.coordinator:>6.0%}  {shown.held_by}"
    )


def _of_given(config: ExperimentConfig) -> list[str]:
    """Lines about the data that the run is given, and when it collects its own; maybe none."""
    if not config.data:
        return []
    from hpcdi.run.given import size_of  # with it h5py

    size, offline = size_of(config), offline_iterations(config)
    room = human_count(config.policy.buffer.replay_buffer_size)
    begins = f"collecting begins after {human_count(offline)} iterations"
    return [
        f"{human_count(size.transitions)} transitions are given, in {human_count(size.rows)} rows "
        f"of the buffer's {room}; {'nothing is collected' if math.isinf(offline) else begins}"
    ]


def _of_collected(
    config: ExperimentConfig, collectors: int, row_bytes: int, blocks_per_s: float
) -> str:
    """A line about the data that are collected."""
    per_s = collectors * _STEPS_PER_S * row_bytes
    is_kept = config.system.storage.keep_data
    fate = "kept" if is_kept else "removed when neither buffer nor snapshots need them"
    if not blocks_are_stored(config) and config.system.transport != "files":
        by_memory = config.system.transport == "memory"
        fate = "written only across nodes" if by_memory else "never written"
    return (
        f"if each of {collectors} collectors makes {_STEPS_PER_S} steps/s: {human_bytes(per_s)}/s, "
        f"{human_bytes(per_s * 3600)} an hour, about {blocks_per_s:.1f} blocks/s; shards are {fate}"
    )


def whose_of(group: SolverPlace) -> str:
    """Returns which environment a group of ranks is, and of which rank."""
    what = f"number {group.environment}" if group.assigner is None else "a spare one"
    return f"{what} of rank {group.collector}"


def files_an_hour_of(config: ExperimentConfig, row_bytes: int) -> float:
    """Returns the shards that one collector fills in an hour, at the assumed speed."""
    from hpcdi.store.shard_file import SLOTS

    in_bytes = 3600 * _STEPS_PER_S * row_bytes / config.system.storage.file_bytes
    blocks = 3600 * blocks_per_s_of(config, _STEPS_PER_S, row_bytes)
    return float(max(1, in_bytes, blocks / SLOTS))


def forecast_of_files(config: ExperimentConfig, row_bytes: int, own: int) -> str:
    """Returns a line: the shards of a job's time limit, beside the files that may still be made.

    Without a time limit they are told by the hour alone.

    Args:
        config: the experiment.
        row_bytes: see `row_size`.
        own: ranks of the run, without solvers'.
    """
    an_hour, time_limit = files_an_hour_of(config, row_bytes), time_limit_of(config.slurm)
    in_all = an_hour * working_collectors(own, config) * limit_of(time_limit) / 3600
    forecast = f"about {human_count(an_hour)} shards an hour of each collector"
    if not config.system.storage.keep_data or math.isinf(in_all):
        return forecast
    forecast += f", {human_count(in_all)} in {time_limit} (slurm.time)"
    free = files_left(Path())
    if free is None or in_all < _LARGE_SHARE * free:
        return forecast
    return (
        f"warning: {forecast}, but only {human_count(free)} files can still be made here: remove "
        "small files, raise system.storage.file_bytes, or set system.storage.keep_data=false"
    )


def files_left(folder: Path) -> int | None:
    """Returns how many files a folder's quotas and file system still allow; None: not known."""
    path = folder.resolve()
    quotas = quotas_of(path, mount_of(path))
    free = [max(0, quota.limit - quota.used) for quota in quotas if quota.what == "files"]
    space = os.statvfs(path)
    return min(free + [space.f_favail] * bool(space.f_files), default=None)


def _warnings(ranks: int, cores: int, blocks_per_s: float) -> list[str]:
    warnings = []
    if ranks > cores + 1:
        warnings.append(
            f"warning: {ranks} ranks share {cores} cores (rank 0 needs little, the others much); "
            "collectors will take what the learner leaves"
        )
    if blocks_per_s > 250:
        warnings.append(
            f"warning: {blocks_per_s:.0f} blocks/s load a cluster's file system; raise "
            "system.storage.seal_seconds, or system.storage.block_bytes and the replay buffer's "
            "size where blocks are full before that"
        )
    return ["", *warnings] if warnings else []


def _warnings_of_gpus(learners: int, gpus: int) -> list[str]:
    if not gpus:
        return ["", "warning: policy.cuda is true, and this host shows no GPU: no run starts here"]
    if learners > gpus:
        shared = f"{learners} learners share {counted(gpus, 'GPU')} of this host"
        return ["", f"warning: {shared}: they exchange gradients by gloo, not NCCL"]
    return []
