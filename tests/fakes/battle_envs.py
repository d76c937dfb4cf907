"""Battle environments of one's own. Child processes import them: without torch, that is quick."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Discrete

from hpcdi.types import Array


def infos(won: float) -> list[dict[str, Any]]:
    """Returns of both players of a game, of which one has won so much."""
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
        return [0, 0], np.array([won, -won]), True, infos(won)

    def close(self) -> None: ...


class FromOne(RockPaperScissors):
    """Its actions are 1, 2, 3."""

    action_space = (Discrete(3, start=1),) * 2

    def step(self, actions: Sequence[Any]) -> tuple[list[Any], Array, bool, list[dict[str, Any]]]:
        assert all(self.action_space[0].contains(action) for action in actions)
        return super().step(actions)


class Loud(RockPaperScissors):
    """It prints."""

    def reset(self, seed: int | None = None) -> list[Any]:
        print("a game begins")
        return super().reset(seed)


class Shaped(RockPaperScissors):
    """Its actions are arrays of one number."""

    action_space: Any = (spaces.MultiDiscrete([3]),) * 2

    def step(self, actions: Sequence[Any]) -> tuple[list[Any], Array, bool, list[dict[str, Any]]]:
        assert all(self.action_space[0].contains(action) for action in actions)
        return super().step([int(action[0]) for action in actions])


class Named(RockPaperScissors):
    """Its actions have a name, and are 1, 2, 3."""

    action_space: Any = (spaces.Dict(move=Discrete(3, start=1)),) * 2

    def step(self, actions: Sequence[Any]) -> tuple[list[Any], Array, bool, list[dict[str, Any]]]:
        assert all(self.action_space[0].contains(action) for action in actions)
        return super().step([action["move"] for action in actions])


class ThreeEnv:
    """All three act at once; the last drops out in the second step, the others in the fourth."""

    possible_agents = ("a", "b", "c")
    metadata: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, exit_at: int = 0, hang_at: int = 0) -> None:
        self.agents: list[str] = []
        self._exit_at, self._hang_at, self._life = exit_at, hang_at, 0

    def observation_space(self, name: str) -> Any:
        return spaces.Box(0, 9, (1,), np.float32)

    def action_space(self, name: str) -> Any:
        return Discrete(4)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self._steps = list(self.possible_agents), 0
        return {name: np.zeros(1, np.float32) for name in self.agents}, {n: {} for n in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        assert actions.keys() == set(self.agents)
        self._steps += 1
        self._life += 1
        if self._life == self._exit_at:
            os._exit(3)
        if self._life == self._hang_at:
            time.sleep(60)
        over = {n: self._steps == 4 or (n == "c" and self._steps == 2) for n in self.agents}
        seen = {n: np.full(1, self._steps, np.float32) for n in self.agents}
        paid = {n: float(actions[n]) for n in self.agents}
        no = dict.fromkeys(self.agents, False)
        told: dict[str, Any] = {n: {} for n in self.agents}
        self.agents = [n for n in self.agents if not over[n]]
        return seen, paid, over, no, told

    def close(self) -> None:
        """Nothing is open."""


class Numbers(ThreeEnv):
    """Another one: its players have numbers in place of names, the last one first."""

    possible_agents = tuple(reversed(range(11)))  # type: ignore[assignment]


class FourEnv(ThreeEnv):
    """Another one, with names of its own."""

    possible_agents = ("red_1", "blue_1", "red_2", "blue_2")  # type: ignore[assignment]


class SeedsBattle:
    """A battle environment of the seeds' kind."""

    agent_num = 2

    def __init__(self) -> None:
        self.seeded: int | None = None

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        self.seeded = seed

    def reset(self) -> Array:
        return np.zeros((2, 3), np.float32)

    def step(self, actions: Any) -> Any:
        info = [{"eval_episode_return": 1.0}, {"eval_episode_return": -1.0}]
        return SimpleNamespace(
            obs=np.ones((2, 3)), reward=[np.ones(1), -np.ones(1)], done=True, info=info
        )

    def close(self) -> None:
        """Nothing is open."""
