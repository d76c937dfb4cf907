"""A long run: does any rank grow, and how many files does it leave?

One real `mpirun -n 5` (rank 0, two learners, two collectors) that nobody disturbs. Resident memory,
open files and threads of each rank are sampled; the first fifth of the time is for warming up, the
last fifth is compared with the fifth after the first.

    python tools/bench_soak.py --minutes 30
    python tools/bench_soak.py --quick               half a minute: shows that the tool works
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench_faults import RANKS, Trial
from figures import Row, at_most, parsed, parser, show

DRIFT, FILES = 0.02, 200
SAMPLES = 100
ENDLESS = (
    "policy.other.commander.max_train_iter=1e9", "system.snapshot_s=20",
    "system.survival.worker_timeout_s=900",
)  # fmt: skip

Sample = tuple[int, int, int]
"""Resident bytes, open files, threads."""


def sample(pid: int) -> Sample:
    """What a process takes now."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    opened = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return 1024 * int(status["VmRSS"].split()[0]), opened, int(status["Threads"])


def soak(folder: Path, minutes: float) -> list[Row]:
    """Let a run go on for so long; sample each rank all the while."""
    trial = Trial(folder, ENDLESS, random.Random(0), patience_s=300.0)
    trial.wait(lambda: int(trial.status().get("train_iter", 0)) > 0)
    began = time.monotonic()
    taken: list[list[Sample]] = [[] for _ in trial.pids()]
    for number in range(1, SAMPLES + 1):
        due = began + number * 60 * minutes / SAMPLES
        trial.wait(lambda due=due: time.monotonic() >= due)  # type: ignore[misc]
        with contextlib.suppress(OSError):  # the run has ended: told below
            for samples, pid in zip(taken, trial.pids(), strict=True):
                samples.append(sample(pid))
    is_on = trial.process.poll() is None
    if not is_on:
        sys.stderr.write(f"exit code {trial.process.returncode}{' (hung)' * trial.hung}\n")
        sys.stderr.write(trial.printed.read_text()[-4000:])
    if not taken[0]:
        raise SystemExit("the run has ended, or hung, before it learnt anything")
    took_s, shards = time.monotonic() - began, list((trial.run / "data").rglob("*.h5"))
    trial.kill_all()
    rows = [at_most("runs that ended, or hung, before the time was over", int(not is_on), "", 0)]
    for role in ("coordinator", "learner", "collector"):
        for rank in RANKS[role]:
            rows += rows_of(f"rank {rank} ({role})", taken[rank])
    for rank in RANKS["collector"]:
        own = [path.stat() for path in shards if f"rank{rank:05d}" in path.parts]
        size = sum(512 * stat.st_blocks for stat in own)
        count = len(own)
        rows.append(
            at_most(f"rank {rank}: files of 30 minutes", count * 1800 / took_s, "files", FILES,
                    peer=f"{count} of {size / max(count, 1) / 1e6:.2f} MB in {took_s:.0f} s")
        )  # fmt: skip
    return rows


def rows_of(who: str, samples: list[Sample]) -> list[Row]:
    """Memory that drifts, files and threads that come and do not go."""
    fifth = max(1, len(samples) // 5)
    first, last = samples[fifth : 2 * fifth], samples[-fifth:]
    rss = median(s[0] for s in first), median(s[0] for s in last)
    # a file that is open for a moment is none that stays
    files, threads = ((min(s[k] for s in first), min(s[k] for s in last)) for k in (1, 2))
    drift = rss[1] / rss[0] - 1
    flat = "flat" if abs(drift) <= DRIFT else "not flat"
    return [
        at_most(f"{who}: resident memory drifts by", 100 * abs(drift), "%", 100 * DRIFT,
                peer=f"{flat}: {rss[0] / 1e6:.1f} MB, at last {rss[1] / 1e6:.1f} MB"),
        at_most(f"{who}: more open files", files[1] - files[0], "files", 0,
                peer=f"{files[0]:.0f} at first"),
        at_most(f"{who}: more threads", threads[1] - threads[0], "threads", 0,
                peer=f"{threads[0]:.0f} at first"),
    ]  # fmt: skip


def main() -> int:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--minutes", type=float, default=30.0)
    given = parsed(made, minutes=0.5)
    with tempfile.TemporaryDirectory() as folder:
        show(soak(Path(folder), given.minutes), given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
