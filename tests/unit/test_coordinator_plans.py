"""Plans: whose turn it is. In lockstep the orders are the same whatever comes first."""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fakes.replay import BLOCK_BYTES, block, make_buffer, make_group
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
    RankLost,
    SnapshotPart,
    Stop,
    StopRequest,
    TakeSnapshot,
    WorkerReady,
)
from hpcdi.config.compiled import compile_config
from hpcdi.config.schema import check_over_ranks
from hpcdi.replay.manager import ReplayManager
from hpcdi.replay.partition import OnPolicyPartition, Partition
from hpcdi.replay.ratio import ReplayRatio
from hpcdi.roles.coordinator.commander import Commander
from hpcdi.roles.coordinator.groups import Group, Groups
from hpcdi.roles.coordinator.plans import FreePlan, LockstepPlan, create_plan
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
        plan: of rounds.
        names: of the players; each has two learners.
        on_policy: a batch is all that was collected.
        copies: of each environment step, with which hindsight has filled blocks.
        limits: of the commander.
    """

    def __init__(
        self,
        seed: int,
        mean: float = 0.0,
        *,
        plan: LockstepPlan | None = None,
        names: Sequence[str] = ("main",),
        on_policy: bool = False,
        copies: int = 0,
        **limits: float,
    ) -> None:
        self.rng, self.mean, self.now = np.random.default_rng(seed), mean, 0.0
        self.copies, self.granted_for = copies, list[int]()
        self.learners = {name: tuple(2 * n + k for k in (1, 2)) for n, name in enumerate(names)}
        first = 1 + 2 * len(names)
        self.collectors = (first, first + 1, first + 2)
        every, numbers = Interval("iterations", EVALUATE), itertools.count(1)
        settings = {"max_staleness": 0} if on_policy else {"min_fill": 2 * STEPS}

        def updates(transitions: int) -> int:
            self.granted_for.append(transitions)
            return 1 if on_policy else UPDATES

        self.groups = Groups(make_group(name, 2, every, **settings) for name in names)
        for player in self.groups:
            kind = OnPolicyPartition if on_policy else Partition
            player.replay = ReplayManager(
                lambda name: make_buffer(name, **settings),
                BLOCK_BYTES,
                kind,
                ReplayRatio(updates=updates),
            )
        self.main = self.groups.main
        self.plan = plan if plan is not None else LockstepPlan(EVERY)
        ranks = range(1, first + 3)
        self.scheduler = Scheduler(
            Commander(experiment(**limits), self.groups),
            SnapshotClock(1.0, lambda: (f"snapshot_{next(numbers)}", "folder")),
            Workers(ranks, self.groups, timeouts=TIMEOUTS),
            self.plan,
        )
        self.said: dict[int, deque[Message]] = {
            rank: deque([WorkerReady("collector", "host", rank)]) for rank in ranks
        }
        for name, own in self.learners.items():
            for rank in own:
                self.said[rank] = deque([WorkerReady("learner", "host", rank, player=name)])
        self.sent: dict[int, list[Message]] = {rank: [] for rank in self.said}
        self.iterations = {rank: 0 for own in self.learners.values() for rank in own}
        self.blocks = dict.fromkeys(self.collectors, 0)
        self.at_snapshot: list[tuple[int, int]] = []

    def run(self, until: int = 40) -> None:
        """Till no more is said, or a learner has done so many iterations."""
        while max(self.iterations.values()) < until and self.scheduler.is_on:
            speakers = [rank for rank, said in self.said.items() if said]
            self.now += 0.3
            self.scheduler.snapshots.take_complete()
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
                assert self.is_collected(), "somebody collects still"
                self.iterations[rank] += 1
                if self.iterations[rank] % 5 == 0:
                    self.said[rank].append(LearnInfo("task", self.iterations[rank], {}, {}))
                self.ask(rank, message.unique_ids)
            case CollectTask():
                self.collect(rank, message)
            case TakeSnapshot():
                done = self.player_of(rank).train_iter
                self.at_snapshot.append((self.plan.rounds, done))
                assert done == self.iterations[rank]
                self.said[rank].append(SnapshotPart(message.name, {}, done, 0.0))

    def player_of(self, rank: int) -> Group:
        return next(self.groups[name] for name, own in self.learners.items() if rank in own)

    def is_collected(self) -> bool:
        """Nobody collects, and all that was collected is read."""
        parts = self.groups.partitions.values()
        is_read = all(part.backlog.is_idle for part in parts)
        return is_read and all(self.scheduler.workers[r].task is None for r in self.collectors)

    def ask(self, rank: int, drawn: Any = None) -> None:
        done = self.iterations[rank]
        ids = np.zeros(0, np.int64) if drawn is None else drawn[0]
        priorities = np.linspace(0.1, 1.0 + done, ids.size)
        self.said[rank].append(DataDemand("task", 1, 4, done, ids, priorities, 1))

    def collect(self, rank: int, task: CollectTask) -> None:
        assert task.lockstep is not None
        version = self.iterations[self.learners[task.player][0]]
        assert task.lockstep.policy_version == self.groups[task.player].train_iter == version
        returns = np.array([self.mean]) if task.eval_flag else np.zeros(0)
        if not task.eval_flag:
            for steps in (STEPS // 2, STEPS - STEPS // 2):
                self.blocks[rank] += 1
                block_id = (rank << BLOCK_ID_BITS) + self.blocks[rank]
                ready = block(block_id, [steps], version=task.lockstep.policy_version)
                made_of = steps // (1 + self.copies)
                ready = dataclasses.replace(ready, player=task.player, made_of=made_of)
                none = np.zeros(0, np.int64)
                progress = CollectProgress(task.task_id, none * 1.0, none, 0, {}, task.player)
                self.said[rank] += [ready, progress]
        lengths = np.ones(len(returns), np.int64)
        version = task.lockstep.policy_version
        result = CollectResult(
            task.task_id, task.eval_flag, version, STEPS, 1.0, returns, lengths, player=task.player
        )
        self.said[rank].append(result)

    def trace(self) -> dict[str, Any]:
        """All that numbers depend on."""
        tasks = [
            (rank, m.lockstep, tuple(m.setting.items()))
            for rank in self.collectors
            for m in self.sent[rank]
            if isinstance(m, CollectTask) and not m.eval_flag
        ]
        evaluations = sorted(
            m.lockstep.round
            for rank in self.collectors
            for m in self.sent[rank]
            if isinstance(m, CollectTask) and m.eval_flag and m.lockstep
        )
        batches = {
            rank: [
                (m.rows.tolist(), m.unique_ids.tolist(), m.weights.tolist(), m.env_steps)
                for m in self.sent[rank]
                if isinstance(m, Batches)
            ]
            for rank in self.iterations
        }
        admits = {
            rank: [(m.block_id, m.first_row) for m in self.sent[rank] if isinstance(m, AdmitBlock)]
            for rank in self.iterations
        }
        return {
            "tasks": tasks, "evaluations": evaluations, "batches": batches, "admits": admits,
            "snapshots": self.at_snapshot,
        }  # fmt: skip


def test_a_run_that_is_resumed_at_its_limit_collects_no_round() -> None:
    """It makes the updates that were due when it was stopped."""
    world = World(0, max_env_step=48)
    world.main.replay.ratio = ReplayRatio(1.0, updates=lambda _: 1, batch=8)
    world.main.env_steps = 48
    for number in (1, 2):
        world.main.replay.take_given(block((3 << BLOCK_ID_BITS) + number, [24]))
    world.run()
    assert not world.scheduler.is_on
    trace = world.trace()
    assert [len(batches) for batches in trace["batches"].values()] == [6, 6]
    assert trace["tasks"] == []


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
        assert world.main.evaluated_iter == limit, "of the last policy, before the end"


def test_steps_are_counted_at_the_end_of_a_round() -> None:
    whole = STEPS * len(COLLECTORS)
    for seed in range(6):
        world = World(seed, max_env_step=2 * whole + 1)
        world.run(100)
        assert world.groups.env_steps == 3 * whole


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
        (
            {"policy": {"other": {"commander": {"collector_task_space": 1}}}},
            "policy.other.commander.collector_task_space",
        ),
    ],
)
def test_what_goes_by_the_clock_is_refused(given: dict[str, Any], path: str) -> None:
    whole = {"env": {"env_id": "CartPole-v1"}, "system": {"deterministic": True}, **given}
    (problem,) = check_over_ranks(compile_config(whole).config)
    assert problem.path == path
    assert "system.deterministic" in problem.message


# ------------------------------------------------------------------- one process: rounds, by time


def test_in_one_process_snapshots_come_by_time_and_episodes_go_on() -> None:
    world = World(5, plan=LockstepPlan())
    world.run(30)
    assert len({rounds for rounds, _ in world.at_snapshot}) >= 3, "about one a second"
    tasks = [m for sent in world.sent.values() for m in sent if isinstance(m, CollectTask)]
    assert any(task.eval_flag for task in tasks)
    assert not any(task.lockstep.begins_anew for task in tasks if task.lockstep)
    first = {rank: next(m for m in world.sent[rank] if isinstance(m, CollectTask)) for rank in (3,)}
    assert first[3].lockstep == Lockstep(0, 0, begins_anew=False)


class Limited(World):
    """Two samples or more are drawn for each item that is pushed; nobody's time passes."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, plan=LockstepPlan())
        control = {"push_sample_rate_limit": {"max": 0.5}, "window_seconds": 1e9}
        settings = {"min_fill": 2 * STEPS, "thruput_controller": control}
        self.main.replay = ReplayManager(
            lambda name: make_buffer(name, **settings),
            BLOCK_BYTES,
            ratio=ReplayRatio(updates=lambda _transitions: UPDATES),
        )

    def is_collected(self) -> bool:
        """Blocks may wait until more was drawn."""
        return all(self.scheduler.workers[rank].task is None for rank in self.collectors)


