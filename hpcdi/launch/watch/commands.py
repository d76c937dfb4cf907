"""The commands that look at runs from outside: `hpcdi status` and `hpcdi tail`."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcdi.errors import EXIT_REQUEUE, LaunchError
from hpcdi.launch import slurm_queue
from hpcdi.launch.slurm_queue import QueueJob
from hpcdi.launch.watch.status import RunStatus, job_of, status_of
from hpcdi.launch.watch.status_text import data_of, lines_of
from hpcdi.launch.watch.tail import TailArguments, tail
from hpcdi.store.atomic import read_json
from hpcdi.store.layout import RunLayout
from hpcdi.utils.backoff import wait_s

STATUS_HELP = """\
Say how a run stands: pending, starting, running, done, failed, stopped or dead; its job, speed,
returns, last evaluation, who is idle, the newest snapshot, the last error, and what to type next.
It reads the run folder and asks the queue, where there is one; no port, nothing of the run itself,
so it works from a login node, and when the run hangs or is gone.

  hpcdi status runs/cartpole_dqn/latest              a run, by its folder
  hpcdi status 123456                                by its Slurm job, also 123456_7 of an array
  hpcdi status runs/cartpole_dqn/latest --watch 5    again every 5 s, until it is over
  hpcdi status runs/cartpole_dqn/latest --json       for a program

A run is dead that calls itself running, but whose process or job is gone, or that has been silent
for two minutes where neither can be seen.
"""
STATUS_CODES = """\
exit codes: 0 it is pending, starting, running or done; 1 it has failed, or is dead; 2 there is no
such run; 85, 130, 143 it was stopped (time limit or signal; Ctrl-C; at once by SIGTERM)
"""
TAIL_HELP = """\
Show the last lines of all ranks' logs as one, by time, from the run folder alone.

  hpcdi tail runs/cartpole_dqn/latest                 the last 20 lines
  hpcdi tail runs/cartpole_dqn/latest -f              and those that come, until the run is over
  hpcdi tail runs/cartpole_dqn/latest --rank 2 --level warning -n 100
  hpcdi tail runs/cartpole_dqn/latest --json          the lines as they are, one JSON object each

With -f it stays through restarts of a job that is requeued, and ends when the run has.
"""
TAIL_CODES = """\
exit codes: 0 shown, with -f: the run is done; 1 with -f: the run has ended otherwise, or is dead;
2 there is no such run or rank; 130 Ctrl-C
"""
_LEVELS = ("debug", "info", "warning", "error")


def status(arguments: Sequence[str]) -> int:
    """`hpcdi status`; gives the exit code."""
    parser = _parser("status", STATUS_HELP, STATUS_CODES)
    parser.add_argument("run", metavar="RUN|JOB", help="run folder, or number of a Slurm job")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--watch", nargs="?", const=2.0, type=_seconds, metavar="SECONDS",
        help="again and again (default: every 2 s), until the run is over",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    run = find(given.run)
    is_terminal = sys.stdout.isatty()
    while True:
        found = status_of(run)
        _print(found, is_json=given.json, clears=given.watch is not None and is_terminal)
        if given.watch is None or found.is_over:
            return found.exit_code
        wait_s(given.watch)  # until the run is over, or Ctrl-C


def show_log(arguments: Sequence[str]) -> int:
    """`hpcdi tail`; gives the exit code."""
    parser = _parser("tail", TAIL_HELP, TAIL_CODES)
    parser.add_argument("run", metavar="RUN|JOB", help="run folder, or number of a Slurm job")
    parser.add_argument(
        "-n", "--lines", type=int, default=20, metavar="N", help="lines to begin with (20)"
    )
    parser.add_argument(
        "--rank", type=int, action="append", default=[], metavar="R",
        help="only this rank; may be said several times",
    )  # fmt: skip
    parser.add_argument("--level", choices=_LEVELS, default="info", help="and what is graver")
    parser.add_argument("-f", "--follow", action="store_true", help="show what comes, too")
    parser.add_argument("--json", action="store_true", help="lines as they are in the files")
    given = parser.parse_args(arguments)
    run = find(given.run)

    def verdict() -> tuple[int | None, str]:
        found = status_of(run, slurm_queue.nobody)
        is_silent = bool(found.why) and (not found.is_over or not found.facts)
        if is_silent or found.exit_code == EXIT_REQUEUE:  # the queue may know more
            found = status_of(run)
        return (found.exit_code if found.is_over else None), f"the run is {found.state}"

    level = logging.getLevelNamesMapping()[given.level.upper()]
    return tail(
        TailArguments(run, max(given.lines, 0), given.rank, level, given.follow, given.json),
        verdict,
    )


def find(name: str) -> Path:
    """The run folder that a name stands for.

    Args:
        name: a folder, or a job's number: its run lies below ``runs`` here or where the job was
            submitted.

    Raises:
        LaunchError: there is none.
    """
    path = Path(name)
    if path.is_dir():
        return path.resolve()
    if not slurm_queue.is_job_id(name):
        raise LaunchError(f"there is no {name}; name a run folder, or a Slurm job's number")
    job = slurm_queue.ask(name)
    places = [Path.cwd()] + ([Path(job.folder)] if job is not None and job.folder else [])
    places = list(dict.fromkeys(places))
    for run in [*_printed_by(job), *(run for place in places for run in _runs_below(place))]:
        layout = RunLayout(run)
        files = (layout.run_file, layout.status_file, layout.submit_file)
        if job_of(*map(read_json, files)) == name:
            return layout.root.resolve()
    told = f"Slurm says of it: {job.state} {job.reason}" if job is not None else "no queue knows it"
    searched = " and ".join(str(place / "runs") for place in places)
    raise LaunchError(f"no run in {searched} is of job {name}; {told}. Name the run folder")


def _printed_by(job: QueueJob | None) -> list[Path]:
    """Run folders that a job may belong to, by the file that it prints to."""
    if job is None or not job.output:
        return []
    above = Path(job.output).parent.parent  # of RUN/submit/slurm-12.out, SWEEP/output/...
    return [above, *sorted(above.glob("[0-9]*"))]


def _runs_below(place: Path) -> list[Path]:
    """Run folders where runs go by default, the newest ones first."""
    begun = [*place.glob("runs/*/*/run.json"), *place.glob("runs/*/sweeps/*/*/run.json")]
    waiting = [file.parent for file in place.glob("runs/*/*/submit/submit.json")]
    return sorted({file.parent for file in [*begun, *waiting]}, key=_changed, reverse=True)


def _changed(path: Path) -> float:
    return path.stat().st_mtime


def _print(found: RunStatus, *, is_json: bool, clears: bool) -> None:
    text = json.dumps(data_of(found), indent=2) if is_json else "\n".join(lines_of(found))
    sys.stdout.write(("\x1b[H\x1b[2J" if clears else "") + text + "\n")
    sys.stdout.flush()


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if seconds < 0.1:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0.1, not {text!r}")
    return seconds


def _parser(command: str, about: str, codes: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"hpcdi {command}", description=about, epilog=codes,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
