"""Where a learner's time goes: a trace that other tools read, once, of the iterations asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcdi.store.atomic import stay_in, sweep_temporary
from hpcdi.worker.learner import BaseLearner
from hpcdi.worker.learner.learner_hook import build_learner_hook_by_cfg, no_hooks

QUIET = {"log_show_after_iter": 0, "save_ckpt_after_iter": 0, "save_ckpt_after_run": False}


class Policy:
    """Multiplies matrices."""

    def forward(self, data: Any) -> dict[str, float]:
        with torch.profiler.record_function(f"update {data}"):
            return {"total_loss": float((torch.ones(4, 4) @ torch.ones(4, 4)).sum())}


def learner_of(folder: Path, hook: dict[str, Any], rank: int = 0, **names: str) -> BaseLearner:
    cfg = {"hook": {**QUIET, **hook}}
    return BaseLearner(cfg, Policy(), dist_info=(rank, rank + 1), ckpt_dir=folder / "ckpt", **names)


def profiler(**ext_args: int) -> dict[str, Any]:
    return {"mine": {"type": "profiler", "position": "after_iter", "ext_args": ext_args}}


def updates_in(path: Path) -> set[str]:
    events = json.loads(path.read_text())["traceEvents"]
    return {event["name"] for event in events if event["name"].startswith("update ")}


def train(learner: BaseLearner, iterations: int) -> None:
    for _ in range(iterations):
        learner.train(learner.train_iter)


def test_a_trace_of_the_iterations_that_were_asked_for(tmp_path: Path) -> None:
    learner = learner_of(tmp_path, profiler(wait=2, warmup=1, active=2), rank=3)
    train(learner, 5)
    assert not (tmp_path / "profile").exists()
    train(learner, 5)
    (path,) = (tmp_path / "profile").iterdir()
    assert path.name == "rank3.json"
    assert updates_in(path) == {"update 4", "update 5"}
    written = path.stat().st_mtime_ns
    train(learner, 20)
    learner.close()
    assert path.stat().st_mtime_ns == written, "once"


def test_a_run_that_ends_meanwhile_leaves_what_there_is(tmp_path: Path) -> None:
    learner = learner_of(tmp_path, profiler(wait=0, warmup=1, active=50), instance_name="other")
    train(learner, 6)
    learner.close()
    path = tmp_path / "profile" / "other_rank0.json"
    assert {"update 2", "update 5"} <= updates_in(path)
    learner.close()


def test_a_run_that_ends_before_leaves_nothing(tmp_path: Path) -> None:
    learner = learner_of(tmp_path, {"profile_after_iter": True})
    train(learner, 10)
    learner.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("off", [0, False, ""])
def test_it_is_off_by_default(off: Any) -> None:
    assert "profile_after_iter" not in BaseLearner.default_config().hook
    assert build_learner_hook_by_cfg({"profile_after_iter": off}) == no_hooks()


def test_one_process_traces_one_learner(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    learners = [
        learner_of(tmp_path, {"profile_after_iter": 1}, instance_name=name)
        for name in ("learner", "learner1")
    ]
    for _ in range(8):
        for learner in learners:
            train(learner, 1)
    for learner in learners:
        learner.close()
    assert [path.name for path in (tmp_path / "profile").iterdir()] == ["rank0.json"]
    assert "another learner of this process is being profiled" in caplog.text


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_trace_that_cannot_be_written_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    monkeypatch.setattr("hpcdi.store.atomic._HOME", {})
    run = tmp_path / "run"
    run.mkdir()
    stay_in(run)
    (run / "profile").write_text("a file is in the way")
    learner = learner_of(run, {"profile_after_iter": 1})
    if is_gone:
        run.rename(tmp_path / "moved")
    train(learner, 8)
    assert learner.train_iter == 8
    assert "no trace could be written to" in caplog.text
    assert sweep_temporary(tmp_path) == []
    assert run.exists() is not is_gone, "a second one would split the run"
