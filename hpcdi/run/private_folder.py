"""Folders of one process for temporary files, with names that nobody can guess.

A process that is killed leaves its folder behind; the next one of the same user removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from multiprocessing.util import Finalize
from pathlib import Path

from hpcdi.utils.variables import variables_set

TEMPORARY_VARIABLE = "TMPDIR"
_PREFIX = "hpcdi-job-"
_AFTER_MULTIPROCESSING = -200
"""Its own folder goes at -100."""


@contextlib.contextmanager
def own_folder(base: Path | None = None) -> Iterator[Path]:
    """Make a folder in `base`, locked while it is needed, and then removed.

    Args:
        base: None: where temporary files are.

    Raises:
        OSError: it cannot be made.
    """
    base = base or Path(tempfile.gettempdir())
    _sweep(base)
    path = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=base))
    lock = _locked(path)
    path = path.rename(base / path.name[1:])  # before it is locked, others would remove it
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)  # ranks that are still ending may write there
        _unlock(lock)


@contextlib.contextmanager
def own_temporary_folder() -> Iterator[None]:
    """Let this process and its children put their temporary files into a folder of its own.

    PyTorch's compiler and multiprocessing leave theirs when a process is killed; and the compiler
    would run what another user has put into /tmp under its name.
    """
    default = tempfile.tempdir
    if Path(tempfile.gettempdir()).name.startswith(_PREFIX):  # the launcher has made one
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(own_folder())
        except OSError:  # a full or read-only /tmp is no reason not to run: few need it
            yield
            return
        tempfile.tempdir = str(folder)
        try:
            with variables_set({TEMPORARY_VARIABLE: str(folder)}):
                yield
        finally:
            tempfile.tempdir = default
            if any(folder.glob("pymp-*")):  # multiprocessing removes its own when the process ends
                Finalize(None, stack.pop_all().close, exitpriority=_AFTER_MULTIPROCESSING)


def _sweep(base: Path) -> None:
    """Remove folders of this user's processes that were killed."""
    for path in base.glob(f"{_PREFIX}*"):
        lock = _locked(path)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            _unlock(lock)


def _locked(path: Path) -> int | None:
    """Lock a folder of this user; returns the descriptor to close. None: it is not free.

    A link is not followed: somebody else may have put it there.
    """
    with contextlib.suppress(OSError):  # a link, removed, or no locks
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
        except OSError:
            os.close(lock)
            raise
        os.close(lock)
    return None


def _unlock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)
