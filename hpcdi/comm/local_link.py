"""Links between threads or plain calls of one process: for tests, and for one-process runs."""

from __future__ import annotations

import threading
import time
from collections import deque

import numpy as np

from hpcdi.comm.fault_messages import RankLost
from hpcdi.comm.messages import Message
from hpcdi.comm.wire import decode, encode
from hpcdi.utils.backoff import Backoff


class LocalWorld:
    """A world of `size` ranks in this process; `link(rank)` is each one's link.

    Messages are encoded and decoded as MPI would, so that what arrives shares nothing with what was
    sent, and what cannot be sent fails here too.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._inboxes: list[deque[tuple[int, Message]]] = [deque() for _ in range(size)]
        self._links = [LocalLink(self, rank) for rank in range(size)]
        self._lost: set[int] = set()

    def link(self, rank: int) -> LocalLink:
        """Link of one rank."""
        return self._links[rank]

    def kill(self, rank: int) -> None:
        """Let a rank be dead: the others hear of it, and nothing comes from or to it any more."""
        for other in set(range(self.size)) - {rank}:
            self.deliver(rank, other, RankLost())
        self._lost.add(rank)

    def deliver(self, sender: int, receiver: int, message: Message) -> None:
        """Put a copy of a message into a rank's inbox."""
        if sender in self._lost or receiver in self._lost:
            return
        encoded = encode(message)
        frames = [np.frombuffer(frame, dtype=np.uint8).copy() for frame in encoded.frames]
        self._inboxes[receiver].append((sender, decode(encoded.head.copy(), frames)))
        self._links[receiver].wake.set()

    def take(self, rank: int) -> list[tuple[int, Message]]:
        """Empty a rank's inbox."""
        taken = []
        inbox = self._inboxes[rank]
        while inbox:
            taken.append(inbox.popleft())
        return taken


class LocalLink:
    """One rank's end in a `LocalWorld`; see `Link`."""

    ranks_may_die = False

    def __init__(self, world: LocalWorld, rank: int) -> None:
        self.rank = rank
        self.size = world.size
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
        while not (taken := self._world.take(self.rank)):
            left = deadline - time.monotonic()
            if left <= 0 or self.wake.is_set():
                self.wake.clear()
                return self._world.take(self.rank)
            backoff.nap(left)
        return taken

    def unsent(self) -> list[int]:
        """See `Link.unsent`: delivery is immediate."""
        return []
