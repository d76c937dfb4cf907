"""The coordinator's loop over a local world: simulated workers that speak real messages."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fakes.replay import block
from fakes.scheduler import STOP_VALUE
from fakes.simulated_workers import LEARNER, RANKS, SimulatedCollector, SimulatedLearner
from hpcdi.comm.link import LocalWorld
from hpcdi.comm.messages import Leave, StopRequest, WorkerFailed, WorkerReady
from hpcdi.config.compiled import compile_config
from hpcdi.errors import WorkerSilentError
from hpcdi.roles.coordinator import coordinator as module
from hpcdi.roles.coordinator.coordinator import Coordinator as RunCoordinator
from hpcdi.roles.coordinator.scheduler import Outcome
from hpcdi.store.layout import RunLayout
from hpcdi.types import BLOCK_ID_BITS
from hpcdi.worker.coordinator import Coordinator

LIMIT_S = 30.0  # nothing here takes long


def experiment(*, patience_s: float = LIMIT_S, keep_data: bool = True, **commander: Any) -> Any:
    return compile_config(
        {
            "env": {"env_id": "CartPole-v1", "stop_value": STOP_VALUE},
            "policy": {
                # its collectors never pause: no more may be due at the end
                "learn": {"replay_ratio": 1} if "max_env_step" in commander else {},
                "other": {
                    "commander": {"eval_interval": 0.02, **commander},
                    "replay_buffer": {"replay_buffer_size": 136},
                },
            },
            "system": {
                "coordinator": {"start_timeout_s": patience_s, "stop_timeout_s": patience_s},
                "storage": {"keep_data": keep_data},
            },
        }
    ).config


def test_a_job_that_is_suspended_as_it_begins_or_ends_is_waited_for() -> None:
    world = LocalWorld(2)
    with RunCoordinator(experiment(), world.link(0)) as coordinator:
        assert coordinator.turn(0.0)
        assert coordinator.turn(3600.0), "the worker had no time left to start"
        world.link(1).send(0, WorkerReady("collector", "host", 0))
        assert coordinator.turn(3601.0, StopRequest("enough", 85))
        assert coordinator.turn(7200.0), "nor to end"
        turns = (7200.0 + after_s for after_s in range(0, 1000, 9))
        assert next(now for now in turns if not coordinator.turn(now)) <= 7200.0 + LIMIT_S


class Cluster:
    """All ranks but 0: each worker's inbox and words, carried by its own link."""

    def __init__(self) -> None:
        self.world = LocalWorld(1 + len(RANKS))
        self.workers: dict[int, Any] = {
            rank: SimulatedLearner(rank)
            if rank == LEARNER
            else SimulatedCollector(rank, task_s=0.01)
            for rank in RANKS
        }
        self.rng = np.random.default_rng(0)

    def go_on(self, *, evaluations: bool = True) -> None:
        """Each worker hears what came and does one thing; without `evaluations` none reaches it."""
        for rank, worker in self.workers.items():
            link = self.world.link(rank)
            worker.inbox.extend(message for _, message in link.receive(0.0))
            while worker.inbox:
                worker.step(9)
            is_evaluating = rank != LEARNER and worker.task is not None and worker.task.eval_flag
            worker.step(1 if is_evaluating and not evaluations else int(self.rng.integers(0, 10)))
            while worker.said:
                link.send(0, worker.said.popleft())

    def play(self, running: Future[Any], **how: Any) -> Any:
        """Go on until rank 0's loop has ended; gives what it returned."""
        self.play_until(running.done, **how)
        for worker in self.workers.values():
            worker.inbox.extend(m for _, m in self.world.link(worker.rank).receive(0.0))
        return running.result()

    def play_until(self, is_over: Callable[[], bool], **how: Any) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not is_over():
            assert time.monotonic() < deadline, "the run does not end"
            self.go_on(**how)
            while self.world.inboxes[0] and not is_over():
                time.sleep(1e-4)  # workers that run ahead of rank 0 prove nothing

    def left(self) -> list[int]:
        """How often each has been told to leave."""
        return [
            worker.heard[Leave] + sum(isinstance(m, Leave) for m in worker.inbox)
            for worker in self.workers.values()
        ]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_a_run_from_its_start_to_its_goal(
    cluster: Cluster, aside: ThreadPoolExecutor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = RunLayout(tmp_path)
    cluster.workers[LEARNER].goal = 10**9
    with Coordinator(experiment(), cluster.world.link(0), layout) as coordinator:
        outcome = cluster.play(aside.submit(coordinator.run))
        assert outcome == Outcome("done", "stop value reached: mean return 200.0 of 195", 0)
        assert coordinator.system_shutdown_flag
        assert coordinator.silent == {}
        figures, summary = coordinator.figures(), coordinator.summary()
    assert cluster.left() == [1, 1, 1, 1]
    check_figures(figures, cluster)
    assert any(line.startswith("  best evaluation: mean return 200.0 ") for line in summary)
    assert [line.split()[:2] for line in summary[-5:]] == [["rank", str(r)] for r in range(5)]
    assert "mean return 200.0 ± 0.0 (200 to 200, 1 episodes)" in capsys.readouterr().out
    check_curves(layout, figures)


def check_figures(figures: dict[str, Any], cluster: Cluster) -> None:
    """They are plain data, also for strict readers of JSON, and they are true."""
    assert json.loads(json.dumps(figures, allow_nan=False)) == json.loads(json.dumps(figures))
    collectors = [w for rank, w in cluster.workers.items() if rank != LEARNER]
    assert figures["blocks"] == sum(collector.blocks for collector in collectors)
    assert figures["env_steps"] == 7 * figures["blocks"], "what is published, and nothing else"
    assert figures["train_iter"] == cluster.workers[LEARNER].iterations
    assert figures["samples_drawn"] >= 4 * figures["train_iter"]
    assert figures["items_admitted"] <= 7 * figures["blocks"]
    assert figures["evaluations"][-1]["mean"] == 200.0
    assert figures["ranks"].keys() == {"0", "1", "2", "3", "4"}
    assert figures["block_latency_p50_s"] == 0.0


def check_curves(layout: RunLayout, figures: dict[str, Any]) -> None:
    """TensorBoard's own reader finds each once, over environment steps."""
    events = EventAccumulator(str(layout.tensorboard_dir))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    names = ("reward_std", "reward_max", "reward_min", "episode_count")
    assert {f"detail/evaluator/{name}" for name in names} <= tags
    assert not any("_iter" in tag for tag in tags)
    assert min(tags).startswith("curves/"), "what one sees first"
    means = [event.value for event in events.Scalars("curves/evaluation_return")]
    assert means == [evaluation["mean"] for evaluation in figures["evaluations"]]
    steps = [event.step for event in events.Scalars("curves/evaluation_return")]
    assert steps == [evaluation["env_steps"] for evaluation in figures["evaluations"]]
    losses = events.Scalars("detail/learner/loss")
    assert {event.value for event in losses} == {1.0}
    assert losses[-1].step <= figures["env_steps"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_env_step": 70}, "max_env_step reached: 70 of 70"),
        ({"max_train_iter": 3}, "max_train_iter reached"),
        ({}, "the learner has done its iterations"),
    ],
)
def test_other_goals(
    cluster: Cluster, aside: ThreadPoolExecutor, settings: dict[str, int], reason: str
) -> None:
    if "max_env_step" in settings:
        cluster.workers[LEARNER].goal = 10**9
    with Coordinator(experiment(**settings), cluster.world.link(0)) as coordinator:
        outcome = cluster.play(aside.submit(coordinator.run), evaluations=False)
    assert (outcome.state, outcome.exit_code) == ("done", 0)
    assert outcome.reason.startswith(reason)
    assert cluster.left() == [1, 1, 1, 1]


