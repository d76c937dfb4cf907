"""The link over MPI: non-blocking sends, probing receives, naps in between."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcdi.comm.failure import ranks_may_die
from hpcdi.comm.fault_messages import RankLost
from hpcdi.comm.messages import Message
from hpcdi.comm.ulfm import FailureWatch
from hpcdi.comm.wire import decode, encode, frame_sizes
from hpcdi.types import Array
from hpcdi.utils.backoff import PROBES, Backoff

_TAG_HEAD = 1
_TAG_FRAME = 2


@dataclass
class _Incoming:
    """A message on its way in: its head first, then frames whose sizes the head tells."""

    head: Array
    request: MPI.Request
    frames: list[Array] | None = None
    frame_requests: list[MPI.Request] = field(default_factory=list)


class MpiLink:
    """One rank's end in a communicator; see `Link`.

    Args:
        comm: a communicator of this link's own (`Dup`), so that its tags are private.
        shortest_nap_s: first nap after a message.
        longest_nap_s: longest nap while nothing comes.
    """

    def __init__(
        self, comm: MPI.Comm, *, shortest_nap_s: float = 100e-6, longest_nap_s: float = 2e-3
    ) -> None:
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self.wake = threading.Event()
        self._comm = comm
        self._backoff = Backoff(shortest_nap_s, longest_nap_s, self.wake)
        self._outgoing: dict[int, deque[tuple[list[MPI.Request], Any]]] = {}
        self._incoming: dict[int, deque[_Incoming]] = {}
        self._failures = FailureWatch(comm)

    @property
    def ranks_may_die(self) -> bool:
        """See `Link`."""
        return ranks_may_die()

    def send(self, rank: int, message: Message) -> None:
        """See `Link.send`."""
        if not 0 <= rank < self.size:
            raise ValueError(f"there is no rank {rank} in a world of {self.size}")
        encoded = encode(message)
        if rank in self._failures.lost:
            return
        try:
            requests = [self._comm.Isend([encoded.head, MPI.BYTE], rank, _TAG_HEAD)]
            requests += [
                self._comm.Isend([frame, MPI.BYTE], rank, _TAG_FRAME) for frame in encoded.frames
            ]
        except MPI.Exception as error:
            self._failures.learn_from(error)
        else:
            self._outgoing.setdefault(rank, deque()).append((requests, encoded))

    def receive(self, timeout_s: float) -> list[tuple[int, Message]]:
        """See `Link.receive`."""
        deadline = time.monotonic() + timeout_s
        while True:
            arrived = self._look()
            if arrived:
                self._backoff.reset()
                return arrived
            left = deadline - time.monotonic()
            if left <= 0 or self.wake.is_set():
                self.wake.clear()
                return []
            self._backoff.nap(left)

    def unsent(self) -> list[int]:
        """See `Link.unsent`."""
        self._forget_sent()
        return sorted(rank for rank, waiting in self._outgoing.items() if waiting)

    def _look(self) -> list[tuple[int, Message]]:
        self._forget_sent()
        arrived: list[tuple[int, Message]] = []
        status = MPI.Status()
        misses = 0
        while misses < PROBES:
            try:
                matched = self._comm.Improbe(MPI.ANY_SOURCE, _TAG_HEAD, status)
            except MPI.Exception as error:
                self._failures.learn_from(error)
                matched = None
            if matched is None:
                misses += 1
                if arrived:
                    break
                continue
            head = np.empty(status.Get_count(MPI.BYTE), dtype=np.uint8)
            request = matched.Irecv([head, MPI.BYTE])
            source = status.Get_source()
            self._incoming.setdefault(source, deque()).append(_Incoming(head, request))
            arrived += self._complete(source)
        for source in [source for source, waiting in self._incoming.items() if waiting]:
            arrived += self._complete(source)
        return arrived + self._take_lost()

    def _complete(self, source: int) -> list[tuple[int, Message]]:
        """Messages from `source` that are whole, in order."""
        waiting = self._incoming[source]
        done: list[tuple[int, Message]] = []
        try:
            while waiting and (message := self._advance(waiting[0], source)) is not None:
                waiting.popleft()
                done.append((source, message))
        except MPI.Exception as error:  # it died within a message
            self._failures.learn_from(error)
            self._failures.bury(waiting)
        return done

    def _advance(self, incoming: _Incoming, source: int) -> Message | None:
        if incoming.frames is None:
            if not incoming.request.Test():
                return None
            incoming.frames = [
                np.empty(size, dtype=np.uint8) for size in frame_sizes(incoming.head)
            ]
            incoming.frame_requests = [
                self._comm.Irecv([frame, MPI.BYTE], source, _TAG_FRAME) for frame in incoming.frames
            ]
        if incoming.frame_requests and not MPI.Request.Testall(incoming.frame_requests):
            return None
        message: Message = decode(incoming.head, incoming.frames)
        return message

    def _forget_sent(self) -> None:
        for waiting in self._outgoing.values():
            try:
                while waiting and MPI.Request.Testall(waiting[0][0]):
                    waiting.popleft()
            except MPI.Exception as error:
                self._failures.learn_from(error)
                self._failures.bury(waiting)

    def _take_lost(self) -> list[tuple[int, Message]]:
        """Word of ranks that have died, after all that they had sent; each once."""
        lost = self._failures.take_new()
        for rank in lost:
            self._failures.bury(self._outgoing.get(rank, deque()))
            self._failures.bury(self._incoming.get(rank, deque()))
        return [(rank, RankLost()) for rank in lost]
