"""Asks a command of this host, such as one of a batch system's, if it is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

_LIMIT_S = 10.0


class Answer(NamedTuple):
    """What a command says; nothing, and no success, where it is not installed or does not answer.

    Attributes:
        is_success: whether its exit code was 0.
        out: its output.
        errors: what it has written to standard error.
    """

    is_success: bool = False
    out: str = ""
    errors: str = ""


def answer_of(
    *command: str, variables: Mapping[str, str] | None = None, limit_s: float = _LIMIT_S
) -> Answer:
    """Returns the answer of a command.

    Args:
        command: the program, and its arguments.
        variables: its environment; None: this process's.
        limit_s: seconds that it has to answer.
    """
    program = shutil.which(command[0])
    if program is None:
        return Answer()
    try:
        done = subprocess.run(  # noqa: S603 (fixed words, with names and numbers of ours)
            [program, *command[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=limit_s,
            env=variables,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return Answer()
    return Answer(done.returncode == 0, done.stdout, done.stderr)
