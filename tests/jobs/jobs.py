"""Harness for whole jobs: real commands in processes of their own, looked at from outside.

Tests wait for states that last (a line in a log, a file, an exit code), never for a process to be
still alive: what is being waited for may happen in a job's last moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes.patience import stretched
from fakes.sockets import listening
from hpcdi.run.local import mpirun_command, rank_environment
from hpcdi.store.inspect import inspect
from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import survey

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent
CONFIGS = ROOT / "configs"
CARTPOLE = CONFIGS / "cartpole_dqn.yaml"
PPO = CONFIGS / "cartpole_ppo.yaml"
HPCDI = [sys.executable, "-m", "hpcdi"]
PYTHONPATH = {"PYTHONPATH": f"{ROOT}{os.pathsep}{TESTS}"}
"""What jobs import: this checkout, and ``fakes``."""

_CLOSED_FIRST = re.compile(
    r"^\[\S+:\d+\] pmix_ptl_base: send_msg: write failed: .*\n", re.MULTILINE
)
"""A line of Open MPI's PMIx, at the end of a job in order: mpirun notifies a rank that has already
closed its connection. Seen once in 150 jobs, with a load of 8."""

_URL = re.compile(r"http://\S+")

QUICK = ("env.stop_value=20", "policy.eval.every=0.5 seconds")
ENDLESS = ("env.stop_value=1e9", "policy.other.commander.max_env_step=1e9")
TWO_LEARNERS = "policy.learn.learner.learner_num=2"
ONE_COLLECTOR = "policy.collect.collector.collector_num=1"
FAULTS_ALLOWED = {"HPCDI_ALLOW_FAULTS": "1"}


def typed_mpirun(ranks: int) -> dict[str, Any]:
    """How to start ranks by an mpirun that the user has typed."""
    variables = {k: v for k, v in rank_environment({}).items() if not k.startswith("HPCDI")}
    return {"command": [*mpirun_command(ranks), *HPCDI], "variables": variables}


def max_train_iter(iterations: int) -> str:
    """The setting that ends a run after so many train iterations."""
    return f"policy.other.commander.max_train_iter={iterations}"


@contextlib.contextmanager
def tensorboard(folder: Path) -> Iterator[str]:
    """A real TensorBoard that shows a folder; yields its URL."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder)]
    command += ["--port", "0", "--reload_interval", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            yield next(match[0] for line in server.stderr if (match := _URL.search(line)))
        finally:
            server.kill()


@dataclass(frozen=True)
class Ended:
    """A job that has ended."""

    code: int
    out: str
    err: str
    run_dir: Path

    @property
    def said(self) -> str:
        """Everything it has printed."""
        return self.out + self.err

    @property
    def run(self) -> dict[str, Any]:
        """What run.json says."""
        return dict(json.loads((self.run_dir / "run.json").read_text()))

    def check(self, code: int, state: str) -> None:
        """See how it ended, and that what it left is whole."""
        assert self.code == code, self.said
        assert (self.run["state"], self.run["exit_code"]) == (state, code)
        self.check_files()

    def check_files(self, damaged: int = 0) -> None:
        """See that every file is whole (but so many), and that no unfinished one is left."""
        report = inspect(self.run_dir)
        assert len(report.errors) == damaged, report.errors
        assert not [path for path in self.run_dir.rglob(".*") if ".tmp-" in path.name]


@dataclass(frozen=True)
class Finished:
    """A run that has solved its task, and what ``hpcdi tail --follow`` showed beside it."""

    ended: Ended
    tail: subprocess.CompletedProcess[str]

    @property
    def run_dir(self) -> Path:
        """Its folder; no test changes anything in it."""
        return self.ended.run_dir

    @property
    def run(self) -> dict[str, Any]:
        """What run.json says."""
        return self.ended.run

    def stamps(self) -> dict[Path, int]:
        """When each of its files was last written."""
        return {path: path.stat().st_mtime_ns for path in self.run_dir.rglob("*")}


class Running:
    """A job that may still run; its output goes to files, so that it never blocks."""

    def __init__(
        self, command: list[str], run_dir: Path, variables: dict[str, str], part: int = 0
    ) -> None:
        self.run_dir = run_dir
        self._out, self._err = (run_dir.with_suffix(f".{part}.{end}") for end in ("out", "err"))
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=err, process_group=0,
                env={**os.environ, **PYTHONPATH, **variables},
            )  # fmt: skip

    def wait(self) -> Ended:
        """Wait for its end; a job that hangs is killed and fails the test."""
        try:
            until(lambda: self.process.poll() is not None, "the job did not end", self.read)
        except AssertionError:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise
        return Ended(self.process.returncode, _text(self._out), _text(self._err), self.run_dir)

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds; it must be something that goes on holding."""

        def is_so() -> bool:
            has_ended = self.process.poll() is not None
            if holds():
                return True
            assert not has_ended, f"the job ended before that:\n{self.read()}"
            return False

        until(is_so, "it did not come to that", self.read)

    def until_learning(self) -> None:
        """Wait until batches have been learnt from: data are on disk, then, too."""
        log = self.run_dir / "log" / "rank00001.jsonl"
        self.until(lambda: log.exists() and '"scalars"' in log.read_text())

    def until_said(self, words: str) -> None:
        """Wait until it has printed something."""
        self.until(lambda: words in self.read())

    def read(self) -> str:
        """Everything it has printed so far."""
        return _text(self._out) + _text(self._err)

    def send_signal(self, number: int) -> None:
        """Send a signal to the process that the user started."""
        self.process.send_signal(number)

    def pid_of(self, rank: int) -> int:
        """Process of a rank of a run that has begun."""
        placement = json.loads((self.run_dir / "run.json").read_text())["placement"]
        return int(placement[rank]["pid"])

    def kill_rank(self, rank: int) -> None:
        """Kill one rank, as the kernel does where memory is short."""
        os.kill(self.pid_of(rank), signal.SIGKILL)

    def check_doors(self) -> None:
        """See that all its processes listen on loopback alone; wait for mpirun's own sockets."""
        self.until(lambda: not self._doors())
        assert listening(*_processes(self.run_dir)), "it has sockets"

    def _doors(self) -> list[tuple[str, int]]:
        """Sockets that other hosts can reach."""
        of_all = listening(*_processes(self.run_dir))
        return [door for door in of_all if not door[0].endswith(("%lo", "::1", "127.0.0.1"))]

    def kill_everything(self) -> None:
        """Kill all processes at once, as a node that loses its power."""
        for pid in reversed(_processes(self.run_dir)):  # ranks before mpirun warns them
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        wait_until_gone(self.run_dir)


