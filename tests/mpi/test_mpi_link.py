"""The link over MPI."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from mpi4py import MPI

from fakes.link_contract import LARGE, RANKS, LinkContract, Play, Program, flush, pattern, take
from hpcdi.comm.messages import LearnResult, PolicyUpdate
from hpcdi.comm.mpi_link import MpiLink

pytestmark = pytest.mark.mpi(RANKS)


class TestMpiLink(LinkContract):
    @pytest.fixture
    def play(self, comm: MPI.Intracomm) -> Iterator[Play]:
        world = comm.Split(0 if comm.rank < RANKS else MPI.UNDEFINED, comm.rank)

        def run(program: Program) -> None:
            if world != MPI.COMM_NULL:
                program(MpiLink(world))

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
