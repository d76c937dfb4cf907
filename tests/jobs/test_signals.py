"""Ctrl-C and the queue's signals end a run in order, wherever it is."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import (
    CARTPOLE,
    ENDLESS,
    ONE_COLLECTOR,
    TWO_LEARNERS,
    Ended,
    Running,
    block_counts,
    typed_mpirun,
)

from hpcdi.store.checkpoints import checkpoint_names, open_checkpoint

pytestmark = pytest.mark.job
Start = Callable[..., Running]


def check_stopped(ended: Ended, number: int, code: int) -> None:
    """Everything that was collected is there, and the last snapshot has all that was learnt."""
    ended.check(code, "stopped")
    figures = ended.run["figures"]
    assert ended.run["reason"] == f"received {signal.Signals(number).name}"
    assert "stopped: received" in ended.out
    assert "resume with  hpcdi train --resume" in ended.out
    assert sum(block_counts(ended.run_dir).values()) == figures["blocks"]
    assert (ended.run_dir / "policies" / "latest.safetensors").exists()
    folder = ended.run_dir / "snapshots"
    assert (
        open_checkpoint(folder / checkpoint_names(folder)[-1]).facts["train_iter"]
        == figures["train_iter"]
    )


def processes_below(pid: int) -> list[int]:
    """A process and all that it has started."""
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return [pid, *(each for child in children for each in processes_below(child))]


def test_ctrl_c(start: Start) -> None:
    job = start(CARTPOLE, *ENDLESS, ONE_COLLECTOR)
    job.until_learning()
    job.send_signal(signal.SIGINT)
    check_stopped(job.wait(), signal.SIGINT, 130)


def test_hup_and_two_learners_of_ranks_that_mpirun_has_started(start: Start) -> None:
    """The user has typed mpirun; the signal, which Open MPI takes for itself, reaches rank 0."""
    typed = typed_mpirun(4)
    typed["variables"]["HPCDI_PREEMPT_SIGNAL"] = "HUP"  # also where the tests run under nohup
    job = start(CARTPOLE, *ENDLESS, TWO_LEARNERS, ONE_COLLECTOR, **typed)
    job.until_learning()
    (coordinator, *_) = json.loads((job.run_dir / "run.json").read_text())["placement"]
    assert coordinator["role"] == "coordinator"
    os.kill(coordinator["pid"], signal.SIGHUP)
    ended = job.wait()
    check_stopped(ended, signal.SIGHUP, 85)
    ranks = ended.run["figures"]["ranks"]
    assert ranks["1"]["train_iter"] == ranks["2"]["train_iter"] >= 1
    assert ended.out.count("stopped: received") == 1, "one rank speaks"


@pytest.mark.slow
def test_the_whole_job_gets_int_and_term_at_once(start: Start) -> None:
    """As PBS and LSF end jobs: launcher, mpirun, ranks and their children, all of them."""
    job = start(CARTPOLE, *ENDLESS, ONE_COLLECTOR)
    job.until_learning()
    tree = processes_below(job.process.pid)
    assert len(tree) > 4
    for number in (signal.SIGINT, signal.SIGTERM):
        for pid in tree:
            os.kill(pid, number)
    check_stopped(job.wait(), signal.SIGTERM, 85)


@pytest.mark.slow
def test_ctrl_c_at_once_leaves_nothing_that_runs(start: Start) -> None:
    job = start(CARTPOLE, *ENDLESS, ONE_COLLECTOR)
    job.until(lambda: (job.run_dir / "run.json").exists())
    job.send_signal(signal.SIGINT)
    ended = job.wait()
    assert ended.code == 130, ended.said
