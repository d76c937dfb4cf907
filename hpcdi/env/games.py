"""Small games whose optimum is known: measures for the policies of leagues and of teams.

``env: {type: pettingzoo, env_id: "hpcdi.env.games:KuhnPoker"}``; ``type: team`` for the others,
which are cooperative. They do not need PettingZoo.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from hpcdi.types import Array


class KuhnPoker:
    """Kuhn's poker (Kuhn 1950, "A simplified two-person poker").

    Actions are 0, check or fold, and 1, bet or call. Each player has one of three cards and sees
    it, 0 to 2, and how often each action was taken before its turn; the higher card wins 1, or 2
    after a bet that was called. In the equilibrium the first player loses 1/18 a game. The methods
    are those of `hpcdi.env.pettingzoo.BattleEnv`.

    Args:
        says_deals: have the attribute `deals`, which best responses need.
    """

    agents = 2
    observation_space = (MultiDiscrete([3, 3, 3]),) * 2
    action_space = (Discrete(2),) * 2
    _ENDS = ("pp", "pbp", "pbb", "bp", "bb")
    _blank = np.zeros(3, dtype=np.int64)

    def __init__(self, *, says_deals: bool = True) -> None:
        if says_deals:
            self.deals = 6
        self._later_deals = np.random.default_rng()

    def reset(self, seed: int | None = None) -> list[Any]:
        """Deal; returns the observation of each player that is to act."""
        if seed is None:
            seed = int(self._later_deals.integers(6))
        else:
            self._later_deals = np.random.default_rng(seed)
        self._cards = list(itertools.permutations(range(3), 2))[seed % 6]
        self._history = ""
        return self._seen()

    def step(self, actions: Sequence[Any]) -> tuple[list[Any], Array, bool, list[dict[str, Any]]]:
        """Let the player act whose turn it is."""
        (action,) = [a for a in actions if a is not None]
        self._history += "pb"[action]
        done = self._history in self._ENDS
        won = 0.0
        if done:
            higher = 1.0 if self._cards[0] > self._cards[1] else -1.0
            folds = {"bp": 1.0, "pbp": -1.0}
            won = folds.get(self._history, higher * (1 + ("bb" in self._history)))
        seen = self._seen()
        if done:  # the last observation of each
            seen = [one if one is not None else self._blank for one in seen]
        infos = [{"eval_episode_return": won}, {"eval_episode_return": -won}]
        return seen, np.array([won, -won]), done, infos

    def _seen(self) -> list[Any]:
        seat, past = len(self._history) % 2, self._history
        seen = np.array([self._cards[seat], past.count("p"), past.count("b")])
        return [seen if seat == player else None for player in (0, 1)]

    def close(self) -> None:
        """Nothing is open."""


class _Cooperative:
    """A game whose players all get the same reward, in the shape of `BattleEnv`."""

    agents = 2
    _names: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._rng = np.random.default_rng()
        self.names = list(self._names)
        self._steps, self._return = 0, 0.0

    def reset(self, seed: int | None = None) -> list[Any]:
        """Begin an episode; returns what each player sees."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._steps, self._return = 0, 0.0
        self._begin()
        return self._seen()

    def step(self, actions: Sequence[Any]) -> tuple[list[Any], Array, bool, list[dict[str, Any]]]:
        """All act at once."""
        self._steps += 1
        reward, terminated, truncated = self._play([int(action) for action in actions])
        self._return += reward
        ends = {"terminated": terminated, "truncated": truncated and not terminated}
        infos = [dict(ends) for _ in range(self.agents)]
        return self._seen(), np.full(self.agents, reward), terminated or truncated, infos

    def close(self) -> None:
        """Nothing is open."""

    def _begin(self) -> None:
        raise NotImplementedError

    def _seen(self) -> list[Any]:
        raise NotImplementedError

    def _play(self, actions: list[int]) -> tuple[float, bool, bool]:
        """Returns reward, terminated, truncated."""
        raise NotImplementedError