def hpcdi(*arguments: object, variables: dict[str, str] | None = None) -> Ended:
    """Run a command to its end; its ``run_dir`` is none."""
    done = subprocess.run(
        [*HPCDI, *map(str, arguments)], capture_output=True, text=True, timeout=stretched(),
        env={**os.environ, **PYTHONPATH, **(variables or {})}, check=False,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr, Path(os.devnull))


def wait_until_gone(run_dir: Path) -> None:
    """Wait until no process names a run folder in its command line any more."""
    until(lambda: not _processes(run_dir), "processes are left over", lambda: _processes(run_dir))


def until(holds: Callable[[], bool], failure: str, shown: Callable[[], object] = str) -> None:
    """Wait until something holds, but no longer than a job that hangs."""
    began = time.monotonic()
    while not holds():
        waited_s = time.monotonic() - began
        assert waited_s < stretched(), f"{failure} within {waited_s:.0f} s:\n{shown()}"
        time.sleep(0.05)


def _processes(run_dir: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(run_dir) in line:
                found.append(int(entry.name))
    return sorted(found)


def logged(run_dir: Path, rank: int, words: str) -> list[dict[str, Any]]:
    """Lines of a rank's log that hold some words."""
    path = run_dir / "log" / f"rank{rank:05d}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if words in line]


def transitions(run_dir: Path) -> int:
    """How many lie in all shards of a run."""
    shards = (run_dir / "data").rglob("*.h5")
    return sum(b.transitions for path in shards for _, b in survey(path, path.name).blocks)


def block_counts(run_dir: Path) -> dict[str, int]:
    """Number of blocks of each collector."""
    shards = RunLayout(run_dir).shard_numbers()
    counts = Counter[str]()
    for path, (rank, _) in shards.items():
        counts[f"rank{rank:05d}"] += len(survey(run_dir / path, path).blocks)
    return dict(counts)


def _text(path: Path) -> str:
    # mpirun's own messages carry NUL bytes
    text = path.read_bytes().replace(b"\0", b"").decode(errors="replace")
    return _CLOSED_FIRST.sub("", text)
