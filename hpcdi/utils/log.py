"""A rank's log: one JSON object per line in a file, warnings on the terminal too."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import sys
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

from hpcdi.utils.disk import AppendFile
from hpcdi.utils.nested import jsonable

LOGGER = logging.getLogger("hpcdi")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_FORMATTER = logging.Formatter()


class LogFile(logging.Handler):
    """Appends a JSON object per record; a full disk costs lines, not the run.

    Its keys: time, rank, role, host, pid, restart, level, message, and the record's extra fields.
    """

    def __init__(self, path: Path, rank: int, role: str, restart: int) -> None:
        super().__init__()
        where = {"host": platform.node(), "pid": os.getpid(), "restart": restart}
        self._who = {"rank": rank, "role": role, **where}
        self._file = AppendFile(path, "the log")
        self._file.add(b"")  # creates the file

    def format(self, record: logging.LogRecord) -> str:
        """Returns the text of a record."""
        extra = {k: v for k, v in vars(record).items() if k not in _STANDARD}
        entry: dict[str, Any] = {
            **extra,  # first: a record's own fields must not replace rank and role
            "time": round(record.created, 3),
            "level": record.levelname,
            **self._who,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = _FORMATTER.formatException(record.exc_info)
        return json.dumps(jsonable(entry))

    def emit(self, record: logging.LogRecord) -> None:
        """Append a record's line."""
        self._file.add(self.format(record).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


class Terminal(logging.StreamHandler[TextIO]):
    """Warnings for people, on standard error; ranks other than 0 are named.

    Of records that carry the same text as ``extra={"once": text}`` it shows the first, and at the
    end how many there were; the log file has them all.
    """

    def __init__(self, rank: int, role: str) -> None:
        super().__init__(sys.stderr)
        self.setLevel(logging.WARNING)
        self._prefix = f"[rank {rank} {role}] " if rank else ""
        self._counts: Counter[str] = Counter()  # by that text

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a record is the first of its kind."""
        kind = getattr(record, "once", None)
        if kind is None:
            return True
        self._counts[kind] += 1
        return self._counts[kind] == 1

    def format(self, record: logging.LogRecord) -> str:
        """Returns the text of a record."""
        return f"{self._prefix}{record.levelname.lower()}: {record.getMessage()}"

    def close(self) -> None:
        """Say how many there were; the stream stays open."""
        for kind, count in self._counts.items():
            if count > 1:
                line = f"{count} times: {kind}"
                self.handle(LOGGER.makeRecord(LOGGER.name, logging.WARNING, "", 0, line, (), None))
        super().close()


def open_log(path: Path, rank: int, role: str, restart: int = 0) -> None:
    """Send this rank's log records to a JSON-lines file, and warnings to the terminal too.

    Args:
        path: the file; it is appended to.
        rank: of this process.
        role: of this process.
        restart: how often the run has been resumed; part of every line.
    """
    close_log()
    LOGGER.addHandler(LogFile(path, rank, role, restart))
    LOGGER.addHandler(Terminal(rank, role))
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False


def close_log() -> None:
    """Close the log and restore the logger. Idempotent."""
    for handler in list(LOGGER.handlers):
        LOGGER.removeHandler(handler)  # first: a record in between would reopen the file
        handler.close()
    LOGGER.setLevel(logging.NOTSET)
    LOGGER.propagate = True


def say(text: str = "", end: str = "\n") -> None:
    """Print to standard output at once; what cannot be written there is dropped."""
    with contextlib.suppress(OSError):  # a full disk, a terminal that has gone
        sys.stdout.write(text + end)
        sys.stdout.flush()