class TwoStep(_Cooperative):
    """The two-step game of the QMIX paper (Rashid et al. 2018, 5.1, table 1).

    By action 0 or 1 the first player chooses the matrix that is played in the second step: all 7,
    or ``[[0, 1], [1, 8]]``. The optimum is 8; a sum of values of single players, as VDN has, cannot
    tell it, and 7 is the best that it finds. Both see the state: 0 first, then 1 or 2.
    """

    observation_space = (Discrete(3),) * 2
    action_space = (Discrete(2),) * 2
    state_space = Discrete(3)
    OPTIMUM = 8.0

    def _begin(self) -> None:
        self._state = 0

    def state(self) -> int:
        """The state, 0 to 2."""
        return self._state

    def _seen(self) -> list[Any]:
        return [self._state, self._state]

    def _play(self, actions: list[int]) -> tuple[float, bool, bool]:
        if self._state == 0:
            self._state = 1 + actions[0]
            return 0.0, False, False
        paid = 7.0 if self._state == 1 else [[0.0, 1.0], [1.0, 8.0]][actions[0]][actions[1]]
        return paid, True, False


class Meet(_Cooperative):
    """Two players on a line meet; each sees its own place and the other's, the state is both.

    They move left, stay or move right; those that are in the same place after a step get 1, and the
    episode ends; every other step costs 0.1, and there are 20. At best they meet after half of
    their distance, rounded up: see `optimum`.

    Args:
        size: places.
    """

    action_space = (Discrete(3),) * 2

    def __init__(self, size: int = 7) -> None:
        super().__init__()
        self._size = size
        self.state_space = MultiDiscrete([size] * 2)
        self.observation_space = (self.state_space,) * 2

    @property
    def optimum(self) -> float:
        """Mean return of the best players, over all pairs of places."""
        pairs = itertools.permutations(range(self._size), 2)
        return float(np.mean([1.0 - 0.1 * ((abs(a - b) + 1) // 2 - 1) for a, b in pairs]))

    def _begin(self) -> None:
        self._places = self._rng.choice(self._size, 2, replace=False)

    def state(self) -> Array:
        """Both places."""
        return self._places.copy()

    def _seen(self) -> list[Any]:
        return [self._places.copy(), self._places[::-1].copy()]

    def _play(self, actions: list[int]) -> tuple[float, bool, bool]:
        self._places = (self._places + np.array(actions) - 1).clip(0, self._size - 1)
        is_met = bool(self._places[0] == self._places[1])
        return (1.0 if is_met else -0.1), is_met, self._steps >= 20


class SpeakerListener(_Cooperative):
    """A speaker sees a thing and says a word, a listener hears it and points: other spaces.

    There are three things and three words, and four places to point at; in each of 5 steps there is
    a new thing. The listener hears the word of the step before, and pointing at the thing of that
    step pays 1: the optimum is 4, one less than the steps.
    """

    _names = ("speaker", "listener")
    observation_space = (Discrete(3), Box(0, 1, (3,), np.float32))
    action_space = (Discrete(3), Discrete(4))
    OPTIMUM = 4.0

    def _begin(self) -> None:
        self._thing, self._before = int(self._rng.integers(3)), -1
        self._heard = np.zeros(3, dtype=np.float32)

    def _seen(self) -> list[Any]:
        return [self._thing, self._heard.copy()]

    def _play(self, actions: list[int]) -> tuple[float, bool, bool]:
        word, place = actions
        paid = float(place == self._before)
        self._before, self._thing = self._thing, int(self._rng.integers(3))
        self._heard = np.eye(3, dtype=np.float32)[word]
        return paid, self._steps >= 5, False


class Recall(_Cooperative):
    """Two players say after some steps which bit each has seen in the first one.

    They see 0 or 1 in the first step, 3 in the last and 2 between; if both are right there, each
    gets 1: the optimum, and 0.25 without a memory.

    Args:
        steps: of an episode.
    """

    observation_space = (Discrete(4),) * 2
    action_space = (Discrete(2),) * 2
    OPTIMUM = 1.0

    def __init__(self, steps: int = 8) -> None:
        super().__init__()
        self._length = steps

    def _begin(self) -> None:
        self._bits = self._rng.integers(2, size=2).tolist()

    def _seen(self) -> list[Any]:
        if self._steps == 0:
            return list(self._bits)
        return [3 if self._steps == self._length - 1 else 2] * 2

    def _play(self, actions: list[int]) -> tuple[float, bool, bool]:
        is_over = self._steps == self._length
        return float(is_over and actions == self._bits), is_over, False