@pytest.mark.parametrize("seed", range(3))
def test_where_blocks_wait_for_learners_these_learn_more_in_a_round(seed: int) -> None:
    world = Limited(seed)
    world.run(120)
    pushed, drawn = world.main.replay.items_admitted, world.main.replay.samples_drawn()
    assert drawn / 3 < pushed <= drawn / 2 + 8 * STEPS, "some blocks come at once"
    assert 8 < world.plan.rounds < 120 / UPDATES / 2


def test_in_one_process_a_snapshot_is_taken_at_the_end() -> None:
    world = World(4, plan=LockstepPlan())
    world.run(UPDATES + 1)
    before = len(world.at_snapshot)
    orders = world.scheduler.handle(StopRequest("received SIGTERM", 85), 0, world.now)
    assert [type(order.message) for order in orders][: len(LEARNERS)] == [TakeSnapshot] * 2
    assert len(world.at_snapshot) == before


@pytest.mark.parametrize("snapshot_rounds", [EVERY, None])
def test_players_take_rounds_in_turn(snapshot_rounds: int | None) -> None:
    world = World(1, plan=LockstepPlan(snapshot_rounds), names=("main", "exploiter"))
    world.run(20)
    tasks = [m for r in world.collectors for m in world.sent[r] if isinstance(m, CollectTask)]
    rounds = {t.lockstep.round: t.player for t in tasks if t.lockstep and not t.eval_flag}
    assert rounds == {n: ("main", "exploiter")[n % 2] for n in range(len(rounds))}
    assert len(rounds) > 8
    assert {task.player for task in tasks if task.eval_flag} == {"main", "exploiter"}
    main, exploiter = (world.iterations[ranks[0]] for ranks in world.learners.values())
    assert 0 <= main - exploiter <= UPDATES


