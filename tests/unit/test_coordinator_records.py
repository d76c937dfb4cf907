"""What rank 0 keeps and writes of what it hears: curves, numbers, lines of the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fakes.replay import admitted, block, demand
from fakes.scheduler import EVERY_S, TIMEOUTS, Shown, experiment
from hpcdi.comm.messages import BlockAdmitted, Goodbye, LearnResult, WorkerFailed
from hpcdi.errors import StoreError
from hpcdi.store.layout import RunLayout
from hpcdi.utils.curves import TensorBoardWriter
from hpcdi.utils.log import close_log, open_log
from hpcdi.worker.coordinator.lifecycle import Outcome
from hpcdi.worker.coordinator.records import Evaluation, RunRecord
from hpcdi.worker.coordinator.view import RunView

COLLECTOR = {
    "reward_mean": 20.0, "reward_std": 10.0, "reward_max": 30.0, "reward_min": 10.0,
    "episode_count": 2, "avg_step_per_episode": 20.0, "avg_envstep_per_sec": 0.0,
    "total_envstep_count": 500,
}  # fmt: skip


# ------------------------------------------------------------------------------------------ curves


def test_nothing_is_written_before_the_first_step() -> None:
    run = Shown()
    run.look(1000.0)
    run.look(1002.0)
    assert run.curves.points == []


def test_curves_of_collecting() -> None:
    """The predecessor's tags, on both axes, about once a second."""
    run = Shown()
    run.collected(500, 10.0, 30.0)
    run.learn_info(40)
    run.curves.points.clear()
    run.look(1000.0)
    for name, value in COLLECTOR.items():
        assert run.curves.of(f"collector_step/{name}") == [(value, 500)], name
        assert run.curves.of(f"collector_iter/{name}") == [(value, 40)], name
    run.look(1000.9)
    assert len(run.curves.of("collector_step/reward_mean")) == 1
    run.collected(250)
    run.look(1001.0)
    assert run.curves.of("collector_step/avg_envstep_per_sec")[-1] == (250.0, 750)


def test_returns_are_of_the_last_hundred_episodes() -> None:
    run = Shown()
    run.collected(5, *([0.0] * 150))
    run.collected(5, *([1.0] * 60))
    run.look(1000.0)
    assert run.curves.of("collector_step/reward_mean") == [(0.6, 10)]
    assert run.curves.of("collector_step/episode_count") == [(210.0, 10)]


def test_without_an_episode_there_are_no_returns() -> None:
    run = Shown()
    run.collected(5)
    run.look(1000.0)
    tags = {tag for tag, _, _ in run.curves.points}
    assert not any(tag.startswith("collector") for tag in tags)
    assert tags == {
        "perf/env_steps_per_s", "perf/train_iters_per_s", "perf/sample_insert_ratio",
        "perf/policy_lag", "perf/buffer_items", "health/blocks_lost",
        "health/blocks_skipped", "health/priorities_stale",
    }  # fmt: skip


def test_curves_of_the_system() -> None:
    run = Shown()
    for k, error in [(1, ""), (2, ""), (3, "torn")]:
        run.hear(2, block(k, [8]))
        run.hear(1, BlockAdmitted("buffer", k, 0.25, error))
    run.ask(2)
    run.collected(60, version=3)
    run.learn_info(10)
    run.record.shares[3] = {"wait": 0.125}
    run.look(1000.0)
    latest = {tag: value for tag, value, step in run.curves.points if step == 60}
    assert latest["perf/buffer_items"] == 16
    assert latest["perf/sample_insert_ratio"] == 0.5
    assert latest["perf/policy_lag"] == 7
    assert latest["perf/block_latency_p50_s"] == 0.25
    assert latest["health/blocks_lost"] == 1
    assert latest["perf/idle_frac/rank3"] == 0.125
    assert "perf/idle_frac/rank2" not in latest


def test_curves_of_learning() -> None:
    run = Shown()
    run.collected(60)
    run.look(1000.0)
    for train_iter in (8, 9, 10):  # faster than curves are written
        run.learn_info(train_iter)
    assert run.curves.of("learner_iter/loss") == []
    run.look(1001.5)
    assert run.curves.of("learner_iter/loss") == [(0.5, 10)]
    assert run.curves.of("learner_step/loss") == [(0.5, 60)]
    run.learn_info(11)
    run.record.write_learner()
    run.record.write_learner()
    assert run.curves.of("learner_iter/loss") == [(0.5, 10), (0.5, 11)]


def test_the_end_is_written_however_soon_it_comes() -> None:
    run = Shown()
    run.look(1000.0)  # nothing yet, but the look counts
    run.collected(60)
    run.look(1000.2)
    assert run.curves.points == []
    run.scheduler.stop(Outcome("done", "enough", 0), 1000.3)
    for rank in run.scheduler.life.silent:
        run.hear(rank, Goodbye())
    run.look(1000.4)
    assert run.curves.of("perf/buffer_items") == [(0.0, 60)]


def test_evaluations() -> None:
    run = Shown()
    run.collected(60)
    run.look(1000.0)
    run.evaluated(5.0, 15.0, version=12)
    run.evaluated(version=13)  # no episode ended: nothing to say
    assert run.record.evaluations == [Evaluation(10.0, 5.0, 5.0, 15.0, 2, 12, 60)]
    values = {
        "reward_mean": 10.0, "reward_std": 5.0, "reward_max": 15.0, "reward_min": 5.0,
        "episode_count": 2, "evaluate_time": 1.5,
    }  # fmt: skip
    for name, value in values.items():
        assert run.curves.of(f"evaluator_iter/{name}") == [(value, 12)]
        assert run.curves.of(f"evaluator_step/{name}") == [(value, 60)]


