"""Deterministic runs: whatever order the words of the ranks come in, the orders are the same."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

import numpy as np
import pytest

from fakes.replay import block, make_replays
from fakes.scheduler import STOP_VALUE, TIMEOUTS, experiment
from hpcdi.comm.messages import (
    AdmitBlock,
    Batches,
    BlockAdmitted,
    CollectProgress,
    CollectResult,
    CollectSetting,
    CollectTask,
    DataDemand,
    LearnInfo,
    LearnTask,
    Message,
    Stop,
    StopRequest,
    TakeSnapshot,
    WorkerReady,
)
from hpcdi.config.load import compile_config
from hpcdi.config.schema import check_over_ranks
from hpcdi.roles.coordinator.commanders import create_parallel_commander
from hpcdi.roles.coordinator.lockstep import LockstepScheduler, RoundPlan
from hpcdi.roles.coordinator.scheduler import Outcome, Scheduler
from hpcdi.roles.coordinator.snapshots import SnapshotClock
from hpcdi.roles.coordinator.workers import Workers
from hpcdi.types import BLOCK_ID_BITS, Interval, Lockstep

LEARNERS, COLLECTORS = (1, 2), (3, 4, 5)
STEPS, UPDATES, EVERY, EVALUATE = 12, 3, 4, 10
"""Transitions of a piece; batches of a round; rounds to a snapshot; iterations to an evaluation."""


class World:
    """Rank 0 and all others, whose words come in an order that a seed decides.

    Args:
        seed: of that order.
        mean: return of the evaluations.
        limits: of the commander.
    """

    def __init__(self, seed: int, mean: float = 0.0, **limits: float) -> None:
        self.rng, self.mean, self.now = np.random.default_rng(seed), mean, 0.0
        numbers = itertools.count(1)
        self.scheduler = LockstepScheduler(
            create_parallel_commander(experiment(**limits)),
            make_replays(min_fill=2 * STEPS),
            SnapshotClock(1.0, lambda: (f"snapshot_{next(numbers)}", "folder")),
            Workers([*LEARNERS, *COLLECTORS], {"main": len(LEARNERS)}, timeouts=TIMEOUTS),
            plan=RoundPlan(
                len(COLLECTORS), lambda *_counts: UPDATES, EVERY, Interval("iterations", EVALUATE)
            ),
        )
        self.said: dict[int, deque[Message]] = {
            rank: deque([WorkerReady("learner" if rank in LEARNERS else "collector", "host", rank)])
            for rank in (*LEARNERS, *COLLECTORS)
        }
        self.sent: dict[int, list[Message]] = {rank: [] for rank in self.said}
        self.iterations = dict.fromkeys(LEARNERS, 0)
        self.blocks = dict.fromkeys(COLLECTORS, 0)
        self.at_snapshot: list[tuple[int, int]] = []

    def run(self, until: int = 40) -> None:
        """Till no more is said, or a learner has done so many iterations."""
        while max(self.iterations.values()) < until and self.scheduler.is_on:
            speakers = [rank for rank, said in self.said.items() if said]
            self.now += 0.3
            orders = self.scheduler.tick(self.now)
            if speakers:
                rank = int(self.rng.choice(speakers))
                orders += self.scheduler.handle(self.said[rank].popleft(), rank, self.now)
            else:
                assert orders, "it has come to a stand"
            for order in orders:
                self.sent[order.rank].append(order.message)
                self.take(order.rank, order.message)

    def take(self, rank: int, message: Message) -> None:
        match message:
            case LearnTask():
                self.ask(rank)
            case AdmitBlock():
                self.said[rank].append(BlockAdmitted(message.block_id, 0.0))
            case Batches():
                assert len(message.rows) == 1
                self.iterations[rank] += 1
                if self.iterations[rank] % 5 == 0:
                    self.said[rank].append(LearnInfo("task", self.iterations[rank], {}, {}))
                self.ask(rank, message.unique_ids)
            case CollectTask():
                self.collect(rank, message)
            case TakeSnapshot():
                counters = self.scheduler.counters
                self.at_snapshot.append((counters.rounds, counters.train_iter))
                assert counters.train_iter == self.iterations[rank]

    def ask(self, rank: int, drawn: Any = None) -> None:
        done = self.iterations[rank]
        ids = np.zeros(0, np.int64) if drawn is None else drawn[0]
        priorities = np.linspace(0.1, 1.0 + done, ids.size)
        self.said[rank].append(DataDemand("task", 1, 4, done, ids, priorities))

    def collect(self, rank: int, task: CollectTask) -> None:
        assert task.lockstep is not None
        assert task.lockstep.policy_version == max(self.iterations.values())
        returns = np.array([self.mean]) if task.eval_flag else np.zeros(0)
        if not task.eval_flag:
            for steps in (STEPS // 2, STEPS - STEPS // 2):
                self.blocks[rank] += 1
                ready = block((rank << BLOCK_ID_BITS) + self.blocks[rank], [steps])
                none = np.zeros(0, np.int64)
                progress = CollectProgress(task.task_id, none * 1.0, none, 0, {})
                self.said[rank] += [ready, progress]
        lengths = np.ones(len(returns), np.int64)
        result = CollectResult(task.task_id, task.eval_flag, 0, STEPS, 1.0, returns, lengths)
        self.said[rank].append(result)

    def trace(self) -> dict[str, Any]:
        """All that numbers depend on."""
        tasks = [
            (rank, m.lockstep, tuple(m.setting.items()))
            for rank in COLLECTORS
            for m in self.sent[rank]
            if isinstance(m, CollectTask) and not m.eval_flag
        ]
        evaluations = sorted(
            m.lockstep.round
            for rank in COLLECTORS
            for m in self.sent[rank]
            if isinstance(m, CollectTask) and m.eval_flag and m.lockstep
        )
        batches = {
            rank: [
                (m.rows.tolist(), m.unique_ids.tolist(), m.weights.tolist(), m.env_steps)
                for m in self.sent[rank]
                if isinstance(m, Batches)
            ]
            for rank in LEARNERS
        }
        admits = {
            rank: [(m.block_id, m.first_row) for m in self.sent[rank] if isinstance(m, AdmitBlock)]
            for rank in LEARNERS
        }
        return {
            "tasks": tasks, "evaluations": evaluations, "batches": batches, "admits": admits,
            "snapshots": self.at_snapshot,
        }  # fmt: skip


def test_the_orders_are_the_same_whatever_comes_first() -> None:
    first = World(0)
    first.run()
    expected = first.trace()
    assert len(expected["batches"][1]) == len(expected["batches"][2]) == 40
    assert expected["evaluations"]
    assert len(expected["snapshots"]) >= 2 * len(LEARNERS)
    for seed in range(1, 12):
        world = World(seed)
        world.run()
        assert world.trace() == expected


def test_rounds_take_their_turn() -> None:
    world = World(3)
    world.run(30)
    tasks = [m for m in world.sent[3] if isinstance(m, CollectTask) and not m.eval_flag]
    rounds = [task.lockstep for task in tasks]
    # in the first one there is too little to learn from for each of the two
    assert rounds[:3] == [
        Lockstep(0, 0, begins_anew=True),
        Lockstep(1, 0, begins_anew=False),
        Lockstep(2, UPDATES, begins_anew=False),
    ]
    assert [each.begins_anew for each in rounds if each] == [
        number % EVERY == 0 for number in range(len(rounds))
    ]
    assert {number for number, _ in world.at_snapshot} == {4, 8}
    settings = [m for m in itertools.chain(*world.sent.values()) if isinstance(m, CollectSetting)]
    assert not settings, "exploration changes between rounds, not in one"
    eps = [task.setting["eps"] for task in tasks]
    assert eps == sorted(eps, reverse=True)
    assert len(set(eps)) > 3


def test_no_snapshot_is_taken_in_the_middle_of_a_round() -> None:
    world = World(4)
    world.run(UPDATES + 1)
    orders = world.scheduler.handle(StopRequest("received SIGTERM", 85), 0, world.now)
    assert {type(order.message) for order in orders} == {Stop}


@pytest.mark.parametrize("limit", [7, UPDATES * 3])
def test_a_limit_of_iterations_is_met_to_the_iteration(limit: int) -> None:
    for seed in range(6):
        world = World(seed, max_train_iter=limit)
        world.run(100)
        assert world.iterations == dict.fromkeys(LEARNERS, limit)
        outcome = world.scheduler.outcome
        assert outcome == Outcome("done", f"max_train_iter reached: {limit} of {limit}", 0)
        assert world.scheduler.counters.evaluated_at == limit, "of the last policy, before the end"


def test_steps_are_counted_at_the_end_of_a_round() -> None:
    whole = STEPS * len(COLLECTORS)
    for seed in range(6):
        world = World(seed, max_env_step=2 * whole + 1)
        world.run(100)
        assert world.scheduler.counters.env_steps == 3 * whole


def test_the_stop_value_ends_the_run() -> None:
    ends = set()
    for seed in range(6):
        world = World(seed, mean=STOP_VALUE + 1)
        world.run(100)
        assert world.scheduler.outcome is not None
        ends.add((world.iterations[1], world.iterations[2], world.scheduler.outcome.reason))
    ((first, second, reason),) = ends
    assert first == second == 12  # the end of the round in which the tenth iteration was
    assert reason.startswith("stop value reached")


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"policy": {"type": "ppo"}}, "policy.on_policy"),
        ({"policy": {"other": {"commander": {"type": "naive"}}}}, "policy.other.commander.type"),
        (
            {
                "policy": {
                    "other": {
                        "replay_buffer": {
                            "thruput_controller": {"push_sample_rate_limit": {"max": 2.0}}
                        }
                    }
                }
            },
            "policy.other.replay_buffer.thruput_controller.push_sample_rate_limit",
        ),
        (
            {"policy": {"collect": {"collector": {"collector_max": 4}}}},
            "policy.collect.collector.collector_max",
        ),
    ],
)
def test_what_goes_by_the_clock_is_refused(given: dict[str, Any], path: str) -> None:
    whole = {"env": {"env_id": "CartPole-v1"}, "system": {"deterministic": True}, **given}
    (problem,) = check_over_ranks(compile_config(whole).config)
    assert problem.path == path
    assert "system.deterministic" in problem.message


def test_without_it_the_scheduler_is_the_usual_one() -> None:
    from hpcdi.roles.coordinator.lockstep import scheduler_type

    config = compile_config({"env": {"env_id": "CartPole-v1"}}).config
    assert scheduler_type(config, 3) is Scheduler
