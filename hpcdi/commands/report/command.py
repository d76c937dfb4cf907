"""`hpcdi report`: the command line."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcdi.commands.options import add_runs, make_parser
from hpcdi.commands.output_file import write_output
from hpcdi.commands.report.page import charts_of, page_of
from hpcdi.commands.report.runs import grouped, read_run, runs_in
from hpcdi.commands.run_state import asked_at_once, runs_of
from hpcdi.errors import EXIT_DONE
from hpcdi.utils.metrics import human_bytes

HELP = """\
Make one HTML file of runs, which opens without a network: their curves with mean and interval over
seeds, scores, settings that differ, where each rank's time went, evaluations, restarts, versions.

  hpcdi report runs/cartpole_dqn/latest                        of one run: report.html
  hpcdi report runs/cartpole_dqn/* -o dqn.html                 seeds of one setting are one group
  hpcdi report runs/sweep/* --plots figures                    each chart as an SVG file, too
  hpcdi report runs/sweep/* --against "Mnih et al. 2015=401.2"

Runs that differ in `seed` and in names alone are one group. A folder without a run is searched for
runs below it. Intervals are 95 % bootstrap percentiles over the runs of a group.
"""
EXIT_CODES = "exit codes: 0 written; 2 there is no such run, or the file cannot be written"


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    options = parse(arguments)
    ask = asked_at_once(options.runs)
    groups = grouped([read_run(folder, ask) for folder in options.runs])
    page = page_of(groups, options.against)
    write_output(options.output, page)
    if options.plots is not None:
        written = set[str]()
        for name, chart in charts_of(groups, options.against).items():
            file = name.replace("/", "_")
            while file in written:  # a/b and a_b
                file += "_"
            written.add(file)
            write_output(options.plots / f"{file}.svg", chart)
    size = human_bytes(len(page.encode()))
    sys.stdout.write(f"{options.output}: {runs_in(groups)}, {size}\n")
    return EXIT_DONE


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns ``runs`` (folders), ``output``, ``plots``, ``against`` (name and score, or None)."""
    parser = make_parser("report", HELP, EXIT_CODES)
    add_runs(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the report (report.html)",
    )
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write each chart as SVG there")
    parser.add_argument(
        "--against", type=_score, metavar="NAME=SCORE", help="a published score, drawn as a line"
    )
    options = parser.parse_args(arguments)
    options.runs = runs_of(options.runs)
    return options


def _score(text: str) -> tuple[str, float]:
    name, _, score = text.rpartition("=")
    try:
        value = float(score)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be NAME=SCORE, with a finite score, not {text!r}")
    return name or "published", value
