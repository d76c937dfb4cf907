"""Starting jobs; one finished run for all tests that only read its folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import CARTPOLE, HPCDI, PYTHONPATH, Finished, Running, wait_until_gone

from fakes.patience import stretched


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
        wait_until_gone(job.run_dir)


@pytest.fixture
def start(tmp_path: Path, started: list[Running]) -> Callable[..., Running]:
    """Starts ``hpcdi train`` (or another command) with a run folder of its own."""

    def begin(
        config: str | Path,
        *arguments: str,
        command: list[str] | None = None,
        verb: str = "train",
        variables: dict[str, str] | None = None,
        run_dir: Path | None = None,
    ) -> Running:
        run_dir = run_dir or tmp_path / f"run{len(started)}"
        line = [
            *(command or HPCDI), verb, str(config), *arguments, "--run-dir", str(run_dir),
        ]  # fmt: skip
        started.append(Running(line, run_dir, variables or {}, part=len(started)))
        return started[-1]

    return begin


@pytest.fixture
def resume(started: list[Running]) -> Callable[..., Running]:
    """Goes on with the run of a folder by ``hpcdi train --resume``."""

    def begin(
        run_dir: Path,
        *arguments: str,
        command: list[str] | None = None,
        verb: str = "train",
        variables: dict[str, str] | None = None,
    ) -> Running:
        line = [*(command or HPCDI), verb, "--resume", str(run_dir), *arguments]
        started.append(Running(line, run_dir, variables or {}, part=len(started)))
        return started[-1]

    return begin


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run of `configs/cartpole_dqn.yaml` with prioritized replay, from its start to its end."""
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    job = Running(
        [*HPCDI, "train", str(CARTPOLE), "env.stop_value=60", "policy.priority=true",
         "policy.priority_IS_weight=true", "--run-dir", str(run_dir)],
        run_dir, {},
    )  # fmt: skip
    try:
        job.until(lambda: (run_dir / "run.json").exists() and _reads(run_dir / "run.json"))
        tail = subprocess.run(
            [*HPCDI, "tail", str(run_dir), "-f", "--json"], capture_output=True, text=True,
            timeout=stretched(), env={**os.environ, **PYTHONPATH}, check=False,
        )  # fmt: skip
        ended = job.wait()
    finally:
        if job.process.poll() is None:
            os.killpg(job.process.pid, signal.SIGKILL)
            job.process.wait()
    wait_until_gone(run_dir)
    return Finished(ended, tail)


def _reads(path: Path) -> bool:
    """Whether a JSON file holds something; one that is just being claimed is empty."""
    text = path.read_text()
    return bool(text) and bool(json.loads(text))
