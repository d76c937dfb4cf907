"""What people see of a run: curves, log, progress line, status file, closing summary."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fakes.replay import BLOCK_BYTES, OF_RANK_3, admitted, block, demand, lent, make_buffer
from fakes.scheduler import EVERY_S, INF, TIMEOUTS, Shown, busy, evaluating, experiment
from hpcdi.comm.messages import (
    BlockAdmitted,
    BlockStored,
    Goodbye,
    LearnResult,
    SnapshotPart,
    StopRequest,
    WorkerFailed,
)
from hpcdi.replay.manager import ReplayManager
from hpcdi.roles.coordinator import view
from hpcdi.roles.coordinator.scheduler import Outcome
from hpcdi.roles.coordinator.view import RunRecord, RunView, staleness, status_of, summary
from hpcdi.store.layout import RunLayout
from hpcdi.store.status import StatusFile
from hpcdi.types import SequenceRule
from hpcdi.utils.disk import FLUSH_S
from hpcdi.utils.event_file import TensorBoardWriter
from hpcdi.utils.log import close_log, open_log
from hpcdi.utils.progress import Evaluation, StatusLine

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
        run.hear(2, block(OF_RANK_3 + k, [8]))
        run.hear(1, BlockAdmitted(OF_RANK_3 + k, 0.25, error))
    run.ask(2)
    run.collected(60 - 3 * 8, version=3)
    run.learn_info(10)
    run.scheduler.workers[3].shares = {"wait": 0.125}
    run.look(1000.0)
    latest = {tag: value for tag, value, step in run.curves.points if step == 60}
    assert latest["perf/buffer_items"] == 16
    assert latest["perf/sample_insert_ratio"] == 0.5
    assert latest["perf/policy_lag"] == 7
    assert latest["perf/block_latency_p50_s"] == 0.25
    assert latest["health/blocks_lost"] == 1
    assert latest["perf/idle_frac/rank3"] == 0.125
    assert "perf/idle_frac/rank2" not in latest


def test_samples_are_counted_for_a_step_whatever_they_are_and_whatever_is_relabelled() -> None:
    """As `learn.replay_ratio` counts them; what is given has made no steps, and is learnt from."""
    run = Shown(ready=False)
    run.main.replay = ReplayManager(make_buffer, BLOCK_BYTES, rule=SequenceRule(4, 4))
    for rank in run.ranks:
        run.ready(rank)
    given = dataclasses.replace(block(7, [6]), made_of=0)
    copies = dataclasses.replace(block(OF_RANK_3 + 1, [4, 4, 4], tail=0), made_of=4)
    piece = dataclasses.replace(copies, block_id=OF_RANK_3 + 2, capacity=24)
    more = dataclasses.replace(piece, first_row=12)
    for ready in (given, copies, piece, more):
        run.hear(2, ready)
        run.hear(1, admitted(ready.block_id))
    assert run.main.replay.count() == 2 + 3 * 3
    run.ask(2)
    run.look(1000.0)
    assert run.curves.of("perf/sample_insert_ratio")[-1][0] == 2 * 4 / (6 + 3 * 4)
    assert run.main.replay.figures().admitted == 6 + 3 * 12
    line = summary(run.scheduler, run.record, 1.0, report("coordinator", 0.0))[0]
    assert line.endswith("; 0.44 samples drawn per transition")


def test_of_very_many_ranks_learners_alone_have_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "_RANKS_DRAWN", 2)
    run = Shown()
    run.collected(60)
    for rank in (1, 2, 3):
        run.scheduler.workers[rank].shares = {"wait": 0.125}
    run.look(1000.0)
    tags = {tag for tag, _, _ in run.curves.points if tag.startswith("perf/idle_frac")}
    assert tags == {"perf/idle_frac/rank1"}


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
    run.record.write_learners(run.groups)
    run.record.write_learners(run.groups)
    assert run.curves.of("learner_iter/loss") == [(0.5, 10), (0.5, 11)]


def test_the_end_is_written_however_soon_it_comes() -> None:
    run = Shown()
    run.look(1000.0)  # nothing yet, but the look counts
    run.collected(60)
    run.look(1000.2)
    assert run.curves.points == []
    run.scheduler.stop(Outcome("done", "enough", 0), 1000.3)
    for rank in run.scheduler.workers.not_ended:
        run.hear(rank, Goodbye())
    run.look(1000.4)
    assert run.curves.of("perf/buffer_items") == [(0.0, 60)]


def test_evaluations() -> None:
    run = Shown()
    run.collected(60)
    run.look(1000.0)
    run.evaluated(5.0, 15.0, version=12)
    run.evaluated(version=13)  # no episode ended: nothing to say
    assert run.main.evaluations == [Evaluation(10.0, 5.0, 5.0, 15.0, 2, 12, 60, 1.5)]
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
    assert run.main.evaluations == []


def test_staleness_is_never_negative() -> None:
    run = Shown()
    run.collected(1, version=30)
    assert staleness(run.scheduler) == 0
    run.learn_info(50)
    assert staleness(run.scheduler) == 20


def test_tensorboard_reads_the_curves(tmp_path: Path) -> None:
    run, writer = Shown(), TensorBoardWriter(tmp_path)
    record = RunRecord(writer)
    run.scheduler._observe = record.observe
    run.collected(500, 10.0, 30.0)
    record.look(run.scheduler, 1000.0)
    run.evaluated(100.0, version=3)
    record.look(run.scheduler, 1000.1)
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
    run.hear(1, BlockAdmitted(7, 0.0, "data/7.h5: checksum is wrong"))
    run.learn_info(10)
    run.tick(EVERY_S)
    run.tick(EVERY_S + TIMEOUTS.collector_task_s)
    task_id = run.tasks[2].task_id
    told = [line["message"] for line in lines(log) if line["level"] == "WARNING"]
    assert told == [
        "rank 1 lost a block: data/7.h5: checksum is wrong",
        f"rank 2 was ordered to end task {task_id} 30 s ago and has not; another is asked",
    ]


def test_a_block_that_is_read_from_its_shard_instead_is_not_called_lost(log: Path) -> None:
    run = Shown()
    run.ask(1)
    run.hear(2, lent(7, [5]))
    run.hear(2, BlockStored(7, block(7, [5]).shard))
    for error in ("is not lent any more", ""):
        run.hear(1, admitted(7, error))
    assert run.main.replay.count() == 5
    assert "lost a block" not in log.read_text()


# -------------------------------------------------------------------------------------------- view


def test_figures_of_a_run_that_did_nothing_are_plain_data() -> None:
    view, run = RunView(experiment(), None, is_terminal=False), Shown()
    figures = view.figures(run.scheduler)
    assert json.loads(json.dumps(figures, allow_nan=False)).keys() == figures.keys()
    assert figures["block_latency_p50_s"] is figures["block_latency_p99_s"] is None
    assert figures["ranks"].keys() == {"0"}
    view.close(run.scheduler)
    view.close(run.scheduler)


def test_figures_are_what_was_counted() -> None:
    view, run = RunView(experiment(), None, is_terminal=False), Shown()
    run.scheduler._observe = view.observe
    for k in (1, 2):
        run.hear(2, block(OF_RANK_3 + k, [4]))
        run.hear(1, admitted(OF_RANK_3 + k))
    run.hear(1, demand(2, 4))
    run.collected(30, 1.0, 2.0)
    run.learn_info(9)
    run.evaluated(4.0)
    view.look(run.scheduler)
    figures = view.figures(run.scheduler)
    expected = {
        "env_steps": 38, "train_iter": 9, "episodes": 2, "items_admitted": 8, "samples_drawn": 8,
        "blocks": 3, "blocks_lost": 0, "data_bytes": 3000, "block_latency_p50_s": 0.01,
    }  # fmt: skip
    assert {key: figures[key] for key in expected} == expected
    assert [e["mean"] for e in figures["evaluations"]] == [4.0]
    assert np.isfinite(figures["elapsed_s"])


def progress_line(
    *, is_terminal: bool = False, limits: tuple[float, float] = (INF, INF), interval_s: float = 10.0
) -> StatusLine:
    return StatusLine(is_terminal=is_terminal, interval_s=interval_s, limits=limits, started=1000.0)


def refresh(line: StatusLine, run: Shown, now: float) -> None:
    line.refresh(lambda: status_of(run.scheduler, run.record), run.main.evaluations, now)


# -------------------------------------------------------------------------------------- the line


def test_the_first_line() -> None:
    run = Shown()
    text = progress_line().text(status_of(run.scheduler, run.record), 1000.0)
    assert text == "[00:00] env 0 (0/s) | train 0 (0/s) | buffer 0/100"


def test_a_line_of_a_busy_run() -> None:
    run = busy()
    text = progress_line().text(status_of(run.scheduler, run.record), 1065.9)
    assert text == (
        "[01:05] env 12.3k (2000/s) | train 600 (150/s) | buffer 0/100 | staleness 10 | return 20.0"
    )


@pytest.mark.parametrize(
    ("limits", "eta"),
    [
        ((20_345, INF), "ETA 4s"),
        ((INF, 1200), "ETA 4s"),
        ((1e9, 900), "ETA 2s"),
        ((12_000, INF), "ETA 0s"),
        ((INF, INF), ""),
    ],
)
def test_the_nearest_limit_says_how_long_it_will_take(
    limits: tuple[float, float], eta: str
) -> None:
    run = busy()
    text = progress_line(limits=limits).text(status_of(run.scheduler, run.record), 1002.0)
    assert text.rpartition(" | ")[2] == (eta or "return 20.0")


def test_a_line_with_data_an_evaluation_and_the_end() -> None:
    run = Shown()
    run.hear(2, block(1, [8]))
    run.hear(1, admitted(1))
    run.evaluated(100.0, 150.0)
    run.hear(0, StopRequest("SIGINT", 130))
    text = progress_line().text(status_of(run.scheduler, run.record), 1000.0 + 3 * 3600 + 62)
    assert text == ("[3:01:02] env 8 (0/s) | train 0 (0/s) | buffer 8/100 | eval 125.0 | ending")


def test_lines_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    """One plain line an interval; an evaluation at once."""
    run, line = Shown(), progress_line()
    for now in (1000.0, 1009.9):
        refresh(line, run, now)
    assert capsys.readouterr().out == ""
    refresh(line, run, 1010.0)
    told = capsys.readouterr().out
    assert told == "[00:10] env 0 (0/s) | train 0 (0/s) | buffer 0/100\n"
    run.evaluated(9.0, 11.0, version=123)
    run.evaluated(500.0)
    for now in (1011.0, 1011.1):
        refresh(line, run, now)
    assert capsys.readouterr().out == (
        "[00:11] evaluation 1: mean return 10.0 ± 1.0 (9 to 11, 2 episodes), "
        "policy of iteration 123, env step 0\n"
        "[00:11] evaluation 2: mean return 500.0 ± 0.0 (500 to 500, 1 episodes), "
        "policy of iteration 7, env step 0\n"
    )


def test_lines_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """The line moves twice a second; lines of their own go above it."""
    run, line = Shown(), progress_line(is_terminal=True, interval_s=60.0)
    refresh(line, run, 1000.4)
    assert capsys.readouterr().out == ""
    refresh(line, run, 1000.5)
    told = capsys.readouterr().out
    assert told.startswith("\r\x1b[K[00:00] env 0")
    assert not told.endswith("\n")
    line.say("by the way")
    assert capsys.readouterr().out == "\r\x1b[Kby the way\n"


# ----------------------------------------------------------------------------------- the summary


def report(role: str, cpu: float, **shares: float) -> dict[str, Any]:
    return {"role": role, "cpu": cpu, "shares": shares, "memory_bytes": 1}


def test_the_summary_of_nothing() -> None:
    run = Shown()
    assert summary(run.scheduler, run.record, 0.4, report("coordinator", 0.0)) == [
        "  0 env steps and 0 train iterations in 0s; 0 episodes; 0.00 samples drawn per transition",
        "  nothing was learnt: the run ended before the first train iteration",
        "  rank 0    coordinator cpu   0%  ",
    ]


def test_the_summary_of_a_run() -> None:
    run = busy()
    for k in (1, 2, 3):
        run.hear(2, block(OF_RANK_3 + k, [8]))
        error = "torn" if k == 3 else ""
        run.hear(1, BlockAdmitted(OF_RANK_3 + k, 0.010 * k, error))
    run.hear(1, demand(2, 4))
    run.evaluated(5.0, version=3)
    run.look(1003.5)
    run.evaluated(150.0, 170.0, version=500)
    run.evaluated(20.0, version=600)
    run.hear(0, StopRequest("SIGINT", 130))
    run.hear(2, Goodbye(report("collector", 0.984, env=0.5, policy=0.3, wait=0.004, record=0.2)))
    run.hear(1, Goodbye(report("learner", 1.25, train=1.0)))
    told = summary(run.scheduler, run.record, 75.0, report("coordinator", 0.05, wait=0.9))
    assert told == [
        "  12.4k env steps and 600 train iterations in 1m15s; 3 episodes; "
        "0.50 samples drawn per transition",
        "  data: 5 blocks, 4.9 KiB; from a full block to learnable p50 15 ms",
        "  best evaluation: mean return 160.0 at env step 12.4k, policy of iteration 500",
        "  1 block could not be read; the log says why",
        "  rank 0    coordinator cpu   5%  wait 90%",
        "  rank 1    learner    cpu 125%  train 100%",
        "  rank 2    collector  cpu  98%  env 50%, policy 30%, record 20%",
    ]


def test_a_rank_that_says_nothing_of_itself() -> None:
    run = Shown()
    run.hear(0, StopRequest("SIGINT", 130))
    run.hear(3, Goodbye())
    told = summary(run.scheduler, run.record, 1.0, report("coordinator", 0.0))
    assert told[-1] == "  rank 3    ?          cpu   0%  "


def status_file(path: Path) -> StatusFile:
    return StatusFile(path, (INF, INF), 195.0)


def refresh_file(file: StatusFile, run: Shown, now: float) -> None:
    file.refresh(
        lambda: status_of(run.scheduler, run.record), run.main.evaluations, now,
        at_once=run.scheduler.finished,
    )  # fmt: skip


def held_by(path: Path, run: Shown, now: float = 1002.0) -> dict[str, Any]:
    refresh(status_file(path), run, now)
    return dict(json.loads(path.read_text()))


def test_a_busy_run(tmp_path: Path) -> None:
    held = held_by(tmp_path / "status.json", busy())
    assert held["phase"] == "running"
    assert (held["env_steps"], held["train_iter"], held["episodes"]) == (12345, 600, 3)
    assert (held["env_steps_per_s"], held["train_iters_per_s"]) == (2000.0, 150.0)
    assert held["return_mean"] == 20.0
    assert (held["staleness"], held["data_bytes"]) == (10, 2000)
    assert held["buffer"] == {"held": 0, "capacity": 100, "blocked": held["buffer"]["blocked"]}
    assert held["idle"]["2"] == 0.0  # its ledger has no wait
    assert "error" not in held


def test_a_run_that_waits_for_its_ranks(tmp_path: Path) -> None:
    run = Shown(ready=False)
    for rank in (1, 2):
        run.ready(rank)
    run.ask(2)
    assert run.groups.blocked
    held = held_by(tmp_path / "status.json", run)
    assert (held["phase"], held["buffer"]["blocked"]) == ("starting", "")


def test_a_failure_is_told_with_its_rank_and_traceback(tmp_path: Path) -> None:
    run = busy()
    run.hear(2, WorkerFailed("collector", "node2", "ValueError: 1", "Traceback ...", 1))
    held = held_by(tmp_path / "status.json", run)
    assert held["phase"] == "stopping"
    assert held["error"] == {
        "rank": 2, "role": "collector", "host": "node2", "error": "ValueError: 1",
        "traceback": "Traceback ...", "exit_code": 1,
    }  # fmt: skip


def test_the_last_word_is_written_though_it_is_not_due(tmp_path: Path) -> None:
    run, path = busy(), tmp_path / "status.json"
    file = status_file(path)
    refresh_file(file, run, 1002.0)
    run.hear(2, WorkerFailed("collector", "node2", "ValueError: 1", "Traceback ...", 1))
    refresh_file(file, run, 1002.1)
    assert json.loads(path.read_text())["phase"] == "running"  # a second has not passed
    for rank in (1, 3):
        run.hear(rank, Goodbye({}))
    refresh_file(file, run, 1002.2)
    assert json.loads(path.read_text())["phase"] == "finished"


def test_advice_is_given_once_and_stands_in_the_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exploration falls for 1000 steps, and learning begins at step 3000."""
    config = experiment()
    config = dataclasses.replace(
        config, policy=dataclasses.replace(config.policy, random_collect_size=3000)
    )
    layout, run = RunLayout(tmp_path), busy()
    view = RunView(config, layout, is_terminal=False)
    view.look(run.scheduler)
    view._advice_at = 0.0
    view.look(run.scheduler)
    assert capsys.readouterr().out.count("advice: exploration has fallen to 0 before") == 1
    view.close(run.scheduler)
    (said,) = view.figures(run.scheduler)["advice"].values()
    assert view.summary(run.scheduler)[-1] == f"  advice       {said}"
    assert json.loads(layout.status_file.read_text())["advice"] == [said]


