"""A collector and the ranks of a solver, as they meet."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import numpy as np
import pytest
from mpi4py import MPI

from fakes.link_contract import RANKS
from hpcdi.comm.coupled import CoupledComm
from hpcdi.comm.doorbell import Doorbell, Ringer
from hpcdi.comm.solver_group import Peer, Receiving, SolverGroup, State, assign
from hpcdi.comm.solver_protocol import (
    ANSWER_TAG,
    ASSIGN_TAG,
    ORDER_TAG,
    TEXT_BYTES,
    WORLD_TAG,
    Kind,
    Sizes,
    SolverLost,
    SolverMessage,
    SolverPlace,
    pack,
    room_for,
    unpack,
)
from hpcdi.errors import EnvValueError
from hpcdi.utils.backoff import probed
from hpcdi.utils.watchdog import WAITING

pytestmark = pytest.mark.mpi(RANKS)
OWN = MPI.COMM_WORLD.rank


def received(tag: int) -> SolverMessage:
    """What this rank has been sent by itself."""
    buffer = bytearray(room_for(0))
    MPI.COMM_WORLD.Recv(buffer, OWN, tag)
    return unpack(np.frombuffer(buffer, np.uint8))


def met(group: SolverGroup) -> None:
    """Wait for its ranks."""
    while not group.meet():
        pass


@pytest.fixture(autouse=True)
def _together() -> Iterator[None]:
    yield
    MPI.COMM_WORLD.Barrier()


def test_a_class_with_other_spaces_than_the_run_s_is_refused_on_both_sides() -> None:
    """The hello of this rank to itself: sizes are right, bounds are not."""
    group = SolverGroup(SolverPlace(3, (OWN,), OWN), Sizes(2, 1, "0a0b0c0d"))
    lines = {
        "pid": str(os.getpid()), "host": platform.node(), "observations": "2", "actions": "1",
        "spaces": "11111111", "bell": "", "inode": "",
    }  # fmt: skip
    MPI.COMM_WORLD.Send(pack(SolverMessage(Kind.HELLO, lines=lines)), OWN, WORLD_TAG)
    with pytest.raises(EnvValueError, match="environment 3: the spaces of the class's instances"):
        met(group)
    assert received(WORLD_TAG).lines["spaces"] == "0a0b0c0d"


def test_a_pair_that_is_never_made_costs_its_ranks_alone() -> None:
    """The collector waited for it until start_timeout."""
    group = SolverGroup(SolverPlace(3, (), OWN), Sizes())
    group._pairing = Mock(take=lambda: None, taken_s=29.0)
    assert not group.meet()
    group._pairing.taken_s = 31.0
    with pytest.raises(SolverLost, match="its communicator was not made within 30 s"):
        group.meet()
    assert group.state is State.LOST


def test_a_coupled_program_that_has_ended_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But what has still been sent is; a death is noticed while a class waits."""
    monkeypatch.setattr("hpcdi.comm.coupled._LAST_S", 0.05)
    group = SolverGroup(SolverPlace(3, (), OWN), Sizes(), is_coupled=True)
    group.state, group._answering = State.READY, Receiving(MPI.COMM_SELF, 0, ANSWER_TAG, 0)
    comm = CoupledComm(MPI.COMM_SELF.Dup())
    comm.has_ended = group._has_ended
    sent = [MPI.COMM_SELF.Isend(pack(SolverMessage(Kind.BYE)), 0, ANSWER_TAG)]
    last, buffer = np.arange(3.0), np.empty(3)
    sent.append(comm.Isend(last, 0, 7))
    comm.Recv(buffer, 0, 7)
    assert buffer.tolist() == last.tolist()
    for wait in (lambda: comm.Recv(buffer, 0, 7), comm.Probe):
        with pytest.raises(SolverLost, match="its program has ended"):
            wait()
    monkeypatch.setattr(group, "look_for_deaths", lambda: group.give_up("rank 4 has died"))
    with pytest.raises(SolverLost, match="rank 4 has died"):
        comm.Probe()
    MPI.Request.Waitall(sent)
    group._answering.cancel()


@pytest.mark.parametrize("make", ["whole", "Dup", "Split"])
def test_a_class_s_messages_of_every_form_arrive_and_end_in_time(make: str) -> None:
    """Small letters, and a communicator that the class has made, waited for ever."""
    whole = CoupledComm(MPI.COMM_SELF.Dup())
    comm = whole if make == "whole" else getattr(whole, make)()
    status, got = MPI.Status(), np.empty(3)
    comm.Sendrecv(np.arange(3.0), 0, 4, got, 0, 4)
    assert got.tolist() == [0.0, 1.0, 2.0]
    large = {"field": list(range(100_000))}
    assert comm.sendrecv(large, 0, 5, None, 0, 5, status) == large
    assert status.Get_tag() == 5
    sent = comm.isend("a", 0, 6)
    assert comm.probe(0, 6)
    assert comm.recv(source=MPI.ANY_SOURCE) == "a"
    sent.wait()
    waits: list[Callable[[], object]] = [
        comm.recv, comm.probe, comm.mprobe, comm.Mprobe,
        lambda: comm.Recv(got, 0, 7), lambda: comm.ssend(1, 0, 8), lambda: comm.Ssend(got, 0, 9),
        lambda: comm.sendrecv(1, 0, 8, None, 0, 10), lambda: comm.Sendrecv(got, 0, 9, got, 0, 11),
    ]  # fmt: skip
    for wait in waits:
        whole.deadline = time.monotonic() + 0.02
        with pytest.raises(SolverLost, match="did not answer in time"):
            wait()


