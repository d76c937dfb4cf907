"""Ranks that are killed: with ULFM (Open MPI 5) the others go on, without it the job ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import (
    CARTPOLE,
    ENDLESS,
    FAULTS_ALLOWED,
    ONE_COLLECTOR,
    PPO,
    TWO_LEARNERS,
    Ended,
    Running,
    hpcdi,
    logged,
    max_train_iter,
)

from hpcdi.store.policies import read_policy

pytestmark = pytest.mark.job
Start = Callable[..., Running]

ITERATIONS = 1500
LONG = (*ENDLESS, max_train_iter(ITERATIONS))


def check_survived(ended: Ended, *ranks: int) -> None:
    """The run has reached its end without these ranks, and nothing published is lost."""
    ended.check(0, "done")
    assert ended.run["figures"]["blocks_lost"] == 0
    for rank in ranks:
        (seen,) = logged(ended.run_dir, 0, f"rank {rank} has died")
        assert seen["level"] == "WARNING"
        assert f"rank {rank} has died" in ended.said


@pytest.mark.slow
def test_one_collector_exits_another_raises_and_the_third_goes_on(start: Start) -> None:
    # on a busy machine a collector may begin late: the others must not be done by then
    job = start(
        CARTPOLE, *LONG, max_train_iter(2 * ITERATIONS),
        "policy.collect.collector.collector_num=3", "--survive", "system.transport=mpi",
        "system.relay_policies_above=1",  # rank 2 is the relay
        "fault=[{kind: raise, rank: 3, at_step: 100}, {kind: exit, rank: 2, at_step: 100}]",
        variables=FAULTS_ALLOWED,
    )  # fmt: skip
    ended = job.wait()
    check_survived(ended, 2, 3)
    assert "InjectedFault: an injected fault" in ended.err
    assert ended.run["figures"]["train_iter"] >= ITERATIONS


def test_three_learners_are_equal_to_the_bit_and_so_are_two_survivors(
    start: Start, tmp_path: Path
) -> None:
    """The first one dies, which writes the checkpoints and the policy's file for all.

    Meanwhile nothing of a job on one host listens to other hosts.
    """
    watched = tmp_path / "watched"
    watched.mkdir()
    job = start(
        CARTPOLE, *LONG, "policy.learn.learner.learner_num=3", ONE_COLLECTOR,
        "policy.type=watched_dqn", "policy.import_names=[fakes.planted_policies]",
        variables={"WATCHED": str(watched)},
    )  # fmt: skip
    job.until_learning()
    job.check_doors()  # three learners have met, all ranks have talked
    job.until(lambda: len((watched / "steps0").read_text().split()) > 20)
    job.kill_rank(1)
    ended = job.wait()
    check_survived(ended, 1)
    first, second, third = ((watched / f"steps{n}").read_text().split() for n in range(3))
    assert len(set(first)) == len(first), "each step changes the parameters"
    met = first[:-1]  # the last line may be cut
    assert met == second[: len(met)] == third[: len(met)], "bit-equal from before the first step on"
    assert second[-100:] == third[-100:]
    assert len(set(second[-100:])) == 100
    latest = read_policy(ended.run_dir / "policies" / "latest.safetensors")
    assert latest.version == ended.run["figures"]["train_iter"]
    (formed,) = logged(ended.run_dir, 2, "learners have regrouped")
    assert formed["group"]["ranks"] == [2, 3]
    assert (ended.run_dir / "checkpoints" / "ckpt_final" / "learner.pt").is_file()


@pytest.mark.slow
def test_on_policy_one_of_two_learners_dies_then_the_other_and_the_run_is_resumed_with_one(
    start: Start, resume: Start, tmp_path: Path
) -> None:
    """Until one dies they are equal to the bit, and the first one writes all files."""
    watched = tmp_path / "watched"
    watched.mkdir()
    job = start(
        PPO, *ENDLESS, TWO_LEARNERS, "policy.collect.collector.collector_num=2",
        "policy.type=watched_ppo", "policy.import_names=[fakes.planted_policies]",
        "system.snapshot_s=1", variables={"WATCHED": str(watched)},
    )  # fmt: skip
    steps = [watched / f"steps{learner}" for learner in range(2)]

    def until_steps(count: int) -> None:
        job.until(lambda: steps[0].exists() and len(steps[0].read_text().split()) > count)

    until_steps(100)
    job.kill_rank(2)
    job.until(lambda: bool(logged(job.run_dir, 0, "rank 2 has died")))
    until_steps(len(steps[0].read_text().split()) + 40)  # it goes on with one
    job.kill_rank(1)
    ended = job.wait()
    ended.check(85, "stopped")
    assert "rank 1 (learner, host " in ended.said
    assert "has died, and the run cannot go on without it: it was the last learner" in ended.said
    first, second = (path.read_text().split() for path in steps)
    met = second[:-1]  # the last line may be cut
    assert len(set(met)) == len(met) >= 99, "each step changes the parameters"
    assert met == first[: len(met)], "bit-equal before the first step and after every one"
    assert "/policies/" in (watched / "files0").read_text()
    others = (watched / "files1").read_text() if (watched / "files1").exists() else ""
    assert "/policies/" not in others
    assert "/checkpoints/" not in others
    goal = ended.run["figures"]["train_iter"] + 4
    one = ("-n", "3", "policy.learn.learner.learner_num=1", ONE_COLLECTOR)
    variables = {"WATCHED": str(watched)}
    ended = resume(job.run_dir, *one, max_train_iter(goal), variables=variables).wait()
    ended.check(0, "done")
    assert "  resumed      snapshot_" in ended.out
    assert ended.run["figures"]["train_iter"] >= goal


@pytest.mark.slow
def test_without_the_coordinator_nobody_can_go_on(start: Start) -> None:
    job = start(CARTPOLE, *LONG, ONE_COLLECTOR)
    job.until_learning()
    job.kill_rank(0)
    ended = job.wait()
    ended.check(85, "stopped")
    assert "rank 0 (coordinator" in ended.said
    assert "has died" in ended.err


@pytest.mark.slow
def test_without_ulfm_a_killed_rank_ends_the_job_which_can_be_resumed(start: Start) -> None:
    job = start(
        CARTPOLE, *LONG, TWO_LEARNERS, ONE_COLLECTOR, "system.survival.on_collector_death=abort",
        "system.survival.on_learner_death=abort",
    )  # fmt: skip
    job.until_learning()
    job.kill_rank(2)
    ended = job.wait()
    ended.check(85, "stopped")
    assert "was a rank killed?" in ended.err
    assert f"hpcdi train --resume {job.run_dir}" in ended.err
    assert hpcdi("status", job.run_dir).code == 85
