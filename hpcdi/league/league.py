"""A league: who plays whom, who is frozen when, and how strong each is. Decisions only.

Some players of a league learn, others are frozen. Those that learn play against themselves and
against frozen players, drawn by a matchmaking rule; now and then a copy of one is frozen and joins
as a historical player. Game results come in as counts, plain data go out; there is no clock, no
file, no message. Roles, prioritized fictitious self-play (PFSP) and the rules of freezing are those
of AlphaStar (Vinyals et al. 2019, Methods, "Multi-agent learning").
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from hpcdi.config.league import AGAINST, LEARNING, LeagueConfig
from hpcdi.dataclass import dataclass
from hpcdi.types import MAIN, Array, GameCounts

OPPONENTS = "opponents"
"""Key of a task's setting: name of a player -> probability that it is drawn, and its source; an
empty source is the newest policy of a player that learns: the learner itself, or another one."""
LEARNER = "learner"
"""Key of a task's setting: name of the player that is trained."""
_ELO = 400 / np.log(10)
"""Points of Elo for one unit of log odds."""
_PRIOR_STD = 400.0
"""Prior standard deviation of ratings, in Elo; it keeps those of unbeaten players finite."""
_NEWTON_STEPS = 100
_TOO_WEAK = 0.1
"""A main exploiter that scores less against the main player plays against its past instead."""


