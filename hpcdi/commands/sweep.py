"""`hpcdi sweep`: several settings of one experiment, each a run of its own.

A sweep is started here as an array job of Slurm, whose task n is run n, or as child processes on
this machine; `resume` starts again what is not done, `status` prints a table::

    runs/<exp_name>/sweeps/<time>/
      sweep.json             manifest: index -> overrides, run folder, job, state
      experiments/003.yaml   the compiled experiment of each run
      output/003.out         its output; of Slurm job 12: slurm-12_3.out
      submit/job.sbatch      the script of the array job, on Slurm
      003/                   its run folder
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import math
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from hpcdi.commands.batch_script import BatchJob, script_text
from hpcdi.commands.options import at_least, make_parser, print_lines
from hpcdi.commands.run_state import GOES_WELL, RunStatus, status_of
from hpcdi.commands.submit import add_resources, ask_slurm, check_job, resolved, settings_of
from hpcdi.config.load import compile_config, dump, load
from hpcdi.config.schema import SlurmConfig
from hpcdi.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_REQUEUE,
    EXIT_TERMINATED,
    LaunchError,
)
from hpcdi.launch import run_folder, slurm_queue
from hpcdi.launch.environment import allocation
from hpcdi.launch.requests import end_of, preempt_signals
from hpcdi.launch.run_folder import short
from hpcdi.launch.shares import Share, shares
from hpcdi.store.atomic import read_json, write_json, write_text
from hpcdi.store.disk_full import or_refuse
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.metrics import human_count, human_return, human_time, ranges

HELP = """\
Run one experiment with several settings, each combination as a run of its own:

  hpcdi sweep configs/cartpole_dqn.yaml seed=0..4                            five seeds
  hpcdi sweep configs/cartpole_dqn.yaml policy.learn.learning_rate=1e-3,3e-4 seed=0..2 --dry-run
  hpcdi sweep configs/cartpole_dqn.yaml seed=0..9 --array-parallelism 4      four at a time
  hpcdi sweep configs/cartpole_dqn.yaml seed=0..4 --local --jobs 2           on this machine
  hpcdi sweep configs/cartpole_dqn.yaml seed=0..9 --pack --ntasks-per-node 16    in one job
  hpcdi sweep status runs/cartpole_dqn/sweeps/20261122-104500                a table; --csv, --json
  hpcdi sweep resume runs/cartpole_dqn/sweeps/20261122-104500                those that are not done

On a Slurm cluster it submits one array job; with --local it runs them here and waits. With --pack
it submits one ordinary job, in which they run side by side: each with cores and GPUs of one host to
itself, as many at a time as have a core for each rank, or --jobs N; what ends makes room for the
next. No run can end another, and one that loses a rank which it needs (exit code 85) is started
again. Typed in an allocation (salloc, sbatch), or with --local, --pack does so there.

