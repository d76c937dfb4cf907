"""Writing to a disk that may be full, or to a place that somebody else has taken."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from hpcdi.utils.console import FULL
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.metrics import human_bytes
from hpcdi.utils.threads import JobThread

R = TypeVar("R")

_BUFFERED_BYTES = 1 << 20
FLUSH_S = 5.0
"""Seconds from one write of a `RecordFile` to the next."""
_GATHERED = 1000
"""Records that are written before they are due."""


def user_cache() -> Path:
    """Returns the folder of what hpcdi may find again, and can do without."""
    base = os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME") or "/") / ".cache"
    return Path(base) / "hpcdi"


def rewrite(path: Path, content: bytes) -> None:
    """Replace what a file holds: a reader sees the old content or the new one, whole.

    Raises:
        OSError: that cannot be; it holds what it held.
    """
    aside = path.with_name(f".{path.name}.tmp-{os.getpid()}")  # `sweep_temporary` knows such names
    try:
        aside.unlink(missing_ok=True)  # it would be written to where somebody's link leads
        with aside.open("xb") as file:
            file.write(content)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def cut_torn_line(path: Path) -> None:
    """Cut off a file's last line, if whoever wrote it was killed in the middle of that.

    Does nothing where the file is not there, is a link, or may not be written to: who appends to it
    is told.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(OSError), os.fdopen(os.open(path, flags), "r+b") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        if file.read() not in (b"", b"\n"):  # seldom: only then it is read as a whole
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def is_full(error: BaseException) -> bool:
    """Returns whether an error, or its cause, is a full disk or an exceeded quota."""
    return _full_errno(error) is not None


def advice(error: BaseException | str) -> str:
    """Returns what to do after a failed write, as the end of a message; empty: space is no help."""
    if isinstance(error, str):
        is_short = any(os.strerror(number) in error for number in FULL)
    else:
        is_short = is_full(error)
    return ". Free some space" if is_short else ""


def shortage(path: str | Path, error: BaseException) -> str:
    """Describes what is used up where `path` could not be written: quota, inodes or bytes."""
    folder = next(p for p in (Path(path).absolute(), *Path(path).absolute().parents) if p.exists())
    try:
        state = os.statvfs(folder)
    except OSError as problem:
        return f"the free space of {folder} is unknown ({problem.strerror or problem})"
    free = f"{human_bytes(state.f_bavail * state.f_frsize)} are free there"
    if _full_errno(error) == errno.EDQUOT:
        return f"your quota is used up ({free})"
    if state.f_files and not state.f_favail:
        return f"no more files can be made there: 0 inodes are free ({free})"
    return free


def reserve_space(file: int, n_bytes: int) -> None:
    """Allocate the first bytes of a file, which makes writing them faster (on ext4 by a third).

    The file is at least that long afterwards; its contents stay. Does nothing if the file system or
    the operating system cannot allocate.

    Args:
        file: descriptor of a file that is open for writing.
        n_bytes: bytes to allocate, from the start of the file.

    Raises:
        OSError: the disk or the quota is full.
    """
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)  # Linux has it
    if fallocate is None or not n_bytes:
        return
    if fallocate(file, 0, ctypes.c_int64(0), ctypes.c_int64(n_bytes)):
        number = ctypes.get_errno()
        if number in FULL:
            raise OSError(number, os.strerror(number))


