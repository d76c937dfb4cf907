"""The ranks' JSONL logs: the newest lines, new lines, the first error."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hpcdi.dataclass import dataclass
from hpcdi.store.files import check_file, open_file
from hpcdi.utils.console import escaped
from hpcdi.utils.nested import parse_json

_STEP_BYTES = 65_536
_MOST_BYTES = 64 << 20
"""Of a log that are read at once."""
_KNOWN = frozenset(
    {"time", "level", "rank", "role", "host", "pid", "restart", "message", "traceback"}
)
_LONGEST = 240
_SEARCHED = 50
"""Records of each log, from its end, among which the first error is sought."""


@dataclass(frozen=True)
class LogLine:
    """One record of one rank; `entry` is empty if the line is torn."""

    time: float
    rank: int
    entry: dict[str, Any]
    text: str

    @property
    def level(self) -> int:
        """The level as a number of `logging`; a torn line is a warning."""
        name = str(self.entry.get("level", "WARNING"))
        return int(logging.getLevelNamesMapping().get(name, logging.WARNING))

    def __str__(self) -> str:
        if not self.entry:
            return f"{'':23} rank {self.rank} (a torn line) {escaped(self.text[:_LONGEST])}"
        stamp = _stamp(self.time)
        level = "" if self.level == logging.INFO else f"{self.entry.get('level', 'WARNING')} "
        more = {name: value for name, value in self.entry.items() if name not in _KNOWN}
        table, detail = more.pop("table", []), str(more.pop("detail", ""))
        fields = f"  {_short(_plain(more)[1:-1])}" if more else ""
        below = [*map(str, table if isinstance(table, list) else [table])]
        below += [*detail.splitlines(), *str(self.traceback).splitlines()]
        who = f"rank {self.rank} {self.entry.get('role', '')}"
        millis = f"{self.time % 1:.3f}"[1:]
        said = f"{who:18} {level}{self.entry.get('message', '')}{fields}"
        return "\n    ".join([f"{stamp}{millis} {escaped(said)}", *map(escaped, below)])

    @property
    def traceback(self) -> str:
        """Traceback of the error; empty if there is none."""
        return str(self.entry.get("traceback", ""))


def _stamp(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # no date has so many
        return "????-??-?? ??:??:??"


def logs_of(folder: Path) -> dict[int, Path]:
    """Returns the log files of a run by rank."""
    logs = {}
    for path in folder.glob("rank*.jsonl"):
        number = path.stem.removeprefix("rank")
        with contextlib.suppress(OSError):  # a pipe, or a link to elsewhere
            if number.isdecimal():
                logs[int(number)] = check_file(path)
    return dict(sorted(logs.items()))


def parse(rank: int, lines: Iterable[bytes], after: float = 0.0) -> list[LogLine]:
    """Returns records of lines; a torn one has the time of the one before it (or `after`)."""
    parsed = []
    for line in lines:
        text = line.decode(errors="replace")
        try:
            entry = parse_json(text, is_file=True)
            after = float(entry["time"])
        except (ValueError, KeyError, TypeError):
            entry = {}
        parsed.append(LogLine(after, rank, entry, text))
    return parsed


def last_lines(path: Path, count: int) -> tuple[list[bytes], int]:
    """Returns the last `count` whole lines of a file, and their end in the file (bytes).

    Reads only as much of the file as they need.
    """
    with open_file(path) as file:
        end = begin = file.seek(0, os.SEEK_END)
        data = b""
        while begin > 0 and data.count(b"\n") <= count and len(data) < _MOST_BYTES:
            step = min(begin, _STEP_BYTES)
            begin -= step
            file.seek(begin)
            data = file.read(step) + data
    data = data[: end - begin]
    complete, _, rest = data.rpartition(b"\n")
    lines = complete.split(b"\n") if complete else []
    if begin > 0:
        lines = lines[1:]  # it may have begun before what was read
    return (lines[-count:] if count else []), end - len(rest)


class LogReader:
    """Reads what has been added to a log since the last call; follows a file that is replaced.

    Args:
        rank: of the log.
        path: of the log.
        offset: where to begin, in bytes.
    """

    def __init__(self, rank: int, path: Path, offset: int = 0) -> None:
        self._rank, self._path = rank, path
        self._offset = offset
        self._file_id: int | None = None
        self._after = 0.0

    def take(self) -> list[LogLine]:
        """Returns new records; an unfinished line is left for the next call."""
        try:
            with open_file(self._path) as file:
                facts = os.fstat(file.fileno())
                is_another = self._file_id not in (None, facts.st_ino)
                if is_another or facts.st_size < self._offset:
                    self._offset = 0
                self._file_id = facts.st_ino
                file.seek(self._offset)
                data = file.read(_MOST_BYTES)
        except OSError:  # it is being replaced, or has been by something else
            return []
        complete, newline, _ = data.rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        lines = parse(self._rank, complete.split(b"\n") if newline else [], self._after)
        self._after = lines[-1].time if lines else self._after
        return lines


def newest_lines(
    paths: dict[int, Path], count: int, level: int
) -> tuple[list[LogLine], list[LogReader]]:
    """Returns the last `count` records of all ranks by time, and readers of what follows."""
    lines: list[LogLine] = []
    readers = []
    for rank, path in paths.items():
        wanted = count
        while True:  # records below the level do not count
            raw, offset = last_lines(path, wanted)
            shown = [line for line in parse(rank, raw) if line.level >= level]
            if len(shown) >= count or len(raw) < wanted:
                break
            wanted *= 4
        lines += shown[-count:] if count else []
        readers.append(LogReader(rank, path, offset))
    lines.sort(key=lambda line: line.time)
    return (lines[-count:] if count else []), readers


def first_error(paths: dict[int, Path], restart: int) -> LogLine | None:
    """Returns the first error since a start of the run: later ones may only follow from it.

    Args:
        paths: logs by rank.
        restart: number of that start.
    """
    errors = []
    for rank, path in paths.items():
        lines = parse(rank, last_lines(path, _SEARCHED)[0])
        errors += [
            line
            for line in lines
            if (line.traceback or line.level >= logging.ERROR)
            and line.entry.get("restart", 0) == restart
        ]
    return min(errors, key=lambda line: line.time, default=None)


def _plain(value: object) -> str:
    """Returns a record's field as a person would write it."""
    if isinstance(value, dict):
        return f"({', '.join(f'{name} {_plain(item)}' for name, item in value.items())})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
