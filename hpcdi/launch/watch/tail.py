"""`hpcdi tail`: the ranks' logs as one, by time; from the run folder alone."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from hpcdi.errors import EXIT_DONE, EXIT_FAILED, LaunchError
from hpcdi.launch.watch.log_lines import LogLine, LogReader, logs_of, newest
from hpcdi.utils.backoff import wait_s

_LOOK_S = 0.5
_LOOK_EACH_S = 0.005  # with a thousand ranks the file system is asked less often
_JUDGE_S = 5.0
"""After so long without a new line the run itself is looked at: is it over, or dead?"""


@dataclass(frozen=True)
class TailArguments:
    """What the command line says."""

    run: Path
    lines: int = 20
    ranks: Collection[int] = ()
    """Whose logs; empty: all."""
    level: int = logging.INFO
    follows: bool = False
    is_json: bool = False


def tail(arguments: TailArguments, verdict: Callable[[], tuple[int | None, str]]) -> int:
    """Print the newest records, and with `follows` those that come; gives the exit code.

    Args:
        arguments: see there.
        verdict: says how the run has ended: its exit code and a line about it; None while it goes
            on, or will.

    Raises:
        LaunchError: there are no logs, or not of these ranks.
    """
    folder = arguments.run / "log"
    logs = _chosen(folder, arguments)
    if not logs and not arguments.follows:
        raise LaunchError(_nothing(folder, arguments))
    lines, readers = newest(logs, arguments.lines, arguments.level)
    _show(lines, arguments)
    return _follow(readers, set(logs), arguments, verdict) if arguments.follows else EXIT_DONE


def _follow(
    readers: list[LogReader],
    known: set[int],
    arguments: TailArguments,
    verdict: Callable[[], tuple[int | None, str]],
) -> int:
    """Show what is added until the run is over; ranks that come later are taken up."""
    heard = time.monotonic() - _JUDGE_S  # a run that is over already is not waited for
    while True:
        is_over = time.monotonic() - heard >= _JUDGE_S
        code, told = verdict() if is_over else (None, "")
        for rank, path in _chosen(arguments.run / "log", arguments).items():
            if rank not in known:
                known.add(rank)
                readers.append(LogReader(rank, path))
        lines = [line for reader in readers for line in reader.take()]
        _show(sorted(lines, key=lambda line: line.time), arguments)
        if code is not None:
            sys.stderr.write(f"hpcdi tail: {told}\n")
            return EXIT_DONE if code == EXIT_DONE else EXIT_FAILED
        if lines or is_over:
            heard = time.monotonic()
        wait_s(max(_LOOK_S, _LOOK_EACH_S * len(readers)))  # until the run is over, or Ctrl-C


def _show(lines: list[LogLine], arguments: TailArguments) -> None:
    for line in lines:
        if line.level >= arguments.level:
            sys.stdout.write((line.text if arguments.is_json else str(line)) + "\n")
    sys.stdout.flush()


def _chosen(folder: Path, arguments: TailArguments) -> dict[int, Path]:
    found = logs_of(folder)
    return {rank: found[rank] for rank in found if not arguments.ranks or rank in arguments.ranks}


def _nothing(folder: Path, arguments: TailArguments) -> str:
    there = sorted(logs_of(folder))
    if not there:
        return f"no rank has written to {folder} yet; -f waits for the first line"
    asked = ", ".join(map(str, sorted(arguments.ranks)))
    return f"there is no log of rank {asked} in {folder}; it has ranks {there[0]} to {there[-1]}"
