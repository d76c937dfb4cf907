"""Exact best responses in small games of two players: how much a strategy can lose.

A position is what a sequence of joint actions leads to from a reset; the environment is stepped
there once and the position kept, so that it need not be able to copy itself. Only a reset may be
random: an environment with an attribute ``deals`` resets to its deal k by ``seed=k``, and all deals
are equally likely. Without it the game must be deterministic, and an error says where it is not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcdi.dataclass import dataclass
from hpcdi.env.contract import Space
from hpcdi.env.pettingzoo import spaces_of_each
from hpcdi.errors import EnvError
from hpcdi.types import ACTION_MASK, Columns

MOST_POSITIONS = 300_000
"""Limit of a small game."""
_PLAYOUTS = 20
_SMALL = ": best responses are solved in small games alone, such as tic-tac-toe"
Act = Callable[[Columns], int]
"""A strategy: the columns of an observation, each [1, ...] -> an action from 0."""
Joint = tuple[int | None, ...]
_World = tuple[float, int, int, tuple[Joint, ...]]
"""Probability (without the response's moves), strategy drawn, deal, and all actions so far."""


@dataclass(frozen=True)
class Position:
    """Where a game stands.

    Attributes:
        seen: of each player that is to act: its observation's columns, each [1, ...]; else None.
        returns: each player's, so far.
        done: whether the game is over.
    """

    seen: Sequence[Columns | None]
    returns: tuple[float, ...]
    done: bool

    @property
    def key(self) -> tuple[object, ...]:
        """What equal positions have alike, and no others."""
        return self.returns, self.done, *map(_key, self.seen)


class SmallGame:
    """Positions of an environment.

    Args:
        env: a battle in `BattleEnv`'s shape.
        most: limit of positions.

    Raises:
        EnvError: it does not have two players, or its actions are not single numbers.
    """

    def __init__(self, env: Any, most: int = MOST_POSITIONS) -> None:
        if env.agents != 2:
            raise EnvError(f"best responses are for games of 2 players; this one has {env.agents}")
        observations, actions = spaces_of_each(env)
        acts = [Space.of_actions(space) for space in actions]
        if any(len(a.leaves) != 1 or len(a.leaves[0].counts) != 1 for a in acts):
            leaves = ", ".join(str(leaf) for a in acts for leaf in a.leaves)
            raise EnvError(
                f"best responses need actions that are one discrete number; these are {leaves}"
            )
        self.deals = int(getattr(env, "deals", 1))
        self._counts = [space.leaves[0].counts[0] for space in acts]
        self._draws_nothing = not hasattr(env, "deals")
        self._env, self._acts, self._most = env, acts, most
        self._seen = [Space.of_observations(space) for space in observations]
        self._kept: dict[tuple[int, tuple[Joint, ...]], Position] = {}
        self._now: tuple[int, tuple[Joint, ...]] | None = None
        self._resets = 0

    def at(self, deal: int, actions: tuple[Joint, ...]) -> Position:
        """Returns the position after joint actions, one for each step; None: does not act.

        Raises:
            EnvError: there are too many, or the environment is not deterministic.
        """
        key = (deal, actions)
        if key not in self._kept:
            if len(self._kept) >= self._most:
                raise EnvError(f"the game has more than {self._most} positions{_SMALL}")
            if actions and self._now != (deal, actions[:-1]):
                self._go_to(deal, actions[:-1])
            self._kept[key] = self._step(deal, actions)
            self._now = key
        return self._kept[key]

    def legal(self, player: int, seen: Columns) -> list[int]:
        """Returns the actions, from 0, of a player who sees this."""
        mask = seen.get(ACTION_MASK)
        legal: list[int] = np.arange(self._counts[player]).tolist()
        return legal if mask is None else np.flatnonzero(mask[0]).tolist()

    def check_small(self, seat: int) -> None:
        """Check that a response has few lines of play, estimated by random games (Knuth 1975).

        "Estimating the efficiency of backtrack programs": the product of a player's numbers of
        choices in a random game is on average the number of lines of play.

        Args:
            seat: of the response.

        Raises:
            EnvError: there are too many.
        """
        rng, total = np.random.default_rng(0), 0.0
        for _ in range(_PLAYOUTS):
            deal, lines = int(rng.integers(self.deals)), 1.0
            actions: tuple[Joint, ...] = ()
            while not (position := self.at(deal, actions)).done:
                choices = [
                    [None] if seen is None else self.legal(player, seen)
                    for player, seen in enumerate(position.seen)
                ]
                lines *= len(choices[seat])
                actions = (*actions, tuple(own[rng.integers(len(own))] for own in choices))
            total += lines
        if total / _PLAYOUTS > self._most:
            raise EnvError(f"a player has about {total / _PLAYOUTS:.0e} lines of play{_SMALL}")

    def _go_to(self, deal: int, actions: tuple[Joint, ...]) -> None:
        for count in range(len(actions) + 1):
            way = (deal, actions[:count])
            if self._step(*way).key != self._kept[way].key:
                raise EnvError(
                    "the same moves led to two positions: the environment is random. Give it an "
                    "attribute deals, the number of its equally likely deals; reset(seed=k) must "
                    "return deal k"
                )

    def _step(self, deal: int, actions: tuple[Joint, ...]) -> Position:
        """Make the last of the actions; reset where there are none."""
        if not actions:
            self._resets += 1
            observation = self._env.reset(seed=self._resets if self._draws_nothing else deal)
            return Position(self._columns(observation), (0.0, 0.0), done=False)
        of_env = [
            None if action is None else _of_env(space, action)
            for space, action in zip(self._acts, actions[-1], strict=True)
        ]
        observation, reward, done, _ = self._env.step(of_env)
        before = self._kept[deal, actions[:-1]].returns
        returns = (before[0] + float(reward[0]), before[1] + float(reward[1]))
        if done and not np.isclose(sum(returns), 0.0):
            raise EnvError(f"a game has ended with {returns}: exploitability is of zero-sum games")
        return Position((None, None) if done else self._columns(observation), returns, bool(done))

    def _columns(self, observation: Sequence[Any]) -> list[Columns | None]:
        seen: list[Columns | None] = [None, None]
        for player, (space, own) in enumerate(zip(self._seen, observation, strict=True)):
            if own is not None:
                seen[player] = row = space.zeros(1)
                space.put(row, 0, own)
        return seen


def _of_env(space: Space, action: int) -> Any:
    """Returns an action, from 0, as the environment takes it."""
    (leaf,) = space.leaves
    return space.value({leaf.column("action"): np.full((1, *leaf.shape), action)}, 0)


def _key(seen: Columns | None) -> bytes:
    return b"" if seen is None else b"".join(column.tobytes() for column in seen.values())


def best_response_value(game: SmallGame, seat: int, mixture: Sequence[tuple[float, Act]]) -> float:
    """Returns what the best response from a seat earns a game, on average.

    It knows the mixture, remembers all that its seat saw and did, and sees nothing else: its
    positions that look the same so far are one information set, in which it takes one action.

    Args:
        game: the game.
        seat: of the response.
        mixture: what the other seat plays by: one of these strategies, drawn before each game.

    Raises:
        EnvError: see `SmallGame`.
    """
    other = 1 - seat
    chosen: dict[tuple[int, bytes], int] = {}

    def answer(who: int, seen: Columns | None) -> int | None:
        if seen is None:
            return None
        key = (who, _key(seen))
        if key not in chosen:
            chosen[key] = int(mixture[who][1](seen))
        return chosen[key]

    def joint(who: int, position: Position, own: int | None) -> Joint:
        others = answer(who, position.seen[other])
        return (own, others) if seat == 0 else (others, own)

    def value(worlds: Iterable[_World]) -> float:
        total = 0.0
        alike = defaultdict[bytes, list[_World]](list)
        for world in worlds:
            share, who, deal, actions = world
            position = game.at(deal, actions)
            while not position.done and position.seen[seat] is None:
                actions = (*actions, joint(who, position, None))
                position = game.at(deal, actions)
            if position.done:
                total += share * position.returns[seat]
            else:
                alike[_key(position.seen[seat])].append((share, who, deal, actions))
        return total + sum(map(best, alike.values()))

    def best(worlds: list[_World]) -> float:
        places = [game.at(deal, actions) for _, _, deal, actions in worlds]
        seen = places[0].seen[seat]
        return max(
            value(
                (share, who, deal, (*actions, joint(who, place, action)))
                for (share, who, deal, actions), place in zip(worlds, places, strict=True)
            )
            for action in ([] if seen is None else game.legal(seat, seen))
        )

    game.check_small(seat)
    return value(
        (share / game.deals, who, deal, ())
        for who, (share, _) in enumerate(mixture)
        for deal in range(game.deals)
    )


class BestResponses(NamedTuple):
    """What best responses to a strategy earn a game, on average, by their seat."""

    first: float
    second: float

    @property
    def exploitability(self) -> float:
        """What they win from a strategy that plays both seats of a zero-sum game; 0: an optimum.

        (b1 + b2) / 2, b1 and b2 being what the best response earns from each seat: Johanson et al.
        2011, "Accelerating best response calculation in large extensive games", section 2.
        """
        return sum(self) / 2


def best_responses(game: SmallGame, mixture: Sequence[tuple[float, Act]]) -> BestResponses:
    """Returns `best_response_value` from both seats."""
    return BestResponses(*(best_response_value(game, seat, mixture) for seat in (0, 1)))
