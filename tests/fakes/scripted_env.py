"""Environments whose episodes end by a script, and scripts by hypothesis."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import strategies as st

from fakes.env_managers import vector_manager
from hpcdi.env.manager import EnvManager
from hpcdi.types import Array

Script = list[tuple[int, bool, bool]]
"""Episodes of one environment, again and again: length, terminated, truncated at the end."""
endings = st.sampled_from([(True, False), (False, True), (True, True)])
scripts = st.lists(
    st.lists(
        st.tuples(st.integers(1, 5), endings).map(lambda x: (x[0], *x[1])), min_size=1, max_size=3
    ),
    min_size=1,
    max_size=3,
)


class ScriptedEnv(gymnasium.Env[Array, np.int64]):
    """Its observation is [environment, episode, step]; its reward is 100 x episode + step."""

    def __init__(self, number: int, script: Script) -> None:
        self.observation_space = gymnasium.spaces.Box(0, np.inf, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(1000)
        self._number, self._script = number, script
        self._episode, self._step = -1, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        self._episode += 1
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        length, terminated, truncated = self._script[self._episode % len(self._script)]
        self._step += 1
        ended = self._step == length
        reward = 100.0 * self._episode + self._step
        return self._observe(), reward, ended and terminated, ended and truncated, {}

    def _observe(self) -> Array:
        return np.array([self._number, self._episode, self._step], dtype=np.float32)


def manager(scripts: list[Script], mode: AutoresetMode, quota: int | None = None) -> EnvManager:
    def make() -> SyncVectorEnv:
        return SyncVectorEnv(
            [lambda k=k, s=s: ScriptedEnv(k, s) for k, s in enumerate(scripts)],
            autoreset_mode=mode,
        )

    return vector_manager(make, len(scripts), quota)