def test_a_signal_is_asked_for_in_every_turn(cluster: Cluster, aside: ThreadPoolExecutor) -> None:
    asked = iter([None, None, StopRequest("SIGINT", 130)])
    with Coordinator(experiment(), cluster.world.link(0)) as coordinator:
        outcome = cluster.play(aside.submit(coordinator.run, lambda: next(asked, None)))
    assert outcome == Outcome("stopped", "SIGINT", 130)
    assert cluster.left() == [1, 1, 1, 1]


def test_a_failure_is_shown_at_once(
    cluster: Cluster, aside: ThreadPoolExecutor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Coordinator(experiment(), cluster.world.link(0), RunLayout(tmp_path)) as coordinator:
        running = aside.submit(coordinator.run)
        cluster.go_on()
        cluster.workers[3].fail()
        outcome = cluster.play(running)
    rank, failure = outcome.failure
    assert outcome == Outcome("failed", "ValueError: planted", 1, (rank, failure))
    assert (rank, type(failure)) == (3, WorkerFailed)
    told = capsys.readouterr().err
    assert told.count("hpcdi: rank 3 (some role, host host) failed\nTraceback") == 1
    assert cluster.left() == [1, 1, 1, 1]


def test_who_says_nothing_at_the_end_is_named(
    cluster: Cluster, aside: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0's clock goes fast when all others have said goodbye, however long that takes."""
    ahead_s = turn_s = 0.0

    def now() -> float:
        nonlocal ahead_s
        ahead_s += turn_s
        return time.monotonic() + ahead_s

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=now, time=time.time))
    with Coordinator(experiment(max_env_step=500), cluster.world.link(0)) as coordinator:
        cluster.go_on()  # all say that they are ready
        del cluster.workers[4]
        running = aside.submit(coordinator.run)
        cluster.play_until(lambda: coordinator.silent == {4: "collector"}, evaluations=False)
        assert not running.done()
        turn_s = 5.0  # a leap would be a suspension of the job
        assert running.result(LIMIT_S).state == "done"
        assert coordinator.silent == {4: "collector"}


