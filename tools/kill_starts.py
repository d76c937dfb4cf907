"""Kills a rank at each line of its start: does the job hang, or end with another code than 85 or 0?

A first job notes the lines of hpcdi's own functions that a rank comes to, from its first one to
that of its first task, and which of them do something that another process can notice (they send,
write a file, start a process, ...). From one such act to the next it makes no difference to anybody
else at which line a rank dies: these lines are one moment. Then there is a job for each moment, in
which the rank is killed at its last line; with `--each-line` one for each line, with `--every N`
for one in N. The job has a coordinator, two learners and a collector; each is struck in turn. It
must go on without the rank to its end (exit code 0), or end with 85, which says that it is to be
started again: within the settings' patience, and without a traceback of another rank. Fails (exit
code 1) otherwise. Which lines a rank comes to depends a little on when its messages arrive: a job
that did not come to its line is named, and counted apart from the deaths.

    python tools/kill_starts.py            with this Python's MPI
    python tools/kill_starts.py --each-line --ranks 1 --lines role.py
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

TOOLS = Path(__file__).parent
CONFIG = TOOLS.parent / "configs" / "cartpole_dqn.yaml"
NAMES = ("coordinator", "learner", "second learner", "collector")
SETTINGS = (
    "policy.learn.learner.learner_num=2", "policy.collect.collector.collector_num=1",
    "env.stop_value=1e9", "policy.other.commander.max_train_iter=10",
    "policy.eval.every=900 seconds", "system.survival.worker_timeout_s=60",
    "system.coordinator.start_timeout_s=120", "system.max_restarts_without_progress=1",
)  # fmt: skip
FIRST_TASK = ("_take_task", "_begin", "admit")
"""Functions in which a start ends; rank 0's with the first block of rows."""
LIMIT_S = 400.0
"""Of a job: more than the settings' patience, and a busy machine's start."""


class Result(NamedTuple):
    """What became of a job whose rank was killed."""

    rank: int
    code: int | None
    wrong: str
    is_struck: bool


def run(folder: Path, variables: dict[str, str]) -> tuple[int | None, str, float]:
    """Returns a job's exit code (None: it hung, and was killed), what it printed, and seconds."""
    paths = filter(None, [str(TOOLS / "start_faults"), os.environ.get("PYTHONPATH")])
    began, printed = time.monotonic(), folder.with_suffix(".out")
    with printed.open("wb") as out:
        job = subprocess.Popen(
            [sys.executable, "-m", "hpcdi", "train", str(CONFIG), "-n", str(len(NAMES)),
             "--run-dir", str(folder), *SETTINGS],
            stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables},
        )  # fmt: skip
        try:
            code: int | None = job.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    return code, printed.read_text(errors="replace"), time.monotonic() - began


def note_starts(base: Path) -> list[list[list[str]]]:
    """Returns by rank the moments of its start, in their order: lines from one act to the next."""
    notes = {"START_FAULT": "lines:*", "START_LINES": str(base / "rank")}
    code, said, _ = run(base / "whole", notes)
    if code != 0:
        sys.exit(f"the job without a fault ends with {code}:\n{said}")
    return [moments_in((base / f"rank{rank}").read_text()) for rank in range(len(NAMES))]


def moments_in(noted: str) -> list[list[str]]:
    """Returns the moments in what a rank has noted (see `start_faults`)."""
    moments: list[list[str]] = []
    present: dict[str, list[str]] = {}  # thread -> the moment that it is in
    for record in noted.splitlines():
        thread, _, line = record.partition(" ")
        if line.startswith("* "):
            present.pop(thread, None)
            continue
        place, _, name = line.rpartition(":")
        if name in FIRST_TASK and place.startswith("roles/"):
            break
        if thread not in present:
            moments.append([])
            present[thread] = moments[-1]
        present[thread].append(place)
    return moments


def wrong_with(code: int | None, said: str) -> str:
    """Returns what is wrong with a job whose rank was killed; empty: nothing."""
    if code is None:
        return "HANGS"
    if code not in (0, 85):
        return f"EXIT CODE {code}"
    raised = re.findall(r"Traceback \(most recent call last\):\n(?:[ ].*\n)+(.*)", said)
    return f"TRACEBACK {raised[0]}" if raised else ""


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one in N")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="N at the same time")
    parser.add_argument("--each-line", action="store_true", help="not only the last of a moment")
    parser.add_argument("--lines", default="", help="only those whose file's name has this")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so long")
    options = parser.parse_args()
    base, began = Path(tempfile.mkdtemp(prefix="hpcdi-starts-")), time.monotonic()
    results: list[Result] = []
    starts, faults = note_starts(base), list[tuple[int, str]]()
    for rank in options.ranks:
        lines = [x for all_ in starts[rank] for x in (all_ if options.each_line else all_[-1:])]
        lines = [line for line in dict.fromkeys(lines) if options.lines in line][:: options.every]
        faults += [(rank, line) for line in lines]
        total = sum(map(len, starts[rank]))
        sys.stdout.write(f"{NAMES[rank]}: {total} lines in {len(starts[rank])} moments\n")
    random.Random(0).shuffle(faults)  # an end that comes early has seen each part of the start

    def strike(fault: tuple[int, str]) -> None:
        if time.monotonic() - began > options.seconds:
            return
        rank, line = fault
        folder = base / f"{faults.index(fault):04d}"
        struck = folder.with_suffix(".struck")
        code, said, took_s = run(
            folder,
            {"START_FAULT": f"line:{rank}", "START_LINE": line, "START_STRUCK": str(struck)},
        )
        wrong, is_struck = wrong_with(code, said), struck.exists()
        results.append(Result(rank, code, wrong, is_struck))
        about = wrong or ("" if is_struck else "(did not come to that line)")
        sys.stdout.write(f"{NAMES[rank]:<15} {line:<50} {code} {took_s:5.1f} s {about}\n")
        sys.stdout.flush()
        if not wrong:
            shutil.rmtree(folder, ignore_errors=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(strike, faults))
    for rank in options.ranks:
        codes = Counter(x.code for x in results if x.rank == rank and x.is_struck)
        missed = sum(x.rank == rank and not x.is_struck for x in results)
        sys.stdout.write(
            f"{NAMES[rank]}: {sum(codes.values())} deaths, exit codes {dict(codes)}; "
            f"{missed} jobs did not come to their line\n"
        )
    return int(any(result.wrong for result in results))


if __name__ == "__main__":
    sys.exit(main())
