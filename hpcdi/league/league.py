"""A league: who plays whom, who is frozen when, and how strong each is. Decisions only.

Some players of a league learn, others are frozen. Those that learn play against themselves and
against frozen players, drawn by a rule of matchmaking; now and then a copy of one is frozen and
joins as a historical player. Game results come in as counts, plain data go out; there is no clock,
no file, no message. Roles, PFSP and the rules of freezing are those of AlphaStar (Vinyals et al.
2019, Methods, "Multi-agent learning").
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from hpcdi.config.league import LEARNING, LeagueConfig
from hpcdi.types import MAIN, Array, GameCounts

"""Roles of players that learn; the others are "historical" (a frozen copy) and "fixed"."""
_ELO = 400 / np.log(10)
"""Points of Elo for one unit of log odds."""
_PRIOR_STD = 400.0
"""Of ratings around their mean before any game, in Elo: those of unbeaten players stay finite."""
_NEWTON_STEPS = 100
"""Names that stand for other policies."""
_TOO_WEAK = 0.1
"""A main exploiter that wins less against the main player plays against its past instead."""


@dataclass
class Member:
    """A player of the league: it learns, is a frozen copy, or is fixed.

    Attributes:
        name: unique in the league; a frozen copy of "main" is "main_000003".
        role: one of `LEARNING`, "historical" or "fixed".
        parent: of a frozen copy: whose it is.
        source: what acts for it: a policy file in the run folder, "random", or a callable; empty:
            the newest policy of its learner.
        version: train iteration, of a frozen copy when it was frozen; -1: it is not known.
        steps: environment steps made for it; of a frozen copy, when it was frozen.
        frozen_at: `steps` when it was frozen last.
    """

    name: str
    role: str
    parent: str = ""
    source: str = ""
    version: int = -1
    steps: int = 0
    frozen_at: int = 0

    @property
    def learns(self) -> bool:
        """True if it is trained."""
        return self.role in LEARNING


class Payoff:
    """Results of games by pairs of players: all there ever were, and with older ones decayed.

    Args:
        decay: weight of a pair's older games, for each newer one.
    """

    def __init__(self, decay: float = 1.0) -> None:
        self._decay = decay
        self._total: dict[tuple[str, str], Array] = {}  # wins, draws, losses of the first
        self._recent: dict[tuple[str, str], Array] = {}

    def add(self, one: str, other: str, wins: int, draws: int, losses: int) -> None:
        """Add games, as `one` saw them."""
        if one > other:
            one, other, wins, losses = other, one, losses, wins
        counts = np.array([wins, draws, losses], dtype=np.float64)
        played = counts.sum()
        # as if their wins, draws and losses had come evenly mixed
        kept = self._decay**played
        weight = played if kept == 1 else (1 - kept) / (1 - self._decay)
        pair = (one, other)
        self._total[pair] = self._total.get(pair, np.zeros(3)) + counts
        self._recent[pair] = self._recent.get(pair, np.zeros(3)) * kept
        self._recent[pair] += counts * (weight / played if played else 0.0)

    def games(self, one: str, other: str) -> tuple[int, int, int]:
        """Wins, draws and losses of `one` in all games; against itself those of the first seat."""
        wins, draws, losses = self._of(self._total, one, other).astype(int).tolist()
        return wins, draws, losses

    def recent(self, one: str, other: str) -> Array:
        """The same, older games decayed: float64 [3]."""
        return self._of(self._recent, one, other)

    def score(self, one: str, other: str) -> float:
        """Share of points that `one` takes, a draw being half a win; 0.5 before any game."""
        wins, draws, losses = self.recent(one, other).tolist()
        return float((wins + draws / 2 + 0.5) / (wins + draws + losses + 1))  # one game drawn

    def pairs(self) -> list[tuple[str, str]]:
        """Pairs that have played."""
        return list(self._total)

    @staticmethod
    def _of(counts: Mapping[tuple[str, str], Array], one: str, other: str) -> Array:
        if one > other:
            return counts.get((other, one), np.zeros(3))[::-1]
        return counts.get((one, other), np.zeros(3))

    def state_dict(self) -> list[dict[str, Any]]:
        """Plain data."""
        return [
            {
                "one": one,
                "other": other,
                "games": total.astype(int).tolist(),
                "recent": self._recent[one, other].tolist(),
            }
            for (one, other), total in self._total.items()
        ]

    def load_state_dict(self, state: Iterable[Mapping[str, Any]]) -> None:
        """Restore a `state_dict`."""
        rows = list(state)
        self._total = {(r["one"], r["other"]): np.array(r["games"], float) for r in rows}
        self._recent = {(r["one"], r["other"]): np.array(r["recent"], float) for r in rows}


@dataclass(frozen=True)
class Rating:
    """Elo, of a player (1500 is the league's mean) or a difference, and its standard deviation."""

    elo: float
    std: float


@dataclass(frozen=True)
class Strengths:
    """Elo of players that have played each other, older games decayed.

    The most probable strengths of a Bradley-Terry model with a normal prior, a draw being half a
    win and half a loss; covariances are those of the Laplace approximation. (Hunter 2004, "MM
    algorithms for generalized Bradley-Terry models", for the model; fitted by Newton's method.)

    Attributes:
        at: number of each player that has played another.
        elo: their strengths, 0 being the mean of all, float64 [players].
        covariance: of these, float64 [players, players].
    """

    at: Mapping[str, int]
    elo: Array
    covariance: Array

    @classmethod
    def of(cls, players: Sequence[str], payoff: Payoff) -> Strengths:
        """Strengths by the games of a payoff."""
        pairs = [pair for pair in payoff.pairs() if pair[0] != pair[1]]
        names = [name for name in players if any(name in pair for pair in pairs)]
        at = {name: i for i, name in enumerate(names)}
        points, count = np.zeros((2, len(names), len(names)))
        for one, other in pairs:
            wins, draws, losses = payoff.recent(one, other).tolist()
            points[at[one], at[other]] = wins + draws / 2
            points[at[other], at[one]] = losses + draws / 2
            count[at[one], at[other]] = count[at[other], at[one]] = wins + draws + losses
        strength = np.zeros(len(names))
        prior = (_ELO / _PRIOR_STD) ** 2
        curvature = np.eye(len(names))
        for _ in range(_NEWTON_STEPS):
            expected = 1 / (1 + np.exp(strength[None, :] - strength[:, None]))
            slope = (points - count * expected).sum(axis=1) - prior * strength
            informed = count * expected * (1 - expected)
            curvature = np.diag(informed.sum(axis=1) + prior) - informed
            step = np.linalg.solve(curvature, slope)
            strength = strength + np.clip(step, -1.0, 1.0)
            if np.abs(step).max(initial=0.0) < 1e-9:
                break
        centre = np.eye(len(names)) - 1 / max(len(names), 1)
        covariance = centre @ np.linalg.inv(curvature) @ centre
        return cls(at, _ELO * centre @ strength, _ELO**2 * covariance)

    def ratings(self) -> dict[str, Rating]:
        """Each player's."""
        std = np.sqrt(np.diag(self.covariance))
        return {n: Rating(1500 + float(self.elo[i]), float(std[i])) for n, i in self.at.items()}

    def gains(self, names: Sequence[str]) -> dict[str, Rating]:
        """What each of these is stronger than the one before it, and that difference's deviation.

        Args:
            names: of players; those that have not played are passed over.
        """
        gains, played = {}, [name for name in names if name in self.at]
        for before, name in itertools.pairwise(played):
            way = np.zeros(len(self.at))
            way[self.at[name]], way[self.at[before]] = 1, -1
            std = float(np.sqrt(way @ self.covariance @ way))
            gains[name] = Rating(float(way @ self.elo), std)
        return gains


class League:
    """The players, their results, and the decisions that follow from them.

    Args:
        config: its rules.
        evaluate_against: opponent of evaluations, a source as of a `Member`.
        seed: of the experiment.
    """

    def __init__(
        self,
        config: LeagueConfig | None = None,
        evaluate_against: str = "random",
        seed: int = 0,
    ) -> None:
        self.config = config or LeagueConfig()
        self._evaluate_against, self._seed = evaluate_against, seed
        self.players: dict[str, Member] = {}
        self.payoff = Payoff(self.config.decay)
        for name, role in self.config.players.items():
            self.players[name] = Member(name, role)
        for name, source in self.config.fixed.items():
            self.players[name] = Member(name, "fixed", source=source)

    # ------------------------------------------------------------------------------------- players

    @property
    def learning(self) -> list[str]:
        """Names of the players that learn, the main one first."""
        return [name for name, player in self.players.items() if player.learns]

    def frozen(self, parent: str | None = None) -> list[Member]:
        """Frozen copies, oldest first: of one player, or of all."""
        return [
            p
            for p in self.players.values()
            if p.role == "historical" and parent in (None, p.parent)
        ]

    def may_freeze(self, name: str) -> bool:
        """Decides whether a copy of a player that learns should be frozen now.

        By its steps; or sooner, where it beats all that it is there to beat.
        """
        player, config = self.players[name], self.config
        steps = player.steps - player.frozen_at
        if steps >= config.freeze_steps:
            return True
        exploits_main = player.role == "main_exploiter"
        rivals = [MAIN] if exploits_main else [p.name for p in self._pool()]
        if 4 * steps < config.freeze_steps or not rivals:
            return False
        return min(self.payoff.score(name, r) for r in rivals) >= config.freeze_win_rate

    def copy_due(self, name: str) -> str:
        """Returns the file of the copy of a player that is to be frozen now; empty: none is."""
        return self.next_copy(name) if self.may_freeze(name) else ""

    def next_copy(self, name: str) -> str:
        """Returns the file of a player's next frozen copy."""
        last = max((int(p.name.rpartition("_")[2]) for p in self.frozen(name)), default=0)
        return frozen_file(f"{name}_{last + 1:06d}")

    def freeze(self, name: str, file: str, version: int) -> bool:
        """A copy of a player was frozen into a file: it joins the league.

        Returns:
            Whether the player begins anew: exploiters do, those of the league now and then.
        """
        player, copy = self.players[name], name_of_frozen(file)
        player.frozen_at = player.steps
        self.players[copy] = Member(copy, "historical", name, file, version, player.steps)
        if player.role != "league_exploiter":
            return player.role == "main_exploiter"
        drawn = np.random.default_rng([self._seed, len(self.players)]).random()
        return bool(drawn < self.config.reset_probability)

    def count_steps(self, name: str, steps: int, version: int = -1) -> None:
        """Set a player's environment steps so far, and the train iterations of its policy."""
        self.players[name].steps, self.players[name].version = steps, version

    # --------------------------------------------------------------------------------- matchmaking

    def matchmaking(self, name: str) -> dict[str, Any]:
        """Returns the settings of those who collect for a player: who learns, against whom.

        ``opponents`` has for each by which probability it is drawn, and its source.
        """
        drawn = self.opponents(name)
        opponents = {other: [share, self.players[other].source] for other, share in drawn.items()}
        return {"learner": name, "opponents": opponents}

    def evaluation(self, name: str) -> dict[str, Any]:
        """Returns the settings of a player's evaluation; a main exploiter's is against main."""
        if self.players[name].role == "main_exploiter":
            return {"learner": name, "opponents": {MAIN: [1.0, ""]}}
        return {"learner": name, "opponents": {"against": [1.0, self._evaluate_against]}}

    def opponents(self, name: str) -> dict[str, float]:
        """Returns by which probability each player is the opponent of one that learns.

        A main player plays against itself and frozen players; a league exploiter against frozen
        players; a main exploiter against the main player, and while that is too strong against
        its past.
        """
        player, rule = self.players[name], self.config.matchmaking
        if player.role == "main_exploiter":
            past = self.frozen(MAIN)[-self.config.recent :]
            if not past or self.payoff.score(name, MAIN) >= _TOO_WEAK:
                return {MAIN: 1.0}
            return self._weighted(name, past, "variance")
        pool = self._pool()
        if not pool or rule == "self_play":
            return {name: 1.0}
        drawn = self._weighted(name, pool, rule)
        if player.role == "league_exploiter":
            return drawn
        itself = self.config.self_play
        return {name: itself, **{other: p * (1 - itself) for other, p in drawn.items()}}

    def _pool(self) -> list[Member]:
        """Players that never change."""
        fixed = [p for p in self.players.values() if p.role == "fixed"]
        frozen = [p for parent in self.learning for p in self.frozen(parent)[-self.config.recent :]]
        return fixed + frozen

    def _weighted(self, name: str, pool: Sequence[Member], rule: str) -> dict[str, float]:
        wins = np.array([self.payoff.score(name, p.name) for p in pool])
        # prioritized fictitious self-play: Vinyals et al. 2019, f_hard with p = 2, and f_var
        weights = {"pfsp": (1 - wins) ** 2, "variance": wins * (1 - wins)}.get(
            rule, np.ones(len(pool))
        )
        weights = (
            weights / weights.sum() if weights.sum() > 0 else np.full(len(pool), 1 / len(pool))
        )
        return {p.name: float(w) for p, w in zip(pool, weights, strict=True)}

    # -------------------------------------------------------------------------------------- results

    def count_games(self, games: Iterable[GameCounts]) -> None:
        """Add the results of a block; a frozen copy that is not known yet joins by them.

        So is one that was frozen after the snapshot from which a run is resumed.
        """
        for one, other, wins, draws, losses in games:
            for name in (one, other):
                if name not in self.players:
                    parent = name.rpartition("_")[0]
                    source = frozen_file(name) if parent in self.players else ""
                    self.players[name] = Member(name, "historical", parent, source)
            self.payoff.add(one, other, wins, draws, losses)

    def ratings(self) -> dict[str, Rating]:
        """Elo of all players that have played, from all their games; older ones decayed.

        See `Strengths`.
        """
        return Strengths.of(list(self.players), self.payoff).ratings()

    # ---------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Plain data: lists of dicts."""
        players = [dataclasses.asdict(player) for player in self.players.values()]
        return {"players": players, "payoff": self.payoff.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`; players that learn, and fixed ones, are the configuration's."""
        saved = {player["name"]: Member(**player) for player in state["players"]}
        for name, player in self.players.items():
            if player.learns and name in saved:
                self.players[name] = dataclasses.replace(saved[name], role=player.role)
        self.players |= {n: p for n, p in saved.items() if p.role == "historical"}
        self.payoff.load_state_dict(state["payoff"])


def frozen_file(name: str) -> str:
    """Policy file of a frozen copy, relative to the run folder."""
    return f"league/{name}.safetensors"


def name_of_frozen(file: str) -> str:
    """The frozen copy of a policy file; see `frozen_file`."""
    return PurePath(file).stem
