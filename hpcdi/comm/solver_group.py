"""A solver's group of ranks, as its collector sees it: an environment that is an MPI program.

The collector and the group have a communicator of their own, the pair, in which the collector is
rank 0; it is made by these ranks alone. The collector never blocks for them: the pair is made on a
thread of its own, messages are tested for, deaths are looked for, and what takes too long is killed
by its process number. Life of a group::

    expected ──hello of all ranks──► ready ◄──order / answer──► busy
        │                              │                          │
        └──────── a rank dies, or `give_up` ───► lost ◄───────────┘     ended: its program has

A group that is lost never comes back: its ranks are killed, and spare ranks, of another group, take
its place. MPI's level of threads must be MULTIPLE.

Importing this starts MPI.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

import numpy as np
from mpi4py import MPI

from hpcdi.comm.coupled import CoupledComm
from hpcdi.comm.doorbell import Doorbell, Ringer
from hpcdi.comm.failure import ranks_may_die
from hpcdi.comm.mpi_link import RANK_DIED, all_done, dead_ranks
from hpcdi.comm.pump import QUIET
from hpcdi.comm.solver_protocol import (
    ANSWER_TAG,
    ANSWER_TEXT_BYTES,
    ASSIGN_TAG,
    ORDER_TAG,
    SPACES_DIFFER,
    TEXT_BYTES,
    WORLD_TAG,
    Kind,
    Sizes,
    SolverLost,
    SolverMessage,
    SolverPlace,
    as_line,
    pack,
    room_for,
    unpack,
)
from hpcdi.comm.world import communicator
from hpcdi.dataclass import dataclass
from hpcdi.errors import CommError, EnvValueError
from hpcdi.utils.processes import born_of
from hpcdi.utils.threads import BackgroundThread

_PAIRING_S = 5.0
"""For ranks that are told to end while they begin; it takes milliseconds."""
_LONGEST_PAIRING_S = 30.0
"""For a pair to be made, after which its ranks count as lost: spare ones take their place."""
_LOOK_S = 20e-3
"""From one look for deaths to the next, while a pair is made."""


class State(Enum):
    """Of a group; see the module's docstring."""

    EXPECTED = "expected"
    READY = "ready"
    BUSY = "busy"
    ENDED = "ended"
    LOST = "lost"


@dataclass(frozen=True)
class Peer:
    """A rank of the group, by its hello.

    Attributes:
        rank: of MPI_COMM_WORLD.
        pid: its process.
        ringer: its doorbell; None: it is on another node.
    """

    rank: int
    pid: int
    ringer: Ringer | None