class Rollouts(SimulatedCollector):
    """A collector whose task is one rollout, or one evaluation."""

    def work(self, chance: int) -> None:
        if not self.task.eval_flag:
            self.blocks += 1
            self.said.append(block((self.rank << BLOCK_ID_BITS) + self.blocks, [8]))
        self.end_task(np.array([1.0]) if self.task.eval_flag else None)


def test_roles_take_turns_in_one_process(tmp_path: Path) -> None:
    """Nobody waits, and no clock is asked: one update for each rollout, evaluations by counts."""
    world, config = LocalWorld(3), experiment(max_train_iter=40)
    policy = dataclasses.replace(
        config.policy,
        eval=dataclasses.replace(config.policy.eval, every="10 iterations"),
        learn=dataclasses.replace(config.policy.learn, update_per_collect=1),
    )
    config = dataclasses.replace(config, policy=policy)
    workers = [SimulatedLearner(1, goal=10**9), Rollouts(2)]
    now, link = 0.0, world.link(0)
    with RunCoordinator(config, link, RunLayout(tmp_path), in_turns=True) as coordinator:
        coordinator.begin()
        while coordinator.turn(now):
            now += 0.01
            assert now < 100, "the run does not end"
            for worker in workers:
                worker.inbox.extend(m for _, m in world.link(worker.rank).receive(0.0))
                worker.step(0)
                while worker.said:
                    world.link(worker.rank).send(0, worker.said.popleft())
        assert coordinator.end() == Outcome("done", "max_train_iter reached: 40 of 40", 0)
        figures = coordinator.figures()
    assert (figures["train_iter"], figures["env_steps"]) == (40, 8 * 40)
    assert [e["env_steps"] for e in figures["evaluations"]] == [80, 160, 240, 320]


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it does not come true"


