"""Files that appear whole: written aside, forced to disk, renamed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from hpcdi.utils.nested import jsonable

TEMPORARY_MARK = ".tmp-"
_PRETENCE = {"full_until": float("-inf")}


@contextlib.contextmanager
def published(path: str | Path, *, fsync: bool = True) -> Iterator[IO[bytes]]:
    """Binary file that takes its name `path` when the block ends without an error.

    Until then it has a temporary name in the same folder; after an error nothing is left of it. A
    reader therefore sees the old file or the whole new one, never a part. Folders are made.

    Args:
        path: final name.
        fsync: force the bytes to disk before the rename, so that a power cut cannot leave a name
            that points to nothing.
    """
    path = Path(path)
    if time.monotonic() < _PRETENCE["full_until"]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = temporary_beside(path)
    try:
        with aside.open("wb") as file:  # buffered: a raw write stops short where the disk is full
            yield file
            file.flush()
            if fsync:
                os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def pretend_full(seconds: float) -> None:
    """For tests: let `published` find the disk full for so long, in this process."""
    _PRETENCE["full_until"] = time.monotonic() + seconds


def temporary_beside(path: Path) -> Path:
    """A name beside `path` for what is not whole yet, this process's own."""
    # ranks of several hosts share the folder, and may share a process id
    return path.with_name(f".{path.name}{TEMPORARY_MARK}{platform.node()}-{os.getpid()}")


def write_bytes(path: str | Path, content: bytes, *, fsync: bool = True) -> None:
    """Publish a binary file."""
    with published(path, fsync=fsync) as file:
        file.write(content)


def write_text(path: str | Path, text: str, *, fsync: bool = True) -> None:
    """Publish a text file."""
    write_bytes(path, text.encode(), fsync=fsync)


def write_json(path: str | Path, value: Any, *, fsync: bool = True) -> None:
    """Publish a JSON file; see `jsonable` for what JSON does not know."""
    write_text(path, json.dumps(jsonable(value), indent=2) + "\n", fsync=fsync)


def read_json(path: str | Path) -> dict[str, Any]:
    """A JSON file's mapping; empty where there is none that is whole."""
    try:
        held = json.loads(Path(path).read_text())
    except (OSError, json.JSONDecodeError):
        return {}
    return held if isinstance(held, dict) else {}


def sweep_temporary(folder: str | Path) -> list[Path]:
    """Remove what a killed process left of unfinished files and folders; say which."""
    left = sorted(Path(folder).rglob(f".*{TEMPORARY_MARK}*"))
    for path in left:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return left


def clock_of(folder: str | Path) -> float:
    """Returns the time (seconds since the epoch) by the clock that stamps files in a folder.

    Of a shared file system that is the server's: ages of files that other hosts write are right by
    it, however wrong this host's clock is.

    Raises:
        OSError: nothing can be written there.
    """
    probe = temporary_beside(Path(folder) / "clock")
    try:
        probe.touch()
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)
