"""The agent of battles: several players in each environment, each with its own policy.

One of them, the learner, is trained; in some games it plays against itself. Its transitions, in
whichever seats it sits, are recorded like those of a single player. At the end of a game new
players are drawn for the next one.

A player sits in all seats of a team. A policy with a memory has a state for each row, which is a
seat of an environment (``seat * environments + environment``), from a game's start to its end; that
is so for the learner and for its opponents, frozen ones, too.

On-policy: an action that waits for the other players when a new policy comes stays one of the old
policy, with the old one's probability, and is learnt from with the new policy's first rollout.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from hpcdi.dataclass import dataclass
from hpcdi.env.contract import Space, pick
from hpcdi.errors import ConfigError, PolicyError, Problem
from hpcdi.league.league import LEARNER, OPPONENTS
from hpcdi.policy.base import Actor
from hpcdi.policy.spaces import as_stored
from hpcdi.store.games import MOST_PAIRS
from hpcdi.store.policies import PolicyImage, read_policy
from hpcdi.types import (
    ACTION_MASK,
    MAIN,
    Array,
    Columns,
    Episodes,
    GameCounts,
    Games,
    Leaf,
    Settings,
    Step,
)
from hpcdi.utils.nested import column_rows, take_rows, under
from hpcdi.utils.registry import named_in_module

TEAM = "_team"
"""Number in an episode's info: the learner's team."""


def live_opponents(setting: Settings) -> list[str]:
    """Returns the names of other players that learn, and that a task's setting may draw."""
    learner = setting.get(LEARNER, MAIN)
    drawn: Mapping[str, Sequence[Any]] = setting.get(OPPONENTS, {})
    return [n for n, (share, source) in drawn.items() if share > 0 and not source and n != learner]


Play: TypeAlias = Callable[[Array | Columns, np.random.Generator], Any]
"""``play(observation, rng)`` returns an action in its space's form, as a dict where it is a `Dict`;
discrete parts count from 0. The observation is an array; where it has several leaves, or a mask of
legal actions, a dict of its columns, e.g. ``observation`` and ``action_mask``."""


def play_of(source: str, path: str = "") -> Play:
    """Returns the function that ``module:function`` names.

    Args:
        source: its name.
        path: of the setting, for the message.

    Raises:
        ConfigError: there is none of that name, or it is no function.
    """
    play: Play = named_in_module(source, path)
    if not callable(play):
        raise ConfigError([Problem(path, f"{source} is no function play(observation, rng)")])
    return play


class Players:
    """Frozen players by name; policies are loaded from their files once, and kept up to a limit.

    Args:
        root: the run folder, to which policy files are relative.
        make: makes a policy that acts by the parameters of an image.
        random: acts at random.
        action_space: gymnasium's, of each player: what scripts may return.
        seed: seed of the random numbers that scripts draw.
        limit_bytes: size of the policies that stay in memory; the least recently used ones go.
        live: returns what acts for another player that learns; None: no other player learns.
    """

    def __init__(
        self,
        root: str,
        make: Callable[[PolicyImage], Actor],
        random: Actor,
        action_space: object,
        seed: np.random.SeedSequence,
        limit_bytes: int,
        live: Callable[[str], Actor] | None = None,
    ) -> None:
        self.loaded = 0
        """Files that were read."""
        self._root, self._make, self._random = Path(root), make, random
        self._acts = Space.of_actions(action_space)
        self._rng, self._limit = np.random.default_rng(seed), limit_bytes
        self._live = live
        self._cache: OrderedDict[str, tuple[Actor, int]] = OrderedDict()  # with sizes in bytes

    def get(self, source: str) -> Actor:
        """Returns what acts for a source: "random", ``module:function``, or a policy file.

        Raises:
            PolicyFileError: the file is missing or torn.
        """
        if source == "random":
            return self._random
        if source not in self._cache:
            if ":" in source:
                self._cache[source] = (Script(source, self._acts, self._rng), 0)
            else:
                image = read_policy(self._root / source)
                self.loaded += 1
                self._cache[source] = (self._make(image), len(image.data))
        self._cache.move_to_end(source)
        while len(self._cache) > 1 and sum(size for _, size in self._cache.values()) > self._limit:
            self._cache.popitem(last=False)
        return self._cache[source][0]

    def live(self, name: str) -> Actor:
        """Returns what acts for another player that learns.

        Raises:
            PolicyError: nobody else learns here.
        """
        if self._live is None:
            raise PolicyError(f"player {name} has no policy here: nobody but the learner learns")
        return self._live(name)


