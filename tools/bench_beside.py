"""Two runs with pictures beside each other: seconds of an update, and how OpenMP's threads wait.

Each process updates a convolutional network of Atari's size by as many threads as there are cores
(at most 8), as `hpcdi serial` and a learner do: alone, and two of them at once. GNU's OpenMP lets
idle threads spin for milliseconds, on cores that the other process needs; hpcdi lets them sleep
sooner (`hpcdi.utils.backoff.idle_threads_sleep`). Both take turns.

    python tools/bench_beside.py            about a minute
    python tools/bench_beside.py --quick
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

from figures import Row, at_most, parser, show

PROGRAM = """
import os, sys, time
if sys.argv[1] == "hpcdi":
    from hpcdi.utils.backoff import idle_threads_sleep
    with idle_threads_sleep():
        import torch
import torch
from torch import nn
torch.set_num_threads(min(len(os.sched_getaffinity(0)), 8))
network = nn.Sequential(
    nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
    nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
    nn.Linear(512, 6),
)
optimizer = torch.optim.Adam(network.parameters(), fused=True)
pictures = torch.rand(32, 4, 84, 84)
def update():
    optimizer.zero_grad()
    network(pictures).square().mean().backward()
    optimizer.step()
for _ in range(5):
    update()
print("ready", flush=True)
sys.stdin.readline()
began, updates = time.perf_counter(), int(sys.argv[2])
for _ in range(updates):
    update()
print((time.perf_counter() - began) / updates)
"""
WAYS = ("torch", "hpcdi")
SLOWER, SLOWER_BESIDE = 1.2, 3.0
"""How many times as long an update may take alone, beside torch's; and with a second run."""


def main() -> None:
    """Measure, and print."""
    given = parser(__doc__ or "").parse_args()
    rounds, updates = (1, 40) if given.quick else (3, 80)
    taken: dict[tuple[str, int], list[float]] = {(way, n): [] for n in (1, 2) for way in WAYS}
    for _ in range(rounds):
        for (way, processes), seconds in taken.items():
            seconds.append(seconds_of_an_update(way, processes, updates))
    alone, beside = (
        {way: 1e3 * statistics.median(taken[way, processes]) for way in WAYS}
        for processes in (1, 2)
    )
    show(
        [
            Row("an update, alone, torch as it comes", alone["torch"], "ms"),
            at_most(
                "an update, alone, hpcdi", alone["hpcdi"], "ms", SLOWER * alone["torch"],
                ratio=alone["hpcdi"] / alone["torch"], peer="torch",
            ),
            Row("an update, two runs at once, torch as it comes", beside["torch"], "ms"),
            at_most(
                "an update, two runs at once, hpcdi", beside["hpcdi"], "ms",
                SLOWER_BESIDE * alone["torch"],
                ratio=beside["hpcdi"] / beside["torch"], peer="torch",
            ),
        ],
        given.json,
    )  # fmt: skip


def seconds_of_an_update(way: str, processes: int, updates: int) -> float:
    """Mean of so many processes, which update at the same time."""
    user = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, "-c", PROGRAM, way, str(updates)]
    pipe = subprocess.PIPE
    jobs = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, env=user, text=True)
        for _ in range(processes)
    ]
    for job in jobs:
        if job.stdout is None or job.stdout.readline() != "ready\n":
            sys.exit("a process has failed before its first update")
    said = []
    for job in jobs:  # they begin together
        if job.stdin is not None:
            job.stdin.write("\n")
            job.stdin.flush()
    for job in jobs:
        said.append(float(job.communicate()[0]))
    return statistics.mean(said)


if __name__ == "__main__":
    main()
