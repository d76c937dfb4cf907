"""A disk that is full: how it shows, and what to say of it."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from hpcdi.utils.metrics import human_bytes

_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: BaseException) -> bool:
    """Whether an error, or what caused it, is that a disk or a quota is full."""
    return _number_of(error) is not None


def shortage(path: str | Path, error: BaseException) -> str:
    """What is short where a path could not be written, for people."""
    place = _existing(Path(path))
    try:
        state = os.statvfs(place)
    except OSError as problem:
        return f"{place} does not say what is free ({problem.strerror or problem})"
    free = f"{human_bytes(state.f_bavail * state.f_frsize)} are free there"
    if _number_of(error) == errno.EDQUOT:
        return f"your quota is used up ({free})"
    if state.f_files and not state.f_favail:
        return f"no more files can be made there: 0 inodes are free ({free})"
    return free


def show(text: str) -> None:
    """Write to the terminal, or to what takes its place; to a file on a full disk: not."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        if not is_full(error):
            raise


def _existing(path: Path) -> Path:
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.exists())


def _number_of(error: BaseException | None) -> int | None:
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return error.errno
        error = error.__cause__
    return None
