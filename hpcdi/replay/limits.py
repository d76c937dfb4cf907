"""When drawing, or pushing, has to wait; and why, in words."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from hpcdi.config.replay import ThruputControllerConfig

_BUCKETS = 100  # of the window: the rate forgets a hundredth of it at a time


class Traffic:
    """Items pushed and drawn within the last `window_s` seconds.

    Args:
        window_s: seconds that it looks back.
        clock: seconds, of any origin.
    """

    def __init__(self, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.pushed = self.drawn = 0
        self._window_s, self._clock = window_s, clock
        self._buckets: deque[tuple[float, int, int]] = deque()  # since when, pushed, drawn

    def add(self, pushed: int, drawn: int) -> None:
        """Count items."""
        self.forget()
        self.pushed += pushed
        self.drawn += drawn
        now = self._clock()
        if self._buckets and now - self._buckets[-1][0] < self._window_s / _BUCKETS:
            since, pushed_then, drawn_then = self._buckets.pop()
            self._buckets.append((since, pushed_then + pushed, drawn_then + drawn))
        else:
            self._buckets.append((now, pushed, drawn))

    def forget(self) -> None:
        """Forget what is older than the window."""
        oldest = self._clock() - self._window_s
        while self._buckets and self._buckets[0][0] < oldest:
            _, pushed, drawn = self._buckets.popleft()
            self.pushed -= pushed
            self.drawn -= drawn


class Limits:
    """The limits of one buffer; each check returns the reason to wait, or an empty text.

    The rate is items pushed for one that is drawn, over the window. Drawing waits where the rate
    would fall below its minimum, pushing where it would rise above its maximum; while nothing was
    drawn within the window, pushing is free, so that one never waits for the other forever.

    Args:
        control: settings.
        min_fill: items that the buffer must hold before anything is drawn.
        clock: seconds, of any origin.
    """

    def __init__(
        self,
        control: ThruputControllerConfig,
        min_fill: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = control.push_sample_rate_limit
        self._is_limited = self._rate.is_set
        self._traffic = Traffic(control.window_seconds, clock)
        self._window_s = control.window_seconds
        self._min_fill, self._min_ratio = min_fill, control.sample_min_limit_ratio

    def note(self, pushed: int = 0, drawn: int = 0) -> None:
        """Count items that were pushed, or drawn."""
        if self._is_limited:
            self._traffic.add(pushed, drawn)

    def why_not_draw(self, size: int, count: int) -> str:
        """Returns why `size` items cannot be drawn of `count`; empty where they can."""
        if count < self._min_fill:
            return f"{count} items are here, drawing begins at {self._min_fill} (min_fill)"
        if count < size * self._min_ratio or count < 1:
            needed = math.ceil(size * self._min_ratio)
            return (
                f"{count} items are here, a draw of {size} needs {needed} (sample_min_limit_ratio)"
            )
        if self._rate.min > 0:
            self._traffic.forget()
            pushed, drawn = self._traffic.pushed, self._traffic.drawn + size
            if pushed < self._rate.min * drawn:
                return (
                    f"{pushed} items pushed for {drawn} drawn in {self._window_s:g} s, less than "
                    f"{self._rate.min:g} for one (push_sample_rate_limit.min): data come too slowly"
                )
        return ""

    def why_not_push(self, count: int) -> str:
        """Returns why `count` items should not be pushed now; empty where they can."""
        if math.isfinite(self._rate.max):
            self._traffic.forget()
            pushed, drawn = self._traffic.pushed + count, self._traffic.drawn
            if drawn and pushed > self._rate.max * drawn:
                return (
                    f"{pushed} items pushed for {drawn} drawn in {self._window_s:g} s, more than "
                    f"{self._rate.max:g} for one (push_sample_rate_limit.max): they are learnt "
                    "from too slowly"
                )
        return ""
