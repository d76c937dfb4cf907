"""The message side of a worker: it announces itself, sends heartbeats, and shuts down in order."""

from __future__ import annotations

import math
import os
import platform
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from hpcdi.comm.failure import abort_job
from hpcdi.comm.messages import Goodbye, Heartbeat, Leave, Message, WorkerReady
from hpcdi.comm.pump import LinkPump
from hpcdi.config.compat import Configurable
from hpcdi.errors import EXIT_FAILED
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.timer import RoleMeter
from hpcdi.utils.uid import get_task_uid
from hpcdi.utils.watchdog import WAITING, Watchdog
from hpcdi.worker.context import COORDINATOR_RANK, WorkerContext

HEARTBEAT_S = 5.0
_FIRST_WORD_S = 1.0
_LEAVE_TIMEOUT_S = 30.0
"""The workers wait for rank 0 so much longer than it waits for them."""


class MessageSide(Configurable, ABC):
    """Base of the message sides of collectors and learners.

    Args:
        cfg: settings, a mapping or an instance of `Config`.
        context: this rank's place in a run; None: it works for no coordinator.

    Attributes:
        pump: to the other ranks; made by subclasses.
        exit_code: of the process, after `run`.
        meter: where the rank's time goes.
    """

    role: ClassVar[str]
    pump: LinkPump
    exit_code = 0

    def __init__(self, cfg: Any = None, context: WorkerContext | None = None) -> None:
        self._cfg = self.parse_config(cfg)
        self._context = context
        self._uid = get_task_uid()
        self._end_flag = True
        self.meter = RoleMeter(self.role)
        self._heartbeat = HeartbeatSender(context, self.meter)

    @abstractmethod
    def run(self) -> None:
        """Run tasks until the run ends and all ranks may leave."""

    def start(self) -> None:
        """Accept tasks."""
        self._end_flag = False

    def close(self) -> None:
        """Accept no more tasks. Idempotent."""
        self._end_flag = True
        self._heartbeat.close()


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
        """End the watch. Idempotent."""
        self._watchdog.close()


def announce(pump: LinkPump, role: str, resource: Mapping[str, int]) -> None:
    """Send rank 0 the message that this rank is ready for tasks.

    Args:
        pump: to the other ranks.
        role: one of `ROLES`.
        resource: number of its devices, ``gpu`` and ``cpu``.
    """
    ready = WorkerReady(role, platform.node(), os.getpid(), resource["gpu"], resource["cpu"])
    pump.send(COORDINATOR_RANK, ready)


def abort_orphaned(context: WorkerContext) -> None:
    """End the job because rank 0 has died; does not return."""
    if context.link.rank > 1:  # rank 1 says so, for all
        wait_s(_FIRST_WORD_S)
    sys.stderr.write("hpcdi: rank 0 (coordinator) has died: killed, or out of memory\n")
    abort_job(EXIT_FAILED)


def shutdown(context: WorkerContext, pump: LinkPump, report: Mapping[str, Any]) -> int:
    """Send `Goodbye` and wait until rank 0 lets everybody exit; returns the exit code.

    Args:
        context: this rank's place in the run.
        pump: to the other ranks; closed afterwards.
        report: counters and shares of time, see `Goodbye`.
    """
    timeout_s = context.config.system.coordinator.stop_timeout_s + _LEAVE_TIMEOUT_S
    pump.send(COORDINATOR_RANK, Goodbye(dict(report)))
    pump.flush(timeout_s)
    leave = pump.wait_for(Leave, timeout_s)
    pump.close()
    return leave.exit_code if leave is not None else EXIT_FAILED
