"""The command line of `hpcdi sweep`: start, resume, status."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shlex
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hpcdi.comm.failure import requeued_if_machine_fails
from hpcdi.commands.batch_script import BatchJob, script_text
from hpcdi.commands.options import at_least, guess_of, make_parser, number, print_lines
from hpcdi.commands.run_state import GOES_WELL
from hpcdi.commands.submit import add_resources, check_time, settings_of
from hpcdi.commands.sweep.here import LocalRuns, Rounds, command_of
from hpcdi.commands.sweep.on_slurm import (
    array_job,
    check,
    command_to_submit,
    packed_into,
    packed_job,
    resources_of,
    searching_tasks,
    submit,
)
from hpcdi.commands.sweep.population import Generations, History, population_of
from hpcdi.commands.sweep.runs import (
    FAILED,
    PAUSED,
    PRUNED,
    REFUSED,
    RUNNING,
    WAITING,
    Search,
    Sweep,
    keep,
    look,
    make,
    read,
    search_of,
    to_start,
)
from hpcdi.commands.sweep.scores import SCORES
from hpcdi.commands.sweep.table import csv_of, of_search, rows_of, table_of
from hpcdi.commands.sweep.trials import (
    Trials,
    as_asked,
    dimensions_of,
    hand_out,
    make_search,
    same_search,
    searcher_class,
)
from hpcdi.config.compiled import compile_config
from hpcdi.config.schema import SlurmConfig
from hpcdi.errors import EXIT_DONE, EXIT_FAILED, LaunchError
from hpcdi.run import run_folder, slurm_queue
from hpcdi.run.environment import allocation
from hpcdi.run.run_folder import short
from hpcdi.run.run_lock import RunLock
from hpcdi.run.shares import Share, shares
from hpcdi.store.layout import RunLayout
from hpcdi.utils.metrics import counted, human_count

HELP = """\
Run one experiment with several settings, each combination as a run of its own:

  hpcdi sweep configs/cartpole_dqn.yaml seed=0..4                            five seeds
  hpcdi sweep configs/cartpole_dqn.yaml policy.learn.learning_rate=1e-3,3e-4 seed=0..2 --dry-run
  hpcdi sweep configs/cartpole_dqn.yaml seed=0..9 --array-parallelism 4      four at a time
  hpcdi sweep configs/cartpole_dqn.yaml seed=0..4 --local --jobs 2           on this machine
  hpcdi sweep configs/cartpole_dqn.yaml seed=0..9 --pack --ntasks-per-node 16    in one job
  hpcdi sweep configs/cartpole_dqn.yaml policy.learn.learning_rate=1e-2,1e-3,1e-4,1e-5 \\
      policy.other.commander.max_env_step=200000 --pbt 20000 --local    population based training
  hpcdi sweep configs/cartpole_dqn.yaml --optuna "policy.learn.learning_rate=log(1e-5,1e-2)" \\
      policy.other.commander.max_env_step=100000 --trials 64 --jobs 8    a search by Optuna
  hpcdi sweep status runs/cartpole_dqn/sweeps/20261122-104500                a table; --csv, --json
  hpcdi sweep resume runs/cartpole_dqn/sweeps/20261122-104500                those that are not done

On a Slurm cluster it submits one array job; with --local it runs them here and waits. With --pack
it submits one ordinary job, in which they run side by side: each with cores and GPUs of one host to
itself, as many at a time as have a core for each rank, or --jobs N; what ends makes room for the
next. No run can end another, and one that loses a rank which it needs (exit code 85), or is killed,
is started again. Typed in an allocation (salloc, sbatch), or with --local, --pack does so there.

With --pbt STEPS the runs are a population (Jaderberg et al. 2017). Each trains to the next multiple
of STEPS environment steps, where its newest policy is evaluated. When all are there, the worst of
them (--pbt-share) copy weights and optimizer of one of the best, and its settings, each times 0.8
or 1.2, or drawn anew from the values given: from the lowest to the highest of them. The others
continue as they are; a run that has failed copies, too. What is explored is every key of several
values but seed. population.json and `status` say who copied whom. Each comparison costs a start of
every run (some seconds): STEPS should take minutes.

