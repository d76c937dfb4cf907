"""`hpcdi league`: the players of a run that is a league, their ratings and results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdi.commands import cross_play
from hpcdi.commands.options import (
    add_run,
    add_settings,
    at_least,
    in_columns,
    make_parser,
    number,
    print_lines,
)
from hpcdi.commands.run_state import find_run
from hpcdi.config.league import LEARNING
from hpcdi.errors import EXIT_DONE, LaunchError
from hpcdi.league.league import Payoff, Strengths
from hpcdi.league.view import describe_rise, names_of, scores_of
from hpcdi.run.run_folder import short
from hpcdi.store.atomic import read_json
from hpcdi.store.layout import RunLayout
from hpcdi.types import MAIN
from hpcdi.utils.metrics import human_count

HELP = """\
Print the players of a league: who trains and on which ranks, when the others were frozen, their
Elo with its standard deviation (1500 is the mean of all), games of the main player (or of another
one that learns: --player) against each and what it has scored (a win is 1, a draw 0.5), and how
often each is drawn as its opponent now. It reads the run folder alone, also while the run goes on.
Games are those that were collected, exploration included; those against itself are counted as the
first seat saw them. The last line says whether each copy is as strong as the one before it, within
its uncertainty; copies have met main at different times, and each other with --cross-play alone.

With --cross-play each pair of these players plays --games games in this process, without
exploration and in all seats equally often (of more than two seats one player has one and the other
the rest, then the reverse: twice as many games); the main player by its latest policy, frozen ones
by their files (the newest 40). It prints scores in percent with their standard errors, Elo by these
games alone and whether it rises from copy to copy, and writes cross_play.json and cross_play.png
into the run folder. Where neither the game nor the policies draw anything, two players repeat one
game a seat, and that error is 0: --random 0.1 draws every tenth move of theirs, so that games
differ.

With --exploitability, for zero-sum games of two players that are small (tic-tac-toe; not connect
four): the exact best response to each policy, and to their average, which draws one of the frozen
players before each game. Its mean win over both seats is 0 where nobody can win from them. In a
game of chance the environment has an attribute deals; see hpcdi/env/best_response.py.

  hpcdi league runs/tictactoe_league/latest
  hpcdi league runs/tictactoe_league/latest --player exploiter   its games, where it learns too
  hpcdi league runs/tictactoe_league/latest --png payoff.png     who beats whom, as a picture
  hpcdi league runs/tictactoe_league/latest --json               for a program
  hpcdi league runs/tictactoe_league/latest --cross-play         all play all, here and now
  hpcdi league runs/tictactoe_league/latest --exploitability     what a best response wins
  hpcdi eval runs/tictactoe_league/latest --player main --against main_000003 --games 200
"""
EXIT_CODES = "exit codes: 0 done; 1 the picture cannot be written; 2 there is no such league\n"


def main(arguments: Sequence[str]) -> int:
    """Print the table; returns the exit code.

    Raises:
        LaunchError: the run is no league, or has not begun.
    """
    parser = make_parser("league", HELP, EXIT_CODES)
    add_run(parser)
    add_settings(parser, "settings for these games")
    parser.add_argument("--player", metavar="NAME", help="whose games (default: main)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--png", metavar="FILE", help="write a picture of who beats whom")
    games = parser.add_mutually_exclusive_group()
    games.add_argument("--cross-play", action="store_true", help="all players play each other")
    games.add_argument(
        "--exploitability", action="store_true", help="solve best responses: small games only"
    )
    parser.add_argument(
        "--games",
        type=at_least(2),
        metavar="N",
        help=f"with --cross-play: games of each pair (default: {cross_play.GAMES}), rounded up to "
        "a multiple of the seats",
    )
    parser.add_argument(
        "--seed",
        type=at_least(0),
        metavar="S",
        help="with --cross-play: of the games (default: the experiment's)",
    )
    parser.add_argument(
        "--random",
        type=number("a number from 0 to 1", lambda share: 0 <= share <= 1),
        metavar="SHARE",
        help="with --cross-play: share of the policies' moves that are drawn at random (default 0)",
    )
    parser.add_argument("--trust", action="store_true", help="with --cross-play: as for hpcdi eval")
    options = parser.parse_intermixed_args(arguments)
    _refuse_unused(parser, options)
    layout = RunLayout(find_run(options.run))
    shown = read_json(layout.league_file)
    if not shown:
        raise LaunchError(
            f"{short(layout.root)} has no league.json: it is no league (policy.other.commander."
            "type: one_vs_one), or has not begun; see hpcdi status"
        )
    _check(layout, shown)
    options.config = None  # that of the run
    if options.cross_play:
        return cross_play.play(layout, shown, options)
    if options.exploitability:
        return cross_play.show_exploitability(layout, shown, options)
    player = _learning(shown, options.player or MAIN)
    lines = [json.dumps(shown)] if options.json else [_title(layout, shown), *_table(shown, player)]
    print_lines(lines)
    if options.png is not None:
        names = names_of(shown)
        cross_play.write_picture(names, scores_of(shown), Path(options.png))
        if not options.json:
            print_lines([f"picture {options.png}: rows and columns are {', '.join(names)}"])
    return EXIT_DONE


def _refuse_unused(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Check that every option of the command line changes what is printed.

    Raises:
        LaunchError: one does not.
    """
    names, settings = ["games", "seed", "random", "trust"], options.override
    why = "is for the games of --cross-play: add that"
    if options.cross_play:
        names, settings = ["player"], []
        why = "changes nothing with --cross-play: leave one of them out"
    elif options.exploitability:
        names, settings = ["games", "random", "png", "player"], []
        why = "changes nothing with --exploitability: leave one of them out"
    given = [f"--{n}" for n in names if getattr(options, n) is not parser.get_default(n)]
    for option in [*given, *settings]:
        raise LaunchError(f"{option} {why}")


