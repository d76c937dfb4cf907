"""What a buffer reports of itself: the right numbers, where they belong, and no more work."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fakes.clock import Clock
from hpcdi.replay.monitor import PeriodicThruput, Reports, SampledData
from hpcdi.types import Array
from hpcdi.utils.event_file import TensorBoardWriter
from hpcdi.utils.log import LOGGER
from hpcdi.worker.replay_buffer import AdvancedReplayBuffer, NaiveReplayBuffer


class Calls:
    """A writer that remembers."""

    def __init__(self) -> None:
        self.made: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.made.append((tag, value, step))

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def curve(self, tag: str) -> list[tuple[int, float]]:
        return [(step, value) for each, value, step in self.made if each == tag]

    def reports(self, group: str) -> list[dict[str, float]]:
        """By step, in order: what was said then."""
        steps = dict.fromkeys(step for tag, _, step in self.made if f"_{group}/" in tag)
        return [
            {tag.partition("/")[2]: value for tag, value, at in self.made if at == step}
            for step in steps
        ]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What the logger of hpcdi is told."""
    level, propagate = LOGGER.level, LOGGER.propagate
    LOGGER.propagate = True
    with caplog.at_level(logging.INFO, LOGGER.name):
        yield caplog
    LOGGER.setLevel(level)
    LOGGER.propagate = propagate


def marks(*values: float) -> dict[str, Array]:
    return {"use": np.array(values), "priority": np.array(values) * 10}


def draws(data: SampledData, count: int, start: int = 0) -> list[int]:
    """Draw `count` times; gives the draws that were asked for their marks."""
    asked = []
    for n in range(start, start + count):
        if data.is_next_reported():
            asked.append(n)
            data.add(marks(n, n + 2), n)
    return asked


def test_a_writer_gets_a_point_for_each_value() -> None:
    writer = Calls()
    Reports(writer, "mine").write("iter", {"a": 1.5, "b": 2.0}, 7)
    assert writer.made == [("mine_iter/a", 1.5, 7), ("mine_iter/b", 2.0, 7)]


def test_without_a_writer_it_is_a_line_of_the_log(told: pytest.LogCaptureFixture) -> None:
    Reports(None, "mine").write("iter", {"use_avg": 1.23456, "use_max": 20000.0}, 7)
    (record,) = told.records
    assert record.getMessage() == "mine at iter 7: use_avg 1.235, use_max 2e+04"
    assert (record.name, record.levelno) == ("hpcdi", logging.INFO)


def test_a_report_is_mean_largest_and_smallest() -> None:
    writer = Calls()
    data = SampledData(Reports(writer, "b"), average_range=1, print_freq=1)
    assert data.is_next_reported()
    data.add({"use": np.array([1, 2, 6]), "staleness": np.array([-1, 5, 5])}, 3)
    assert writer.made == [
        ("b_iter/use_avg", 3.0, 3), ("b_iter/use_max", 6.0, 3), ("b_iter/use_min", 1.0, 3),
        ("b_iter/staleness_avg", 3.0, 3), ("b_iter/staleness_max", 5.0, 3),
        ("b_iter/staleness_min", -1.0, 3),
    ]  # fmt: skip
    assert all(type(value) is float for _, value, _ in writer.made)


def test_a_report_is_the_mean_of_the_last_draws_and_the_others_cost_nothing() -> None:
    writer = Calls()
    data = SampledData(Reports(writer, "b"), average_range=3, print_freq=10)
    assert draws(data, 9) == [7, 8]
    assert writer.made == []
    assert draws(data, 21, start=9) == [9, 17, 18, 19, 27, 28, 29]
    assert writer.curve("b_iter/use_min") == [(9, 8.0), (19, 18.0), (29, 28.0)]
    assert writer.curve("b_iter/use_max") == [(9, 10.0), (19, 20.0), (29, 30.0)]
    assert writer.curve("b_iter/priority_avg") == [(9, 90.0), (19, 190.0), (29, 290.0)]


def test_a_report_may_look_back_beyond_the_one_before() -> None:
    writer = Calls()
    data = SampledData(Reports(writer, "b"), average_range=4, print_freq=2)
    assert draws(data, 6) == [0, 1, 2, 3, 4, 5]
    assert writer.curve("b_iter/use_min") == [(1, 0.5), (3, 1.5), (5, 3.5)]


def test_traffic_is_reported_when_it_is_time() -> None:
    writer, clock = Calls(), Clock()
    thruput = PeriodicThruput(Reports(writer, "b"), 60, clock)
    assert not thruput.note(pushed=100, drawn=0)
    clock.now += 59.5
    assert not thruput.note(pushed=0, drawn=30)
    clock.now += 0.5
    assert thruput.note(pushed=20, drawn=0)
    thruput.report(items=110)
    clock.now += 120
    assert thruput.note(pushed=0, drawn=240)
    thruput.report(items=90)
    assert not thruput.note(pushed=0, drawn=0)
    assert writer.reports("sec") == [
        {"push_count": 120, "sample_count": 30, "remain_count": 110,
         "push_per_s": 2.0, "sample_per_s": 0.5},
        {"push_count": 0, "sample_count": 240, "remain_count": 90,
         "push_per_s": 0.0, "sample_per_s": 2.0},
    ]  # fmt: skip
    assert [step for step, _ in writer.curve("b_sec/push_count")] == [60, 180]


def test_no_traffic_is_no_report() -> None:
    writer, clock = Calls(), Clock()
    thruput = PeriodicThruput(Reports(writer, "b"), 60, clock)
    clock.now += 1000
    assert thruput.note(0, 0)
    thruput.report(items=5)
    assert writer.made == []


