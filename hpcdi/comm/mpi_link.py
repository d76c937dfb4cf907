"""The link over MPI: non-blocking sends, probing receives, naps in between. It survives dead ranks.

It uses MPI's User Level Failure Mitigation (ULFM), which Open MPI 5 has under ``mpirun --with-ft
ulfm``. All ranks learn within milliseconds of one that is killed by a signal: their next probe
raises. One that leaves by ``_exit`` without MPI_Finalize is not noticed, so hpcdi's ranks die by
a signal (`failure.die_alone`). Without ULFM the launcher ends the job when a rank dies.

MPI wakes nobody: who waits has to look again and again. Where all ranks are on one node, a sender
rings the receiver's doorbell; that ends its nap at once, and naps may be long.

Importing this starts MPI.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcdi.comm.codec import decode, encode, frame_sizes
from hpcdi.comm.doorbell import Doorbell, Ringer
from hpcdi.comm.failure import ranks_may_die
from hpcdi.comm.messages import Message, RankLost
from hpcdi.dataclass import dataclass
from hpcdi.types import Array
from hpcdi.utils.backoff import PROBES, Backoff

_TAG_HEAD = 1
_TAG_FRAME = 2
RANK_DIED = {
    getattr(MPI, name)
    for name in ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")
    if hasattr(MPI, name)
}
"""Classes of MPI's errors that say that a rank has died; none where the library has none."""
_NO_FAILURE = (MPI.SUCCESS, MPI.ERR_PENDING)
"""What a status says of a request that is done, or goes on, where another has failed."""

_BELL_NAP_S, _LONG_NAP_S = 5e-3, 20e-3
"""First and longest nap where all ring: a bell may get lost, and one that dies does not ring."""
_OVERTAKEN_S = 5e-3
"""Short naps after a bell that came before its message."""


class _Wake(threading.Event):
    """Ends a nap of this process at its doorbell, too."""

    def __init__(self, bell: Doorbell) -> None:
        super().__init__()
        self._bell = bell

    def set(self) -> None:
        super().set()
        self._bell.ring()


@dataclass
class _Incoming:
    """A message that is being received: its head first, then the frames that the head announces."""

    head: Array
    request: MPI.Request
    frames: list[Array] | None = None
    frame_requests: list[MPI.Request] = field(default_factory=list)