With --optuna SPACE the runs are trials of a search (hpcdi[optuna]): log(1e-5,1e-2), float(0,1),
int(1,8), logint(16,512), or values a,b,c; several settings by blanks or by saying it again. What is
maximised is --score: `area`, the mean return over the training (its curve's area), `best` or `last`
evaluation. Each tenth of the limit of environment steps (--prune-every) a trial ends, in order,
whose best return so far is below the median of the others' there, once five are over. --jobs N:
side by side here, or, where Slurm is, as N array tasks, each an allocation that does one trial
after another. The same command, or `resume`, goes on where the search was, also after kill -9; with
more --trials it continues. optuna.journal in its folder is Optuna's own file. --search random needs
no library; --search my_module:Class with --space is a searcher of yours: `ask` and `tell`, see
hpcdi/search.py.

Key=a,b,c and key=0..4 (0 to 4) have several values; a list is one value: [64,64]. The last key
changes fastest. What is found at the start is the same in all runs: the data of a `latest`, files
beside CONFIG, and the env.origin of an environment. sweep.json in the sweep's folder says for each
index its settings, run folder, job and state; every run folder is an ordinary one, for `hpcdi
status`, `eval`, `inspect`.
"""
EXIT_CODES = """\
exit codes: 0 submitted, or all runs are done; 1 some have failed, also of
`status`; 2 wrong configuration or command; 85 stopped by USR2, the time limit, or what is not your
fault (a full disk, a lost node): resume it; 130 Ctrl-C, 143 SIGTERM
"""
_TRIALS, _SCORE, _PBT_SHARE = 50, "area", 0.2


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    actions = {"status": _status, "resume": _resume}
    if arguments and arguments[0] in actions:
        return actions[arguments[0]](arguments[1:])
    return _start(arguments)


def _start(arguments: Sequence[str]) -> int:
    parser = make_parser("sweep", HELP, EXIT_CODES)
    parser.add_argument("config", metavar="CONFIG", help="YAML file, or: status, resume")
    parser.add_argument(
        "setting",
        nargs="*",
        default=[],
        metavar="key=a,b,c",
        help="settings, of one or more values",
    )
    parser.add_argument(
        "--sweep-dir", metavar="DIR", help="its folder (default: runs/<exp_name>/sweeps/<time>)"
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("-n", "--ranks", type=at_least(1), metavar="N", help="ranks of each run")
    size.add_argument(
        "--serial", action="store_true", help="each run is one process, as of `hpcdi serial`"
    )
    _add_where(parser)
    parser.add_argument(
        "--pbt",
        type=at_least(1),
        metavar="STEPS",
        help="population based training: compare and copy runs every so many environment steps",
    )
    parser.add_argument(
        "--pbt-share",
        type=number("above 0 and at most 0.5", lambda share: 0 < share <= 0.5),
        metavar="S",
        help="of the runs that copy, and that are copied: up to 0.5 (0.2; one run at least)",
    )
    _add_search(parser)
    add_resources(parser)
    options = parser.parse_intermixed_args(arguments)
    guess = "" if Path(options.config).suffix else guess_of(options.config, ("status", "resume"))
    if guess and not Path(options.config).exists():
        parser.error(f"there is no {options.config!r}{guess}")
    spaces = [*(options.optuna or ()), *(options.space or ())]
    if spaces or options.search:
        return _search(parser, options, spaces)
    for name in ("trials", "score", "prune_every", "no_prune", "seed"):
        if getattr(options, name) is not parser.get_default(name):
            option = name.replace("_", "-")
            parser.error(f"--{option} is of a search: --optuna SPACE, or --search WHO")
    if options.pbt_share is not None and options.pbt is None:
        parser.error("--pbt-share goes with --pbt")
    _check_where(parser, options, is_population=options.pbt is not None)
    settings = [*options.setting, *settings_of(options)]
    sweep, experiments = make(
        options.config, settings, options.ranks, options.array_parallelism, serial=options.serial
    )
    if options.sweep_dir is not None:
        run_folder.check_free(Path(options.sweep_dir), "--sweep-dir")
        sweep = replace(sweep, root=Path(options.sweep_dir).absolute())
    if options.pbt:
        population = population_of(sweep, experiments, options.pbt, options.pbt_share or _PBT_SHARE)
        sweep = replace(sweep, population=population)
    slurm = compile_config(experiments[0]).config.slurm
    if options.dry_run:
        return _print_plan(sweep, range(len(sweep.elements)), slurm, options)
    _check_job(sweep, slurm, options)  # before there is a folder
    root = run_folder.choose(f"{sweep.exp_name}/sweeps", options.sweep_dir)
    sweep = replace(sweep, root=root)
    keep(sweep, experiments)
    print_lines([f"{counted(len(sweep.elements), 'run')} in {short(root)}"])
    return _run(sweep, range(len(sweep.elements)), options)


def _search(
    parser: argparse.ArgumentParser, options: argparse.Namespace, spaces: Sequence[str]
) -> int:
    """Begin a search, or go on with the one that this command has begun."""
    if not spaces or bool(options.optuna) == bool(options.search):
        parser.error("a search is --optuna SPACE, or --search WHO and --space SPACE")
    if options.pbt or options.pbt_share:
        parser.error("--pbt and --pbt-share do not go with a search")
    _choose_place(options)
    settings = [*options.setting, *settings_of(options)]
    trials = options.trials or _TRIALS
    search = Search(
        options.search or "optuna",
        dimensions_of(spaces),
        trials,
        options.score or _SCORE,
        not options.no_prune,
        options.seed or 0,
    )
    sweep, experiment = make_search(
        options.config, settings, options.ranks, search, options.prune_every, serial=options.serial
    )
    # the same command has the same folder
    name = f"search-{zlib.crc32(repr(as_asked(search_of(sweep))).encode()):08x}"
    folder = options.sweep_dir or Path("runs", sweep.exp_name, "sweeps", name)
    sweep = replace(sweep, root=Path(folder).absolute())
    slurm = compile_config(experiment).config.slurm
    if options.dry_run:
        return _print_search(sweep, slurm, options)
    searcher_class(search.searcher)  # before there is a folder
    if sweep.manifest.exists():
        known = read(sweep.root)
        if not same_search(sweep, known):
            raise LaunchError(
                f"{short(sweep.root)} holds another sweep, or a search with other settings: choose "
                "another --sweep-dir"
            )
        more = replace(search_of(known), trials=trials)
        sweep = replace(known, ranks=sweep.ranks, search=more)
        sweep.save()
        return _resume_search(sweep, options)
    run_folder.check_free(sweep.root, "--sweep-dir")
    _check_job(sweep, slurm, options)
    keep(sweep, [experiment])
    print_lines([f"{trials} trials in {short(sweep.root)}"])
    return _run_search(sweep, options)


def _resume_search(sweep: Sweep, options: argparse.Namespace) -> int:
    """Go on with a search: trials that are not over, then new ones.

    Args:
        sweep: as its folder has it: a trial whose run has ended is not over until it has its score.
        options: of the command line.
    """
    if getattr(options, "index", None):
        raise LaunchError("--index: the trials of a search continue together")
    _choose_place(options)
    _is_its_job(sweep, os.environ.get("SLURM_ARRAY_JOB_ID", os.environ.get("SLURM_JOB_ID")))
    if options.dry_run:
        return _print_search(sweep, resources_of(sweep), options)
    over = _over(sweep)
    if over == len(sweep.elements) >= search_of(sweep).trials:
        print_lines(_summary(sweep))
        print_lines([f"all {over} trials are over; for more: --trials {2 * over}"])
        return EXIT_DONE
    _check_job(sweep, resources_of(sweep), options)
    return _run_search(sweep, options)


def _run_search(sweep: Sweep, options: argparse.Namespace) -> int:
    search = search_of(sweep)
    if not _is_here(options):
        sweep = replace(sweep, parallel=_tasks(sweep, options))
        hand_out(sweep.root, sweep.parallel)
        return _submit(sweep, [], options)
    left = max(1, search.trials - _over(sweep))
    worker = "" if options.local else os.environ.get("SLURM_ARRAY_TASK_ID", "")
    if worker and search.searcher not in ("optuna", "random"):
        raise LaunchError("a searcher of your own is in one process: --local or --pack")
    places = _places(sweep, range(left), options)
    with requeued_if_machine_fails(), contextlib.ExitStack() as stack:
        if not worker:
            stack.enter_context(RunLock(RunLayout(sweep.root)))
        searcher = searcher_class(search.searcher)(search.dimensions, search.seed, sweep.root)
        trials = Trials(sweep.root, worker, searcher)
        code = LocalRuns(sweep.root, trials, places).run()
    print_lines(_summary(sweep))
    states = {element.state for element in read(sweep.root).elements}
    return EXIT_FAILED if code == EXIT_DONE and states == {FAILED} else code


def _over(sweep: Sweep) -> int:
    """Returns how many trials of a search are over, as its folder has them."""
    return sum(element.state != RUNNING for element in sweep.elements)


def _summary(sweep: Sweep) -> list[str]:
    now, statuses = look(read(sweep.root))
    return of_search(now, rows_of(now, statuses))


def _print_search(sweep: Sweep, slurm: SlurmConfig, options: argparse.Namespace) -> int:
    """Print what a search would do."""
    search = search_of(sweep)
    print_lines([f"{search.trials} trials by {search.searcher} in {short(sweep.root)}"])
    print_lines([f"  {dimension}" for dimension in search.dimensions])
    pruned = f"pruned each {human_count(search.every)} steps" if search.every else "none is pruned"
    limit = human_count(search.limit) if math.isfinite(search.limit) else "no limit"
    print_lines([f"  the {search.score} return is maximised; {pruned}; steps of a run: {limit}"])
    if not _is_here(options):
        _print_job(sweep, [], slurm, options)
    return EXIT_DONE


def _resume(arguments: Sequence[str]) -> int:
    parser = make_parser("sweep resume", HELP, EXIT_CODES)
    parser.add_argument("folder", metavar="SWEEP", help="folder of a sweep")
    parser.add_argument(
        "--index",
        type=int,
        action="append",
        default=[],
        metavar="I",
        help="only this run; may be said several times (default: all that are not done)",
    )
    _add_where(parser)
    options = parser.parse_args(arguments)
    sweep = read(Path(options.folder))
    if sweep.search is not None:
        return _resume_search(sweep, options)
    _check_where(parser, options, is_population=sweep.population is not None)
    sweep, _ = look(sweep)
    if options.index and sweep.population is not None:
        raise LaunchError("--index: the runs of a population continue together")
    if options.array_parallelism:
        sweep = replace(sweep, parallel=options.array_parallelism)
    is_its_job = _is_its_job(sweep, os.environ.get("SLURM_JOB_ID"))
    waiting = to_start(sweep)
    if (
        is_its_job and sweep.population is None
    ):  # nobody else runs them; after a requeue, not what has failed before
        is_again = os.environ.get("SLURM_RESTART_COUNT", "0") not in ("", "0")
        over = ("done", "failed", REFUSED) if is_again or _is_next_job(sweep) else ("done",)
        waiting = [element.index for element in sweep.elements if element.state not in over]
    unknown = sorted(set(options.index) - set(waiting))
    if unknown:
        raise LaunchError(
            f"runs {unknown} are done, pending, running, or not of this sweep; `hpcdi sweep status "
            f"{short(sweep.root)}` shows which"
        )
    chosen = sorted(options.index) or waiting
    if not chosen:
        print_lines(["nothing to start: every run is done, pending or running"])
        return EXIT_FAILED if to_start(sweep) else EXIT_DONE
    if options.dry_run:
        return _print_plan(sweep, chosen, resources_of(sweep), options)
    _check_job(sweep, resources_of(sweep), options)
    return _run(sweep, chosen, options)


def _is_its_job(sweep: Sweep, job: str | None) -> bool:
    """Returns whether this is the job that a sweep was packed into, or one that it has submitted.

    Raises:
        LaunchError: that is another one, which waits or runs.
    """
    packed = packed_job(sweep)
    is_it = sweep.job == job or _is_next_job(sweep)
    if packed is not None and not is_it:
        own = {job, os.environ.get("SLURM_ARRAY_JOB_ID")} - {None}
        is_it = packed.job_id.partition("_")[0] in own
    if packed is not None and not is_it:
        raise LaunchError(
            f"{packed.said}: it runs this sweep, and goes on with it. To stop it: scancel "
            f"{packed.job_id}"
        )
    return is_it


def _is_next_job(sweep: Sweep) -> bool:
    """Returns whether this job was submitted by the one of the sweep, which may not be requeued."""
    return "SLURM_JOB_ID" in os.environ and os.environ.get("HPCDI_RUN") == str(sweep.root)


def _status(arguments: Sequence[str]) -> int:
    parser = make_parser("sweep status", HELP, EXIT_CODES)
    parser.add_argument("folder", metavar="SWEEP", help="folder of a sweep")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--csv", action="store_true", help="print it as CSV, with all columns")
    shape.add_argument("--json", action="store_true", help="print it as a list of JSON objects")
    options = parser.parse_args(arguments)
    sweep = read(Path(options.folder))
    packed = packed_job(sweep)
    sweep, statuses = look(sweep, packed)
    history = History.read(sweep) if sweep.population is not None else None
    rows = rows_of(sweep, statuses, history)
    if options.csv:
        sys.stdout.write(csv_of(rows))
    elif options.json:
        print_lines(json.dumps(rows, indent=2).splitlines())
    else:
        again = [f"  next         {sweep.command_to_resume}"] if to_start(sweep) else []
        refused = [sweep.output(e.index) for e in sweep.elements if e.state == REFUSED]
        again = [f"  refused      see {short(output)}" for output in refused[:1]] + again
        if packed is not None:
            again = [f"  job          {packed.said.removeprefix('job ')}"]
        print_lines([*table_of(sweep, rows, history), *again])
    # of a search, settings that do not work are found, too
    fine = {*GOES_WELL, WAITING, PAUSED, PRUNED, *([FAILED] if sweep.search is not None else [])}
    return EXIT_DONE if all(row["state"] in fine for row in rows) else EXIT_FAILED


def _run(sweep: Sweep, indices: Sequence[int], options: argparse.Namespace) -> int:
    if _is_here(options):
        places = _places(sweep, indices, options)
        with requeued_if_machine_fails(), contextlib.ExitStack() as stack:
            rounds: Iterator[Sequence[int]] = iter([indices])
            if sweep.population is not None:
                # who compares must be the only one to start runs
                stack.enter_context(RunLock(RunLayout(sweep.root)))
                rounds = Generations(sweep.root, sweep.population).rounds()
            return LocalRuns(sweep.root, Rounds(rounds), places).run()
    return _submit(sweep, indices, options)


def _submit(sweep: Sweep, indices: Sequence[int], options: argparse.Namespace) -> int:
    """Submit some runs of a sweep, or a search, and say what to type next; returns 0."""
    job_id = submit(sweep, indices, _job(sweep, resources_of(sweep), options))
    root = short(sweep.root)
    print_lines([f"job {job_id}", f"  hpcdi sweep status {root}", f"  scancel {job_id}"])
    return EXIT_DONE


def _choose_place(options: argparse.Namespace) -> None:
    """Have a search run on this machine where nothing else is said and there is no Slurm.

    Raises:
        LaunchError: an option is of other sweeps.
    """
    if options.array_parallelism:
        raise LaunchError("--array-parallelism does not go with a search, which has --jobs")
    if not (options.local or options.pack or slurm_queue.is_there()):
        options.local = True


def _is_here(options: argparse.Namespace) -> bool:
    """Returns whether the runs are started here, not by a new job."""
    return bool(options.local or (options.pack and allocation(os.environ) is not None))


def _check_job(sweep: Sweep, slurm: SlurmConfig, options: argparse.Namespace) -> None:
    """Check that Slurm accepts the job of a sweep, where one is to be submitted.

    Raises:
        LaunchError: it does not.
    """
    if not _is_here(options):
        check(sweep, _job(sweep, slurm, options))


def _job(sweep: Sweep, slurm: SlurmConfig, options: argparse.Namespace) -> BatchJob:
    """Returns the job of a sweep: packed, or an array.

    Raises:
        LaunchError: it would have no time to do anything, or nothing says how large it is.
    """
    if sweep.search is not None and not options.pack:
        job = searching_tasks(sweep, slurm, _tasks(sweep, options))
    elif options.pack:
        job = packed_into(sweep, slurm, options.jobs)
    else:
        job = array_job(sweep, slurm)
    check_time(job.slurm)
    return job


def _tasks(sweep: Sweep, options: argparse.Namespace) -> int:
    """Returns how many array tasks a search has: as said, or as it had."""
    return options.jobs or sweep.parallel or 1


def _places(
    sweep: Sweep, indices: Sequence[int], options: argparse.Namespace
) -> list[Share] | list[None]:
    """Returns where runs are started at a time; None: anywhere on this machine."""
    if not options.pack:
        return [None] * (options.jobs or 1)
    variables = {} if options.local else os.environ
    places = shares(max(1, sweep.ranks), len(indices), options.jobs, variables)
    print_lines([f"{len(places)} of {counted(len(indices), 'run')} at a time"])
    return places


def _print_plan(
    sweep: Sweep, indices: Sequence[int], slurm: SlurmConfig, options: argparse.Namespace
) -> int:
    """Print what would be started: commands on this host, or a Slurm job."""
    is_here = _is_here(options)
    for index in indices:
        command = f": {shlex.join(command_of(sweep, index))}" if is_here else ""
        print_lines([f"{sweep.elements[index].title}{command}"])
    if not is_here:
        _print_job(sweep, indices, slurm, options)
    return EXIT_DONE


def _print_job(
    sweep: Sweep, indices: Sequence[int], slurm: SlurmConfig, options: argparse.Namespace
) -> None:
    """Print the command that would submit a sweep, and its script."""
    job = _job(sweep, slurm, options)
    command = shlex.join(command_to_submit(sweep, indices, job))
    print_lines(["", command, "", *script_text(job).splitlines(), ""])


def _add_search(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("search")
    group.add_argument(
        "--optuna",
        action="append",
        metavar="SPACE",
        help='search by Optuna: "key=log(1e-5,1e-2)", "key=int(1,8)", "key=a,b"',
    )
    group.add_argument("--space", action="append", metavar="SPACE", help="the same, for --search")
    group.add_argument("--search", metavar="WHO", help="random, or your class, module:Class")
    group.add_argument("--trials", type=at_least(1), metavar="N", help=f"how many runs ({_TRIALS})")
    group.add_argument("--score", choices=tuple(SCORES), help=f"what is maximised ({_SCORE})")
    pruning = group.add_mutually_exclusive_group()
    pruning.add_argument(
        "--prune-every",
        type=at_least(1),
        metavar="STEPS",
        help="compare running trials so often (a tenth of the limit)",
    )
    pruning.add_argument("--no-prune", action="store_true", help="no trial ends early")
    group.add_argument(
        "--seed",
        type=at_least(0),
        metavar="S",
        help="of the searcher (0); trials' own: the setting seed",
    )


def _add_where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--array-parallelism",
        type=at_least(1),
        default=0,
        metavar="N",
        help="of an array job: run at most N at a time (default: no limit)",
    )
    parser.add_argument("--local", action="store_true", help="on this machine, without a queue")
    parser.add_argument(
        "--jobs",
        type=at_least(1),
        metavar="N",
        help="with --local: N at a time (1); with --pack: N shares (as many as have enough cores)",
    )
    parser.add_argument(
        "--pack", action="store_true", help="side by side in one job, or where this is typed"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be started")


def _check_where(
    parser: argparse.ArgumentParser, options: argparse.Namespace, *, is_population: bool
) -> None:
    """Refuse a place where a sweep cannot run, and an option that would change nothing."""
    is_array = not (options.local or options.pack)
    if is_population and is_array:
        parser.error("--pbt goes with --local or --pack: runs of an array job know no others")
    if options.jobs and is_array:
        parser.error("--jobs goes with --local or --pack; of an array job: --array-parallelism")
    if options.array_parallelism and not is_array:
        parser.error("--array-parallelism is of array jobs; with --local or --pack: --jobs")
