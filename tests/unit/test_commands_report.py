"""`hpcdi report`: what it says of runs, and that the page needs nothing else."""

from __future__ import annotations

import json
import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from hpcdi import cli
from hpcdi.commands.report.charts import ticks
from hpcdi.commands.report.statistics import band_of, improvement, iqm_of, mean_of
from hpcdi.run import slurm_queue
from hpcdi.run.slurm_queue import QueueJob
from hpcdi.store.layout import RunLayout
from hpcdi.utils.curves import CurveFile, CurvePoint


def make_run(folder: Path, seed: int, nstep: int, scores: list[float], **facts: Any) -> Path:
    (folder / "tb").mkdir(parents=True)
    (folder / "config.yaml").write_text(f"seed: {seed}\npolicy: {{nstep: {nstep}}}\n")
    shares = {"wait": 0.75, "train": 0.25}
    figures = {
        "elapsed_s": 7200.0, "env_steps": 12_000, "data_bytes": 1 << 20,
        "ranks": {
            "1": {"role": "learner", "cpu": 0.5, "memory_bytes": 1 << 28, "shares": shares},
            "2": {"role": "collector", "cpu": 0.5, "shares": {"env": 0.6, "wait": 0.3}},
        },
    }  # fmt: skip
    placement = [{"rank": r, "role": "x", "host": "n1", "cores": [0, 1]} for r in range(3)]
    about = {"exp_name": "try", "state": "done", "reason": "<solved>", "figures": figures}
    (folder / "run.json").write_text(json.dumps({**about, "placement": placement, **facts}))
    with CurveFile(folder / "curves.csv") as writer:
        for number, score in enumerate(scores):
            writer.add_scalar("curves/evaluation_return", score, 1000 * number)
            writer.add_scalar("detail/perf/lag", 1.0, 1000 * number)
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for seed in range(2):
        make_run(tmp_path / "runs" / f"a{seed}", seed, 1, [0.0, 10.0 + seed])
        make_run(tmp_path / "runs" / f"b{seed}", seed, 3, [0.0, 30.0 + seed, 20.0], restarts=2)
    return tmp_path / "runs"


def words_of(page: str) -> str:
    """What a person reads of a page; each tag must be closed."""
    words, open_tags = [], list[str]()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            assert not {"src", "href"} & {name for name, _ in attrs}, "it opens without a network"
            if tag not in ("meta", "line", "circle", "polygon"):
                open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag not in ("line", "circle", "polygon"):
                assert open_tags.pop() == tag

        def handle_data(self, data: str) -> None:
            words.append(data)

    Reader().feed(page)
    assert not open_tags
    return re.sub(r"\s+", " ", " ".join(words))


