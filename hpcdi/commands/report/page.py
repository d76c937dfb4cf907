"""The report as one HTML page: no script, no font, no picture from elsewhere."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import cycle
from typing import Any

from hpcdi import __version__
from hpcdi.commands.report.charts import COLOURS, line_chart
from hpcdi.commands.report.runs import SCORE, Group, Run, differing, setting_text
from hpcdi.commands.report.statistics import Estimate, band_of, improvement, iqm_of, mean_of
from hpcdi.utils.metrics import counted, human_bytes, human_count, human_return, human_time

Against = tuple[str, float] | None
SHOWN_FIRST = (SCORE, "curves/collect_return")
_GROUPS = ("curves/", "info/")
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: .9rem; } .wide { overflow-x: auto; }
th, td { padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top; }
th { border-bottom: 1px solid #8888; } td.number { text-align: right; white-space: nowrap; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(22rem, 1fr)); gap: 1rem; }
.key { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }
.bar { display: flex; height: 1.1rem; min-width: 20rem; } .bar span { display: block; }
.note { opacity: .75; } summary { cursor: pointer; }
@media print { .charts { grid-template-columns: repeat(2, 1fr); } details { display: block; } }
"""


def page_of(groups: Sequence[Group], against: Against = None) -> str:
    """The page.

    Args:
        groups: of runs, at least one.
        against: name and value of a score that was published; None: there is none.
    """
    runs = [run for group in groups for run in group.runs]
    title = ", ".join(dict.fromkeys(str(run.facts.get("exp_name", run.name)) for run in runs))
    charts = charts_of(groups, against)
    legend = f"<p>{' &emsp; '.join(_of_colour(groups, group) for group in groups)}</p>"
    sections = [
        ("Scores", _scores(groups, against)),
        ("Curves", f'{legend}<div class="charts">{"".join(charts.values())}</div>'),
        ("Settings that differ", _settings(groups)),
        ("Where the time went", _time(runs)),
        ("Runs", _runs(runs)),
        ("Faults and restarts", _faults(runs)),
        ("Versions and commands", _versions(runs)),
    ]
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    body = "".join(f"<h2>{name}</h2>{text}" for name, text in sections if text)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<h1>{escape(title)}</h1>"
        f'<p class="note">{counted(len(runs), "run")} in {counted(len(groups), "group")}, reported '
        f"by hpcdi {__version__} on {now}. Lines are means over the runs of a group, bands their "
        "95 % bootstrap intervals. A run that is done counts on at its last value; a line is "
        "dashed where some of its runs have no value.</p>"
        f"{body}</html>\n"
    )


def charts_of(
    groups: Sequence[Group], against: Against = None, only: str | None = None
) -> dict[str, str]:
    """Name of each curve that people look at, or of one -> its chart as SVG, evaluation first."""
    names = {n for group in groups for run in group.runs for n in run.curves if only in (None, n)}
    shown = sorted(n for n in names if n.startswith(_GROUPS)) or sorted(names)
    shown.sort(key=lambda n: SHOWN_FIRST.index(n) if n in SHOWN_FIRST else len(SHOWN_FIRST))
    charts = {}
    for name in shown:
        axes = " or ".join(f"{each}s" for each in axes_of(groups, name))
        axis = axes.replace("env ", "environment ")
        bands = {group.name: band_of(group.curve(name)) for group in groups}
        title = name.removeprefix("curves/").replace("_", " ")
        charts[name] = line_chart(title, bands, against if name == SCORE else None, axis)
    return charts


def axes_of(groups: Sequence[Group], name: str) -> list[str]:
    """Returns what the steps of a curve are: each `Run.axis` of the runs that have it, sorted."""
    return sorted({run.axis for group in groups for run in group.runs if run.curves.get(name)})


# ---------------------------------------------------------------------------------------- sections


