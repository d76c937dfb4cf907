"""The message side of a worker: it announces itself, sends heartbeats, and shuts down in order."""

from __future__ import annotations

import os
import platform
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from hpcdi.comm.failure import abort_job, kill_frozen
from hpcdi.comm.messages import (
    Goodbye,
    Heartbeat,
    KillFrozen,
    Leave,
    Message,
    RankLost,
    WorkerReady,
)
from hpcdi.comm.pump import Pump
from hpcdi.config.compat import Configurable
from hpcdi.errors import EXIT_REQUEUE, CommError
from hpcdi.roles.context import (
    COORDINATOR_RANK,
    HEARTBEAT_S,
    OWN_END_S,
    WorkerContext,
    get_task_uid,
)
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.processes import pid_space
from hpcdi.utils.timer import RoleMeter
from hpcdi.utils.watchdog import WAITING, Watchdog

_FIRST_WORD_S = 1.0
_LEAVE_TIMEOUT_S = 30.0
"""The workers wait for rank 0 so much longer than it waits for them."""


class MessageSide(Configurable, ABC):
    """Base of the message sides of collectors and learners.

    Args:
        cfg: settings, a mapping or an instance of `Config`.
        context: this rank's place in a run.

    Attributes:
        pump: to the other ranks; made by subclasses, with `ask` and `listen`; `start` begins it.
        exit_code: of the process, after `run`.
        meter: where the rank's time goes; every turn of its loop marks it.
        is_waiting: whether the last turn found nothing to do.

    Raises:
        CommError: it has no place in a run.
    """

    role: ClassVar[str]
    pump: Pump
    exit_code = 0
    is_waiting = False

    def __init__(self, cfg: object = None, context: WorkerContext | None = None) -> None:
        self._cfg = self.parse_config(cfg)
        if context is None:
            raise CommError(
                f"a {self.role}'s message side needs its place in a run (context=): `hpcdi train` "
                "makes one on each rank; there is no address to connect to"
            )
        self._place = context
        self._uid = get_task_uid()
        self._end_flag = True
        self.meter = RoleMeter(self.role)
        self._watchdog = Watchdog(context.config.system.survival.worker_timeout_s)
        self._sent_mark, self._sent_at = 0.0, 0.0
        self._is_leaving = False
        self._leave_by = 0.0

    def run(self) -> None:
        """Take turns until the run ends and this rank may exit."""
        self.start()
        while self.turn(time.monotonic()):
            self.wait()

    @abstractmethod
    def turn(self, now: float) -> bool:
        """Do one thing that is there; never wait for one.

        Args:
            now: seconds of `time.monotonic`.

        Returns:
            Whether to go on; False once this rank may exit.
        """

    @abstractmethod
    def wait(self) -> None:
        """Return as soon as there is something to do, or after some milliseconds."""

    def start(self) -> None:
        """Hear messages from now on, and tell rank 0 that this rank is ready for tasks."""
        self._end_flag = False
        self.pump.begin()
        resource = self.resource()
        ready = WorkerReady(
            self.role,
            host=platform.node(),
            pid=os.getpid(),
            gpus=resource["gpu"],
            cpus=resource["cpu"],
            pid_space=pid_space(),
            player=self._place.group,
        )
        self.pump.send(COORDINATOR_RANK, ready)

    def resource(self) -> dict[str, int]:
        """Returns the numbers of GPUs and cores of this rank."""
        return {"gpu": 0, "cpu": len(os.sched_getaffinity(0))}

    def close(self) -> None:
        """Accept no more tasks. Idempotent."""
        self._end_flag = self._is_leaving = True
        self._watchdog.close()

    def ask(self) -> Message | None:
        """Returns what to send rank 0 now: a stop request, a heartbeat, or None.

        Called at every turn of the communication thread.
        """
        request = self._place.stop_request()
        if request is not None:
            return request
        now = time.monotonic()
        # whoever waits for a rank that hangs must outlive it, to go on with the others
        mark = now if WAITING else self.meter.last_mark
        self._watchdog.look(mark)
        if mark == self._sent_mark or now - self._sent_at < HEARTBEAT_S:
            return None
        self._sent_mark, self._sent_at = mark, now
        return Heartbeat(self.meter.activity)

    def listen(self, silence_s: float) -> None:
        """Ends the job where rank 0 is silent: it hangs and could not end itself, or is frozen.

        Called at every turn of the communication thread, with the seconds of its silence.
        """
        if silence_s > self._place.config.system.survival.worker_timeout_s + OWN_END_S:
            self._end_without_rank_0(f"has been silent for {silence_s:.0f} s: it hangs")

    def _handlers(self) -> dict[type, Callable[[int, Any], None]]:
        """Returns the handlers of the messages that every worker gets, see `Pump`."""
        return {
            KillFrozen: lambda _rank, order: kill_frozen(order),
            RankLost: lambda rank, _message: self._lost(rank),
        }

    def _lost(self, rank: int) -> None:
        """Handle a rank's death (on the communication thread): without rank 0 the job ends."""
        if rank == COORDINATOR_RANK and not self._is_leaving:  # else it may just have left first
            self._end_without_rank_0("has died: killed, out of memory, or ended by a library")

    def _end_without_rank_0(self, why: str) -> None:
        if self._place.link.rank > 1:  # rank 1 says so, for all
            wait_s(_FIRST_WORD_S)
        sys.stderr.write(f"hpcdi: rank 0 (coordinator) {why}\n")
        abort_job(EXIT_REQUEUE)

    def _say_goodbye(self, report: Mapping[str, Any]) -> None:
        """Send rank 0 this rank's last message.

        Args:
            report: counters and shares of time, see `Goodbye`.
        """
        timeout_s = self._place.config.system.coordinator.stop_timeout_s + _LEAVE_TIMEOUT_S
        self._leave_by = time.monotonic() + timeout_s
        self.pump.send(COORDINATOR_RANK, Goodbye(dict(report)))

    def _may_leave(self, now: float) -> bool:
        """Returns whether this rank may exit, after its goodbye; sets the exit code.

        Args:
            now: seconds of `time.monotonic`.

        Raises:
            CommError: rank 0 has not even taken the goodbye.
        """
        arrived = [message for _, message in self.pump.receive(0.0)]
        leave = next((message for message in arrived if isinstance(message, Leave)), None)
        if leave is None and now < self._leave_by:
            return False
        if leave is None:
            self.pump.flush(0.0)
        self.pump.close()
        self.exit_code = leave.exit_code if leave is not None else EXIT_REQUEUE
        return True
