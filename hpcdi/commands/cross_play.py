"""`hpcdi league RUN --cross-play`: all players of a league play each other."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.commands.options import in_columns, print_lines
from hpcdi.commands.run_state import status_of
from hpcdi.commands.score_picture import write_picture
from hpcdi.commands.versus import Arena, Result, spread_text
from hpcdi.errors import EXIT_DONE, LaunchError
from hpcdi.league.league import Payoff, Rating, Strengths, frozen_file
from hpcdi.league.view import describe_rise, names_of, players_of
from hpcdi.run.run_folder import short
from hpcdi.store.atomic import write_json
from hpcdi.store.disk_full import or_refuse
from hpcdi.store.layout import RunLayout
from hpcdi.types import MAIN, Array
from hpcdi.utils.nested import jsonable

GAMES = 20
"""Of each pair, by default."""


def play(layout: RunLayout, shown: Mapping[str, Any], given: argparse.Namespace) -> int:
    """Play all pairs, print the table of scores and write it; returns the exit code.

    Args:
        layout: the run folder.
        shown: its league.json.
        given: ``games``, ``seed``, ``override``, ``trust``, ``json`` and ``png``.

    Raises:
        LaunchError: the league has one player yet, a player's policy is missing, or the results
            cannot be written.
    """
    root, names, games = layout.root, names_of(shown), given.games or GAMES
    if len(names) < 2:
        raise LaunchError(f"{short(root)} has one player yet: wait until a copy of it is frozen")
    check_files(layout, [p["name"] for p in players_of(shown) if p["role"] == "historical"])
    share = given.random or 0.0
    found: dict[tuple[str, str], Result] = {}
    with Arena(root, given, games, "main", random_share=share) as arena:
        sources = {name: arena.source(name) for name in names}
        pairs = list(itertools.combinations(names, 2))
        if not given.json:
            drawn = f"{share:g} of the policies' moves at random" if share else "no move at random"
            going = (
                "" if status_of(root).is_over else ", its newest policy on disk: the run goes on"
            )
            print_lines([
                f"{short(root)}: {len(pairs)} pairs of {len(names)} players, {arena.games} games "
                f"each in all seats, {drawn}, seed {arena.seed}; main is of train "
                f"iteration {arena.iteration}{going}"
            ])  # fmt: skip
        for one, other in pairs:
            found[one, other] = arena.play(sources[one], sources[other])
    kept: dict[str, Any] = {
        "env_steps": shown["env_steps"], "main_train_iter": arena.iteration, "seed": arena.seed,
        "random_share": share,
        "players": [p for p in shown["players"] if p["name"] in names],
        "pairs": [{"one": a, "other": b, **result.figures()} for (a, b), result in found.items()],
    }  # fmt: skip
    scores, errors = _matrices(names, found)
    strengths = _strengths(names, found)
    kept["ratings"] = {name: [r.elo, r.std] for name, r in strengths.ratings().items()}
    picture = Path(given.png) if given.png else layout.cross_play_file.with_suffix(".png")
    with or_refuse(f"the table {short(layout.cross_play_file)}"):
        write_json(layout.cross_play_file, jsonable(kept))
    write_picture(names, scores, picture)
    if given.json:
        print_lines([json.dumps(jsonable(kept))])
    else:
        print_lines(_table(names, scores, errors, strengths.ratings()))
        print_lines(describe_rise(kept, MAIN, strengths))
        if not share and not errors[~np.eye(len(names), dtype=bool)].any():  # NaN: unknown
            print_lines([
                "a pair's games from one seat all ended alike; --random 0.1 makes games differ"
            ])  # fmt: skip
        print_lines([f"table {short(layout.cross_play_file)}, picture {short(picture)}"])
    return EXIT_DONE


def check_files(layout: RunLayout, frozen: Iterable[str]) -> None:
    """Check that the policies of frozen players are there.

    Raises:
        LaunchError: one is missing.
    """
    files = [frozen_file(name) for name in frozen]
    missing = [file for file in files if not (layout.root / file).is_file()]
    if missing:
        raise LaunchError(
            f"{short(layout.root)} lacks the policies of {len(missing)} players: "
            f"{', '.join(missing)}. Copy them back; two others play by hpcdi eval RUN --player A "
            "--against B"
        )


def _matrices(names: Sequence[str], found: Mapping[tuple[str, str], Result]) -> tuple[Array, Array]:
    """Scores and their standard errors, row against column; NaN against oneself."""
    scores, errors = np.full((2, len(names), len(names)), np.nan)
    for (one, other), result in found.items():
        i, j = names.index(one), names.index(other)
        scores[i, j], scores[j, i] = result.score, 1 - result.score
        errors[i, j] = errors[j, i] = result.std_error
    return scores, errors


def _strengths(names: Sequence[str], found: Mapping[tuple[str, str], Result]) -> Strengths:
    """By these games."""
    payoff = Payoff()
    for pair, result in found.items():
        payoff.add(*pair, *result.counts)
    return Strengths.of(names, payoff)


def _table(
    names: Sequence[str], scores: Array, errors: Array, ratings: Mapping[str, Rating]
) -> list[str]:
    """Lines; the last columns have the mean over all opponents, and Elo."""
    rows = [("score in %", "", *map(str, range(1, len(names) + 1)), "mean", "Elo")]
    others = len(names) - 1
    for i, name in enumerate(names):
        of_pairs = np.delete(errors[i], i)
        mean, error = np.nansum(scores[i]) / others, np.sqrt((of_pairs**2).sum()) / others
        against = [
            "-" if i == j else _cell(scores[i, j], errors[i, j], digits=0)
            for j in range(len(names))
        ]
        elo, std = ratings[name].elo, ratings[name].std
        of_all = (_cell(mean, error, digits=1), f"{elo:.0f}±{std:.0f}")
        rows.append((name, str(i + 1), *against, *of_all))
    return in_columns(rows)


def _cell(score: float, error: float, digits: int) -> str:
    return f"{100 * score:.{digits}f}±{spread_text(100 * error, digits)}"