def test_who_does_not_come_is_an_error_of_the_run() -> None:
    world = LocalWorld(3)
    with (
        Coordinator(experiment(patience_s=0.2), world.link(0)) as coordinator,
        pytest.raises(WorkerSilentError, match="rank 1 has been silent"),
    ):
        coordinator.run()


def test_only_some_ranks_take_part(aside: ThreadPoolExecutor) -> None:
    world = LocalWorld(3)
    with Coordinator(experiment(), world.link(0), workers=[]) as coordinator:
        running = aside.submit(coordinator.run)
        coordinator.close()
        assert running.result(LIMIT_S) == Outcome("stopped", "closed", 0)
    assert world.link(1).receive(0.0) == world.link(2).receive(0.0) == []


def test_start_and_close(cluster: Cluster) -> None:
    cluster.go_on()  # all say that they are ready
    coordinator = Coordinator(experiment(patience_s=0.3), cluster.world.link(0))
    coordinator.start()
    coordinator.start()  # again: nothing
    until(lambda: cluster.go_on(evaluations=False) or coordinator.figures()["env_steps"] > 0)
    coordinator.close()  # the workers do not answer any more
    coordinator.close()
    assert coordinator.system_shutdown_flag
    for worker in cluster.workers.values():
        messages = [m for _, m in cluster.world.link(worker.rank).receive(0.0)]
        assert isinstance(messages[-1], Leave)


def test_an_error_of_the_loop_is_raised_by_close(tmp_path: Path) -> None:
    """And what is open is closed all the same."""
    config = experiment(patience_s=0.2)
    coordinator = Coordinator(config, LocalWorld(2).link(0), RunLayout(tmp_path))
    coordinator.start()
    thread: Any = coordinator._thread
    until(lambda: not thread.is_alive)
    with pytest.raises(WorkerSilentError):
        coordinator.close()
    assert coordinator._view._writer is None
    coordinator.close()


def test_callbacks_while_it_runs() -> None:
    """Other threads may call them; the loop sees what came of it."""
    with Coordinator(experiment()) as coordinator:
        coordinator.start()
        for n in range(50):
            coordinator.deal_with_collector_send_data("c", "mine", f"d{n}", {"policy_iter": n})
        assert len(coordinator.deal_with_learner_get_data("l", "mine", 50, 60) or []) == 50
        coordinator.deal_with_collector_finish_task(
            "e", {"eval_flag": True, "reward_raw": [STOP_VALUE]}
        )
        thread: Any = coordinator._thread
        until(lambda: not thread.is_alive)
        assert coordinator.system_shutdown_flag


@pytest.mark.parametrize("keep_data", [True, False])
def test_shards_that_nobody_needs(
    cluster: Cluster, aside: ThreadPoolExecutor, tmp_path: Path, keep_data: bool
) -> None:
    """They are removed unless they are to be kept, and only they."""
    for rank in (2, 3, 4):
        for number in range(1, 200):
            path = tmp_path / "data" / f"{(rank << BLOCK_ID_BITS) + number}.h5"
            path.parent.mkdir(exist_ok=True)
            path.touch()
    config = experiment(keep_data=keep_data, max_env_step=7 * 300)
    cluster.workers[LEARNER].goal = 10**9
    with Coordinator(config, cluster.world.link(0), RunLayout(tmp_path)) as coordinator:
        cluster.play(aside.submit(coordinator.run), evaluations=False)
        replay = coordinator.state_dict()["groups"]["main"]["replay"]
        needed = {held["path"] for part in replay["partitions"].values() for held in part["blocks"]}
        published = coordinator.figures()["blocks"]
    left = {f"data/{path.name}" for path in (tmp_path / "data").iterdir()}
    assert needed <= left
    assert 0 < len(needed) < published
    if keep_data:
        assert len(left) == 597
    else:  # also what no snapshot has counted yet: that which was published in its last moment
        assert 0 <= len(left) - (597 - published + len(needed)) <= 5
