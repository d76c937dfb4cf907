"""Files that appear whole: written aside, forced to disk, renamed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from hpcdi.store.files import open_file
from hpcdi.utils.nested import jsonable, parse_json

TEMPORARY_MARK = ".tmp-"
LARGEST_JSON_BYTES = 64 << 20
"""Of a JSON file that is read: ours have some kilobytes, a sweep's some megabytes."""
_PRETENCE = {"full_until": float("-inf")}
_HOME: dict[str, Any] = {}  # this process's run folder, see `stay_in`


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Name beside `path` of a file that takes its name when the block ends without an error.

    After an error nothing is left of it.

    Raises:
        OSError: another user's file has that name, in a folder like /tmp, and cannot be removed.
    """
    aside = temporary_beside(path)
    aside.unlink(missing_ok=True)  # of a dead process; a link would lead elsewhere
    try:
        yield aside
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


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
    refuse_if_full(path)
    make_folders(path.parent)
    with written_aside(path) as aside, aside.open("xb") as file:
        yield file  # buffered: a raw write stops short where the disk is full
        file.flush()
        if fsync:
            os.fsync(file.fileno())


def stay_in(root: Path) -> None:
    """Let this process write into a run folder, but never create it again, see `make_folders`."""
    state = root.stat()
    _HOME["root"], _HOME["identity"] = root.resolve(), (state.st_dev, state.st_ino)


def leave() -> None:
    """Forget the run folder, see `stay_in`: the run is over, and its folder anybody's."""
    _HOME.clear()


def is_gone(root: Path) -> bool:
    """True if a run folder was moved or removed since `stay_in`; False if that is unknown."""
    try:
        state = root.stat()
    except FileNotFoundError:
        return True
    except OSError:  # its file system is away for a while
        return False
    return _HOME.get("root") == root.resolve() and _HOME["identity"] != (state.st_dev, state.st_ino)


def make_folders(folder: Path) -> None:
    """Make a folder and those above it.

    Raises:
        OSError: that cannot be; or this process's run folder is gone: a second one in its place
            would split the run.
    """
    if folder.is_dir():
        return
    root, folder = _HOME.get("root"), folder.resolve()
    if root is None or not folder.is_relative_to(root):
        folder.mkdir(parents=True, exist_ok=True)
        return
    missing = [each for each in (folder, *folder.parents) if each.is_relative_to(root)]
    missing = [each for each in missing if each != root and not each.is_dir()]
    try:
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
    except FileNotFoundError:
        reason = "the run folder has been moved or removed while the run was on"
        raise FileNotFoundError(errno.ENOENT, reason, str(root)) from None


def pretend_full(seconds: float) -> None:
    """For tests: let this process find the disk full for so long, see `refuse_if_full`."""
    _PRETENCE["full_until"] = time.monotonic() + seconds


def refuse_if_full(path: Path) -> None:
    """Fail like a write to `path` while a test pretends that the disk is full.

    Raises:
        OSError: it does.
    """
    if time.monotonic() < _PRETENCE["full_until"]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


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


def write_json(path: str | Path, value: object, *, fsync: bool = True) -> None:
    """Publish a JSON file; see `jsonable` for what JSON does not know."""
    write_text(path, json.dumps(jsonable(value), indent=2) + "\n", fsync=fsync)


def read_json(path: str | Path) -> dict[str, Any]:
    """Returns a JSON file's mapping; empty where the file is missing or torn."""
    try:
        return load_json(path)
    except (OSError, ValueError):
        return {}


def of_types(facts: dict[str, Any], types: Mapping[str, type]) -> dict[str, Any]:
    """Returns facts of a file without those that are of another type than was written."""
    return {
        name: value
        for name, value in facts.items()
        if name not in types
        or (isinstance(value, types[name]) and not (isinstance(value, bool) and types[name] is int))
    }


def load_json(path: str | Path) -> dict[str, Any]:
    """A JSON file's mapping.

    Raises:
        OSError: it cannot be read. ValueError: it holds something else, or is too large.
    """
    return json_mapping(json_bytes(path))


def json_bytes(path: str | Path) -> bytes:
    """The bytes of a JSON file.

    Raises:
        OSError: it cannot be read. ValueError: it is too large.
    """
    with open_file(path) as file:
        content = file.read(LARGEST_JSON_BYTES + 1)
    if len(content) > LARGEST_JSON_BYTES:
        raise ValueError(f"has more than {LARGEST_JSON_BYTES >> 20} MB")
    return content


def json_mapping(content: bytes) -> dict[str, Any]:
    """The mapping in a JSON file.

    Raises:
        ValueError: it holds something else.
    """
    value = parse_json(content, is_file=True)
    if not isinstance(value, dict):
        raise ValueError("holds JSON, but no mapping")  # noqa: TRY004 (a file, not an argument)
    return value


def sweep_temporary(folder: str | Path) -> list[Path]:
    """Remove unfinished files and folders of killed processes; returns their paths.

    What cannot be listed or removed now, another start of the run removes.
    """
    leftovers: list[Path] = []
    with contextlib.suppress(OSError):
        leftovers += Path(folder).rglob(f".*{TEMPORARY_MARK}*")
    for path in leftovers:
        with contextlib.suppress(OSError):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    return sorted(leftovers)


def clock_of(folder: str | Path) -> float:
    """Returns the time (seconds since the epoch) by the clock that stamps files in a folder.

    Of a shared file system that is the server's: ages of files that other hosts write are right by
    it, however wrong this host's clock is.

    Raises:
        OSError: nothing can be written there.
    """
    probe = temporary_beside(Path(folder) / "clock")
    probe.unlink(missing_ok=True)
    try:
        probe.touch(exist_ok=False)
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)
