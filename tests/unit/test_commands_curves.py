"""`hpcdi curves`: what TensorBoard would show, in the terminal and as CSV."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

import pytest

from hpcdi import cli
from hpcdi.commands.run_state import axis_of
from hpcdi.utils.curves import TensorBoardWriter, read_curves
from hpcdi.utils.sparkline import sparkline


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with TensorBoardWriter(tmp_path / "run" / "tb") as writer:
        for step in range(4):
            writer.add_scalar("curves/collect_return", 10.0 * step, 100 * step)
        writer.add_scalar("detail/perf/lag", 3.0, 100)
        writer.add_histogram("learner/q", [1.0, 2.0], 7)
    return tmp_path / "run"


def test_the_first_ones_are_shown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["curves", str(run)]) == 0
    said = capsys.readouterr().out
    assert "curves/collect_return         30  ▁▃▆█" in said
    assert "0 to 30, 4 points to env step 300" in said
    assert "lag" not in said


def test_csv_has_a_row_a_point(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["curves", str(run), "--to", "csv", "--name", "*"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 5
    assert rows[3]["run"] == str(run)
    assert (rows[3]["curve"], rows[3]["env_step"]) == ("curves/collect_return", "300")
    assert float(rows[3]["value"]) == 30.0
    target = run / "curves.csv"
    assert cli.main(["curves", str(run), "--to", "csv", "-o", str(target)]) == 0
    assert len(target.read_text().splitlines()) == 5


def test_what_is_not_there_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["curves", str(run), "--name", "los"]) == 2
    assert "there are curves/collect_return, detail/perf/lag" in capsys.readouterr().err
    (run / "tb").rename(run / "elsewhere")
    assert cli.main(["curves", str(run)]) == 2
    assert f"there are no curves in {run}" in capsys.readouterr().err


@pytest.mark.parametrize("kept", [5, 20, -3])
def test_a_torn_file_is_read_as_far_as_it_is_whole(run: Path, kept: int) -> None:
    (path,) = (run / "tb").iterdir()
    path.write_bytes(path.read_bytes()[:kept])
    assert len(read_curves(run / "tb").get("curves/collect_return", [])) == (4 if kept < 0 else 0)


def test_a_pipe_or_noise_in_place_of_a_file_is_passed_over(run: Path) -> None:
    os.mkfifo(run / "tb" / "events.out.tfevents.1.pipe")
    (run / "tb" / "events.out.tfevents.2.noise").write_bytes(b"\x05" + bytes(11) + b"\xff" * 60)
    assert len(read_curves(run / "tb")["curves/collect_return"]) == 4


def test_a_line_of_bars() -> None:
    assert sparkline([1.0, float("nan"), 2.0], width=4) == "▁ █ "
    assert sparkline([5.0] * 9, width=3) == "▁▁▁"
    assert sparkline([float("inf")], width=2) == "  "
    assert len(sparkline([float(k) for k in range(1000)])) == 32


def test_curves_of_a_run_that_begins_offline_are_over_iterations() -> None:
    offline = "policy.other.commander.offline_iterations"
    assert axis_of({"data": ["runs/a"], offline: 100}) == "train iteration"
    assert axis_of({"data": ["runs/a"], offline: 0}) == axis_of({"data": []}) == "env step"
