"""The communication thread of a rank that computes.

An `Isend` above the eager limit does not move while its sender computes: 5 MB over TCP took 402 ms
without and 9 ms with a thread that keeps MPI's progress engine turning. So a collector and a
learner run their link on this thread, which alone makes MPI calls; the computing thread posts
messages and takes those that arrived.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hpcdi.comm.link import Link
from hpcdi.comm.messages import Heartbeat, Leave, Message, RankLost, WorkerFailed
from hpcdi.errors import EXIT_REQUEUE, CommError
from hpcdi.utils.backoff import Backoff
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.threads import BackgroundThread

M = TypeVar("M", bound=Message)

_TURN_S = 0.05
_LONGEST_TURN_S = 1.0
"""A turn that took longer was this process's own pause (a suspended job), no silence of others."""


class LinkPump(Closing):
    """Runs a link on its own thread.

    Args:
        link: the link; nobody else may use it afterwards.
        handlers: message class -> function (sender, message) that is called on this thread as the
            message arrives, in order. Messages of other classes wait for `receive`.
        ask: called at every turn; a message that it returns goes to rank 0 (signals, heartbeats).
        silence: called at every turn with the seconds without a message of rank 0, while this
            process ran.
    """

    def __init__(
        self,
        link: Link,
        handlers: Mapping[type, Callable[[int, Any], None]] | None = None,
        ask: Callable[[], Message | None] = lambda: None,
        silence: Callable[[float], None] = lambda _silence_s: None,
    ) -> None:
        self._link = link
        self._handlers = dict(handlers or {})
        self._ask, self._silence = ask, silence
        self._outbox: deque[tuple[int, Message]] = deque()
        self._inbox: queue.SimpleQueue[tuple[int, Message] | None] = queue.SimpleQueue()
        self._closing = False
        self._unsent: list[int] = []
        self._thread = BackgroundThread(
            self._run, "link-pump", on_failure=lambda: self._inbox.put(None)
        )

    def send(self, rank: int, message: Message) -> None:
        """Post a message; any thread may."""
        self._outbox.append((rank, message))
        self._link.wake.set()

    def receive(self, timeout_s: float) -> list[tuple[int, Message]]:
        """Messages without a handler; waits for the first one, at most `timeout_s`.

        Raises:
            Exception: whatever ended the communication thread.
        """
        taken = []
        with contextlib.suppress(queue.Empty):
            arrived = self._inbox.get(timeout=timeout_s)
            while True:
                self.check()
                if arrived is not None:
                    taken.append(arrived)
                arrived = self._inbox.get_nowait()
        self.check()
        return taken

    def wait_for(self, kind: type[M], timeout_s: float) -> M | None:
        """The next message of a class, dropping others; None after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            for _, message in self.receive(min(left_s, 0.2)):
                if isinstance(message, kind):
                    return message
        return None

    def report_failure(
        self,
        failure: WorkerFailed,
        timeout_s: float = 10.0,
        release: Callable[[], None] = lambda: None,
    ) -> Leave | None:
        """Tell rank 0 that this rank has failed.

        Args:
            failure: the report.
            timeout_s: how long to wait for the answer.
            release: frees others that wait for this rank; called after the report was sent, so that
                their own reports come later.

        Returns:
            How to exit, or None if rank 0 does not answer.
        """
        self.send(0, failure)
        with contextlib.suppress(CommError):  # rank 0 may be gone; the wait finds out
            self.flush(1.0)
        release()
        leave = self.wait_for(Leave, timeout_s)
        self.close()
        return leave

    @property
    def is_alive(self) -> bool:
        """True if the communication thread runs."""
        return self._thread.is_alive

    def check(self) -> None:
        """Raise, on the caller's thread, what ended the communication thread."""
        self._thread.check()

    def flush(self, timeout_s: float) -> None:
        """Wait until everything that was posted has left.

        Raises:
            CommError: a receiver does not take it within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        backoff = Backoff()
        while self._outbox or self._unsent:
            self.check()
            if time.monotonic() > deadline or not self.is_alive:
                ranks = sorted({*self._unsent, *(rank for rank, _ in self._outbox)})
                raise CommError(
                    f"messages to ranks {ranks} could not be delivered within {timeout_s:.0f} s"
                )
            backoff.nap()

    def close(self) -> None:
        """End the thread; what has not left by then is lost. Idempotent."""
        self._closing = True
        self._link.wake.set()
        self._thread.join()

    def _run(self) -> None:
        turn, silence_s = time.monotonic(), 0.0
        while not self._closing:
            message = self._ask()
            if message is not None:
                self._outbox.append((0, message))
            while self._outbox:
                rank, message = self._outbox[0]
                self._unsent = [*self._unsent, rank]  # before it is removed: `flush` looks at both
                self._outbox.popleft()
                self._link.send(rank, message)
            arrived = self._link.receive(_TURN_S)
            since, turn = turn, time.monotonic()
            is_heard = any(rank == 0 for rank, _ in arrived)
            silence_s = 0.0 if is_heard else silence_s + min(turn - since, _LONGEST_TURN_S)
            self._silence(silence_s)
            for rank, message in arrived:
                if isinstance(message, Heartbeat):  # of rank 0: its arrival is all that matters
                    continue
                handler = self._handlers.get(type(message))
                if handler is not None:
                    handler(rank, message)
                else:
                    self._inbox.put((rank, message))
                if rank == 0 and isinstance(message, RankLost):
                    self._inbox.put((rank, Leave(EXIT_REQUEUE)))  # ends the wait for a `Leave`
            self._unsent = self._link.unsent()
