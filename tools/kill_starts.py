"""Kills a rank at each line of its start: does the job hang, or end with another code than 85 or 0?

A first job notes the lines of hpcdi's own functions that a rank comes to, from its first one to
that of its first task; not those of packages that talk to nobody (settings, networks, ...). Then
there is a job for each of these lines (of `--every N` one in N), in which the rank is killed there.
The job has a coordinator, two learners and a collector, and each of them is struck in turn. It must
go on without the rank to its end (exit code 0), or end with 85, which says that it is to be started
again: within the settings' patience, and without a traceback of another rank. Fails (exit code 1)
otherwise.

    python tools/kill_starts.py --every 10            with this Python's MPI
    python tools/kill_starts.py --ranks 1 --lines role.py
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
from pathlib import Path

TOOLS = Path(__file__).parent
CONFIG = TOOLS.parent / "configs" / "cartpole_dqn.yaml"
NAMES = ("coordinator", "learner", "second learner", "collector")
SETTINGS = (
    "policy.learn.learner.learner_num=2", "policy.collect.collector.collector_num=1",
    "env.stop_value=1e9", "policy.other.commander.max_train_iter=60",
    "policy.eval.every=900 seconds", "system.survival.worker_timeout_s=30",
    "system.coordinator.start_timeout_s=60", "system.max_restarts_without_progress=1",
)  # fmt: skip
FIRST_TASK = ("_take_task", "_begin", "_admit")
ALONE = ("config/", "env/", "policy/", "utils/", "types.py", "store/")
LIMIT_S = 240.0
"""Of a job: more than the settings' patience, and a busy machine's start."""


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


def lines_of(rank: int, base: Path) -> list[str]:
    """Returns the lines of a rank's start, in their order."""
    file = base / f"lines{rank}"
    code, said, _ = run(
        base / f"whole{rank}", {"START_FAULT": f"lines:{rank}", "START_LINES": str(file)}
    )
    if code != 0:
        sys.exit(f"the job without a fault ends with {code}:\n{said}")
    lines: list[str] = []
    for line in file.read_text().splitlines():
        place, _, name = line.rpartition(":")
        if name in FIRST_TASK and place.startswith("roles/"):
            break
        if not place.startswith(ALONE):
            lines.append(place)
    return lines


def wrong_with(code: int | None, said: str) -> str:
    """Returns what is wrong with a job whose rank was killed; empty: nothing."""
    if code is None:
        return "HANGS"
    if code not in (0, 85):
        return f"EXIT CODE {code}"
    raised = re.findall(r"Traceback \(most recent call last\):\n(?:[ ].*\n)+(.*)", said)
    raised = [error for error in raised if "MPI_ERR_PROC_FAILED" not in error]  # says what it is
    return f"TRACEBACK {raised[0]}" if raised else ""


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one line in N")
    parser.add_argument("--lines", default="", help="only those whose file's name has this")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so long")
    options = parser.parse_args()
    base, began, results = Path(tempfile.mkdtemp(prefix="hpcdi-starts-")), time.monotonic(), []
    faults = [
        (rank, line)
        for rank in options.ranks
        for line in [x for x in lines_of(rank, base) if options.lines in x][:: options.every]
    ]
    random.Random(0).shuffle(faults)  # an end that comes early has seen each part of the start
    for number, (rank, line) in enumerate(faults):
        if time.monotonic() - began > options.seconds:
            break
        folder = base / f"{number:04d}"
        fault = {"START_FAULT": f"line:{rank}", "START_LINE": line}
        code, said, took_s = run(folder, fault)
        wrong = wrong_with(code, said)
        results.append((rank, line, code, wrong))
        sys.stdout.write(f"{NAMES[rank]:<15} {line:<50} {code} {took_s:5.1f} s {wrong}\n")
        sys.stdout.flush()
        if not wrong:
            shutil.rmtree(folder, ignore_errors=True)
    for rank in options.ranks:
        codes = Counter(code for r, _, code, _ in results if r == rank)
        sys.stdout.write(f"{NAMES[rank]}: {sum(codes.values())} lines, exit codes {dict(codes)}\n")
    return int(any(wrong for *_, wrong in results))


if __name__ == "__main__":
    sys.exit(main())
