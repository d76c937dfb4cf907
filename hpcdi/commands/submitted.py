"""The inside of a submitted job: submitit calls these functions by name, with a path.

It imports little: every start of a job begins with it.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from hpcdi.commands.batch_script import (
    EXPERIMENT_FILE,
    IN_VAIN_S,
    LEAST_TIME_LEFT_S,
    MOST_IN_VAIN,
)
from hpcdi.errors import EXIT_DONE, EXIT_FAILED, EXIT_REQUEUE, HpcdiError
from hpcdi.run.job_end import ends_within
from hpcdi.store.layout import RunLayout
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.python import python_command

_STOPPING = (signal.SIGTERM, signal.SIGINT)
_FORWARDED = (signal.SIGUSR2, *_STOPPING)


class JobFailedError(HpcdiError):
    """A submitted run did not end well; the job must not look as if it had."""


def run_here(run_dir: str, ranks: int, option: str) -> int:
    """Train on this host, and start the run again as a batch script does, until it is over.

    Args:
        run_dir: the run folder.
        ranks: number of ranks.
        option: "--run-dir" or "--resume".

    Returns:
        The exit code: 0, or 85 where a signal to this job has stopped the run, or the end of a job
        around it is near.

    Raises:
        JobFailedError: it is another one, or the run has not begun four times in a row.
    """
    layout = RunLayout(Path(run_dir))
    experiment = str(layout.submit_dir / EXPERIMENT_FILE)
    command = python_command("hpcdi", "train", experiment, "-n", str(ranks))
    start, in_vain = _Starts([*command, option, run_dir]), 0
    while True:
        before = _text_of(layout.run_file)
        code = start.run()
        is_stopped = start.were_stopped() or ends_within(LEAST_TIME_LEFT_S)
        if code == EXIT_DONE or (code == EXIT_REQUEUE and is_stopped):
            return code
        in_vain = in_vain + 1 if _text_of(layout.run_file) == before else 0
        if code != EXIT_REQUEUE or in_vain == MOST_IN_VAIN:
            raise JobFailedError(f"{' '.join(start.command)}: exit code {code}")
        sys.stdout.write("hpcdi: the run was stopped; it is started again\n")
        sys.stdout.flush()
        if in_vain:
            wait_s(IN_VAIN_S)


def exit_code_in(said: str) -> int:
    """Returns the exit code of a job that has failed, by submitit's words of its error.

    That of the last start, which may have written nothing into the run folder; 1 where none is
    named, or where starts in vain are given up.
    """
    codes = re.findall(rf"{JobFailedError.__name__}: .*: exit code (\d+)$", said, re.MULTILINE)
    code = int(codes[-1]) if codes else EXIT_FAILED
    return EXIT_FAILED if code in (EXIT_DONE, EXIT_REQUEUE) else code


class _Starts:
    """Starts of one command, which gets the signals of this process."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self._is_stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        for number in _FORWARDED:  # in place of submitit's own handlers, which would end us
            signal.signal(number, self._forward)

    def were_stopped(self) -> bool:
        """Returns whether a signal to this process asks for their end."""
        return self._is_stopped

    def run(self) -> int:
        """Run the command; returns its exit code; 85 where a signal came before."""
        if self.were_stopped():
            return EXIT_REQUEUE
        self._process = subprocess.Popen(self.command)  # noqa: S603 (our own command line)
        if self.were_stopped():
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait()

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self._is_stopped |= number in _STOPPING
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


def _text_of(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text(encoding="utf-8")
    return ""