Key=a,b,c and key=0..4 (0 to 4) have several values; a list is one value: [64,64]. The last key
changes fastest. sweep.json in the sweep's folder says for each index its settings, run folder, job
and state; every run folder is an ordinary one, for `hpcdi status`, `eval`, `inspect`.
"""
EXIT_CODES = """\
exit codes: 0 submitted, or all runs are done; 1 some have failed, also of
`status`; 2 wrong configuration or command; 85 stopped by USR2 or the time limit: resume it; 130
Ctrl-C, 143 SIGTERM
"""
_LOOK_S = 0.1
_SIGNALS = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}
_STARTS = 4
"""Of a run, while each ends with exit code 85."""
_LEAST_S = 120.0
"""Before the job's time limit; with less left nothing is started."""
_SHOWN = ("state", "env_steps", "train_iter", "elapsed_s", "best", "last", "job")
WAITING = "waiting"
"""State of a run that has not been started yet."""
_FORMAT = 1
_MOST = 10_000
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_OPENING, _CLOSING = "[{(", "]})"


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
    parser.add_argument("-n", "--ranks", type=at_least(1), metavar="N", help="ranks of each run")
    parser.add_argument(
        "--serial", action="store_true", help="each run is one process, as of `hpcdi serial`"
    )
    _add_where(parser)
    add_resources(parser)
    given = parser.parse_intermixed_args(arguments)
    _check_where(parser, given)
    if given.sweep_dir is not None:
        run_folder.check_free(Path(given.sweep_dir))
    settings = [*given.setting, *settings_of(given)]
    made, experiments = make(
        given.config, settings, given.ranks, given.array_parallelism, serial=given.serial
    )
    slurm = compile_config(experiments[0]).config.slurm
    if given.dry_run:
        return _print_plan(made, range(len(made.elements)), slurm, given)
    if not _is_here(given):
        check(made, _job(made, slurm, given))  # before there is a folder
    root = run_folder.choose(f"{made.exp_name}/sweeps", given.sweep_dir)
    made = replace(made, root=root)
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
    _check_where(parser, given)
    found, _ = look(read(Path(given.folder)))
    if given.array_parallelism:
        found = replace(found, parallel=given.array_parallelism)
    packed, is_its_job = packed_job(found), found.job == os.environ.get("SLURM_JOB_ID")
    if packed is not None and not is_its_job:
        raise LaunchError(
            f"job {packed.job_id} is {packed.state}: it runs this sweep, and goes on with it. To "
            f"stop it: scancel {packed.job_id}"
        )
    left = to_start(found)
    if is_its_job:  # nobody else runs them; after a requeue, not what has failed before
        over = (
            ("done", "failed") if os.environ.get("SLURM_RESTART_COUNT", "0") != "0" else ("done",)
        )
        left = [element.index for element in found.elements if element.state not in over]
    unknown = sorted(set(given.index) - set(left))
    if unknown:
        raise LaunchError(
            f"runs {unknown} are done, pending, running, or not of this sweep; `hpcdi sweep status "
            f"{short(found.root)}` shows which"
        )
    chosen = sorted(given.index) or left
    if not chosen:
        print_lines(["nothing to start: every run is done, pending or running"])
        return EXIT_FAILED if to_start(found) else EXIT_DONE
    if given.dry_run:
        return _print_plan(found, chosen, resources_of(found), given)
    return _run(found, chosen, given)


def _status(arguments: Sequence[str]) -> int:
    parser = make_parser("sweep status", HELP, EXIT_CODES)
    parser.add_argument("folder", metavar="SWEEP", help="folder of a sweep")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--csv", action="store_true", help="print it as CSV, with all columns")
    shape.add_argument("--json", action="store_true", help="print it as a list of JSON objects")
    given = parser.parse_args(arguments)
    found, statuses = look(read(Path(given.folder)))
    rows = rows_of(found, statuses)
    if given.csv:
        sys.stdout.write(csv_of(rows))
    elif given.json:
        print_lines([json.dumps(rows, indent=2)])
    else:
        packed = packed_job(found)
        again = (
            [f"  next         hpcdi sweep resume {short(found.root)}"] if to_start(found) else []
        )
        if packed is not None:
            again = [f"  job          {packed.job_id} is {packed.state}"]
        print_lines([*table_of(found, rows), *again])
    fine = (*GOES_WELL, WAITING)
    return EXIT_DONE if all(row["state"] in fine for row in rows) else EXIT_FAILED


def _run(made: Sweep, indices: Sequence[int], given: argparse.Namespace) -> int:
    if _is_here(given):
        return LocalRuns(made, indices, _places(made, indices, given)).run()
    number = submit(made, indices, _job(made, resources_of(made), given))
    root = short(made.root)
    print_lines([f"job {number}", f"  hpcdi sweep status {root}", f"  scancel {number}"])
    return EXIT_DONE


def _is_here(given: argparse.Namespace) -> bool:
    """Returns whether the runs are started here, not by a new job."""
    return bool(given.local or (given.pack and allocation(os.environ) is not None))


