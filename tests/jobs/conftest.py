"""Starting jobs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import Running, processes_of


@pytest.fixture
def started() -> Iterator[list[Running]]:
    """Takes jobs; sees that they are over, and that nothing of them runs on."""
    jobs: list[Running] = []
    yield jobs
    for job in jobs:
        if job.process.poll() is None:
            os.killpg(job.process.pid, signal.SIGKILL)
            job.process.wait()
    for job in jobs:
        assert not processes_of(job.run_dir), "processes are left over"


@pytest.fixture
def start(tmp_path: Path, started: list[Running]) -> Callable[..., Running]:
    """Starts ``hpcdi train`` (or another command) with a run folder of its own."""

    def begin(
        config: str | Path,
        *overrides: str,
        command: list[str] | None = None,
        variables: dict[str, str] | None = None,
        run_dir: Path | None = None,
    ) -> Running:
        run_dir = run_dir or tmp_path / f"run{len(started)}"
        line = [
            *(command or [sys.executable, "-m", "hpcdi"]), "train", str(config), *overrides,
            "--run-dir", str(run_dir),
        ]  # fmt: skip
        started.append(Running(line, run_dir, variables or {}))
        return started[-1]

    return begin


@pytest.fixture
def resume(started: list[Running]) -> Callable[..., Running]:
    """Goes on with the run of a folder by ``hpcdi train --resume``."""

    def begin(run_dir: Path, *arguments: str) -> Running:
        line = [sys.executable, "-m", "hpcdi", "train", "--resume", str(run_dir), *arguments]
        started.append(Running(line, run_dir, {}, part=len(started)))
        return started[-1]

    return begin
