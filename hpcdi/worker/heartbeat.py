"""Heartbeats: the communication thread tells rank 0 that a rank's work moves on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from hpcdi.comm.messages import Heartbeat, Message
from hpcdi.utils.timer import RoleMeter
from hpcdi.utils.watchdog import WAITING, Watchdog
from hpcdi.worker.context import WorkerContext

HEARTBEAT_S = 5.0


class HeartbeatSender:
    """Decides when to send a heartbeat, by the meter that every turn of a rank's loop marks.

    Args:
        context: the rank's place in the run; None: it works for no coordinator.
        meter: of its work.
    """

    def __init__(self, context: WorkerContext | None, meter: RoleMeter) -> None:
        limit_s = math.inf
        self._stop_request: Callable[[], Message | None] = lambda: None
        if context is not None:
            limit_s = context.config.system.survival.worker_timeout_s
            self._stop_request = context.stop_request
        self._meter, self._watchdog = meter, Watchdog(limit_s)
        self._sent_mark, self._sent_at = 0.0, 0.0

    def ask(self) -> Message | None:
        """Returns the message to send now: a stop request, a heartbeat, or None."""
        request = self._stop_request()
        if request is not None:
            return request
        mark, now = self._meter.last_mark, time.monotonic()
        # whoever waits for a rank that hangs must outlive it, to go on with the others
        self._watchdog.look(now if WAITING else mark)
        if mark == self._sent_mark or now - self._sent_at < HEARTBEAT_S:
            return None
        self._sent_mark, self._sent_at = mark, now
        return Heartbeat(self._meter.activity)

    def close(self) -> None:
        """The work is done. Idempotent."""
        self._watchdog.close()
