"""Whole runs with simulated workers: whatever happens in whatever order, every run ends well."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.replay import make_groups
from fakes.scheduler import EVERY_S, TIMEOUTS, experiment
from fakes.simulated_workers import COLLECTORS, LEARNER, RANKS, SimulatedCollector, SimulatedLearner
from hpcdi.comm.messages import (
    CollectTask,
    LearnTask,
    Leave,
    Message,
    Stop,
    StopRequest,
)
from hpcdi.roles.coordinator.commander import Commander
from hpcdi.roles.coordinator.groups import Groups
from hpcdi.roles.coordinator.scheduler import Scheduler
from hpcdi.roles.coordinator.snapshots import SnapshotClock
from hpcdi.roles.coordinator.workers import Order, State, Workers

MAX_ENV_STEP = 400


class World:
    """Rank 0's scheduler, the workers, and a clock."""

    def __init__(self) -> None:
        groups = make_groups()
        self.scheduler = Scheduler(
            Commander(experiment(max_env_step=MAX_ENV_STEP), groups),
            SnapshotClock(math.inf),
            Workers(RANKS, groups, timeouts=TIMEOUTS),
        )
        self.now = 0.0
        self.workers: dict[int, Any] = {rank: SimulatedCollector(rank) for rank in COLLECTORS}
        self.workers[LEARNER] = SimulatedLearner(LEARNER)
        self.sent: dict[int, list[Message]] = {rank: [] for rank in RANKS}

    def post(self, orders: list[Order]) -> None:
        for order in orders:
            self.sent[order.rank].append(order.message)
            self.workers[order.rank].inbox.append(order.message)

    def hear(self, rank: int, _chance: int = 0) -> None:
        if self.workers[rank].said and not self.scheduler.finished:
            message = self.workers[rank].said.popleft()
            self.post(self.scheduler.handle(message, rank, self.now))

    def step(self, rank: int, chance: int) -> None:
        self.workers[rank].step(chance)

    def wait(self, _rank: int, chance: int) -> None:
        self.now += chance * EVERY_S / 10
        self.post(self.scheduler.tick(self.now))

    def fail(self, rank: int, chance: int) -> None:
        if chance < 4:
            self.workers[rank].fail()

    def signal(self, rank: int, chance: int) -> None:
        if chance == 0:
            self.workers[rank].said.append(StopRequest("SIGINT", 130))

    def finish(self, mute: set[int]) -> None:
        """A signal at the latest; then everybody but `mute` goes on until the end.

        Time stands still where nobody is mute: an orderly end waits for no deadline.
        """
        self.post(self.scheduler.handle(StopRequest("SIGTERM", 85), 0, self.now))
        for _ in range(400):
            if self.scheduler.finished:
                break
            for rank in RANKS:
                if rank not in mute:
                    self.step(rank, 9)
                self.hear(rank)
            self.wait(0, 1 if mute else 0)
        for worker in self.workers.values():
            while worker.inbox:
                worker.step(9)


events = st.lists(
    st.tuples(
        st.sampled_from(["step"] * 5 + ["hear"] * 6 + ["wait", "wait", "fail", "signal"]),
        st.sampled_from(RANKS),
        st.integers(0, 9),
    ),
    min_size=50,  # of its own accord hypothesis makes lists of about five
    max_size=200,
)


def check_counts(workers: Workers, groups: Groups) -> None:
    """What is kept as things change is what a look at all ranks would find."""
    collectors = [worker for worker in workers if worker.role == "collector"]
    free = {worker.rank for worker in collectors if worker.state is State.FREE}
    assert {worker.rank for worker in workers.free_collectors} == free
    assert workers.has_free_collector == bool(free)
    assert workers.collectors_here == sum(worker.is_available for worker in collectors)
    assert workers.all_reported is not any(worker.state is State.EXPECTED for worker in workers)
    for group in groups:
        collecting = [w.rank for w in collectors if w.is_collecting and w.closing_since is None]
        assert sorted(workers.collecting(group)) == collecting


def check_end(world: World) -> None:
    """Over, with one outcome, and everybody told to stop at most once and to leave once."""
    assert world.scheduler.finished
    outcome = world.scheduler.outcome
    assert outcome is not None
    for rank in RANKS:
        kinds = Counter(type(message) for message in world.sent[rank])
        assert (kinds[Leave], kinds[Stop] <= 1) == (1, True)
        assert world.sent[rank][-1] == Leave(outcome.exit_code)
        tasks = [m for m in world.sent[rank] if isinstance(m, CollectTask | LearnTask)]
        assert len({task.task_id for task in tasks}) == len(tasks)
        told = [isinstance(m, Stop) for m in world.sent[rank]]
        after = world.sent[rank][told.index(True) :] if any(told) else []
        assert not any(task in after for task in tasks)
    failed = any(worker.state == "failed" for worker in world.workers.values())
    assert (outcome.state == "failed") <= failed


@settings(max_examples=50, deadline=None)
@given(events, st.sets(st.sampled_from(RANKS), max_size=2))
def test_every_run_ends(events: list[tuple[str, int, int]], mute: set[int]) -> None:
    world = World()
    for kind, rank, chance in events:
        getattr(world, kind)(rank, chance)
        check_counts(world.scheduler.workers, world.scheduler.groups)
    world.finish(mute)
    check_end(world)


def test_the_simulation_reaches_every_end() -> None:
    """A fair run with nothing planted ends by each of its three goals, for some seed."""
    ends = Counter[str]()
    for seed in range(32):
        rng, world = np.random.default_rng(seed), World()
        while world.scheduler.is_on and world.now < 500:
            for rank in RANKS:
                for _ in range(int(rng.integers(0, 4))):
                    world.step(rank, int(rng.integers(0, 10)))
                    world.hear(rank)
            world.wait(0, int(rng.integers(0, 4)))
        world.finish(set())
        check_end(world)
        outcome = world.scheduler.outcome
        assert outcome is not None
        assert outcome.state == "done"
        ends[outcome.reason.split(":")[0]] += 1
    assert ends.keys() == {
        "stop value reached", "max_env_step reached", "the learner has done its iterations",
    }  # fmt: skip
