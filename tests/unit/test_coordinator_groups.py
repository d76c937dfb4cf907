"""Several players that learn in one run: whose ranks, tasks, blocks and counters are whose."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.replay import admitted, demand, make_group, on_policy_replay, rollout
from fakes.scheduler import TIMEOUTS, Curves
from hpcdi.comm.messages import (
    AdmitBlock,
    Batches,
    BeginAnew,
    BlockAdmitted,
    CloseTask,
    CollectPause,
    CollectProgress,
    CollectResult,
    CollectTask,
    LearnInfo,
    LearnResult,
    LearnTask,
    RankLost,
    Regroup,
    SnapshotPart,
    TakeSnapshot,
    WorkerReady,
)
from hpcdi.config.compiled import compile_config
from hpcdi.config.league import LeagueConfig
from hpcdi.config.schema import check_over_ranks, learners_of
from hpcdi.errors import LaunchError
from hpcdi.replay.ratio import ReplayRatio
from hpcdi.roles.coordinator.commander import Commander
from hpcdi.roles.coordinator.groups import EvaluationClock, Groups
from hpcdi.roles.coordinator.scheduler import Scheduler
from hpcdi.roles.coordinator.snapshots import Resumed, SnapshotClock, SnapshotKeeper
from hpcdi.roles.coordinator.view import RunRecord, status_of
from hpcdi.roles.coordinator.workers import FaultPolicy, Order, Workers
from hpcdi.run.placement import Place, communicators, learner_groups, learners_for, roles_of
from hpcdi.store.checkpoints import checkpoint_names, open_checkpoint, write_files
from hpcdi.store.layout import RunLayout
from hpcdi.types import Interval

MAIN, EXPLOITER, COLLECTORS = (1, 2), 3, (4, 5, 6)


def experiment(learner_num: int = 3, **league: Any) -> Any:
    league = {"players": {"main": "main", "exploiter": "main_exploiter"}, **league}
    tasks = len(league["players"])
    other = {
        "commander": {
            "type": "one_vs_one", "collector_task_space": None, "learner_task_space": tasks,
            "league": league,
        },
    }  # fmt: skip
    learn = {"learner": {"learner_num": learner_num}}
    return compile_config(
        {"env": {"env_id": "x"}, "policy": {"learn": learn, "other": other}}
    ).config


# ------------------------------------------------------------------------------------- whose ranks


def test_ranks_are_shared_out_evenly_or_as_the_configuration_says() -> None:
    assert learners_of(experiment(3)) == {"main": 2, "exploiter": 1}
    assert learners_of(experiment(4, learners={"exploiter": 3})) == {"main": 1, "exploiter": 3}
    config = experiment(3)
    assert not check_over_ranks(config)
    roles = roles_of([Place("n")] * 7, config)
    groups = learner_groups(roles, config)
    assert groups == {"main": (1, 2), "exploiter": (3,)}
    assert communicators(groups) == {"learners of main": (1, 2)}
    asked = [learners_for(rank, roles, groups["main"]) for rank in (4, 5, 6)]
    assert asked == [(1, 2), (2, 1), (1, 2)]


def test_too_few_ranks_are_refused() -> None:
    for config, needed in ((experiment(1), 2), (experiment(2, learners={"exploiter": 2}), 3)):
        (problem,) = check_over_ranks(config)
        assert problem.path == "policy.learn.learner.learner_num"
        assert f"the players that learn need {needed}: each has" in problem.message
    with pytest.raises(LaunchError, match="at least 2 collectors, one to each player that learns"):
        roles_of([Place("n")] * 5, experiment(3))


@pytest.mark.parametrize(
    ("league", "path"),
    [
        ({"players": {"exploiter": "main_exploiter", "main": "main"}}, "players"),
        ({"players": {"main": "main", "main_000001": "main"}}, "players.main_000001"),
        ({"players": {"main": "main", "best": "main"}}, "players.best"),
        ({"players": {"main": "main", "against": "league_exploiter"}}, "players.against"),
        ({"fixed": {"best": "random"}}, "fixed.best"),
        ({"fixed": {"latest": "random"}}, "fixed.latest"),
        ({"fixed": {"random": "a:play"}}, "fixed.random"),
        ({"players": {"main": "main", "other": "historical"}}, "players.other"),
        ({"learners": {"other": 1}}, "learners.other"),
        ({"learners": {"main": 0}}, "learners.main"),
        ({"fixed": {"x": "random"}, "players": {"main": "main", "x": "main"}}, "fixed.x"),
        (
            {"fixed": {"x_000001": "random"}, "players": {"main": "main", "x": "main"}},
            "fixed.x_000001",
        ),
    ],
)
def test_wrong_players(league: dict[str, Any], path: str) -> None:
    assert [problem.path for problem in LeagueConfig(**league).problems()] == [path]


# ----------------------------------------------------------------------------------- the scheduler


def two_groups() -> Groups:
    every = Interval("seconds", 60.0)
    return Groups([make_group("main", 2, every), make_group("exploiter", 1, every)])


class Run:
    """A scheduler with two learners of the main player, one of an exploiter, three collectors."""

    def __init__(
        self, *, ratio: float | None = None, warm_up: int | None = None, **league: Any
    ) -> None:
        self.groups = two_groups()
        if ratio is not None:
            self.groups["exploiter"].replay.ratio = ReplayRatio(ratio, 0, 4.0)
        for group in self.groups if warm_up is not None else ():
            group.replay.ratio = ReplayRatio(1.0, warm_up, 4.0)
        self.number, self.blocks, self.now = 0, 0, 0.0
        self.curves = Curves()
        self.record = RunRecord(self.curves)
        ranks = [*MAIN, EXPLOITER, *COLLECTORS]
        self.scheduler = Scheduler(
            Commander(experiment(**league), self.groups),
            SnapshotClock(math.inf, self.new),
            Workers(ranks, self.groups, FaultPolicy(is_possible=True), TIMEOUTS),
            observe=self.record.observe,
        )
        self.tasks: dict[int, Any] = {}
        for rank in (*MAIN, EXPLOITER, *COLLECTORS):
            role = "collector" if rank in COLLECTORS else "learner"
            player = "exploiter" if rank == EXPLOITER else "main"
            self.hear(rank, WorkerReady(role, "host", rank, player=player))

    def new(self) -> tuple[str, str]:
        self.number += 1
        return f"snapshot_{self.number:06d}", f"aside-{self.number}"

    def hear(self, rank: int, message: Any) -> list[Order]:
        return self._note(self.scheduler.handle(message, rank, self.now))

    def tick(self) -> list[Order]:
        return self._note(self.scheduler.tick(self.now))

    def _note(self, orders: list[Order]) -> list[Order]:
        for order in orders:
            if isinstance(order.message, CollectTask | LearnTask):
                self.tasks[order.rank] = order.message
        return orders

    def publish(self, rank: int, steps: int = 5) -> list[Order]:
        self.blocks += 1
        ready = rollout(rank, self.blocks, 0, [steps])
        return self.hear(rank, dataclasses.replace(ready, player=self.tasks[rank].player))

    def ask(self, rank: int, train_iter: int = 0) -> list[Order]:
        message = dataclasses.replace(
            demand(1, 2, train_iter=train_iter), task_id=self.tasks[rank].task_id
        )
        return self.hear(rank, message)

    def end(self, rank: int, *returns: float) -> list[Order]:
        task, lengths = self.tasks[rank], np.ones(len(returns), np.int64)
        result = CollectResult(
            task.task_id, task.eval_flag, 7, 0, 1.0, np.array(returns), lengths, player=task.player
        )
        return self.hear(rank, result)

    @property
    def whose(self) -> list[str]:
        return [self.tasks[rank].player for rank in COLLECTORS]


def kinds(orders: list[Order], kind: type) -> list[int]:
    return [order.rank for order in orders if isinstance(order.message, kind)]


def test_each_player_has_its_learners_and_collectors() -> None:
    run = Run()
    assert [run.tasks[rank].player for rank in (*MAIN, EXPLOITER)] == ["main", "main", "exploiter"]
    assert run.tasks[1] == run.tasks[2] != run.tasks[EXPLOITER]
    assert run.whose == ["main", "exploiter", "main"]
    setting = run.tasks[5].setting
    assert (setting["learner"], setting["opponents"]) == ("exploiter", {"main": [1.0, ""]})


def test_blocks_and_batches_go_to_their_player() -> None:
    run = Run()
    assert kinds(run.publish(5), AdmitBlock) == [EXPLOITER]
    assert kinds(run.publish(4), AdmitBlock) == [1]
    assert kinds(run.publish(6), AdmitBlock) == [2]
    for rank in (1, 2, EXPLOITER):
        (block,) = run.groups.partitions[rank]._placed
        run.hear(rank, admitted(block))
    assert kinds(run.ask(EXPLOITER), Batches) == [EXPLOITER], "it waits for no other player"
    assert run.ask(1) == [], "learners of one player wait for each other"
    assert kinds(run.ask(2), Batches) == [1, 2]
    assert run.groups.env_steps == 15
    assert {player.name: player.env_steps for player in run.groups} == {
        "main": 10, "exploiter": 5,
    }  # fmt: skip


def test_counters_and_curves_are_of_each_player() -> None:
    run = Run()
    for rank in (4, 5):
        run.publish(rank)
        task = run.tasks[rank].task_id
        returns, lengths = np.array([float(rank)]), np.array([7])
        run.hear(rank, CollectProgress(task, returns, lengths, 0, {}, run.tasks[rank].player))
    run.record.look(run.scheduler, 0.0)
    for rank, done in ((1, 30), (2, 20), (EXPLOITER, 7)):
        run.hear(rank, LearnInfo(run.tasks[rank].task_id, done, {"loss": float(rank)}, {}))
    run.record.look(run.scheduler, 10.0)
    assert [player.train_iter for player in run.groups] == [20, 7]
    assert run.curves.of("learner_step/loss") == [(1.5, 5)]
    assert run.curves.of("exploiter_learner_iter/loss") == [(3.0, 7)]
    assert run.curves.of("collector_step/reward_mean")[-1] == (4.0, 5)
    assert run.curves.of("exploiter_collector_step/reward_mean")[-1] == (5.0, 5)
    status = status_of(run.scheduler, run.record)
    assert status.returns == [4.0]
    assert status.facts["players"]["exploiter"] == {
        "learners": [EXPLOITER], "collectors": 1, "env_steps": 5, "train_iter": 7,
        "return_mean": 5.0,
    }  # fmt: skip
    league = run.scheduler.league
    assert league is not None
    assert [(p.steps, p.version) for p in league.players.values()] == [(5, 20), (5, 7)]


def test_only_collectors_of_a_player_that_learns_too_slowly_wait() -> None:
    run = Run(ratio=2.0)
    assert kinds(run.publish(4), CollectPause) == []
    assert kinds(run.publish(5), CollectPause) == [5]
    run.end(5)
    run.end(4)
    assert sorted(run.whose) == ["exploiter", "main", "main"]
    paused = {w.rank for w in run.scheduler.workers if w.pause == CollectPause(True)}
    assert paused == {rank for rank in COLLECTORS if run.tasks[rank].player == "exploiter"}


def test_a_collector_that_has_made_its_share_makes_another_players_too() -> None:
    """Also where both are as large: else it would wait for ever for what it has not made."""
    run = Run(warm_up=86)
    (main, exploiter) = (group.pause for group in run.groups)
    assert main == exploiter == CollectPause(True, after=31)
    for rank in (4, 6):
        run.publish(rank, 31)
    run.hear(5, RankLost())
    orders = run.end(6)
    assert run.whose[2] == "exploiter"
    assert kinds(orders, CollectPause) == [6]
    run.publish(6, 31)
    assert kinds(run.tick(), CollectPause) == []
    run.now = 1.1
    assert kinds(run.tick(), CollectPause) == [4, 6]


def test_a_player_without_learners_is_left_out_and_the_others_go_on() -> None:
    run = Run()
    run.publish(5)
    orders = run.hear(EXPLOITER, RankLost())
    assert run.scheduler.is_on
    assert kinds(orders, CloseTask) == [5]
    assert kinds(orders, Regroup) == []
    assert run.groups["exploiter"].learners.size == 0
    assert run.publish(5) == [], "nobody reads what it had left"
    run.end(5)
    assert run.whose == ["main"] * 3
    assert run.tick() == []
    assert run.groups.env_steps == 10
    regrouped = run.hear(2, RankLost())
    assert kinds(regrouped, Regroup) == [1]
    run.hear(1, RankLost())
    assert run.scheduler.outcome is not None
    assert "it was the last learner" in run.scheduler.outcome.reason


def test_an_exploiter_that_was_frozen_begins_anew() -> None:
    run = Run(freeze_steps=5)
    run.publish(5)
    run.hear(EXPLOITER, LearnInfo(run.tasks[EXPLOITER].task_id, 8, {}, {}))
    (closed,) = kinds(run.tick(), CloseTask)
    run.end(closed)
    task = run.tasks[closed]
    assert (task.player, task.eval_flag) == ("exploiter", True)
    assert task.setting["opponents"] == {"main": [1.0, ""]}, "which it is there to beat"
    assert task.freeze == "league/exploiter_000001.safetensors"
    commander, exploiter = run.scheduler.commander, run.groups["exploiter"]
    before = commander.get_setting_collect(exploiter)["eps"]
    assert kinds(run.end(closed, 1.0), BeginAnew) == [EXPLOITER]
    league = run.scheduler.league
    assert league is not None
    assert league.players["exploiter_000001"].version == 7
    assert exploiter.began_at == 5
    assert commander.get_setting_collect(exploiter)["eps"] > before, "it explores again"
    again = two_groups()
    again.load_state_dict(run.groups.state_dict())
    assert again["exploiter"].began_at == 5
    assert kinds(run.tick(), BeginAnew) == []
    run.publish(5)
    for block in [*run.groups.partitions[EXPLOITER]._placed]:
        run.hear(EXPLOITER, admitted(block))
    drawn = [order.message for order in run.ask(EXPLOITER) if isinstance(order.message, Batches)]
    assert [(batches.env_steps, batches.began_at) for batches in drawn] == [(10, 5)]


def test_the_first_player_that_has_done_its_iterations_ends_the_run() -> None:
    run = Run()
    run.hear(EXPLOITER, LearnResult(run.tasks[EXPLOITER].task_id, 9))
    assert run.scheduler.outcome is not None
    assert "done its iterations: 9" in run.scheduler.outcome.reason


def test_collectors_are_moved_to_a_player_that_has_lost_its_own() -> None:
    run = Run()
    run.now = 1.0
    orders = run.hear(5, RankLost())
    assert kinds(orders, CloseTask) == [4]
    run.end(4)
    assert [run.tasks[rank].player for rank in (4, 6)] == ["exploiter", "main"]
    run.hear(6, RankLost())
    assert run.scheduler.outcome is not None
    assert "a collector to each player that learns" in run.scheduler.outcome.reason


# ----------------------------------------------------------------------------- snapshots, resume


def test_a_snapshot_has_the_iterations_of_each_player() -> None:
    run = Run()
    run.publish(4)
    run.scheduler.snapshots._every_s = 0.0
    run.now = 1.0
    assert kinds(run.tick(), TakeSnapshot) == [*MAIN, EXPLOITER]
    for rank, done in ((1, 30), (2, 30), (EXPLOITER, 7)):
        player = "exploiter" if rank == EXPLOITER else "main"
        run.hear(rank, SnapshotPart("snapshot_000001", {}, done, 0.0, player=player))
    (snapshot,) = run.scheduler.snapshots.take_complete()
    assert (snapshot.train_iter, snapshot.iterations["exploiter"]) == (30, 7)


def test_buffers_are_restored_to_their_players() -> None:
    run = Run()
    published = {}
    for rank in (4, 5, 6):
        run.publish(rank)
    for rank, part in run.groups.partitions.items():
        for held in list(part._placed.values()):
            published[held.ready.shard.path] = held.ready
            run.hear(rank, BlockAdmitted(held.ready.block_id, 0.0))
    run.ask(EXPLOITER)
    state = run.scheduler.state_dict()
    assert state["announced"] == {"4": 1, "5": 2, "6": 3}
    later = dataclasses.replace(rollout(5, 9, 0, [3]), player="exploiter")
    published[later.shard.path] = later
    again = two_groups()
    again.load_state_dict(state["groups"], published)
    assert again.main.replay.open(11, 12) != []
    orders = again["exploiter"].replay.open(13)
    assert [order.block_id for _, order in orders] == [(5 << 40) + 2, (5 << 40) + 9]
    assert again.replay_figures().drawn == run.groups.replay_figures().drawn == 2
    assert again.replay_figures().items == run.groups.replay_figures().items == 15
    lost = two_groups()
    run.hear(EXPLOITER, RankLost())
    lost.load_state_dict(run.groups.state_dict(), {})
    lost["exploiter"].replay.open(13)
    assert lost.replay_figures().drawn == 2, "what it has drawn counts, though its buffer is gone"


@pytest.mark.parametrize("on_policy", [False, True])
def test_blocks_of_a_player_that_the_snapshot_is_without_are_learnt_from(on_policy: bool) -> None:
    """It came after the snapshot; they were counted, never learnt from, and never removed."""
    groups = two_groups()
    if on_policy:
        groups["exploiter"].replay = on_policy_replay()
    ready = dataclasses.replace(rollout(5, 9, 0, [3]), player="exploiter")
    state = {"main": two_groups().main.state_dict()}
    groups.load_state_dict(state, {ready.shard.path: ready})
    replay = groups["exploiter"].replay
    orders = [order.block_id for _, order in replay.open(3)]
    freed = replay.take_freed()
    assert (orders, freed) == (([], [ready.shard.path]) if on_policy else ([ready.block_id], []))


def test_files_of_a_lost_player_are_taken_over(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    keeper = SnapshotKeeper(layout, keep=1)
    clock = SnapshotClock(math.inf, keeper.new)
    state: dict[str, Any] = {"groups": {}}

    def take(*players: str) -> None:
        order = clock.take(range(len(players)), 0.0)
        assert order is not None
        lost = [] if "exploiter" in players else ["agent1_"]
        keeper.begin(order, state, {"env_steps": 3}, lost)
        for rank, player in enumerate(players):
            name = f"{'agent1_' if rank else ''}learner.pt"
            files = write_files(layout.inside(order.folder), {name: _write})
            done = keeper._number if player == "main" else 7
            clock.part(rank, SnapshotPart(order.name, files, done, 0.0, player=player))
        keeper.complete(clock.take_complete())

    take("main", "exploiter")
    take("main")
    take("main")
    keeper.close()
    (name,) = checkpoint_names(layout.snapshots_dir)
    newest = open_checkpoint(layout.snapshots_dir / name)
    assert newest.file("agent1_learner.pt").read_bytes() == b"weights"
    assert newest.facts["iterations"] == {"main": 3, "exploiter": 7}


def _write(path: Path) -> None:
    path.write_bytes(b"weights")


def test_blocks_of_a_player_that_came_after_the_snapshot_and_has_gone_are_left_out() -> None:
    """It was killed before a snapshot by its new settings; it goes on by those that it had."""
    before, again = Run(), Run()
    before.publish(4)
    mine, other = (
        dataclasses.replace(rollout(5, number, 0, [3]), player=player)
        for number, player in ((7, "main"), (8, "newcomer"))
    )
    published = {ready.shard.path: ready for ready in (mine, other)}
    state, facts = before.scheduler.state_dict(), {"train_iter": 3}
    resumed = Resumed("snapshot_000001", "", facts, state, published, frozenset(published))
    again.scheduler.resume(resumed)
    assert again.groups.env_steps == before.groups.env_steps + mine.env_steps
    assert again.scheduler.announced[5] == 8, "its number is not given again"
    assert again.groups.main.replay.take_freed() == [other.shard.path], "nobody needs it"


@pytest.mark.parametrize("is_due", [True, False])
def test_an_evaluation_that_was_due_in_a_snapshot_is_due_when_the_run_goes_on(is_due: bool) -> None:
    clock = EvaluationClock(Interval.of("10000 env_steps"))
    assert not clock.state_dict(), "learning has not begun"
    clock.begin_learning(0, 0, 0.0)
    clock.begin(10_000, 50, 5.0)
    if is_due:
        clock.make_due()
    again = EvaluationClock(Interval.of("10000 env_steps"))
    again.load_state_dict(clock.state_dict())
    again.begin_learning(12_000, 60, 100.0)
    assert again.is_due(12_000, 60, 100.0) is is_due
    assert again.is_due(20_000, 90, 100.0)


def test_an_evaluation_is_drawn_where_it_began_and_is_due_where_a_snapshot_is_taken_within_it() -> (
    None
):
    """Its result came a thousand steps later; killed within it, a run did without it."""
    before, again = make_group(), make_group()
    before.env_steps, before.train_iter = 100, 10
    before.evaluation.begin_learning(0, 0, 0.0)
    before.begin_evaluation(5.0)
    before.env_steps = 1200
    again.load_state_dict(before.state_dict())
    again.evaluation.begin_learning(1200, 10, 0.0)
    assert again.evaluation_is_due(0.0)
    before.end_evaluation(CollectResult("task", True, 10, 9, 1.0, np.ones(2), np.ones(2, np.int64)))
    assert [evaluation.env_steps for evaluation in before.evaluations] == [100]
    again.load_state_dict(before.state_dict())
    again.evaluation.begin_learning(1200, 10, 0.0)
    assert not again.evaluation_is_due(0.0)
    assert before.best_evaluation == again.best_evaluation
