"""The link over MPI."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from mpi4py import MPI

from fakes.link_contract import LARGE, RANKS, LinkContract, Play, Program, flush, pattern, take
from hpcdi.comm.codec import INLINE_BYTES, encode
from hpcdi.comm.messages import LearnResult, PolicyUpdate, RankLost
from hpcdi.comm.mpi_link import MpiLink
from hpcdi.comm.world import collect
from hpcdi.utils.backoff import PROBES

pytestmark = pytest.mark.mpi(RANKS)


def ringing(link: MpiLink, comm: MPI.Intracomm) -> MpiLink:
    """A link whose ranks ring each other, as those of one node do."""
    link.ring(collect(comm, link.bell.lines()))
    return link


@pytest.mark.parametrize("rings", [False, True], ids=["naps", "rings"])
class TestMpiLink(LinkContract):
    @pytest.fixture
    def play(self, comm: MPI.Intracomm, rings: bool) -> Iterator[Play]:
        world = comm.Split(0 if comm.rank < RANKS else MPI.UNDEFINED, comm.rank)

        def run(program: Program) -> None:
            if world != MPI.COMM_NULL:
                program(ringing(MpiLink(world), world) if rings else MpiLink(world))

        yield run
        if world != MPI.COMM_NULL:
            world.Free()


def test_a_large_message_has_not_left_before_it_is_taken(comm: MPI.Intracomm) -> None:
    link = MpiLink(comm)
    if link.rank == 0:
        link.send(1, PolicyUpdate(0, pattern(0, 0, LARGE)))
        link.receive(0.05)
        assert link.unsent() == [1]
    comm.Barrier()
    if link.rank == 1:
        take(link, 1)
    flush(link)


def test_links_of_one_world_do_not_hear_each_other(comm: MPI.Intracomm) -> None:
    other_comm = comm.Dup()
    first, second = MpiLink(comm), MpiLink(other_comm)
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    first.send(after, LearnResult("first", 1))
    second.send(after, LearnResult("second", 2))
    assert take(second, 1) == [(before, LearnResult("second", 2))]
    assert take(first, 1) == [(before, LearnResult("first", 1))]
    comm.Barrier()
    other_comm.Free()


def test_large_messages_of_all_to_one_at_a_time(comm: MPI.Intracomm) -> None:
    """Their frames come mixed; each must end up in its own message."""
    link = MpiLink(comm)
    for number in range(3):
        link.send(0, PolicyUpdate(number, pattern(link.rank, number, LARGE // 4 + number)))
    if link.rank == 0:
        for sender, message in take(link, 3 * link.size):
            assert isinstance(message, PolicyUpdate)
            size = LARGE // 4 + message.version
            assert np.array_equal(message.data, pattern(sender, message.version, size))
    flush(link)
    comm.Barrier()


def test_a_bell_ends_a_nap(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcdi.comm.mpi_link._BELL_NAP_S", 60.0)
    link = ringing(MpiLink(comm), comm)
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank == 0:
        time.sleep(0.2)  # the others have lain down
        link.send(after, LearnResult("at once", 1))
    began = time.monotonic()
    assert link.receive(50.0) == [(before, LearnResult("at once", 1))]
    assert time.monotonic() - began < 25.0
    if comm.rank != 0:
        link.send(after, LearnResult("at once", 1))
    flush(link)


def test_a_rank_that_has_woken_itself_sleeps_at_its_bell(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not hear the others while it takes naps for a message that overtakes nothing."""
    monkeypatch.setattr("hpcdi.comm.mpi_link._BELL_NAP_S", 20.0)
    monkeypatch.setattr("hpcdi.comm.mpi_link._OVERTAKEN_S", 60.0)
    link = ringing(MpiLink(comm, shortest_nap_s=20.0, longest_nap_s=20.0), comm)
    if comm.rank == 0:
        timer = threading.Timer(0.3, link.wake.set)
        timer.start()
        assert link.receive(50.0) == []
        timer.join()
    comm.Barrier()
    if comm.rank == 1:
        time.sleep(0.3)  # rank 0 has lain down
        link.send(0, LearnResult("at once", 1))
    began = time.monotonic()
    if comm.rank == 0:
        assert link.receive(50.0) == [(1, LearnResult("at once", 1))]
        assert time.monotonic() - began < 15.0
    flush(link)


def test_nobody_rings_where_one_is_out_of_sight(comm: MPI.Intracomm) -> None:
    link = MpiLink(comm)
    lines = link.bell.lines()
    if comm.rank == 1:
        lines["inode"] = "0"  # as a process of the same number on another node has another
    link.ring(collect(comm, lines))
    if comm.rank != 1:
        link.send(1, LearnResult("looked for", 1))
    else:
        assert len(take(link, comm.size - 1)) == comm.size - 1
    flush(link)


class OneDies(MPI.Intracomm):
    """A world in which rank 1 dies.

    Attributes:
        looks: whose message each probe finds; None: nobody's. `DEATH`: it raises instead.
    """

    looks: list[int | None]

    def Improbe(self, source: int, tag: int, status: MPI.Status) -> MPI.Message | None:
        look = self.looks.pop(0) if self.looks else None
        if look == DEATH:
            raise MPI.Exception(MPI.ERR_PROC_FAILED_PENDING)
        return None if look is None else self.Mprobe(look, tag, status)

    def Get_failed(self) -> MPI.Group:
        return self.Get_group().Incl([1])

    def Ack_failed(self, num_to_ack: int | None = None) -> int:
        return num_to_ack or 0


DEATH = -1


@pytest.mark.parametrize(
    "looks", [[2, DEATH, 1], [2, DEATH, None, None, 1], [*[None] * (PROBES - 1), DEATH, 1]]
)
def test_what_a_dead_rank_has_sent_comes_before_the_word_of_its_death(
    comm: MPI.Intracomm, looks: list[int | None]
) -> None:
    """A block that came after it was counted, and its work given to another, too."""
    senders = [rank for rank in looks if rank in (1, 2)]
    link = MpiLink(dying := OneDies(comm))
    dying.looks = [*looks]
    if link.rank in senders:
        link.send(0, LearnResult("last", link.rank))
    if link.rank == 0:
        sent = [(rank, LearnResult("last", rank)) for rank in senders]
        assert link.receive(0.0) == [*sent, (1, RankLost())]
    while link.rank and link.unsent():
        pass


def test_an_error_that_is_no_death_is_raised(comm: MPI.Intracomm) -> None:
    """MPI says "in status" of both; the messages were dropped."""
    link = MpiLink(comm)
    sending = list[MPI.Request]()
    if link.rank == 1:
        encoded = encode(PolicyUpdate(0, pattern(1, 0, INLINE_BYTES + 1)))
        (frame,) = encoded.frames
        sending.append(comm.Isend([encoded.head, MPI.BYTE], 0, 1))
        sending.append(comm.Isend([np.zeros(frame.nbytes + 1, np.uint8), MPI.BYTE], 0, 2))
    if link.rank == 0:
        with pytest.raises(MPI.Exception) as caught:
            take(link, 1)
        assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    MPI.Request.Waitall(sending)
