"""Searches: what is searched, who proposes, and how a trial goes through files."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from fakes.searchers import STEPS, Planted
from hpcdi import cli
from hpcdi.commands.batch_script import script_text
from hpcdi.commands.run_state import RunStatus, status_of
from hpcdi.commands.status import steps
from hpcdi.commands.sweep import here
from hpcdi.commands.sweep.here import LocalRuns
from hpcdi.commands.sweep.on_slurm import searching_tasks
from hpcdi.commands.sweep.runs import (
    FAILED,
    PRUNED,
    Search,
    Sweep,
    keep,
    read,
    read_trial,
    trial_file,
)
from hpcdi.commands.sweep.scores import area_of, points_of, value_at
from hpcdi.commands.sweep.trials import (
    Trials,
    dimensions_of,
    hand_out,
    make_search,
    overrides_of,
    same_search,
    searcher_class,
)
from hpcdi.config.compiled import compile_config
from hpcdi.config.load import load
from hpcdi.errors import ConfigError, LaunchError
from hpcdi.run import run_folder, slurm_queue
from hpcdi.run.job_end import EndTime
from hpcdi.search import Dimension, OptunaSearcher, RandomSearcher, Searcher
from hpcdi.store.layout import RunLayout
from hpcdi.utils.curves import CurveFile

HILL = str(Path(__file__).parent.parent / "fakes" / "hill.yaml")


def test_what_is_searched() -> None:
    assert dimensions_of(["a.b=log(1e-5, 1e-2) n=int(1,8)", "k=relu,tanh", "m=0..2"]) == (
        Dimension("a.b", 1e-5, 1e-2, is_log=True),
        Dimension("n", 1, 8, is_whole=True),
        Dimension("k", choices=("relu", "tanh")),
        Dimension("m", choices=("0", "1", "2")),
    )


@pytest.mark.parametrize(
    "text", ["a=log(1e-05,0.01)", "a=float(0.1,2)", "a=int(1,8)", "a=logint(16,512)", "a=x,y"]
)
def test_a_dimension_is_shown_as_it_is_typed(text: str) -> None:
    assert str(dimensions_of([text])[0]) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a", "not of the form"),
        ("a=3", "says no values: write log"),
        ("a=log(0,1)", "above 0"),
        ("a=float(2,1)", "the smaller one"),
        ("a=int(1,2.5)", "without decimals"),
        ("a=1,2 a=3,4", "searched twice"),
    ],
)
def test_what_is_no_search(text: str, said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        dimensions_of([text])


def test_random_values_are_within_their_bounds() -> None:
    dimensions = dimensions_of(["x=log(1e-5,1e-2) n=int(1,3) m=logint(1,64) k=a,b"])
    searcher = RandomSearcher(dimensions, 0, Path())
    drawn = [searcher.ask(number) for number in range(300)]
    assert drawn[7] == searcher.ask(7)
    assert {one["n"] for one in drawn} == {1, 2, 3}
    assert {one["k"] for one in drawn} == {"a", "b"}
    rates = np.log10([float(one["x"]) for one in drawn])
    assert rates.min() >= -5
    assert rates.max() <= -2
    assert abs(rates.mean() + 3.5) < 0.15
    assert all(one["x"] == float(f"{one['x']:.6g}") for one in drawn), "six digits"
    assert overrides_of({"x": 1.23456789e-5, "n": 3}) == ("x=1.23456789e-05", "n=3")


@pytest.mark.parametrize(
    "space",
    ["float(0.9999998,0.9999999)", "log(0.9999998,0.9999999)", "int(10000000,10000009)"],
)
def test_a_trial_runs_with_the_number_that_was_drawn(space: str) -> None:
    """However many digits its range needs."""
    (dimension,) = dimensions_of([f"x={space}"])
    searcher = RandomSearcher([dimension], 0, Path())
    values = [searcher.ask(number)["x"] for number in range(50)]
    assert len(set(values)) >= 8
    for value in values:
        assert dimension.low <= float(value) <= dimension.high
        assert overrides_of({"x": value}) == (f"x={value!r}",)


def test_scores_of_a_curve() -> None:
    points = [(100, 0.0), (200, 10.0)]
    assert area_of(points, math.inf) == 2.5
    assert area_of(points, 400) == 6.25  # it has ended early, and stays as good
    assert value_at(points, 150) == 5
    assert value_at(points, 50) == 0


def test_an_evaluation_that_is_no_number_is_no_point_of_a_curve(tmp_path: Path) -> None:
    with CurveFile(tmp_path / "curves.csv") as curves:
        for step, value in enumerate([math.inf, 3.0, math.nan]):
            curves.add_scalar("curves/evaluation_return", value, step)
    assert points_of(RunLayout(tmp_path)) == [(1, 3.0)]


# ------------------------------------------------------------------------------------------ Optuna

SPACE = dimensions_of(["x=log(1e-6,1) y=int(0,15)", "kind=a,b,c"])


def worth(settings: dict) -> float:
    far = abs(math.log10(settings["x"]) + 3) / 3 + abs(settings["y"] - 7) / 16
    return 1 - far - 0.5 * (settings["kind"] != "b")


def best_of(searcher: Searcher, trials: int) -> float:
    scores = []
    for number in range(trials):
        settings = dict(searcher.ask(number))
        scores.append(worth(settings))
        searcher.tell(number, settings, scores[-1], is_pruned=False)
    return max(scores)


@pytest.mark.slow
def test_optuna_finds_a_planted_optimum_better_than_chance(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    pairs = []
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        found = best_of(OptunaSearcher(SPACE, seed, folder), 30)
        pairs.append((found, best_of(RandomSearcher(SPACE, seed, folder), 30)))
    assert sum(ours > chance for ours, chance in pairs) >= 2, pairs
    assert fmean(ours - chance for ours, chance in pairs) > 0.05, pairs


@pytest.mark.parametrize("is_link", [False, True])
def test_a_study_goes_on_after_a_kill_in_the_middle_of_a_line(
    tmp_path: Path, is_link: bool
) -> None:
    pytest.importorskip("optuna")
    if is_link:
        (tmp_path / "optuna.journal").symlink_to(tmp_path / "elsewhere")
    searcher = OptunaSearcher(SPACE, 0, tmp_path)
    for number in range(2):
        searcher.tell(number, {}, worth(dict(searcher.ask(number))), is_pruned=False)
    asked = searcher.ask(2)
    journal = tmp_path / "optuna.journal"
    with journal.open("ab") as file:
        file.write(b'{"op_code": 6, "trial')
    again = OptunaSearcher(SPACE, 0, tmp_path)
    assert again.ask(2) == asked  # it has its settings
    again.tell(2, asked, None, is_pruned=False)
    assert [t.state.name for t in OptunaSearcher(SPACE, 0, tmp_path)._study.trials] == [
        "COMPLETE", "COMPLETE", "FAIL",
    ]  # fmt: skip


def test_optuna_prunes_what_is_below_the_median(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    searcher = OptunaSearcher(SPACE, 0, tmp_path)
    for number in range(5):
        asked = searcher.ask(number)
        assert not searcher.report(number, 100, float(number))
        searcher.tell(number, asked, float(number), is_pruned=False)
    searcher.ask(5)
    searcher.ask(6)
    assert searcher.report(5, 100, 1.0)
    assert searcher.report(5, 100, 1.0)  # said again after a restart
    assert not searcher.report(6, 100, 3.0)


def test_without_optuna_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(LaunchError, match=r"pip install 'hpcdi\[optuna\]'"):
        searcher_class("optuna")


# ------------------------------------------------------------------------------------------ trials


def make_trials(
    root: Path, space: str, trials: int = 3, worker: str = "", score: str = "best"
) -> Trials:
    search = Search("random", dimensions_of([space]), trials, score, True, 0)
    made, experiment = make_search(HILL, [], None, search, None, serial=True)
    made = type(made)(**{**vars(made), "root": root})
    if not made.manifest.exists():
        keep(made, [experiment])
    assert made.search is not None
    return Trials(root, worker, RandomSearcher(made.search.dimensions, 0, root))


def test_each_trial_is_taken_once(tmp_path: Path) -> None:
    space = "policy.learn.learning_rate=log(1e-5,1e-2)"
    first = make_trials(tmp_path, space, worker="0")
    second = Trials(tmp_path, "1", RandomSearcher(dimensions_of([space]), 0, tmp_path))
    assert [first.more([]), second.more([]), first.more([]), second.more([])] == [[0], [1], [2], []]
    assert Trials(tmp_path, "1", RandomSearcher((), 0, tmp_path)).more([]) == [1]  # it goes on
    sweep = read(tmp_path)
    assert [element.state for element in sweep.elements] == ["running"] * 3
    assert sweep.search is not None
    assert (sweep.search.limit, sweep.search.every) == (320, 32)


def test_settings_that_do_not_go_together_are_a_trial_that_failed(tmp_path: Path) -> None:
    trials = make_trials(tmp_path, "policy.learn.batch_size=int(16,64)", 4)
    (tmp_path / "trials").mkdir()
    wrong = {"settings": {"a": 1}, "overrides": ["policy.lern=1"]}
    (tmp_path / "trials" / "000.json").write_text(json.dumps(wrong))
    trials = Trials(tmp_path, "", RandomSearcher((), 0, tmp_path))
    assert trials.more([]) == [1]
    assert read_trial(tmp_path, 0)["state"] == FAILED
    # it has not begun: it is started again
    assert trials.ended(1, None, is_refused=False) is False


def test_a_trial_that_is_refused_at_its_start_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was never over, and the searcher never told of it."""
    trials = make_trials(tmp_path / "s", "env.kwargs.y=int(0,15)", 6)
    refuse = [sys.executable, "-c", "raise SystemExit(2)"]
    monkeypatch.setattr(here, "command_of", lambda *_: refuse)
    assert LocalRuns(tmp_path / "s", trials, [None]).run() == 0
    records = [read_trial(tmp_path / "s", number) for number in range(3)]
    assert {record["state"] for record in records} == {FAILED}
    assert records[1]["why"].endswith("s/output/001.out")
    assert not trial_file(tmp_path / "s", 3).exists(), "more would be in vain"


