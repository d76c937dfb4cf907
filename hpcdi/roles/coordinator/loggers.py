"""Where a run's curves go beside its event file, while it goes on: `system.loggers`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

from hpcdi.config.fields import to_mapping
from hpcdi.config.schema import ExperimentConfig
from hpcdi.store.layout import RunLayout
from hpcdi.utils.curves import CurvePoint, TensorBoardWriter
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER
from hpcdi.utils.nested import dotted
from hpcdi.utils.threads import JobThread
from hpcdi.utils.trackers import TRACKERS, CsvTracker, Curves, TrackedRun, Tracker

_EVERY_S = 5.0
_PATIENCE_S = 60.0
"""A tracker that has not ended so long after the run, is left behind."""


class RunWriter(TensorBoardWriter):
    """Writes a run's event file, and hands its curves on to the run's other loggers.

    Args:
        config: the experiment; `system.loggers` names the others.
        layout: the run folder.
    """

    def __init__(self, config: ExperimentConfig, layout: RunLayout) -> None:
        self._others = list(_others(config, layout))
        super().__init__(layout.tensorboard_dir)

    def add_scalar(self, tag: str, value: float, global_step: int) -> None:
        """Add a point to a curve."""
        super().add_scalar(tag, value, global_step)
        for other in self._others:
            other.add_scalar(tag, value, global_step)

    def close(self, state: str = "stopped") -> None:
        """Write all points and close the files: the run has ended so. Idempotent."""
        super().close()
        for other in self._others:
            other.close(state)


class LiveTracker(Closing):
    """Hands curves on to a tracker on a thread; when that fails, it says so once and drops it.

    Args:
        name: of the tracker.
        open_tracker: opens it; called on the thread, since it imports much.
    """

    def __init__(self, name: str, open_tracker: Callable[[], Tracker]) -> None:
        self._name, self._open_tracker = name, open_tracker
        self._tracker: Tracker | None = None
        self._thread = JobThread(f"logger-{name}")
        self._points: dict[str, list[CurvePoint]] = {}
        self._handed_over = time.monotonic()
        self._is_open, self._has_failed = True, False

    def add_scalar(self, tag: str, value: float, global_step: int) -> None:
        """Add a point to a curve."""
        if not self._is_open or self._has_failed:
            return
        point = CurvePoint(int(global_step), time.time(), float(value))
        self._points.setdefault(tag, []).append(point)
        if time.monotonic() - self._handed_over > _EVERY_S:
            self._hand_over()

    def close(self, state: str = "stopped") -> None:
        """Write all points, and end the tracker's run: the run has ended so. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        self._hand_over()
        self._thread.submit(partial(self._try, partial(self._end, state)))
        if not self._thread.end(_PATIENCE_S):
            LOGGER.warning(
                "%s has not ended within %.0f s; what it has not written is in the event file: "
                "hpcdi curves RUN --to %s",
                *(self._name, _PATIENCE_S, self._name),
            )

    def _hand_over(self) -> None:
        points, self._points = self._points, {}
        self._handed_over = time.monotonic()
        self._thread.submit(partial(self._try, partial(self._log, points)))

    def _try(self, job: Callable[[], None]) -> None:
        if self._has_failed:
            return
        try:
            job()
        except Exception as error:  # the tracker's own: it must not end the run
            self._has_failed = True
            LOGGER.warning(
                "%s failed and is no longer written: %s: %s; the run goes on, and its event file "
                "has all curves: hpcdi curves RUN --to %s",
                *(self._name, type(error).__name__, str(error).partition("\n")[0], self._name),
                exc_info=True,
            )

    def _log(self, points: Curves) -> None:
        if self._tracker is None:
            self._tracker = self._open_tracker()
        self._tracker.log(points)

    def _end(self, state: str) -> None:
        if self._tracker is not None:
            self._tracker.close(state)


def _others(config: ExperimentConfig, layout: RunLayout) -> Iterator[LiveTracker]:
    """Yields what takes the curves of a run beside its event file."""
    settings = dict(dotted(to_mapping(config)))
    folder = layout.loggers_dir
    for name in dict.fromkeys(config.system.loggers):
        run = TrackedRun(layout.root, config.exp_name, settings, folder / f"{name}.id")
        if name in TRACKERS:
            yield LiveTracker(name, partial(TRACKERS[name], run, folder))
        elif name == "csv":
            events, now = layout.tensorboard_dir, time.time()
            yield LiveTracker(name, partial(CsvTracker, run, folder, events, now))
