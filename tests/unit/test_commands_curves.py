"""`hpcdi curves`: what TensorBoard would show, in the terminal and as CSV."""

from __future__ import annotations

import csv
import io
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from hpcdi import cli
from hpcdi.commands import curves
from hpcdi.commands.run_state import axis_of
from hpcdi.utils.curves import CurveFile, drop_points_after, read_curves
from hpcdi.utils.sparkline import sparkline


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with CurveFile(tmp_path / "run" / "curves.csv") as curves:
        for step in range(4):
            curves.add_scalar("curves/collect_return", 10.0 * step, 100 * step)
        curves.add_scalar("detail/perf/lag", 3.0, 100)
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
    assert (rows[3]["curve"], rows[3]["step"]) == ("curves/collect_return", "300")
    assert float(rows[3]["value"]) == 30.0
    target = run / "some.csv"
    assert cli.main(["curves", str(run), "--to", "csv", "-o", str(target)]) == 0
    assert len(target.read_text().splitlines()) == 5
    assert cli.main(["curves", str(run), "--to", "csv", "-o", str(run / "curves.csv")]) == 2
    assert len(read_curves([run / "curves.csv"])) == 2, "a run keeps its own record"


def test_parquet_has_the_same_rows_of_all_runs_in_a_folder(run: Path) -> None:
    shutil.copytree(run, run.with_name("other"))
    for each in (run, run.with_name("other")):
        (each / "run.json").write_text('{"exp_name": "x", "state": "done"}')
    target = run.parent / "all.parquet"
    assert cli.main(["curves", str(run.parent), "--to", "parquet", "-o", str(target)]) == 0
    table = pq.read_table(target)
    assert table.column_names == ["run", "curve", "step", "time", "value"]
    rows = table.to_pylist()
    assert [row["run"] for row in rows] == [str(run.with_name("other"))] * 4 + [str(run)] * 4
    assert [(row["step"], row["value"]) for row in rows[:4]] == [
        (100 * n, 10.0 * n) for n in range(4)
    ]


def test_what_is_not_there_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["curves", str(run), "--name", "los"]) == 2
    assert "there are curves/collect_return, detail/perf/lag" in capsys.readouterr().err
    record = (run / "curves.csv").read_text()
    (run / "curves.csv").write_text(record.replace("curves/", "detail/"))
    assert cli.main(["curves", str(run)]) == 2
    said = capsys.readouterr().err
    assert "no curve is one of the first ones (--name shows others); there are detail/" in said
    (run / "curves.csv").rename(run / "elsewhere")
    (run / "run.json").write_text('{"exp_name": "x", "state": "done"}')
    assert cli.main(["curves", str(run)]) == 2
    assert f"there are no curves in {run}" in capsys.readouterr().err


@pytest.mark.parametrize(("cut", "left"), [(1, 4), (20, 4), (150, 1), (10_000, 0)])
def test_a_torn_record_is_read_as_far_as_it_is_whole_and_goes_on(
    run: Path, cut: int, left: int
) -> None:
    path = run / "curves.csv"
    path.write_bytes(path.read_bytes()[: max(0, path.stat().st_size - cut)])
    name = "curves/collect_return"
    assert len(read_curves([path]).get(name, [])) == left
    with CurveFile(path) as curves:
        curves.add_scalar(name, 0.1, 400)
    points = read_curves([path])[name]
    assert (len(points), points[-1].step, points[-1].value) == (left + 1, 400, 0.1)


def test_names_and_numbers_are_read_as_they_were_written(run: Path) -> None:
    named = {'a, "b", c': 0.1 + 0.2, "nothing": float("inf"), "ünï": -1e-300}
    with CurveFile(run / "curves.csv") as curves:
        for name, value in {**named, "two\nlines": 1.0}.items():
            curves.add_scalar(name, value, 1 << 40)
    read = read_curves([run / "curves.csv"])
    assert {name: read[name][0].value for name in named} == named
    assert read["two lines"][0].step == 1 << 40
    with (run / "curves.csv").open() as file:
        assert 'a, "b", c' in {row["curve"] for row in csv.DictReader(file)}


def test_going_on_from_a_checkpoint_drops_what_was_drawn_after_it(run: Path) -> None:
    path = run / "curves.csv"
    with CurveFile(path) as curves:
        curves.add_scalar("curves/collect_return", -1.0, 200)  # after the checkpoint at 200
    drop_points_after(path, 200)
    read = {
        name: [(p.step, p.value) for p in points] for name, points in read_curves([path]).items()
    }
    assert read == {
        "curves/collect_return": [(0, 0.0), (100, 10.0), (200, 20.0)],
        "detail/perf/lag": [(100, 3.0)],
    }
    drop_points_after(run / "elsewhere.csv", 200)
    assert [file.name for file in run.iterdir()] == ["curves.csv"]


def test_a_pipe_in_place_of_the_record_is_passed_over(run: Path) -> None:
    (run / "curves.csv").unlink()
    os.mkfifo(run / "curves.csv")
    assert read_curves([run / "curves.csv"]) == {}


def test_of_a_record_with_a_hole_as_much_is_read_as_is_before_it(tmp_path: Path) -> None:
    path = tmp_path / "curves.csv"
    path.write_text("curve,step,time,value\na,1,2.0,3.0\n")
    os.truncate(path, 1 << 40)
    assert [point.value for point in read_curves([path])["a"]] == [3.0]


def test_a_line_of_bars() -> None:
    assert sparkline([1.0, float("nan"), 2.0], width=4) == "▁ █ "
    assert sparkline([5.0] * 9, width=3) == "▁▁▁"
    assert sparkline([float("inf")], width=2) == "  "
    assert len(sparkline([float(k) for k in range(1000)])) == 32


def test_curves_of_a_run_that_begins_offline_are_over_iterations() -> None:
    offline = "policy.other.commander.offline_iterations"
    assert axis_of({"data": ["runs/a"], offline: 100}) == "train iteration"
    assert axis_of({"data": ["runs/a"], offline: 0}) == axis_of({"data": []}) == "env step"
    assert "train iteration in a run that\nbegins offline" in curves.HELP
