"""Environments that start programs and processes; those in child processes import this module."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from hpcdi.env.toy import CountEnv


class Simulated(CountEnv):
    """Starts a program, and ends it when it is closed.

    Args:
        folder: of a file for each program, by its number, which says what was closed.
        closing_s: seconds that `close` takes; negative: it ends the process, with exit code 3.
        is_apart: the program leads a session, and so a process group, of its own.
        faults: see `CountEnv`.
    """

    def __init__(
        self, folder: str, closing_s: float = 0.0, is_apart: bool = False, **faults: int
    ) -> None:
        super().__init__(3, **faults)
        self._closing_s = closing_s
        self._program = subprocess.Popen(["sleep", "987"], start_new_session=is_apart)
        self._file = Path(folder) / str(self._program.pid)
        self._file.touch()

    def close(self) -> None:
        if self._closing_s < 0:
            os._exit(3)
        time.sleep(self._closing_s)
        self._program.kill()
        self._program.wait()
        self._file.write_text("closed")


class Leaves(Simulated):
    """Leaves its program behind."""

    def close(self) -> None:
        pass


def programs_of(folder: Path) -> dict[int, bool]:
    """Programs that were started -> whether their environment was closed."""
    return {int(file.name): file.read_text() == "closed" for file in folder.iterdir()}


def _double(number: int) -> int:
    return 2 * number


class Pooled(CountEnv):
    """Computes with processes of its own; ends its own in a step, if it is told to."""

    def __init__(self, method: str, exit_at: int = 0) -> None:
        super().__init__(3, exit_at=exit_at)
        self._pool = multiprocessing.get_context(method).Pool(2)

    def step(self, action: Any) -> Any:
        observation, reward, *others = super().step(action)
        doubled = self._pool.map(_double, [int(reward), 1])
        return observation, float(doubled[0]), *others

    def close(self) -> None:
        self._pool.terminate()
        self._pool.join()
