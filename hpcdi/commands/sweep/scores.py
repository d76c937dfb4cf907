"""What a run's curve of evaluations is worth, as one number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hpcdi.commands.report.runs import SCORE
from hpcdi.store.layout import RunLayout
from hpcdi.utils.curves import read_curves

Point = tuple[int, float]
"""Environment steps (offline: train iterations), and the mean return of the evaluation there."""


def area_of(points: Sequence[Point], limit: float) -> float:
    """Returns the mean return over the training: the area under the curve by its length.

    The trapezoids of the evaluations; the first one counts back to 0, the last one on to `limit`:
    a run that ends early, at its stop value, has learnt faster.

    Args:
        points: evaluations, in order.
        limit: steps at which the run ends; infinite: at its last evaluation.
    """
    steps, values = (np.array(part, np.float64) for part in zip(*points, strict=True))
    end = limit if np.isfinite(limit) and limit > steps[-1] else steps[-1]
    if end <= 0:
        return float(values[-1])
    steps, values = np.r_[0.0, steps, end], np.r_[values[0], values, values[-1]]
    return float(np.trapezoid(values, steps) / end)


SCORES: Mapping[str, Callable[[Sequence[Point], float], float]] = {
    "area": area_of,
    "best": lambda points, _: max(value for _, value in points),
    "last": lambda points, _: points[-1][1],
}
"""What a run is worth, by name: of its evaluations and its limit."""


def points_of(layout: RunLayout) -> list[Point]:
    """Returns a run's evaluations, by its curves; a step has one."""
    points = read_curves(layout.curve_files()).get(SCORE, [])
    values = {point.step: point.value for point in points}
    return sorted((step, value) for step, value in values.items() if math.isfinite(value))


def value_at(points: Sequence[Point], step: int) -> float:
    """Returns a curve's value at a step: between two evaluations, in proportion."""
    steps, values = zip(*points, strict=True)
    return float(np.interp(step, steps, values))
