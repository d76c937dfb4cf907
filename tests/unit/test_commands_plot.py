"""`hpcdi plot`: a curve as a picture."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hpcdi import cli
from hpcdi.commands.plot import lines_of
from hpcdi.commands.report.charts import line_chart
from hpcdi.commands.report.statistics import band_of
from hpcdi.commands.run_state import runs_of
from hpcdi.utils.curves import CurveFile, CurvePoint


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "42")
    for name, seed, nstep in (("a", 0, 1), ("b", 1, 1), ("c", 0, 3)):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text('{"exp_name": "poles", "state": "done"}')
        (folder / "config.yaml").write_text(f"seed: {seed}\npolicy: {{nstep: {nstep}}}\n")
        with CurveFile(folder / "curves.csv") as curves:
            for step in range(0, 1001, 100):
                curves.add_scalar("curves/collect_return", nstep * (step + 100 * seed), step)
    return tmp_path / "runs"


def test_seeds_are_one_line_and_groups_have_marks(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plot", str(runs)]) == 0
    name, *chart = capsys.readouterr().out.splitlines()
    assert name == "curves/collect_return"
    rows = chart[:14]
    assert [row.split("|")[0].strip() for row in rows if row.split("|")[0].strip()]
    assert rows[0].endswith("o"), "the highest at the end is of the second group"
    assert rows[-1].partition("|")[2].startswith("o"), "which begins at 0, below the first"
    assert rows[-2].partition("|")[2][0] == " "
    assert [line.split()[0] for line in chart[16:]] == ["•", "o"]
    assert chart[16].endswith("nstep=1: 1050 at the end")
    assert chart[17].endswith("nstep=3: 3000 at the end")
    assert max(map(len, chart[:16])) <= 42


def test_a_group_has_one_mark_for_all_curves(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("a", float("nan")), ("c", 1.0)):
        with CurveFile(runs / name / "curves.csv") as curves:
            for curve in ("curves/loss", "curves/success")[name == "a" :]:
                curves.add_scalar(curve, value, 0)
    for curve in ("curves/collect_return", "curves/loss", "curves/success"):
        assert cli.main(["plot", str(runs), "--name", curve]) == 0
        assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["o", "nstep=3:"]


def test_the_axis_is_of_all_that_have_the_curve(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = runs / "b" / "config.yaml"
    config.write_text(config.read_text() + "\ndata: [runs/x]\n")
    assert cli.main(["plot", str(runs)]) == 0
    assert "env step or train iteration" in capsys.readouterr().out
    assert cli.main(["plot", str(runs / "b")]) == 0
    assert "env step" not in capsys.readouterr().out


@pytest.mark.parametrize("command", ["plot", "curves", "report"])
def test_a_folder_with_curves_is_a_run(runs: Path, tmp_path: Path, command: str) -> None:
    """Without its run.json it was one to `curves` and `report`, if it was named, not to `plot`."""
    (runs / "a" / "run.json").unlink()
    output = ["-o", str(tmp_path / "r.html")] if command == "report" else []
    assert cli.main([command, str(runs / "a"), *output]) == 0
    assert runs_of([str(runs)]) == [runs / name for name in "abc"]


def test_the_runs_of_sweeps_are_among_those_of_an_experiment(runs: Path) -> None:
    """After a sweep `hpcdi report runs/NAME/*`, which the guides say, was refused."""
    sweeps = runs / "sweeps" / "20261129-121420"
    sweeps.mkdir(parents=True)
    (runs / "b").rename(sweeps / "000")
    (runs / "c").rename(sweeps / "001")
    found = [runs / "a", sweeps / "000", sweeps / "001"]
    assert runs_of(map(str, sorted(runs.glob("*")))) == found


def test_it_is_a_picture_in_a_file(runs: Path, tmp_path: Path) -> None:
    target = tmp_path / "pictures" / "return.svg"
    assert cli.main(["plot", str(runs / "a"), "-o", str(target)]) == 0
    assert ElementTree.parse(target).getroot().tag.endswith("svg")
    with pytest.raises(SystemExit):
        cli.main(["plot", str(runs), "-o", "return.png"])


def test_a_curve_without_a_finite_value_is_told(
    runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with CurveFile(runs / "a" / "curves.csv") as curves:
        for step in (0, 100):
            curves.add_scalar("curves/loss", float("nan"), step)
    assert cli.main(["plot", str(runs / "a"), "--name", "curves/loss"]) == 2
    assert "curves/loss has no finite value" in capsys.readouterr().err
    assert cli.main(["report", str(runs / "a"), "-o", str(tmp_path / "report.html")]) == 0


@pytest.mark.parametrize("values", [(1e17,) * 3, (0.0,) * 3, (1e308, 0.0, -1e308)])
def test_a_curve_of_huge_or_equal_values_is_drawn(values: tuple[float, ...]) -> None:
    """Without a difference that is one, or with one beyond the largest number, it was an error."""
    points = [CurvePoint(10 * number, 0.0, value) for number, value in enumerate(values)]
    bands = {"runs": band_of([points])}
    rows = list(lines_of("loss", bands, "steps"))[1:15]
    is_flat = values[0] == values[-1]
    assert rows[-1].endswith("•") != is_flat
    assert float(rows[0].split("|")[0]) == values[0]
    chart = ElementTree.fromstring(line_chart("loss", bands))
    heights = [float(point.split(",")[1]) for point in chart[-1].attrib["points"].split()]
    assert (heights[0] == heights[-1]) == is_flat
    assert all(30 <= height <= 226 for height in heights)


def test_a_curve_that_is_not_there_is_told(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plot", str(runs), "--name", "loss"]) == 2
    assert "no curve is named loss; there are curves/collect_return" in capsys.readouterr().err
    for file in runs.glob("*/curves.csv"):
        file.unlink()
    assert cli.main(["plot", str(runs)]) == 2
    assert "there are no curves in" in capsys.readouterr().err


def test_a_curve_of_neighbouring_numbers_is_drawn() -> None:
    value = 30.56198901267832
    values = (value, math.nextafter(value, 31), value)
    points = [CurvePoint(10 * number, 0.0, value) for number, value in enumerate(values)]
    bands = {"runs": band_of([points])}
    assert list(lines_of("loss", bands, "steps"))
    assert line_chart("loss", bands)
