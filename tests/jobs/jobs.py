"""Whole jobs: real mpirun, started as a user starts it, and looked at."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
CARTPOLE = HERE.parent.parent / "configs" / "cartpole_dqn.yaml"
LIMIT_S = 90.0
QUICK = ("env.stop_value=20", "policy.other.commander.eval_interval=0.5")
NOBODY_MAY_DIE = (
    "system.survival.on_collector_death=abort",
    "system.survival.on_learner_death=abort",
)
"""A run without ULFM, as with other MPI libraries."""


@dataclass
class Ended:
    """A job that has ended."""

    code: int
    out: str
    err: str
    run_dir: Path

    @property
    def run(self) -> dict[str, Any]:
        """What run.json says."""
        return dict(json.loads((self.run_dir / "run.json").read_text()))


class Running:
    """A job that may still run; its output goes to files, so that it never blocks."""

    def __init__(
        self, command: list[str], run_dir: Path, variables: dict[str, str], part: int = 0
    ) -> None:
        self.run_dir = run_dir
        self._out, self._err = (run_dir.with_suffix(f".{part}.{end}") for end in ("out", "err"))
        environment = {**os.environ, "PYTHONPATH": str(HERE), **variables}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=err, env=environment, process_group=0
            )

    def wait(self, limit_s: float = LIMIT_S) -> Ended:
        """Wait for its end; a job that hangs is killed and fails the test."""
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            pytest.fail(f"the job did not end within {limit_s} s:\n{self.read()}")
        return Ended(code, self._text(self._out), self._text(self._err), self.run_dir)

    def until(self, is_so: Callable[[], bool], limit_s: float = 40.0) -> None:
        """Wait until something holds while the job runs."""
        deadline = time.monotonic() + limit_s
        while not is_so():
            assert self.process.poll() is None, f"the job has ended:\n{self.read()}"
            assert time.monotonic() < deadline, f"it did not come to that:\n{self.read()}"
            time.sleep(0.05)

    def read(self) -> str:
        """Everything it has printed."""
        return self._text(self._out) + self._text(self._err)

    @staticmethod
    def _text(path: Path) -> str:
        # mpirun's own messages carry NUL bytes
        return path.read_bytes().replace(b"\0", b"").decode(errors="replace")


def is_learning(job: Running) -> bool:
    """Whether batches are being learnt from, and some data are on disk."""
    log = job.run_dir / "log" / "rank00001.jsonl"
    return log.exists() and '"scalars"' in log.read_text()


def processes_now(run_dir: Path) -> list[int]:
    """Processes whose command line names a run folder, the oldest first."""
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


def processes_of(run_dir: Path) -> list[int]:
    """Those that stay; the kernel may need a moment."""
    for _ in range(40):
        found = processes_now(run_dir)
        if not found:
            return []
        time.sleep(0.05)
    return found


def kill(job: Running) -> None:
    """All of it at once, as a node that loses its power."""
    for pid in reversed(processes_now(job.run_dir)):  # ranks before mpirun warns them
        os.kill(pid, signal.SIGKILL)
    job.process.wait()
    assert not processes_of(job.run_dir)


def temporary_files(run_dir: Path) -> list[Path]:
    """What an unfinished write would have left."""
    return [path for path in run_dir.rglob(".*") if ".tmp-" in path.name]