def ended_run(root: Path, number: int, state: str) -> RunStatus:
    """A trial's run that has ended, with evaluations of 0 at step 100 and of 10 at step 200."""
    layout = run_folder.claim(root / f"{number:03d}", {"exp_name": "x"}, [], mpi="none")
    with CurveFile(layout.curves_file) as curves:
        curves.add_scalar("curves/evaluation_return", 0.0, 100)
        curves.add_scalar("curves/evaluation_return", 10.0, 200)
    run_folder.end(layout, state, "so it is", 0 if state == "done" else 85, {})
    return status_of(layout.root, slurm_queue.nobody)


def test_a_trial_that_ended_while_its_sweep_was_dead_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    assert make_trials(root, "env.kwargs.y=int(0,15)", 1).more([]) == [0]
    ended_run(root, 0, "done")
    monkeypatch.setattr(here, "command_of", lambda *_: [sys.executable, "-c", ""])  # it is done
    assert cli.main(["sweep", "resume", str(root), "--local"]) == 0
    record = read_trial(root, 0)
    assert (record["state"], record["score"]) == ("done", 10.0)


def test_trials_of_a_packed_search_that_is_resumed_run_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What has begun and is not over counts."""
    root = tmp_path / "s"
    trials = make_trials(root, "env.kwargs.y=int(0,15)", 3)
    assert [trials.more([]) for _ in range(3)] == [[0], [1], [2]]
    ended_run(root, 0, "stopped")
    monkeypatch.setattr(here, "command_of", lambda *_: [sys.executable, "-c", "exit(1)"])
    cli.main(["sweep", "resume", str(root), "--pack", "--local", "--jobs", "2"])
    assert capsys.readouterr().out.startswith("2 of 3 runs at a time\n")


def test_a_search_that_the_end_of_its_job_has_cut_is_requeued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "s"
    trials = make_trials(root, "env.kwargs.y=int(0,15)", 2)
    assert trials.more([]) == [0]
    trials.ended(0, ended_run(root, 0, "done"), is_refused=False)
    monkeypatch.setattr(here, "job_end", lambda _variables, now: EndTime(now + 60.0))
    assert LocalRuns(root, trials, [None]).run() == 85
    assert "runs to come are not done; to go on, type" in capsys.readouterr().err
    assert trials.more([]) == [1], "it was left to the next job"
    trials.ended(1, ended_run(root, 1, "done"), is_refused=False)
    assert LocalRuns(root, trials, [None]).run() == 0, "there are no more"


def test_what_another_task_has_begun_is_not_left_by_this_one(tmp_path: Path) -> None:
    """Whose exit code was 1 until the other's run had a folder."""
    space = "env.kwargs.y=int(0,15)"
    first, second = (make_trials(tmp_path, space, 2, worker) for worker in "01")
    assert [first.more([]), second.more([])] == [[0], [1]]
    first.ended(0, ended_run(tmp_path, 0, "done"), is_refused=False)
    assert LocalRuns(tmp_path, first, [None]).run() == 0
    assert make_trials(tmp_path, space, 2, "0")._unfinished == []


