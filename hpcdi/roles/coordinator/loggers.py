"""Where a run's curves go: its record, TensorBoard's event file, and `system.loggers`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from hpcdi.config.fields import to_mapping
from hpcdi.config.schema import ExperimentConfig
from hpcdi.roles.coordinator.run_curves import OVERVIEW, DingCurves, RunCurves
from hpcdi.store.layout import RunLayout
from hpcdi.types import ScalarWriter
from hpcdi.utils.curves import CurveFile, CurvePoint, Curves
from hpcdi.utils.event_file import TensorBoardWriter
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER
from hpcdi.utils.nested import dotted
from hpcdi.utils.threads import JobThread
from hpcdi.utils.trackers import TRACKERS, TrackedRun, Tracker

_EVERY_S = 5.0
_PATIENCE_S = 60.0
"""A tracker that has not ended so long after the run, is left behind."""


class RunWriter(Closing):
    """Takes a run's curves: for its record, its event file, and the trackers of `system.loggers`.

    Args:
        config: the experiment.
        layout: the run folder.

    Attributes:
        by_tag: takes them under the predecessor's tags, and writes them under those of people, but
            for TensorBoard where `system.tensorboard.tags` wants it otherwise.
        event_file: TensorBoard's, which takes pictures, too.
    """

    def __init__(self, config: ExperimentConfig, layout: RunLayout) -> None:
        self.event_file = TensorBoardWriter(layout.tensorboard_dir)
        self._trackers = list(_trackers(config, layout))
        self._record = CurveFile(layout.curves_file)
        self._others = Several([self._record, *self._trackers])
        self.by_tag: ScalarWriter = RunCurves(self)
        if config.system.tensorboard.tags == "ding":
            self.by_tag = Several([RunCurves(self._others), DingCurves(self.event_file)])
            self.event_file.add_page("The run at a glance", OVERVIEW)

    def add_scalar(self, name: str, value: float, step: int, /) -> None:
        """Add a point to a curve, everywhere under the same name."""
        self.event_file.add_scalar(name, value, step)
        self._others.add_scalar(name, value, step)

    def record(self) -> None:
        """Have what a resumed run does not do again written to the run's own curves at once."""
        self._record.write()

    def close(self, state: str = "stopped") -> None:
        """Write all points and close the files: the run has ended so. Idempotent."""
        self.event_file.close()
        self._record.close()
        for tracker in self._trackers:
            tracker.close(state)


class Several:
    """Hands curves on to several writers."""

    def __init__(self, writers: Sequence[ScalarWriter]) -> None:
        self._writers = writers

    def add_scalar(self, name: str, value: float, step: int, /) -> None:
        """Add a point to a curve of each."""
        for writer in self._writers:
            writer.add_scalar(name, value, step)


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
                "%s has not ended within %.0f s; the run folder has what it has not written: "
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
                "%s failed and is no longer written: %s: %s; the run goes on, and its folder has "
                "all curves: hpcdi curves RUN --to %s",
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


def _trackers(config: ExperimentConfig, layout: RunLayout) -> Iterator[LiveTracker]:
    """Yields the trackers that take the curves of a run, too."""
    settings = dict(dotted(to_mapping(config)))
    folder = layout.loggers_dir
    for name in dict.fromkeys(config.system.loggers):
        if name in TRACKERS:
            run = TrackedRun(layout.root, config.exp_name, settings, folder / f"{name}.id")
            yield LiveTracker(name, partial(TRACKERS[name], run, folder))
