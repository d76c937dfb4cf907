"""How a run ends when it does not end by itself: errors, signals, death."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import CARTPOLE, NOBODY_MAY_DIE, QUICK, Running, is_learning, kill, temporary_files

from hpcdi.store.inspect import inspect

pytestmark = pytest.mark.job
Start = Callable[..., Running]

ENDLESS = ("env.stop_value=1e9", "policy.other.commander.max_env_step=1e9")


@pytest.mark.parametrize(
    ("role", "override"),
    [
        ("coordinator", "policy.other.commander.type=planted_commander"),
        ("learner", "policy.type=planted_learner"),
        ("collector", "policy.type=planted_collector"),
    ],
)
def test_an_error_ends_the_job_with_its_traceback(
    start: Start, tmp_path: Path, role: str, override: str
) -> None:
    planted_at = tmp_path / "planted_at"
    where = "policy.other.commander" if role == "coordinator" else "policy"
    job = start(
        CARTPOLE, *ENDLESS, override, f"{where}.import_names=[planted]",
        variables={"PLANTED_AT": str(planted_at)},
    )  # fmt: skip
    ended = job.wait()
    lasted_s = time.time() - float(planted_at.read_text())
    assert ended.code == 1, ended.out + ended.err
    assert lasted_s < 5.0
    said = [line for line in ended.err.splitlines() if line]
    assert said[0].startswith("hpcdi: rank"), said[:3]
    assert f"({role}, host" in said[0]
    assert said[1] == "Traceback (most recent call last):"
    assert f"RuntimeError: planted in the {role}" in ended.err
    assert not temporary_files(ended.run_dir)
    assert ended.run["state"] == "failed"
    assert f"planted in the {role}" in ended.run["reason"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 85)], ids=["ctrl-c", "term"]
)
def test_a_signal_ends_the_run_in_order(start: Start, number: int, code: int) -> None:
    job = start(CARTPOLE, *ENDLESS)
    job.until(lambda: is_learning(job))
    os.kill(job.process.pid, number)
    ended = job.wait(20)
    assert ended.code == code, ended.out + ended.err
    assert ended.run["state"] == "stopped"
    assert ended.run["reason"] == f"received {signal.Signals(number).name}"
    assert "stopped: received" in ended.out
    # what was open is published, and everything that was collected is there
    assert not temporary_files(ended.run_dir)
    report = inspect(ended.run_dir)
    assert not report.errors
    assert f"{ended.run['figures']['blocks']} shards" in "\n".join(report.lines)
    assert (ended.run_dir / "policies" / "latest.safetensors").exists()


def test_a_signal_at_once_leaves_nothing(start: Start) -> None:
    job = start(CARTPOLE, *ENDLESS)
    job.until(lambda: (job.run_dir / "run.json").exists())
    os.kill(job.process.pid, signal.SIGINT)
    ended = job.wait(30)
    assert ended.code == 130, ended.out + ended.err


def test_a_rank_that_hangs_is_not_waited_for_and_not_hidden(start: Start) -> None:
    ended = start(
        CARTPOLE, "env.stop_value=1e9", "policy.type=planted_hang",
        "policy.import_names=[planted]", "policy.other.commander.max_train_iter=1500",
        "policy.other.commander.eval_interval=1000", "system.coordinator.stop_timeout_s=2",
    ).wait()  # fmt: skip
    assert ended.code == 1, ended.out + ended.err
    assert "[2, 3] did not end within 2 s" in ended.err
    assert ended.run["state"] == "failed"
    assert "max_train_iter reached" in ended.run["reason"]
    assert "ranks [2, 3] did not end in order" in ended.run["reason"]
    assert ended.run["figures"]["train_iter"] >= 1500


def test_a_network_that_diverges_ends_the_run(start: Start) -> None:
    ended = start(CARTPOLE, *ENDLESS, "policy.learn.learning_rate=1e38").wait()
    assert ended.code == 1, ended.out + ended.err
    assert "the network has diverged" in ended.run["reason"]
    assert "Lower policy.learn.learning_rate" in ended.err


@pytest.mark.parametrize("rank", [1, 2], ids=["learner", "collector"])
def test_a_killed_rank_ends_the_job(start: Start, rank: int) -> None:
    job = start(CARTPOLE, *ENDLESS, *NOBODY_MAY_DIE)
    job.until(lambda: is_learning(job))
    placement = json.loads((job.run_dir / "run.json").read_text())["placement"]
    os.kill(placement[rank]["pid"], signal.SIGKILL)
    ended = job.wait(10)
    assert ended.code == 1, ended.out + ended.err
    assert ended.run["state"] == "failed"
    assert "was a rank killed?" in ended.err
    assert not inspect(ended.run_dir).errors


def test_what_mpi_leaves_of_a_killed_job_is_removed_by_the_next(
    start: Start, tmp_path: Path
) -> None:
    """It is named by process number; a job that gets this number again would not start."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    place = {"TMPDIR": str(temporary)}
    job = start(CARTPOLE, *ENDLESS, variables=place)
    job.until(lambda: is_learning(job))
    kill(job)
    (left,) = temporary.glob("hpcdi-mpi-*")
    assert [path.name.split(".")[0] for path in left.iterdir()] == ["ompi"]
    assert start(CARTPOLE, *QUICK, variables=place).wait().code == 0
    assert not list(temporary.glob("hpcdi-mpi-*"))
    assert not list(Path("/dev/shm").glob("hpcdi-mpi-*"))


def test_a_folder_is_given_to_one_run_only(start: Start) -> None:
    first = start(CARTPOLE, *QUICK)
    ended = first.wait()
    before = {path: path.stat().st_mtime_ns for path in ended.run_dir.rglob("*")}
    refused = start(CARTPOLE, "seed=2", run_dir=ended.run_dir).wait()
    assert refused.code == 2
    assert "holds another run" in refused.err
    assert before == {path: path.stat().st_mtime_ns for path in ended.run_dir.rglob("*")}