def _job(made: Sweep, slurm: SlurmConfig, given: argparse.Namespace) -> BatchJob:
    """Returns the job of a sweep: packed, or an array."""
    return packed_into(made, slurm, given.jobs) if given.pack else array_job(made, slurm)


def _places(
    made: Sweep, indices: Sequence[int], given: argparse.Namespace
) -> list[Share] | list[None]:
    """Returns where runs are started at a time; None: anywhere on this machine."""
    if not given.pack:
        return [None] * (given.jobs or 1)
    variables = {} if given.local else os.environ
    found = shares(max(1, made.ranks), len(indices), given.jobs, variables)
    print_lines([f"{len(found)} of {len(indices)} runs at a time"])
    return found


def _print_plan(
    made: Sweep, indices: Sequence[int], slurm: SlurmConfig, given: argparse.Namespace
) -> int:
    """Print what would be started: commands on this host, or a Slurm job."""
    is_here = _is_here(given)
    for index in indices:
        overrides = " ".join(made.elements[index].overrides)
        what = f": {shlex.join(command_of(made, index))}" if is_here else ""
        print_lines([f"run {index} ({overrides}){what}"])
    if not is_here:
        job = _job(made, slurm, given)
        command = shlex.join(command_to_submit(made, indices, job))
        print_lines(["", command, "", script_text(job)])
    return EXIT_DONE


