"""TensorBoard's event files: curves are read back, and dropped after a checkpoint."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from hpcdi.utils.curves import TensorBoardWriter, drop_events_after


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder)).Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_scalars_are_read_back_by_tensorboard(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path / "tb")
    for step in range(5):
        writer.add_scalar("learner_iter/loss", step / 2, step)
    writer.add_scalar("collector_step/reward", np.float32(7.5), np.int64(3))  # type: ignore[arg-type]
    writer.close()
    assert curve(tmp_path / "tb", "learner_iter/loss") == [(k, k / 2) for k in range(5)]
    assert curve(tmp_path / "tb", "collector_step/reward") == [(3, 7.5)]


def test_a_page_of_charts_is_what_tensorboard_shows(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    writer.add_page(
        "run", {"mean return": ["evaluator_step/reward_mean"], "idle": ["perf/idle_.*"]}
    )
    writer.add_scalar("evaluator_step/reward_mean", 7.5, 3)
    writer.close()
    events, tag = EventAccumulator(str(tmp_path)).Reload(), "custom_scalars__config__"
    assert events.SummaryMetadata(tag).plugin_data.plugin_name == "custom_scalars"
    (held,) = events.Tensors(tag)
    (page,) = Layout.FromString(held.tensor_proto.string_val[0]).category
    assert (page.title, [chart.title for chart in page.chart]) == ("run", ["mean return", "idle"])
    assert list(page.chart[1].multiline.tag) == ["perf/idle_.*"]


def test_flushed_scalars_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    writer.add_scalar("x", 1.0, 0)
    writer.flush()
    try:
        assert curve(tmp_path, "x") == [(0, 1.0)]
    finally:
        writer.close()


def test_flushing_now_and_then_needs_no_call(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path, flush_s=-1.0)  # always due
    writer.add_scalar("x", 1.0, 0)
    try:
        assert curve(tmp_path, "x") == [(0, 1.0)]
    finally:
        writer.close()


def test_going_on_from_a_checkpoint_drops_what_was_drawn_after_it(tmp_path: Path) -> None:
    first = TensorBoardWriter(tmp_path)
    for step in range(6):
        first.add_scalar("learner_iter/loss", 100.0 + step, step)
        first.add_scalar("learner_step/loss", 100.0 + step, 64 * step)
    saved_at = time.time()
    for step in range(5, 10):  # the checkpoint's own iteration, too
        first.add_scalar("learner_iter/loss", 0.0, step)
        first.add_scalar("learner_step/loss", 0.0, 64 * step)
    first.close()
    (file,) = tmp_path.iterdir()
    file = file.rename(tmp_path / "events.out.tfevents.0000000001.earlier")  # another second
    with file.open("ab") as torn:
        torn.write(b"torn")
    second = TensorBoardWriter(tmp_path)
    drop_events_after(tmp_path, saved_at)
    second.add_scalar("learner_iter/loss", 206.0, 6)
    second.close()
    kept = [(step, 100.0 + step) for step in range(6)]
    assert curve(tmp_path, "learner_iter/loss") == [*kept, (6, 206.0)]
    assert curve(tmp_path, "learner_step/loss") == [(64 * step, value) for step, value in kept]
    assert not list(tmp_path.glob(".*"))


def test_closing_a_writer_twice_is_fine_and_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    writer = TensorBoardWriter(tmp_path)
    writer.close()
    writer.close()
    assert threading.active_count() == before