class MpiLink:
    """One rank's end in a communicator; see `Link`.

    Args:
        comm: a communicator for this link alone (`Dup`), so that its tags are private; it raises
            errors (mpi4py's default).
        shortest_nap_s: first nap after a message, where not all ring.
        longest_nap_s: longest nap while nothing comes, there.
    """

    def __init__(
        self, comm: MPI.Comm, *, shortest_nap_s: float = 100e-6, longest_nap_s: float = 2e-3
    ) -> None:
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self.bell = Doorbell()
        self.wake: threading.Event = _Wake(self.bell)
        self.ranks_may_die = ranks_may_die()
        self._comm = comm
        self._backoff = Backoff(shortest_nap_s, longest_nap_s, self.wake)
        self._at_bell = Backoff(_BELL_NAP_S, _LONG_NAP_S, self.bell)
        self._rung_at = -math.inf  # a message may still be on its way that was rung for
        self._ringers: dict[int, Ringer] = {}
        # by rank: requests, and the encoded message that MPI reads until they are done
        self._outgoing: dict[int, deque[tuple[list[MPI.Request], Any]]] = {}
        self._incoming: dict[int, deque[_Incoming]] = {}
        self._lost: set[int] = set()
        self._newly_lost: list[int] = []
        self._misses = 0  # probes without a message, since the last word of a death
        self._abandoned: list[Any] = []  # to or from dead ranks: MPI may still access the memory

    @property
    def is_on_one_node(self) -> bool:
        """True if all ranks are on this node, and `ring` has found their bells."""
        return bool(self._ringers)

    def ring(self, bells: Sequence[Mapping[str, str]]) -> None:
        """Ring the others' doorbells from now on, and sleep longer, if it can reach all of them.

        Args:
            bells: `Doorbell.lines` of each rank, in order; all are on this node.
        """
        others = {rank: bell for rank, bell in enumerate(bells) if rank != self.rank}
        ringers = {rank: Ringer.of(bell["bell"], bell["inode"]) for rank, bell in others.items()}
        reachable = {rank: ringer for rank, ringer in ringers.items() if ringer is not None}
        if len(reachable) == len(others):
            self._ringers = reachable

    def send(self, rank: int, message: Message) -> None:
        """See `Link.send`."""
        if not 0 <= rank < self.size:
            raise ValueError(f"there is no rank {rank} in a world of {self.size}")
        encoded = encode(message)
        if rank in self._lost:
            return
        requests: list[MPI.Request] = []
        try:
            requests.append(self._comm.Isend([encoded.head, MPI.BYTE], rank, _TAG_HEAD))
            for frame in encoded.frames:
                requests.append(self._comm.Isend([frame, MPI.BYTE], rank, _TAG_FRAME))
        except MPI.Exception as error:
            self._abandoned.append((requests, encoded))
            self._acknowledge(error)
        else:
            self._outgoing.setdefault(rank, deque()).append((requests, encoded))
            if rank in self._ringers:
                self._ringers[rank].ring()

    def receive(self, timeout_s: float) -> list[tuple[int, Message]]:
        """See `Link.receive`."""
        deadline = time.monotonic() + timeout_s
        while not (arrived := self._probe()):
            left_s = deadline - time.monotonic()
            if left_s > 0 and not self.wake.is_set():
                self._nap(left_s)
            if left_s <= 0 or self.wake.is_set():  # what it is woken for comes before more probes
                self.wake.clear()
                return []
        self._backoff.reset()
        self._at_bell.reset()
        self._rung_at = -math.inf
        return arrived

    def unsent(self) -> list[int]:
        """See `Link.unsent`."""
        self._drop_sent()
        return sorted(rank for rank, waiting in self._outgoing.items() if waiting)

    def _nap(self, at_most_s: float) -> None:
        """Sleep, by short naps while part of a message is under way: MPI must be called for it."""
        under_way = any(self._outgoing.values()) or any(self._incoming.values())
        if not self._ringers or under_way or time.monotonic() - self._rung_at < _OVERTAKEN_S:
            self._backoff.nap(at_most_s)
            return
        self._at_bell.nap(at_most_s)
        if self.bell.hear() and not self.wake.is_set():  # not by this process itself
            self._rung_at = time.monotonic()
            self._backoff.reset()

    def _probe(self) -> list[tuple[int, Message]]:
        self._drop_sent()
        arrived: list[tuple[int, Message]] = []
        status = MPI.Status()
        self._misses = 0
        while self._misses < PROBES:
            matched = None
            try:
                matched = self._comm.Improbe(MPI.ANY_SOURCE, _TAG_HEAD, status)
            except MPI.Exception as error:
                self._acknowledge(error)
            if matched is None:
                self._misses += 1
                if (arrived or self.wake.is_set()) and not self._newly_lost:
                    break
                continue
            head = np.empty(status.Get_count(MPI.BYTE), dtype=np.uint8)
            request = matched.Irecv([head, MPI.BYTE])
            source = status.Get_source()
            self._incoming.setdefault(source, deque()).append(_Incoming(head, request))
            arrived += self._complete(source)
        lost, self._newly_lost = self._newly_lost, []
        for source in [source for source, waiting in self._incoming.items() if waiting]:
            arrived += self._complete(source)
        for rank in lost:
            self._abandon(self._outgoing.get(rank, deque()))
            self._abandon(self._incoming.get(rank, deque()))
        return arrived + [(rank, RankLost()) for rank in lost]

    def _complete(self, source: int) -> list[tuple[int, Message]]:
        """Returns messages from `source` that have arrived completely, in order."""
        waiting = self._incoming[source]
        done: list[tuple[int, Message]] = []
        try:
            while waiting and (message := self._advance(waiting[0], source)) is not None:
                waiting.popleft()
                done.append((source, message))
        except MPI.Exception as error:  # the sender died within a message
            self._acknowledge(error)
            self._abandon(waiting)
        return done

    def _advance(self, incoming: _Incoming, source: int) -> Message | None:
        """Have MPI go on with a message; returns it once it is complete."""
        if incoming.frames is None:
            if not incoming.request.Test():
                return None
            incoming.frames = [
                np.empty(size, dtype=np.uint8) for size in frame_sizes(incoming.head)
            ]
            incoming.frame_requests = [
                self._comm.Irecv([frame, MPI.BYTE], source, _TAG_FRAME) for frame in incoming.frames
            ]
        if incoming.frame_requests and not all_done(incoming.frame_requests):
            return None
        message: Message = decode(incoming.head, incoming.frames)
        return message

    def _drop_sent(self) -> None:
        for waiting in self._outgoing.values():
            try:
                while waiting and all_done(waiting[0][0]):
                    waiting.popleft()
            except MPI.Exception as error:
                self._acknowledge(error)
                self._abandon(waiting)

    def _acknowledge(self, error: MPI.Exception) -> None:
        """Note which ranks have died; probing for any source works again after it.

        Raises:
            MPI.Exception: `error` has another cause than a dead rank.
        """
        if error.Get_error_class() not in RANK_DIED:
            raise error
        dead = dead_ranks(self._comm)
        self._comm.Ack_failed(len(dead))
        newly_lost = [rank for rank in dead if rank not in self._lost]
        self._newly_lost += newly_lost
        self._lost.update(dead)
        if newly_lost:
            self._misses = 0  # what they have sent comes before the word of their death

    def _abandon(self, waiting: deque[Any]) -> None:
        """Give up the messages on their way to or from a dead rank."""
        self._abandoned += waiting
        waiting.clear()


def all_done(requests: list[MPI.Request]) -> bool:
    """Returns whether all requests are done; they are over where it raises.

    Raises:
        MPI.Exception: what one of them has failed by, first of all what is no rank's death.
    """
    statuses = [MPI.Status() for _ in requests]
    try:
        return MPI.Request.Testall(requests, statuses)
    except MPI.Exception as error:
        if error.Get_error_class() != MPI.ERR_IN_STATUS:
            raise
        causes = [MPI.Exception(status.Get_error()) for status in statuses]
        failed = [cause for cause in causes if cause.Get_error_class() not in _NO_FAILURE]
        failed.sort(key=lambda cause: cause.Get_error_class() in RANK_DIED)
        raise (failed or [error])[0] from error


def dead_ranks(comm: MPI.Comm) -> list[int]:
    """Returns the ranks of a communicator that have died, sorted; needs ULFM."""
    failed, own = comm.Get_failed(), comm.Get_group()
    try:
        return sorted(MPI.Group.Translate_ranks(failed, list(range(failed.Get_size())), own))
    finally:
        failed.Free()
        own.Free()
