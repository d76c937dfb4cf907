"""One update, and what is called around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcdi.config.roles import LearnerConfig
from hpcdi.errors import ConfigError, PolicyError
from hpcdi.roles.learner.callbacks import LogShow, SaveCheckpoint, callbacks_of
from hpcdi.roles.learner.training import Batch, Log, Training, TrainingCallback


class Policy:
    """A learn mode that returns planned logs, and keeps what it was given."""

    def __init__(self, *logs: Any) -> None:
        self.logs, self.given = list(logs), []

    def forward(self, columns: Any, **kwargs: Any) -> Any:
        self.given.append((columns, kwargs))
        return self.logs.pop(0)


class Notes(TrainingCallback):
    """Notes its calls."""

    def __init__(self, name: str, priority: float, calls: list[Any]) -> None:
        self.name, self.priority, self.calls = name, priority, calls

    def on_start(self, training: Training) -> None:
        self.calls.append((self.name, "start", training.train_iter))

    def on_batch(self, training: Training) -> None:
        self.calls.append((self.name, "batch", training.train_iter, training.env_steps))

    def on_update(self, training: Training, log: Log) -> None:
        self.calls.append((self.name, "update", training.train_iter, log))

    def on_end(self, training: Training) -> None:
        self.calls.append((self.name, "end", training.train_iter))

    def close(self) -> None:
        self.calls.append((self.name, "close"))


def training_of(tmp_path: Path, policy: Any, *callbacks: TrainingCallback) -> Training:
    return Training(LearnerConfig(), policy, callbacks=callbacks, ckpt_dir=tmp_path)


def batch(env_steps: int = -1, feedback: Any = None) -> Batch:
    return Batch({"x": 1}, np.array([4, 2]), env_steps, feedback or (lambda _priority: None))


def test_callbacks_are_called_around_an_update_by_priority(tmp_path: Path) -> None:
    calls: list[Any] = []
    policy = Policy({"total_loss": 1.0})
    late, early = Notes("late", 100, calls), Notes("early", 1.5, calls)
    training = training_of(tmp_path, policy, late, early, TrainingCallback())
    training.begin()
    assert training.update(batch(70), eps=0.5) == [{"total_loss": 1.0}]
    training.end()
    training.close()
    assert policy.given == [({"x": 1}, {"eps": 0.5})]
    expected = [
        ("start", 0), ("batch", 0, 70), ("update", 1, {"total_loss": 1.0}), ("end", 1), ("close",)
    ]  # fmt: skip
    assert calls == [(name, *call) for call in expected for name in ("early", "late")]


def test_each_pass_counts_and_returns_its_priorities(tmp_path: Path) -> None:
    returned: list[Any] = []
    passes = [{"priority": [1.0, 2.0]}, {"total_loss": 0.5}, {"priority": np.array([3.0, 4.0])}]
    calls: list[Any] = []
    training = training_of(tmp_path, Policy(passes, {}), Notes("", 0, calls))
    training.update(batch(feedback=lambda priority: returned.append(priority.tolist())))
    assert returned == [[1.0, 2.0], [3.0, 4.0]]
    assert [call[2] for call in calls if call[1] == "update"] == [1, 2, 3]
    training.update(batch())
    assert training.train_iter == 4
    assert training.env_steps == 0, "-1 is not known"


def test_what_is_wrong_stops_before_it_is_counted(tmp_path: Path) -> None:
    calls: list[Any] = []
    policy = Policy([{"total_loss": 1.0}, {"total_loss": float("nan")}], {"priority": [1.0]})
    training = training_of(tmp_path, policy, Notes("", 0, calls))
    with pytest.raises(PolicyError, match="total_loss is nan in train iteration 2"):
        training.update(batch())
    with pytest.raises(PolicyError, match=r"priorities of shape \(1,\) for a batch of 2"):
        training.update(batch())
    assert training.train_iter == 0
    assert "update" not in [call[1] for call in calls]


def test_the_callbacks_of_a_configuration(tmp_path: Path) -> None:
    callbacks = callbacks_of({"log_show_after_iter": 5, "save_ckpt_after_iter": True})
    show, save = callbacks.values()
    assert isinstance(show, LogShow)
    assert isinstance(save, SaveCheckpoint)
    assert (show.every, save.every) == (5, 10_000)
    assert callbacks_of({"log_show_after_iter": 0, "load_ckpt_before_run": ""}) == {}
    with pytest.raises(ConfigError) as caught:
        callbacks_of({"log_shw": 1, "save_ckpt_after_run": "always"})
    assert {problem.path for problem in caught.value.problems} == {
        "hook.log_shw", "hook.save_ckpt_after_run"
    }  # fmt: skip
