"""A sweep on this machine: its runs one after the other, or a few at a time."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from types import FrameType

from hpcdi.commands.sweep.folder import Sweep, look, to_start
from hpcdi.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TERMINATED
from hpcdi.launch.run_folder import short
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.metrics import human_time

_LOOK_S = 0.1
_SIGNALS = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}


def command_of(sweep: Sweep, index: int) -> list[str]:
    """How a run of a sweep is started; again, it goes on where it was."""
    what, ranks = ("train", ["-n", str(sweep.ranks)]) if sweep.ranks else ("serial", [])
    return [
        sys.executable, "-m", "hpcdi", what, str(sweep.experiment(index)),
        "--run-dir", str(sweep.run_dir(index)), *ranks,
    ]  # fmt: skip


class LocalRuns:
    """Runs of a sweep as child processes.

    Args:
        sweep: which sweep.
        indices: which of its runs, in order.
        jobs: how many at a time.
    """

    def __init__(self, sweep: Sweep, indices: Sequence[int], jobs: int) -> None:
        self._sweep, self._jobs = sweep, jobs
        self._waiting = deque(indices)
        self._running: dict[int, tuple[subprocess.Popen[bytes], float]] = {}
        self._asked: int | None = None

    def run(self) -> int:
        """See them through; gives the exit code: 0 if all runs of the sweep are done."""
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            while self._running or (self._waiting and self._asked is None):
                while self._waiting and len(self._running) < self._jobs and self._asked is None:
                    self._start(self._waiting.popleft())
                wait_s(_LOOK_S)  # until a run ends, or a signal asks for the end
                self._collect()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for process, _ in self._running.values():
                process.kill()
                process.wait()
        sweep, _ = look(self._sweep)
        left = to_start(sweep)
        if left:
            names = ", ".join(map(str, left))
            sys.stderr.write(
                f"hpcdi sweep: runs {names} are not done; start these again by\n"
                f"  hpcdi sweep resume {short(sweep.root)}\n"
            )
        if self._asked is not None:
            return _SIGNALS[signal.Signals(self._asked)]
        return EXIT_FAILED if left else EXIT_DONE

    def _start(self, index: int) -> None:
        path = self._sweep.output(index)
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603 (our own command line)
                command_of(self._sweep, index), stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, process_group=0,
            )  # fmt: skip
        self._running[index] = process, time.monotonic()
        self._say(index, f"started; it prints to {short(path)}")

    def _collect(self) -> None:
        """Take what has ended."""
        for index, (process, began) in list(self._running.items()):
            if process.poll() is None:
                continue
            del self._running[index]
            lasted = human_time(time.monotonic() - began)
            sweep, found = look(self._sweep)
            status, self._sweep = found[index], sweep
            why = f": {status.why}" if status is not None and status.why else ""
            state = status.state if status is not None else "it has not begun"
            self._say(index, f"{state} after {lasted} (exit code {process.returncode}){why}")

    def _say(self, index: int, text: str) -> None:
        overrides = " ".join(self._sweep.elements[index].overrides)
        sys.stdout.write(f"run {index} ({overrides}) {text}\n")
        sys.stdout.flush()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """The runs are asked to end as this process was; a second signal ends them at once."""
        self._asked = number
        for process, _ in self._running.values():
            process.send_signal(number)