class SolverGroup:
    """The ranks of one environment; see the module's docstring.

    Args:
        place: which ranks they are; this process is its collector.
        sizes: those of the experiment's configuration.
        bell: this process's doorbell; None: it never sleeps but by naps.
        is_coupled: its program is not changed, and takes the ranks with this one for its world.

    Attributes:
        coupled: the communicator that is that world, where it is coupled and has been met.
        state: see the module's docstring.
        reason: why it is lost, or has ended.
        dead: its ranks, by their numbers in it, whose death has made it a lost one.
    """

    def __init__(
        self,
        place: SolverPlace,
        sizes: Sizes,
        bell: Doorbell | None = None,
        *,
        is_coupled: bool = False,
    ) -> None:
        self._is_coupled = is_coupled
        self.coupled: CoupledComm | None = None
        self.place, self.sizes = place, sizes
        self.state, self.reason = State.EXPECTED, ""
        self.dead: tuple[int, ...] = ()
        self.peers: dict[int, Peer] = {}
        self._world, self._bell = MPI.COMM_WORLD, bell
        self._pair: MPI.Intracomm | None = None
        self._pairing: _Pairing | None = None
        self._sending: list[MPI.Request] = []
        self._held: list[bytes] = []  # what is on its way
        self._number = 0
        self._hellos = {
            rank: Receiving(self._world, rank, WORLD_TAG, 0, is_single=True) for rank in place.ranks
        }
        self._answering: Receiving | None = None
        self._message: SolverMessage | None = None
        self._losing = _Losing(self)

    @property
    def rings(self) -> bool:
        """True if all its ranks are on this node, and can be woken."""
        return self._bell is not None and all(peer.ringer for peer in self.peers.values())

    @property
    def pair(self) -> MPI.Intracomm:
        """The communicator of this process, its rank 0, and the group.

        Raises:
            SolverLost: there is none.
        """
        if self._pair is None:
            raise SolverLost(self.reason or "it has not begun")
        return self._pair

    @property
    def is_busy(self) -> bool:
        """True from an order to the end of `take`."""
        return self.state is State.BUSY

    # ---- beginning

    def meet(self) -> bool:
        """Take hellos; when all ranks have said theirs, make the pair. Returns whether it is made.

        Raises:
            EnvValueError: the program has other sizes than the configuration.
            SolverLost: the group is.
        """
        if self.state is not State.EXPECTED:
            self._check()
            return True
        with self._losing:
            for rank, receiving in list(self._hellos.items()):
                if (hello := receiving.take()) is not None:
                    self.peers[rank] = self._peer(rank, hello)
                    del self._hellos[rank]
            if self._hellos:
                return False
            if self._pairing is None:
                self._pairing = self._go()
            made = self._pairing.take()
            if made is None:
                if self._pairing.taken_s > _LONGEST_PAIRING_S:
                    self.give_up(f"its communicator was not made within {_LONGEST_PAIRING_S:g} s")
                    raise SolverLost(self.reason)
                return False
            self._pair, self.coupled = made
            if self.coupled is not None:
                self.coupled.has_ended = self._has_ended
        self._answering = Receiving(
            self._pair, 1, ANSWER_TAG, self.sizes.observations, text=ANSWER_TEXT_BYTES
        )
        self.state = State.READY
        return True

    def _peer(self, rank: int, hello: SolverMessage) -> Peer:
        lines = hello.lines
        who = f"(rank {rank}, process {lines['pid']} on {lines['host']})"
        if mismatch := self._mismatch(lines, who):
            self._send(self._world, rank, WORLD_TAG, self._go_message())  # it says so, too
            raise EnvValueError(f"environment {self.place.environment}: {mismatch}")
        is_here = lines["host"] == platform.node()
        ringer = Ringer.of(lines["bell"], lines["inode"]) if is_here else None
        return Peer(rank, int(lines["pid"]), ringer)

    def _mismatch(self, hello: Mapping[str, str], who: str) -> str:
        """Returns how a rank's sizes differ from the configuration's; empty: they do not."""
        spaces = (hello.get("spaces", ""), self.sizes.spaces)
        if all(spaces) and spaces[0] != spaces[1]:
            return f"{SPACES_DIFFER} {who}"
        for what in ("observations", "actions"):
            own, wanted = int(hello[what]), getattr(self.sizes, what)
            if own >= 0 and wanted >= 0 and own != wanted:
                return (
                    f"its program has {own} {what} {who}, and the experiment's configuration says "
                    f"{wanted}"
                )
        return ""

    def _go_message(self) -> SolverMessage:
        # Create_group fails after a death in the world, also one that nobody has seen yet: before
        # spare ranks are needed there was one
        has_died = self.place.assigner is not None or _has_dead(self._world)
        lines = {
            "observations": str(self.sizes.observations),
            "actions": str(self.sizes.actions),
            "spaces": self.sizes.spaces,
            "from_group": str(int(ranks_may_die() and has_died)),
            "rings": "0",
        }
        return SolverMessage(Kind.GO, lines=lines)

    def _go(self) -> _Pairing:
        """Tell all ranks how, and begin to make the pair with them."""
        go = self._go_message()
        for rank, peer in self.peers.items():
            bell = self._bell.lines() if self._bell and peer.ringer else {}
            rings = {"rings": str(int(peer.ringer is not None))}
            told = SolverMessage(Kind.GO, lines={**go.lines, **rings, **bell})
            self._send(self._world, rank, WORLD_TAG, told)
            if peer.ringer is not None:
                peer.ringer.ring()
        from_group = go.lines["from_group"] == "1"
        pairing = _Pairing(self.place, from_group=from_group, is_coupled=self._is_coupled)
        pairing.wait(QUIET.limit_s, self._gone)
        return pairing

    # ---- orders and answers

    def order(self, message: SolverMessage, _deadline: float) -> None:
        """Send a reset or a step to all ranks; nobody waits for them here.

        Raises:
            SolverLost: the group is.
        """
        self._check()
        self._number += 1
        with self._losing:
            self._tell(message._replace(number=self._number))
        self.state = State.BUSY

    def has_news(self) -> bool:
        """Returns whether `take` returns, or raises, at once; a group that is expected has none."""
        if self.state is not State.BUSY or self._answering is None:
            return True
        try:  # no context manager: this is called in a loop that does not sleep
            if self._message is None:
                self._message = self._answering.take()
            return self._message is not None and self._is_sent()
        except MPI.Exception as error:
            self._died(error)
            return True

    def take(self) -> SolverMessage:
        """Returns the answer to the last order.

        Raises:
            SolverLost: a rank has died, or the program has ended.
            CommError: there is no answer yet, or it is to another order.
        """
        if self.state in (State.LOST, State.ENDED):
            raise SolverLost(self.reason)
        if not self.has_news() or self._message is None:
            self._check()
            raise CommError(f"environment {self.place.environment} has not answered")
        message, self._message = self._message, None
        if message.kind is Kind.BYE:
            self.state, self.reason = State.ENDED, "its program has ended"
            raise SolverLost(self.reason)
        if message.number != self._number:
            raise CommError(
                f"environment {self.place.environment} answers order {message.number}, and was "
                f"given order {self._number}"
            )
        self.state = State.READY
        return message

    def _has_ended(self) -> bool:
        """Returns whether a coupled program says so, while a class waits for it.

        Raises:
            SolverLost: the group is.
        """
        self.look_for_deaths()
        self._check()
        with self._losing:
            if self._message is None and self._answering is not None:
                self._message = self._answering.take()
        return self._message is not None and self._message.kind is Kind.BYE

    def look_for_deaths(self) -> None:
        """Notice ranks that have died; `has_news` is true then. Needs ULFM."""
        if self.state in (State.LOST, State.ENDED) or not ranks_may_die():
            return
        if dead := self._dead_members() or self._gone():
            self._lose(f"rank {dead[0]} has died", dead)

    # ---- ends

    def give_up(self, reason: str) -> None:
        """Kill all its ranks: the group is lost."""
        if self.state is not State.LOST:
            self._lose(reason, [])

    def release(self) -> None:
        """Tell the ranks that nothing more is wanted; their program ends. Idempotent."""
        if self.state is State.EXPECTED and self._pairing is not None:
            self._pairing.wait(_PAIRING_S)
            with contextlib.suppress(SolverLost):
                if not self.meet():
                    self.give_up("it has not come in time")
        if self.state is State.EXPECTED:
            self._end_before_go()
            self.state, self.reason = State.LOST, "it was never needed"
        elif self.state in (State.READY, State.BUSY, State.ENDED) and self._pair is not None:
            with contextlib.suppress(SolverLost), self._losing:
                self._tell(SolverMessage(Kind.END))
                if self._answering is not None:
                    self._answering.cancel()
            self.state, self.reason = State.LOST, "it was released"

    def is_flushed(self) -> bool:
        """Returns whether all that was sent has left."""
        with contextlib.suppress(MPI.Exception):
            return self._is_sent()
        return True  # to the dead

    def _is_sent(self) -> bool:
        if all_done(self._sending):
            self._sending, self._held = [], []
        return not self._sending

    def _check(self) -> None:
        if self.state in (State.LOST, State.ENDED, State.EXPECTED):
            raise SolverLost(self.reason or "it has not begun")

    def _died(self, error: MPI.Exception) -> None:
        """Lose the group by an error of MPI.

        Raises:
            MPI.Exception: it has another cause than a dead rank.
        """
        if error.Get_error_class() not in RANK_DIED:
            raise error
        dead = self._dead_members()
        self._lose(f"rank {dead[0]} has died" if dead else "a rank of it has died", dead)

    def _dead_members(self) -> list[int]:
        """World ranks of its members that have died."""
        if self._pair is None:
            return [rank for rank in dead_ranks(self._world) if rank in self.place.ranks]
        return [self.place.ranks[rank - 1] for rank in dead_ranks(self._pair) if rank > 0]

    def _gone(self) -> list[int]:
        """World ranks of this node whose processes are gone.

        MPI notices that of what it has started alone: not of a program that a shell has.
        """
        here = [peer for peer in self.peers.values() if peer.ringer is not None]
        return [peer.rank for peer in here if not born_of(peer.pid)]

    def _lose(self, reason: str, dead: Sequence[int]) -> None:
        """Kill what is left of the group."""
        self.state, self.reason = State.LOST, reason
        self.dead = tuple(map(self.place.ranks.index, dead))
        if self._pair is not None:  # those that wait for an order end by themselves, on any node
            told = SolverMessage(Kind.ABANDON, lines={"reason": as_line(reason)})
            for number, rank in enumerate(self.place.ranks, 1):
                if rank not in dead:
                    with contextlib.suppress(MPI.Exception):
                        self._send(self._pair, number, ORDER_TAG, told)
        elif self._pairing is None:
            self._end_before_go()
        for rank, peer in self.peers.items():
            if rank not in dead and peer.ringer is not None:  # else it is on another node
                with contextlib.suppress(ProcessLookupError):
                    os.kill(peer.pid, signal.SIGKILL)

    def _end_before_go(self) -> None:
        """Tell each rank, that waits for the word that it is needed or will, that it is not."""
        for rank in self.place.ranks:
            with contextlib.suppress(MPI.Exception):  # it has died
                self._send(self._world, rank, WORLD_TAG, SolverMessage(Kind.END))

    # ---- bytes

    def _tell(self, message: SolverMessage) -> None:
        """Send a message to all ranks, then wake them."""
        packed = pack(message)
        self._held.append(packed)
        pair = self.pair
        for number in range(1, 1 + len(self.place.ranks)):
            self._sending.append(pair.Isend([packed, MPI.BYTE], number, ORDER_TAG))
        for peer in self.peers.values():
            if peer.ringer is not None:
                peer.ringer.ring()

    def _send(self, comm: MPI.Intracomm, rank: int, tag: int, message: SolverMessage) -> None:
        packed = pack(message)
        self._held.append(packed)
        self._sending.append(comm.Isend([packed, MPI.BYTE], rank, tag))


