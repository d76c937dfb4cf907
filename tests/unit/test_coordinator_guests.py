"""What rank 0 makes of guests: records like those of ranks, on which nothing depends."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fakes.replay import block, rollout
from fakes.scheduler import EVERY_S, Run
from hpcdi.comm.messages import (
    AdmitBlock,
    BlockAdmitted,
    CloseTask,
    CollectTask,
    Goodbye,
    KillFrozen,
    Leave,
    PolicyFiles,
    RankLost,
    Stop,
    TaskReturned,
    WorkerFailed,
    WorkerReady,
)
from hpcdi.config.compiled import compile_config
from hpcdi.config.schema import why_no_guests
from hpcdi.replay.ratio import ReplayRatio
from hpcdi.roles.coordinator.scheduler import Outcome, Phase
from hpcdi.roles.coordinator.workers import GuestRules, Order
from hpcdi.types import FIRST_GUEST

GUEST, OTHER = FIRST_GUEST + 1, FIRST_GUEST + 2
READY = WorkerReady("collector", "elsewhere", 7)
STOPPED = Outcome("stopped", "the test ends", 85)


@pytest.fixture
def run() -> Run:
    """A run of a learner and one collector, rank 2, which collects."""
    run = Run(1)
    assert isinstance(run.tasks[2], CollectTask)
    return run


def test_a_guest_collects_and_counts(run: Run) -> None:
    files, order = run.hear(GUEST, READY)
    assert files == Order(1, PolicyFiles(5.0))
    assert isinstance(order.message, CollectTask)
    assert (order.rank, order.message.eval_flag) == (GUEST, False)
    run.progress(GUEST, 12)
    scheduler = run.scheduler
    assert (run.groups.env_steps, scheduler.guest_steps) == (12, 12)
    assert scheduler.announced[GUEST] == 1
    assert [guest.host for guest in scheduler.workers.guests] == ["elsewhere"]


@pytest.mark.parametrize("end", [RankLost(), Goodbye(), WorkerFailed("collector", "h", "e", "t")])
def test_whoever_goes_the_run_goes_on(run: Run, end: RankLost) -> None:
    run.hear(GUEST, READY)
    run.hear(OTHER, READY)
    run.progress(GUEST, 5)
    assert run.hear(GUEST, end) == []
    workers = run.scheduler.workers
    assert run.scheduler.phase is Phase.RUNNING
    assert ([w.rank for w in workers.guests], workers.guests_gone) == ([OTHER], 1)
    assert workers.lost == {}
    assert run.hear(GUEST, Goodbye()) == [], "it has gone"
    assert run.hear(OTHER, end) == [Order(1, PolicyFiles(30.0))]
    assert run.scheduler.phase is Phase.RUNNING


def test_guests_are_no_reason_to_go_on_without_collectors(run: Run) -> None:
    """They may all be gone in a moment."""
    run.scheduler.workers.faults.is_possible = True
    run.hear(GUEST, READY)
    assert run.scheduler.workers.why_not_without(2) == "it was the last collector"


def test_a_guest_evaluates_nothing(run: Run) -> None:
    run.hear(GUEST, READY)
    run.learn_info(1)
    orders = run.tick(2 * EVERY_S)
    assert orders == [Order(2, CloseTask(run.tasks[2].task_id))], "a rank makes room"
    run.hear(OTHER, READY, 2 * EVERY_S)
    assert OTHER not in run.tasks, "the evaluation comes first"
    run.result(2, 2 * EVERY_S)
    evaluation, collecting = run.tasks[2], run.tasks[OTHER]
    assert isinstance(evaluation, CollectTask)
    assert isinstance(collecting, CollectTask)
    assert (evaluation.eval_flag, collecting.eval_flag) == (True, False)


def test_a_guest_takes_no_place_of_a_rank() -> None:
    """Of three collectors one works, as `hpcdi scale` wants it."""
    run = Run(3)
    run.scheduler.want_collectors(1)
    run.tick(1.0)
    workers = run.scheduler.workers
    [working] = [w.rank for w in workers if w.is_collecting and w.closing_since is None]
    for rank in {2, 3, 4} - {working}:
        run.result(rank, 1.0)
    run.hear(GUEST, READY, 1.0)
    assert run.scheduler.collectors == {"working": 1, "there": 3, "wanted": 1}
    assert isinstance(run.tasks[GUEST], CollectTask)
    assert run.tick(2.0) == []
    run.hear(GUEST, RankLost(), 3.0)
    assert run.tick(4.0) == []
    assert workers[working].closing_since is None


def test_at_the_limit_guests_collect_no_more() -> None:
    """Learners that are slower than they would never have made the updates that are due."""
    run = Run(1, max_env_step=20)
    run.main.replay.ratio = ReplayRatio(1.0, slack=100, batch=4)
    run.hear(GUEST, READY)
    run.hear(2, block(1, [10]))
    run.hear(1, BlockAdmitted(1, 0.0))
    orders = [*run.progress(GUEST, 11), *run.tick(1.0)]
    closes = [order for order in orders if isinstance(order.message, CloseTask)]
    assert closes == [Order(rank, CloseTask(run.tasks[rank].task_id)) for rank in (2, GUEST)]


def test_the_end_of_the_run_is_a_guests_end(run: Run) -> None:
    run.hear(GUEST, READY)
    stops = run.scheduler.stop(STOPPED, 1.0)
    assert Order(GUEST, Stop(STOPPED.reason)) in stops
    run.hear(1, Goodbye(), 2.0)
    run.hear(2, Goodbye(), 2.0)
    assert not run.scheduler.finished
    [late] = run.hear(OTHER, READY, 2.0)
    assert isinstance(late.message, Stop), "it has come too late"
    run.hear(GUEST, Goodbye(), 2.0)
    orders = run.hear(OTHER, RankLost(), 2.0)
    assert run.scheduler.finished
    assert {order.message for order in orders} == {Leave(85)}


def test_a_guest_that_has_no_environments_pauses(run: Run) -> None:
    _files, order = run.hear(GUEST, READY)
    assert isinstance(order.message, CollectTask)
    assert run.hear(GUEST, TaskReturned(order.message.task_id, "they all failed")) == []
    assert run.scheduler.phase is Phase.RUNNING


def test_a_guest_that_hangs_is_told_to_kill_itself(run: Run) -> None:
    workers = run.scheduler.workers
    workers.timeouts = dataclasses.replace(workers.timeouts, silence_s=30.0)
    run.hear(GUEST, READY)
    for rank in (1, 2):
        workers[rank].hear("Heartbeat", 40.0)
    assert workers.check(41.0) == [Order(GUEST, KillFrozen(GUEST, 7))]
    for rank in (1, 2):
        workers[rank].hear("Heartbeat", 90.0)
    assert workers.check(91.0) == []


def test_blocks_by_policies_that_are_too_old_count_and_are_not_learnt_from(run: Run) -> None:
    run.scheduler.guest_rules = GuestRules(max_policy_lag=10)
    run.hear(GUEST, READY)
    run.learn_info(25)

    def admitted(rank: int, number: int, version: int) -> bool:
        ready = rollout(rank, number, version, [3, 3])
        return any(isinstance(o.message, AdmitBlock) for o in run.hear(rank, ready))

    assert [admitted(GUEST, 1, 15), admitted(GUEST, 2, 14), admitted(2, 1, 0)] == [
        True, False, True,
    ]  # fmt: skip
    assert run.groups.env_steps == 18
    replay = run.main.replay
    assert replay.figures().blocks_skipped == 1
    assert len(replay.take_freed()) == 1


OF_RANKS = {"type": "mpi", "env_id": "a.c", "observation": {"size": 1}, "action": {"size": 1}}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, ""),
        ({"policy": {"type": "ppo"}}, "ppo learns on-policy"),
        ({"system": {"deterministic": True}}, "it is deterministic"),
        ({"env": OF_RANKS}, "its environments are ranks of its job"),
    ],
)
def test_which_runs_take_guests(settings: dict[str, object], why: str) -> None:
    said = why_no_guests(compile_config({"env": {"env_id": "CartPole-v1"}, **settings}).config)
    assert said.startswith(why)
    assert bool(said) == bool(why)


def test_numbers_are_far_from_those_of_ranks() -> None:
    assert np.int64(FIRST_GUEST + 10**6) << 40 > 0
