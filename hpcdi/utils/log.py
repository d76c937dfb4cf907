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


class JsonLines(logging.Formatter):
    """One JSON object per line: time, rank, role, level, message, and the record's extra fields."""

    def __init__(self, rank: int, role: str, restart: int) -> None:
        super().__init__()
        where = {"host": platform.node(), "pid": os.getpid(), "restart": restart}
        self._who = {"rank": rank, "role": role, **where}

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
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(jsonable(entry))


class Console(logging.Formatter):
    """A line for people; ranks other than 0 are named."""

    def __init__(self, rank: int, role: str) -> None:
        super().__init__()
        self._prefix = f"[rank {rank} {role}] " if rank else ""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the text of a record."""
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return f"{self._prefix}{level}{record.getMessage()}"


class Repeats(logging.Filter):
    """Lets the first of like records pass, and counts the others; the log file has them all.

    Records are alike that carry the same text as ``extra={"once": text}``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a record is the first of its kind."""
        kind = getattr(record, "once", None)
        if kind is None:
            return True
        self._counts[kind] += 1
        return self._counts[kind] == 1

    def lines(self) -> list[str]:
        """Returns a line for each kind that occurred more than once."""
        return [f"{n} times: {kind}" for kind, n in self._counts.items() if n > 1]


class Terminal(logging.StreamHandler[TextIO]):
    """Warnings for people; at the end, how often those came that were shown once."""

    def __init__(self, rank: int, role: str) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(Console(rank, role))
        self.setLevel(logging.WARNING)
        self._repeats = Repeats()
        self.addFilter(self._repeats)

    def close(self) -> None:
        """Say how often; the stream stays open."""
        for line in self._repeats.lines():
            self.handle(LOGGER.makeRecord(LOGGER.name, logging.WARNING, "", 0, line, (), None))
        super().close()


class LogFile(logging.Handler):
    """Appends a line per record; a full disk costs lines, not the run."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = AppendFile(path, "the log")
        self._file.add(b"")  # creates the file

    def emit(self, record: logging.LogRecord) -> None:
        """Append a record's line."""
        self._file.add(self.format(record).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
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
    file = LogFile(path)
    file.setFormatter(JsonLines(rank, role, restart))
    LOGGER.addHandler(file)
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
