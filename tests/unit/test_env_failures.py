"""Environments that fail: for real, in processes of their own, and how much of it is borne."""

from __future__ import annotations

import logging
import os
import signal
from functools import partial

import numpy as np
import pytest

from fakes.env_managers import COUNT, LENGTH, live_rows, made, running, steps_of
from fakes.environments import CrashingEnv
from hpcdi.env.manager import FailureRecord, VectorManager
from hpcdi.env.toy import CountEnv
from hpcdi.errors import EnvError

pytestmark = pytest.mark.usefixtures("env_helpers")
HEALTHY = {"env_failures": 0, "episodes_dropped": 0, "envs_retired": 0}


def launched(form: str, fns: list[object], **settings: object) -> VectorManager:
    """A manager that goes on without an environment that fails too often."""
    manager = made(form, fns, **settings)  # type: ignore[arg-type]
    manager.retires = True
    manager.launch()
    return manager


# ----------------------------------------------------------------------------------------- counting


def test_one_fault_a_day_never_adds_up() -> None:
    record = FailureRecord(2, max_retry=1, window_s=60.0)
    for day in range(1000):
        assert record.add(0, 86400.0 * day) == ""
        record.good([0, 1])
    assert record.failures == 1000


def test_too_many_within_the_window() -> None:
    record = FailureRecord(2, max_retry=2, window_s=60.0)
    told = []
    for now in (0.0, 50.0, 55.0, 58.0):
        record.good([0, 1])
        told.append(record.add(0, now))
    assert told == ["", "", "3 times within 60 s", "4 times within 60 s"]
    assert record.add(1, 59.0) == "", "each environment has a count of its own"
    record.good([0])
    assert record.add(0, 118.5) == "", "those that are older do not count"


def test_too_many_in_a_row_however_slow() -> None:
    record = FailureRecord(1, max_retry=2, window_s=60.0)
    assert [record.add(0, 100.0 * n) for n in range(3)] == ["", "", "3 times in a row"]


# ----------------------------------------------------------------------------------- real processes


def test_a_segmentation_fault_costs_its_episode(caplog: pytest.LogCaptureFixture) -> None:
    fns = [COUNT, partial(CrashingEnv, 2)]
    with caplog.at_level(logging.WARNING, "hpcdi"), running("forkserver", fns) as manager:
        steps = [step for _, step in steps_of(manager, 3)]
        assert steps[1].abnormal is not None
        assert steps[1].abnormal.tolist() == [False, True]
        assert steps[2].live.all()
        assert manager.health == {"env_failures": 1, "episodes_dropped": 1, "envs_retired": 0}
    assert "environment 1 failed (its process was killed by SIGSEGV)" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_killed_or_stopped_again_and_again_is_retired(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    manager = launched("forkserver", [COUNT] * 2, max_retry=2, step_timeout=1.0)
    with caplog.at_level(logging.WARNING, "hpcdi"), manager:
        for _ in range(3):
            taken = steps_of(manager, 1)
            assert len(manager.child_pids) == 2
            os.kill(manager.child_pids[1], number)
            taken += steps_of(manager, 1)
        assert len(manager.child_pids) == 1
        assert manager.health == {"env_failures": 3, "episodes_dropped": 3, "envs_retired": 1}
        after = steps_of(manager, 2 * LENGTH + 1)
        assert all(step.live.tolist() == [True, False] for _, step in after)
        assert all(step.abnormal is None for _, step in after)
        assert len(live_rows(after, 0)) == 2 * LENGTH + 1
        assert manager.ready_obs.keys() == {0}
        manager.restart_count()
        assert manager.observation[0, 0] > 0, "those that run are not reset for it"
        manager.reset()
        steps_of(manager, LENGTH)
        assert manager.ready_obs.keys() == {0}
    assert caplog.text.count("and is retired; 1 of 2 environments go on") == 1
    assert "environment 1 failed stepping" in caplog.text


def test_an_evaluation_ends_without_those_that_are_retired() -> None:
    manager = launched(
        "pool", [COUNT, partial(CountEnv, fail_at=2)], episode_num=2, max_retry=1,
        retry_type="renew",
    )  # fmt: skip
    with manager:
        for _ in range(100):
            if manager.done:
                break
            steps_of(manager, 1)
        assert manager.done
        assert manager.take_episodes()[1].tolist() == [LENGTH] * 2


@pytest.mark.parametrize("form", ["pool", "forkserver"])
def test_when_all_are_retired_it_is_an_error(form: str) -> None:
    manager = launched(form, [partial(CountEnv, fail_at=2)] * 2, max_retry=1, retry_type="renew")
    with manager, pytest.raises(EnvError, match="all 2 environments are retired; the last") as told:
        steps_of(manager, 50)
    assert "RuntimeError: planted failure at step 2" in str(told.value)


def test_one_that_does_not_begin_anew_is_retired() -> None:
    manager = launched("pool", [COUNT, partial(CrashingOnce)], max_retry=2)
    with manager:
        steps_of(manager, 3)
        assert manager.health == {"env_failures": 3, "episodes_dropped": 1, "envs_retired": 1}
        assert manager.ready_obs.keys() == {0}


class CrashingOnce(CountEnv):
    """Raises in its second step, and at each reset from then on."""

    def __init__(self) -> None:
        super().__init__(LENGTH, fail_at=2)

    def reset(self, **given: object) -> tuple[np.ndarray, dict[str, object]]:  # type: ignore[override]
        if self._life >= 2:
            raise RuntimeError("broken for good")
        return super().reset(**given)  # type: ignore[arg-type]

    def close(self) -> None:
        raise RuntimeError("it cannot even be closed")


# ---------------------------------------------------------------------------------- vectorised ones


@pytest.mark.parametrize("form", ["next_step", "same_step", "disabled"])
def test_a_vector_of_environments_is_made_anew(form: str, caplog: pytest.LogCaptureFixture) -> None:
    fns = [COUNT, partial(CountEnv, LENGTH, fail_at=LENGTH + 2)]
    with caplog.at_level(logging.WARNING, "hpcdi"), running(form, fns) as manager:
        taken = steps_of(manager, 3 * LENGTH)
        failed = [step for _, step in taken if step.abnormal is not None]
        assert failed
        assert all(step.abnormal.all() and not step.live.any() for step in failed)  # type: ignore[union-attr]
        assert set(manager.take_episodes()[1].tolist()) == {LENGTH}
        assert manager.health["env_failures"] == len(failed)
        assert manager.health["episodes_dropped"] >= len(failed)
    assert "an environment failed (RuntimeError: planted failure" in caplog.text
    assert "all 2 are re-created" in caplog.text


def test_a_vector_that_fails_too_often_is_an_error() -> None:
    with (
        running("same_step", [partial(CountEnv, fail_at=1)]) as manager,
        pytest.raises(EnvError, match=r"an environment failed stepping, 6 times in a row") as told,
    ):
        steps_of(manager, 20)
    assert "planted failure at step 1" in str(told.value)
    assert 'raise RuntimeError(f"planted' in str(told.value)


def test_healthy_ones_say_so() -> None:
    for form in ("same_step", "pool", "forkserver"):
        with running(form, [COUNT] * 2) as manager:
            steps_of(manager, 2 * LENGTH)
            assert manager.health == HEALTHY
            assert len(manager.child_pids) == (2 if form == "forkserver" else 0)
