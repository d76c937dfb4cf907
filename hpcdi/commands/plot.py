"""`hpcdi plot`: one curve of runs as a picture, in the terminal or as a file."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from hpcdi.commands.options import add_runs, make_parser, print_lines
from hpcdi.commands.output_file import write_output
from hpcdi.commands.report.charts import room_for, share, ticks
from hpcdi.commands.report.page import SHOWN_FIRST, axes_of, charts_of
from hpcdi.commands.report.runs import SCORE, Group, grouped, read_run, runs_in
from hpcdi.commands.report.statistics import Band, band_of
from hpcdi.commands.run_state import runs_of
from hpcdi.errors import EXIT_DONE, LaunchError
from hpcdi.run.run_folder import short
from hpcdi.utils.console import can_show
from hpcdi.utils.metrics import human_count

HELP = """\
Draw one curve of runs: in the terminal, or as an SVG file with its 95 % interval over seeds. Runs
that differ in their seeds alone are one line, their mean; one that is done counts on at its last
value.

  hpcdi plot runs/cartpole_dqn/latest                         the return of its evaluations
  hpcdi plot runs/cartpole_dqn/* --name curves/loss           another curve, of several runs
  hpcdi plot runs/cartpole_dqn/sweeps/20261127 -o return.svg

`hpcdi curves RUN --name '*'` lists the names; `hpcdi report` has all curves in one page.
"""
EXIT_CODES = "exit codes: 0 drawn; 2 there is no such run, or no curve of this name"
_MARKS = "•ox+*#@%"
_ASCII_MARKS = ".ox+*#@%"
_HEIGHT, _MOST_WIDTH, _LEFT = 14, 100, 11


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    options = parse(arguments)
    groups = grouped([read_run(folder) for folder in options.runs])
    name = options.name or _usual(groups)
    shown = [group for group in groups if group.curve(name)]
    if not shown:
        known = sorted({n for group in groups for run in group.runs for n in run.curves})
        what = f"no curve is named {name}; there are {', '.join(known)}"
        raise LaunchError(what if known else f"there are no curves in {short(options.runs[0])}")
    if options.output is not None:
        write_output(options.output, charts_of(groups, only=name)[name])
        sys.stdout.write(f"{options.output}: {name} of {runs_in(shown)}\n")
        return EXIT_DONE
    bands = {group.name: band_of(group.curve(name)) for group in groups}
    if not any(np.isfinite(band.mean).any() for band in bands.values()):
        raise LaunchError(f"{name} has no finite value: `hpcdi curves RUN` shows what it has")
    print_lines(lines_of(name, bands, " or ".join(axes_of(shown, name))))
    return EXIT_DONE


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns ``runs`` (folders), ``name`` (of a curve, or None), ``output``."""
    parser = make_parser("plot", HELP, EXIT_CODES)
    add_runs(parser)
    parser.add_argument(
        "--name", metavar="CURVE", help="the curve (the return of evaluations, or of collecting)"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE.svg", help="draw it as SVG into a file"
    )
    options = parser.parse_args(arguments)
    if options.output is not None and options.output.suffix != ".svg":
        parser.error(f"-o {options.output}: the file's name must end in .svg")
    options.runs = runs_of(options.runs)
    return options


def lines_of(name: str, bands: Mapping[str, Band], axis: str) -> Iterator[str]:
    """Yields a curve's chart as lines of text: a mark for each group, values on the left.

    Args:
        name: of the curve.
        bands: name of each group -> its mean; one that lacks it keeps its mark, which is not drawn.
        axis: what its steps are.
    """
    marks = _MARKS if can_show(_MARKS) else _ASCII_MARKS
    drawn = [
        (mark, group, band)
        for mark, (group, band) in zip(marks * len(bands), bands.items(), strict=False)
        if np.isfinite(band.mean).any()
    ]
    means = np.concatenate([band.mean for *_, band in drawn])
    low, high = float(np.nanmin(means)), float(np.nanmax(means))
    low = low if low < high else high - room_for(high)
    start = min(float(band.steps[0]) for *_, band in drawn)
    end = max(float(band.steps[-1]) for *_, band in drawn)
    first, last = human_count(int(start)), f"{axis} {human_count(int(end))}"
    room = min(shutil.get_terminal_size().columns, _MOST_WIDTH) - _LEFT - 1
    width = max(room, len(first) + 1 + len(last))  # in a narrower terminal lines are broken
    steps = np.linspace(start, end, width if end > start else 1)
    cells = np.full((_HEIGHT, width), " ")
    for mark, _, band in drawn:
        known = np.isfinite(band.mean)
        values = np.interp(steps, band.steps[known], band.mean[known], np.nan, np.nan)
        rows = np.round(share(values, high, low) * (_HEIGHT - 1))
        for column in np.flatnonzero(np.isfinite(rows)):
            before = (
                rows[column - 1] if column and math.isfinite(rows[column - 1]) else rows[column]
            )
            between = sorted((int(before), int(rows[column])))
            cells[between[0] : between[1] + 1, column] = mark  # a steep line is whole
    at = {round(share(tick, high, low) * (_HEIGHT - 1)): tick for tick in ticks(low, high)}
    yield name
    for number, row in enumerate(cells):
        label = f"{at[number]:.6g}" if number in at else ""
        yield f"{label:>{_LEFT - 2}} |{''.join(row)}".rstrip()
    yield f"{'':{_LEFT - 2}} +{'-' * width}"
    yield f"{'':{_LEFT}}{first}{last:>{width - len(first)}}"
    for mark, group, band in drawn:
        last = np.flatnonzero(np.isfinite(band.mean))[-1]
        runs = int(band.runs[last])
        of = f", of {runs} of {band.total} runs" if runs < band.total else ""
        yield f"{mark:>{_LEFT}} {group}: {band.mean[last]:.6g} at the end{of}"


def _usual(groups: Sequence[Group]) -> str:
    """The curve that people look at first, of those that there are."""
    return next((n for n in SHOWN_FIRST if any(group.curve(n) for group in groups)), SCORE)
