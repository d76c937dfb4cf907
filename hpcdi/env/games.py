"""Small games whose optimum is known: measures for the policies of leagues and of teams.

``env: {type: pettingzoo, env_id: "hpcdi.env.games:KuhnPoker"}``; ``type: team`` for the others,
whose players act at once: in `Pincer` two teams against each other, in the rest together. They do
not need PettingZoo.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
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


class _AtOnce:
    """A game whose players act at once, in the shape of `BattleEnv`."""

    agents = 2
    _names: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._rng = np.random.default_rng()
        self.names = list(self._names)
        self._steps = 0

    def reset(self, seed: int | None = None) -> list[Any]:
        """Begin an episode; returns what each player sees."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._steps = 0
        self._begin()
        return self._seen()

    def step(self, actions: Sequence[Any]) -> tuple[list[Any], Array, bool, list[dict[str, Any]]]:
        """All act at once."""
        self._steps += 1
        reward, terminated, truncated = self._play([int(action) for action in actions])
        ends = {"terminated": terminated, "truncated": truncated and not terminated}
        infos = [dict(ends) for _ in range(self.agents)]
        rewards = np.full(self.agents, reward)
        return self._seen(), rewards, terminated or truncated, infos

    def close(self) -> None:
        """Nothing is open."""

    def _begin(self) -> None:
        raise NotImplementedError

    def _seen(self) -> list[Any]:
        raise NotImplementedError

    def _play(self, actions: list[int]) -> tuple[float | Sequence[float], bool, bool]:
        """Returns reward (of all, or each player's), terminated, truncated."""
        raise NotImplementedError


class TwoStep(_AtOnce):
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


class Meet(_AtOnce):
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


class SpeakerListener(_AtOnce):
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


class Recall(_AtOnce):
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


_HUNTERS = tuple(itertools.product(range(3), repeat=2))


class Pincer(_AtOnce):
    """Two teams with other spaces against each other: two hunters and a prey on a ring.

    The hunters start in one cell and move left, stay or move right; the prey starts in any other
    and must move left or right. It is caught when a hunter comes into its cell or changes places
    with it. Every step costs each hunter 1 and pays the prey 1. A single hunter never catches a
    prey that runs away, so the two must part and come from both sides: at best for both teams it is
    caught after half of the ring, rounded down, from wherever they start, where `size` is odd (else
    also a step sooner; `chase` computes it; the best moves need not be drawn). The mean return of
    the three is a third of the hunters' steps, below 0, and above its `optimum` where the prey is
    weak: `gap` tells whether both teams are as good as they can be.

    Args:
        size: cells of the ring, at least 3.
        steps: of an episode at most.
    """

    agents = 3
    _names = ("hunter_0", "hunter_1", "prey")

    def __init__(self, size: int = 9, steps: int = 20) -> None:
        super().__init__()
        self._size, self._length = size, steps
        hunter = Box(0, 1, (2 * size,), np.float32)
        self.observation_space = (hunter, hunter, Discrete(size * size))
        self.action_space = (Discrete(3), Discrete(3), Discrete(2))
        self.state_space = hunter

    @property
    def optimum(self) -> float:
        """Mean return of the three players where both teams play their best."""
        return -self.chase() / 3

    def place(self, distances: tuple[int, int]) -> list[Any]:
        """Begin where the prey is so far to the right of each hunter; returns what each sees."""
        self._steps, self._distances = 0, distances
        return self._seen()

    def chase(
        self,
        hunters: Callable[[int, int], tuple[int, int]] | None = None,
        prey: Callable[[int, int], int] | None = None,
    ) -> float:
        """Mean steps until the prey is caught, over all starts: exact, by value iteration.

        Args:
            hunters: how far the prey is to the right of each hunter -> their actions; None: the
                best.
            prey: the same -> its action; None: the best.
        """
        left = dict.fromkeys(self._places(), 0.0)

        def steps(place: tuple[int, int], moves: Sequence[int], move: int) -> float:
            moved = self._moved(place, moves, move)
            return 1.0 if moved is None else 1.0 + left[moved]

        for _ in range(self._length):
            left = {
                place: min(
                    max(steps(place, moves, move) for move in ([prey(*place)] if prey else (0, 1)))
                    for moves in ([hunters(*place)] if hunters else _HUNTERS)
                )
                for place in left
            }
        return float(np.mean([left[start, start] for start in range(1, self._size)]))

    def gap(self, act: Callable[[dict[str, Any]], Mapping[str, Any]]) -> float:
        """Returns how many steps both teams together lose to the best against them; 0: nothing.

        Args:
            act: what each player sees, by its name -> their actions, such as `hpcdi.Policy.act`.
        """
        chosen = {}
        for place in self._places():
            actions = act(dict(zip(self._names, self.place(place), strict=True)))
            chosen[place] = [int(actions[name]) for name in self._names]
        longest = self.chase(hunters=lambda *place: (chosen[place][0], chosen[place][1]))
        return longest - self.chase(prey=lambda *place: chosen[place][2])

    def _places(self) -> list[tuple[int, int]]:
        cells = range(1, self._size)
        return [(first, second) for first in cells for second in cells]

    def state(self) -> Array:
        """How far the prey is to the right of each hunter, one-hot, both in one [2 * size]."""
        return self._one_hot(*self._distances)

    def _begin(self) -> None:
        self._distances = (int(self._rng.integers(1, self._size)),) * 2

    def _seen(self) -> list[Any]:
        first, second = self._distances
        # each hunter sees its own distance first
        hunters = self._one_hot(first, second), self._one_hot(second, first)
        return [*hunters, first * self._size + second]

    def _one_hot(self, *distances: int) -> Array:
        return np.eye(self._size, dtype=np.float32)[list(distances)].ravel()

    def _play(self, actions: list[int]) -> tuple[Sequence[float], bool, bool]:
        *hunters, prey = actions
        moved = self._moved(self._distances, hunters, prey)
        is_caught = moved is None
        self._distances = moved or (0, 0)
        return (-1.0, -1.0, 1.0), is_caught, self._steps >= self._length

    def _moved(
        self, distances: tuple[int, int], hunters: Sequence[int], prey: int
    ) -> tuple[int, int] | None:
        """Returns the distances after a move of all; None: the prey is caught."""
        run = 2 * prey - 1
        first, second = (d + run - (step - 1) for d, step in zip(distances, hunters, strict=True))
        is_caught = not (0 < first < self._size and 0 < second < self._size)
        return None if is_caught else (first, second)
