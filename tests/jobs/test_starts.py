"""Ranks that die in the start, and frozen ones: nothing hangs, and 85 says that it is to go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import (
    CARTPOLE,
    ENDLESS,
    HPCDI,
    ONE_COLLECTOR,
    PYTHONPATH,
    ROOT,
    TWO_LEARNERS,
    Running,
    block_counts,
    logged,
    typed_mpirun,
)

pytestmark = pytest.mark.job
Start = Callable[..., Running]

LONG = (*ENDLESS, "system.survival.worker_timeout_s=30")
PACED = (
    "env.env_id=hpcdi/Paced-v0", "env.import_names=[fakes.paced_env]", "env.vectorization=sync",
    "env.kwargs={run_dir: nowhere, restarts: 1}", "policy.learn.replay_ratio=8",
)  # fmt: skip
"""Leaves the cores to other tests, while this one waits for a time-out."""


def planted(fault: str) -> dict[str, str]:
    """Variables of a job that has a fault of `tools/start_faults`."""
    path = f"{ROOT / 'tools' / 'start_faults'}{os.pathsep}{PYTHONPATH['PYTHONPATH']}"
    return {"PYTHONPATH": path, "START_FAULT": fault}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("killed_in_init", "has died before the run had begun"),
        pytest.param("import_error", "ImportError: planted", marks=pytest.mark.slow),
        pytest.param("killed_at_once", "1 of 3 ranks of host", marks=pytest.mark.slow),
        pytest.param("never_begins", "has not begun (Python or hpcdi", marks=pytest.mark.slow),
        pytest.param("stopped_before_init", "is stopped (SIGSTOP)", marks=pytest.mark.slow),
    ],
)
def test_a_start_without_one_rank_ends_and_names_it(start: Start, kind: str, said: str) -> None:
    limit_s = 30 if kind in ("never_begins", "stopped_before_init") else 300  # these wait for it
    job = start(
        CARTPOLE, *LONG, ONE_COLLECTOR, f"system.coordinator.start_timeout_s={limit_s}",
        variables=planted(f"{kind}:2"),
    )  # fmt: skip
    ended = job.wait()
    assert ended.code == 85, ended.said
    assert "rank 2" in ended.err or kind == "killed_at_once"
    assert said in ended.err
    assert not job.run_dir.exists(), "nothing was begun"


def test_ranks_of_several_command_lines_are_refused(start: Start, tmp_path: Path) -> None:
    """Rank 0's settings would hold for all, and the others' be lost."""
    run = [CARTPOLE, ONE_COLLECTOR, "--run-dir", str(tmp_path / "run")]
    other = [":", "-n", "1", *HPCDI, "train", *run[:2], "seed=9"]
    ended = start(*run, *other, run_dir=tmp_path / "run", **typed_mpirun(2)).wait()
    assert ended.code == 2
    assert "rank 2 (host " in ended.err
    assert "another command line than rank 0" in ended.err
    assert not ended.run_dir.exists()


@pytest.mark.slow
def test_a_learner_dies_as_it_begins_to_hear_messages(start: Start) -> None:
    """The collector may be anywhere in its own start. tools/kill_starts.py takes each line."""
    variables = {**planted("line:1"), "START_LINE": "roles/message_side.py:start"}
    ended = start(CARTPOLE, *LONG, ONE_COLLECTOR, variables=variables).wait()
    ended.check(85, "stopped")
    assert "rank 1 has died" in ended.said
    assert "Traceback" not in ended.said


@pytest.mark.slow
def test_a_learner_dies_while_the_group_forms(start: Start) -> None:
    ended = start(
        CARTPOLE, *LONG, TWO_LEARNERS, ONE_COLLECTOR, variables=planted("killed_in_group:2")
    ).wait()
    ended.check(85, "stopped")
    assert "rank 2 has died" in ended.said


@pytest.mark.slow
def test_a_frozen_collector_and_a_frozen_learner_are_killed_and_the_others_go_on(
    start: Start,
) -> None:
    job = start(CARTPOLE, *LONG, *PACED, TWO_LEARNERS, "system.transport=mpi")
    job.until_learning()
    # else it may still be starting, while the other collector fills the buffer
    job.until(lambda: block_counts(job.run_dir).get("rank00003", 0) > 0)
    os.kill(job.pid_of(1), signal.SIGSTOP)
    os.kill(job.pid_of(3), signal.SIGSTOP)
    for rank in (1, 3):
        # by a timer of its own, which ends what is stopped, too
        job.until(lambda rank=rank: bool(logged(job.run_dir, 0, f"rank {rank} has died")))
    job.until(lambda: bool(logged(job.run_dir, 2, "learners have regrouped")))
    before = block_counts(job.run_dir)["rank00004"]
    job.until(lambda: block_counts(job.run_dir)["rank00004"] > before + 1)
    job.send_signal(signal.SIGTERM)
    job.wait().check(85, "stopped")


@pytest.mark.slow
def test_a_frozen_coordinator_ends_the_job_which_is_to_go_on(start: Start) -> None:
    job = start(CARTPOLE, *LONG, *PACED, ONE_COLLECTOR)
    job.until_learning()
    os.kill(job.pid_of(0), signal.SIGSTOP)
    ended = job.wait()
    ended.check(85, "stopped")
    assert "rank 0 (coordinator) has died" in ended.err, "by a timer of its own"
