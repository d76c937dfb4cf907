"""TensorBoard's event files: curves are read back, and dropped after a checkpoint."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from hpcdi.utils.event_file import TensorBoardWriter, drop_events_after


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


@pytest.mark.parametrize(
    "values", [[1.0, 1.0 + 1e-15], [1e17] * 3, [-1e308, 1e308], [1e308] * 2, [2.0, np.inf]]
)
def test_a_histogram_of_any_numbers_counts_those_that_are_finite(
    tmp_path: Path, values: list[float]
) -> None:
    """Thirty bins between neighbouring numbers ended the run."""
    with TensorBoardWriter(tmp_path) as writer:
        writer.add_histogram("detail/weights", values, 3)
    (drawn,) = EventAccumulator(str(tmp_path)).Reload().Histograms("detail/weights")
    finite = [value for value in values if np.isfinite(value)]
    held = drawn.histogram_value
    assert (drawn.step, sum(held.bucket), held.num) == (3, len(finite), len(finite))
    assert (held.min, held.max) == (min(finite), max(finite))


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
        deadline = time.monotonic() + 20.0
        while not EventAccumulator(str(tmp_path)).Reload().Tags()["scalars"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert curve(tmp_path, "x") == [(0, 1.0)]
    finally:
        writer.close()


def test_going_on_from_a_checkpoint_drops_what_was_drawn_after_it(tmp_path: Path) -> None:
    first = TensorBoardWriter(tmp_path)
    for step in range(6):
        first.add_scalar("learner_iter/loss", 100.0 + step, step)
        first.add_scalar("learner_step/loss", 100.0 + step, 64 * step)
    for step in range(5, 10):  # the checkpoint's own iteration, too
        first.add_scalar("learner_iter/loss", 0.0, step)
        first.add_scalar("learner_step/loss", 0.0, 64 * step)
    first.close()
    (file,) = tmp_path.iterdir()
    file = file.rename(tmp_path / "events.out.tfevents.0000000001.earlier")  # another second
    with file.open("ab") as torn:
        torn.write(b"torn")
    second = TensorBoardWriter(tmp_path)
    drop_events_after(tmp_path, 64 * 5, 5)
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


def test_curves_that_come_after_the_close_are_ignored(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    writer.close()
    before = threading.active_count()
    writer.add_scalars("chart", {"curve": 1.0}, 0)
    assert threading.active_count() == before, "no file is begun"


def test_a_clock_that_was_set_back_costs_no_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second job's host may be hours behind the first one's, or ahead."""
    for hours in (0, -2, 2):
        monkeypatch.setattr("time.time", lambda hours=hours: 1.8e9 + 3600 * hours)
        writer = TensorBoardWriter(tmp_path)
        first = {0: 0, -2: 4, 2: 8}[hours]
        for step in range(first, first + 6):
            writer.add_scalar("learner_iter/loss", step, step)
            writer.add_scalar("bot_learner_iter/loss", step, step + 100)
            writer.add_scalar("perf/rate", step, 64 * step)
        writer.close()
        last = first + 3
        drop_events_after(tmp_path, 64 * last, last, {"bot": last + 100, "main": last})
    steps = list(range(12))
    assert sorted(step for step, _ in curve(tmp_path, "learner_iter/loss")) == steps
    assert sorted(step for step, _ in curve(tmp_path, "perf/rate")) == [64 * s for s in steps]
    assert sorted(step for step, _ in curve(tmp_path, "bot_learner_iter/loss")) == [
        step + 100 for step in steps
    ]


def test_each_curve_of_a_chart_keeps_its_point_at_the_checkpoint(tmp_path: Path) -> None:
    with TensorBoardWriter(tmp_path) as writer:
        for step in range(6):
            writer.add_scalars("learner_iter/parts", {"actor": step, "critic": 2 * step}, step)
    drop_events_after(tmp_path, 0, 3)
    for name, factor in (("actor", 1), ("critic", 2)):
        drawn = curve(tmp_path / f"learner_iter_parts_{name}", "learner_iter/parts")
        assert drawn == [(step, factor * step) for step in range(4)]


def test_curves_of_a_buffer_are_cut_by_iterations(tmp_path: Path) -> None:
    with TensorBoardWriter(tmp_path) as writer:
        for step in (50, 150, 250):
            writer.add_scalar("buffer_rank1_iter/use_avg", 1.0, step)
    drop_events_after(tmp_path, 100, 200)
    assert [step for step, _ in curve(tmp_path, "buffer_rank1_iter/use_avg")] == [50, 150]


def test_curves_of_an_exploiters_buffer_are_cut_by_its_iterations(tmp_path: Path) -> None:
    with TensorBoardWriter(tmp_path) as writer:
        for step in (50, 450, 550):
            writer.add_scalar("bot_2_buffer_rank3_iter/use_avg", 1.0, step)
    drop_events_after(tmp_path, 10_000, 100, {"main": 100, "bot_2": 500})
    assert [step for step, _ in curve(tmp_path, "bot_2_buffer_rank3_iter/use_avg")] == [50, 450]


def test_curves_of_a_rank_of_its_own_are_cut_by_iterations(tmp_path: Path) -> None:
    own, of_rank_0 = "detail/callbacks/x_rank2", "detail/callbacks/y_rank2"
    direct = "detail/x_rank2"  # by Context.add_scalar
    in_folders = {"callbacks_rank2": [own, direct, "callbacks_step/x"], "": [of_rank_0]}
    for folder, tags in in_folders.items():
        with TensorBoardWriter(tmp_path / folder) as writer:
            for step in (8, 10, 12, 24, 25, 25, 26):
                for tag in tags:
                    writer.add_scalar(tag, step, step)
    drop_events_after(tmp_path, 10, 25)
    drawn = tmp_path / "callbacks_rank2"
    for tag in (own, direct):
        assert [step for step, _ in curve(drawn, tag)] == [8, 10, 12, 24, 25]
    assert [step for step, _ in curve(drawn, "callbacks_step/x")] == [8, 10]
    assert [step for step, _ in curve(tmp_path, of_rank_0)] == [8, 10]
