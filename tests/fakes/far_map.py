"""Environments whose positions are far from 0. Child processes import them: without torch."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

FAR = 5_400_000.3
BOX = spaces.Box(-np.inf, np.inf, (2,), np.float64)


class Map(gymnasium.Env[Any, Any]):
    """A position far from 0, which moves by 0.1, and an angle."""

    action_space = spaces.Discrete(2)

    def __init__(self, form: str = "bare", low: float = -np.inf, scale: float = 1.0) -> None:
        self.form, self._far = form, FAR * scale
        box = spaces.Box(low, -low, (2,), np.float64)
        if form == "float32":  # and yet it returns float64
            box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = {
            "nested": lambda: spaces.Dict(arm=spaces.Dict(at=box), other=spaces.Discrete(3)),
            "tuple": lambda: spaces.Tuple((spaces.Discrete(3), box)),
            "masked": lambda: spaces.Dict(observation=box, action_mask=spaces.MultiBinary(2)),
        }.get(form, lambda: box)()

    def _seen(self) -> Any:
        at = np.array([self._far + 0.1 * self._t, 0.5])
        return {
            "nested": {"arm": {"at": at}, "other": 1},
            "tuple": (1, at),
            "masked": {"observation": at, "action_mask": np.ones(2, np.int8)},
            "list": at.tolist(),
        }.get(self.form, at)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._t = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._t += 1
        return self._seen(), 0.0, self._t == 2, False, {}


class MapVector(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """The same, vectorised."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, **_: Any) -> None:
        self.num_envs, self.single_observation_space = num_envs, BOX
        self.single_action_space = spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.tile([FAR, 0.5], (self.num_envs, 1)), {}

    def step(self, actions: Any) -> Any:
        no = np.zeros(self.num_envs, bool)
        return np.tile([FAR + 0.1, 0.5], (self.num_envs, 1)), no * 1.0, no, no, {}


class MapPair(ParallelEnv[str, Any, Any]):
    """The same, of two players."""

    metadata = {"name": "map_v0"}  # noqa: RUF012
    possible_agents = ["a", "b"]  # noqa: RUF012

    def __init__(self, **_: Any) -> None:
        self._one = Map()

    def observation_space(self, agent: str) -> Any:
        return BOX

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = ["a", "b"]
        return dict.fromkeys("ab", self._one.reset()[0]), {"a": {}, "b": {}}

    def step(self, actions: Any) -> Any:
        seen, _, over, _, _ = self._one.step(0)
        self.agents = [] if over else ["a", "b"]
        ends = dict.fromkeys("ab", over), dict.fromkeys("ab", False)
        return dict.fromkeys("ab", seen), dict.fromkeys("ab", 0.0), *ends, {"a": {}, "b": {}}


gymnasium.register("test/Map-v0", f"{__name__}:Map", vector_entry_point=f"{__name__}:MapVector")
