"""What the communication thread says for a rank that works: that it is alive, that it shall end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from hpcdi.comm.messages import Heartbeat, Message
from hpcdi.utils.timer import RoleMeter
from hpcdi.utils.watchdog import WAITING, Watchdog
from hpcdi.worker.context import WorkerContext

HEARTBEAT_S = 5.0


class Vigil:
    """Watches a rank's work by its meter, which every turn of its loop marks.

    Args:
        context: the rank's place in the run; without one there is nobody to tell.
        meter: of its work.
    """

    def __init__(self, context: WorkerContext | None, meter: RoleMeter) -> None:
        limit_s = math.inf
        self._stop_request: Callable[[], Message | None] = lambda: None
        if context is not None:
            limit_s = context.config.system.survival.worker_timeout_s
            self._stop_request = context.stop_request
        self._meter, self._watchdog = meter, Watchdog(limit_s)
        self._told = (0.0, 0.0)  # the last mark that rank 0 knows of, and when it was told

    def ask(self) -> Message | None:
        """What is to be told to rank 0 now; None: nothing."""
        request = self._stop_request()
        if request is not None:
            return request
        mark, now = self._meter.last_mark, time.monotonic()
        # whoever waits for one that hangs must outlive it, to go on with the others
        self._watchdog.look(now if WAITING else mark)
        told_mark, told_at = self._told
        if mark == told_mark or now - told_at < HEARTBEAT_S:
            return None
        self._told = (mark, now)
        return Heartbeat(self._meter.activity)

    def close(self) -> None:
        """The work is done; again: nothing."""
        self._watchdog.close()