def _scores(groups: Sequence[Group], against: Against) -> str:
    """Last evaluations: mean, interquartile mean, and who is better than the first group."""
    rows = []
    for group in groups:
        scores = _known(group)
        best = [run.best for run in group.runs if math.isfinite(run.best)]
        cells = [_of_colour(groups, group), f"{len(scores)} of {len(group.runs)}"]
        if scores:
            cells += [_shown(mean_of(scores)), _shown(iqm_of(scores)), _shown(mean_of(best))]
        else:
            cells += ["no evaluation", "", ""]
        if len(groups) > 1:
            cells.append(_better(group, groups[0]) if group is not groups[0] else "")
        rows.append(cells)
    header = ["group", "evaluated", "last evaluation", "its interquartile mean", "best evaluation"]
    header += [f"better than {escape(groups[0].name)}"] if len(groups) > 1 else []
    line = f"<p>{escape(against[0])}: {human_return(against[1])}</p>" if against else ""
    note = (
        '<p class="note">Means over runs with 95 % intervals. "Best" chooses the highest of each '
        "run's evaluations, and so is higher than what a new evaluation would say.</p>"
    )
    return _table(header, rows, numbers=range(1, len(header))) + line + note


def _better(group: Group, first: Group) -> str:
    """How often a group's scores are above those of the first; empty where one has none."""
    scores, others = _known(group), _known(first)
    if not scores or not others:
        return ""
    if len({group.environment, first.environment} - {""}) > 1:
        return "other environment"
    return _shown(improvement(scores, others), digits=2)


def _known(group: Group) -> list[float]:
    return [run.score for run in group.runs if math.isfinite(run.score)]


def _shown(estimate: Estimate, digits: int = 1) -> str:
    value, low, high = estimate
    if digits == 1:
        scale = max(abs(low), abs(high))
        text = [human_return(number, scale) for number in estimate]
    else:
        text = [f"{number:.{digits}f}" for number in estimate]
    return text[0] if low == high == value else f"{text[0]} ({text[1]} to {text[2]})"


def _of_colour(groups: Sequence[Group], group: Group) -> str:
    """Returns a group's name beside the colour of its lines."""
    number = next(k for k, one in enumerate(groups) if one is group)
    colour = COLOURS[number % len(COLOURS)]
    return f'<span class="key" style="background:{colour}"></span>{escape(group.name)}'


def _settings(groups: Sequence[Group]) -> str:
    names = differing([group.runs[0] for group in groups])
    if not names:
        return ""
    rows = [
        [
            _of_colour(groups, group),
            *(escape(setting_text(group.runs[0].settings.get(n, ""))) for n in names),
        ]
        for group in groups
    ]
    return _table(["group", *map(escape, names)], rows)


def _time(runs: Sequence[Run]) -> str:
    """Each rank's use of time, of each run that has ended; a use has one colour everywhere."""
    ranks = [
        {n: r for n, r in run.figures.get("ranks", {}).items() if isinstance(r, dict)}
        for run in runs
    ]
    uses: dict[str, float] = {}
    for report in (report for of_run in ranks for report in of_run.values()):
        for use, share in _shares(report).items():
            uses[use] = uses.get(use, 0.0) + share
    most_first = sorted(uses, key=lambda use: -uses[use])
    colours = dict(zip(most_first, cycle(COLOURS), strict=False))
    parts = []
    for run, of_run in zip(runs, ranks, strict=True):
        rows = [_rank_row(number, report, colours) for number, report in of_run.items()]
        if rows:
            table = _table(["rank", "role", "cpu", "memory", "shares of its time"], rows)
            is_open = " open" if len(runs) == 1 else ""
            parts.append(
                f"<details{is_open}><summary>{escape(run.name)}</summary>{table}</details>"
            )
    return "".join(parts)


def _shares(report: Mapping[str, Any]) -> dict[str, float]:
    """What a rank did, and for which part of its time."""
    return {n: s for n, s in report.get("shares", {}).items() if isinstance(s, float)}


