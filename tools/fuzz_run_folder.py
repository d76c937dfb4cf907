"""Damages a run folder in many ways, and sees what the commands that read it make of that.

A short run is made once, in two starts. Each trial copies its folder, damages one of its files (a
flipped bit, a cut, bytes appended, another file in its place, the file as it was at the end of the
first start, a link to itself or out of the folder, a pipe, a folder), and has `inspect`, `status`,
`tail`, `eval` and `train --resume` read it, in processes of their own. Counted are hangs,
tracebacks, and damage that `inspect` does not name to a file that others depend on: shards,
policies, snapshots, checkpoints, config.yaml, run.json. Fails (exit code 1) if there are any.

    python tools/fuzz_run_folder.py                    300 trials, some 50 minutes
    python tools/fuzz_run_folder.py --trials 30 --seed 7 --train-every 5
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from statistics import median as median_of

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: a child of a process with threads may hang

import h5py
import numpy as np

from hpcdi import cli
from hpcdi.commands import eval as _eval
from hpcdi.commands import inspect, status, tail
from hpcdi.run import serial

PRELOADED = (_eval, inspect, status, tail, serial)
CONFIG = Path(__file__).parent.parent / "configs" / "cartpole_dqn.yaml"
SETTINGS = (
    "env.stop_value=1e9", "policy.other.commander.max_train_iter=200",
    "policy.learn.replay_ratio=8", "policy.eval.every=150 iterations", "system.snapshot_s=1",
    "policy.learn.learner.hook={save_ckpt_after_iter: 100}", "env.evaluator_env_num=2",
)  # fmt: skip
LIMIT_S = 400.0
"""Of a command: thirty times the CPU time of the slowest, 13 s of `train` (see the last lines)."""
COVERED = ("data/", "policies/", "snapshots/", "checkpoints", "config.yaml", "run.json")
"""What is read again; logs, curves and status.json are only shown."""
_EARLIER = "earlier"
"""Folder beside the run: the run as it was at the end of its first start."""


def flip(file: Path, dice: random.Random, _others: list[Path]) -> None:
    """One bit is another."""
    content = bytearray(file.read_bytes())
    if content:
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    file.write_bytes(content)


def cut(file: Path, dice: random.Random, _others: list[Path]) -> None:
    """The end is missing."""
    os.truncate(file, dice.randrange(max(file.stat().st_size, 1)))


def append(file: Path, dice: random.Random, _others: list[Path]) -> None:
    """There is more than was written."""
    with file.open("ab") as stream:
        stream.write(dice.randbytes(dice.choice((1, 1000))))


def swap(file: Path, dice: random.Random, others: list[Path]) -> None:
    """Another file is in its place, of its kind where there is one."""
    others = [other for other in others if other != file]
    alike = [other for other in others if other.suffix == file.suffix]
    other = dice.choice(alike or others)
    content = file.read_bytes()
    shutil.copyfile(other, file)
    other.write_bytes(content)


def link_to_itself(file: Path, _dice: random.Random, _others: list[Path]) -> None:
    """It is a link to itself."""
    file.unlink()
    file.symlink_to(file.name)


def link_away(file: Path, dice: random.Random, _others: list[Path]) -> None:
    """It is a link to something endless, or to a file of somebody else's."""
    file.unlink()
    file.symlink_to(dice.choice(("/dev/zero", "/etc/passwd", "/dev/tty", "/nowhere")))


def pipe(file: Path, _dice: random.Random, _others: list[Path]) -> None:
    """It is a pipe that nobody writes to."""
    file.unlink()
    os.mkfifo(file)


def folder(file: Path, _dice: random.Random, _others: list[Path]) -> None:
    """It is a folder."""
    file.unlink()
    file.mkdir()


def no_folder(file: Path, _dice: random.Random, _others: list[Path]) -> None:
    """The folder that it lies in is a file."""
    above = file.parent
    shutil.rmtree(above)
    above.write_bytes(b"no folder\n")


