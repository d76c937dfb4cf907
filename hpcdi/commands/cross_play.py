"""`hpcdi league RUN --cross-play` and `--exploitability`: players of a league, judged anew here.

All players play each other, or a best response to each is solved.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.commands.options import in_columns, print_lines
from hpcdi.commands.output_file import output_file
from hpcdi.commands.run_state import status_of
from hpcdi.commands.versus import Arena, Result, spread_text
from hpcdi.config.schema import ExperimentConfig
from hpcdi.env.best_response import SmallGame, best_responses
from hpcdi.env.create import get_env_cls
from hpcdi.env.pettingzoo import as_battle
from hpcdi.errors import EXIT_DONE, LaunchError
from hpcdi.league.league import Payoff, Rating, Strengths
from hpcdi.league.view import absent_copies, describe_rise, heat_map, names_of, players_of
from hpcdi.run.run_folder import short
from hpcdi.store.atomic import write_json
from hpcdi.store.disk_full import or_refuse
from hpcdi.store.layout import RunLayout
from hpcdi.types import MAIN, Array
from hpcdi.utils.console import others_to_stderr
from hpcdi.utils.nested import jsonable

GAMES = 20
"""Of each pair, by default."""
AVERAGE = "average of the frozen"
_CELL, _FONT, _GAP = 36, 13, 6
"""Of the picture, in pixels."""
_TITLE = "score in % of the row's player against the column's: blue wins, red loses"


def play(layout: RunLayout, shown: Mapping[str, Any], options: argparse.Namespace) -> int:
    """Play all pairs, print the table of scores and write it; returns the exit code.

    Args:
        layout: the run folder.
        shown: its league.json.
        options: ``games``, ``seed``, ``override``, ``trust``, ``json`` and ``png``.

    Raises:
        LaunchError: the league has one player yet, a player's policy is missing, or the results
            cannot be written.
    """
    root, names, games = layout.root, names_of(shown), options.games or GAMES
    if len(names) < 2:
        raise LaunchError(f"{short(root)} has one player yet: wait until a copy of it is frozen")
    check_files(layout, [p["name"] for p in players_of(shown) if p["role"] == "historical"])
    share = options.random or 0.0
    results: dict[tuple[str, str], Result] = {}
    with (
        others_to_stderr(options.json),
        Arena(root, options, games, "main", random_share=share) as arena,
    ):
        sources = {name: arena.source(name) for name in names}
        pairs = list(itertools.combinations(names, 2))
        # of more seats than two one player has one and the other the rest: each has its turn
        turns = 1 if arena.players == 2 else 2
        if not options.json:
            drawn = f"{share:g} of the policies' moves at random" if share else "no move at random"
            going = (
                "" if status_of(root).is_over else ", its newest policy on disk: the run goes on"
            )
            print_lines([
                f"{short(root)}: {len(pairs)} pairs of {len(names)} players, {arena.games} games "
                f"each in all seats{', both ways round' * (turns > 1)}, {drawn}, seed "
                f"{arena.seed}; main is of train "
                f"iteration {arena.iteration}{going}"
            ])  # fmt: skip
        for pair in pairs:
            for one, other in (pair, pair[::-1])[:turns]:
                results[one, other] = arena.play(sources[one], sources[other])
    record: dict[str, Any] = {
        "env_steps": shown["env_steps"], "main_train_iter": arena.iteration, "seed": arena.seed,
        "random_share": share,
        "players": [p for p in shown["players"] if p["name"] in names],
        "pairs": [{"one": a, "other": b, **result.figures()} for (a, b), result in results.items()],
    }  # fmt: skip
    scores, errors = _matrices(names, results)
    strengths = _strengths(names, results)
    record["ratings"] = {name: [r.elo, r.std] for name, r in strengths.ratings().items()}
    picture = Path(options.png) if options.png else layout.cross_play_file.with_suffix(".png")
    with or_refuse(f"the table {short(layout.cross_play_file)}"):
        write_json(layout.cross_play_file, jsonable(record))
    write_picture(names, scores, picture)
    if options.json:
        print_lines([json.dumps(jsonable(record))])
    else:
        print_lines(_table(names, scores, errors, strengths.ratings()))
        print_lines(describe_rise(record, MAIN, strengths))
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
    missing = absent_copies(layout.root, frozen)
    if missing:
        raise LaunchError(
            f"{short(layout.root)} lacks the policies of {len(missing)} players: "
            f"{', '.join(missing)}. Copy them back; two others play by hpcdi eval RUN --player A "
            "--against B"
        )


def _matrices(
    names: Sequence[str], results: Mapping[tuple[str, str], Result]
) -> tuple[Array, Array]:
    """Returns scores and their standard errors, row against column; NaN against oneself.

    Of a pair that has played both ways round, the mean of both.
    """
    scores, variances, counts = np.zeros((3, len(names), len(names)))
    for (one, other), result in results.items():
        i, j = names.index(one), names.index(other)
        for at, score in (((i, j), result.score), ((j, i), 1 - result.score)):
            scores[at] += score
            variances[at] += result.std_error**2
            counts[at] += 1
    with np.errstate(invalid="ignore"):
        return scores / counts, np.sqrt(variances) / counts


def _strengths(names: Sequence[str], results: Mapping[tuple[str, str], Result]) -> Strengths:
    """Returns how strong the players are by these games alone."""
    payoff = Payoff()
    for pair, result in results.items():
        payoff.add(*pair, *result.counts)
    return Strengths.of(names, payoff)


def _table(
    names: Sequence[str], scores: Array, errors: Array, ratings: Mapping[str, Rating]
) -> list[str]:
    """Returns lines; the last columns have the mean over all opponents, and Elo."""
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


def write_picture(names: Sequence[str], scores: Array, path: Path) -> None:
    """Write scores as a PNG.

    Args:
        names: of the players.
        scores: [players, players], row against column; NaN: they have not played.
        path: of the file.

    Raises:
        LaunchError: it cannot be written, or is a run's own.
    """
    with output_file(path) as file:
        _drawn(names, scores).save(file, "PNG")


def _drawn(names: Sequence[str], scores: Array) -> Any:
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(_FONT)
    cells = Image.fromarray(heat_map(scores, _CELL))
    on_cells = ImageDraw.Draw(cells)
    for (row, column), score in np.ndenumerate(scores):
        if not np.isnan(score):
            middle = ((column + 0.5) * _CELL, (row + 0.5) * _CELL)
            ink = "white" if abs(score - 0.5) > 0.35 else "black"
            on_cells.text(middle, f"{100 * score:.0f}", ink, font, anchor="mm")
    longest = int(max(font.getlength(name) for name in names)) + 2 * _GAP
    labels = Image.new("RGB", (longest, cells.height), "white")
    for row, name in enumerate(names):
        at = (longest - _GAP, (row + 0.5) * _CELL)
        ImageDraw.Draw(labels).text(at, name, "black", font, anchor="rm")
    heads = Image.new("RGB", (longest, cells.width), "white")  # turned, when it is in its place
    for column, name in enumerate(names):
        at = (_GAP, (column + 0.5) * _CELL)
        ImageDraw.Draw(heads).text(at, name, "black", font, anchor="lm")
    top = 2 * _FONT + longest
    width = max(longest + cells.width, int(font.getlength(_TITLE)) + _GAP) + _GAP
    picture = Image.new("RGB", (width, top + cells.height + _GAP), "white")
    ImageDraw.Draw(picture).text((_GAP, _FONT), _TITLE, "black", font, anchor="lm")
    picture.paste(heads.transpose(Image.Transpose.ROTATE_90), (longest, 2 * _FONT))
    picture.paste(labels, (0, top))
    picture.paste(cells, (longest, top))
    return picture


def show_exploitability(
    layout: RunLayout, shown: Mapping[str, Any], options: argparse.Namespace
) -> int:
    """Solve best responses and print what they win; returns the exit code.

    Args:
        layout: the run folder.
        shown: its league.json.
        options: ``override``, ``seed``, ``trust`` and ``json``.

    Raises:
        LaunchError: a policy is missing, or draws its actions.
        EnvError: the game is not small, not of two players, or not zero-sum.
    """
    copies = [p["name"] for p in shown["players"] if p["parent"] == MAIN]
    check_files(layout, copies)
    names = [player["name"] for player in players_of(shown) if player["role"] != "fixed"]
    with others_to_stderr(options.json), Arena(layout.root, options, 2, "main") as arena:
        config: ExperimentConfig = arena.config
        if config.policy.eval.sample:
            raise LaunchError(
                "policy.eval.sample draws the actions; exploitability is exact where a policy "
                "takes the likeliest: add policy.eval.sample=false"
            )
        acts = {n: arena.strategy(arena.source(n)) for n in dict.fromkeys([*names, *copies])}
        mixtures = {name: [(1.0, acts[name])] for name in names}
        if copies:
            mixtures[AVERAGE] = [(1 / len(copies), acts[name]) for name in copies]
        env = as_battle(get_env_cls(config.env).make_single(config.env))
        try:
            game = SmallGame(env)
            won = {name: best_responses(game, mixture) for name, mixture in mixtures.items()}
        finally:
            env.close()
    if options.json:
        figures = {n: {"exploitability": w.exploitability, "won": w} for n, w in won.items()}
        print_lines([json.dumps(figures)])
        return EXIT_DONE
    rows = [("player", "exploitability", "best in seat 1", "in seat 2")]
    rows += [
        (n, f"{w.exploitability:.3f}", f"{w.first:+.3f}", f"{w.second:+.3f}")
        for n, w in won.items()
    ]
    title = f"{short(layout.root)}: what the best response wins a game; {len(copies)} are frozen"
    print_lines([title, *in_columns(rows)])
    return EXIT_DONE
