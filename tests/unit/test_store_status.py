"""The file that says how a run goes."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hpcdi.store.status import EVERY_S, StatusFile
from hpcdi.utils.progress import Evaluation, Status

INF = float("inf")


def evaluation(mean: float) -> Evaluation:
    return Evaluation(mean, 1.0, mean - 1, mean + 1, 20, 7, 1000)


def status(env_steps: int = 5, **facts: Any) -> Status:
    return Status((env_steps, 2.5), (3, INF), [1.0, 2.0], None, ([], []), facts)


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def test_it_says_all_that_the_line_says_and_more(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    file = StatusFile(path, (1e6, INF), 195.0)
    evaluations = [evaluation(9.0), evaluation(20.0), evaluation(10.0)]
    file.refresh(lambda: status(phase="running"), evaluations, 0.0)
    held = read(path)
    assert held["limits"] == {"env_steps": 1e6, "train_iter": None, "stop_value": 195.0}
    assert (held["env_steps"], held["env_steps_per_s"]) == (5, 2.5)
    assert (held["train_iter"], held["train_iters_per_s"]) == (3, None)  # JSON knows no infinity
    assert held["return_mean"] == 1.5
    assert held["evaluations"] == 3
    assert held["evaluation"]["mean"] == 10.0
    assert held["best_evaluation"]["mean"] == 20.0
    assert held["phase"] == "running"
    assert held["pid"] == os.getpid()
    assert held["started_at"] <= held["written_at"]


def test_a_clock_that_is_set_makes_no_run_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = StatusFile(tmp_path / "status.json", (INF, INF), 0.0)
    monkeypatch.setattr(time, "time", lambda: 7.0)
    file.refresh(status, [], 0.0)
    held = read(tmp_path / "status.json")
    assert 0 <= held["written_at"] - held["started_at"] < 60


def test_it_is_written_once_a_second_and_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    file = StatusFile(path, (INF, INF), 0.0)
    asked: list[int] = []

    def now(env_steps: int) -> Status:
        asked.append(env_steps)
        return status(env_steps)

    file.refresh(lambda: now(1), [], 100.0)
    file.refresh(lambda: now(2), [], 100.0 + EVERY_S / 2)
    assert read(path)["env_steps"] == 1
    file.refresh(lambda: now(3), [], 100.0 + EVERY_S / 2, at_once=True)
    assert read(path)["env_steps"] == 3
    file.refresh(lambda: now(4), [], 200.0)
    assert read(path)["env_steps"] == 4
    assert asked == [1, 3, 4]
    assert [entry.name for entry in tmp_path.iterdir()] == ["status.json"]


def test_a_file_that_cannot_be_written_is_told_once_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a file").write_text("")
    file = StatusFile(tmp_path / "a file" / "status.json", (INF, INF), 0.0)
    with caplog.at_level(logging.WARNING, "hpcdi"):
        file.refresh(status, [], 0.0)
        file.refresh(status, [], 10.0)
    assert len(caplog.records) == 1
    assert "`hpcdi status` cannot show how the run goes" in caplog.text


def test_a_run_that_is_resumed_and_ends_at_once_keeps_its_evaluation(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    first = StatusFile(path, (INF, INF), 195.0)
    first.refresh(status, [evaluation(20.0), evaluation(200.0)], 0.0)
    again = StatusFile(path, (INF, INF), 195.0)
    again.refresh(status, [], 0.0)
    assert read(path)["best_evaluation"]["mean"] == 200.0
    assert (read(path)["evaluation"]["mean"], read(path)["evaluations"]) == (200.0, 2)
    again.refresh(status, [evaluation(30.0)], 0.0, at_once=True)
    assert (read(path)["evaluation"]["mean"], read(path)["evaluations"]) == (30.0, 3)
