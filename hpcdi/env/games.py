"""A small game of two players whose optimum is known: a measure for a league's policies.

``env: {type: pettingzoo, env_id: "hpcdi.env.games:KuhnPoker"}``; it does not need PettingZoo.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete

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