def test_of_two_groups(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, plots = tmp_path / "out" / "r.html", tmp_path / "plots"
    arguments = ["report", str(runs), "-o", str(target), "--plots", str(plots)]
    assert cli.main([*arguments, "--against", "Somebody et al.=25"]) == 0
    assert "4 runs in 2 groups" in capsys.readouterr().out
    page = target.read_text()
    said = words_of(page)
    for words in (
        "nstep=1 2 of 2 10.5 (10.0 to 11.0)", "nstep=3 2 of 2 20.0", "30.5 (30.0 to 31.0) 1.00",
        "Somebody et al.: 25.0", "policy.nstep", "done: <solved>", "12k", "2h00m 4 1.0 MiB",
        "wait 75%", "train 25%", "2 restarts",
    ):  # fmt: skip
        assert words in said, (words, said)
    assert "lag" not in said
    colours = re.findall(r'background:(#\w+)"></span>wait', page)
    assert len(colours) == 8
    assert len(set(colours)) == 1, "waiting has one colour"
    (chart,) = plots.iterdir()
    assert chart.name == "curves_evaluation_return.svg"
    svg = ElementTree.fromstring(chart.read_text())
    assert len(svg.findall("{*}polyline")) == 2
    assert len(page) < 100_000


def colours_of(chart: str) -> list[str]:
    """The colours of a chart's lines."""
    return [each.attrib["stroke"] for each in ElementTree.fromstring(chart).findall("{*}polyline")]


def test_a_group_has_one_colour_in_all_charts(runs: Path, tmp_path: Path) -> None:
    """Where the first group lacked a curve, the others had its colour there."""
    with CurveFile(runs / "b0" / "curves.csv") as writer:
        for step in (0, 1000):
            writer.add_scalar("curves/success", 0.5, step)
            for name in ("info/a/b", "info/a_b"):
                writer.add_scalar(name, 0.5, step)
    target, plots = tmp_path / "r.html", tmp_path / "plots"
    assert cli.main(["report", str(runs), "-o", str(target), "--plots", str(plots)]) == 0
    keys = dict(re.findall(r'background:(#\w+)"></span>(nstep=\d)', target.read_text()))
    (second,) = (colour for colour, name in keys.items() if name == "nstep=3")
    assert colours_of((plots / "curves_evaluation_return.svg").read_text()) == [*keys]
    assert colours_of((plots / "curves_success.svg").read_text()) == [second]
    assert sorted(file.stem for file in plots.glob("info*")) == ["info_a_b", "info_a_b_"]
    alone = tmp_path / "alone.svg"
    assert cli.main(["plot", str(runs), "--name", "curves/success", "-o", str(alone)]) == 0
    assert alone.read_text() == (plots / "curves_success.svg").read_text()


def test_a_solved_run_stays_in_the_mean_of_its_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mean fell where the best seed stopped; it must end as the table's last evaluations do."""
    for seed, scores in enumerate(([30.0, 500.0], [10.0, 20.0, 40.0], [10.0, 30.0, 50.0])):
        run = make_run(tmp_path / "runs" / str(seed), seed, 1, scores)
    arguments = ["report", str(tmp_path / "runs"), "-o", str(tmp_path / "r.html")]
    assert cli.main([*arguments, "--plots", str(tmp_path / "plots")]) == 0
    assert "3 of 3 196.7 " in words_of((tmp_path / "r.html").read_text())
    chart = tmp_path / "plots" / "curves_evaluation_return.svg"
    heights = heights_of(chart)
    assert heights == sorted(heights, reverse=True), "it climbs"
    assert "dasharray" not in chart.read_text()
    assert cli.main(["plot", str(tmp_path / "runs")]) == 0
    assert "try: 196.667 at the end\n" in capsys.readouterr().out
    for name in ("1", "2"):  # one that failed has no value after its end
        (tmp_path / "runs" / name / "curves.csv").rename(tmp_path / name)
    (tmp_path / "1").rename(tmp_path / "runs" / "2" / "curves.csv")
    with CurveFile(tmp_path / "runs" / "1" / "curves.csv") as curves:
        curves.add_scalar("curves/evaluation_return", 10.0, 0)
        curves.add_scalar("curves/evaluation_return", 25.0, 1500)
    facts = json.loads((run.parent / "1" / "run.json").read_text())
    (run.parent / "1" / "run.json").write_text(json.dumps({**facts, "state": "failed"}))
    assert cli.main(["plot", str(tmp_path / "runs")]) == 0
    assert "try: 270 at the end, of 2 of 3 runs\n" in capsys.readouterr().out
    assert cli.main(["plot", str(tmp_path / "runs"), "-o", str(chart)]) == 0
    assert "dasharray" in chart.read_text()
    assert len(heights_of(chart)) == 3, "a whole line where all are there"


def heights_of(chart: Path) -> list[float]:
    """The heights of a chart's last line, from above."""
    line = ElementTree.parse(chart).getroot().findall("{*}polyline")[-1]
    return [float(point.split(",")[1]) for point in line.attrib["points"].split()]


def test_no_two_groups_have_one_name(tmp_path: Path) -> None:
    """Of groups of one name the charts had the last one alone."""
    folders = [make_run(tmp_path / base / "c" / "0", 0, 1, [0.0, 1.0]) for base in ("x", "y")]
    for folder in folders:
        (folder / "config.yaml").unlink()
    plots = tmp_path / "plots"
    arguments = ["report", *map(str, folders), "-o", str(tmp_path / "r.html")]
    assert cli.main([*arguments, "--plots", str(plots)]) == 0
    assert len(colours_of((plots / "curves_evaluation_return.svg").read_text())) == 2
    said = words_of((tmp_path / "r.html").read_text())
    assert all(f"(c/0) ({folder})" in said for folder in folders)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("{type: gymnasium, env_id: Pendulum-v1}", "other environment"),
        ("{type: 'my_module:Env'}", "other environment"),
        ("{type: envpool, env_id: CartPole-v1}", "1.00"),
    ],
)
def test_returns_of_other_environments_are_not_compared(
    tmp_path: Path, env: str, said: str
) -> None:
    for name, settings in (("a", "{type: gymnasium, env_id: CartPole-v1}"), ("b", env)):
        run = make_run(tmp_path / "runs" / name, 0, 1, [1.0 + (name == "b")])
        (run / "config.yaml").write_text(f"env: {settings}\n")
    assert cli.main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "r.html")]) == 0
    assert f"1 of 1 2.00 2.00 2.00 {said} " in words_of((tmp_path / "r.html").read_text())