@dataclass
class Member:
    """A player of the league: it learns, is a frozen copy, or is fixed.

    Attributes:
        name: unique in the league; a frozen copy of "main" is "main_000003".
        role: one of `LEARNING`, "historical" or "fixed".
        parent: name of the player that a frozen copy was made of.
        source: what acts for it: a policy file in the run folder, "random", or
            ``module:function``; empty: the newest policy of its learner.
        version: train iteration of its policy; -1: unknown.
        steps: environment steps collected for it; of a frozen copy, until it was frozen, -1:
            unknown.
        frozen_at: `steps` when a copy of it was frozen last.
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
    """Results of games by pairs of players: total counts, and counts in which older games decay.

    Args:
        decay: factor by which each new game of a pair multiplies the weight of its older ones.
    """

    def __init__(self, decay: float = 1.0) -> None:
        self._decay = decay
        self._total: dict[tuple[str, str], Array] = {}  # wins, draws, losses of the first
        self._recent: dict[tuple[str, str], Array] = {}

    def add(self, one: str, other: str, wins: float, draws: float, losses: float) -> None:
        """Add games; wins and losses are those of `one`."""
        if one > other:
            one, other, wins, losses = other, one, losses, wins
        counts = np.array([wins, draws, losses], dtype=np.float64)
        played = counts.sum()
        # the order of these games is unknown: decay them as if their results were evenly mixed
        decay = self._decay**played
        weight = played if decay == 1 else (1 - decay) / (1 - self._decay)
        pair = (one, other)
        self._total[pair] = self._total.get(pair, np.zeros(3)) + counts
        self._recent[pair] = self._recent.get(pair, np.zeros(3)) * decay
        self._recent[pair] += counts * (weight / played if played else 0.0)

    def forget(self, name: str) -> None:
        """Let the games of a player, which begins anew, count no more but in the totals."""
        for pair in self._recent:
            if name in pair:
                self._recent[pair] = np.zeros(3)

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
        # as if they had played one more game, a draw: a score is never 0 or 1
        return float((wins + draws / 2 + 0.5) / (wins + draws + losses + 1))

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
    """Elo of a player (the league's mean is 1500), or a difference, with its standard deviation."""

    elo: float
    std: float


@dataclass(frozen=True)
class Strengths:
    """Elo of players that have played each other, older games decayed.

    The most probable strengths of a Bradley-Terry model with a normal prior, a draw being half a
    win and half a loss; covariances are those of the Laplace approximation. (Hunter 2004, "MM
    algorithms for generalized Bradley-Terry models", for the model; fitted by Newton's method.)

    Attributes:
        at: name -> index in the arrays, of each player that has played another.
        elo: their strengths, 0 being the mean of all, float64 [players].
        covariance: covariance of `elo`, float64 [players, players].
    """

    at: Mapping[str, int]
    elo: Array
    covariance: Array

    @classmethod
    def of(cls, players: Sequence[str], payoff: Payoff) -> Strengths:
        """Fits the strengths of players to the games of a payoff."""
        pairs = [pair for pair in payoff.pairs() if pair[0] != pair[1]]
        met = set(itertools.chain.from_iterable(pairs))
        names = [name for name in players if name in met]
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
        """Returns each player's rating."""
        std = np.sqrt(np.diag(self.covariance))
        return {n: Rating(1500 + float(self.elo[i]), float(std[i])) for n, i in self.at.items()}

    def gains(self, names: Sequence[str]) -> dict[str, Rating]:
        """Returns by how much each player is stronger than the one before it in `names`.

        Args:
            names: names of players; those that have not played are left out.
        """
        gains, played = {}, [name for name in names if name in self.at]
        for before, name in itertools.pairwise(played):
            difference = np.zeros(len(self.at))
            difference[self.at[name]], difference[self.at[before]] = 1, -1
            std = float(np.sqrt(difference @ self.covariance @ difference))
            gains[name] = Rating(float(difference @ self.elo), std)
        return gains


class League:
    """The players, their results, and the decisions that follow from them.

    Args:
        config: its rules.
        evaluate_against: opponent of evaluations; see the `source` of a `Member`.
        seed: seed of the experiment.
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

        That is so after `freeze_steps`, or sooner if it beats all players that it plays against.
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
        last = max((int(number_in(p.name)) for p in self.frozen(name)), default=0)
        return frozen_file(f"{name}_{last + 1:06d}")

    def freeze(self, name: str, file: str, version: int) -> bool:
        """Add a frozen copy of a player to the league.

        Args:
            name: the player.
            file: policy file of the copy.
            version: train iteration of the copied policy.

        Returns:
            Whether the player begins anew: a main exploiter does, a league exploiter with
            `reset_probability`.
        """
        player, copy = self.players[name], name_of_frozen(file)
        player.frozen_at = player.steps
        self.players[copy] = Member(copy, "historical", name, file, version, player.steps)
        begins_anew = player.role == "main_exploiter"
        if player.role == "league_exploiter":
            drawn = np.random.default_rng([self._seed, len(self.players)]).random()
            begins_anew = bool(drawn < self.config.reset_probability)
        if begins_anew:
            self.payoff.forget(name)  # they were won by another policy
        return begins_anew

    def count_steps(self, name: str, steps: int, version: int = -1) -> None:
        """Note a player's environment steps so far, and the train iteration of its policy."""
        self.players[name].steps, self.players[name].version = steps, version

    # --------------------------------------------------------------------------------- matchmaking

    def matchmaking(self, name: str) -> dict[str, Any]:
        """Returns what collectors for a player need to know: who learns, against whom."""
        drawn = self.opponents(name)
        opponents = {other: [share, self.players[other].source] for other, share in drawn.items()}
        return {LEARNER: name, OPPONENTS: opponents}

    def evaluation(self, name: str) -> dict[str, Any]:
        """Returns the settings of a player's evaluation; a main exploiter's is against main."""
        opponents = {AGAINST: [1.0, self._evaluate_against]}
        if self.players[name].role == "main_exploiter":
            opponents = {MAIN: [1.0, ""]}
        return {LEARNER: name, OPPONENTS: opponents}

    def opponents(self, name: str) -> dict[str, float]:
        """Returns with which probability each player is the opponent of one that learns.

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
        self_play = self.config.self_play
        return {name: self_play, **{other: p * (1 - self_play) for other, p in drawn.items()}}

    def _pool(self) -> list[Member]:
        """Returns the players that never change: fixed ones, and the newest frozen copies."""
        fixed = [self.players[name] for name in self.config.fixed]
        frozen = [p for parent in self.learning for p in self.frozen(parent)[-self.config.recent :]]
        return fixed + frozen

    def _weighted(self, name: str, pool: Sequence[Member], rule: str) -> dict[str, float]:
        """Returns with which probability a rule draws each player of a pool against a player."""
        score, equal = np.array([self.payoff.score(name, p.name) for p in pool]), np.ones(len(pool))
        # prioritized fictitious self-play: Vinyals et al. 2019, f_hard with p = 2, and f_var
        weights = {"pfsp": (1 - score) ** 2, "variance": score * (1 - score)}.get(rule, equal)
        weights = weights if weights.sum() > 0 else equal
        return {p.name: float(w) for p, w in zip(pool, weights / weights.sum(), strict=True)}

    # -------------------------------------------------------------------------------------- results

    def count_games(self, games: Iterable[GameCounts]) -> None:
        """Add the results of a block; a frozen copy that is unknown joins the league by them.

        After a resume, copies that were frozen after the snapshot are; see `learn_versions`.
        """
        for one, other, wins, draws, losses in games:
            for name in (one, other):
                if name not in self.players:
                    self._join(name)
            self.payoff.add(one, other, wins, draws, losses)

    def _join(self, name: str) -> None:
        """Add a frozen copy of which only games are known; its parent's later ones stay behind it.

        Games may name a later one first.
        """
        parent = name.rpartition("_")[0]
        source = frozen_file(name) if parent in self.players else ""
        self.players[name] = Member(name, "historical", parent, source, steps=-1)
        for later in self.frozen(parent):
            if number_in(later.name) > number_in(name):
                self.players[later.name] = self.players.pop(later.name)

    def learn_versions(self, version_of: Callable[[str], int]) -> None:
        """Note the versions of frozen copies that have joined by their games.

        Args:
            version_of: returns the train iteration of a policy file, -1: it cannot be read.
        """
        for copy in self.frozen():
            if copy.version < 0 and copy.source:
                copy.version = version_of(copy.source)

    def ratings(self) -> dict[str, Rating]:
        """Elo of all players that have played, from all their games; older ones decayed.

        See `Strengths`.
        """
        return Strengths.of(list(self.players), self.payoff).ratings()

    # ---------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Returns plain data: lists of dicts."""
        players = [dataclasses.asdict(player) for player in self.players.values()]
        return {"players": players, "payoff": self.payoff.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`; players that learn, and fixed ones, are the configuration's.

        Fixed ones that are not there any more keep their results, and are nobody's opponents.
        """
        saved = {player["name"]: Member(**player) for player in state["players"]}
        for name, player in self.players.items():
            if player.learns and name in saved:
                self.players[name] = dataclasses.replace(saved[name], role=player.role)
        self.players |= {n: p for n, p in saved.items() if p.role == "historical"}
        gone = (p for p in saved.values() if p.role == "fixed" and p.name not in self.players)
        self.players |= {player.name: player for player in gone}
        self.payoff.load_state_dict(state["payoff"])


def frozen_file(name: str) -> str:
    """Returns the policy file of a frozen copy, relative to the run folder."""
    return f"league/{name}.safetensors"


def number_in(name: str) -> str:
    """Returns the digits in the name of a frozen copy; a newer one of a player has later ones."""
    return name.rpartition("_")[2]


def name_of_frozen(file: str) -> str:
    """Returns the name of the frozen copy in a policy file; see `frozen_file`."""
    return PurePath(file).stem
