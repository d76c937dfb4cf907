"""`hpcdi sweep`: starts a sweep, starts again what is not done, tells how it stands."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcdi.commands.options import at_least, make_parser, print_lines
from hpcdi.commands.run_status import GOES_WELL
from hpcdi.commands.submit.batch_script import slurm_text
from hpcdi.commands.submit.command import add_resources, settings_of
from hpcdi.commands.sweep import array, table
from hpcdi.commands.sweep.folder import WAITING, Sweep, keep, look, make, read, to_start
from hpcdi.commands.sweep.local import LocalRuns, command_of
from hpcdi.config.load import compile_config
from hpcdi.config.slurm import SlurmConfig
from hpcdi.errors import EXIT_DONE, EXIT_FAILED, LaunchError
from hpcdi.launch import run_folder
from hpcdi.launch.run_folder import short

HELP = """\
Run one experiment with several settings, each combination as a run of its own:

  hpcdi sweep configs/cartpole_dqn.yaml seed=0..4                            five seeds
  hpcdi sweep configs/cartpole_dqn.yaml policy.learn.learning_rate=1e-3,3e-4 seed=0..2 --dry-run
  hpcdi sweep configs/cartpole_dqn.yaml seed=0..9 --array-parallelism 4      four at a time
  hpcdi sweep configs/cartpole_dqn.yaml seed=0..4 --local --jobs 2           on this machine
  hpcdi sweep status runs/cartpole_dqn/sweeps/20261122-104500                a table; --csv, --json
  hpcdi sweep resume runs/cartpole_dqn/sweeps/20261122-104500                those that are not done

On a Slurm cluster it submits one array job; with --local it runs them here and waits. Key=a,b,c
and key=0..4 (0 to 4) have several values; a list is one value: [64,64]. The last key changes
fastest. sweep.json in the sweep's folder says for each index its settings, run folder, job and
state; every run folder is an ordinary one, for `hpcdi status`, `eval`, `inspect`.
"""
EXIT_CODES = """\
exit codes: 0 submitted, with --local: all runs are done; 1 some have failed, also of `status`;
2 wrong configuration or command; 130 Ctrl-C, 143 SIGTERM
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    words = {"status": _status, "resume": _resume}
    if arguments and arguments[0] in words:
        return words[arguments[0]](arguments[1:])
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
    parser.add_argument("-n", "--ranks", type=at_least(1), metavar="N", help="ranks of each run")
    parser.add_argument(
        "--serial", action="store_true", help="each run is one process, as of `hpcdi serial`"
    )
    _add_where(parser)
    add_resources(parser)
    given = parser.parse_intermixed_args(arguments)
    if given.sweep_dir is not None:
        run_folder.check_free(Path(given.sweep_dir))
    settings = [*given.setting, *settings_of(given)]
    made, experiments = make(
        given.config, settings, given.ranks, given.array_parallelism, serial=given.serial
    )
    slurm = compile_config(experiments[0]).config.slurm
    if not given.local and not given.dry_run:
        array.check(made, slurm)  # before there is a folder
    if given.dry_run:
        return _tell(made, range(len(made.elements)), slurm if not given.local else None)
    root = run_folder.choose(f"{made.exp_name}/sweeps", given.sweep_dir)
    made = dataclasses.replace(made, root=root)
    keep(made, experiments)
    print_lines([f"{len(made.elements)} runs in {short(root)}"])
    return _run(made, range(len(made.elements)), given)


def _resume(arguments: Sequence[str]) -> int:
    parser = make_parser("sweep resume", HELP, EXIT_CODES)
    parser.add_argument("folder", metavar="SWEEP", help="folder of a sweep")
    parser.add_argument(
        "--index", type=int, action="append", default=[], metavar="I",
        help="only this run; may be said several times (default: all that are not done)",
    )  # fmt: skip
    _add_where(parser)
    given = parser.parse_args(arguments)
    found, _ = look(read(Path(given.folder)))
    if given.array_parallelism:
        found = dataclasses.replace(found, parallel=given.array_parallelism)
    left = to_start(found)
    unknown = sorted(set(given.index) - set(left))
    if unknown:
        raise LaunchError(
            f"runs {unknown} are done, on their way, or none of this sweep; `hpcdi sweep status "
            f"{short(found.root)}` shows which"
        )
    chosen = sorted(given.index) or left
    if not chosen:
        print_lines(["nothing to start: every run is done, or on its way"])
        return EXIT_DONE
    if given.dry_run:
        return _tell(found, chosen, None if given.local else array.resources_of(found))
    return _run(found, chosen, given)


def _status(arguments: Sequence[str]) -> int:
    parser = make_parser("sweep status", HELP, EXIT_CODES)
    parser.add_argument("folder", metavar="SWEEP", help="folder of a sweep")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--csv", action="store_true", help="print it as CSV, with all columns")
    shape.add_argument("--json", action="store_true", help="print it as a list of JSON objects")
    given = parser.parse_args(arguments)
    found, statuses = look(read(Path(given.folder)))
    rows = table.rows_of(found, statuses)
    if given.csv:
        sys.stdout.write(table.csv_of(rows))
    elif given.json:
        print_lines([json.dumps(rows, indent=2)])
    else:
        left = to_start(found)
        again = [f"  next         hpcdi sweep resume {short(found.root)}"] if left else []
        print_lines([*table.table_of(found, rows), *again])
    fine = (*GOES_WELL, WAITING)
    return EXIT_DONE if all(row["state"] in fine for row in rows) else EXIT_FAILED


def _run(made: Sweep, indices: Sequence[int], given: argparse.Namespace) -> int:
    if given.local:
        return LocalRuns(made, indices, given.jobs).run()
    submitted = array.submit(made, indices)
    number = submitted.elements[indices[0]].job.partition("_")[0]
    root = short(made.root)
    print_lines([f"job {number}", f"  hpcdi sweep status {root}", f"  scancel {number}"])
    return EXIT_DONE


def _tell(made: Sweep, indices: Sequence[int], slurm: SlurmConfig | None) -> int:
    """What would be started: commands on this host, or a job of Slurm."""
    for index in indices:
        overrides = " ".join(made.elements[index].overrides)
        what = f": {shlex.join(command_of(made, index))}" if slurm is None else ""
        print_lines([f"run {index} ({overrides}){what}"])
    if slurm is not None:
        tasks = array.array_of(indices, made.parallel)
        text = slurm_text(array.array_job(made, slurm))
        print_lines(["", f"sbatch --array={tasks} {made.root}/submit/job.sbatch", "", text])
    return EXIT_DONE


def _add_where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--array-parallelism", type=at_least(1), default=0, metavar="N",
        help="run at most N at a time (default: as many as the queue lets)",
    )  # fmt: skip
    parser.add_argument("--local", action="store_true", help="on this machine, without a queue")
    parser.add_argument(
        "--jobs", type=at_least(1), default=1, metavar="N", help="with --local: N at a time (1)"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be started")
