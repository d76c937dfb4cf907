"""Asks a command of this host, such as one of a batch system's, if it is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

LIMIT_S = 10.0


def answer_of(*command: str, variables: Mapping[str, str] | None = None) -> tuple[bool, str]:
    """Returns whether a command has succeeded, and its output; empty if it is not installed.

    Args:
        command: the program, and its arguments; it has `LIMIT_S` to answer.
        variables: its environment; None: this process's.
    """
    program = shutil.which(command[0])
    if program is None:
        return False, ""
    try:
        done = subprocess.run(  # noqa: S603 (commands of batch systems, with a job's number)
            [program, *command[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_S,
            env=variables,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False, ""
    return done.returncode == 0, done.stdout if done.returncode == 0 else done.stderr
