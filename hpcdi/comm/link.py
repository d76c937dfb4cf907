"""What every link can do."""

from __future__ import annotations

import threading
from typing import Protocol

from hpcdi.comm.messages import Message


class Link(Protocol):
    """Carries messages between the ranks of one world.

    Messages from one rank arrive in the order in which it sent them. All calls are made by one
    thread; only `wake.set()` may be called by others. Where ranks may die and the others go on, the
    last that comes from a dead one is `RankLost`; what is sent to it is dropped.
    """

    rank: int
    size: int
    wake: threading.Event

    @property
    def ranks_may_die(self) -> bool:
        """Whether the others go on when a rank is killed."""
        ...

    def send(self, rank: int, message: Message) -> None:
        """Post a message; never waits for the receiver.

        The message's arrays must not be changed any more.

        Raises:
            ValueError: there is no such rank.
            CommError: the message holds something that has no bytes.
        """
        ...

    def receive(self, timeout_s: float) -> list[tuple[int, Message]]:
        """All messages that have arrived, each with its sender; waits for the first one.

        Returns an empty list after `timeout_s`, or earlier when `wake` is set.
        """
        ...

    def unsent(self) -> list[int]:
        """Ranks that something is still on its way to."""
        ...
