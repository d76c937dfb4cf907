"""Pumps carry the messages of a role: by a thread over MPI, in the role's turns in one process.

An `Isend` above the eager limit makes no progress while its sender computes: 5 MB over TCP took 402
ms without and 9 ms with a thread that keeps calling MPI. So over MPI a collector and a learner run
their link on a thread (`LinkPump`), which alone makes MPI calls; the computing thread posts
messages and takes those that arrived. Where all roles are in one process no thread is needed, and a
role handles its messages in its turns (`LocalPump`).
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from hpcdi.comm.link import Link
from hpcdi.comm.messages import Heartbeat, Leave, Message, RankLost, WorkerFailed
from hpcdi.errors import EXIT_REQUEUE, CommError
from hpcdi.utils.backoff import Backoff, wait_s
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.threads import BackgroundThread, wake_this_thread_soon

M = TypeVar("M", bound=Message)
Handlers: TypeAlias = Mapping[type, Callable[[int, Any], None]]
"""Message class -> function (sender, message)."""

_TURN_S = 0.05
"""Longest wait for messages in a turn of the thread: a signal or a heartbeat waits as long."""
_WAY_S = 100e-6
"""Python would let the communication thread wait for its switch interval, ten times as long."""
_QUIET_S = 5.0
"""Longest quiet of the thread: heartbeats wait as long, and silence counts after more."""
_QUIET_LOOK_S = 1e-3
_LONGEST_TURN_S = 1.0
"""A longer turn means that this process was suspended, not that others were silent."""


class Quiet:
    """Has the pumps of this process make no calls while another thread does what bears none.

    Args:
        limit_s: that they wait for it at most, should it never end.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._calls = threading.Lock()
        self._until: float | None = None  # None: nobody asks for it

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """What is done in it is done in quiet, which begins when a pump's turn is over."""
        self._until = math.inf
        is_quiet = self._calls.acquire(timeout=self.limit_s)
        self._until = time.monotonic() + self.limit_s
        try:
            yield
        finally:
            self._until = None
            if is_quiet:
                self._calls.release()

    @contextlib.contextmanager
    def left(self) -> Iterator[None]:
        """A pump's turn: it waits for others to be done, and they for it."""
        while True:
            while (until := self._until) is not None and time.monotonic() < until:
                wait_s(_QUIET_LOOK_S)
            is_alone = self._calls.acquire(blocking=False)
            # else who has kept it takes too long, or has begun since, or it is another pump's turn
            if is_alone or until is not None or self._until is None:
                break
        try:
            yield
        finally:
            if is_alone:
                self._calls.release()


QUIET = Quiet(_QUIET_S)
"""In which a communicator is made on another thread than the pump's, see `solver_group`."""


class Pump(Protocol):
    """Carries a role's messages, and calls its handlers as messages arrive, in order.

    Messages without a handler wait for `receive`.
    """

    def begin(self) -> None:
        """Begin to carry messages; the handlers' owner is fully initialized. Idempotent."""
        ...

    def send(self, rank: int, message: Message) -> None:
        """Post a message."""
        ...

    def give_way(self) -> None:
        """Let what was posted be sent now, if a thread does that: it needs Python's lock."""
        ...

    def check(self) -> None:
        """Handle arrived messages, unless a thread does that; called in every turn of a role.

        Raises:
            Exception: whatever a handler or the link has raised.
        """
        ...

    def receive(self, timeout_s: float) -> list[tuple[int, Message]]:
        """Returns messages without a handler; where a thread runs, waits for the first one."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Sleep until a message has arrived, at most `timeout_s`; not where no thread runs."""
        ...

    def flush(self, timeout_s: float) -> None:
        """Wait until all posted messages have been sent.

        Raises:
            CommError: a receiver does not take one within `timeout_s`.
        """
        ...

    def close(self) -> None:
        """Carry no more messages. Idempotent."""
        ...


class LocalPump(Closing):
    """Carries the messages of a role that shares its process with all others; see `Pump`.

    Args:
        link: the role's link to the others.
        handlers: called in `check`.
        ask: called in every turn; a message that it returns goes to rank 0.
        silence: unused: rank 0 is in this process.
        begins: unused: nothing is carried before the role's first turn.
    """

    def __init__(
        self,
        link: Link,
        handlers: Handlers | None = None,
        ask: Callable[[], Message | None] = lambda: None,
        silence: Callable[[float], None] = lambda _silence_s: None,  # noqa: ARG002
        *,
        begins: bool = True,  # noqa: ARG002
    ) -> None:
        self._link, self._handlers, self._ask = link, handlers or {}, ask
        self._inbox: list[tuple[int, Message]] = []

    def begin(self) -> None:
        """See `Pump.begin`."""

    def send(self, rank: int, message: Message) -> None:
        """See `Pump.send`; it is delivered at once."""
        self._link.send(rank, message)

    def give_way(self) -> None:
        """See `Pump.give_way`."""

    def check(self) -> None:
        """See `Pump.check`."""
        message = self._ask()
        if message is not None:
            self._link.send(0, message)
        self._inbox += _without_handler(self._link.receive(0.0), self._handlers)

    def receive(self, timeout_s: float) -> list[tuple[int, Message]]:  # noqa: ARG002
        """See `Pump.receive`; it never waits, since nothing could arrive meanwhile."""
        self.check()
        arrived, self._inbox = self._inbox, []
        return arrived

    def wait(self, timeout_s: float) -> None:
        """See `Pump.wait`: nothing could arrive meanwhile."""

    def flush(self, timeout_s: float) -> None:
        """See `Pump.flush`: nothing is under way."""

    def close(self) -> None:
        """See `Pump.close`."""


