"""What packing costs: trials of a sweep side by side, beside the same trials one after another.

Eight runs of `configs/cartpole_dqn.yaml` over 4 ranks (or `--serial`: in one process each), whose
learning is tied to collecting by `policy.learn.replay_ratio`, train to a number of environment
steps: `hpcdi sweep --local --pack --jobs 1`, each with all cores, then with `--jobs 2` and 8, each
with a share of them. Throughput is the sum of their environment steps by the time from the command
to its exit, start of every rank included; beside it, by the CPU seconds of all processes, for a
machine that does other work as well. The kinds take turns, round by round, and the figure is the
median of the rounds. Fails if a trial does not end.

    python tools/bench_sweep.py                    4 ranks, two rounds: a quarter of an hour
    python tools/bench_sweep.py --serial           one process a trial
    python tools/bench_sweep.py --quick            4 trials of 20,000 steps, one round
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from figures import Row, at_least, parsed, parser, show

ROOT = Path(__file__).parent.parent
GOAL = 0.9


@dataclass(frozen=True)
class Sweep:
    """A sweep that has ended: environment steps of all trials, seconds, CPU seconds."""

    env_steps: int
    wall_s: float
    cpu_s: float


def main() -> None:
    """Measure, and print."""
    command_line = parser(__doc__ or "")
    command_line.add_argument("--serial", action="store_true", help="one process a trial")
    command_line.add_argument("--trials", type=int, default=8)
    command_line.add_argument("--steps", type=int, default=100_000, help="of each trial")
    command_line.add_argument("--replay-ratio", type=float, default=8)
    command_line.add_argument("--jobs", type=int, nargs="+", default=[2, 8], help="at a time")
    command_line.add_argument("--rounds", type=int, default=2)
    given = parsed(command_line, trials=4, steps=20_000, rounds=1, jobs=[2, 4])
    settings = (
        f"seed=0..{given.trials - 1}", "env.stop_value=1e9", "policy.eval.every=1e9 seconds",
        f"policy.learn.replay_ratio={given.replay_ratio:g}",
        f"policy.other.commander.max_env_step={given.steps}",
    )  # fmt: skip
    kinds = [1, *given.jobs]
    measured: dict[int, list[Sweep]] = {jobs: [] for jobs in kinds}
    for number in range(given.rounds):
        for jobs in kinds if number % 2 == 0 else reversed(kinds):
            found = sweep(settings, jobs, serial=given.serial)
            measured[jobs].append(found)
            sys.stderr.write(f"round {number}, {jobs} at a time: {found}\n")
    show(rows(measured, given.trials, "serial" if given.serial else "4 ranks"), given.json)


def sweep(settings: Sequence[str], jobs: int, *, serial: bool) -> Sweep:
    """Run a sweep to its end."""
    with tempfile.TemporaryDirectory() as folder:
        root, output = Path(folder) / "sweep", Path(folder) / "output"
        command = [
            sys.executable, "-m", "hpcdi", "sweep", str(ROOT / "configs" / "cartpole_dqn.yaml"),
            *settings, "--local", "--pack", "--jobs", str(jobs), "--sweep-dir", str(root),
            *(["--serial"] if serial else []),
        ]  # fmt: skip
        began = time.monotonic()
        with output.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file)
            _, status, used = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - began
        if os.waitstatus_to_exitcode(status) != 0:
            sys.exit(f"a trial did not end:\n{output.read_text()}")
        runs = [json.loads(path.read_text()) for path in root.glob("[0-9]*/run.json")]
        env_steps = sum(run["figures"]["env_steps"] for run in runs)
        return Sweep(env_steps, wall_s, used.ru_utime + used.ru_stime)


def rows(measured: dict[int, list[Sweep]], trials: int, kind: str) -> list[Row]:
    """Figures of the sweeps by runs at a time, each beside the one of its round."""
    alone = measured.pop(1)
    speed = median(each.env_steps / each.wall_s for each in alone)
    made = [Row(f"{kind}: {trials} trials one after another, steps of all", speed, "/s")]
    for jobs, packed in measured.items():
        pairs = list(zip(packed, alone, strict=True))
        ratio = median(p.env_steps / p.wall_s / (a.env_steps / a.wall_s) for p, a in pairs)
        by_cpu = median(p.env_steps / p.cpu_s / (a.env_steps / a.cpu_s) for p, a in pairs)
        name = f"{kind}: {trials} trials packed, {jobs} at a time"
        made += [
            at_least(name, ratio, "", GOAL, ratio=ratio, peer="one after another"),
            Row(f"{name}, by CPU seconds", by_cpu, "", ratio=by_cpu, peer="one after another"),
        ]
    return made


if __name__ == "__main__":
    main()
