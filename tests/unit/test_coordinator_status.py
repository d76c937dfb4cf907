"""What rank 0 leaves for `hpcdi status`: the file beside the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fakes.scheduler import INF, Shown, busy
from hpcdi.comm.messages import Goodbye, WorkerFailed
from hpcdi.store.status import StatusFile
from hpcdi.worker.coordinator.view import status_of


def status_file(path: Path) -> StatusFile:
    return StatusFile(path, (INF, INF), 195.0)


def refresh(file: StatusFile, run: Shown, now: float) -> None:
    file.refresh(
        lambda: status_of(run.scheduler, run.record), run.record.evaluations, now,
        at_once=run.scheduler.finished,
    )  # fmt: skip


def held_by(path: Path, run: Shown, now: float = 1002.0) -> dict[str, Any]:
    refresh(status_file(path), run, now)
    return dict(json.loads(path.read_text()))


def test_a_busy_run(tmp_path: Path) -> None:
    held = held_by(tmp_path / "status.json", busy())
    assert held["phase"] == "running"
    assert (held["env_steps"], held["train_iter"], held["episodes"]) == (12345, 600, 3)
    assert (held["env_steps_per_s"], held["train_iters_per_s"]) == (2000.0, 150.0)
    assert held["return_mean"] == 20.0
    assert held["staleness"] == 10
    assert held["buffer"] == {"held": 0, "capacity": 100, "blocked": held["buffer"]["blocked"]}
    assert held["idle"]["2"] == 0.0  # its ledger has no wait
    assert "error" not in held


def test_a_run_that_waits_for_its_ranks(tmp_path: Path) -> None:
    assert held_by(tmp_path / "status.json", Shown(ready=False))["phase"] == "starting"


def test_a_failure_is_told_with_its_rank_and_traceback(tmp_path: Path) -> None:
    run = busy()
    run.hear(2, WorkerFailed("collector", "node2", "ValueError: 1", "Traceback ...", 1))
    held = held_by(tmp_path / "status.json", run)
    assert held["phase"] == "stopping"
    assert held["error"] == {
        "rank": 2, "role": "collector", "host": "node2", "error": "ValueError: 1",
        "traceback": "Traceback ...", "exit_code": 1,
    }  # fmt: skip


def test_the_last_word_is_written_though_it_is_not_due(tmp_path: Path) -> None:
    run, path = busy(), tmp_path / "status.json"
    file = status_file(path)
    refresh(file, run, 1002.0)
    run.hear(2, WorkerFailed("collector", "node2", "ValueError: 1", "Traceback ...", 1))
    refresh(file, run, 1002.1)
    assert json.loads(path.read_text())["phase"] == "running"  # a second has not passed
    for rank in (1, 3):
        run.hear(rank, Goodbye({}))
    refresh(file, run, 1002.2)
    assert json.loads(path.read_text())["phase"] == "finished"
