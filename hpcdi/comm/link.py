"""The interface of all links, and a link within one process: for one-process runs and for tests.

The link between processes is in `mpi_link`, because importing that starts MPI.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Protocol

import numpy as np

from hpcdi.comm.codec import decode, encode
from hpcdi.comm.messages import Message
from hpcdi.utils.backoff import Backoff


class Link(Protocol):
    """Carries messages between the ranks of one world.

    Messages from one rank arrive in the order in which it sent them. All calls are made by one
    thread; only `wake.set()` may be called by others. Where the run survives dead ranks, the last
    message from a dead one is `RankLost`, and messages to it are dropped.
    """

    rank: int
    size: int
    wake: threading.Event

    @property
    def ranks_may_die(self) -> bool:
        """True if the other ranks go on when one is killed."""
        ...

    def send(self, rank: int, message: Message) -> None:
        """Post a message; never waits for the receiver.

        The message's arrays must not be changed any more.

        Raises:
            ValueError: there is no such rank.
            CommError: the message holds something that cannot be encoded.
        """
        ...

    def receive(self, timeout_s: float) -> list[tuple[int, Message]]:
        """All messages that have arrived, each with its sender; waits for the first one.

        Returns an empty list after `timeout_s`, or earlier when `wake` is set.
        """
        ...

    def unsent(self) -> list[int]:
        """Ranks with messages that have not left yet."""
        ...


class LocalWorld:
    """A world of ranks in this process; `link(rank)` is each one's link.

    Args:
        size: number of ranks.
        encodes: messages are encoded and decoded as over MPI, so that what arrives shares no memory
            with what was sent, and what cannot be sent fails here too. Otherwise they are handed
            over as they are, and whoever receives one must not write to its arrays.
    """

    def __init__(self, size: int, *, encodes: bool = True) -> None:
        self.size = size
        self._encodes = encodes
        self.inboxes: list[deque[tuple[int, Message]]] = [deque() for _ in range(size)]
        self._links = [LocalLink(self, rank) for rank in range(size)]

    def link(self, rank: int) -> LocalLink:
        """Link of one rank; each has one."""
        return self._links[rank]

    def deliver(self, sender: int, receiver: int, message: Message) -> None:
        """Put a message, or a copy of it, into a rank's inbox."""
        if self._encodes:
            encoded = encode(message)
            frames = [np.frombuffer(frame, dtype=np.uint8).copy() for frame in encoded.frames]
            message = decode(encoded.head.copy(), frames)
        self.inboxes[receiver].append((sender, message))
        self._links[receiver].wake.set()


class LocalLink:
    """One rank's end in a `LocalWorld`; see `Link`."""

    ranks_may_die = False

    def __init__(self, world: LocalWorld, rank: int) -> None:
        self.rank, self.size = rank, world.size
        self.wake = threading.Event()
        self._world = world

    def send(self, rank: int, message: Message) -> None:
        """See `Link.send`."""
        if not 0 <= rank < self.size:
            raise ValueError(f"there is no rank {rank} in a world of {self.size}")
        self._world.deliver(self.rank, rank, message)

    def receive(self, timeout_s: float) -> list[tuple[int, Message]]:
        """See `Link.receive`."""
        deadline = time.monotonic() + timeout_s
        backoff = Backoff(wake=self.wake)
        while not (arrived := self._take()):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self.wake.is_set():
                self.wake.clear()
                return self._take()
            backoff.nap(left_s)
        return arrived

    def unsent(self) -> list[int]:
        """See `Link.unsent`: delivery is immediate."""
        return []

    def _take(self) -> list[tuple[int, Message]]:
        inbox = self._world.inboxes[self.rank]
        return [inbox.popleft() for _ in range(len(inbox))]
