"""`hpcdi tail`: the ranks' logs as one, by time; from the run folder alone."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcdi.commands.logs import LogLine, LogReader, logs_of, newest_lines
from hpcdi.commands.options import add_run, at_least, make_parser
from hpcdi.commands.run_state import find_run, status_of
from hpcdi.errors import EXIT_DONE, EXIT_REQUEUE, LaunchError
from hpcdi.run import slurm_queue
from hpcdi.store.layout import RunLayout
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.console import escaped

HELP = """\
Show the last lines of all ranks' logs, merged by time, from the run folder alone.

  hpcdi tail runs/cartpole_dqn/latest                 the last 20 lines
  hpcdi tail runs/cartpole_dqn/latest -f              and new ones, until the run is over
  hpcdi tail runs/cartpole_dqn/latest --rank 2 --level warning -n 100
  hpcdi tail runs/cartpole_dqn/latest --json          the lines as they are, one JSON object each

With -f it stays through restarts of a requeued job, and ends when the run does, with its exit code.
"""
EXIT_CODES = """\
exit codes: 0 shown, with -f: the run is done; 1 with -f: the run has failed, or is dead; 2 there is
no such run or rank; 85, 130, 143 with -f: it was stopped (time limit or signal; Ctrl-C; a second
SIGTERM); 130 Ctrl-C
"""
_LEVELS = ("debug", "info", "warning", "error")
_LOOK_S = 0.5
_LOOK_EACH_S = 0.005  # with a thousand ranks the file system is asked less often
_JUDGE_S = 5.0
"""After so long without a new line: is the run over, or dead?"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    options = parse(arguments)

    def verdict() -> tuple[int | None, str]:
        status = status_of(options.run, slurm_queue.nobody)
        is_silent = bool(status.why) and (not status.is_over or not status.facts)
        if is_silent or status.exit_code == EXIT_REQUEUE:  # the queue may know more
            status = status_of(options.run)
        return (status.exit_code if status.is_over else None), f"the run is {status.state}"

    return tail(options, verdict)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns ``run`` (its folder), ``lines``, ``rank``, ``level``, ``follow``, ``json``."""
    parser = make_parser("tail", HELP, EXIT_CODES)
    add_run(parser)
    parser.add_argument(
        "-n", "--lines", type=at_least(0), default=20, metavar="N", help="lines to begin with (20)"
    )
    parser.add_argument(
        "--rank",
        type=int,
        action="append",
        default=[],
        metavar="R",
        help="only this rank; may be repeated",
    )
    parser.add_argument("--level", choices=_LEVELS, default="info", help="this level and above")
    parser.add_argument("-f", "--follow", action="store_true", help="show new lines, too")
    parser.add_argument("--json", action="store_true", help="lines as they are in the files")
    options = parser.parse_args(arguments)
    options.run = find_run(options.run)
    options.level = logging.getLevelNamesMapping()[options.level.upper()]
    return options


def tail(options: argparse.Namespace, verdict: Callable[[], tuple[int | None, str]]) -> int:
    """Print the newest records, and with ``follow`` new ones; returns the exit code.

    Args:
        options: see `parse`.
        verdict: returns how the run has ended, as an exit code and a line about it; None while it
            goes on, or is to.

    Raises:
        LaunchError: there are no logs, or none of these ranks.
    """
    logs = _chosen(options)
    if not logs and not options.follow:
        raise LaunchError(_nothing(options))
    lines, readers = newest_lines(logs, options.lines, options.level)
    _show(lines, options)
    return _follow(readers, set(logs), options, verdict) if options.follow else EXIT_DONE


def _follow(
    readers: list[LogReader],
    followed: set[int],
    options: argparse.Namespace,
    verdict: Callable[[], tuple[int | None, str]],
) -> int:
    """Show new records until the run is over, those of ranks that start later, too."""
    heard = time.monotonic() - _JUDGE_S  # a run that is over already is not waited for
    while True:
        is_due = time.monotonic() - heard >= _JUDGE_S
        code, why = verdict() if is_due else (None, "")
        for rank, path in _chosen(options).items():
            if rank not in followed:
                followed.add(rank)
                readers.append(LogReader(rank, path))
        lines = [line for reader in readers for line in reader.take()]
        _show(sorted(lines, key=lambda line: line.time), options)
        if code is not None:
            if options.rank and not followed and logs_of(RunLayout(options.run).log_dir):
                raise LaunchError(_nothing(options))
            sys.stderr.write(f"hpcdi tail: {escaped(why)}\n")
            return code
        if lines or is_due:
            heard = time.monotonic()
        wait_s(max(_LOOK_S, _LOOK_EACH_S * len(readers)))  # until the run is over, or Ctrl-C


def _show(lines: list[LogLine], options: argparse.Namespace) -> None:
    for line in lines:
        if line.level >= options.level:
            sys.stdout.write((line.text if options.json else str(line)) + "\n")
    sys.stdout.flush()


def _chosen(options: argparse.Namespace) -> dict[int, Path]:
    logs = logs_of(RunLayout(options.run).log_dir)
    return {rank: logs[rank] for rank in logs if not options.rank or rank in options.rank}


def _nothing(options: argparse.Namespace) -> str:
    folder = RunLayout(options.run).log_dir
    ranks = sorted(logs_of(folder))
    if not ranks:
        return f"no rank has written to {folder} yet; -f waits for the first line"
    wanted = ", ".join(map(str, sorted(options.rank)))
    there = f"ranks {ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]} alone"
    return f"there is no log of rank {wanted} in {folder}; it has {there}"
