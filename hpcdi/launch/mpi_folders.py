"""Folders for the files that Open MPI keeps while a job runs on this machine.

It names them by mpirun's process number and leaves them behind when mpirun is killed. Numbers come
again: the next mpirun that gets this one does not start ("The PMIx server's listener thread failed
to start"). Its shared memory stays taken until the machine restarts. So each job that `hpcdi`
starts has folders of names that do not come again; they are removed at its end, or, where its
launcher was killed, by the next.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from hpcdi.errors import LaunchError

_PREFIX = "hpcdi-mpi-"
_SESSION_VARIABLE = "PRTE_MCA_prte_local_tmpdir_base"
_MEMORY_VARIABLE = "OMPI_MCA_btl_sm_backing_directory"
_MEMORY = Path("/dev/shm")  # noqa: S108 (a folder of our own is made there)


@contextmanager
def mpi_folders(one_host: bool) -> Iterator[dict[str, str]]:
    """Makes folders for one job, and removes them after it; gives the variables that name them.

    Args:
        one_host: all ranks are on this host, and have the folder for their shared memory.

    Raises:
        LaunchError: the folder for temporary files does not exist, is full, or cannot be written.
    """
    with ExitStack() as stack:
        try:
            session = stack.enter_context(_own_folder(Path(tempfile.gettempdir())))
            variables = {_SESSION_VARIABLE: str(session)}
            if one_host and os.access(_MEMORY, os.W_OK):
                variables[_MEMORY_VARIABLE] = str(stack.enter_context(_own_folder(_MEMORY)))
        except OSError as error:
            raise LaunchError(
                f"MPI has nowhere to keep its files: {error}. Name another folder by TMPDIR"
            ) from error
        yield variables


@contextmanager
def _own_folder(base: Path) -> Iterator[Path]:
    """A new folder in `base`, locked for as long as it is needed."""
    _sweep(base)
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        lock = _locked(path)
        if path.exists():  # nobody has swept it before it was locked
            break
        _unlock(lock)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)  # ranks that still end may write there
        _unlock(lock)


def _sweep(base: Path) -> None:
    """Remove what launchers have left behind that were killed."""
    for path in base.glob(f"{_PREFIX}*"):
        lock = _locked(path)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            _unlock(lock)


def _locked(path: Path) -> int | None:
    """Lock a folder, until its descriptor is closed or this process ends; None: another has."""
    with suppress(OSError):  # another user's, gone, or of a file system without locks
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise
        return lock
    return None


def _unlock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)