def open_to_append(path: str | Path) -> int:
    """Returns a descriptor to append to a regular file, which may be new; the caller closes it.

    What somebody else has put in its place is refused: a pipe would hold the writer for ever, by a
    link it would write to a file elsewhere.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    is_none = OSError(errno.EINVAL, "is no regular file, and is not written", str(path))
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        raise is_none if error.errno == errno.ENXIO else error from None  # a pipe without a reader
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise is_none
    return descriptor


class AppendFile(Closing):
    """A file that one writer appends whole records to; a full disk costs records, not the run.

    A record that cannot be written is buffered and written with a later one, for which the file is
    opened anew, unless the disk was full. When more than `buffered_bytes` are buffered, the oldest
    records are dropped. Standard error shows one line when writing fails and one when it works
    again.

    Args:
        path: the file; it and its folder are created by the first record.
        what: name of the file in messages.
        buffered_bytes: limit of the buffer.

    Attributes:
        dropped: number of records that were lost.
    """

    def __init__(self, path: Path, what: str, buffered_bytes: int = _BUFFERED_BYTES) -> None:
        self.dropped = 0
        self._path, self._what, self._buffered_bytes = path, what, buffered_bytes
        self._buffer: deque[bytes] = deque()
        self._file: int | None = None
        self._is_failing = False
        self._dropped_before = 0  # it began to fail

    def add(self, record: bytes) -> None:
        """Append a record, after those that are buffered."""
        self._buffer.append(record)
        self.flush()

    def flush(self) -> None:
        """Try to write the buffered records."""
        if not self._buffer:
            return
        try:
            self._write(b"".join(self._buffer))
        except OSError as error:
            if error.errno not in FULL:  # a file server that was restarted knows it no more
                self._end()
            if not self._is_failing:
                self._warn(f"cannot be written: {error.strerror or error}; the run goes on")
                self._is_failing, self._dropped_before = True, self.dropped
            size = sum(map(len, self._buffer))
            while size > self._buffered_bytes:
                size -= len(self._buffer.popleft())
                self.dropped += 1
            return
        self._buffer.clear()
        if self._is_failing:
            lost = self.dropped - self._dropped_before
            self._warn("can be written again" + f", without {lost} records" * bool(lost))
            self._is_failing = False

    def close(self) -> None:
        """Try to write the buffered records, and close the file. Idempotent."""
        self.flush()
        self._buffer.clear()
        self._end()

    def _end(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # some file systems report a failed write only here
                os.close(file)

    def _write(self, data: bytes) -> None:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_to_append(self._path)
        size = os.fstat(self._file).st_size
        remaining = memoryview(data)
        try:
            while remaining:
                remaining = remaining[os.write(self._file, remaining) :]
        except OSError:
            with contextlib.suppress(OSError):  # what has failed is told, not this
                os.ftruncate(self._file, size)  # no half records
            raise

    def _warn(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # not through the log: this may be the log
            sys.stderr.write(f"hpcdi: warning: {self._what} {self._path} {text}\n")


class RecordFile(Closing, Generic[R]):
    """A file of records, which a thread appends every few seconds; see `AppendFile`.

    After `close`, records are ignored.

    Args:
        path: the file.
        what: name of the file in messages.
        encode: what stands in the file for some records.
        flush_s: seconds between writes.

    Attributes:
        is_open: False after `close`.
    """

    def __init__(
        self,
        path: Path,
        what: str,
        encode: Callable[[Sequence[R]], bytes],
        flush_s: float = FLUSH_S,
    ) -> None:
        self._encode, self._flush_s = encode, flush_s
        self._file = AppendFile(path, what)
        self._thread = JobThread(path.name)
        self._records: list[R] = []
        self.is_open, self._submitted = True, time.monotonic()

    def add(self, record: R) -> None:
        """Add a record."""
        if not self.is_open:
            return
        self._records.append(record)
        is_due = time.monotonic() - self._submitted > self._flush_s
        if is_due or len(self._records) >= _GATHERED:
            self.submit()

    def submit(self) -> None:
        """Let the thread write all records so far."""
        records, self._records = self._records, []
        self._submitted = time.monotonic()
        if records:
            self._thread.submit(lambda: self._file.add(self._encode(records)))

    def flush(self) -> None:
        """Write all records, or buffer them if the disk is full; returns when that is done."""
        if self.is_open:
            self.submit()
            self._thread.wait()

    def close(self) -> None:
        """Write all records and close the file. Idempotent."""
        if self.is_open:
            self.submit()
            self.is_open = False
            self._thread.close()
            self._file.close()


def _full_errno(error: BaseException | None) -> int | None:
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return error.errno
        error = error.__cause__
    return None
