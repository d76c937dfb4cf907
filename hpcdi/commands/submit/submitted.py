"""What runs inside of a submitted job: submitit calls these by name, with a path."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from hpcdi.commands.submit.batch_script import EXPERIMENT_FILE
from hpcdi.errors import EXIT_DONE, HpcdiError
from hpcdi.store.layout import RunLayout

_HANDED_ON = (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)


class JobFailedError(HpcdiError):
    """A submitted run did not end well; the job must not look as if it had."""


def run_script(path: str) -> int:
    """Run a batch script where Slurm has started this process; gives its exit code, 0.

    Raises:
        JobFailedError: it is another one.
    """
    return _see_through(["bash", path])


def run_here(run_dir: str, ranks: int, way: str) -> int:
    """Train with so many ranks on this host; gives the exit code, 0.

    Args:
        run_dir: the run folder.
        ranks: how many.
        way: "--run-dir" or "--resume".

    Raises:
        JobFailedError: it is another one.
    """
    experiment = str(RunLayout(Path(run_dir)).submit_dir / EXPERIMENT_FILE)
    command = [sys.executable, "-m", "hpcdi", "train", experiment, "-n", str(ranks)]
    return _see_through([*command, way, run_dir])


def _see_through(command: list[str]) -> int:
    """Run a command that gets the signals of this process."""
    process = subprocess.Popen(command)  # noqa: S603 (our own command line)
    for number in _HANDED_ON:  # in place of submitit's own, which would end this process
        signal.signal(number, _to(process))
    code = process.wait()
    if code != EXIT_DONE:
        raise JobFailedError(f"{' '.join(command)}: exit code {code}")
    return code


def _to(process: subprocess.Popen[bytes]) -> Callable[[int, FrameType | None], None]:
    def hand_on(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)

    return hand_on
