"""Going on: a run that is killed many times in a row, and one with a replay buffer of 1e6 rows.

In a row: one run over five ranks loses all its processes at a random moment, is resumed, and again;
at last it is left alone until it is solved. Nothing that was published may be lost, no temporary
file and no lock may be left, and rank 0 must have counted the environment steps that lie in shards,
to the unit.
Deterministic: the same, and at last counters and weights must be those, to the bit, of a run that
was never killed.
Large: the learner's stall while a snapshot is taken of a buffer with 1e6 items, and the seconds
from the command to the first new train iteration, for a fresh start and for a resumed run.

    python tools/bench_resume.py                 20 kills, twice, and 1e6 rows: some 25 minutes
    python tools/bench_resume.py --quick         3 kills and 5e4 rows
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench_faults import Trial
from figures import Row, at_most, parsed, show
from safetensors.numpy import load_file

from hpcdi.run.resume import newest_snapshot
from hpcdi.store.inspect import inspect
from hpcdi.store.layout import RunLayout

STOP_VALUE = 195
ENDLESS = "policy.other.commander.max_train_iter=1e9"
SAME = (
    "system.deterministic=true", "system.snapshot_rounds=2", "policy.learn.update_per_collect=40",
    "policy.eval.every=400 iterations", "policy.model.encoder_hidden_size_list=[16]",
)  # fmt: skip
COUNTERS = ("env_steps", "train_iter", "episodes")
STALL_S, LATER_S = 0.1, 10.0


def kills_in_a_row(folder: Path, kills: int) -> list[Row]:
    """Kill a run, resume it, and again; then let it be solved."""
    trial = Trial(folder, [ENDLESS], random.Random(0))
    published = kill_again_and_again(trial, kills)
    trial.start("--resume", str(trial.run), f"env.stop_value={STOP_VALUE}", ENDLESS)
    trial.wait()
    run = json.loads((trial.run / "run.json").read_text())
    left = [p for p in trial.run.rglob(".*") if ".tmp-" in p.name]
    left += list(trial.run.glob("run.lock"))
    return [
        at_most(f"{kills} kills in a row: exit code at last", trial.process.returncode, "", 0,
                peer=f"{run['reason']}; restarts {run['restarts']}"),
        at_most("published blocks lost", len(published - trial.blocks().keys()), "blocks", 0),
        at_most("damaged files", len(inspect(trial.run).errors), "files", 0),
        at_most("temporary files and locks left", len(left), "files", 0),
        at_most("env steps counted more or less than lie in shards", trial.steps_off(), "steps",
                0, peer=f"{run['figures']['env_steps']} counted"),
        at_most("times that a restart hung", int(trial.hung), "times", 0),
    ]  # fmt: skip


def kill_again_and_again(trial: Trial, kills: int) -> set[str]:
    """Kill all processes of a run at random moments, resuming it in between; gives its blocks."""
    published: set[str] = set()
    for number in range(kills):
        if number:
            trial.start("--resume", str(trial.run), ENDLESS)
        trial.wait(iterates_beyond(trial, int(trial.status().get("train_iter", 0))))
        moment = time.monotonic() + trial.dice.uniform(0.0, 4.0)
        trial.wait(lambda until=moment: time.monotonic() >= until)  # type: ignore[misc]
        trial.wait(lambda: bool(list((trial.run / "snapshots").glob("snapshot_*"))))
        published |= trial.blocks().keys()
        trial.kill_all()
    return published


def repeated(folder: Path, kills: int) -> list[Row]:
    """The same of a deterministic run, and one that nobody disturbs."""
    killed = Trial(folder / "killed", [*SAME, ENDLESS], random.Random(1))
    kill_again_and_again(killed, kills)
    done = int(newest_snapshot(RunLayout(killed.run)).facts["train_iter"])
    limit = f"policy.other.commander.max_train_iter={done + 300}"
    killed.start("--resume", str(killed.run), limit)
    killed.wait()
    whole = Trial(folder / "whole", [*SAME, limit], random.Random(1))
    whole.wait()
    ends = [json.loads((trial.run / "run.json").read_text()) for trial in (killed, whole)]
    one, other = ({name: end["figures"][name] for name in COUNTERS} for end in ends)
    told = f"{one} and {other}; restarts {ends[0]['restarts']}"
    differing = sum(one[name] != other[name] for name in COUNTERS)
    return [
        at_most(f"{kills} kills in a row, deterministic: exit codes",
                killed.process.returncode + whole.process.returncode, "", 0),
        at_most("counters that differ from an undisturbed run's", differing, "counters", 0,
                peer=told),
        at_most("weights that differ, to the bit", int(weights(killed) != weights(whole)), "", 0),
    ]  # fmt: skip


def weights(trial: Trial) -> dict[str, bytes]:
    """Of the last policy."""
    file = trial.run / "checkpoints" / "ckpt_final" / "policy.safetensors"
    return {name: tensor.tobytes() for name, tensor in load_file(file).items()}


def iterates_beyond(trial: Trial, begun: int) -> Callable[[], bool]:
    """Whether the run has learnt more than it had."""
    started = time.time()

    def is_beyond() -> bool:
        status = trial.status()
        is_new = float(status.get("started_at", 0)) >= started - 1.0
        return is_new and int(status.get("train_iter", 0)) > begun

    return is_beyond


def large(folder: Path, rows: int) -> list[Row]:
    """A run whose buffer is filled with so many items, killed and resumed."""
    settings = [
        f"policy.other.replay_buffer.replay_buffer_size={rows}", "system.snapshot_s=5",
        "policy.other.commander.max_train_iter=1e9", "system.survival.worker_timeout_s=600",
        "policy.learn.learner.learner_num=1", "-n", "4",
    ]  # fmt: skip
    began = time.monotonic()
    trial = Trial(folder, settings, random.Random(0))
    trial.wait(iterates_beyond(trial, 0))
    fresh_s = time.monotonic() - began
    trial.wait(lambda: int(trial.status()["buffer"]["held"]) >= rows)
    full, before = time.time(), len(snapshots(trial))
    trial.wait(lambda: len(snapshots(trial)) >= before + 3)
    stalls = [said["stall_s"] for when, said in snapshots(trial) if when > full]
    sizes = [said["bytes"] for when, said in snapshots(trial) if when > full]
    trial.kill_all()
    done = int(newest_snapshot(RunLayout(trial.run)).facts["train_iter"])
    began = time.monotonic()
    trial.start("--resume", str(trial.run))
    trial.wait(iterates_beyond(trial, done))
    resumed_s = time.monotonic() - began
    trial.kill_all()
    return [
        at_most(f"{rows} rows: the learner's stall for a snapshot", max(stalls), "s", STALL_S,
                peer=f"{len(stalls)} snapshots of {max(sizes) / 1e6:.0f} MB"),
        at_most("command to the first iteration, resumed after fresh", resumed_s - fresh_s, "s",
                LATER_S, peer=f"fresh {fresh_s:.1f} s, resumed {resumed_s:.1f} s at {done}"),
    ]  # fmt: skip


def snapshots(trial: Trial) -> list[tuple[float, dict[str, float]]]:
    """When each snapshot was whole, and what rank 0 says of it."""
    lines = (trial.run / "log" / "rank00000.jsonl").read_text().splitlines()
    said = [json.loads(line) for line in lines if '"snapshot"' in line]
    return [(line["time"], line["snapshot"]) for line in said if "snapshot" in line]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--only", choices=("kills", "repeated", "large"))
    parser.add_argument("--quick", action="store_true", help="3 kills, 5e4 rows")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    given = parsed(parser, kills=3, rows=50_000)
    with tempfile.TemporaryDirectory() as folder:
        for name, part in (
            ("kills", partial(kills_in_a_row, kills=given.kills)),
            ("repeated", partial(repeated, kills=given.kills)),
            ("large", partial(large, rows=given.rows)),
        ):
            if given.only in (None, name):
                show(part(Path(folder) / name), given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
