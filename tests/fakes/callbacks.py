"""Callbacks of every kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

import hpcdi
from hpcdi.roles.callbacks import Context


class Counts(hpcdi.Callback):
    """Counts what it is told of, on rank 0."""

    seen: ClassVar[list[Counts]] = []

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.episodes = self.evaluations = self.updates = 0
        self.seen.append(self)

    def on_start(self, context: Context) -> None:
        self.calls.append(f"start {context.env_steps}")

    def on_episode(self, context: Context, info: Mapping[str, float]) -> None:
        self.episodes += 1
        assert info["length"] >= 1
        assert -1 <= info["return"] <= 1
        context.log("episodes", self.episodes)

    def on_update(self, context: Context, scalars: Mapping[str, float]) -> None:
        self.updates += "total_loss" in scalars

    def on_evaluation(self, context: Context, result: Any) -> None:
        self.evaluations += 1
        context.log("returns", np.array([result.lowest, result.highest]))
        context.log("picture", np.zeros((8, 8, 3), np.uint8))

    def on_snapshot(self, context: Context) -> None:
        self.calls.append("snapshot")

    def on_end(self, context: Context) -> None:
        self.calls.append("end")

    def state_dict(self) -> dict[str, Any]:
        return {"episodes": self.episodes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.episodes = state["episodes"]


class Halves(hpcdi.Callback):
    """Halves the learning rate once, and stops; on a learner."""

    runs_on = "learner"

    def __init__(self, stop: int) -> None:
        self._stop, self._rates = stop, list[float]()

    def on_update(self, context: Context, scalars: Mapping[str, float]) -> None:
        self._rates.append(scalars["cur_lr"])
        if context.train_iter == 2:
            context.set("policy.learn.learning_rate", scalars["cur_lr"] / 2)
        if context.train_iter == self._stop:
            assert self._rates[2:] == [self._rates[0] / 2] * (self._stop - 2)
            context.stop(f"{len(self._rates)} iterations")

    def state_dict(self) -> dict[str, Any]:
        return {"rates": self._rates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rates = list(state["rates"])


class Raises(hpcdi.Callback):
    """Fails in its second update, on a learner."""

    runs_on = "learner"

    def on_update(self, context: Context, scalars: Mapping[str, float]) -> None:
        if context.train_iter == 2:
            raise ValueError("too hot")


class Climbs(hpcdi.Callback):
    """Takes the next level, and stops when an episode was played with it."""

    def __init__(self, level: int = 2) -> None:
        self._level = level

    def on_episode(self, context: Context, info: Mapping[str, float]) -> None:
        if info["schedule/level"] == 1:
            context.set_env(level=self._level)
        else:
            context.stop(f"level {info['schedule/level']:g}")


class Rolls(hpcdi.Callback):
    """Counts its own episodes, on a collector; stops when there are enough."""

    runs_on = "collector"

    def __init__(self, stop: int = 1_000_000) -> None:
        self._stop, self.episodes, self.calls = stop, 0, list[str]()
        self.begun_at = list[int]()  # environment steps at each start

    def on_start(self, context: Context) -> None:
        self.calls.append(f"start with {self.episodes}")
        self.begun_at.append(context.env_steps)

    def on_episode(self, context: Context, info: Mapping[str, float]) -> None:
        self.episodes += 1
        assert context.role == "collector"
        assert context.env_steps >= info["length"] >= 1
        context.log("own_episodes", self.episodes)
        context.log("picture", np.zeros((8, 8, 3), np.uint8))
        if self.episodes == self._stop:
            context.stop(f"{self.episodes} episodes")

    def on_end(self, context: Context) -> None:
        self.calls.append("end")

    def state_dict(self) -> dict[str, Any]:
        return {"episodes": self.episodes, "calls": self.calls, "begun_at": self.begun_at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.episodes, self.calls = state["episodes"], list(state["calls"])
        self.begun_at = list(state["begun_at"])


class Misspelt(hpcdi.Callback):
    """Would never be called."""

    def on_epsiode(self, context: Context, info: Mapping[str, float]) -> None: ...


class Elsewhere(hpcdi.Callback):
    """Has a method that is not called where it runs."""

    runs_on = "collector"

    def on_update(self, context: Context, scalars: Mapping[str, float]) -> None: ...


class Unmade(hpcdi.Callback):
    """Cannot be made."""

    def __init__(self) -> None:
        raise KeyError("gone")


class Chooses(hpcdi.Callback):
    """Says where it runs only as it is made, which is too late."""

    def __init__(self) -> None:
        self.runs_on = "learner"  # type: ignore[misc]

    def on_batch(self, context: Context) -> None:
        context.stop("called")


def made() -> hpcdi.Callback:
    """Makes one; nobody knows where before it is called."""
    return Counts()
