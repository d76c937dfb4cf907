"""Start-up: from the command to the first line and to the first gradient step, and what takes it.

`hpcdi train` with 4 ranks and `hpcdi serial` are started for three algorithms; every process notes
each 5 ms what its main thread does (`start_watch`), until the learner's first update. Beside them
stable-baselines3 from its command to its first gradient step, where it is installed.

    python tools/bench_start.py                  3 starts each, the fastest counts
    python tools/bench_start.py --quick          one start each
    python tools/bench_start.py --show           where each tenth of a second of a start goes
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from figures import Row, at_most, parser, show

ROOT = Path(__file__).parents[1]
WATCH = Path(__file__).parent / "start_watch"
EXPERIMENTS = ("cartpole_dqn", "cartpole_ppo", "pendulum_sac")
FIRST_LINE_S, FIRST_STEP_S = 1.0, 2.5
LONGEST_S = 120.0
SHOWN_S = 0.05
PEERS = {
    "cartpole_dqn": ("DQN", "CartPole-v1", "learning_starts=200"),
    "cartpole_ppo": ("PPO", "CartPole-v1", ""),
    "pendulum_sac": ("SAC", "Pendulum-v1", "learning_starts=200"),
}
PEER = """
import os, stable_baselines3 as sb3
class First(sb3.{name}):
    def train(self, *args, **kwargs):
        print("first step", flush=True)
        os._exit(0)
First("MlpPolicy", "{env}", {options}).learn(100_000)
"""


@dataclass(frozen=True)
class Start:
    """A start, in seconds since the command.

    Attributes:
        first_line_s: until its first line.
        first_step_s: until a learner's first update.
        processes: per process (begin, end, what its main thread did).
    """

    first_line_s: float
    first_step_s: float
    processes: list[list[tuple[float, float, str]]]


def start(command: list[str], folder: Path) -> Start:
    """Start a run, watch it until its first update, and end it."""
    watched = folder / "watched"
    watched.mkdir()
    variables = {
        **os.environ, "HPCDI_START_WATCH": str(watched),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(WATCH), os.environ.get("PYTHONPATH")])),
        "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    began, wall = time.monotonic(), time.time()
    with subprocess.Popen(
        [sys.executable, "-m", "hpcdi", *command, "--run-dir", str(folder / "run")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=variables, text=True, cwd=ROOT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        first_line_s = time.monotonic() - began
        updates: list[float] = []
        while not updates and process.poll() is None and time.monotonic() < began + LONGEST_S:
            time.sleep(0.05)
            updates = [at - wall for at, place in samples(watched) if place == "updates"]
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    if not updates:
        raise SystemExit(f"{' '.join(command)}: no update; it said {line!r}")
    processes = []
    for file in sorted(watched.glob("*.txt")):
        spans = []
        for place, group in groupby(read(file), key=lambda sample: sample[1]):
            times = [at - wall for at, _ in group]
            spans.append((times[0], times[-1], place))
        processes.append(spans)
    return Start(first_line_s, min(updates), processes)


def samples(folder: Path) -> Iterator[tuple[float, str]]:
    """What all processes have noted."""
    for file in folder.glob("*.txt"):
        yield from read(file)


def read(file: Path) -> Iterator[tuple[float, str]]:
    """What a process has noted: the time, the place."""
    for line in file.read_text().splitlines():
        at, _, place = line.partition(" ")
        if place:
            yield float(at), place


def peer_step_s(experiment: str) -> float | None:
    """Seconds until stable-baselines3's first gradient step; None: it is not installed."""
    name, env, options = PEERS[experiment]
    program = PEER.format(name=name, env=env, options=options)
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return time.monotonic() - began if "first step" in done.stdout else None


def tell(made: Start) -> None:
    """Print what each process did, where it took long."""
    for number, spans in enumerate(made.processes):
        sys.stdout.write(f"  process {number}\n")
        for begin, end, place in spans:
            if end - begin >= SHOWN_S and begin < made.first_step_s:
                sys.stdout.write(
                    f"    {begin:6.2f} to {min(end, made.first_step_s):5.2f} s  {place}\n"
                )


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__ or "")
    options.add_argument("--show", action="store_true", help="where the time of one start goes")
    chosen = options.parse_args()
    rows: list[Row] = []
    for experiment in EXPERIMENTS:
        peer = peer_step_s(experiment)
        for mode, *more in (("train", "-n", "4"), ("serial",)):
            starts = []
            for _ in range(1 if chosen.quick or chosen.show else 3):
                with tempfile.TemporaryDirectory() as folder:
                    command = [mode, f"configs/{experiment}.yaml", *more]
                    starts.append(start(command, Path(folder)))
            name, step_s = f"{mode} {experiment}", min(made.first_step_s for made in starts)
            line_s = min(made.first_line_s for made in starts)
            rows.append(at_most(f"{name}: first line", line_s, "s", FIRST_LINE_S))
            rows.append(
                at_most(
                    f"{name}: first gradient step", step_s, "s", FIRST_STEP_S,
                    ratio=None if peer is None else step_s / peer,
                    peer="" if peer is None else f"stable-baselines3's {peer:.2f} s",
                )
            )  # fmt: skip
            if chosen.show:
                show(rows[-2:], chosen.json)
                tell(starts[0])
    if not chosen.show:
        show(rows, chosen.json)


if __name__ == "__main__":
    main()
