"""A file that grows by whole records, and a disk that is full costs records, not the run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from pathlib import Path

from hpcdi.utils.lifetime import Closing

_KEPT_BYTES = 1 << 20
"""So much may wait for room."""


class AppendFile(Closing):
    """Takes records of one writer; none is ever written in part.

    What cannot be written waits, and goes with a later record; of more than `kept_bytes` the oldest
    are dropped. That is told on the terminal once, and once more when it is over.

    Args:
        path: the file; it is made by the first record, its folder too.
        what: the file is, for people.
        kept_bytes: how much may wait.
    """

    def __init__(self, path: Path, what: str, kept_bytes: int = _KEPT_BYTES) -> None:
        self.dropped = 0
        self._path, self._what, self._kept_bytes = path, what, kept_bytes
        self._waiting: deque[bytes] = deque()
        self._file: int | None = None
        self._is_told = False

    def add(self, record: bytes) -> None:
        """Add a record, and what waits before it."""
        self._waiting.append(record)
        self.flush()

    def flush(self) -> None:
        """Write what waits, if that can be."""
        if not self._waiting:
            return
        try:
            self._write(b"".join(self._waiting))
        except OSError as error:
            if not self._is_told:
                self._tell(f"cannot be written: {error.strerror or error}; the run goes on")
            self._is_told = True
            self._drop()
            return
        self._waiting.clear()
        if self._is_told:
            lost = f", without {self.dropped} records" if self.dropped else ""
            self._tell(f"can be written again{lost}")
            self._is_told = False

    def close(self) -> None:
        """Write what can be written; again: nothing."""
        if self._file is not None or self._waiting:
            self.flush()
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # some file systems tell only now; it has been tried
                os.close(file)
        self._waiting.clear()

    def _write(self, data: bytes) -> None:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        size = os.fstat(self._file).st_size
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            os.ftruncate(self._file, size)  # a part of it
            raise

    def _drop(self) -> None:
        held = sum(map(len, self._waiting))
        while held > self._kept_bytes:
            held -= len(self._waiting.popleft())
            self.dropped += 1

    def _tell(self, text: str) -> None:
        """Not by the log: this may be the log."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"hpcdi: warning: {self._what} {self._path} {text}\n")
