"""Policies with a planted error, one for each role that has one, and policies that write down what
they do."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdi.config.algorithms import PPOConfig
from hpcdi.policy.dqn import DQNPolicy
from hpcdi.policy.ppo import PPOPolicy
from hpcdi.utils.registry import POLICY_REGISTRY


@POLICY_REGISTRY.register("planted_learner")
class PlantedLearner(DQNPolicy):
    """Raises in the 20th update."""

    @dataclass(frozen=True)
    class Config(DQNPolicy.Config):
        """No settings of its own."""

        type: str = "planted_learner"

    def _forward_learn(self, data: Any, **kwargs: Any) -> dict[str, Any]:
        if self._updates == 20:
            raise RuntimeError("planted in the learner")
        return super()._forward_learn(data, **kwargs)


@POLICY_REGISTRY.register("planted_second_learner")
class PlantedSecondLearner(PlantedLearner):
    """Raises in the 20th update of the second learner; the first one waits for its gradients."""

    @dataclass(frozen=True)
    class Config(PlantedLearner.Config):
        """No settings of its own."""

        type: str = "planted_second_learner"

    def _forward_learn(self, data: Any, **kwargs: Any) -> dict[str, Any]:
        from hpcdi.comm.group import get_rank

        learn = super() if get_rank() == 1 else super(PlantedLearner, self)
        return learn._forward_learn(data, **kwargs)


@POLICY_REGISTRY.register("planted_collector")
class PlantedCollector(DQNPolicy):
    """Raises in the 100th action."""

    @dataclass(frozen=True)
    class Config(DQNPolicy.Config):
        """No settings of its own."""

        type: str = "planted_collector"

    _acted = 0

    def act(self, observation: Any, setting: Any, rows: Any = None) -> Any:
        """Fail after some actions."""
        self._acted += 1
        if self._acted == 100:
            raise RuntimeError("planted in the collector")
        return super().act(observation, setting, rows)


@POLICY_REGISTRY.register("planted_run")
class PlantedRun(DQNPolicy):
    """Raises in the 20th update of one run of a sweep, as long as the file PLANTED_WHILE is there.

    The run is the one whose folder has the name that the file holds.
    """

    @dataclass(frozen=True)
    class Config(DQNPolicy.Config):
        """No settings of its own."""

        type: str = "planted_run"

    def _forward_learn(self, data: Any, **kwargs: Any) -> dict[str, Any]:
        planted = Path(os.environ["PLANTED_WHILE"])
        if self._updates == 20 and planted.exists():
            name = planted.read_text()
            if any(word.endswith(f"/{name}") for word in sys.argv):
                raise RuntimeError(f"planted in run {name}")
        return super()._forward_learn(data, **kwargs)


class Watched:
    """Writes down, for each learner, what its steps lead to and which files it publishes.

    In the folder that the variable WATCHED names: ``steps<n>``, a hash of the parameters before the
    first step and after each, and ``files<n>``, the paths, a line each.
    """

    _step: Any

    def _init_learn(self) -> None:
        from hpcdi.comm.group import get_rank

        super()._init_learn()  # type: ignore[misc]
        folder = Path(os.environ["WATCHED"])
        steps, files = folder / f"steps{get_rank()}", folder / f"files{get_rank()}"

        def on_step(optimizer: Any, *_given: Any) -> None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            state = b"".join(p.detach().cpu().numpy().tobytes() for p in parameters)
            write_line(steps, hashlib.blake2b(state, digest_size=8).hexdigest())

        def on_event(event: str, given: tuple[Any, ...]) -> None:
            if event == "os.rename":
                write_line(files, os.fsdecode(given[1]))

        on_step(self._step.optimizer)
        self._step.optimizer.register_step_post_hook(on_step)
        sys.addaudithook(on_event)


def write_line(path: Path, line: str) -> None:
    """Add a line to a file, now."""
    with path.open("a") as file:
        file.write(f"{line}\n")


@POLICY_REGISTRY.register("watched_dqn")
class WatchedDQN(Watched, DQNPolicy):
    """DQN that is watched."""

    @dataclass(frozen=True)
    class Config(DQNPolicy.Config):
        """No settings of its own."""

        type: str = "watched_dqn"


@POLICY_REGISTRY.register("watched_ppo")
class WatchedPPO(Watched, PPOPolicy):
    """PPO that is watched."""

    @dataclass(frozen=True)
    class Config(PPOConfig):
        """No settings of its own."""

        type: str = "watched_ppo"
