"""What a report says of a run, read from its folder; and which runs are one group."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcdi.commands.run_state import axis_of, end_of, read_progress, settings_of
from hpcdi.dataclass import dataclass
from hpcdi.run import resume, run_folder, slurm_queue
from hpcdi.run.slurm_queue import QueueJob
from hpcdi.store.layout import RunLayout
from hpcdi.utils.curves import CurvePoint, read_curves
from hpcdi.utils.metrics import counted

SCORE = "curves/evaluation_return"
"""The curve whose last point is a run's score."""
_IGNORED = (*resume.SAME, *resume.OF_A_START, "env.origin")
"""Settings in which runs of one group may differ; `env.origin` may come from the seed."""
_UNREAD = "whose config.yaml is missing or damaged"


@dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
        folder: of the run.
        facts: run.json, without what is damaged.
        progress: status.json, likewise.
        settings: of config.yaml, by dotted name; empty where it cannot be read.
        curves: tag -> points.
        ask: returns a job of the queue.
    """

    folder: Path
    facts: Mapping[str, Any]
    progress: Mapping[str, Any]
    settings: Mapping[str, Any]
    curves: Mapping[str, Sequence[CurvePoint]]
    ask: Callable[[str], QueueJob | None] = slurm_queue.ask

    @property
    def name(self) -> str:
        """The folder's own name, and that of the one above it."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def axis(self) -> str:
        """What its curves' steps are."""
        return axis_of(self.settings)

    @property
    def score(self) -> float:
        """Mean return of its last evaluation; NaN before one."""
        points = self.curves.get(SCORE, ())
        return points[-1].value if points else math.nan

    @property
    def best(self) -> float:
        """The highest mean return of its evaluations; NaN before one."""
        values = [p.value for p in self.curves.get(SCORE, ()) if math.isfinite(p.value)]
        return max(values, default=math.nan)

    @cached_property
    def end(self) -> tuple[str, str]:
        """Its state, and the reason for it, by its folder and the queue, see `end_of`."""
        return end_of(self.folder, self.ask)

    @cached_property
    def spent(self) -> Mapping[str, float]:
        """What all of its starts have taken, see `run_folder.spent`."""
        return run_folder.spent(self.facts, self.progress)

    @cached_property
    def figures(self) -> Mapping[str, Any]:
        """Closing figures; empty while it is on."""
        figures: Mapping[str, Any] = self.facts.get("figures", {})
        return figures


@dataclass(frozen=True)
class Group:
    """Runs of the same settings, but for their seeds, and how and where they were started.

    Attributes:
        name: the settings in which it differs from other groups; no two have the same.
        runs: at least one.
    """

    name: str
    runs: Sequence[Run]

    @property
    def environment(self) -> str:
        """Its environment's id, or the type that stands for one; empty where it is not known."""
        settings = self.runs[0].settings
        return str(settings.get("env.env_id") or settings.get("env.type", ""))

    def curve(self, name: str) -> list[Sequence[CurvePoint]]:
        """Returns the points of each run that has this curve.

        One that is done counts on at its last value, to where the last run ends, as in a sweep's
        scores: without those that were solved first, the mean would fall.
        """
        having = [run for run in self.runs if run.curves.get(name)]
        end = max((run.curves[name][-1].step for run in having), default=0)
        curves = []
        for run in having:
            points = run.curves[name]
            if run.facts.get("state") == "done" and points[-1].step < end:
                points = [*points, points[-1]._replace(step=end)]
            curves.append(points)
        return curves


def read_run(folder: Path, ask: Callable[[str], QueueJob | None] = slurm_queue.ask) -> Run:
    """Returns what there is of a run; what is damaged is left out.

    Args:
        folder: of the run.
        ask: returns a job of the queue; of many runs see `asked_at_once`.
    """
    layout = RunLayout(folder)
    return Run(
        folder,
        run_folder.read(folder),
        read_progress(layout),
        settings_of(layout),
        read_curves(layout.curve_files()),
        ask,
    )


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Returns the runs by their settings, groups in the order of their first runs.

    Each run whose settings cannot be read is a group of its own.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        same = {n: v for n, v in run.settings.items() if not resume.is_below(n, _IGNORED)}
        key = repr(sorted(same.items())) if run.settings else f"{_UNREAD} {run.folder}"
        groups.setdefault(key, []).append(run)
    firsts = [members[0] for members in groups.values()]
    names = [_name(run, differing(firsts)) for run in firsts]
    for attribute in ("name", "folder"):  # until no two groups have the same name
        count = Counter(names)
        names = [
            f"{name} ({getattr(run, attribute)})" if count[name] > 1 else name
            for name, run in zip(names, firsts, strict=True)
        ]
    return [Group(name, members) for name, members in zip(names, groups.values(), strict=True)]


def runs_in(groups: Sequence[Group]) -> str:
    """Formats how many runs there are: "1 run", "4 runs in 2 groups"."""
    runs = counted(sum(len(group.runs) for group in groups), "run")
    return f"{runs} in {len(groups)} groups" if len(groups) > 1 else runs


def differing(runs: Sequence[Run]) -> list[str]:
    """Returns the settings that are not the same in all runs, but for those that groups ignore.

    Runs whose settings cannot be read do not count.
    """
    runs = [run for run in runs if run.settings]
    names = dict.fromkeys(name for run in runs for name in run.settings)
    return [
        name
        for name in names
        if not resume.is_below(name, _IGNORED)
        and len({repr(run.settings.get(name)) for run in runs}) > 1
    ]


def setting_text(setting: object) -> str:
    """A setting as a person writes it."""
    return f"{setting:.10g}" if isinstance(setting, float) else str(setting)


def _name(run: Run, names: Sequence[str]) -> str:
    shown = [
        f"{n.rpartition('.')[2]}={setting_text(run.settings[n])}"
        for n in names
        if n in run.settings
    ]
    experiment = str(run.facts.get("exp_name") or run.folder.parent.name)
    if not run.settings:
        return f"{experiment}, {_UNREAD}"
    return ", ".join(shown[:4]) or experiment
