"""Components with a planted error, one for each role; they write down when they raised."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdi.policy.dqn import DQNPolicy
from hpcdi.utils.registry import PARALLEL_COMMANDER_REGISTRY, POLICY_REGISTRY
from hpcdi.worker.coordinator.solo_parallel_commander import SoloCommander


def raise_planted(where: str) -> None:
    """Fail, and say when."""
    Path(os.environ["PLANTED_AT"]).write_text(str(time.time()))
    raise RuntimeError(f"planted in the {where}")


@PARALLEL_COMMANDER_REGISTRY.register("planted_commander")
class PlantedCommander(SoloCommander):
    """Raises on rank 0 when data flow."""

    @dataclass(frozen=True)
    class Config(SoloCommander.Config):
        """No settings of its own."""

        type: str = "planted_commander"

    def update_progress(self, env_steps: int, train_iter: int) -> str | None:
        """Fail once learning has begun."""
        if train_iter > 20:
            raise_planted("coordinator")
        return super().update_progress(env_steps, train_iter)


@POLICY_REGISTRY.register("planted_learner")
class PlantedLearner(DQNPolicy):
    """Raises in the 20th update."""

    @dataclass(frozen=True)
    class Config(DQNPolicy.Config):
        """No settings of its own."""

        type: str = "planted_learner"

    def _forward_learn(self, data: Any, **kwargs: Any) -> dict[str, Any]:
        if self._learner.updates == 20:
            raise_planted("learner")
        return super()._forward_learn(data, **kwargs)


@POLICY_REGISTRY.register("planted_collector")
class PlantedCollector(DQNPolicy):
    """Raises in the 100th action."""

    @dataclass(frozen=True)
    class Config(DQNPolicy.Config):
        """No settings of its own."""

        type: str = "planted_collector"

    _acted = 0

    def act(self, observation: Any, setting: Any) -> Any:
        """Fail after some actions."""
        self._acted += 1
        if self._acted == 100:
            raise_planted("collector")
        return super().act(observation, setting)


@POLICY_REGISTRY.register("planted_hang")
class PlantedHang(DQNPolicy):
    """Hangs two seconds after its first action, for longer than anybody waits."""

    @dataclass(frozen=True)
    class Config(DQNPolicy.Config):
        """No settings of its own."""

        type: str = "planted_hang"

    _began = float("inf")

    def act(self, observation: Any, setting: Any) -> Any:
        """Hang after some actions."""
        self._began = min(self._began, time.monotonic())
        if time.monotonic() - self._began > 2.0:
            time.sleep(600)
        return super().act(observation, setting)

    def _forward_learn(self, data: Any, **kwargs: Any) -> dict[str, Any]:
        time.sleep(0.002)  # so that the run outlasts the first two seconds on any machine
        return super()._forward_learn(data, **kwargs)
