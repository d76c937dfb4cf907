"""Figures over the runs of a group.

Agarwal et al. 2021: "Deep reinforcement learning at the edge of the statistical precipice".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hpcdi.types import Array
from hpcdi.utils.curves import CurvePoint

GRID = 120
"""Points at which the curves of a group are averaged, where together they have more."""
_GRID_OF_ONE = 10 * GRID
"""Points up to which a single curve is drawn as it is."""
_RESAMPLES = 2000
_PERCENTILES = (2.5, 97.5)


class Estimate(NamedTuple):
    """A figure, and its 95 % interval: equal to it where there is one run."""

    value: float
    low: float
    high: float


class Band(NamedTuple):
    """The mean of curves.

    Attributes:
        steps: where, float64 [points].
        mean: float64 [points].
        low: of its interval, float64 [points].
        high: likewise.
        runs: how many curves have a value there, int64 [points].
        total: how many curves there are.
    """

    steps: Array
    mean: Array
    low: Array
    high: Array
    runs: Array
    total: int


def band_of(curves: Sequence[Sequence[CurvePoint]]) -> Band:
    """The mean of several curves over their common steps, with its bootstrap interval.

    Between its points a curve is a straight line; it ends with its last one. Where some have ended
    the mean is of the others, and the interval of these; as soon as half of them have, it ends: the
    few that go on are those that were slow to learn. Where at no step more than half of them are
    there, it is over all steps, and a curve of one point has its value at each of them.
    It is taken at the steps of the curves, or at `GRID` ones where these are too many.

    Args:
        curves: each at least one point, by step; without any, the band has no points.
    """
    if not curves:
        none = np.empty(0)
        return Band(none, none, none, none, none, 0)
    half = len(curves) // 2
    start = sorted(points[0].step for points in curves)[half]
    end = sorted(points[-1].step for points in curves)[len(curves) - 1 - half]
    present = sum(points[0].step <= start <= points[-1].step for points in curves)
    share_no_step = end <= start and present <= half
    if share_no_step:
        start = min(points[0].step for points in curves)
        end = max(points[-1].step for points in curves)
    own_steps = np.unique([p.step for points in curves for p in points if start <= p.step <= end])
    keeps_steps = not share_no_step and len(own_steps) <= (
        GRID if len(curves) > 1 else _GRID_OF_ONE
    )
    steps = own_steps.astype(np.float64) if keeps_steps else np.linspace(start, end, GRID)
    rows = np.full((len(curves), len(steps)), np.nan)
    for row, points in zip(rows, curves, strict=True):
        at, values = np.array([(p.step, p.value) for p in points], dtype=np.float64).T
        row[:] = np.interp(steps, at, values, left=np.nan, right=np.nan)
        for step, value in ((at[-1], values[-1]), (at[0], values[0])):  # between points of the grid
            if start <= step <= end:
                row[np.abs(steps - step).argmin()] = value
        if share_no_step and len(points) == 1:
            row[:] = values[0]
    chosen = _resampled(len(curves))
    with np.errstate(invalid="ignore"):
        counts = np.isfinite(rows)
        filled = np.where(counts, rows, 0.0)
        runs = counts.sum(axis=0)
        mean = filled.sum(axis=0) / runs
        means = filled[chosen].sum(axis=1) / counts[chosen].sum(axis=1)
    known = np.isfinite(means).any(axis=0)
    low, high = np.full((2, len(steps)), np.nan)
    if known.any():  # a loss may be NaN from its first point on
        low[known], high[known] = np.nanpercentile(means[:, known], _PERCENTILES, axis=0)
    return Band(steps, mean, low, high, runs, len(curves))


def mean_of(scores: Sequence[float]) -> Estimate:
    """The mean of scores."""
    return _estimate(scores, lambda rows: rows.mean(axis=-1))


def iqm_of(scores: Sequence[float]) -> Estimate:
    """The mean of the middle half of scores (Agarwal et al. 2021, section 4.3)."""
    return _estimate(scores, _iqm)


def improvement(scores: Sequence[float], others: Sequence[float]) -> Estimate:
    """Probability that a run of one group is better than one of another (the same, 4.3).

    Ties count half. The interval resamples both groups.
    """
    ours, theirs = np.asarray(scores, np.float64), np.asarray(others, np.float64)

    def share(left: Array, right: Array) -> Array:
        above = left[..., :, None] - right[..., None, :]
        wins: Array = ((above > 0) + 0.5 * (above == 0)).mean(axis=(-2, -1))
        return wins

    drawn = share(ours[_resampled(len(ours))], theirs[_resampled(len(theirs), seed=1)])
    low, high = np.percentile(drawn, _PERCENTILES)
    return Estimate(float(share(ours, theirs)), float(low), float(high))


def _estimate(scores: Sequence[float], figure: Callable[[Array], Array]) -> Estimate:
    values = np.asarray(scores, dtype=np.float64)
    low, high = np.percentile(figure(values[_resampled(len(values))]), _PERCENTILES)
    return Estimate(float(figure(values)), float(low), float(high))


def _iqm(rows: Array) -> Array:
    """Mean of the middle half; a value that a quartile cuts counts by its part."""
    rows = np.sort(rows, axis=-1)
    count = rows.shape[-1]
    edges = np.clip(np.arange(count + 1), 0.25 * count, 0.75 * count)
    weights = np.diff(edges)  # how much of each value lies between the quartiles
    middle: Array = rows @ weights / weights.sum()
    return middle


def _resampled(count: int, seed: int = 0) -> Array:
    """Numbers of runs, drawn with replacement: int64 [resamples, count]; always the same."""
    drawn: Array = np.random.default_rng(seed).integers(count, size=(_RESAMPLES, count))
    return drawn