def test_what_a_resumed_run_does_not_do_again_is_in_its_curves_at_once(tmp_path: Path) -> None:
    """After `kill -9`: evaluations, and what a snapshot has counted."""
    layout, run = RunLayout(tmp_path), busy()
    view = RunView(experiment(), layout, is_terminal=False)

    def wait_for(name: str) -> None:
        until = time.monotonic() + FLUSH_S - 1.0
        while not layout.curves_file.is_file() or name not in layout.curves_file.read_text():
            assert time.monotonic() < until
            time.sleep(0.01)

    run.evaluated(3.0)
    view.look(run.scheduler)
    wait_for("evaluation_return")
    view.curves.add_scalar("mine_step/score", 1.0, 5)
    view.observe(1, SnapshotPart("snapshot_000005", {}, 5, 0.0))
    wait_for("score")
    view.close(run.scheduler)


def test_an_evaluation_that_the_end_has_cut_has_taken_its_time() -> None:
    view, run = RunView(experiment(), None, is_terminal=False), evaluating()
    began = run.scheduler.workers[2].started
    while_on = view._used(run.scheduler, began + 30.0)
    assert (while_on.evaluating_s, while_on.evaluations, while_on.under_way) == (30.0, 0, 1)
    run.scheduler.handle(StopRequest("SIGINT", 130), 0, began + 31.0)
    run.scheduler.workers[2].task = None
    assert not run.scheduler.is_on
    assert view._used(run.scheduler, began + 32.0).evaluating_s == 32.0
