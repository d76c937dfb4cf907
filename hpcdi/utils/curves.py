"""A run's record of its curves, `curves.csv`: written as it goes on, read by every command.

A row is a point: ``curve,step,time,value``. Steps are environment steps, but train iterations in a
run that begins offline; times are seconds since the epoch. Numbers are written so that they are
read back as they were.
"""

from __future__ import annotations

import contextlib
import csv
import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from hpcdi.utils.disk import RecordFile, cut_torn_line, rewrite
from hpcdi.utils.lifetime import Closing

COLUMNS = ("curve", "step", "time", "value")


class CurvePoint(NamedTuple):
    """A point of a curve: environment step or train iteration, seconds since the epoch, value."""

    step: int
    time: float
    value: float


Curves: TypeAlias = Mapping[str, Sequence[CurvePoint]]


class CurveFile(Closing):
    """Appends points of curves to a CSV file, on a thread; after `close` they are ignored.

    Args:
        path: of the file; it goes on where it is there.
    """

    def __init__(self, path: Path) -> None:
        self._file = RecordFile[Sequence[str]](path, "the curves' file", _encoded)
        if path.is_file():
            cut_torn_line(path)
        if not path.exists() or not path.stat().st_size:
            self._file.add(COLUMNS)
            self._file.submit()  # it is there from the start

    def add_scalar(self, name: str, value: float, step: int, /) -> None:
        """Add a point to a curve."""
        self._file.add(row_of(name, CurvePoint(int(step), time.time(), float(value))))

    def write(self) -> None:
        """Have the thread write all points so far."""
        self._file.submit()

    def close(self) -> None:
        """Write all points and close the file. Idempotent."""
        self._file.close()


def row_of(name: str, point: CurvePoint) -> tuple[str, str, str, str]:
    """A point of a curve as a row, by `COLUMNS`."""
    return " ".join(name.split()), str(point.step), f"{point.time:.3f}", repr(point.value)


def read_curves(files: Iterable[Path]) -> dict[str, list[CurvePoint]]:
    """The curves in some files; rows that are torn or no points are passed over.

    Returns:
        Name -> points, by step and time.
    """
    curves: dict[str, list[CurvePoint]] = {}
    for file in files:
        for name, point in _points(file):
            curves.setdefault(name, []).append(point)
    for points in curves.values():
        points.sort()
    return curves


def drop_points_after(file: Path, step: int | Callable[[str], int]) -> None:
    """Remove points after a checkpoint: the resumed run adds them again.

    Points are compared by steps, not by times, since clocks of hosts differ; of those at the
    checkpoint's own step, a curve keeps the first.

    Args:
        file: a run's curves; nothing happens if it is not there.
        step: of the checkpoint; or what returns it, of a curve's name.
    """
    if not file.is_file():
        return
    rows = [COLUMNS]
    kept_at_step = set[str]()  # curves of which a point at the checkpoint's is kept
    for name, point in _points(file):
        limit = step(name) if callable(step) else step
        if point.step > limit or (point.step == limit and name in kept_at_step):
            continue
        if point.step == limit:
            kept_at_step.add(name)
        rows.append(row_of(name, point))
    rewrite(file, _encoded(rows))


def _points(file: Path) -> Iterator[tuple[str, CurvePoint]]:
    """Yields the points of a file in its order; none if it is not there, or no regular file."""
    if not file.is_file():
        return
    with file.open(newline="", errors="replace") as lines:
        for line in lines:  # by lines, not by quotes, of which one may be torn
            if not line.endswith("\n"):
                return  # it is being written, or whoever wrote it was killed
            with contextlib.suppress(ValueError):  # no point: the names of the columns
                name, step, at, value = line.rsplit(",", 3)
                if name.startswith('"'):
                    name = name[1:-1].replace('""', '"')
                yield name, CurvePoint(int(step), float(at), float(value))


def _encoded(rows: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
