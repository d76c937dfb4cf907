"""The inside of a submitted job: submitit calls these functions by name, with a path.

It imports little: every start of a job begins with it.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from pathlib import Path
from types import FrameType

from hpcdi.commands.batch_script import EXPERIMENT_FILE
from hpcdi.errors import EXIT_DONE, HpcdiError
from hpcdi.store.layout import RunLayout
from hpcdi.utils.python import python_command

_FORWARDED = (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)


class JobFailedError(HpcdiError):
    """A submitted run did not end well; the job must not look as if it had."""


def run_here(run_dir: str, ranks: int, option: str) -> int:
    """Train on this host; returns the exit code, 0.

    Args:
        run_dir: the run folder.
        ranks: number of ranks.
        option: "--run-dir" or "--resume".

    Raises:
        JobFailedError: it is another one.
    """
    experiment = str(RunLayout(Path(run_dir)).submit_dir / EXPERIMENT_FILE)
    command = python_command("hpcdi", "train", experiment, "-n", str(ranks))
    return _run([*command, option, run_dir])


def _run(command: list[str]) -> int:
    """Run a command that gets the signals of this process."""
    process = subprocess.Popen(command)  # noqa: S603 (our own command line)

    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)

    for number in _FORWARDED:  # in place of submitit's own handlers, which would end this process
        signal.signal(number, forward)
    code = process.wait()
    if code != EXIT_DONE:
        raise JobFailedError(f"{' '.join(command)}: exit code {code}")
    return code
