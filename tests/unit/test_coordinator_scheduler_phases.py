"""How a run begins and ends: orders for what was said, and when."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fakes.replay import make_groups
from fakes.scheduler import experiment
from hpcdi.comm.messages import Goodbye, Leave, Message, Stop, WorkerFailed, WorkerReady
from hpcdi.errors import WorkerSilentError
from hpcdi.roles.coordinator.commander import Commander
from hpcdi.roles.coordinator.scheduler import FAILURE_GRACE_S, Outcome, Phase, Scheduler
from hpcdi.roles.coordinator.snapshots import SnapshotClock
from hpcdi.roles.coordinator.workers import Order, Timeouts, Workers

READY = WorkerReady("collector", "host", 1)
DONE = Outcome("done", "enough", 0)
FAILURE = WorkerFailed("learner", "host", "ValueError: no", "Traceback ...", exit_code=3)
START_S, STOP_S = 30.0, 20.0
NOW = 12.0
"""When a goodbye comes; it changes nothing."""


class Life:
    """A scheduler, of whose orders the tasks are left out."""

    def __init__(self, workers: int = 3, *, ready: bool = True) -> None:
        ranks = range(1, workers + 1)
        groups = make_groups()
        self.scheduler = Scheduler(
            Commander(experiment(), groups),
            SnapshotClock(math.inf),
            Workers(ranks, groups, timeouts=Timeouts(start_s=START_S, stop_s=STOP_S)),
        )
        for rank in ranks if ready else ():
            self.ready(rank)

    def hear(self, rank: int, message: Message, now: float = 0.0) -> list[Order]:
        return endings(self.scheduler.handle(message, rank, now))

    def ready(self, rank: int) -> list[Order]:
        return self.hear(rank, READY)

    def goodbye(self, rank: int, message: Goodbye) -> list[Order]:
        return self.hear(rank, message, NOW)

    def stop(self, outcome: Outcome, now: float) -> list[Order]:
        return endings(self.scheduler.stop(outcome, now))

    def tick(self, now: float) -> list[Order]:
        return endings(self.scheduler.tick(now))

    @property
    def silent(self) -> list[int]:
        return self.scheduler.workers.not_ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scheduler, name)


def endings(orders: list[Order]) -> list[Order]:
    return [order for order in orders if isinstance(order.message, Stop | Leave)]


def stops(*ranks: int, reason: str = "enough") -> list[Order]:
    return [Order(rank, Stop(reason)) for rank in ranks]


def leaves(*ranks: int, exit_code: int = 0) -> list[Order]:
    return [Order(rank, Leave(exit_code)) for rank in ranks]


# ------------------------------------------------------------------------------------------- start


def test_it_runs_when_everybody_has_come() -> None:
    life = Life(ready=False)
    for rank, phase in [(2, Phase.STARTING), (2, Phase.STARTING), (1, Phase.STARTING),
                        (3, Phase.RUNNING)]:  # fmt: skip
        life.ready(rank)
        assert (life.phase, life.is_on) == (phase, True)


def test_nobody_to_wait_for() -> None:
    """A coordinator without workers, used as a library, waits for nobody."""
    life = Life(0)
    assert life.phase is Phase.RUNNING
    assert life.tick(0.0) == life.tick(1e9) == []
    assert life.stop(DONE, 1e9) == []
    assert life.phase is Phase.FINISHED


def test_who_does_not_come_is_named() -> None:
    life = Life(ready=False)
    life.ready(1)
    assert life.tick(100.0) == life.tick(100.0 + START_S) == []
    with pytest.raises(WorkerSilentError) as caught:
        life.tick(100.1 + START_S)
    assert (caught.value.rank, caught.value.waited_s) == (2, START_S)
    assert "log/rank00002.jsonl" in str(caught.value)


# --------------------------------------------------------------------------------------------- end


def test_stop_goodbye_leave() -> None:
    life = Life()
    assert life.stop(DONE, 5.0) == stops(1, 2, 3)
    assert (life.phase, life.is_on, life.outcome) == (Phase.STOPPING, False, DONE)
    assert life.goodbye(2, Goodbye({"n": 2})) == []
    assert life.silent == [1, 3]
    assert life.goodbye(1, Goodbye()) == []
    assert life.goodbye(3, Goodbye({"n": 3})) == leaves(1, 2, 3)
    assert (life.phase, life.silent) == (Phase.FINISHED, [])
    assert life.workers.reports == {1: {}, 2: {"n": 2}, 3: {"n": 3}}


def test_only_the_first_reason_counts() -> None:
    life = Life()
    life.stop(DONE, 5.0)
    assert life.stop(Outcome("stopped", "Ctrl-C", 130), 6.0) == []
    assert life.outcome == DONE
    for rank in (1, 2):
        assert life.goodbye(rank, Goodbye()) == []
    assert life.goodbye(3, Goodbye()) == leaves(1, 2, 3)
    assert life.stop(Outcome("stopped", "Ctrl-C", 130), 7.0) == []
    assert life.outcome == DONE


def test_who_leaves_before_the_end_stops_the_run() -> None:
    life = Life()
    left = Outcome("stopped", "rank 2 left before the end of the run", 85)
    assert life.goodbye(2, Goodbye()) == stops(1, 3, reason=left.reason)
    assert (life.is_on, life.outcome) == (False, left)
    life.goodbye(1, Goodbye())
    assert life.goodbye(3, Goodbye()) == leaves(1, 2, 3, exit_code=85)


def test_if_the_only_one_leaves_that_is_the_end() -> None:
    life = Life(1)
    assert life.goodbye(1, Goodbye()) == leaves(1, exit_code=85)
    assert life.phase is Phase.FINISHED


def test_who_is_silent_is_waited_for_so_long() -> None:
    life = Life()
    life.stop(DONE, 100.0)
    life.goodbye(1, Goodbye())
    assert life.tick(100.0 + STOP_S) == []
    assert life.tick(100.1 + STOP_S) == leaves(1, 2, 3)
    assert (life.phase, life.silent, life.outcome) == (Phase.FINISHED, [2, 3], DONE)
    assert life.tick(1e9) == []
    assert life.goodbye(2, Goodbye()) == []  # told once


# ----------------------------------------------------------------------------------------- failure


def test_after_a_failure_the_others_have_little_time() -> None:
    life = Life()
    life.hear(2, FAILURE, 10.0)
    assert life.tick(10.0 + FAILURE_GRACE_S) == []
    assert life.tick(10.1 + FAILURE_GRACE_S) == leaves(1, 2, 3, exit_code=3)
    assert life.silent == [1, 3]


def test_a_failure_at_the_end_is_a_failure() -> None:
    """It was not done after all; and the patience of an orderly end is over."""
    life = Life()
    life.stop(DONE, 10.0)
    assert life.hear(2, FAILURE, 11.0) == []
    assert life.outcome == Outcome("failed", "ValueError: no", 3, (2, FAILURE))
    life.goodbye(1, Goodbye())
    assert life.tick(11.0 + FAILURE_GRACE_S) == []
    assert life.tick(11.1 + FAILURE_GRACE_S) == leaves(1, 2, 3, exit_code=3)


def test_a_failure_shortens_the_end_but_never_prolongs_it() -> None:
    life = Life()
    life.stop(DONE, 10.0)
    life.hear(2, FAILURE, 9.5 + STOP_S)
    assert life.tick(10.1 + STOP_S) == leaves(1, 2, 3, exit_code=3)


def test_the_first_failure_counts() -> None:
    life = Life()
    other = WorkerFailed("collector", "host", "KeyError: 'b'", "Traceback ...")
    life.hear(2, FAILURE, 10.0)
    assert life.hear(3, other, 10.5) == []
    assert life.outcome == Outcome("failed", "ValueError: no", 3, (2, FAILURE))
    assert life.goodbye(1, Goodbye()) == leaves(1, 2, 3, exit_code=3)


def test_the_last_one_fails() -> None:
    life = Life(2)
    life.stop(DONE, 10.0)
    life.goodbye(1, Goodbye())
    assert life.hear(2, FAILURE, 11.0) == leaves(1, 2, exit_code=3)
    assert life.phase is Phase.FINISHED


def test_a_failure_before_everybody_has_come() -> None:
    life = Life(2, ready=False)
    assert life.hear(1, FAILURE, 0.0) == stops(2, reason="ValueError: no")
    life.ready(2)
    assert life.phase is Phase.STOPPING
    assert life.goodbye(2, Goodbye()) == leaves(1, 2, exit_code=3)
