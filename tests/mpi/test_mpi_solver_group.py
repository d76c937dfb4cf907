"""A collector and the ranks of a solver, as they meet."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator

import numpy as np
import pytest
from mpi4py import MPI

from fakes.link_contract import RANKS
from hpcdi.comm.solver_group import SolverGroup, assign
from hpcdi.comm.solver_protocol import (
    ASSIGN_TAG,
    WORLD_TAG,
    Kind,
    Sizes,
    SolverMessage,
    SolverPlace,
    pack,
    room_for,
    unpack,
)
from hpcdi.errors import EnvError

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
    with pytest.raises(EnvError, match="environment 3: the spaces of the class's instances"):
        met(group)
    assert received(WORLD_TAG).lines["spaces"] == "0a0b0c0d"


def test_spare_ranks_make_their_pair_without_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank has died, or they were not needed; MPI may not have seen that yet."""
    monkeypatch.setattr("hpcdi.comm.solver_group.ranks_may_die", lambda: True)
    monkeypatch.setattr("hpcdi.comm.solver_group._has_dead", lambda _: False)
    spare = SolverPlace(1000, (OWN,), OWN, OWN)
    groups = [SolverGroup(place, Sizes()) for place in (assign(spare, 3, OWN), SolverPlace(4, ()))]
    assert received(ASSIGN_TAG).kind is Kind.ASSIGN
    told = [group._go_message(Sizes()).lines["from_group"] for group in groups]
    assert told == ["1", "0"]
    for group in groups:
        for receiving in group._hellos.values():
            receiving.cancel()
