"""A rank that raises: its traceback comes first, the job ends, and nothing is left half done."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from jobs import (
    CARTPOLE,
    ENDLESS,
    FAULTS_ALLOWED,
    ONE_COLLECTOR,
    TWO_LEARNERS,
    Ended,
    Running,
    hpcdi,
)

pytestmark = pytest.mark.job
Start = Callable[..., Running]

PLANTED = "policy.import_names=[fakes.planted_policies]"


def check_failed(ended: Ended, rank: str, role: str, error: str) -> None:
    """The first lines on stderr are the rank's, and the run folder says the same."""
    ended.check(1, "failed")
    said = [line for line in ended.err.splitlines() if line and not line.startswith("warning: ")]
    assert said[0].startswith(f"hpcdi: rank {rank}"), said[:3]
    assert f"({role}, host " in said[0]
    assert said[1] == "Traceback (most recent call last):"
    first_error = next(line for line in said[2:] if not line.startswith(" "))
    assert error in first_error
    assert error.partition(": ")[2] in ended.run["reason"]


@pytest.mark.slow
def test_of_the_coordinator(start: Start) -> None:
    ended = start(
        CARTPOLE, *ENDLESS, ONE_COLLECTOR, "fault={kind: raise, rank: 0, at_step: 1}",
        variables=FAULTS_ALLOWED,
    ).wait()  # fmt: skip
    check_failed(ended, "0", "coordinator", "InjectedFault: an injected fault, at step")
    assert ended.run["figures"]["elapsed_s"] >= 1.0, "what it has reached is kept"


def test_of_a_collector_and_status_tells_it(start: Start) -> None:
    ended = start(
        CARTPOLE, *ENDLESS, ONE_COLLECTOR, "policy.type=planted_collector", PLANTED
    ).wait()
    check_failed(ended, "", "collector", "RuntimeError: planted in the collector")
    asked = hpcdi("status", ended.run_dir)
    assert asked.code == 1
    assert "failed; RuntimeError: planted in the collector" in asked.out
    assert "(collector, host " in asked.out
    assert 'raise RuntimeError("planted in the collector")' in asked.out


@pytest.mark.slow
def test_of_one_learner_comes_before_what_the_other_says(start: Start) -> None:
    """The first learner waits for the second one's gradients, and fails because of it."""
    ended = start(
        CARTPOLE, *ENDLESS, TWO_LEARNERS, ONE_COLLECTOR, "policy.type=planted_second_learner",
        PLANTED,
    ).wait()  # fmt: skip
    check_failed(ended, "2", "learner", "RuntimeError: planted in the learner")