def test_how_and_where_a_run_was_started_makes_no_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seeds of a notebook have a code folder each, and may have an origin each."""
    for seed in range(3):
        run = make_run(tmp_path / "runs" / str(seed), seed, 1, [0.0, 10.0])
        with (run / "config.yaml").open("a") as file:
            file.write(
                f"env: {{origin: {{observation: [{seed}.5, 0.0]}}}}\nslurm: {{nodes: {seed + 1}}}\n"
                f"system: {{import_path: [/runs/{seed}/code], auto_resume: {seed > 0}}}\n"
            )
    assert cli.main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "r.html")]) == 0
    assert "3 runs, " in capsys.readouterr().out


def test_of_what_is_damaged(tmp_path: Path) -> None:
    """A run that has just begun, whose files are noise or not there."""
    run = make_run(tmp_path / "run", 0, 1, [])
    (run / "config.yaml").write_text(": {")
    (run / "status.json").write_text("{")
    (run / "run.json").write_text('{"exp_name": "try", "figures": 3, "versions": [1]}')
    assert cli.main(["report", str(run), "-o", str(tmp_path / "r.html")]) == 0
    assert "no evaluation" in words_of((tmp_path / "r.html").read_text())


def test_one_whose_run_file_is_damaged_does_not_hide_the_others(runs: Path, tmp_path: Path) -> None:
    (runs / "a1" / "run.json").write_text("{")
    folders = [str(runs / name) for name in ("a0", "a1")]
    assert cli.main(["report", *folders, "-o", str(tmp_path / "r.html")]) == 0
    assert "2 of 2 10.5 (10.0 to 11.0)" in words_of((tmp_path / "r.html").read_text())


def test_what_a_resumed_run_has_cost_is_of_all_its_starts(tmp_path: Path) -> None:
    """It was that of the last one, beside the counts of all; and nothing of one that was killed."""
    earlier = {"elapsed_s": 3600.0, "core_s": 36_000.0, "data_bytes": 1 << 20, "until": 50.0}
    run = make_run(tmp_path / "run", 0, 1, [], earlier=earlier, restarts=1)
    said = ["report", str(run), "-o", str(tmp_path / "r.html")]
    assert cli.main(said) == 0
    assert "3h00m 14 2.0 MiB" in words_of((tmp_path / "r.html").read_text())
    make_run(tmp_path / "killed", 0, 1, [], earlier=earlier, figures={}, state="running")
    status = {"started_at": 60.0, "written_at": 3660.0, "data_bytes": 1 << 19, "env_steps": 7}
    (tmp_path / "killed" / "status.json").write_text(json.dumps(status))
    assert cli.main(["report", str(tmp_path / "killed"), *said[2:]]) == 0
    words = words_of((tmp_path / "r.html").read_text())
    assert "2h00m 12 1.5 MiB" in words
    assert "dead: process None on None is gone" in words


@pytest.mark.parametrize(
    ("facts", "job", "said"),
    [
        ({"state": "running", "host": "n1", "pid": 7}, "PENDING", "pending: job 12 is PENDING"),
        ({"state": "running", "host": "n1", "pid": 7}, "SUSPENDED", "job 12 is SUSPENDED"),
        ({"state": "stopped", "exit_code": 85}, "PENDING", "pending: job 12 is PENDING"),
        ({"state": "stopped", "exit_code": 130}, "RUNNING", "stopped: <solved>"),
        ({"state": "done", "exit_code": 0}, "COMPLETING", "done: <solved>"),
    ],
)
def test_a_run_whose_job_goes_on_is_not_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], job: str, said: str
) -> None:
    """It was dead, or stopped, where `status` knows better."""
    run = make_run(tmp_path / "run", 0, 1, [], slurm={"SLURM_JOB_ID": "12"}, **facts)
    lock = RunLayout(run).lock_file
    lock.write_text(json.dumps({"host": "n1", "pid": 7}))
    os.utime(lock, (0, 0))
    monkeypatch.setattr(slurm_queue, "ask", lambda number: QueueJob(number, job))
    answers = {"12": QueueJob("12", job)}
    monkeypatch.setattr(
        slurm_queue, "ask_all", lambda jobs: {number: answers[number] for number in jobs}
    )
    assert cli.main(["report", str(run), "-o", str(tmp_path / "r.html")]) == 0
    words = words_of((tmp_path / "r.html").read_text())
    assert said in words
    assert "dead" not in words


def test_slurm_is_asked_once_about_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question to one that does not answer takes seconds."""
    for number in range(20):
        stopped = {"state": "stopped", "exit_code": 85, "slurm": {"SLURM_JOB_ID": str(number)}}
        make_run(tmp_path / "runs" / str(number), 0, 1, [], **stopped)
    (tmp_path / "bin").mkdir()
    for name in ("squeue", "scontrol", "sacct"):
        (tmp_path / "bin" / name).write_text(
            f"#!/bin/sh\necho {name} >> {tmp_path}/asked\nexit 1\n"
        )
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    said = ["report", str(tmp_path / "runs"), "-o", str(tmp_path / "r.html")]
    assert cli.main(said) == 0
    assert (tmp_path / "asked").read_text() == "squeue\n"
    assert words_of((tmp_path / "r.html").read_text()).count("Slurm does not answer") == 20


