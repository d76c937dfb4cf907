"""The coordinator as the seeds' callers use it: a library of callbacks, without other ranks."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.replay import admitted, block, demand
from fakes.scheduler import experiment
from hpcdi.comm.link import LocalWorld
from hpcdi.comm.messages import (
    CollectTask,
    LearnTask,
    TakeSnapshot,
    WorkerReady,
)
from hpcdi.config.compat import ConfigDict
from hpcdi.errors import ConfigError
from hpcdi.roles.coordinator.snapshots import STATE_KIND, STATE_VERSION, Snapshot
from hpcdi.run.resume import read_newest
from hpcdi.store.layout import RunLayout
from hpcdi.store.state_file import load_state, save_state
from hpcdi.worker.coordinator import Coordinator, TaskState
from hpcdi.worker.errors import ReturnError


def as_mapping(commander: str = "naive", **settings: Any) -> dict[str, Any]:
    other = {"commander": {"type": commander, **settings}}
    policy = {"priority": True, "other": other}
    main = {"exp_name": "test", "env": {"env_id": "CartPole-v1"}, "policy": policy}
    return {"main": main, "system": {"coordinator": {"collector_task_timeout": 7}}}


@pytest.fixture
def naive() -> Any:
    with Coordinator(as_mapping()) as coordinator:
        yield coordinator


def finished(**said: Any) -> dict[str, Any]:
    return {"eval_flag": False, "train_iter": 3, "step_count": 40, "duration": 1.0, **said}


# ------------------------------------------------------------------------------------- making one


@pytest.mark.parametrize("cfg", [as_mapping(), ConfigDict(as_mapping()), experiment()], ids=type)
def test_from_a_mapping_and_from_an_experiment(cfg: Any) -> None:
    with Coordinator(cfg) as coordinator:
        assert coordinator.system_shutdown_flag is False
        assert coordinator.silent == {}
    assert coordinator.system_shutdown_flag is True


@pytest.mark.parametrize(
    ("cfg", "words"),
    [
        ({**as_mapping(), "sytem": {}}, "sytem: unknown key; known here: main, seed, system"),
        (as_mapping()["main"], "policy: unknown key"),
        ({"main": {**as_mapping()["main"], "polcy": {}}}, "did you mean 'policy'"),
        ({**as_mapping(), "system": {"coordinator": {"stop_timeout_s": 0}}}, "must be above 0"),
    ],
)
def test_a_wrong_configuration_is_refused(cfg: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Coordinator(cfg)


def test_keys_without_a_meaning_here_are_ignored() -> None:
    cfg = as_mapping()
    cfg["system"]["coordinator"].update(host="10.0.0.1", port=5000, operator_server={})
    Coordinator(cfg).close()


def test_default_config() -> None:
    config = Coordinator.default_config()
    assert (config.collector_task_timeout, config.learner_task_timeout) == (30, 600)
    assert config.cfg_type == "CoordinatorDict"


def test_task_state() -> None:
    before = time.time()
    task = TaskState("some task")
    assert task.task_id == "some task"
    assert before <= task.start_time <= time.time()


# ------------------------------------------------------------------------------------- callbacks


def test_items_in_and_out(naive: Coordinator) -> None:
    assert naive.deal_with_learner_get_data("learn", "test", 2, 0) is None
    for n in range(3):
        meta = {"policy_iter": n, "unroll_len": 1, "priority": 1.0, "env_id": n}
        naive.deal_with_collector_send_data("collect", "test", f"data_{n}", meta)
    drawn = naive.deal_with_learner_get_data("learn", "test", 3, 10)
    assert drawn is not None
    assert {d["data_id"] for d in drawn} <= {"data_0", "data_1", "data_2"}
    for d in drawn:
        assert (d["data_id"], d["staleness"]) == (f"data_{d['env_id']}", 10 - d["policy_iter"])
        assert {"replay_unique_id", "replay_buffer_idx", "priority", "use", "IS"} <= d.keys()
    assert naive.deal_with_learner_get_data("learn", "another", 1, 0) is None


def test_priorities_come_back(naive: Coordinator) -> None:
    naive.deal_with_collector_send_data("collect", "test", "d", {"policy_iter": 0})
    (drawn,) = naive.deal_with_learner_get_data("learn", "test", 1, 0) or []
    keys = ("replay_unique_id", "replay_buffer_idx")
    info = {"priority_info": {**{k: [drawn[k]] for k in keys}, "priority": [5.0]}}
    naive.deal_with_learner_send_info("learn", "test", {**info, "learner_step": 8})
    naive.deal_with_learner_send_info("learn", "test", {"priority_info": {}, "learner_step": 9})
    (drawn,) = naive.deal_with_learner_get_data("learn", "test", 1, 9) or []
    assert drawn["priority"] == pytest.approx(5.0)
    assert naive.figures()["train_iter"] == 9


def test_the_end_of_a_learner_task_is_the_end_of_its_buffer(naive: Coordinator) -> None:
    naive.deal_with_collector_send_data("collect", "test", "d", {})
    assert naive.deal_with_learner_get_data("learn", "test", 1, 0) is not None
    naive.deal_with_learner_finish_task("learn", {"learner_step": 12})
    assert naive.deal_with_learner_get_data("learn", "test", 1, 0) is None
    assert naive.system_shutdown_flag
    assert naive.figures()["train_iter"] == 12


def test_results_of_collect_tasks_reach_the_commander(naive: Coordinator) -> None:
    naive.deal_with_collector_finish_task("a", finished())
    assert not naive.system_shutdown_flag
    naive.deal_with_collector_finish_task("b", finished())  # two are the naive commander's goal
    assert naive.system_shutdown_flag


def test_once_shut_down_it_stays_so(naive: Coordinator) -> None:
    """The predecessor's flag was assigned anew by every result."""
    for _ in range(4):
        naive.deal_with_collector_finish_task("a", finished())
    assert naive.system_shutdown_flag