def test_a_run_of_a_trial_that_is_started_again_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its state stayed that of its first end."""
    root = tmp_path / "s"
    trials = make_trials(root, "env.kwargs.y=int(0,15)", 1)
    ends = [
        ({"state": "stopped", "reason": "a rank was lost", "exit_code": 85}, 85),
        ({"state": "running", "pid": 1, "host": "n1"}, 85),  # it was killed
        ({"state": "failed", "reason": "ValueError", "exit_code": 1}, 1),
    ]
    for number, (facts, _) in enumerate(ends):
        (root / f"{number}.json").write_text(json.dumps(facts))
    starts = iter(enumerate(ends))

    def command(*_given: object) -> list[str]:
        number, (_, code) = next(starts)
        copy = f"mkdir -p {root}/000; cp {root}/{number}.json {root}/000/run.json; exit {code}"
        return ["/bin/sh", "-c", copy]

    monkeypatch.setattr(here, "command_of", command)
    assert LocalRuns(root, trials, [None]).run() == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " after " in line]
    assert [line.partition(" after ")[0].split()[-1] for line in lines] == [
        "stopped", "dead", "failed"
    ]  # fmt: skip


class Killed(RandomSearcher):
    """Its process is killed while it thinks."""

    def ask(self, number: int) -> dict:
        raise KeyboardInterrupt


def test_a_trial_of_a_task_that_was_killed_while_it_asked_is_its_own(tmp_path: Path) -> None:
    """No task went on with it."""
    space = "env.kwargs.y=int(0,15)"
    make_trials(tmp_path, space, 2)
    with pytest.raises(KeyboardInterrupt):
        Trials(tmp_path, "1", Killed(dimensions_of([space]), 0, tmp_path)).more([])
    first, second = (make_trials(tmp_path, space, 2, worker) for worker in "01")
    assert [first.more([]), second.more([])] == [[1], [0]]


class Strict(RandomSearcher):
    """Ends each trial at each interval."""

    def report(self, number: int, step: int, value: float) -> bool:
        with (self.folder / "heard.txt").open("a") as file:
            file.write(f"{step} {value}\n")
        return True


def test_a_trial_that_is_done_is_reported_to_its_end(tmp_path: Path) -> None:
    """Though it would have been pruned: others are compared with it."""
    make_trials(tmp_path, "env.kwargs.y=int(0,15)", 1)
    trials = Trials(tmp_path, "", Strict(dimensions_of(["env.kwargs.y=int(0,15)"]), 0, tmp_path))
    assert trials.more([]) == [0]
    assert trials.ended(0, ended_run(tmp_path, 0, "done"), is_refused=False)
    heard = [line.split() for line in (tmp_path / "heard.txt").read_text().splitlines()]
    assert [int(step) for step, _ in heard] == list(range(32, 321, 32))
    assert [float(value) for _, value in heard[-4:]] == [10.0] * 4


def test_a_trial_that_was_pruned_is_not_as_good_to_the_limit(tmp_path: Path) -> None:
    trials = make_trials(tmp_path, "env.kwargs.y=int(0,15)", 2, score="area")
    assert [trials.more([]), trials.more([])] == [[0], [1]]
    trials._pruned.add(0)
    trials.ended(0, ended_run(tmp_path, 0, "stopped"), is_refused=False)
    trials.ended(1, ended_run(tmp_path, 1, "done"), is_refused=False)
    scores = [read_trial(tmp_path, number)["score"] for number in range(2)]
    assert scores == [2.5, (500 + 1200) / 320]


def test_the_ends_of_a_space_are_checked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="discount_factor"):
        make_trials(tmp_path / "s", "policy.discount_factor=float(0.5,1.5)")
    search = ["sweep", HILL, "--search", "random", "--local"]
    assert cli.main([*search, "--space", "policy.discount_factor=float(0,1)", "seed=1,2"]) == 2
    assert "seed=1,2 has several values" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(search)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("space", "settings", "said"),
    [
        ("seed=0..2", ["seed=4"], "seed=4 has one value, but its key is searched"),
        ("policy.learn.batch_size=16,32,16", [], "has the same experiment as run 0"),
        ("policy.learn.batch_size=16,32,16 seed=0..2", [], "batch_size has a choice twice"),
    ],
)
def test_what_would_make_a_trial_twice_is_refused(
    space: str, settings: list[str], said: str
) -> None:
    search = Search("random", dimensions_of([space]), 3, "best", True, 0)
    with pytest.raises(LaunchError, match=said):
        make_search(HILL, settings, None, search, None, serial=True)


def test_a_dry_run_shows_the_search(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["sweep", HILL, "--search", "random", "--space", "env.kwargs.x=log(1e-6,1)"]
    assert cli.main([*asked, "--trials", "9", "--local", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "9 trials by random in runs/hill/sweeps/search-" in out
    assert "the area return is maximised; pruned each 32 steps; steps of a run: 320" in out


def test_a_search_typed_again_has_the_ranks_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = []

    def refused(sweep: Sweep, _index: int) -> list[str]:
        ranks.append(sweep.ranks)
        return [sys.executable, "-c", "raise SystemExit(2)"]

    monkeypatch.setattr(here, "command_of", refused)
    root = str(tmp_path / "s")
    asked = ["sweep", HILL, "--search", "random", "--space", "env.kwargs.y=int(0,15)", "--local"]
    for more in (["--trials", "1", "--serial"], ["--trials", "2", "-n", "3"]):
        assert cli.main([*asked, "--sweep-dir", root, *more]) == 1
    assert ranks == [0, 3]
    assert cli.main(["sweep", "resume", root, "--local", "--array-parallelism", "2"]) == 2
    assert "--array-parallelism does not go with a search" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("state", "to_type"),
    [("running", "hpcdi sweep resume s"), ("pruned", "hpcdi train --resume s/000")],
)
def test_status_of_a_trial_that_is_over_names_no_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, to_type: str
) -> None:
    """Which would not resume it."""
    monkeypatch.chdir(tmp_path)
    assert make_trials(tmp_path / "s", "env.kwargs.y=int(0,15)").more([]) == [0]
    file = trial_file(tmp_path / "s", 0)
    file.write_text(json.dumps({**json.loads(file.read_text()), "state": state}))
    layout = run_folder.claim(tmp_path / "s" / "000", {"exp_name": "x"}, [], mpi="none")
    run_folder.end(layout, "stopped", "it was asked to", 85, {})
    (layout.snapshots_dir / "snapshot_000001").mkdir(parents=True)
    assert steps(status_of(layout.root, slurm_queue.nobody)) == [to_type]


def test_tasks_of_an_array_search_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    search = Search("random", dimensions_of(["env.kwargs.y=int(0,15)"]), 9, "best", True, 0)
    made, experiment = make_search(HILL, [], None, search, None, serial=False)
    slurm = compile_config(experiment).config.slurm
    script = script_text(searching_tasks(made, slurm, 4))
    assert "#SBATCH --array=0-3\n" in script
    assert "set -- --jobs 1\n" in script
    assert 'hpcdi sweep resume "$RUN" --pack "$@" &' in script

    keep(made, [experiment])
    searcher = RandomSearcher(search.dimensions, 0, made.root)
    for worker in ("", "0", "3"):
        assert Trials(made.root, worker, searcher).more([])
    trial_file(made.root, 3).touch()  # its task was killed before it had settings
    hand_out(made.root, 2)  # of a new job: all are somebody's
    assert Trials(made.root, "0", searcher)._unfinished == [0, 1]
    again = Trials(made.root, "1", searcher)
    assert again._unfinished == [2, 3]
    assert again.more([]) == [2]
    assert again.more([2]) == [3]
    assert read_trial(made.root, 3)["settings"] == searcher.ask(3)


@pytest.mark.parametrize(
    ("setting", "choice"),
    [
        ("evaluate_against=random,a.safetensors", '"{}"'),
        ("league.fixed.rival=random,a.safetensors", '"{}"'),
        ("league.fixed={rival: random},{rival: a.safetensors}", '{{"rival": "{}"}}'),
    ],
)
def test_players_beside_the_experiment_are_found_by_every_trial(
    tmp_path: Path, setting: str, choice: str
) -> None:
    file, config = tmp_path / "a.safetensors", tmp_path / "game.yaml"
    file.touch()
    config.write_text(
        'env: {type: pettingzoo, env_id: "hpcdi.env.games:KuhnPoker"}\n'
        "policy: {type: dqn, collect: {collector: {type: marine}}, "
        "other: {commander: {type: one_vs_one, max_env_step: 100}}}\n"
    )
    dimensions = dimensions_of([f"policy.other.commander.{setting}"])
    search = Search("random", dimensions, 3, "best", False, 0)
    made, _ = make_search(str(config), [], None, search, None, serial=False)
    (dimension,) = made.search.dimensions if made.search else ()
    assert dimension.choices == (dimensions[0].choices[0], choice.format(file))


def test_trials_have_what_is_found_when_the_search_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the same command goes on with it, though `latest` is another run by then."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/quick/first").mkdir(parents=True)
    latest = tmp_path / "runs/quick/latest"
    latest.symlink_to("first")
    Path("far.yaml").write_text(
        'env: {type: gymnasium, env_id: "fakes.far_map:Map"}\ndata: [runs/quick/latest]\n'
        "policy: {type: bc, other: {commander: {max_train_iter: 100}}}\n"
    )

    def begin(space: str) -> tuple[Sweep, dict[str, Any]]:
        search = Search("random", dimensions_of([space]), 3, "best", True, 0)
        return make_search("far.yaml", [], None, search, None, serial=True)

    rate = "policy.learn.learning_rate=log(1e-5,1e-2)"
    several = "data=[runs/quick/latest],[runs/quick/other]"
    of_data = begin(several)[0]
    (dimension,) = of_data.search.dimensions if of_data.search else ()
    assert dimension.choices == tuple(
        f'["{tmp_path}/runs/quick/{name}"]' for name in ("first", "other")
    )
    made, experiment = begin(rate)
    keep(made, [experiment])
    assert Trials(made.root, "", RandomSearcher(dimensions_of([rate]), 0, made.root)).more([]) == [
        0
    ]
    trial = load(made.experiment(0)).config
    assert trial.env.origin == {"observation": [5_400_000.0, 0.0]}
    assert trial.data == (str(tmp_path / "runs/quick/first"),)

    (tmp_path / "runs/quick/second").mkdir()
    latest.unlink()
    latest.symlink_to("second")
    assert same_search(begin(rate)[0], read(made.root))
    assert same_search(begin(several)[0], of_data)
    assert not same_search(begin(several.replace("other", "first"))[0], of_data)
    assert not same_search(begin("policy.learn.learning_rate=log(1e-4,1e-2)")[0], read(made.root))
    # environments that are searched have each an origin of their own
    assert begin("env.kwargs.scale=float(1,2)")[1]["env"]["origin"] is None


def test_a_searcher_of_ones_own_is_named(tmp_path: Path) -> None:
    assert searcher_class("fakes.searchers:Planted") is Planted
    with pytest.raises(LaunchError, match="no class below"):
        searcher_class("fakes.searchers:STEPS")
    with pytest.raises(LaunchError, match="write random, optuna, or module:Class"):
        searcher_class("nevergrad")
    assert Planted((), 0, tmp_path).ask(1)[STEPS] == "100000000"
    assert PRUNED == "pruned"