class Script:
    """A player whose actions a function of the user returns; see `Play`.

    Args:
        source: of the function, ``module:function``.
        acts: the space of its actions.
        rng: draws its random numbers.
    """

    def __init__(self, source: str, acts: Space, rng: np.random.Generator) -> None:
        self._play = play_of(source)
        self._source, self._rng = source, rng
        self._parts = [
            (leaf, field.path) for leaf, field in zip(acts.leaves, acts.fields, strict=True)
        ]

    def act(self, observation: Columns, _setting: Settings, _rows: Array | None = None) -> Columns:
        """See `Actor.act`; the columns are those of a policy (`as_stored`), and actions alone.

        Raises:
            PolicyError: the function returned no action, or one that is not legal.
        """
        rows = [take_rows(observation, row) for row in range(column_rows(observation))]
        actions = []
        for columns in rows:
            is_array = columns.keys() == {"observation"}
            answer = self._play(columns["observation"] if is_array else columns, self._rng)
            actions.append(self._checked(answer, columns.get(ACTION_MASK)))
        return {
            leaf.column("action"): as_stored(np.array(parts), leaf)
            for (leaf, _), parts in zip(self._parts, zip(*actions, strict=True), strict=True)
        }

    def _checked(self, answer: Any, legal: Array | None) -> list[Array]:
        """Returns the parts of an answer; `legal`: bool [entries], see `Spaces.is_masked`."""
        parts = []
        for leaf, path in self._parts:
            try:
                part = np.asarray(pick(answer, path))
                part = part.reshape(leaf.shape) if part.size == 1 else part
                is_right = part.shape == leaf.shape and part.dtype.kind in "biuf"
            except (LookupError, TypeError, ValueError):
                is_right = False
            if not is_right or not np.isfinite(part).all() or not _is_counted(part, leaf):
                form = ", ".join(str(leaf) for leaf, _ in self._parts)
                raise PolicyError(
                    f"{self._source} returned {answer!r:.100}: it must return an action, {form}; "
                    "what is discrete counts from 0"
                )
            if legal is not None and leaf.counts:
                firsts = np.cumsum([0, *leaf.counts])
                if not legal[firsts[:-1] + part.ravel().astype(np.int64)].all():
                    raise PolicyError(
                        f"{self._source} returned {answer!r:.100}, which is not legal: it must "
                        f"return an action that {ACTION_MASK} of its observation allows"
                    )
                legal = legal[firsts[-1] :]
            parts.append(part)
        return parts


@dataclass(frozen=True)
class Game:
    """Who plays in an environment, by team."""

    names: list[str]
    players: list[Actor]


