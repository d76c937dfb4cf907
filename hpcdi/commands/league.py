"""`hpcdi league`: the players of a run that is a league, their ratings and results."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdi.commands.options import make_parser
from hpcdi.commands.run_state import find
from hpcdi.errors import EXIT_DONE, LaunchError
from hpcdi.launch.run_folder import short
from hpcdi.store.atomic import published, read_json
from hpcdi.store.disk_full import or_refuse
from hpcdi.store.layout import RunLayout
from hpcdi.utils.metrics import human_count
from hpcdi.worker.coordinator.league import LEARNING, MAIN, Payoff
from hpcdi.worker.coordinator.league_view import heat_map, names_of

HELP = """\
Print the players of a league: who trains, when the others were frozen, their Elo with its standard
deviation (1500 is the mean of all), games of the main player against each and what it has scored
(a win is 1, a draw 0.5), and how often each is drawn as its opponent now. It reads the run folder
alone, also while the run goes on. Games are those that were collected, exploration included; those
against itself are counted as the first seat saw them.

  hpcdi league runs/tictactoe_league/latest
  hpcdi league runs/tictactoe_league/latest --png payoff.png     who beats whom, as a picture
  hpcdi league runs/tictactoe_league/latest --json               for a program
  hpcdi eval runs/tictactoe_league/latest --player main --against main_000003 --games 200
"""
EXIT_CODES = "exit codes: 0 done; 1 the picture cannot be written; 2 there is no such league\n"


def main(arguments: Sequence[str]) -> int:
    """Print the table; returns the exit code.

    Raises:
        LaunchError: the run is no league, or has not begun.
    """
    parser = make_parser("league", HELP, EXIT_CODES)
    parser.add_argument("run", metavar="RUN|JOB", help="run folder, or Slurm job id")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--png", metavar="FILE", help="write a picture of who beats whom")
    given = parser.parse_args(arguments)
    layout = RunLayout(find(given.run))
    shown = read_json(layout.league_file)
    if not shown:
        raise LaunchError(
            f"{short(layout.root)} has no league.json: it is no league (policy.other.commander."
            "type: one_vs_one), or has not begun; see hpcdi status"
        )
    lines = [json.dumps(shown)] if given.json else [_title(layout, shown), *_table(shown)]
    sys.stdout.write("\n".join(lines) + "\n")
    if given.png is not None:
        _write_picture(shown, Path(given.png))
        if not given.json:
            order = ", ".join(names_of(shown))
            sys.stdout.write(f"picture {given.png}: rows and columns are {order}\n")
    return EXIT_DONE


def _title(layout: RunLayout, shown: Mapping[str, Any]) -> str:
    frozen = sum(player["role"] == "historical" for player in shown["players"])
    return (
        f"{short(layout.root)}: env step {human_count(shown['env_steps'])}, "
        f"{human_count(shown['games'])} games, {frozen} frozen players, {shown['matchmaking']}"
    )


def _table(shown: Mapping[str, Any]) -> list[str]:
    """Players by strength; those that have no rating yet come last."""
    ratings, payoff = shown["ratings"], Payoff()
    payoff.load_state_dict(shown["payoff"])
    heads = ("player", "role", "frozen at", "Elo", "games", "won", "drawn", "lost", "score", "now")
    rows = [heads]
    unknown = [float("-inf"), 0.0]
    for player in sorted(shown["players"], key=lambda p: -ratings.get(p["name"], unknown)[0]):
        name = player["name"]
        elo, std = ratings.get(name, unknown)
        wins, draws, losses = payoff.games(MAIN, name)
        games = wins + draws + losses
        learns, frozen = player["role"] in LEARNING, player["role"] == "historical"
        rows.append(
            (
                name,
                "trains" if learns else player["role"],
                human_count(player["steps"]) if frozen else "-",
                f"{elo:.0f} ± {std:.0f}" if name in ratings else "-",
                human_count(games) if games else "-",
                *((f"{n / games:.0%}" for n in (wins, draws, losses)) if games else "---"),
                f"{(wins + draws / 2) / games:.3f}" if games else "-",
                f"{shown['drawn'].get(name, 0.0):.0%}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _write_picture(shown: Mapping[str, Any], path: Path) -> None:
    from PIL import Image

    with or_refuse(f"the picture {path}"), published(path) as file:
        Image.fromarray(heat_map(shown)).save(file, "PNG")
