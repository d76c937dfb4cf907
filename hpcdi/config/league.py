"""Settings of a league: `policy.other.commander` of type one_vs_one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hpcdi.config.fields import section, setting
from hpcdi.config.roles import SoloCommanderConfig
from hpcdi.dataclass import dataclass
from hpcdi.errors import Problem
from hpcdi.types import MAIN

LEARNING = ("main", "main_exploiter", "league_exploiter")
"""Roles of players that learn; the others are "historical" (a frozen copy) and "fixed"."""
MATCHMAKING = ("self_play", "fictitious", "pfsp", "variance")
_PLAYER = re.compile(r"(?!.*_\d{6}$)[A-Za-z]\w{0,15}")
_FROZEN = re.compile(r"_\d{6}$")
AGAINST = "against"
"""Stands for `evaluate_against` where a player is evaluated."""
_TAKEN = ("latest", "best", "random", AGAINST)
"""Names that stand for other policies."""
_LEAGUE = "policy.other.commander.league"


@dataclass(frozen=True)
class LeagueConfig:
    """Settings of a league: who learns, opponents, and when a player is frozen."""

    players: dict[str, str] = setting(
        {MAIN: "main"},
        "players that learn: name -> main, main_exploiter (plays against main) or league_exploiter "
        "(against all that are frozen); first of all main: main",
    )
    learners: dict[str, int] = setting(
        {},
        "learner ranks of players, by name; those that are not named here share what is left of "
        "policy.learn.learner.learner_num evenly",
    )
    matchmaking: str = setting(
        "pfsp",
        "how frozen opponents are drawn: fictitious: uniformly; pfsp: the more they win, the more "
        "often; variance: those of equal strength most often; self_play: never",
        choices=MATCHMAKING,
    )
    self_play: float = setting(
        0.5, "share of a main player's games against itself", minimum=0.0, maximum=1.0
    )
    freeze_steps: int = setting(
        20_000, "environment steps of a player after which a copy of it is frozen", minimum=1
    )
    freeze_win_rate: float = setting(
        0.7,
        "after a quarter of freeze_steps a copy is frozen already if it scores this against every "
        "frozen opponent (a win is 1, a draw 0.5)",
        above=0.5,
        maximum=1.0,
    )
    reset_probability: float = setting(
        0.25,
        "of a league exploiter to begin anew when it was frozen; a main exploiter always does",
        minimum=0.0,
        maximum=1.0,
    )
    recent: int = setting(50, "newest frozen copies of a player that are played against", minimum=1)
    decay: float = setting(
        0.998, "weight of a pairing's older games, for each newer one", above=0, maximum=1.0
    )
    fixed: dict[str, str] = setting(
        {},
        "players that never learn: name -> random, my_module:play, or a policy's file, in the "
        "present folder or beside the experiment",
    )

    def problems(self) -> Iterator[Problem]:
        """Names are short, and are words: they stand in shards, file names and tables."""
        yield from self._learning_problems()
        for name, source in self.fixed.items():
            if not name.replace("_", "").isalnum() or len(name) > 20 or name.startswith(MAIN):
                message = f"must be up to 20 letters and digits, and not begin with {MAIN}"
                yield Problem(f"fixed.{name}", message)
            if name in _TAKEN and not name == source == "random":
                message = f"must not be {' or '.join(_TAKEN)}: these stand for other policies"
                yield Problem(f"fixed.{name}", message)
            if name in self.players:
                yield Problem(f"fixed.{name}", "is the name of a player that learns")
            if name.rpartition("_")[0] in self.players and _FROZEN.search(name):
                yield Problem(f"fixed.{name}", "is the name of a frozen copy of a player")
            if not source:
                yield Problem(f"fixed.{name}", "must name a source: 'random', a file, or a module")

    def _learning_problems(self) -> Iterator[Problem]:
        if next(iter(self.players.items()), None) != (MAIN, "main"):
            yield Problem("players", f"must begin with the main player, {MAIN}: main")
        for name, role in self.players.items():
            if not _PLAYER.fullmatch(name) or name in _TAKEN:
                message = "must be up to 16 letters, digits and _, and not end like a frozen copy"
                yield Problem(f"players.{name}", f"{message}, nor be {' or '.join(_TAKEN)}")
            if role not in LEARNING:
                yield Problem(f"players.{name}", f"must be one of {', '.join(LEARNING)}")
        for name, count in self.learners.items():
            if name not in self.players:
                names = ", ".join(self.players)
                yield Problem(f"learners.{name}", f"no such player learns; there are {names}")
            if count < 1:
                yield Problem(f"learners.{name}", f"must be a number of ranks from 1, not {count}")

    def share_learners(self, count: int) -> dict[str, int]:
        """Returns player -> its number of `count` learner ranks; 0 for some: they are too few.

        Players without a number in `learners` share the ranks that are free, evenly.
        """
        sharing = [name for name in self.players if name not in self.learners]
        free = max(0, count - sum(self.learners.values()))
        shares = {
            name: free // len(sharing) + (number < free % len(sharing))
            for number, name in enumerate(sharing)
        }
        return {name: {**shares, **self.learners}[name] for name in self.players}


def why_other_league(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns why a league cannot go on with other settings: a line for each of its settings.

    Snapshots have the files of players that learn by their order, results of games by names.
    Players that learn may come at the end, fixed ones may come and go.

    Args:
        before: a `LeagueConfig` as a mapping; empty: there is no league.
        now: the other settings.
    """
    players, were = (list(league.get("players") or {MAIN: MAIN}) for league in (now, before))
    fixed = {**dict.fromkeys(players, "it learns"), **(now.get("fixed") or {})}
    reasons = []
    if players[: len(were)] != were:
        missing = ", ".join(name for name in were if name not in players)
        why = f"{missing} would be missing" if missing else "they have another order"
        reasons.append(
            f"{_LEAGUE}.players: {', '.join(were)} in the run, {', '.join(players)} now: {why}; "
            "those that were there come first, in their order, new ones after them"
        )
    return reasons + [
        f"{_LEAGUE}.fixed.{name}: {source} in the run, {fixed[name]} now: the results of its games "
        "are those of the other one; give it another name"
        for name, source in (before.get("fixed") or {}).items()
        if fixed.get(name, source) != source
    ]


@dataclass(frozen=True)
class OneVsOneCommanderConfig(SoloCommanderConfig):
    """Settings of the one-vs-one commander."""

    type: str = "one_vs_one"
    collector_task_space: int | None = setting(
        2, "collect and evaluation tasks at a time; empty: one for each collector", minimum=1
    )
    learner_task_space: int = setting(
        1, "learner tasks at a time: one for each player that learns", minimum=1
    )
    evaluate_against: str = setting(
        "random",
        "opponent of evaluations: random, a policy's file, or my_module:play, which takes an "
        "observation and random numbers; a main exploiter's is the main player's newest policy",
    )
    league: LeagueConfig = section(LeagueConfig, "players, opponents, and frozen copies")

    def problems(self) -> Iterator[Problem]:
        """There is a learner task for each player that learns."""
        if self.learner_task_space != len(self.league.players):
            names = ", ".join(self.league.players)
            message = f"must be {len(self.league.players)}, a learner task for each of {names}"
            yield Problem("learner_task_space", f"{message}; not {self.learner_task_space}")

    def share_learners(self, count: int) -> dict[str, int]:
        """See `LeagueConfig.share_learners`."""
        return self.league.share_learners(count)