class BattleAgent:
    """Acts for all players of battle environments; see `hpcdi.roles.collector.loop.Agent`.

    Args:
        env_num: environments.
        teams: numbers of each team's players.
        actor: acts for the learner.
        players: the opponents.
        rng: draws seats and opponents.
        seating: returns the learner's team in an evaluation, by the game's number among those of
            all environments and the number of teams; None: it is drawn, and the learner's
            transitions are kept.

    Attributes:
        learns: bool [rows]; where the learner sits.
    """

    def __init__(
        self,
        env_num: int,
        teams: Sequence[Sequence[int]],
        actor: Actor,
        players: Players,
        rng: np.random.Generator,
        seating: Callable[[int, int], int] | None = None,
    ) -> None:
        self._env_num, self._teams = env_num, teams
        self._actor, self.players, self._rng = actor, players, rng
        self._seating = seating
        self._team_of = {seat: n for n, team in enumerate(teams) for seat in team}
        self.learns: Array = np.zeros(env_num * len(self._team_of), dtype=bool)
        self._step_columns = getattr(actor, "step_columns", None) if seating is None else None
        self._like: Columns = {}  # the learner's outputs, without rows: their dtypes and shapes
        self._learner = MAIN
        self._opponents: Mapping[str, Sequence[Any]] = {}
        self._games: list[Game | None] = [None] * env_num
        self._sources: dict[str, str] = {}
        self._played = [0] * env_num  # games since `forget` of all

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:
        """Have all players act whose turn it is; see `Actor.act`.

        Args:
            observation: each [rows, ...].
            setting: of policies, and `OPPONENTS` and `LEARNER`.
            rows: numbers of those that act; None: all.
        """
        setting = dict(setting or {})
        self._opponents = setting.pop(OPPONENTS, self._opponents)
        self._learner = setting.pop(LEARNER, self._learner)
        rows = np.arange(len(self.learns)) if rows is None else rows
        # by player: its name, what acts for it, and the places of its rows in `rows`
        turns: dict[int, tuple[str, Actor, list[int]]] = {}
        for place, row in enumerate(rows.tolist()):
            game = self._games[row % self._env_num] or self._draw(row % self._env_num)
            team = self._team_of[row // self._env_num]
            name, player = game.names[team], game.players[team]
            turns.setdefault(id(player), (name, player, []))[2].append(place)
        outputs_of: list[tuple[list[int], Columns]] = []
        for name, player, places in turns.values():
            is_learner = name == self._learner
            if not (is_learner or self._sources.get(name)):
                self.players.live(name)  # it may have a newer policy
            outputs = player.act(take_rows(observation, places), setting, rows[places])
            outputs_of.append((places, outputs))
            if is_learner:
                self._like = take_rows(outputs, slice(0))
        like = self._like or under(outputs_of[0][1], "action")
        columns = {n: np.zeros((len(rows), *c.shape[1:]), c.dtype) for n, c in like.items()}
        for places, outputs in outputs_of:
            for name in columns.keys() & outputs.keys():
                columns[name][places] = outputs[name]
        return columns

    def follow(self, step: Step) -> Columns:
        """See `Agent.follow`: columns for the learner's transitions."""
        if self._step_columns is None:
            return {}
        columns: Columns = self._step_columns(step.reward, step.live & self.learns, step.over)
        return columns

    def judge(self, step: Step, episodes: Episodes) -> tuple[Episodes, Games]:
        """See `Agent.judge`; an episode's info also has `TEAM` and ``_returns/<team>``.

        A game is one episode, of the learner's team: its return and the numbers of its info are
        means over the team's players. The game's result goes with the first of the learner's items
        that end with it. If there is none, since the learner had no turn in this game, or if more
        pairs of players have met than a block takes, it goes by a row without an item: then it is
        split over later items, one pair of players each.
        """
        ended: list[Episodes] = []
        games: dict[int, Sequence[GameCounts]] = {}
        returns = dict(zip(episodes.rows.tolist(), episodes.stated.tolist(), strict=True))
        numbers = {row: number for number, row in enumerate(episodes.rows.tolist())}
        for env in dict.fromkeys(row % self._env_num for row in returns):
            game = self._games[env]
            if game is None:
                continue
            team_returns = [
                sum(returns[self._row(seat, env)] for seat in team) / len(team)
                for team in self._teams
            ]
            team = game.names.index(self._learner)  # its first one, if it has several
            mates = [numbers[row] for row in self._rows_of(self._teams[team], env)]
            first = int(episodes.rows[mates[0]])
            info = {f"_returns/{n}": mean for n, mean in enumerate(team_returns)}
            info |= {**_mean_info([episodes.infos[mate] for mate in mates]), TEAM: team}
            length = episodes.lengths[mates[:1]]
            mean_return = np.array([team_returns[team]])
            ended.append(Episodes(np.array([first]), mean_return, length, [info]))
            rows = np.arange(env, len(self.learns), self._env_num)
            is_recorded = (step.live & self.learns)[rows]
            results = _results(game.names, team_returns, team, self._rng)
            if len(results) >= MOST_PAIRS:  # too many for one block: they go with several items
                carrier = int(rows[~is_recorded][0])  # there is one: not all are the learner
            else:
                carrier = int(rows[is_recorded][0]) if is_recorded.any() else first
            games[carrier] = results
            self._played[env] += 1
        return Episodes.joined(ended), games

    def forget(self, rows: Array | None = None) -> None:
        """See `Agent.forget`: players remember nothing of a game that is over."""
        if rows is None:
            self._played = [0] * self._env_num
        envs = range(self._env_num) if rows is None else np.unique(rows % self._env_num).tolist()
        for env in envs:
            self._end_game(env)

    def _draw(self, env: int) -> Game:
        """Draw the players of an environment's next game, by team: the learner is one of them."""
        shares = {name: share for name, (share, _) in self._opponents.items() if share > 0}
        self._sources.update({name: source for name, (_, source) in self._opponents.items()})
        names = [self._learner] * len(self._teams)
        if self._seating is not None:
            team = self._seating(self._played[env] * self._env_num + env, len(names))
        else:
            team = int(self._rng.integers(len(names)))
        if shares:
            weights = np.array(list(shares.values()))
            opponents = self._rng.choice(list(shares), size=len(names), p=weights / weights.sum())
            names = list(map(str, opponents))
            names[team] = self._learner
        game = self._games[env] = Game(names, [self._player(name) for name in names])
        for seats, name in zip(self._teams, names, strict=True):
            self.learns[self._rows_of(seats, env)] = name == self._learner
        return game

    def _player(self, name: str) -> Actor:
        """Returns what acts for a player until the end of a game, even if it leaves the cache."""
        source = self._sources.get(name, "")
        if source:
            return self.players.get(source)
        return self._actor if name == self._learner else self.players.live(name)

    def _end_game(self, env: int) -> None:
        """Forget the environment's game: its players remember nothing of it."""
        game, self._games[env] = self._games[env], None
        for seats, player in zip(self._teams, game.players, strict=True) if game else ():
            self.learns[self._rows_of(seats, env)] = False
            if remembers(player):
                player.reset(self._rows_of(seats, env))  # type: ignore[attr-defined]

    def _rows_of(self, seats: Sequence[int], env: int) -> list[int]:
        return [self._row(seat, env) for seat in seats]

    def _row(self, seat: int, env: int) -> int:
        return seat * self._env_num + env


def in_turn(game: int, teams: int) -> int:
    """A seating in which the learner is each team equally often in a multiple of so many games."""
    return game % teams


def remembers(player: object) -> bool:
    """True if a player has a state for each row in which it acts; see `ColumnarActor`."""
    return getattr(player, "reset", None) is not None


def _is_counted(part: Array, leaf: Leaf) -> bool:
    """Returns whether a part of an action has the whole numbers of its space; a Box has all."""
    if not leaf.counts:
        return True
    numbers = part.ravel()
    is_one = (numbers >= 0) & (numbers < leaf.counts) & (numbers == np.rint(numbers))
    return bool(is_one.all())


def _mean_info(infos: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the means of the numbers in the infos of a team's players.

    Each is over the players that state it. Returns are left out: they are the episode's own.
    """
    names = dict.fromkeys(name for info in infos for name in info)
    names.pop("eval_episode_return", None)
    stated = {name: [info[name] for info in infos if name in info] for name in names}
    return {name: sum(numbers) / len(numbers) for name, numbers in stated.items()}


def _results(
    names: Sequence[str], returns: Sequence[float], team: int, rng: np.random.Generator
) -> list[GameCounts]:
    """Returns the result of a game between each two different players, by their teams' returns.

    Where players are several teams, it is that of a team of each, drawn of all such pairs: it is
    one game, and neither a team, nor who is more teams, has an advantage. Where one player is all
    teams, its result is that of the first team against the last; a game of one team has no result.

    Args:
        names: the player of each team.
        returns: mean return of each team.
        team: number of the learner's team.
        rng: draws the teams.
    """
    if len(set(names)) == 1:
        name = names[team]
        return [_result(name, name, returns[0], returns[-1])] if len(names) > 1 else []
    met: dict[tuple[str, str], list[tuple[int, int]]] = {}  # the teams of each two players
    for i, one in enumerate(names):
        for j, other in enumerate(names[i + 1 :], i + 1):
            if one < other:
                met.setdefault((one, other), []).append((i, j))
            elif other < one:
                met.setdefault((other, one), []).append((j, i))
    results = []
    for pair, teams in met.items():
        i, j = teams[rng.integers(len(teams)) if len(teams) > 1 else 0]
        results.append(_result(*pair, returns[i], returns[j]))
    return results


def _result(one: str, other: str, of_one: float, of_other: float) -> GameCounts:
    """Returns wins, draws and losses of `one` in one game, by the returns of both."""
    return one, other, int(of_one > of_other), int(of_one == of_other), int(of_one < of_other)