def test_a_report_at_once_divides_by_no_zero() -> None:
    writer = Calls()
    thruput = PeriodicThruput(Reports(writer, "b"), 60, Clock())
    thruput.note(1, 0)
    thruput.report(items=1)
    assert np.isfinite(writer.curve("b_sec/push_per_s")[0][1])


def watched(writer: Any, **monitor: Any) -> AdvancedReplayBuffer:
    cfg = {"replay_buffer_size": 8, "monitor": monitor}
    return AdvancedReplayBuffer(cfg, writer, "exp", "mine", rng=np.random.default_rng(0))


def fill(buffer: Any) -> None:
    buffer.push([{"n": n, "priority": 1.0 + n, "collect_iter": n} for n in range(4)])


def test_a_buffer_reports_what_it_drew() -> None:
    writer = Calls()
    buffer = watched(writer, sampled_data_attr={"print_freq": 5, "average_range": 2})
    fill(buffer)
    drawn = [buffer.sample(4, 10 + k) or [] for k in range(5)]
    (report,) = writer.reports("iter")
    assert {step for _, _, step in writer.made} == {14}
    for name in ("use", "priority", "staleness"):
        seen = [[item[name] for item in items] for items in drawn[-2:]]
        assert report[f"{name}_avg"] == pytest.approx(np.mean(seen))
        assert report[f"{name}_max"] == pytest.approx(np.mean(np.max(seen, axis=1)))
        assert report[f"{name}_min"] == pytest.approx(np.mean(np.min(seen, axis=1)))


def test_draws_that_give_nothing_are_no_draws() -> None:
    writer = Calls()
    buffer = watched(writer, sampled_data_attr={"print_freq": 2, "average_range": 2})
    assert buffer.sample(3, 0) is None
    fill(buffer)
    buffer.sample_batch(3, 1)
    assert buffer.sample(100, 0) is None
    assert writer.made == []
    buffer.sample_batch(3, 2)
    assert {step for _, _, step in writer.made} == {2}


def test_draws_that_are_not_reported_compute_nothing() -> None:
    """Of their priorities and ages nobody asks."""
    buffer: Any = watched(Calls(), sampled_data_attr={"print_freq": 9, "average_range": 1})
    fill(buffer)
    asked: list[int] = []
    buffer._monitor.draws.add = lambda marks, train_iter: asked.append(train_iter)
    for n in range(20):
        buffer.sample_batch(3, n)
    assert asked == [8, 17]


@pytest.mark.parametrize("kind", [AdvancedReplayBuffer, NaiveReplayBuffer])
def test_closing_reports_the_last_traffic_once(kind: Any) -> None:
    writer = Calls()
    buffer = kind({"replay_buffer_size": 3}, writer, "exp", "mine")
    buffer.push([{"n": n} for n in range(4)])
    buffer.push({"n": np.array([4, 5])}, columns=True)
    buffer.sample(3, 0)
    buffer.sample_batch(2, 0)
    assert writer.made == []  # it is not yet time
    buffer.close()
    buffer.close()
    (report,) = writer.reports("sec")
    assert (report["push_count"], report["sample_count"], report["remain_count"]) == (6, 5, 3)
    assert len(writer.made) == 5


def test_a_buffer_reports_its_traffic_as_it_is_used() -> None:
    writer, clock = Calls(), Clock()
    buffer: Any = NaiveReplayBuffer({"replay_buffer_size": 3}, writer, "exp", "mine")
    buffer._monitor = PeriodicThruput(Reports(writer, "mine"), 10, clock)
    for _ in range(30):
        buffer.push([{"n": 1}, {"n": 2}])
        buffer.sample(1, 0)
        clock.now += 1
    assert writer.curve("mine_sec/push_count") == [(10, 22), (20, 20)]
    assert writer.curve("mine_sec/sample_count") == [(10, 10), (20, 10)]
    assert writer.curve("mine_sec/remain_count") == [(10, 3), (20, 3)]


def test_without_a_writer_a_buffer_tells_the_log(told: pytest.LogCaptureFixture) -> None:
    buffer = watched(None, sampled_data_attr={"print_freq": 1, "average_range": 1})
    fill(buffer)
    buffer.sample(2, 9)
    buffer.close()
    drawn, traffic = [record.getMessage() for record in told.records]
    assert drawn.startswith("mine at iter 9: use_avg ")
    counts = r"mine at sec \d+: push_count 4, sample_count 2, remain_count 4, "
    assert re.match(counts, traffic)


def test_tensorboard_reads_the_curves(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    buffer = watched(writer, sampled_data_attr={"print_freq": 2, "average_range": 1})
    fill(buffer)
    for n in range(4):
        buffer.sample_batch(2, n)
    buffer.close()
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    tags = {f"mine_iter/{of}_{how}" for of in ("use", "priority", "staleness")
            for how in ("avg", "max", "min")}  # fmt: skip
    tags |= {f"mine_sec/{name}_count" for name in ("push", "sample", "remain")}
    tags |= {"mine_sec/push_per_s", "mine_sec/sample_per_s"}
    assert set(events.Tags()["scalars"]) == tags
    assert [event.step for event in events.Scalars("mine_iter/use_max")] == [1, 3]
    assert [event.value for event in events.Scalars("mine_sec/push_count")] == [4.0]
    assert [event.value for event in events.Scalars("mine_sec/sample_count")] == [8.0]