def test_messages_of_every_copy_and_part_end_in_time() -> None:
    whole = CoupledComm(MPI.COMM_SELF.Dup())
    whole.deadline = time.monotonic()
    group, alike = whole.Get_group(), MPI.COMM_TYPE_SHARED
    for part in (
        whole.Dup(), whole.Dup_with_info(MPI.INFO_NULL), whole.Clone(), whole.Split(),
        whole.Split_type(alike), whole.Create(group), whole.Create_group(group),
        whole.Split().Create(group),
    ):  # fmt: skip
        assert isinstance(part, CoupledComm)
        with pytest.raises(SolverLost, match="did not answer in time"):
            part.recv()


def test_a_group_is_given_up_for_a_reason_of_any_length_and_lines() -> None:
    """An error of a coupling's class, one that holds an array, ended the run in its turn."""
    group = SolverGroup(SolverPlace(3, (OWN,), OWN), Sizes())
    group.state, group._pair = State.READY, MPI.COMM_WORLD.Dup()
    group.give_up(f"its coupling raises ValueError(array([[1.],\n [2.]])), {'ü' * TEXT_BYTES}")
    assert group.state is State.LOST
    for rank in range(RANKS if OWN == 1 else 0):  # of each group the rank after its collector
        buffer = bytearray(room_for(0))
        group._pair.Recv(buffer, rank, ORDER_TAG)
        told = unpack(np.frombuffer(buffer, np.uint8))
        assert told.kind is Kind.ABANDON
        assert told.lines["reason"].startswith("its coupling raises ValueError(array([[1.], [2.]]")
    while not group.is_flushed():
        pass
    group._hellos[OWN].cancel()


def test_a_class_that_waits_for_its_program_has_the_limit_of_its_step_alone() -> None:
    """A step longer than worker_timeout_s ended the rank."""
    comm, seen = CoupledComm(MPI.COMM_SELF.Dup()), list[bool]()
    comm.deadline = time.monotonic() + 0.2

    def look() -> None:
        while not any(seen) and time.monotonic() < comm.deadline:
            seen.append(bool(WAITING))

    looking = threading.Thread(target=look)
    looking.start()
    with pytest.raises(SolverLost, match="did not answer in time"):
        comm.Probe()
    looking.join()
    assert any(seen)
    assert not WAITING


def test_a_process_of_this_node_that_is_gone_has_died_whatever_mpi_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shell has started it, which MPI takes for the rank; one that cannot be seen goes on."""
    monkeypatch.setattr("hpcdi.comm.solver_group.ranks_may_die", lambda: True)
    group = SolverGroup(SolverPlace(3, (), OWN), Sizes())
    monkeypatch.setattr(group, "_dead_members", list)
    lost: list[int] = []
    monkeypatch.setattr(group, "_lose", lambda _, dead: lost.extend(dead))
    with Doorbell() as bell, subprocess.Popen(["true"]) as program:
        ringer = Ringer.of(*bell.lines().values())
        group.peers = {
            7: Peer(7, os.getpid(), ringer),
            8: Peer(8, 2**22 + 1, None),
        }
        group.look_for_deaths()
        assert lost == []
        os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)  # a zombie
        group.peers[9] = Peer(9, program.pid, ringer)
        with monkeypatch.context() as crowded:
            crowded.setattr("hpcdi.utils.processes._stat", Mock(side_effect=OSError(errno.EMFILE)))
            group.look_for_deaths()
            assert lost == []
        group.look_for_deaths()
    assert lost == [9]


@pytest.mark.parametrize("end", ["give_up", "release"])
def test_ranks_that_wait_for_a_group_that_never_begins_are_told_to_end(end: str) -> None:
    """They waited for ever, where the group was given up or one of them had died before."""
    group, nobody = SolverGroup(SolverPlace(3, (OWN,), OWN), Sizes()), MPI.COMM_WORLD.size
    group.place = SolverPlace(3, (nobody, OWN), OWN)  # MPI refuses what is sent to a dead one, too
    if end == "give_up":
        group.give_up("it has not come in time")
    else:
        group.release()
    told = probed(group._hellos[OWN].take)
    assert told is not None
    assert (told.kind, group.state) == (Kind.END, State.LOST)
    while not group.is_flushed():
        pass


def test_spare_ranks_make_their_pair_without_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank has died, or they were not needed; MPI may not have seen that yet."""
    monkeypatch.setattr("hpcdi.comm.solver_group.ranks_may_die", lambda: True)
    monkeypatch.setattr("hpcdi.comm.solver_group._has_dead", lambda _: False)
    spare = SolverPlace(1000, (OWN,), OWN, OWN)
    groups = [SolverGroup(place, Sizes()) for place in (assign(spare, 3, OWN), SolverPlace(4, ()))]
    assert received(ASSIGN_TAG).kind is Kind.ASSIGN
    told = [group._go_message().lines["from_group"] for group in groups]
    assert told == ["1", "0"]
    for group in groups:
        for receiving in group._hellos.values():
            receiving.cancel()