class LinkPump(Closing):
    """Runs a link on its own thread; see `Pump`.

    Args:
        link: the link; nobody else may use it afterwards.
        handlers: called on this thread.
        ask: called in every turn of the thread; a message that it returns goes to rank 0 (signals,
            heartbeats).
        silence: called in every turn of the thread with the seconds since rank 0's last message,
            without those in which this process was suspended.
        begins: start the thread now; False: at the first call of another method. That is for a
            handlers' owner that is not fully initialized yet.
    """

    def __init__(
        self,
        link: Link,
        handlers: Handlers | None = None,
        ask: Callable[[], Message | None] = lambda: None,
        silence: Callable[[float], None] = lambda _silence_s: None,
        *,
        begins: bool = True,
    ) -> None:
        self._link = link
        self._handlers = handlers or {}
        self._ask, self._silence = ask, silence
        self._outbox: deque[tuple[int, Message]] = deque()
        # None: the thread has failed; it wakes who waits in `receive`
        self._inbox: queue.SimpleQueue[tuple[int, Message] | None] = queue.SimpleQueue()
        self._has_arrived = threading.Event()  # any message since the last `wait`; or an end
        self._closing = False
        self._unsent: list[int] = []  # ranks to which the link's messages are under way
        self._thread: BackgroundThread | None = None
        if begins:
            self.begin()

    def begin(self) -> None:
        """See `Pump.begin`."""
        if self._thread is None and not self._closing:
            self._thread = BackgroundThread(self._run, "link-pump", on_failure=self._wake_all)

    def send(self, rank: int, message: Message) -> None:
        """Post a message; any thread may."""
        self.begin()
        self._outbox.append((rank, message))
        self._link.wake.set()

    def give_way(self) -> None:
        """See `Pump.give_way`."""
        wait_s(_WAY_S)

    def check(self) -> None:
        """See `Pump.check`; the thread handles what arrives, and its error is raised here."""
        self.begin()
        if self._thread is not None:
            self._thread.check()

    def receive(self, timeout_s: float) -> list[tuple[int, Message]]:
        """Returns messages without a handler; waits for the first one, at most `timeout_s`.

        Raises:
            Exception: whatever ended the communication thread.
        """
        self.begin()
        messages = []
        with contextlib.suppress(queue.Empty):
            arrived = self._inbox.get(timeout=timeout_s)
            while True:
                self.check()
                if arrived is not None:
                    messages.append(arrived)
                arrived = self._inbox.get_nowait()
        self.check()
        return messages

    def wait(self, timeout_s: float) -> None:
        """See `Pump.wait`; returns at once if one has arrived since the last call."""
        self._has_arrived.wait(timeout_s)
        self._has_arrived.clear()

    def wait_for(self, kind: type[M], timeout_s: float) -> M | None:
        """Returns the next message of a class, dropping others; None after `timeout_s`."""
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
            release: lets others stop waiting for this rank; called after the report was sent, so
                that their reports of it come later.

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
        """True if the communication thread runs, or has not begun yet."""
        return not self._closing if self._thread is None else self._thread.is_alive

    def flush(self, timeout_s: float) -> None:
        """See `Pump.flush`."""
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
        """End the thread; messages that were not sent are lost. Idempotent."""
        self._closing = True
        self._link.wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        wake_this_thread_soon()
        turn_at, silence_s = time.monotonic(), 0.0
        while not self._closing:
            message = self._ask()
            if message is not None:
                self._outbox.append((0, message))
            with QUIET.left():
                self._send_posted()
                arrived = self._link.receive(_TURN_S)
            last_at, turn_at = turn_at, time.monotonic()
            is_heard = any(rank == 0 for rank, _ in arrived)
            silence_s = 0.0 if is_heard else silence_s + min(turn_at - last_at, _LONGEST_TURN_S)
            self._silence(silence_s)
            for unhandled in _without_handler(arrived, self._handlers):
                self._inbox.put(unhandled)
            if arrived:
                self._has_arrived.set()
            with QUIET.left():
                self._unsent = self._link.unsent()

    def _wake_all(self) -> None:
        """Have those that wait look at what has ended the thread."""
        self._inbox.put(None)
        self._has_arrived.set()

    def _send_posted(self) -> None:
        while self._outbox:
            rank, message = self._outbox[0]
            self._unsent = [*self._unsent, rank]  # before it is removed: `flush` looks at both
            self._outbox.popleft()
            self._link.send(rank, message)


def _without_handler(
    arrived: Sequence[tuple[int, Message]], handlers: Handlers
) -> Iterator[tuple[int, Message]]:
    """Call the handlers of messages; yields those that have none."""
    for rank, message in arrived:
        if isinstance(message, Heartbeat):  # of rank 0: its arrival is all that matters
            continue
        handler = handlers.get(type(message))
        if handler is not None:
            handler(rank, message)
        else:
            yield rank, message
        if rank == 0 and isinstance(message, RankLost):
            yield rank, Leave(EXIT_REQUEUE)  # ends the wait for a `Leave`
