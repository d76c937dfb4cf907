"""`hpcdi train` when one of its processes is killed: the others go on (Open MPI, ULFM)."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import CARTPOLE, NOBODY_MAY_DIE, Ended, Running, is_learning, temporary_files

from hpcdi.store.inspect import inspect

pytestmark = pytest.mark.job
Start = Callable[..., Running]

PPO = CARTPOLE.with_name("cartpole_ppo.yaml")
LEARNERS = "policy.learn.learner.learner_num={}"
ITERATIONS = 1500
LONG = (
    "env.stop_value=1e9",
    "policy.other.commander.max_env_step=1e9",
    f"policy.other.commander.max_train_iter={ITERATIONS}",
)


def kill(job: Running, rank: int) -> float:
    """Kill a rank of a run that learns; gives when (seconds since the epoch)."""
    job.until(lambda: is_learning(job))
    placement = json.loads((job.run_dir / "run.json").read_text())["placement"]
    os.kill(placement[rank]["pid"], signal.SIGKILL)
    return time.time()


def told(run_dir: Path, rank: int, words: str) -> list[dict[str, Any]]:
    """Lines of a rank's log that hold some words."""
    lines = (run_dir / "log" / f"rank{rank:05d}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if words in line]


def check_whole(ended: Ended, killed_at: float, rank: int) -> None:
    """The run has reached its end, the death was seen at once, and nothing published is lost."""
    assert ended.code == 0, ended.out + ended.err
    assert ended.run["state"] == "done"
    assert ended.run["figures"]["blocks_lost"] == 0
    (seen,) = told(ended.run_dir, 0, f"rank {rank} has died")
    assert seen["time"] - killed_at < 5.0
    assert not inspect(ended.run_dir).errors
    assert not temporary_files(ended.run_dir)


def test_a_collector_dies(start: Start) -> None:
    job = start(CARTPOLE, *LONG)
    killed_at = kill(job, 2)
    check_whole(job.wait(), killed_at, 2)
    assert "rank 2 has died" in job.read()


@pytest.mark.parametrize("rank", [1, 2])
def test_one_of_two_learners_dies(start: Start, rank: int) -> None:
    """Also the first one, which writes the checkpoints and the policy's file."""
    job = start(CARTPOLE, *LONG, LEARNERS.format(2))
    killed_at = kill(job, rank)
    ended = job.wait()
    check_whole(ended, killed_at, rank)
    (formed,) = told(ended.run_dir, 3 - rank, "group is formed anew")
    assert formed["group"]["ranks"] == [3 - rank]
    assert ended.run["figures"]["train_iter"] >= ITERATIONS
    assert (ended.run_dir / "checkpoints" / "ckpt_final" / "learner.pt").is_file()


def test_survivors_of_three_learners_stay_equal(start: Start, tmp_path: Path) -> None:
    watched = tmp_path / "watched"
    watched.mkdir()
    job = start(
        CARTPOLE, *LONG, LEARNERS.format(3), "policy.collect.collector.collector_num=1",
        "policy.type=watched_dqn", "policy.import_names=[planted]",
        variables={"WATCHED": str(watched)},
    )  # fmt: skip
    killed_at = kill(job, 1)
    check_whole(job.wait(), killed_at, 1)
    second, third = ((watched / f"steps{n}").read_text().split() for n in (1, 2))
    assert second[-100:] == third[-100:]
    assert len(set(second[-100:])) == 100


def test_a_learner_dies_on_policy(start: Start) -> None:
    job = start(
        PPO, *LONG[:2], "policy.other.commander.max_train_iter=30", LEARNERS.format(2),
        "policy.collect.collector.collector_num=2",
    )  # fmt: skip
    killed_at = kill(job, 2)
    check_whole(job.wait(), killed_at, 2)


def test_one_that_raises_dies_alone_where_that_is_wanted(start: Start) -> None:
    job = start(
        CARTPOLE, *LONG, "--survive",
        "fault={kind: raise, rank: 2, at_step: 3000}", variables={"HPCDI_ALLOW_FAULTS": "1"},
    )  # fmt: skip
    ended = job.wait()
    assert ended.code == 0, ended.out + ended.err
    assert "InjectedFault: a fault on purpose" in ended.err
    assert "rank 2 has died" in job.read()


@pytest.mark.parametrize("rank", [0, 1], ids=["coordinator", "only learner"])
def test_without_these_nobody_can_go_on(start: Start, rank: int) -> None:
    job = start(CARTPOLE, *LONG)
    kill(job, rank)
    ended = job.wait(15)
    assert ended.code == 1, ended.out + ended.err
    assert ended.run["state"] == "failed"
    assert f"rank {rank} (" in ended.out + ended.err
    assert "has died" in ended.err
    assert not inspect(ended.run_dir).errors


def test_who_does_not_want_it_gets_an_end(start: Start) -> None:
    job = start(CARTPOLE, *LONG, NOBODY_MAY_DIE[0])
    kill(job, 2)
    ended = job.wait(15)
    assert ended.code == 1, ended.out + ended.err
    assert "on_collector_death is 'abort'" in ended.run["reason"]


def with_hang(start: Start, rank: int, at_step: int, limit_s: float, *settings: str) -> Ended:
    """A run to its end in which a rank hangs."""
    return start(
        CARTPOLE, *LONG, *settings, f"system.survival.worker_timeout_s={limit_s}",
        f"fault={{kind: hang, rank: {rank}, at_step: {at_step}}}",
        variables={"HPCDI_ALLOW_FAULTS": "1"},
    ).wait()  # fmt: skip


def test_a_collector_that_hangs_dies_and_one_that_waits_lives(start: Start) -> None:
    """All ranks wait for longer than the limit, for whoever starts last on a busy machine."""
    ended = with_hang(start, 2, 2000, 10)
    assert ended.code == 0, ended.out + ended.err
    assert "most recent call first" in ended.err
    assert len(told(ended.run_dir, 0, "has died")) == 1
    assert told(ended.run_dir, 0, "rank 2 has died")


def test_of_two_learners_one_hangs_and_the_other_who_waits_for_it_goes_on(start: Start) -> None:
    ended = with_hang(start, 1, 300, 8, LEARNERS.format(2))
    assert ended.code == 0, ended.out + ended.err
    assert len(told(ended.run_dir, 0, "has died")) == 1
    assert told(ended.run_dir, 2, "group is formed anew")


def test_a_rank_0_that_hangs_ends_the_job(start: Start) -> None:
    ended = with_hang(start, 0, 4, 8)
    assert ended.code == 1, ended.out + ended.err
    assert "rank 0 (coordinator) has died" in ended.err
