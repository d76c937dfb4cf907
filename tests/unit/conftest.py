"""Fixtures that several test modules use."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def env_helpers() -> Iterator[None]:
    """Python's helpers of child processes begin and end outside of the tests, which see leaks.

    Children import the module of the environment: torch must not be among what that imports.
    """
    resource_tracker.ensure_running()
    multiprocessing.get_context("forkserver").set_forkserver_preload(["hpcdi.env.gymnasium"])
    forkserver.ensure_running()
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


@pytest.fixture
def same_process_state() -> Iterator[None]:
    """Restores what a serial run changes in its process: signal handlers and torch's threads."""
    import torch

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the folder of a run in `fakes.serial_runs.RUNS`, made once; not to be written to."""
    from fakes.serial_runs import ROOT, RUNS, serial

    folder, made = tmp_path_factory.mktemp("runs"), set()

    def run(name: str) -> Path:
        if name not in made:
            made.add(name)
            config, overrides = RUNS[name]
            path = str(ROOT / "configs" / f"{config}.yaml")
            assert serial(path, overrides, str(folder / name)) == 0
        return folder / name

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that fails; returns its message, which is not a traceback."""

    def run(command: str, path: Path, *arguments: str, code: int = 2) -> str:
        from hpcdi.cli import main

        capsys.readouterr()
        assert main([command, str(path), *arguments]) == code
        out, err = capsys.readouterr()
        assert err.startswith(f"hpcdi {command}: ")
        assert "Traceback" not in out + err
        return " ".join(err.split())

    return run
