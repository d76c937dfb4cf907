"""Reports of a buffer: use, priority and staleness of drawn items; traffic."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import numpy as np

from hpcdi.config.replay import MonitorConfig
from hpcdi.types import Array, ScalarWriter
from hpcdi.utils.log import LOGGER


class Reports:
    """Where reports go: curves of a TensorBoard writer, or lines of the log without one.

    Args:
        tb_logger: has ``add_scalar(tag, value, step)``; or None.
        name: of the buffer.
    """

    def __init__(self, tb_logger: ScalarWriter | None, name: str) -> None:
        self._tb_logger, self._name = tb_logger, name

    def write(self, group: str, values: dict[str, float], step: int) -> None:
        """Report values, as of `step` of what the group counts."""
        if self._tb_logger is None:
            text = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
            LOGGER.info("%s at %s %d: %s", self._name, group, step, text)
            return
        for name, value in values.items():
            self._tb_logger.add_scalar(f"{self._name}_{group}/{name}", value, step)


class SampledData:
    """Mean, maximum and minimum of drawn items' marks, every `print_freq` draws.

    Args:
        reports: where they go.
        average_range: draws that a report is the mean of, the last ones before it.
        print_freq: draws between two reports.
    """

    def __init__(self, reports: Reports, average_range: int, print_freq: int) -> None:
        self._reports = reports
        self._print_freq = print_freq
        self._first = max(0, print_freq - average_range)
        self._draws = 0
        self._figures: deque[dict[str, float]] = deque(maxlen=average_range)

    def is_next_reported(self) -> bool:
        """Count a draw; returns whether it is part of a report: the others cost nothing."""
        self._draws += 1
        return (self._draws - 1) % self._print_freq >= self._first

    def add(self, marks: dict[str, Array], train_iter: int) -> None:
        """Take the marks [m] of a draw that is part of a report."""
        self._figures.append(
            {
                f"{name}_{word}": float(reduce(values))
                for name, values in marks.items()
                for word, reduce in (("avg", np.mean), ("max", np.max), ("min", np.min))
            }
        )
        if self._draws % self._print_freq == 0:
            draws = self._figures
            means = {name: float(np.mean([draw[name] for draw in draws])) for name in draws[0]}
            self._reports.write("iter", means, train_iter)


class PeriodicThruput:
    """Reports every so many seconds how many items were pushed and drawn, and how many there are.

    It looks at the clock as items come and go: no thread is needed.

    Args:
        reports: where they go.
        seconds: between two reports.
        clock: seconds, of any origin.
    """

    def __init__(
        self, reports: Reports, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reports, self._seconds, self._clock = reports, seconds, clock
        self._opened = self._reported = clock()
        self._pushed = self._drawn = 0

    def note(self, pushed: int, drawn: int) -> bool:
        """Items were pushed or drawn; returns True when a report is due."""
        self._pushed += pushed
        self._drawn += drawn
        return self._clock() - self._reported >= self._seconds

    def report(self, items: int) -> None:
        """Report what came and went since the last time, if anything; `items` are here now."""
        if self._pushed or self._drawn:
            now = self._clock()
            past = max(now - self._reported, 1e-9)
            values = {
                "push_count": self._pushed,
                "sample_count": self._drawn,
                "remain_count": items,
                "push_per_s": self._pushed / past,
                "sample_per_s": self._drawn / past,
            }
            self._reports.write("sec", values, round(now - self._opened))
            self._reported, self._pushed, self._drawn = now, 0, 0


class Monitor:
    """What a prioritized buffer reports.

    Args:
        cfg: settings.
        tb_logger: has ``add_scalar(tag, value, step)``; None: reports go to the log.
        name: of the buffer.

    Attributes:
        draws: use, priority and staleness of drawn items.
        traffic: items pushed and drawn.
    """

    def __init__(self, cfg: MonitorConfig, tb_logger: ScalarWriter | None, name: str) -> None:
        reports, watch = Reports(tb_logger, name), cfg.sampled_data_attr
        self.draws = SampledData(reports, watch.average_range, watch.print_freq)
        self.traffic = PeriodicThruput(reports, cfg.periodic_thruput.seconds)
