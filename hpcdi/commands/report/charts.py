"""Line charts as SVG: one for each curve, a line and a band for each group."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TypeVar

import numpy as np

from hpcdi.commands.report.statistics import Band
from hpcdi.types import Array
from hpcdi.utils.metrics import human_count

Number = TypeVar("Number", float, Array)

COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#555555",
    "#882255",
)  # fmt: skip
"""Of groups in turn: to be told apart by the colour-blind, too (Okabe and Ito 2008)."""
_WIDTH, _HEIGHT = 460, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 30, 34
_TICKS = 6


def line_chart(
    title: str,
    bands: Mapping[str, Band],
    line: tuple[str, float] | None = None,
    axis: str = "environment steps",
) -> str:
    """A chart over the steps of curves; a line is dashed where some of its runs have no value.

    Args:
        title: of the chart.
        bands: name of each group -> its curve; one that lacks it is there without points, since
            a group's colour is that of its place.
        line: a name and a value that is drawn across; None: none is.
        axis: what steps are.
    """
    values = [v for b in bands.values() for part in (b.mean, b.low, b.high) for v in part]
    values += [line[1]] if line is not None else []
    low, high = _limits([v for v in values if math.isfinite(v)])
    steps = [float(step) for band in bands.values() for step in band.steps]
    start, end = min(steps, default=0.0), max(steps, default=1.0)
    plane = _Plane(min(start, 0.0), end if end > start else start + 1.0, low, high)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="11"><title>{escape(title)}</title>'
        f'<text x="{_LEFT}" y="18" font-weight="bold" fill="currentColor">{escape(title)}</text>',
        *plane.axes(axis),
    ]
    if line is not None:
        y = plane.y(line[1])
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="currentColor" stroke-dasharray="5 4"/><text x="{_WIDTH - _RIGHT}" '
            f'y="{y - 4:.1f}" text-anchor="end" fill="currentColor">{escape(line[0])}</text>'
        )
    for number, (name, band) in enumerate(bands.items()):
        colour = COLOURS[number % len(COLOURS)]
        is_whole = band.runs == band.total
        for run in _runs_of(np.isfinite(band.low) & np.isfinite(band.high)):
            edge = [*plane.points(band.steps[run], band.low[run])]
            edge += reversed([*plane.points(band.steps[run], band.high[run])])
            parts.append(f'<polygon points="{" ".join(edge)}" fill="{colour}" opacity="0.18"/>')
        for run in _runs_of(np.isfinite(band.mean)):
            points = [*plane.points(band.steps[run], band.mean[run])]
            end_x, end_y = points[-1].split(",")
            parts.append(f'<circle cx="{end_x}" cy="{end_y}" r="2.5" fill="{colour}"/>')
            if is_whole[run].all():
                continue
            parts.append(
                f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" '
                f'stroke-dasharray="4 3"><title>{escape(name)}: a mean without some of its '
                "runs</title></polyline>"
            )
        for run in _runs_of(is_whole & np.isfinite(band.mean)):
            points = [*plane.points(band.steps[run], band.mean[run])]
            parts.append(
                f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" '
                f'stroke-width="1.8"><title>{escape(name)}</title></polyline>'
            )
    return "".join([*parts, "</svg>"])


class _Plane:
    """Where values lie in the chart."""

    def __init__(self, start: float, end: float, low: float, high: float) -> None:
        self.start, self.end, self.low, self.high = start, end, low, high

    def x(self, step: float) -> float:
        return _LEFT + (step - self.start) / (self.end - self.start) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        at = share(value, self.low, self.high)
        return _HEIGHT - _BOTTOM - at * (_HEIGHT - _TOP - _BOTTOM)

    def points(self, steps: Array, values: Array) -> Iterator[str]:
        """Yields points as SVG has them."""
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            yield f"{self.x(step):.1f},{self.y(value):.1f}"

    def axes(self, name: str) -> Iterator[str]:
        """Yields ticks with their lines and numbers."""
        for value in ticks(self.low, self.high):
            y = self.y(value)
            yield (
                f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                f'stroke="currentColor" opacity="0.15"/><text x="{_LEFT - 6}" y="{y + 4:.1f}" '
                f'text-anchor="end" fill="currentColor">{value:.5g}</text>'
            )
        for step in ticks(self.start, self.end):
            yield (
                f'<text x="{self.x(step):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle" '
                f'fill="currentColor">{human_count(step)}</text>'
            )
        yield (
            f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end" '
            f'fill="currentColor" opacity="0.7">{escape(name)}</text>'
        )


def share(value: Number, start: float, end: float) -> Number:
    """Where a number lies, or each of an array, from start (0) to end (1); these may be huge."""
    return (value / 2 - start / 2) / (end / 2 - start / 2)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from low to high, three to seven."""
    span = float(high) - float(low)  # which numpy would warn of
    rough = span / _TICKS if math.isfinite(span) else high / _TICKS - low / _TICKS
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(scale * nice for nice in (1, 2, 2.5, 5, 10) if scale * nice >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [(first + k) * step for k in range(count)]


def _limits(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    room, most = high * 0.05 - low * 0.05 or room_for(high), sys.float_info.max
    return max(low - room, -most), min(high + room, most)


def room_for(value: float) -> float:
    """The height of a chart of one value."""
    return abs(value) * 0.1 or 1.0


def _runs_of(known: Array) -> Iterator[slice]:
    """Yields the stretches of a curve where it has values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(np.int8)))
    for first, end in edges.reshape(-1, 2).tolist():
        yield slice(first, end)