def zeros(file: Path, dice: random.Random, _others: list[Path]) -> None:
    """A page of it was never written."""
    with file.open("r+b") as stream:
        stream.seek(4096 * dice.randrange(max(file.stat().st_size // 4096, 1)))
        stream.write(bytes(min(4096, file.stat().st_size)))


def old_copy(file: Path, _dice: random.Random, _others: list[Path]) -> None:
    """It is as it was at the end of the run's first start."""
    root = next(folder for folder in file.parents if folder.name.startswith("trial"))
    shutil.copyfile(root.parent / _EARLIER / file.relative_to(root), file)


DAMAGES: tuple[Callable[[Path, random.Random, list[Path]], None], ...] = (
    flip, flip, flip, cut, append, swap, old_copy, old_copy,
    link_to_itself, link_away, pipe, folder, no_folder, zeros,
)  # fmt: skip


@dataclass(frozen=True)
class Took:
    """What a command took."""

    wall_s: float
    cpu_s: float
    """Of all its processes: what does not depend on how busy the machine is."""


TOOK = defaultdict[str, list[Took]](list)
"""By command: what each has taken."""


def run(*words: str) -> tuple[int | None, str]:
    """Run a command in a child of this process, which has imported what it needs.

    Returns its exit code (None: it hung, and was killed), and all that it printed.
    """
    began = time.monotonic()
    with tempfile.TemporaryFile() as out:
        child = os.fork()
        if child == 0:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            code = 99
            try:
                code = cli.main(words)
            except SystemExit as end:
                code = int(end.code or 0)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        status, used = None, os.times()
        while status is None and time.monotonic() < began + LIMIT_S:
            pid, state = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(state) if pid else None
            time.sleep(0.01)
        if status is None:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
        cpu_s = sum(os.times()[2:4]) - sum(used[2:4])  # of children that have ended
        TOOK[words[0]].append(Took(time.monotonic() - began, cpu_s))
        out.seek(0)
        return status, out.read().decode(errors="replace")


def holds_the_same(one: Path, other: Path) -> bool:
    """Returns whether two shards hold the same: what has changed is space that is not used yet."""
    if one.is_symlink() or not one.is_file():
        return False
    try:
        with h5py.File(one, "r", locking=False) as left, h5py.File(other, "r") as right:
            names: list[str] = []
            right.visit(names.append)
            return all(
                np.array_equal(left[name][...], right[name][...], equal_nan=False)
                for name in names
                if isinstance(right[name], h5py.Dataset)
            )
    except (OSError, LookupError, TypeError, ValueError, RuntimeError):
        return False


def _differs(file: Path, earlier: Path) -> bool:
    return earlier.is_file() and earlier.read_bytes() != file.read_bytes()


def try_once(sound: Path, trial: Path, dice: random.Random, *, trains: bool) -> tuple[str, str]:
    """Damage a copy and read it; returns what was done, and what is wrong (empty: nothing)."""
    shutil.copytree(sound, trial, symlinks=True)
    files = sorted(
        path for path in trial.rglob("*")
        if path.is_file() and not path.is_symlink() and path.parent != trial / "tb"
    )  # fmt: skip
    covered = [f for f in files if str(f.relative_to(trial)).startswith(COVERED)]
    file = dice.choice(covered if dice.random() < 0.7 else files)
    damage = dice.choice(DAMAGES)
    if damage is no_folder and file.parent == trial:
        damage = cut
    if damage is old_copy:
        earlier = sound.with_name(_EARLIER)
        changed = [f for f in covered if _differs(f, earlier / f.relative_to(trial))]
        file = dice.choice(changed)
    name = str(file.relative_to(trial))
    before = file.read_bytes()
    damage(file, dice, files)
    about = f"{damage.__name__} {name}"
    if file.is_file() and not file.is_symlink() and file.read_bytes() == before:
        return f"{about} (unchanged)", ""
    here = str(trial)
    commands = [
        ("inspect", here), ("status", here), ("tail", here),
        ("eval", here, "--episodes", "1"),
        ("train", "--resume", here, "-n", "3") if trains else ("serial", "--resume", here),
    ]  # fmt: skip
    wrong, codes = [], []
    for words in commands:
        code, said = run(*words)
        codes.append(code)
        if code is None:
            wrong.append(f"{words[0]} HANGS")
        elif "Traceback (most recent call last)" in said and words[0] != "tail":
            wrong.append(f"{words[0]} shows a traceback: {said.strip().splitlines()[-1][:200]}")
    is_accepted = name.startswith(COVERED) and codes[0] == 0
    if is_accepted and not (file.suffix == ".h5" and holds_the_same(file, sound / name)):
        wrong.append("inspect accepts it")
    return f"{about}; exit codes {codes}", "; ".join(wrong)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    by = "resume by hpcdi train in one of N trials, else by hpcdi serial"
    parser.add_argument("--train-every", type=int, default=1, metavar="N", help=by)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so long")
    given = parser.parse_args()
    base, began = Path(tempfile.mkdtemp(prefix="hpcdi-fuzz-")), time.monotonic()
    sound, longer = str(base / "sound"), "policy.other.commander.max_train_iter=400"
    code, said = run("serial", str(CONFIG), "--run-dir", sound, *SETTINGS)
    shutil.copytree(sound, base / _EARLIER, symlinks=True)
    if code == 0:
        code, said = run("serial", "--resume", sound, longer)
    if code != 0 or run("inspect", sound)[0] != 0:
        sys.stderr.write(said)
        return 1
    results, done = Counter[bool](), 0
    for number in range(given.trials):
        if time.monotonic() - began > given.seconds:
            break
        dice, trial = random.Random(f"{given.seed}-{number}"), base / f"trial{number}"
        about, wrong = try_once(base / "sound", trial, dice, trains=number % given.train_every == 0)
        done += 1
        results[bool(wrong)] += 1
        if wrong:
            sys.stdout.write(f"trial {number}: {about}: {wrong}\n")
            sys.stdout.flush()
        else:
            shutil.rmtree(trial, ignore_errors=True)
    for command, took in TOOK.items():
        slowest, median = max(took, key=attrgetter("wall_s")), median_of(t.cpu_s for t in took)
        most = max(t.cpu_s for t in took)
        sys.stdout.write(
            f"{command:<8} {len(took):4} times: the slowest {slowest.wall_s:.1f} s, of which "
            f"{slowest.cpu_s:.1f} s CPU; CPU at most {most:.1f} s, median {median:.1f} s\n"
        )
    sys.stdout.write(f"{done} trials, {results[True]} with something wrong ({base})\n")
    return int(results[True] > 0)


if __name__ == "__main__":
    sys.exit(main())