@pytest.mark.parametrize(("has_script", "state"), [(1, "pending"), (0, "stopped")])
def test_a_job_that_is_on_is_asked_about_its_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_script: int, state: str
) -> None:
    for number in range(2):  # of one job
        stopped = {"state": "stopped", "exit_code": 85, "slurm": {"SLURM_JOB_ID": "12"}}
        make_run(tmp_path / "runs" / str(number), 0, 1, [], **stopped)
    (tmp_path / "bin").mkdir()
    for name, says in (
        ("squeue", "12|N/A|RUNNING|None|n1|0|"),
        ("scontrol", f"JobId=12 JobState=RUNNING Reason=None BatchFlag={has_script}"),
    ):
        script = f"#!/bin/sh\necho {name} >> {tmp_path}/asked\necho '{says}'\n"
        (tmp_path / "bin" / name).write_text(script)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    said = ["report", str(tmp_path / "runs"), "-o", str(tmp_path / "r.html")]
    assert cli.main(said) == 0
    assert (tmp_path / "asked").read_text() == "squeue\nscontrol\n"
    assert words_of((tmp_path / "r.html").read_text()).count(f"{state}: <solved>") == 2


def test_wrong_words(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(tmp_path / "plots")]) == 2
    (tmp_path / "empty").mkdir()
    assert cli.main(["report", str(tmp_path / "empty")]) == 2
    assert "is no run folder, and holds none" in capsys.readouterr().err
    (tmp_path / "empty" / "run.json").write_text("{")
    assert cli.main(["report", str(tmp_path / "empty")]) == 2
    assert "empty's run.json is damaged: " in capsys.readouterr().err
    assert cli.main(["report", str(runs), "-o", str(runs)]) == 2
    assert "cannot be written" in capsys.readouterr().err


