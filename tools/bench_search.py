"""Whether a search is worth it: Optuna beside random search, at a planted optimum.

Trials of `hpcdi sweep --optuna` and `--search random`, real runs in one process each, of
`tests/fakes/hill.yaml`: an environment whose return is known by three of its settings (a number
over six decades, an integer of 16, a choice of three), and is highest, 1, at one point. Beside each
other for each seed: the best trial, and the mean of all trials. Fails if Optuna's best trial is not
better in most seeds. Nothing is pruned, so that both run the same number of steps.

With ``--simulated`` trials are curves of that known worth with noise, ten evaluations each, told to
the searchers in this process; both have 300 evaluations, and Optuna prunes. What counts is the
worth of the trial that looks best at its end.

    python tools/bench_search.py               3 seeds, 24 trials: a quarter of an hour
    python tools/bench_search.py --quick       1 seed, 16 trials
    python tools/bench_search.py --simulated --seeds 15    two minutes
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean

import numpy as np
from figures import Row, at_least, parsed, parser, show

from hpcdi.commands.sweep.trials import dimensions_of
from hpcdi.search import OptunaSearcher, RandomSearcher, Searcher

ROOT = Path(__file__).parent.parent
SPACE = "env.kwargs.x=log(1e-6,1) env.kwargs.y=int(0,15) env.kwargs.kind=a,b,c"


def main() -> None:
    """Measure, and print."""
    command_line = parser(__doc__ or "")
    command_line.add_argument("--seeds", type=int, default=3)
    command_line.add_argument("--trials", type=int, default=24)
    command_line.add_argument("--jobs", type=int, default=2, help="at a time")
    command_line.add_argument("--simulated", action="store_true", help="no runs, see above")
    given = parsed(command_line, seeds=1, trials=16)
    if given.simulated:
        _simulate(given.seeds, as_json=given.json)
        return
    best: dict[str, list[float]] = {"optuna": [], "random": []}
    mean: dict[str, list[float]] = {"optuna": [], "random": []}
    for seed in range(given.seeds):
        for searcher in best:
            scores = search(searcher, seed, given.trials, given.jobs)
            best[searcher].append(max(scores))
            mean[searcher].append(fmean(scores))
            sys.stderr.write(f"seed {seed}, {searcher}: best {max(scores):.3f}\n")
    wins = sum(ours > chance for ours, chance in zip(*best.values(), strict=True))
    what = f"{given.trials} trials, mean of {given.seeds} seeds"
    rows = [
        at_least("seeds in which Optuna's best trial is better", wins, "", given.seeds // 2 + 1),
        *[
            Row(f"{name} trial, of 1; {what}", fmean(of["optuna"]), "",
                ratio=fmean(of["optuna"]) / fmean(of["random"]),
                peer=f"random {fmean(of['random']):.3f}")
            for name, of in (("best", best), ("mean", mean))
        ],
    ]  # fmt: skip
    show(rows, given.json)


def _simulate(seeds: int, *, as_json: bool) -> None:
    best: dict[str, list[float]] = {"optuna": [], "random": []}
    for seed in range(seeds):
        for name, kind in (("optuna", OptunaSearcher), ("random", RandomSearcher)):
            with tempfile.TemporaryDirectory() as folder:
                found = simulated(kind(dimensions_of([SPACE]), seed, Path(folder)), seed)
            best[name].append(found)
    wins = sum(ours > chance for ours, chance in zip(*best.values(), strict=True))
    what = f"seeds of {seeds} in which Optuna, pruning, finds more"
    rows = [
        at_least(what, wins, "", seeds // 2 + 1),
        Row("worth of what is found, of 1; mean", fmean(best["optuna"]), "",
            ratio=fmean(best["optuna"]) / fmean(best["random"]),
            peer=f"random {fmean(best['random']):.3f}"),
    ]  # fmt: skip
    show(rows, as_json)


def simulated(searcher: Searcher, seed: int, evaluations: int = 300, steps: int = 10) -> float:
    """Returns the worth of the trial that looks best, after so many evaluations of all trials."""
    rng, number = np.random.default_rng([seed, 99]), 0
    looks_best, found = -math.inf, 0.0
    while evaluations > 0:
        settings = searcher.ask(number)
        x, y, kind = (settings[f"env.kwargs.{name}"] for name in ("x", "y", "kind"))
        worth = 1 - abs(math.log10(float(x)) + 3) / 3 - abs(int(y) - 7) / 16 - 0.5 * (kind != "b")
        is_pruned, value = False, 0.0
        for step in range(1, steps + 1):
            value = worth * step / steps + 0.05 * rng.standard_normal()
            evaluations -= 1
            if is_pruned := step < steps and searcher.report(number, step, value):
                break
        searcher.tell(number, settings, None if is_pruned else value, is_pruned=is_pruned)
        if not is_pruned and value > looks_best:
            looks_best, found = value, worth
        number += 1
    return found


def search(searcher: str, seed: int, trials: int, jobs: int) -> list[float]:
    """Returns the scores of the trials of one search."""
    with tempfile.TemporaryDirectory() as folder:
        who = (
            ["--optuna", SPACE]
            if searcher == "optuna"
            else ["--search", searcher, "--space", SPACE]
        )
        command = [
            sys.executable, "-m", "hpcdi", "sweep", str(ROOT / "tests/fakes/hill.yaml"), *who,
            "--trials", str(trials), "--jobs", str(jobs), "--seed", str(seed), "--no-prune",
            "--score", "last", "--local", "--serial", "--sweep-dir", f"{folder}/sweep",
        ]  # fmt: skip
        paths = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
        done = subprocess.run(command, env={**os.environ, **paths}, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"the search failed:\n{done.stdout}{done.stderr}")
        files = sorted(Path(folder, "sweep", "trials").glob("*.json"))
        return [json.loads(file.read_text())["score"] for file in files]


if __name__ == "__main__":
    main()