def test_results_of_collecting_are_no_evaluations() -> None:
    run = Shown()
    run.result(2, returns=(500.0,))
    assert run.record.evaluations == []


def test_staleness_is_never_negative() -> None:
    run = Shown()
    run.collected(1, version=30)
    assert run.record.staleness(run.scheduler) == 0
    run.learn_info(50)
    assert run.record.staleness(run.scheduler) == 20


def test_tensorboard_reads_the_curves(tmp_path: Path) -> None:
    run, writer = Shown(), TensorBoardWriter(tmp_path)
    record = RunRecord(writer)
    run.scheduler._observe = record.observe
    run.collected(500, 10.0, 30.0)
    record.look(run.scheduler, 1000.0)
    run.evaluated(100.0, version=3)
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {f"collector_{axis}/{name}" for axis in ("iter", "step") for name in COLLECTOR} <= tags
    (point,) = events.Scalars("collector_step/reward_mean")
    assert (point.step, point.value) == (500, 20.0)
    (point,) = events.Scalars("evaluator_iter/reward_mean")
    assert (point.step, point.value) == (3, 100.0)


# --------------------------------------------------------------------------------------------- log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "rank00000.jsonl"
    open_log(path, 0, "coordinator")
    yield path
    close_log()
    logging.getLogger("hpcdi").propagate = True


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_life_of_workers_is_logged(log: Path) -> None:
    run = Shown()
    for rank in (1, 2, 3):
        run.ready(rank)
    run.evaluated(3.0)
    run.hear(1, LearnResult(run.tasks[1].task_id, 77))
    run.hear(2, Goodbye({"cpu": 0.5}))
    run.hear(3, WorkerFailed("collector", "other host", "EnvError: gone", "Traceback\n  ..."))
    told = {line["message"]: line for line in lines(log)}
    assert told["worker ready"]["about_rank"] == 3
    assert told["worker ready"]["worker"]["pid"] == 103
    assert told["evaluation"]["evaluation"]["mean"] == 3.0
    assert told["learner task ended"]["train_iter"] == 77
    assert told["goodbye"]["report"] == {"cpu": 0.5}
    failed = told["worker failed: EnvError: gone"]
    assert failed["worker"]["traceback"] == "Traceback\n  ..."
    assert (failed["about_rank"], failed["worker"]["host"]) == (3, "other host")
    for line in lines(log):  # the line is rank 0's, whomever it is about
        assert (line["rank"], line["role"]) == (0, "coordinator")
        assert line["host"] != "other host"


def test_what_goes_wrong_is_a_warning(log: Path) -> None:
    run = Shown()
    run.hear(1, BlockAdmitted("buffer", 7, 0.0, "data/7.h5: checksum is wrong"))
    run.learn_info(10)
    run.tick(EVERY_S)
    run.tick(EVERY_S + TIMEOUTS.collector_task_s)
    task_id = run.tasks[2].task_id
    told = [line["message"] for line in lines(log) if line["level"] == "WARNING"]
    assert told == [
        "rank 1 lost a block: data/7.h5: checksum is wrong",
        f"rank 2 was told to end task {task_id} 30 s ago and has not; another is asked",
    ]


# -------------------------------------------------------------------------------------------- view


def test_figures_of_a_run_that_did_nothing_are_plain_data() -> None:
    view, run = RunView(experiment(), None, is_terminal=False), Shown()
    figures = view.figures(run.scheduler)
    assert json.loads(json.dumps(figures, allow_nan=False)).keys() == figures.keys()
    assert figures["block_latency_p50_s"] is figures["block_latency_p99_s"] is None
    assert figures["ranks"].keys() == {"0"}
    view.close()
    view.close()


def test_figures_are_what_was_counted() -> None:
    view, run = RunView(experiment(), None, is_terminal=False), Shown()
    run.scheduler._observe = view.observe
    for k in (1, 2):
        run.hear(2, block(k, [4]))
        run.hear(1, admitted(k))
    run.hear(1, demand(2, 4))
    run.collected(30, 1.0, 2.0)
    run.learn_info(9)
    run.evaluated(4.0)
    view.look(run.scheduler)
    figures = view.figures(run.scheduler)
    expected = {
        "env_steps": 30, "train_iter": 9, "episodes": 2, "items_admitted": 8, "samples_drawn": 8,
        "blocks": 2, "blocks_lost": 0, "data_bytes": 2000, "block_latency_p50_s": 0.01,
    }  # fmt: skip
    assert {key: figures[key] for key in expected} == expected
    assert [e["mean"] for e in figures["evaluations"]] == [4.0]
    assert np.isfinite(figures["elapsed_s"])


def test_a_path_that_leads_out_of_the_run_folder_is_refused(tmp_path: Path) -> None:
    view = RunView(experiment(), RunLayout(tmp_path), is_terminal=False)
    ready = block(1, [4])
    object.__setattr__(ready.shard, "path", "../elsewhere.h5")
    with pytest.raises(StoreError, match=r"\.\./elsewhere\.h5: leads out of the run folder"):
        view.observe(2, ready)
    view.close()
