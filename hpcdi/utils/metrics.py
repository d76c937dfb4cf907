"""Numbers about a running run: counters, means, rates, percentiles; formatting for people."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hpcdi.types import ScalarWriter

_LOGGER = logging.getLogger("hpcdi")  # `utils.log` imports this module


class CountVar:
    """A mutable counter, shared by reference."""

    def __init__(self, init_val: int = 0) -> None:
        self.val = init_val

    def update(self, val: int) -> None:
        """Set it."""
        self.val = val

    def add(self, add_num: int) -> None:
        """Add to it."""
        self.val += add_num


CHART = "[scalars]"
HISTOGRAM = "[histogram]"


def as_scalar(value: object) -> float | None:
    """The number that a value of a log is, a tensor or an array without an axis, too; else None."""
    if isinstance(value, int | float | np.integer | np.floating):
        return float(value)
    if getattr(value, "ndim", None) != 0:
        return None
    with contextlib.suppress(RuntimeError, OverflowError):  # on no device, or beyond floats
        number = value.item()  # type: ignore[attr-defined]
        is_time = getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M")
        return float(number) if isinstance(number, int | float) and not is_time else None
    return None


class ScalarMonitor:
    """Accumulates scalars until their means are taken; keeps the latest arrays.

    The prefix of a key is the kind of its value: ``[scalars]name`` is a mapping of numbers, the
    curves of one chart; ``[histogram]name`` is an array; a key without a prefix has a number.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._newest: dict[str, float] = {}
        self._arrays: dict[str, Any] = {}
        self._warned: set[str] = set()  # names of arrays that were warned of

    def add(self, scalars: Mapping[str, Any]) -> None:
        """Add one iteration's log, also of tensors and arrays without an axis.

        Other values are ignored; of arrays the program's log says so once.
        """
        for name, value in scalars.items():
            if name.startswith(HISTOGRAM):
                self._arrays[name.removeprefix(HISTOGRAM)] = value
            elif (number := as_scalar(value)) is not None:
                self.put(name, number, 1)
            elif name.startswith(CHART) and isinstance(value, Mapping):
                self.add({f"{name}/{curve}": number for curve, number in value.items()})
            elif hasattr(value, "ndim"):
                self._warn(name, value)

    def _warn(self, name: str, array: Any) -> None:
        """Say once that an array has no curve; priorities want none."""
        if name == "priority" or name in self._warned:
            return
        self._warned.add(name)
        _LOGGER.warning(
            "%r is an array of shape %s: it has no curve; log a number, its mean perhaps, or %r "
            "for all values", name, tuple(array.shape), f"{HISTOGRAM}{name}"
        )  # fmt: skip

    def put(self, name: str, total: float, count: int) -> None:
        """Add the sum of `count` values of a scalar."""
        self._sums[name] = self._sums.get(name, 0.0) + total
        self._counts[name] = self._counts.get(name, 0) + count
        self._newest[name] = total / count

    @property
    def val(self) -> dict[str, Callable[[], float]]:
        """Name -> function that returns the newest value of a scalar."""
        return {name: partial(float, value) for name, value in self._newest.items()}

    @property
    def avg(self) -> dict[str, Callable[[], float]]:
        """Name -> function that returns the mean of a scalar since the last `take_means`."""
        return {
            name: partial(float, total / self._counts[name]) for name, total in self._sums.items()
        }

    def take_sums(self) -> dict[str, tuple[float, int]]:
        """Returns and resets the sum and count of each scalar."""
        sums = {name: (total, self._counts[name]) for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return sums

    def take_means(self) -> dict[str, float]:
        """Returns and resets the mean of each scalar; those of charts: ``[scalars]chart/curve``."""
        return {name: total / count for name, (total, count) in self.take_sums().items()}

    def take_arrays(self) -> dict[str, Any]:
        """Returns and resets the latest array of each name (without its prefix)."""
        arrays, self._arrays = self._arrays, {}
        return arrays


def split_charts(
    means: Mapping[str, float],
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Splits the result of `ScalarMonitor.take_means` into single curves and charts of several."""
    curves: dict[str, float] = {}
    charts: dict[str, dict[str, float]] = {}
    for name, value in means.items():
        chart, _, curve = name.removeprefix(CHART).rpartition("/")
        if name.startswith(CHART) and chart:
            charts.setdefault(chart, {})[curve] = value
        else:
            curves[name.removeprefix(CHART)] = value
    return curves, charts


class CurveWriter(ScalarWriter, Protocol):
    """Takes curves and histograms, as `TensorBoardWriter` does."""

    def add_scalars(self, tag: str, values: Mapping[str, float], step: int, /) -> None:
        """Add a point to each of several curves in one chart."""
        ...

    def add_histogram(self, tag: str, values: npt.ArrayLike, step: int, /) -> None:
        """Add the distribution of an array's values."""
        ...


class PartCurves:
    """Curves of one part of a run, each over train iterations and over environment steps.

    Args:
        writer: has ``add_scalar(tag, value, step)``, and ``flush`` and ``close`` where it is closed
            here; None: nothing is drawn.
        name: of the part; begins the tags.
    """

    def __init__(self, writer: Any, name: str) -> None:
        self.writer, self.name = writer, name

    def add(self, scalars: Mapping[str, Any], train_iter: int, env_step: int) -> None:
        """Add a point to both curves of each number among `scalars`."""
        if self.writer is None:
            return
        for name, value in scalars.items():
            if isinstance(value, int | float):
                self.writer.add_scalar(f"{self.name}_iter/{name}", value, train_iter)
                self.writer.add_scalar(f"{self.name}_step/{name}", value, env_step)

    def close(self) -> None:
        """Flush and close the writer. Idempotent."""
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.flush()
            writer.close()


class Rate:
    """Growth of a counter over a sliding window.

    Args:
        window_s: length of the window in seconds.
    """

    def __init__(self, window_s: float = 10.0) -> None:
        self._window_s = window_s
        self._points: deque[tuple[float, float]] = deque()

    def add(self, now: float, count: float) -> None:
        """Record the counter's value `count` at time `now` (seconds, any origin)."""
        self._points.append((now, count))
        while len(self._points) > 2 and now - self._points[1][0] >= self._window_s:
            self._points.popleft()

    def per_second(self) -> float:
        """Returns the growth per second; 0 with fewer than two points."""
        if len(self._points) < 2:
            return 0.0
        (t0, c0), (t1, c1) = self._points[0], self._points[-1]
        return (c1 - c0) / (t1 - t0) if t1 > t0 else 0.0


class Distribution:
    """Keeps the last `size` values for percentiles."""

    def __init__(self, size: int = 4096) -> None:
        self._values: deque[float] = deque(maxlen=size)

    def add(self, value: float) -> None:
        """Add one value."""
        self._values.append(value)

    def percentile(self, percent: float) -> float:
        """Returns a percentile (0 to 100) of the values; nan without values."""
        if not self._values:
            return float("nan")
        return float(np.percentile(np.fromiter(self._values, dtype=np.float64), percent))

    def __len__(self) -> int:
        return len(self._values)


def evaluation_scalars(returns: npt.ArrayLike, duration_s: float) -> dict[str, float]:
    """Returns scalars of an evaluation's curves, with the predecessor's names.

    Args:
        returns: return of each episode, [episodes]; at least one.
        duration_s: seconds that the evaluation took.
    """
    values = np.asarray(returns, dtype=np.float64)
    return {
        "reward_mean": float(values.mean()),
        "reward_std": float(values.std()),
        "reward_max": float(values.max()),
        "reward_min": float(values.min()),
        "episode_count": values.size,
        "evaluate_time": duration_s,
    }


def ranges(numbers: Iterable[int]) -> list[str]:
    """Formats integers as ascending ranges: 0, 1, 2, 7 -> ``["0-2", "7"]``."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return [f"{first}-{last}" if last > first else f"{first}" for first, last in spans]


def counted(number: int, what: str) -> str:
    """Formats a number of things: "1 rank", "3 ranks"."""
    return f"{number} {what}{'s' * (number != 1)}"


def human_return(value: float, scale: float | None = None) -> str:
    """Formats a return, with the decimals that it (or `scale`) deserves: 12.3, 1.23, 0.123."""
    size = abs(value if scale is None else scale)
    decimals = sum(size < bound for bound in (10, 1, 0.1)) + 1 if size else 2
    return f"{value:.{decimals}f}"


def human_count(value: float) -> str:
    """Formats a count: 1234567 -> '1.23M'."""
    if abs(value) < 9999.5 or not np.isfinite(value):
        return f"{value:.0f}"
    for scale, unit in ((1e3, "k"), (1e6, "M"), (1e9, "G")):
        if abs(value) < 999.5 * scale:
            return f"{value / scale:.3g}{unit}"
    return f"{value / 1e12:.3g}T"


def human_bytes(value: float) -> str:
    """Formats a number of bytes in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        text = f"{value:.0f}" if unit == "B" else f"{value:.1f}"
        if abs(float(text)) < 1024:
            return f"{text} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def human_time(seconds: float) -> str:
    """Formats a duration: '42s', '3m05s', '2h14m'; '?' if it is not finite."""
    if not np.isfinite(seconds):
        return "?"
    total = int(seconds)
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m{total % 60:02d}s"
    return f"{total // 3600}h{total % 3600 // 60:02d}m"


def brief(seconds: float) -> str:
    """Formats a duration, also a short one: '32 µs', '4.1 s', '3m05s'."""
    if seconds >= 60:
        return human_time(seconds)
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 0.9995:  # in three digits 1
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.0f} µs"
