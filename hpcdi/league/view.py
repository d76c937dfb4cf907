"""What people see of a league: its file, its curves, and a picture of who beats whom."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.league.league import League, Payoff, Strengths, frozen_file
from hpcdi.store.atomic import write_json
from hpcdi.store.disk_full import or_warn
from hpcdi.types import MAIN, Array, ScalarWriter
from hpcdi.utils.event_file import TensorBoardWriter

_EVERY_S = 2.0
_SHARE = 0.05
"""Of rank 0's time at most: ratings of a thousand frozen copies take a second."""
_PICTURE_S = 60.0
_MOST = 40
"""Frozen players in a picture: the newest."""
_CELL = 12  # pixels
_WINS, _LOSES, _EVEN, _UNKNOWN = (
    np.array(colour, float)
    for colour in ((33, 102, 172), (178, 24, 43), (247, 247, 247), (120, 120, 120))
)


class LeagueView:
    """Writes a league's file and curves when they are due.

    Args:
        path: of the file.
        curves: takes its curves; None: none are written.
        pictures: takes pictures of its payoffs.
    """

    def __init__(
        self,
        path: Path,
        curves: ScalarWriter | None = None,
        pictures: TensorBoardWriter | None = None,
    ) -> None:
        self._path, self._curves, self._pictures = path, curves, pictures
        self._due = self._picture_due = float("-inf")

    def refresh(
        self,
        league: League,
        env_steps: int,
        now: float,
        *,
        learners: Mapping[str, Sequence[int]] | None = None,
        at_once: bool = False,
    ) -> None:
        """Write what is due.

        Args:
            league: as it is now.
            env_steps: of the run so far.
            now: seconds, any origin.
            learners: ranks that each player is trained by.
            at_once: write everything, whether it is due or not: at the end.
        """
        if now < self._due and not at_once:
            return
        began = time.monotonic()
        shown = shown_of(league, env_steps, learners)
        self._due = now + max(_EVERY_S, (time.monotonic() - began) / _SHARE)
        or_warn("league.json", lambda: write_json(self._path, shown, fsync=False))
        if self._curves is None or not shown["payoff"]:
            return
        scalars = {"frozen": len(league.frozen()), "games": shown["games"]}
        for name in league.learning:
            suffix = "" if name == MAIN else f"_{name}"
            if name in shown["ratings"]:
                scalars[f"elo{suffix}"], scalars[f"elo{suffix}_std"] = shown["ratings"][name]
            if suffix:
                scalars[f"score{suffix}"] = league.payoff.score(name, MAIN)
        for name, value in scalars.items():
            self._curves.add_scalar(f"league/{name}", value, env_steps)
        if self._pictures is not None and (now >= self._picture_due or at_once):
            self._picture_due = now + _PICTURE_S
            picture = heat_map(scores_of(shown)).transpose(2, 0, 1)[None, None]
            self._pictures.add_video("league/payoff", picture, env_steps)


def shown_of(
    league: League, env_steps: int, learners: Mapping[str, Sequence[int]] | None = None
) -> dict[str, Any]:
    """Players, results, ratings ``[elo, std]``, who is drawn, and who trains where: plain data."""
    state = league.state_dict()
    return {
        "env_steps": env_steps,
        "games": sum(sum(row["games"]) for row in state["payoff"]),
        "matchmaking": league.config.matchmaking,
        "drawn": league.opponents(MAIN),
        "drawn_by": {name: league.opponents(name) for name in league.learning},
        "learners": {name: list(ranks) for name, ranks in (learners or {}).items()},
        "ratings": {name: [r.elo, r.std] for name, r in league.ratings().items()},
        **state,
    }


def heat_map(scores: Array, cell: int = _CELL) -> Array:
    """Scores, row against column, as a picture, uint8 [pixels, pixels, 3].

    Blue: the row's player wins; red: it loses; white: they are even; grey: they have not played.

    Args:
        scores: [players, players], see `scores_of`.
        cell: pixels of one.
    """
    lead = np.nan_to_num(2 * scores - 1)[..., None]
    cells = _EVEN + np.abs(lead) * (np.where(lead > 0, _WINS, _LOSES) - _EVEN)
    cells[np.isnan(scores)] = _UNKNOWN
    picture: Array = cells.round().astype(np.uint8).repeat(cell, 0).repeat(cell, 1)
    return picture


def scores_of(shown: Mapping[str, Any]) -> Array:
    """Returns the scores of all games, row against column, in the order of `names_of`.

    float64 [players, players]: a win is 1, a draw 0.5; NaN: they have not played.
    """
    names = names_of(shown)
    payoff = Payoff()
    payoff.load_state_dict(shown["payoff"])
    scores = np.full((len(names), len(names)), np.nan)
    for i, one in enumerate(names):
        for j, other in enumerate(names):
            wins, draws, losses = payoff.games(one, other)
            if games := wins + draws + losses:
                scores[i, j] = (wins + draws / 2) / games
    return scores


def describe_rise(shown: Mapping[str, Any], player: str, strengths: Strengths) -> list[str]:
    """Returns a line on whether a player's frozen copies became stronger; none before any game.

    Args:
        shown: see `shown_of`.
        player: name of the player.
        strengths: those of all players.
    """
    copies = [p["name"] for p in shown["players"] if p["parent"] == player]
    gains = strengths.gains(copies)
    if not gains:
        return []
    played = [name for name in copies if name in strengths.at]
    (total,) = strengths.gains([played[0], played[-1]]).values()
    falls = [f"{n} ({g.elo:+.0f} ± {g.std:.0f})" for n, g in gains.items() if g.elo < -2 * g.std]
    return [
        f"{played[-1]} is {total.elo:+.0f} ± {total.std:.0f} Elo above {played[0]}; "
        f"weaker than the copy before, by more than 2 standard deviations: "
        f"{', '.join(falls) or 'none'} of {len(gains)}"
    ]


def names_of(shown: Mapping[str, Any]) -> Sequence[str]:
    """Names of `players_of`."""
    return [player["name"] for player in players_of(shown)]


def players_of(shown: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """Players of a picture, in its order.

    The players that learn come first, then fixed ones, then the newest frozen ones, oldest first.
    """
    frozen = [player for player in shown["players"] if player["role"] == "historical"]
    return [p for p in shown["players"] if p["role"] != "historical"] + frozen[-_MOST:]


def absent_copies(root: Path, names: Iterable[str]) -> list[str]:
    """Returns the policy files of frozen copies that are gone, relative to the run folder."""
    return [file for file in map(frozen_file, names) if not (root / file).is_file()]
