"""The file that `-o` names: it appears whole, and is none of a run's own."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import IO

from hpcdi.errors import LaunchError
from hpcdi.run import latest
from hpcdi.run.run_folder import short
from hpcdi.store.atomic import published
from hpcdi.store.disk_full import or_refuse
from hpcdi.store.layout import RunLayout, of_run

_SWEEP = ("sweep.json", "population.json", "optuna.journal", "trials", "experiments")
_MADE = (".html", ".svg", ".png", ".pt2", ".onnx", ".c", ".h", ".f90", ".parquet")
"""Suffixes of what commands write; no run writes them."""


@contextlib.contextmanager
def output_file(path: Path, runs: Iterable[Path] = ()) -> Iterator[IO[bytes]]:
    """A binary file that has its name when the block ends, see `published`; a device is written to.

    Args:
        path: of the file.
        runs: folders of which it is known that they are runs'.

    Raises:
        LaunchError: it cannot be written, or is a run's own.
    """
    with or_refuse(short(path)):
        asked = path.resolve()
        place = of_run(asked)
        is_device = place.exists() and not (place.is_file() or place.is_dir())
    if _is_of_a_run(place, {RunLayout(run).root.resolve() for run in runs}):
        raise LaunchError(
            f"{short(path)} is the run's own record, and is not overwritten: name another file"
        )
    with or_refuse(short(path)), place.open("wb") if is_device else published(place) as file:
        yield file
    latest.show(asked)


def path_of(output: str | None, default: str) -> Path:
    """Returns the file that `-o` names: `default`, where it names nothing or a folder."""
    path = Path(output or default)
    return path / default if path.is_dir() else path


def write_output(path: Path, text: str) -> None:
    """Write a text, and the folders above it; see `output_file`."""
    with output_file(path) as file:
        file.write(text.encode())


def _is_of_a_run(place: Path, runs: Container[Path]) -> bool:
    """Returns whether a run or a sweep has written a file, or will."""
    for root in place.parents:
        names: set[str] = set()
        if root in runs or (root / "run.json").is_file():
            names |= RunLayout(place).names()  # nothing lies in a file: those of any run
        if (root / "sweep.json").is_file():
            names.update(_SWEEP)
        inside = place.relative_to(root)
        if inside.parts[0] in names or inside.parts[0].rstrip("0123456789") in names:
            is_alone = len(inside.parts) == 1
            return is_alone or (place.is_file() and place.suffix not in _MADE)
    return False
