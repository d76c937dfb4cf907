"""The one way to open a file of a run folder to read it, and to tell damage from a failing disk.

Anybody who may write into a run folder can put something else in a file's place: a pipe, which
holds a reader for ever; a device, which never ends; a link to a file of somebody else's; a file
with a hole of a petabyte. Such a file is refused before a byte of it is read.

What is missing or damaged may be left out. What a file system cannot read now (EIO, ESTALE) may be
whole: whoever decides something for good tries it again, see `patiently`, and then fails.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeVar

from hpcdi.errors import StoreError
from hpcdi.utils.backoff import wait_s

T = TypeVar("T")

LARGEST_BYTES = 1 << 40
"""Of any file that is read: shards have 64 MB, policies of large networks some gigabytes."""
REFUSED = frozenset({errno.ELOOP, errno.EISDIR, errno.EINVAL, errno.EFBIG})
"""Errors of files that are there, but are none that is read."""
_DAMAGE = frozenset({None, errno.ENOENT, errno.ENOTDIR, *REFUSED})
_DENIED = frozenset({errno.EACCES, errno.EPERM})
"""Errors that waiting does not end."""
PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Between attempts to read what may be there soon: together about 1.5 s."""
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_descriptor(path: str | Path, largest_bytes: int = LARGEST_BYTES) -> int:
    """Returns a descriptor to read a regular file; the caller closes it.

    A link is followed within its own folder only; folders may be links.

    Raises:
        OSError: there is no such file, it is none that may be read, or it is too large.
    """
    _check_link(Path(path))
    descriptor = os.open(path, _FLAGS)  # a pipe without a writer does not block it
    try:
        _check(os.fstat(descriptor), path, largest_bytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_file(path: str | Path, largest_bytes: int = LARGEST_BYTES) -> IO[bytes]:
    """Returns a regular file, opened to be read; see `open_descriptor`.

    Raises:
        OSError: as `open_descriptor`.
    """
    return os.fdopen(open_descriptor(path, largest_bytes), "rb")


def is_unreadable(error: BaseException) -> bool:
    """Returns whether an error says that a file, or a folder, could not be read now.

    Else it is missing, damaged, or none that is read.

    Args:
        error: of the file system, or a `StoreError` that one has caused.
    """
    return _number_of(error) not in _DAMAGE


def _number_of(error: BaseException) -> int | None:
    """Returns the number of a file system's error, see `is_unreadable`; None: it is none."""
    cause = error.__cause__ if isinstance(error, StoreError) else error
    return cause.errno if isinstance(cause, OSError) else None


def patiently(read: Callable[[], T], path: Path) -> T:
    """Returns what `read` returns; where it is unreadable, it is tried again for about 1.5 s.

    Only permission that is denied is not waited for.

    Args:
        read: reads a file or a folder.
        path: what it reads.

    Raises:
        StoreError: it is still unreadable, see `is_unreadable`. OSError, StoreError: as `read`.
    """
    for pause_s in PAUSES_S:
        try:
            return read()
        except (OSError, StoreError) as error:
            if not is_unreadable(error):
                raise
            if _number_of(error) in _DENIED:
                break
        wait_s(pause_s)
    try:
        return read()
    except OSError as error:
        if not is_unreadable(error):
            raise
        raise StoreError(path, f"cannot be read: {error.strerror or error}") from error


def check_entry(folder: Path) -> None:
    """Check that a folder, if there is one, may be entered; it need not be one that is listed.

    `Path.is_dir` and the like say from Python 3.14 on that nothing is there.

    Raises:
        OSError: it may not be entered, or cannot be read now.
    """
    try:
        os.stat(f"{folder}/.")  # noqa: PTH116 (a Path drops the dot)
    except OSError as error:
        if is_unreadable(error):
            raise


def names_in(folder: Path, *, only_folders: bool = False) -> list[str]:
    """Returns the names of what a folder holds, in no order; none where there is no such folder.

    `Path.glob` hides an unreadable folder from Python 3.13 on, and `Path.is_dir` from 3.14 on.

    Raises:
        OSError: it cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if not only_folders or _is_folder(entry)]
    except OSError as error:
        if is_unreadable(error):
            raise
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Returns whether an entry is a folder, or a link to one; a link to itself leads to none."""
    try:
        return entry.is_dir()
    except OSError as error:
        if is_unreadable(error):
            raise
        return False


def check_file(path: str | Path) -> Path:
    """Returns the path of a file that a library may open by its name; see `open_descriptor`.

    Raises:
        OSError: as `open_descriptor`.
    """
    _check_link(Path(path))
    _check(os.stat(path), path, LARGEST_BYTES)  # noqa: PTH116 (one call for texts and paths)
    return Path(path)


def _check_link(path: Path) -> None:
    if not path.is_symlink():
        return
    try:
        is_inside = path.resolve(strict=True).is_relative_to(path.parent.resolve())
    except RuntimeError:  # Python's own error of a link to itself
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None
    if not is_inside:
        raise OSError(errno.ELOOP, "is a link to a file elsewhere, which is not read", str(path))


def _check(state: os.stat_result, path: str | Path, largest_bytes: int) -> None:
    if stat.S_ISDIR(state.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "is no regular file, and is not read", str(path))
    if state.st_size > largest_bytes:
        raise OSError(errno.EFBIG, f"has {state.st_size} bytes: too many", str(path))
