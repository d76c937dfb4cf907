"""What all benchmarks share: rows, their table, their command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        name: what was measured.
        value: the figure.
        unit: of the figure.
        goal: what it should be, as text; empty where there is none.
        ok: whether it is; None where there is no goal.
        ratio: to the peer, measured in the same run; None where there is none.
        peer: what it is compared with.
    """

    name: str
    value: float
    unit: str
    goal: str = ""
    ok: bool | None = None
    ratio: float | None = None
    peer: str = ""


def at_least(name: str, value: float, unit: str, goal: float, **more: object) -> Row:
    """A figure that should be `goal` or more."""
    return Row(name, value, unit, f">= {goal:g}", value >= goal, **more)  # type: ignore[arg-type]


def at_most(name: str, value: float, unit: str, goal: float, **more: object) -> Row:
    """A figure that should be `goal` or less."""
    return Row(name, value, unit, f"<= {goal:g}", value <= goal, **more)  # type: ignore[arg-type]


def show(rows: Iterable[Row], as_json: bool) -> None:
    """Print rows: a table for people, or one JSON object a line."""
    for row in rows:
        if as_json:
            sys.stdout.write(json.dumps(asdict(row)) + "\n")
            continue
        verdict = {True: "ok", False: "MISSED", None: ""}[row.ok]
        versus = f"{row.ratio:.2f} x {row.peer}" if row.ratio is not None else row.peer
        sys.stdout.write(
            f"{row.name:<64} {row.value:>12,.4g} {row.unit:<10} {row.goal:<10} {verdict:<7} "
            f"{versus}\n".rstrip()
            + "\n"
        )
    sys.stdout.flush()


def parser(about: str) -> argparse.ArgumentParser:
    """Command line with the options that every benchmark has."""
    made = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--json", action="store_true", help="one JSON object a row")
    made.add_argument("--quick", action="store_true", help="less than a minute, less exact")
    return made


def parsed(made: argparse.ArgumentParser, **of_quick: Any) -> argparse.Namespace:
    """Returns the command line's options; with --quick these are the defaults, by name."""
    given = made.parse_args()
    if given.quick:
        made.set_defaults(**of_quick)
        given = made.parse_args()
    return given
