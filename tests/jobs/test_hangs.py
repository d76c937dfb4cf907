"""Ranks that hang: they are found, named, and survived or the job ends."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from jobs import (
    CARTPOLE,
    ENDLESS,
    FAULTS_ALLOWED,
    ONE_COLLECTOR,
    TWO_LEARNERS,
    Running,
    logged,
    max_train_iter,
)

pytestmark = [pytest.mark.job, pytest.mark.slow]
Start = Callable[..., Running]

LONG = (*ENDLESS, max_train_iter(1500))


def hang(rank: int, at_step: int, limit_s: float) -> tuple[str, ...]:
    """Settings of a run in which a rank hangs."""
    return (
        f"system.survival.worker_timeout_s={limit_s}",
        f"fault={{kind: hang, rank: {rank}, at_step: {at_step}}}",
    )


def test_a_collector_that_hangs_dies_and_those_that_wait_live(start: Start) -> None:
    """All ranks wait for longer than the limit, for whoever starts last on a busy machine."""
    ended = start(CARTPOLE, *LONG, *hang(2, 2000, 10), variables=FAULTS_ALLOWED).wait()
    ended.check(0, "done")
    assert "most recent call first" in ended.err, "its stacks are shown"
    assert len(logged(ended.run_dir, 0, "has died")) == 1
    assert logged(ended.run_dir, 0, "rank 2 has died")


def test_one_of_two_learners_hangs_and_the_other_one_goes_on(start: Start) -> None:
    ended = start(
        CARTPOLE, *LONG, TWO_LEARNERS, ONE_COLLECTOR, *hang(1, 300, 8), variables=FAULTS_ALLOWED
    ).wait()
    ended.check(0, "done")
    assert len(logged(ended.run_dir, 0, "has died")) == 1
    assert logged(ended.run_dir, 2, "learners have regrouped")


def test_a_coordinator_that_hangs_ends_the_job(start: Start) -> None:
    ended = start(
        CARTPOLE, *ENDLESS, ONE_COLLECTOR, *hang(0, 4, 8), variables=FAULTS_ALLOWED
    ).wait()
    ended.check(85, "stopped")
    assert "rank 0 (coordinator) has died" in ended.err


def test_one_that_hangs_while_the_run_ends_is_named_and_not_waited_for(start: Start) -> None:
    job = start(
        CARTPOLE, *ENDLESS, ONE_COLLECTOR, "system.coordinator.stop_timeout_s=5",
        "fault={kind: hang, rank: 1, at_step: 20}", variables=FAULTS_ALLOWED,
    )  # fmt: skip
    job.until_said("injected fault: hang, at step 20")
    job.send_signal(signal.SIGTERM)
    ended = job.wait()
    assert ended.code == 85, "a learner's part of the last snapshot is missing"
    assert "ranks [1] did not end within 5 s" in ended.err
    assert "ranks [1] did not end in order" in ended.run["reason"]
