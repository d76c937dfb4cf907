"""Tic-tac-toe: a policy that takes the first legal action, as a script, too; a perfect player.

Of two such players the one who begins wins in the seventh move: 0, 2, 4, 6 against 1, 3, 5.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

from fakes.collectors import ColumnarProbe, Port
from hpcdi.policy.base import TrainColumns
from hpcdi.types import Array, Columns, Settings
from hpcdi.utils.nested import column_rows
from hpcdi.utils.registry import POLICY_REGISTRY
from hpcdi.worker import create_parallel_collector


class FirstLegal(ColumnarProbe):
    """Takes the first legal action; says by which version."""

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:
        version = np.full(column_rows(observation), self._version)
        return {"action": observation["action_mask"].argmax(axis=1), "acted_by": version}

    def train_columns(self, transitions: Columns, item_len: Array, last: Columns) -> TrainColumns:
        assert column_rows(last) == len(item_len)
        assert set(transitions["acted_by"]) <= {self._version}
        return TrainColumns({})


class LastLegal(FirstLegal):
    """Takes the last legal action where it collects, in evaluations the first."""

    def __init__(self, cfg: Any, enable_field: Any, *, seed: np.random.SeedSequence) -> None:
        super().__init__(cfg, enable_field, seed=seed)
        self._collects = "collect" in enable_field

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:
        outputs = super().act(observation, setting)
        if self._collects:
            outputs["action"] = 8 - observation["action_mask"][:, ::-1].argmax(axis=1)
        return outputs


def first_legal(observation: Any, _rng: np.random.Generator) -> int:
    """The same as a script."""
    return int(observation["action_mask"].argmax())


def marine(
    port: Port | None,
    folder: str = ".",
    *,
    evaluate: bool = False,
    policy: str = "test_first_legal",
    opponents_explore: bool = True,
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
            "opponents_explore": opponents_explore,
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


class Counting(ColumnarProbe):
    """Plays how often it has acted in the running game, which it remembers for each place."""

    def __init__(self, cfg: Any, enable_field: Any, *, seed: np.random.SeedSequence) -> None:
        super().__init__(cfg, enable_field, seed=seed)
        self._turns: dict[int, int] = {}

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:
        assert rows is not None, "not all act at once in a league"
        assert len(rows) == column_rows(observation)
        turns = [self._turns.get(row, 0) for row in rows.tolist()]
        self._turns.update({row: n + 1 for row, n in zip(rows.tolist(), turns, strict=True)})
        return {"action": np.array(turns), "acted_by": np.full(len(turns), self._version)}

    def reset(self, data_id: Sequence[int] | None = None) -> None:
        self._turns = {} if data_id is None else {
            row: turns for row, turns in self._turns.items() if row not in data_id
        }  # fmt: skip


class AtOnce:
    """Over when the first player has acted, who wins; the second never has a turn.

    Each says in the info that it has ``success``, and what it has won.

    Args:
        teams: whether two more, who have no turn and neither win nor lose, play with them.
    """

    def __init__(self, *, teams: bool = False) -> None:
        self.agents = 4 if teams else 2
        self.teams = ((0, 2), (1, 3)) if teams else None
        self.observation_space = (Discrete(1),) * self.agents
        self.action_space = (Discrete(10),) * self.agents

    def reset(self, seed: int | None = None) -> list[Any]:
        return [0] + [None] * (self.agents - 1)

    def step(self, _: Sequence[Any]) -> tuple[list[Any], Array, bool, list[dict[str, Any]]]:
        won = np.array([1.0, -1.0, 0.0, 0.0])[: self.agents]
        infos = [{"eval_episode_return": own, "success": own > 0} for own in won]
        return [0] * self.agents, won, True, infos

    def close(self) -> None: ...


class Crowd:
    """Fourteen players, all at once, for one step: the first wins."""

    agents = 14
    observation_space = (Discrete(1),) * 14
    action_space = (Discrete(10),) * 14

    def reset(self, seed: int | None = None) -> list[Any]:
        return [0] * 14

    def step(self, _: Sequence[Any]) -> tuple[list[Any], Array, bool, list[dict[str, Any]]]:
        won = np.array([1.0, *[0.0] * 13])
        return [0] * 14, won, True, [{"eval_episode_return": own} for own in won]

    def close(self) -> None: ...


class Relay:
    """Four players, one or two of whom act in a step; each is to act by how often it has acted.

    A wrong action costs 1; a game has 5 to 9 steps, by its seed.

    Args:
        teams: whether the first and third play together against the others.
    """

    agents = 4
    observation_space = (Discrete(1),) * 4
    action_space = (Discrete(10),) * 4

    def __init__(self, *, teams: bool = False) -> None:
        self.teams = ((0, 2), (1, 3)) if teams else None

    def reset(self, seed: int | None = None) -> list[Any]:
        self._length = 5 + (seed or 0) % 5
        self._steps, self._turns, self._returns = 0, [0] * 4, np.zeros(4)
        return self._seen()

    def step(self, actions: Sequence[Any]) -> tuple[list[Any], Array, bool, list[dict[str, Any]]]:
        reward = np.zeros(4)
        for seat in self._acting():
            reward[seat] = -float(actions[seat] != self._turns[seat])
            self._turns[seat] += 1
        self._returns += reward
        self._steps += 1
        done = self._steps == self._length
        infos = [{"eval_episode_return": own} for own in self._returns] if done else [{}] * 4
        return [0] * 4 if done else self._seen(), reward, done, infos

    def _acting(self) -> set[int]:
        return {self._steps % 4, self._steps // 2 % 4}

    def _seen(self) -> list[Any]:
        return [0 if seat in self._acting() else None for seat in range(4)]

    def close(self) -> None: ...