def test_an_evaluation_by_callback_ends_the_run() -> None:
    with Coordinator(experiment()) as coordinator:
        low, high = finished(eval_flag=True), finished(eval_flag=True)
        coordinator.deal_with_collector_finish_task("a", {**low, "reward_raw": [10.0, 20.0]})
        assert not coordinator.system_shutdown_flag
        coordinator.deal_with_collector_finish_task("b", {**high, "reward_raw": [190.0, 210.0]})
        assert coordinator.system_shutdown_flag
        means = [e["mean"] for e in coordinator.figures()["evaluations"]]
    assert means == [15.0, 200.0]


def test_an_evaluation_may_say_its_mean_alone() -> None:
    """DI-engine's commander judges by nothing else."""
    with Coordinator(experiment()) as coordinator:
        done = finished(eval_flag=True, real_episode_count=3)
        with pytest.raises(ReturnError, match="evaluation 'a' is judged by its reward_raw or rew"):
            coordinator.deal_with_collector_finish_task("a", done)
        coordinator.deal_with_collector_finish_task("a", {**done, "reward_mean": 10.0})
        assert not coordinator.system_shutdown_flag
        coordinator.deal_with_collector_finish_task("a", {**done, "reward_mean": np.float32(200)})
        assert coordinator.system_shutdown_flag
        assert [e["mean"] for e in coordinator.figures()["evaluations"]] == [10.0, 200.0]


def test_a_callback_after_the_end_is_counted_and_nothing_more(tmp_path: Path) -> None:
    with Coordinator(experiment(), layout=RunLayout(tmp_path)) as coordinator:
        pass
    coordinator.deal_with_collector_finish_task("a", finished(eval_flag=True, reward_raw=[3.0]))
    assert [e["mean"] for e in coordinator.figures()["evaluations"]] == [3.0]


def test_a_callback_makes_no_worker_of_rank_0() -> None:
    """A result that rank 0 was handed must not make it a collector that gets tasks."""
    world = LocalWorld(1)
    with Coordinator(as_mapping(collector_task_count=9), world.link(0)) as coordinator:
        coordinator.deal_with_collector_finish_task("a", finished())
        coordinator.deal_with_learner_send_info("learn", "test", {"learner_step": 1})
        assert world.link(0).receive(0.0) == []


def test_judging_by_what_was_said(naive: Coordinator) -> None:
    assert naive.deal_with_collector_judge_finish("t", {"collector_done": True}) is True
    assert naive.deal_with_collector_judge_finish("t", {"data_id": "d"}) is False
    assert naive.deal_with_learner_judge_finish("t", {"learner_done": True}) is True
    assert naive.deal_with_learner_judge_finish("t", {}) is False


def test_room_for_collectors() -> None:
    """Space 2 for three collectors; one more, and the third has a task too."""
    world = LocalWorld(4)
    with Coordinator(as_mapping(), world.link(0)) as coordinator:
        for rank in (1, 2, 3):
            world.link(rank).send(0, WorkerReady("collector", "host", rank))
        tasks = collect_tasks(world, coordinator)
        assert len(tasks) == 2
        coordinator.deal_with_increase_collector()
        assert len(collect_tasks(world, coordinator)) == 1
        coordinator.deal_with_decrease_collector()
        coordinator.deal_with_collector_finish_task(tasks[0].task_id, finished())
        assert collect_tasks(world, coordinator) == []


def collect_tasks(world: LocalWorld, coordinator: Coordinator) -> list[CollectTask]:
    """Tasks that a turn of rank 0 sends to the collectors, ranks 1 to 3."""
    coordinator.turn(0.0)
    received = [m for rank in (1, 2, 3) for _, m in world.link(rank).receive(0.0)]
    return [m for m in received if isinstance(m, CollectTask)]


def test_lines_for_the_log(
    naive: Coordinator, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("hpcdi"), "propagate", True)
    with caplog.at_level(logging.INFO, logger="hpcdi"):
        naive.info("as it should be")
        naive.error("as it should not")
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert told == [("INFO", "as it should be"), ("ERROR", "as it should not")]