def test_rounds_go_on_without_a_player_whose_learners_have_died() -> None:
    world = World(2, plan=LockstepPlan(), names=("main", "exploiter"))
    world.scheduler.workers.faults.is_possible = True
    world.run(5)
    for rank in world.learners["exploiter"]:
        world.said[rank].clear()
        for order in world.scheduler.handle(RankLost(), rank, world.now):
            world.sent[order.rank].append(order.message)
            world.take(order.rank, order.message)
        del world.said[rank], world.iterations[rank]
    done = world.main.train_iter
    world.run(done + 4 * UPDATES)
    assert world.main.train_iter >= done + 3 * UPDATES


@pytest.mark.parametrize("seed", range(4))
def test_on_policy_a_round_is_one_batch_of_all_that_it_has_collected(seed: int) -> None:
    world = World(seed, plan=LockstepPlan(), on_policy=True)
    world.run(12)
    sizes = [len(m.rows[0]) for r in LEARNERS for m in world.sent[r] if isinstance(m, Batches)]
    assert sum(sizes) == 12 * STEPS * len(COLLECTORS), "each transition once"
    assert world.plan.rounds == 12 or world.plan.rounds == 11, "one update a round"


def test_copies_of_hindsight_grant_no_updates() -> None:
    world = World(0, copies=1)
    world.run(12)
    granted = [steps for steps in world.granted_for if steps]
    assert granted
    assert set(granted) == {STEPS // 2 * len(COLLECTORS)}


def test_a_round_without_collectors_waits_for_one() -> None:
    """Its only collector pauses: it has no environments left, and gets them again later."""
    world = World(0, plan=LockstepPlan())
    world.run(UPDATES)
    plan_rounds = world.plan.rounds
    for rank in world.collectors[1:]:
        world.scheduler.workers.pause(rank, world.now)
    world.run(3 * UPDATES)
    assert world.plan.rounds > plan_rounds, "one is enough"


@pytest.mark.parametrize(
    ("system", "in_turns", "kind"),
    [
        ({}, False, FreePlan),
        ({}, True, LockstepPlan),
        ({"deterministic": True}, False, LockstepPlan),
        ({"deterministic": True}, True, LockstepPlan),
    ],
)
def test_plans_of_experiments(system: dict[str, Any], in_turns: bool, kind: type) -> None:
    config = compile_config({"env": {"env_id": "CartPole-v1"}, "system": system}).config
    assert type(create_plan(config, in_turns=in_turns)) is kind