class _Losing:
    """``with group._losing:`` a rank's death, within, makes the group a lost one.

    A class, since a generator would cost each step 3 us.
    """

    def __init__(self, group: SolverGroup) -> None:
        self._group = group

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Raise `SolverLost` where a rank has died."""
        if isinstance(error, MPI.Exception):
            self._group._died(error)
            raise SolverLost(self._group.reason) from error


class _Pairing:
    """The pair is being made, which blocks: on a thread, since a rank may die or hang meanwhile.

    It takes milliseconds, in which nobody else should look for messages here, neither the thread of
    the collector nor that of its pump: Open MPI may lose the first one of a communicator then, and
    hang (seen with 5.0.11, in one of some 20 on a machine with more to do than cores).
    """

    def __init__(self, place: SolverPlace, *, from_group: bool, is_coupled: bool) -> None:
        self._place, self._from_group, self._is_coupled = place, from_group, is_coupled
        self._made: tuple[MPI.Intracomm, CoupledComm | None] | None = None
        self._began_s = time.monotonic()
        self._thread = BackgroundThread(self._make, f"pair of environment {place.environment}")

    @property
    def taken_s(self) -> float:
        """Seconds since it has begun."""
        return time.monotonic() - self._began_s

    def take(self) -> tuple[MPI.Intracomm, CoupledComm | None] | None:
        """Returns the pair, and its copy for a coupled program; None: it is not made yet.

        Raises:
            MPI.Exception: a rank has died.
        """
        self._thread.check()
        return self._made

    def wait(self, seconds: float, dead: Callable[[], Sequence[int]] = tuple) -> None:
        """Wait until it is made, at most so many seconds, or until ranks have died."""
        deadline = time.monotonic() + seconds
        while self._thread.is_alive and time.monotonic() < deadline and not dead():
            self._thread.join(_LOOK_S)

    def _make(self) -> None:
        members, tag = [self._place.collector, *self._place.ranks], 2 * self._place.environment + 1
        with QUIET.kept():
            pair = communicator(MPI.COMM_WORLD, members, tag, from_group=self._from_group)
            self._made = pair, CoupledComm(pair.Dup()) if self._is_coupled else None


class Receiving:
    """A receive that is posted; of one message, or always anew.

    Args:
        comm: from where.
        rank: the sender.
        tag: of its messages.
        values: the most numbers in one.
        text: room for its text.
        is_single: there comes only one.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        rank: int,
        tag: int,
        values: int,
        *,
        text: int = TEXT_BYTES,
        is_single: bool = False,
    ) -> None:
        self._buffer = np.empty(room_for(values, text), np.uint8)
        self._from, self._is_single = (comm, rank, tag), is_single
        self._request = self._posted()

    def _posted(self) -> MPI.Request:
        comm, rank, tag = self._from
        return comm.Irecv([self._buffer, MPI.BYTE], rank, tag)

    def take(self) -> SolverMessage | None:
        """Returns the message that has come, if one has."""
        if not self._request.Test():
            return None
        message = unpack(self._buffer)
        if not self._is_single:
            self._request = self._posted()
        return message

    def cancel(self) -> None:
        """Expect no more."""
        if self._request != MPI.REQUEST_NULL:
            self._request.Cancel()
            self._request.Wait()


def assign(spare: SolverPlace, environment: int, collector: int) -> SolverPlace:
    """Make spare ranks an environment's, of some collector; returns their place.

    Called by the rank that is their `assigner`.
    """
    place = SolverPlace(environment, spare.ranks, collector, spare.assigner)
    _tell(spare, place.assignment(), ASSIGN_TAG)
    return place


def dismiss(place: SolverPlace) -> None:
    """Tell the ranks of a group, which nobody has met, that they are not needed: they end."""
    _tell(place, SolverMessage(Kind.END), WORLD_TAG if place.assigner is None else ASSIGN_TAG)


def _tell(place: SolverPlace, message: SolverMessage, tag: int) -> None:
    packed = pack(message)
    for rank in place.ranks:
        with contextlib.suppress(MPI.Exception):  # it has died, as its collector will see
            MPI.COMM_WORLD.Isend([packed, MPI.BYTE], rank, tag).Wait()  # short: it leaves at once


def _has_dead(comm: MPI.Intracomm) -> bool:
    return ranks_may_die() and bool(dead_ranks(comm))
