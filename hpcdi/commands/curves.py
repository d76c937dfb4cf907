"""`hpcdi curves`: the curves of runs in the terminal, as CSV, or for an experiment tracker."""

from __future__ import annotations

import argparse
import csv
import fnmatch
import io
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from hpcdi.commands.options import add_runs, make_parser, print_lines
from hpcdi.commands.output_file import output_file
from hpcdi.commands.run_state import axis_of, end_of, runs_of, settings_of
from hpcdi.config.load import read_mapping
from hpcdi.errors import EXIT_DONE, LaunchError
from hpcdi.run.run_folder import short
from hpcdi.store.layout import RunLayout
from hpcdi.utils.curves import COLUMNS, CurvePoint, Curves, read_curves, row_of
from hpcdi.utils.log import say
from hpcdi.utils.metrics import counted, human_count
from hpcdi.utils.nested import dotted
from hpcdi.utils.packages import missing
from hpcdi.utils.sparkline import sparkline
from hpcdi.utils.trackers import TRACKERS, TrackedRun

HELP = """\
Show the curves of runs in the terminal, or write them as CSV or Parquet, or as runs of Weights &
Biases or MLflow; from the run folders alone, without a server or a network.

  hpcdi curves runs/cartpole_dqn/latest                       the first ones of TensorBoard
  hpcdi curves runs/cartpole_dqn/latest --name 'detail/*'     others, by a pattern
  hpcdi curves runs/cartpole_dqn/latest --to csv > curves.csv
  hpcdi curves runs/sweep_7 --to parquet -o curves.parquet    of all runs in a folder, in one file
  hpcdi curves runs/cartpole_dqn/* --to wandb                 wandb/offline-run-..., for wandb sync
  hpcdi curves runs/cartpole_dqn/* --to mlflow -o results     results/mlruns, for mlflow ui

A file has a row a point: run, curve, step (environment step, but train iteration in a run that
begins offline), time (seconds since the epoch), value; each run folder has its own as curves.csv,
without the column run. In Python:
pandas.read_csv("curves.csv").pivot_table("value", "step", ["run", "curve"]).plot()
WANDB_MODE=online writes to the server of Weights & Biases, MLFLOW_TRACKING_URI to that of MLflow.
"""
EXIT_CODES = "exit codes: 0 shown; 2 there is no such run, or no curve of this name"
_FIRST = ("curves/*", "info/*")
_FILES = ("csv", "parquet")
_OfRuns: TypeAlias = Mapping[Path, Mapping[str, Sequence[CurvePoint]]]


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    options = parse(arguments)
    if needed := missing(options.to):
        raise LaunchError(f"--to {options.to} {needed}")
    curves = {run: chosen(run, options.names) for run in options.runs}
    if not any(curves.values()):
        raise LaunchError(_nothing(options))
    if options.to in TRACKERS:
        print_lines(_track(options.to, curves, options.output or Path()))
    elif options.to == "csv" and options.output is None:
        sys.stdout.write(_as_csv(curves))
    elif options.to in _FILES:
        _write(curves, options.to, options.output or Path(f"curves.{options.to}"))
    else:
        print_lines(_lines(curves))
    return EXIT_DONE


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns ``runs`` (their folders), ``names`` (patterns), ``to``, ``output``."""
    parser = make_parser("curves", HELP, EXIT_CODES)
    add_runs(parser)
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="PATTERN",
        dest="names",
        help="curves of this name or pattern; may be repeated (default: the first ones)",
    )
    forms = ("table", *_FILES, *TRACKERS)
    parser.add_argument("--to", choices=forms, default="table", help="the form (table)")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="PATH",
        help="the file (CSV: standard output), or where the tracker's folder is made (here)",
    )
    options = parser.parse_args(arguments)
    if options.output is not None and options.to == "table":
        parser.error("-o PATH is for --to csv, parquet, wandb and mlflow")
    options.runs = runs_of(options.runs)
    return options


def chosen(run: Path, names: Sequence[str]) -> dict[str, list[CurvePoint]]:
    """The curves of a run whose names match a pattern, sorted; without any, the first ones."""
    curves = read_curves(RunLayout(run).curve_files())
    return {
        name: curves[name]
        for name in sorted(curves)
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in names or _FIRST)
    }


def _nothing(options: argparse.Namespace) -> str:
    known = sorted({name for run in options.runs for name in chosen(run, ["*"])})
    if not known:
        return f"there are no curves in {', '.join(map(str, options.runs))}"
    asked = f"named {', '.join(options.names)}" if options.names else "one of the first ones"
    advice = "" if options.names else " (--name shows others)"
    return f"no curve is {asked}{advice}; there are {', '.join(known)}"


def _write(curves: _OfRuns, form: str, output: Path) -> None:
    """Write the curves of runs to a file.

    Raises:
        LaunchError: it cannot be written, or is a run's own.
    """
    with output_file(output, curves) as file:
        file.write(_as_csv(curves).encode() if form == "csv" else _as_parquet(curves))
    points = sum(len(of_curve) for of_run in curves.values() for of_curve in of_run.values())
    say(f"{short(output)}: {counted(points, 'point')} of {counted(len(curves), 'run')}")


def _as_csv(curves: _OfRuns) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("run", *COLUMNS))
    for run, of_run in curves.items():
        for name, points in of_run.items():
            writer.writerows((run, *row_of(name, point)) for point in points)
    return text.getvalue()


def _as_parquet(curves: _OfRuns) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        (str(run), name, *point)
        for run, of_run in curves.items()
        for name, points in of_run.items()
        for point in points
    ]
    types = (pa.string(), pa.string(), pa.int64(), pa.float64(), pa.float64())
    columns = list(zip(*rows, strict=True))
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    file = io.BytesIO()
    pq.write_table(pa.table(arrays, names=["run", *COLUMNS]), file, compression="zstd")
    return file.getvalue()


def _track(kind: str, runs: Mapping[Path, Curves], folder: Path) -> Iterator[str]:
    """Write runs, each as one of a tracker's; yields what is to be told.

    Args:
        kind: a key of `TRACKERS`.
        runs: folder -> curves by name.
        folder: in which the tracker makes its own.

    Raises:
        LaunchError: the folder cannot be written, or the tracker fails. ConfigError: a run's
            settings are damaged.
    """
    for run, curves in runs.items():
        (state, _), config_file = end_of(run), RunLayout(run).config_file
        settings = dict(dotted(read_mapping(config_file) if config_file.is_file() else {}))
        project = str(settings.get("exp_name") or run.parent.name)
        try:
            tracker = TRACKERS[kind](
                TrackedRun(run, project, {**settings, "run.state": state}), folder
            )
            tracker.log(curves)
            tracker.close(state)
            yield f"{short(run)}: {tracker.where(short)}"
        except OSError as error:
            why = error.strerror or error
            raise LaunchError(f"{short(folder)} cannot be written: {why}") from error
        except Exception as error:  # the tracker's own, of which each has others
            raise LaunchError(f"{short(run)}: {kind} fails: {error}") from error


def _lines(curves: _OfRuns) -> Iterator[str]:
    width = max(len(name) for of_run in curves.values() for name in of_run)
    for run, of_run in curves.items():
        yield short(run)
        axis = axis_of(settings_of(RunLayout(run)))
        for name, points in of_run.items():
            values = [point.value for point in points]
            finite = [value for value in values if math.isfinite(value)]
            span = f"{min(finite):.4g} to {max(finite):.4g}" if finite else "no finite value"
            yield (
                f"  {name:{width}}  {values[-1]:>9.4g}  {sparkline(values)}  {span}, "
                f"{counted(len(points), 'point')} to {axis} {human_count(points[-1].step)}"
            )