def _rank_row(number: str, report: Mapping[str, Any], colours: Mapping[str, str]) -> list[str]:
    ordered = sorted(_shares(report).items(), key=lambda item: -item[1])
    bars = "".join(
        f'<span style="width:{share:.1%};background:{colours[name]}" '
        f'title="{escape(name)} {share:.0%}"></span>'
        for name, share in ordered
    )
    words = ", ".join(
        f'<span class="key" style="background:{colours[name]}"></span>{escape(name)} {share:.0%}'
        for name, share in ordered
        if share >= 0.005
    )
    cpu, memory = report.get("cpu"), report.get("memory_bytes")
    return [
        escape(str(number)),
        escape(str(report.get("role", ""))),
        f"{cpu:.0%}" if isinstance(cpu, float) else "",
        human_bytes(memory) if isinstance(memory, int) else "",
        f'<div class="bar">{bars}</div>{words}',
    ]


def _runs(runs: Sequence[Run]) -> str:
    rows = []
    for run in runs:
        figures = run.figures or run.progress
        rows.append(
            [
                escape(run.name),
                escape(str(run.settings.get("seed", ""))),
                escape(_end(run)),
                _number(human_count, figures.get("env_steps")),
                _number(human_count, figures.get("train_iter")),
                human_return(run.score) if math.isfinite(run.score) else "",
                _number(human_time, run.spent.get("elapsed_s")),
                _number(lambda core_s: f"{core_s / 3600:.3g}", run.spent.get("core_s")),
                _number(human_bytes, run.spent.get("data_bytes")),
            ]
        )
    header = [
        "run", "seed", "end", "env steps", "train iterations", "last evaluation", "elapsed",
        "core hours", "data",
    ]  # fmt: skip
    return _table(header, rows, numbers=range(3, len(header)))


def _end(run: Run) -> str:
    return ": ".join(filter(None, run.end))


def _faults(runs: Sequence[Run]) -> str:
    rows = []
    for run in runs:
        lost = [f"rank {rank}: {why}" for rank, why in run.progress.get("lost", {}).items()]
        counts = [
            f"{human_count(run.figures[name])} {words}"
            for name, words in (
                ("blocks_lost", "blocks lost"),
                ("blocks_skipped", "blocks left out"),
            )
            if run.figures.get(name)
        ]
        restarts = run.facts.get("restarts", 0)
        if restarts or lost or counts:
            starts = [counted(restarts, "restart")] if restarts else []
            rows.append([escape(run.name), escape("; ".join([*starts, *lost, *counts]))])
    return _table(["run", "what happened"], rows) if rows else "<p>None.</p>"


def _versions(runs: Sequence[Run]) -> str:
    parts = []
    for run in runs:
        versions = run.facts.get("versions", {})
        facts = {
            "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
            "commit": run.facts.get("git_commit"),
            "command": " ".join(map(str, run.facts.get("command") or [])),
            "hosts": ", ".join(sorted({str(p["host"]) for p in run.facts.get("placement", [])})),
            "started": run.facts.get("started"),
            "folder": run.folder,
        }
        rows = [[name, escape(str(value))] for name, value in facts.items() if value]
        parts.append(
            f"<details><summary>{escape(run.name)}</summary>{_table(['', ''], rows)}</details>"
        )
    return "".join(parts)


def _number(human: Callable[[float], str], value: object) -> str:
    """Returns a number as a person writes it; empty where it is none."""
    return human(value) if isinstance(value, int | float) else ""


def _table(
    header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()
) -> str:
    """A table of HTML texts; columns of `numbers` are flush right."""
    right = set(numbers)

    def cell(number: int, text: str) -> str:
        return f'<td class="number">{text}</td>' if number in right else f"<td>{text}</td>"

    top = "".join(f"<th>{name}</th>" for name in header) if any(header) else ""
    lines = "".join(
        f"<tr>{''.join(cell(number, text) for number, text in enumerate(row))}</tr>" for row in rows
    )
    return f'<div class="wide"><table><tr>{top}</tr>{lines}</table></div>'
