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
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

from hpcdi.utils.disk import RecordFile, cut_torn_line, rewrite
from hpcdi.utils.lifetime import Closing

COLUMNS = ("curve", "step", "time", "value")
_LONGEST_LINE = 1 << 20
"""Letters; a file with a hole is one line, which no memory would hold."""


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


class UpToCheckpoint:
    """Decides which points of curves are before a checkpoint: the resumed run adds others again.

    They are compared by steps, not by times, since clocks of hosts differ; of those at the
    checkpoint's own step, a curve keeps the first.
    """

    def __init__(self) -> None:
        self._at_it = set[Hashable]()  # curves of which a point at the checkpoint's step is kept

    def keeps(self, curve: Hashable, step: int, of_checkpoint: int) -> bool:
        """Returns whether a curve keeps its next point, at a step."""
        if step == of_checkpoint and curve not in self._at_it:
            self._at_it.add(curve)
            return True
        return step < of_checkpoint


def drop_points_after(file: Path, step: int | Callable[[str], int]) -> None:
    """Remove points after a checkpoint, see `UpToCheckpoint`.

    Args:
        file: a run's curves; nothing happens if it is not there.
        step: of the checkpoint; or what returns it, of a curve's name.
    """
    if not file.is_file():
        return
    rows, up_to = [COLUMNS], UpToCheckpoint()
    for name, point in _points(file):
        if up_to.keeps(name, point.step, step(name) if callable(step) else step):
            rows.append(row_of(name, point))
    rewrite(file, _encoded(rows))


def _points(file: Path) -> Iterator[tuple[str, CurvePoint]]:
    """Yields the points of a file in its order; none if it is not there, or no regular file."""
    if not file.is_file():
        return
    with file.open(newline="", errors="replace") as lines:
        # by lines, not by quotes, of which one may be torn
        for line in iter(partial(lines.readline, _LONGEST_LINE), ""):
            if not line.endswith("\n"):
                return  # it is being written, whoever wrote it was killed, or this is no such file
            with contextlib.suppress(ValueError):  # no point: the names of the columns
                name, step, at, value = line.rsplit(",", 3)
                if name.startswith('"'):
                    name = name[1:-1].replace('""', '"')
                yield name, CurvePoint(int(step), float(at), float(value))


def _encoded(rows: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
