"""Tic-tac-toe: a policy that takes the first legal action, as a script, too; a perfect player.

Of two such players the one who begins wins in the seventh move: 0, 2, 4, 6 against 1, 3, 5.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete

from fakes.collectors import ColumnarProbe, Port
from hpcdi.policy.base import TrainColumns
from hpcdi.types import Array, Columns, Settings
from hpcdi.utils.registry import POLICY_REGISTRY
from hpcdi.worker.collector.base_parallel_collector import create_parallel_collector


class FirstLegal(ColumnarProbe):
    """Takes the first legal action; says by which version."""

    def act(self, observation: Array, setting: Settings) -> Columns:
        version = np.full(len(observation), self._version)
        return {"action": setting["action_mask"].argmax(axis=1), "acted_by": version}

    def train_columns(self, transitions: Columns, item_len: Array, last: Array) -> TrainColumns:
        assert len(last) == len(item_len)
        assert set(transitions["acted_by"]) <= {self._version}
        return TrainColumns({})


def first_legal(observation: Any, _rng: np.random.Generator) -> int:
    """The same as a script."""
    return int(observation["action_mask"].argmax())


def marine(
    port: Port | None,
    folder: str = ".",
    *,
    evaluate: bool = False,
    policy: str = "test_first_legal",
    **env: Any,
) -> Any:
    """A marine collector in 2 environments, of tic-tac-toe."""
    cfg = {
        "type": "pettingzoo", "env_id": "classic.tictactoe_v3", "collector_env_num": 2,
        "evaluator_env_num": 2, **env,
    }  # fmt: skip
    config = POLICY_REGISTRY.get(policy).Config(type=policy)
    return create_parallel_collector(
        {
            "type": "marine", "env": cfg, "policy": config, "eval_flag": evaluate,
            "policy_update_path": folder, "seed": np.random.SeedSequence(1),
        },
        port,
    )  # fmt: skip


def blank(render_mode: str | None = None) -> Any:
    """Tic-tac-toe that draws nothing."""
    from pettingzoo.classic import tictactoe_v3

    return tictactoe_v3.env()


_LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


@functools.cache
def _worth(own: int, other: int) -> int:
    """Of a position to who is to move, by perfect play: 1 it is won, 0 drawn, -1 lost.

    Args:
        own: cells with a stone of theirs, as bits.
        other: cells with one of the other player.
    """
    if any(all(other >> cell & 1 for cell in line) for line in _LINES):
        return -1
    free = [cell for cell in range(9) if not (own | other) >> cell & 1]
    return max((-_worth(other, own | 1 << cell) for cell in free), default=0)


def minimax(observation: Any, rng: np.random.Generator) -> int:
    """A perfect player: any of the moves that are worth most."""
    planes = observation["observation"].reshape(9, 2)
    own, other = (sum(1 << int(c) for c in np.flatnonzero(planes[:, p])) for p in (0, 1))
    free = np.flatnonzero(observation["action_mask"]).tolist()
    worth = [-_worth(other, own | 1 << cell) for cell in free]
    return int(rng.choice([c for c, w in zip(free, worth, strict=True) if w == max(worth)]))


def _infos(won: float) -> list[dict[str, Any]]:
    return [{"eval_episode_return": won}, {"eval_episode_return": -won}]


class RockPaperScissors:
    """One round, both at once."""

    agents = 2
    observation_space = (Discrete(1),) * 2
    action_space = (Discrete(3),) * 2

    def reset(self, seed: int | None = None) -> list[Any]:
        return [0, 0]

    def step(self, actions: Sequence[Any]) -> tuple[list[Any], Array, bool, list[dict[str, Any]]]:
        won = [0.0, 1.0, -1.0][(actions[0] - actions[1]) % 3]
        return [0, 0], np.array([won, -won]), True, _infos(won)

    def close(self) -> None: ...


class FromOne(RockPaperScissors):
    """Its actions are 1, 2, 3."""

    action_space = (Discrete(3, start=1),) * 2

    def step(self, actions: Sequence[Any]) -> tuple[list[Any], Array, bool, list[dict[str, Any]]]:
        assert all(self.action_space[0].contains(action) for action in actions)
        return super().step(actions)


class KuhnPoker:
    """Kuhn's poker (Kuhn 1950): actions 0 check or fold, 1 bet or call.

    A player sees its card, 0 to 2, and how often each action was taken before its turn.

    Args:
        says_deals: have an attribute `deals`.
    """

    agents = 2
    observation_space = (MultiDiscrete([3, 3, 3]),) * 2
    action_space = (Discrete(2),) * 2
    _ENDS = ("pp", "pbp", "pbb", "bp", "bb")
    _blank = np.zeros(3, dtype=np.int64)

    def __init__(self, *, says_deals: bool = True) -> None:
        if says_deals:
            self.deals = 6

    def reset(self, seed: int | None = None) -> list[Any]:
        if seed is None:
            seed = int(np.random.default_rng().integers(6))
        self._cards = list(itertools.permutations(range(3), 2))[seed % 6]
        self._history = ""
        return self._seen()

    def step(self, actions: Sequence[Any]) -> tuple[list[Any], Array, bool, list[dict[str, Any]]]:
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
        return seen, np.array([won, -won]), done, _infos(won)

    def _seen(self) -> list[Any]:
        seat, past = len(self._history) % 2, self._history
        seen = np.array([self._cards[seat], past.count("p"), past.count("b")])
        return [seen if seat == player else None for player in (0, 1)]

    def close(self) -> None: ...
