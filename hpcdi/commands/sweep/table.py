"""What became of a sweep's runs: as a table for people, as CSV, as plain data."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hpcdi.commands.options import in_columns
from hpcdi.commands.report.statistics import Estimate, mean_of
from hpcdi.commands.run_state import RunStatus, axis_of, settings_of
from hpcdi.commands.sweep.population import History
from hpcdi.commands.sweep.runs import PRUNED, Population, Sweep, read_trial, search_of
from hpcdi.commands.sweep.scores import SCORES, points_of
from hpcdi.run import run_folder
from hpcdi.utils.metrics import counted, human_count, human_return, human_time

_SHOWN = (
    "state", "env_steps", "train_iter", "elapsed_s", "best", "last", "area", "score", "copied",
    "job",
)  # fmt: skip
_OF_AXIS = ("data=", "policy=", "policy.other=", "policy.other.commander")
"""Settings that may decide `axis_of` begin so."""


def rows_of(
    sweep: Sweep, statuses: Sequence[RunStatus | None], history: History | None = None
) -> list[dict[str, Any]]:
    """Returns each run as plain data: its settings, state, progress, results.

    Args:
        sweep: with the present state of each run.
        statuses: status of each run.
        history: of a population: ``copied`` says from which run at which environment steps.
    """
    rows = []
    axes: dict[tuple[str, ...], str] = {}  # a configuration takes long to read: of each kind one
    for element, status in zip(sweep.elements, statuses, strict=True):
        row = {"index": element.index, **element.settings, "state": element.state}
        row["job"] = element.job
        if history is not None:
            copies = history.lineage(element.index)
            row["copied"] = " ".join(f"{donor}@{env_steps}" for env_steps, donor in copies)
        if sweep.search is not None:
            row["score"] = read_trial(sweep.root, element.index).get("score")
        if status is not None:
            kind = tuple(text for text in element.overrides if text.startswith(_OF_AXIS))
            if kind not in axes and (settings := settings_of(status.layout)):
                axes[kind] = axis_of(settings)
            row |= _results(status, is_offline=axes.get(kind) == "train iteration")
        rows.append(row)
    return rows


def _results(status: RunStatus, *, is_offline: bool) -> dict[str, Any]:
    progress = status.progress
    # what the steps of its curves are: in its limits, and in an evaluation
    steps, of_evaluation = ("train_iter", "policy_version") if is_offline else ("env_steps",) * 2
    row: dict[str, Any] = {"reason": status.why, "run": str(status.layout.root)}
    row["restarts"] = int(status.facts.get("restarts", 0))
    if progress:
        row["env_steps"], row["train_iter"] = progress["env_steps"], progress["train_iter"]
        row["elapsed_s"] = round(run_folder.spent(status.facts, progress)["elapsed_s"], 1)
    for name, key in (("best", "best_evaluation"), ("last", "evaluation")):
        evaluation = progress.get(key)
        if evaluation:
            row[name], row[f"{name}_std"] = evaluation["mean"], evaluation["std"]
            row[f"{name}_{steps}"] = evaluation[of_evaluation]
    points = points_of(status.layout)
    if points:
        # one that was solved before its limit stays as good as it was; what has failed does not
        limit = (status.state == "done" and progress.get("limits", {}).get(steps)) or math.inf
        row["area"] = SCORES["area"](points, float(limit))
    return row


def csv_of(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the rows as CSV, with a header."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def table_of(
    sweep: Sweep, rows: Sequence[dict[str, Any]], history: History | None = None
) -> list[str]:
    """Returns the rows as a table for people; see `rows_of`."""
    keys = list(dict.fromkeys(key for element in sweep.elements for key in element.settings))
    is_shown = {name: any(row.get(name) not in (None, "") for row in rows) for name in _SHOWN}
    names = ["index", *keys, *(name for name in _SHOWN if is_shown[name])]
    cells = [names, *([_cell(name, row.get(name)) for name in names] for row in rows)]
    counts = Counter(row["state"] for row in rows)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    title = f"{sweep.exp_name}: {counted(len(rows), 'run')}, {states}"
    below = _over_seeds(rows, keys)
    if history is not None and sweep.population is not None:
        below = [_generation(sweep.population, history)]
    if sweep.search is not None:
        below = of_search(sweep, rows)
    return [title, *in_columns(cells, left=len(names)), *below]


def _generation(population: Population, history: History) -> str:
    """Returns how far a population is."""
    mark = history.mark(population)
    number, count = (math.ceil(steps / population.every) for steps in (mark, population.limit))
    return f"  generation   {number} of {count}, to {human_count(mark)} environment steps"


def of_search(sweep: Sweep, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns how far a search is, and its best trial."""
    search = search_of(sweep)
    counts = Counter(row["state"] for row in rows)
    left = search.trials - len(rows)
    states = [f"{count} {state}" for state, count in counts.items()]
    states += [f"{left} not begun"] if left > 0 else []
    lines = [f"  search       {search.trials} trials by {search.searcher}: {', '.join(states)}"]
    done = [row for row in rows if row.get("score") is not None and row["state"] != PRUNED]
    if done:
        best = max(done, key=lambda row: float(row["score"]))
        title, score = sweep.elements[best["index"]].title, human_return(best["score"])
        lines += [f"  best         {title}: {search.score} return {score}"]
    return lines


def _over_seeds(rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[str]:
    """Returns figures of runs that differ only in their seed: means, with intervals."""
    if "seed" not in keys:
        return []
    others = [key for key in keys if key != "seed"]
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row.get("best") is not None and row["state"] == "done":
            groups.setdefault(tuple(row[key] for key in others), []).append(row)
    lines = []
    for values, alike in groups.items():
        if len(alike) > 1:
            what = " ".join(f"{k}={v}" for k, v in zip(others, values, strict=True))
            figures = [
                f"{name} {_interval(mean_of([float(row[name]) for row in alike]))}"
                for name in ("best", "last", "area")
                if all(row.get(name) is not None for row in alike)
            ]
            of = f" of {what}" if what else ""
            lines.append(f"  {len(alike)} seeds{of}: {', '.join(figures)}")
    if lines:
        lines += [
            "  (means, with 95 % bootstrap intervals, of: the best evaluation, which is biased",
            "  upwards; the last one; the mean over the training, the area under the curve)",
        ]
    return lines


def _interval(estimate: Estimate) -> str:
    """Returns a mean and its interval, with equal decimals."""
    mean, low, high = (human_return(value, estimate.value) for value in estimate)
    return f"{mean} [{low}, {high}]"


def _cell(name: str, value: Any) -> str:
    if value is None or value == "":
        return "-"
    if name in ("env_steps", "train_iter"):
        return human_count(value)
    if name in ("best", "last", "area", "score"):
        return human_return(value)
    if name == "elapsed_s":
        return human_time(value)
    is_long = re.fullmatch(r"[+-]?\d*\.\d{7,}(e[+-]?\d+)?", text := str(value))
    return f"{float(text):.6g}" if is_long else text