# -------------------------------------------------------------------------------------- statistics


def line(*points: tuple[int, float]) -> list[CurvePoint]:
    return [CurvePoint(step, 0.0, value) for step, value in points]


def test_a_band_is_of_those_that_are_there() -> None:
    band = band_of([line((0, 0.0), (100, 10.0)), line((0, 2.0), (200, 22.0))])
    assert band.steps[[0, -1]].tolist() == [0.0, 100.0], "half have ended: so does the mean"
    assert band.mean[[0, -1]] == pytest.approx([1.0, 11.0])
    most = band_of([line((0, 4.0), (100, 4.0)), *[line((0, 2.0), (200, 22.0))] * 2])
    assert (most.steps[-1], most.mean[-1]) == (200.0, pytest.approx(22.0)), "one has ended before"
    half = int(np.abs(band.steps - 50).argmin())
    assert band.mean[half] == pytest.approx((band.steps[half] / 10 * 2 + 2) / 2)
    assert (band.low[half], band.high[half]) == (
        pytest.approx(band.steps[half] / 10), pytest.approx(band.steps[half] / 10 + 2)
    )  # fmt: skip
    alone = band_of([line((5, 3.0))])
    assert np.nanmax(alone.mean) == 3.0


def test_curves_that_do_not_overlap_are_all_in_their_mean() -> None:
    """It was one run's curve."""
    band = band_of([line((4000, 10.0)), line((4100, 90.0))])
    assert band.steps[[0, -1]].tolist() == [4000, 4100]
    assert band.mean == pytest.approx(np.full(len(band.mean), 50.0))
    assert (band.low[0], band.high[0]) == (10.0, 90.0)
    band = band_of([line((step, value)) for step, value in ((1, 3.0), (2, 6.0), (3, 9.0))])
    assert band.mean[[0, -1]].tolist() == [6.0, 6.0]
    band = band_of([line((0, 1.0), (10, 1.0)), line((30, 5.0), (40, 5.0))])
    assert band.steps[[0, -1]].tolist() == [0, 40]
    assert band.mean[[0, -1]].tolist() == [1.0, 5.0]
    assert np.isnan(band.mean[len(band.mean) // 2]), "nobody is there"
    band = band_of([line((0, 1.0), (10, 1.0)), line((5, 3.0))])
    assert band.steps[[0, -1]].tolist() == [5, 5], "both are there"
    assert band.mean[0] == 2.0


@pytest.mark.parametrize("points", [1000, 110])
def test_a_peak_between_points_of_a_grid_is_drawn(points: int) -> None:
    """Of 250 points, 120 were drawn between them: half of a peak was cut off."""
    curves = [line(*((7 * n, float(n == 77)) for n in range(points)))] * (1 + (points < 120))
    band = band_of(curves)
    assert band.mean.max() == band.low.max() == 1.0
    assert band.steps[band.mean.argmax()] == 7 * 77


def test_figures_over_seeds() -> None:
    assert mean_of([1.0, 3.0]) == (2.0, 1.0, 3.0)
    assert iqm_of([0.0, 1.0, 3.0, 100.0]).value == 2.0
    assert iqm_of([5.0]) == (5.0, 5.0, 5.0)
    assert improvement([2.0, 3.0], [1.0, 2.0]).value == pytest.approx(3.5 / 4)
    low, high = mean_of(list(range(10)))[1:]
    assert 0.0 < low < 4.5 < high < 9.0


@pytest.mark.parametrize("limits", [(0.0, 1.0), (-3.7, 8.1), (1e-7, 3e-7), (0.0, 2.5e6)])
def test_ticks_are_round_and_few(limits: tuple[float, float]) -> None:
    marks = ticks(*limits)
    assert 3 <= len(marks) <= 7
    assert all(limits[0] - 1e-12 <= mark <= limits[1] * (1 + 1e-9) for mark in marks)
    step = marks[1] - marks[0]
    leading = step / 10 ** math.floor(math.log10(step) + 1e-9)
    assert any(math.isclose(leading, nice) for nice in (1, 2, 2.5, 5))