# ------------------------------------------------------------------------------------------- state


def busy(coordinator: Coordinator, world: LocalWorld) -> None:
    """A learner with a block, some progress, and a task by callback."""
    for message in (WorkerReady("learner", "host", 1), block(1, [6]), admitted(1), demand(1, 4)):
        world.link(1).send(0, message)
    coordinator.turn(0.0)
    coordinator.deal_with_learner_send_info("learn", "mine", {"learner_step": 5})
    coordinator.deal_with_collector_send_data("collect", "mine", "d", {"policy_iter": 1})
    assert any(isinstance(m, LearnTask) for _, m in world.link(1).receive(0.0))


@pytest.mark.parametrize("by_file", [True, False])
def test_state_round_trip(tmp_path: Path, by_file: bool) -> None:
    world, file = LocalWorld(2), tmp_path / "coordinator.h5"
    with Coordinator(experiment(), world.link(0)) as coordinator:
        busy(coordinator, world)
        state = coordinator.state_dict()
    if by_file:
        save_state(file, STATE_KIND, STATE_VERSION, state)
        state = load_state(file, STATE_KIND, STATE_VERSION)
    with Coordinator(experiment()) as again:
        again.load_state_dict(state)
        taken = again.state_dict()
    for key in ("announced", "plan", "commander", "tasks"):
        assert taken[key] == state[key]
    before, after = state["groups"]["main"], taken["groups"]["main"]
    assert {k: v for k, v in after.items() if k != "replay"} == {
        k: v for k, v in before.items() if k != "replay"
    }
    assert (after["env_steps"], after["train_iter"]) == (6, 5)
    assert taken["tasks"].keys() == {"collect"}
    part = before["replay"]["partitions"]["rank1"]
    assert part["blocks"][0]["path"] == "data/1.h5"
    assert np.count_nonzero(part["buffer"]["index"]["mass"]) == 6


def test_the_state_of_one_that_has_done_nothing(tmp_path: Path, naive: Coordinator) -> None:
    """Parts without an entry are there all the same."""
    file = tmp_path / "coordinator.h5"
    save_state(file, STATE_KIND, STATE_VERSION, naive.state_dict())
    naive.load_state_dict(load_state(file, STATE_KIND, STATE_VERSION))
    assert naive.state_dict()["tasks"] == {}


def test_buffers_by_name_are_resumed(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    with Coordinator(as_mapping(), layout=layout) as coordinator:
        coordinator.deal_with_collector_send_data("collect", "test", "d", {"policy_iter": 1})
        coordinator.begin()
        coordinator.end()
    resumed = read_newest(layout)
    assert resumed is not None
    with Coordinator(as_mapping(), layout=layout) as again:
        again.resume(resumed)
        assert again.deal_with_learner_get_data("learn", "test", 1, 0) is not None
        assert again.state_dict()["tasks"].keys() == {"collect", "learn"}


def test_files_of_buffers_by_name_stay_for_the_snapshots_that_name_them(tmp_path: Path) -> None:
    """A resumed run has their items again."""
    layout, cfg, file = RunLayout(tmp_path), as_mapping(), tmp_path / "mine"
    buffer = {"max_use": 1, "enable_track_used_data": True}
    cfg["main"]["policy"]["other"]["replay_buffer"] = buffer
    cfg["system"]["storage"] = {"keep_data": False}
    cfg["system"]["keep_snapshots"] = 1
    file.write_text("of a collector")
    with Coordinator(cfg, layout=layout) as coordinator:
        coordinator.deal_with_collector_send_data("collect", "test", "mine", {"policy_iter": 1})
        coordinator.begin()
        coordinator.turn(0.0)
        assert coordinator.deal_with_learner_get_data("learn", "test", 1, 0) is not None
        coordinator.turn(0.1)
        coordinator.end()
    assert file.exists(), "the run's beginning has its item"
    resumed = read_newest(layout)
    assert resumed is not None
    assert (resumed.published, resumed.lost) == ({}, 0), "it is no block"
    with Coordinator(cfg, layout=layout) as again:
        again.resume(resumed)
        again.turn(0.0)
        assert again.deal_with_learner_get_data("learn", "test", 1, 0) is not None
        again.turn(0.1)
        assert file.exists(), "it may be resumed from there once more"
        keeper = again._keeper
        assert keeper is not None
        name, folder = keeper.new()
        facts = {"env_steps": 0, "learners": []}
        keeper.begin(TakeSnapshot(name, folder), again.state_dict(), facts)
        keeper.complete([Snapshot(name, set())])
        again.end()
    assert not file.exists(), "nothing names it"


def test_buffers_by_name_are_in_the_state(naive: Coordinator) -> None:
    naive.deal_with_collector_send_data("collect", "test", "d", {"policy_iter": 1})
    with Coordinator(as_mapping()) as again:
        again.load_state_dict(naive.state_dict())
        assert again.deal_with_learner_get_data("learn", "test", 1, 0) is not None