def _check(layout: RunLayout, shown: Mapping[str, Any]) -> None:
    """Check that a file holds what `LeagueView` has written, by showing it all.

    Raises:
        LaunchError: it does not.
    """
    try:
        _title(layout, shown)
        scores_of(shown)
        for player in shown["players"]:
            if player["role"] in LEARNING:
                _table(shown, player["name"])
    except (AttributeError, IndexError, LookupError, TypeError, ValueError) as error:
        raise LaunchError(f"{layout.league_file} is damaged: {error!r}") from error


def _learning(shown: Mapping[str, Any], name: str) -> str:
    """Returns the name of a player that learns.

    Raises:
        LaunchError: it does not.
    """
    names = [player["name"] for player in shown["players"] if player["role"] in LEARNING]
    if name not in names:
        raise LaunchError(f"--player {name} does not learn here; {', '.join(names)} do")
    return name


def _title(layout: RunLayout, shown: Mapping[str, Any]) -> str:
    frozen = sum(player["role"] == "historical" for player in shown["players"])
    return (
        f"{short(layout.root)}: env step {human_count(shown['env_steps'])}, "
        f"{human_count(shown['games'])} games, {frozen} frozen players, {shown['matchmaking']}"
    )


def _table(shown: Mapping[str, Any], of: str) -> list[str]:
    """Players by strength; those that have no rating yet come last; games are of one player."""
    drawn = shown.get("drawn_by", {MAIN: shown["drawn"]})[of]
    ratings, payoff = shown["ratings"], Payoff()
    payoff.load_state_dict(shown["payoff"])
    heads = ("player", "role", "frozen at", "Elo", "games", "won", "drawn", "lost", "score", "now")
    rows = [heads]
    unknown = [float("-inf"), 0.0]
    for player in sorted(shown["players"], key=lambda p: -ratings.get(p["name"], unknown)[0]):
        name = player["name"]
        elo, std = ratings.get(name, unknown)
        wins, draws, losses = payoff.games(of, name)
        games = wins + draws + losses
        learns, frozen = player["role"] in LEARNING, player["role"] == "historical"
        rows.append(
            (
                name,
                _training(shown, name) if learns else player["role"],
                human_count(player["steps"]) if frozen and player["steps"] > 0 else "-",
                f"{elo:.0f} ± {std:.0f}" if name in ratings else "-",
                human_count(games) if games else "-",
                *((f"{n / games:.0%}" for n in (wins, draws, losses)) if games else "---"),
                f"{(wins + draws / 2) / games:.3f}" if games else "-",
                f"{drawn.get(name, 0.0):.0%}",
            )
        )
    strengths = Strengths.of([player["name"] for player in shown["players"]], payoff)
    return [*in_columns(rows, left=2), *describe_rise(shown, of, strengths)]


def _training(shown: Mapping[str, Any], name: str) -> str:
    """Returns whether a player trains, and on which ranks, where several do."""
    learners = shown.get("learners", {})
    if len(learners) < 2:
        return "trains"
    ranks = ", ".join(map(str, learners.get(name, ())))
    return f"trains on {ranks}" if ranks else "has no learner"