def _add_where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--array-parallelism", type=at_least(1), default=0, metavar="N",
        help="of an array job: run at most N at a time (default: no limit)",
    )  # fmt: skip
    parser.add_argument("--local", action="store_true", help="on this machine, without a queue")
    parser.add_argument(
        "--jobs", type=at_least(1), metavar="N",
        help="with --local: N at a time (1); with --pack: N shares (as many as have enough cores)",
    )  # fmt: skip
    parser.add_argument(
        "--pack", action="store_true", help="side by side in one job, or where this is typed"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be started")


def _check_where(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Refuse an option that would change nothing."""
    is_array = not (given.local or given.pack)
    if given.jobs and is_array:
        parser.error("--jobs goes with --local or --pack; of an array job: --array-parallelism")
    if given.array_parallelism and not is_array:
        parser.error("--array-parallelism is of array jobs; with --local or --pack: --jobs")


# ----------------------------------------------------------------------------------------- on Slurm


def array_job(sweep: Sweep, slurm: SlurmConfig) -> BatchJob:
    """Returns a sweep as an array job, with the resources of each run."""
    return BatchJob(
        f"hpcdi-{sweep.exp_name}", sweep.root.absolute(), resolved(slurm, sweep.ranks),
        sys.executable, array=array_of(range(len(sweep.elements)), sweep.parallel),
    )  # fmt: skip


def resources_of(sweep: Sweep) -> SlurmConfig:
    """Returns the resources of each run of a sweep on disk."""
    return load(sweep.experiment(0)).config.slurm


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
    # the script passes signals on, as it does for mpirun
    asked = replace(resolved(slurm, max(1, sweep.ranks) * (jobs or 0)), launcher="mpirun")
    return BatchJob(
        f"hpcdi-{sweep.exp_name}", sweep.root.absolute(), asked, sys.executable,
        packed=("--jobs", str(jobs)) if jobs else (),
    )  # fmt: skip


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
    array = [] if job.packed is not None else [f"--array={array_of(indices, sweep.parallel)}"]
    return ["sbatch", *array, str(short(job.script))]


def submit(sweep: Sweep, indices: Sequence[int], job: BatchJob) -> str:
    """Submit some runs of a sweep as an array job, or what is left of it; returns the job's id.

    Raises:
        LaunchError: Slurm refuses it, or the folder cannot be written.
    """
    with or_refuse(str(job.script)):
        write_text(job.script, script_text(job))
    sbatch, *rest = command_to_submit(sweep, indices, job)
    number = ask_slurm([sbatch, "--parsable", *rest]).strip().split(";")[0]
    if job.packed is not None:
        replace(sweep, job=number).save()
    else:
        sweep.with_jobs({index: f"{number}_{index}" for index in indices}).save()
    return number


def packed_job(sweep: Sweep) -> slurm_queue.QueueJob | None:
    """Returns the job that runs a packed sweep, while it waits or runs."""
    job = slurm_queue.ask(sweep.job) if sweep.job else None
    return job if job is not None and (job.waits or job.is_on) else None


# ---------------------------------------------------------------------------------- on this machine


def command_of(sweep: Sweep, index: int) -> list[str]:
    """Returns the command that starts a run of a sweep, or resumes it."""
    what, ranks = ("train", ["-n", str(sweep.ranks)]) if sweep.ranks else ("serial", [])
    return [
        sys.executable, "-m", "hpcdi", what, str(sweep.experiment(index)),
        "--run-dir", str(sweep.run_dir(index)), *ranks,
    ]  # fmt: skip


@dataclass(frozen=True)
class _Started:
    process: subprocess.Popen[bytes]
    began: float
    place: Share | None


class LocalRuns:
    """Runs of a sweep as child processes; one that ends with exit code 85 is started again.

    Args:
        sweep: which sweep.
        indices: which of its runs, in order.
        places: for each run at a time, its share of an allocation; None: anywhere on this machine.
    """

    def __init__(
        self, sweep: Sweep, indices: Sequence[int], places: Sequence[Share | None]
    ) -> None:
        self._sweep, self._free = sweep, deque(places)
        self._waiting = deque(indices)
        self._running: dict[int, _Started] = {}
        self._starts = Counter[int]()
        self._exit_codes = _SIGNALS | dict.fromkeys(preempt_signals(), EXIT_REQUEUE)
        self._last_start = end_of(None, os.environ, time.time()) - _LEAST_S
        self._asked: int | None = None

    def run(self) -> int:
        """Run them; returns the exit code: 0 if all runs of the sweep are done."""
        before = {number: signal.signal(number, self._on_signal) for number in self._exit_codes}
        try:
            while self._running or (self._waiting and self._may_start):
                while self._waiting and self._free and self._may_start:
                    self._start(self._waiting.popleft(), self._free.popleft())
                wait_s(_LOOK_S)  # until a run ends, or a signal asks for the end
                self._collect()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for started in self._running.values():
                started.process.kill()
                started.process.wait()
        sweep, _ = look(self._sweep)
        left = to_start(sweep)
        if left:
            names = ", ".join(map(str, left))
            sys.stderr.write(
                f"hpcdi sweep: runs {names} are not done; start these again by\n"
                f"  hpcdi sweep resume {short(sweep.root)}\n"
            )
        if self._asked is not None:
            return self._exit_codes[signal.Signals(self._asked)]
        if left:
            return EXIT_FAILED if self._may_start else EXIT_REQUEUE
        return EXIT_DONE

    @property
    def _may_start(self) -> bool:
        return self._asked is None and time.time() < self._last_start

    def _start(self, index: int, place: Share | None) -> None:
        path, command = self._sweep.output(index), command_of(self._sweep, index)
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603 (our own command line)
                command if place is None else place.command(command),
                env=None if place is None else place.environment(os.environ),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0,
            )  # fmt: skip
        self._starts[index] += 1
        self._running[index] = _Started(process, time.monotonic(), place)
        self._say(index, f"started; it prints to {short(path)}")

    def _collect(self) -> None:
        """Report the runs that have ended."""
        for index, started in list(self._running.items()):
            code = started.process.poll()
            if code is None:
                continue
            del self._running[index]
            self._free.append(started.place)
            lasted = human_time(time.monotonic() - started.began)
            sweep, found = look(self._sweep)
            status, self._sweep = found[index], sweep
            why = f": {status.why}" if status is not None and status.why else ""
            state = status.state if status is not None else "it has not begun"
            is_again = code == EXIT_REQUEUE and self._starts[index] < _STARTS and self._may_start
            if is_again:
                self._waiting.appendleft(index)
            again = "; it is started again" * is_again
            self._say(index, f"{state} after {lasted} (exit code {code}){why}{again}")

    def _say(self, index: int, text: str) -> None:
        overrides = " ".join(self._sweep.elements[index].overrides)
        sys.stdout.write(f"run {index} ({overrides}) {text}\n")
        sys.stdout.flush()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Passes the signal on to the runs; a second one ends them at once."""
        self._asked = number
        for started in self._running.values():
            is_step = started.place is not None and started.place.host
            # srun does not pass the first Ctrl-C on
            started.process.send_signal(
                signal.SIGTERM if is_step and number == signal.SIGINT else number
            )


# ---------------------------------------------------------------------------------------- the table


def rows_of(sweep: Sweep, found: Sequence[RunStatus | None]) -> list[dict[str, Any]]:
    """Returns each run as plain data: its settings, state, progress, results."""
    rows = []
    for element, status in zip(sweep.elements, found, strict=True):
        settings = dict(text.split("=", 1) for text in element.overrides)
        row = {"index": element.index, **settings, "state": element.state, "job": element.job}
        rows.append({**row, **(_results(status) if status is not None else {})})
    return rows


def _results(status: RunStatus) -> dict[str, Any]:
    progress = status.progress
    row: dict[str, Any] = {"reason": status.why, "run": str(status.layout.root)}
    row["restarts"] = int(status.facts.get("restarts", 0))
    if progress:
        row["env_steps"], row["train_iter"] = progress["env_steps"], progress["train_iter"]
        row["elapsed_s"] = round(progress["written_at"] - progress["started_at"], 1)
    for name, key in (("best", "best_evaluation"), ("last", "evaluation")):
        evaluation = progress.get(key)
        if evaluation:
            row[name], row[f"{name}_std"] = evaluation["mean"], evaluation["std"]
            row[f"{name}_env_steps"] = evaluation["env_steps"]
    return row


def csv_of(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the rows as CSV, with a header."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def table_of(sweep: Sweep, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the rows as a table for people."""
    keys = [text.partition("=")[0] for text in sweep.elements[0].overrides]
    is_shown = {name: any(row.get(name) not in (None, "") for row in rows) for name in _SHOWN}
    names = ["index", *keys, *(name for name in _SHOWN if is_shown[name])]
    cells = [names, *([_cell(name, row.get(name)) for name in names] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(names))]
    lines = ["  ".join(f"{cell:<{w}}" for cell, w in zip(r, widths, strict=True)) for r in cells]
    counts = Counter(row["state"] for row in rows)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    title = f"{sweep.exp_name}: {len(rows)} runs, {states}"
    return [title, *(line.rstrip() for line in lines), *_over_seeds(rows, keys)]


def _over_seeds(rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[str]:
    """Returns the mean best evaluation of runs that differ only in their seed."""
    if "seed" not in keys:
        return []
    others = [key for key in keys if key != "seed"]
    groups: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        if row.get("best") is not None and row["state"] == "done":
            groups.setdefault(tuple(row[key] for key in others), []).append(row["best"])
    lines = []
    for values, best in groups.items():
        if len(best) > 1:
            what = " ".join(f"{k}={v}" for k, v in zip(others, values, strict=True))
            mean, std = human_return(statistics.fmean(best)), human_return(statistics.stdev(best))
            lines.append(f"  {len(best)} seeds{f' of {what}' if what else ''}: {mean} ± {std}")
    return lines


def _cell(name: str, value: Any) -> str:
    if value is None or value == "":
        return "-"
    if name in ("env_steps", "train_iter"):
        return human_count(value)
    if name in ("best", "last"):
        return human_return(value)
    return human_time(value) if name == "elapsed_s" else str(value)


# ---------------------------------------------------------------------- the folder and the manifest


@dataclass(frozen=True)
class Element:
    """One run of a sweep.

    Attributes:
        index: from 0; index of the array job.
        overrides: ``key=value`` of each key that has several values.
        job: Slurm job id; empty: it has none.
        state: at the last `look`: `WAITING`, or a state of `RunStatus`.
    """

    index: int
    overrides: tuple[str, ...]
    job: str = ""
    state: str = WAITING


@dataclass(frozen=True)
class Sweep:
    """A sweep: the content of its manifest.

    Attributes:
        root: its folder.
        exp_name: of the experiment.
        elements: runs by index.
        ranks: of each run; 0: one process (`hpcdi serial`).
        parallel: runs at a time; 0: no limit.
        started: time and command line of its start.
        job: the Slurm job that runs all of it (`--pack`); empty: none.
    """

    root: Path
    exp_name: str
    elements: tuple[Element, ...]
    ranks: int
    parallel: int
    started: dict[str, Any] = field(default_factory=dict)
    job: str = ""

    @property
    def manifest(self) -> Path:
        """Path of the manifest."""
        return self.root / "sweep.json"

    def name_of(self, index: int) -> str:
        """Returns the name of a run's folder."""
        return f"{index:03d}"

    def run_dir(self, index: int) -> Path:
        """Returns a run's folder."""
        return self.root / self.name_of(index)

    def experiment(self, index: int) -> Path:
        """Returns the path of a run's compiled experiment."""
        return self.root / "experiments" / f"{self.name_of(index)}.yaml"

    def output(self, index: int) -> Path:
        """Returns the path of a run's output, if this machine ran it."""
        return self.root / "output" / f"{self.name_of(index)}.out"

    def save(self) -> None:
        """Write the manifest."""
        runs = [{**asdict(e), "run": self.name_of(e.index)} for e in self.elements]
        held = {
            "format": _FORMAT, "exp_name": self.exp_name, "ranks": self.ranks,
            "parallel": self.parallel, **self.started, "job": self.job, "runs": runs,
        }  # fmt: skip
        write_json(self.manifest, held)

    def with_jobs(self, jobs: dict[int, str]) -> Sweep:
        """Returns the sweep with new jobs of some runs."""
        changed = [replace(e, job=jobs.get(e.index, e.job)) for e in self.elements]
        return replace(self, elements=tuple(changed))


def values_of(text: str) -> list[str]:
    """Returns the values of a key: ``a,b,c``; ``0..4`` is 0 to 4; ``[64,64],[128]`` are two lists.

    Raises:
        LaunchError: a range runs backwards, or a value is empty.
    """
    found = _RANGE.fullmatch(text)
    if found is not None:
        first, last = int(found[1]), int(found[2])
        if first > last or last - first >= _MOST:
            raise LaunchError(f"{text} is no range: write first..last, at most {_MOST} values")
        return [str(value) for value in range(first, last + 1)]
    values, depth, quote = [""], 0, ""
    for sign in text:
        if sign == "," and depth == 0 and not quote:
            values.append("")
            continue
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        depth += (sign in _OPENING) - (sign in _CLOSING)
        values[-1] += sign
    if len(values) > 1 and "" in values:
        raise LaunchError(f"{text} has an empty value")
    return values


def grid(settings: Sequence[str]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Returns the settings that all runs share, and those of each; the last key changes fastest.

    Args:
        settings: ``key=value`` or ``key=value,value``.

    Raises:
        LaunchError: a setting is malformed, no key has several values, or there are too many runs.
    """
    shared, axes = [], []
    for text in settings:
        key, sign, values = text.partition("=")
        if not sign or not key:
            raise LaunchError(f"{text!r} is not of the form key=value or key=value,value")
        several = values_of(values)
        if len(several) == 1:
            shared.append(f"{key}={several[0]}")
        else:
            axes.append([f"{key}={value}" for value in several])
    if not axes:
        raise LaunchError(
            "no setting has several values: write key=a,b,c or seed=0..4; for one run there is "
            "`hpcdi train`"
        )
    if math.prod(map(len, axes)) > _MOST:
        raise LaunchError(f"these are {math.prod(map(len, axes))} runs; at most {_MOST} are taken")
    return shared, list(itertools.product(*axes))


def make(
    config: str, settings: Sequence[str], ranks: int | None, parallel: int, *, serial: bool
) -> tuple[Sweep, list[dict[str, Any]]]:
    """Compile all runs of a sweep that has no folder yet; returns it, and their experiments.

    Args:
        config: the YAML file.
        settings: see `grid`.
        ranks: of each run; None: as many as the experiment needs.
        parallel: see `Sweep`.
        serial: each run is one process.

    Raises:
        ConfigError: an experiment is wrong. LaunchError: settings are, or runs need different
            numbers of ranks.
    """
    from hpcdi.launch.experiment import load_experiment
    from hpcdi.launch.placement import check_world, default_world_size

    shared, several = grid(settings)
    load_experiment(config, [*shared, *several[0]], over_ranks=not serial)
    experiments, worlds = [], set()
    for overrides in several:
        # a run that was stopped or has failed is resumed, however it is started again
        given = ["system.auto_resume=true", *shared, *overrides]
        compiled = load(config, given)
        experiments.append(compiled.to_mapping())
        needed = default_world_size(compiled.config) if ranks is None else ranks
        if not serial:
            check_world(needed, compiled.config)
        worlds.add(needed)
    if len(worlds) > 1 and not serial:
        raise LaunchError(
            f"these runs need different numbers of ranks ({sorted(worlds)}): choose one by -n, or "
            "make a sweep for each"
        )
    elements = tuple(Element(i, overrides) for i, overrides in enumerate(several))
    started = {"command": sys.argv, "started": run_folder.now_text()}
    name = str(experiments[0]["exp_name"])
    root = Path("runs", name, "sweeps", "TIME")
    return Sweep(root, name, elements, 0 if serial else max(worlds), parallel, started), experiments


def keep(sweep: Sweep, experiments: Sequence[dict[str, Any]]) -> None:
    """Write a new sweep's folder: the experiments, then the manifest.

    Raises:
        LaunchError: the folder cannot be written.
    """
    with or_refuse(str(sweep.root)):
        sweep.output(0).parent.mkdir(parents=True, exist_ok=True)
        for index, experiment in enumerate(experiments):
            write_text(sweep.experiment(index), dump(experiment), fsync=False)
        sweep.save()


def read(root: Path) -> Sweep:
    """Returns the sweep of a folder.

    Raises:
        LaunchError: it holds none.
    """
    held = read_json(root / "sweep.json")
    if held.get("format") != _FORMAT:
        raise LaunchError(f"{root} holds no sweep: there is no sweep.json of this version in it")
    try:
        elements = tuple(
            Element(run["index"], tuple(run["overrides"]), run["job"], run["state"])
            for run in held["runs"]
        )
        started = {name: held.get(name) for name in ("command", "started")}
        return Sweep(
            root.absolute(), held["exp_name"], elements, held["ranks"], held["parallel"], started,
            held.get("job", ""),
        )  # fmt: skip
    except (KeyError, TypeError) as error:
        raise LaunchError(f"{root / 'sweep.json'} is damaged: {error!r}") from error


def look(sweep: Sweep) -> tuple[Sweep, list[RunStatus | None]]:
    """Returns the sweep with the present state of each run, and each run's status; None: not begun.

    The manifest is rewritten if a state has changed.
    """
    found: list[RunStatus | None] = []
    elements = []
    jobs = slurm_queue.ask_all(element.job for element in sweep.elements if element.job)
    for element in sweep.elements:
        run_dir = sweep.run_dir(element.index)
        has_begun = bool(run_folder.read(run_dir))
        is_known = has_begun or element.job in jobs
        status = status_of(run_dir, jobs.get, element.job) if is_known else None
        found.append(status if has_begun else None)
        silent = "pending" if element.job else WAITING
        elements.append(replace(element, state=status.state if status is not None else silent))
    changed = replace(sweep, elements=tuple(elements))
    if changed != sweep:
        changed.save()
    return changed, found


def to_start(sweep: Sweep) -> list[int]:
    """Returns the runs that are neither done nor pending nor running."""
    return [element.index for element in sweep.elements if element.state not in GOES_WELL]
