"""The world of this process, and its few collective calls."""

from __future__ import annotations

import dataclasses
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

from fakes.link_contract import RANKS, flush, take
from hpcdi.comm.messages import LearnResult
from hpcdi.comm.pmix import fence
from hpcdi.comm.world import World, collect, library_version, open_world, share
from hpcdi.errors import RankMissingError

pytestmark = pytest.mark.mpi(RANKS)


@pytest.fixture
def world() -> Iterator[World]:
    """The world, in which no message of ours is left when the test ends."""
    world = open_world()
    yield world
    world.comm.Barrier()


def test_everybody_knows_its_place(world: World) -> None:
    assert (world.rank, world.size) == (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
    assert world.host == platform.node()
    assert world.local_rank == world.rank  # the tests run on one host


def test_opening_again_gives_the_same(world: World) -> None:
    assert open_world() == world


@pytest.mark.skipif("PMIX_NAMESPACE" not in os.environ, reason="started without PMIx")
@pytest.mark.parametrize("members", [RANKS, RANKS - 1])
def test_a_fence_waits_for_those_who_come_late(
    world: World, members: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    late = Path(world.share(str(tmp_path_factory.mktemp("fence") / "late")))
    if world.rank == 1:
        time.sleep(0.2)
        late.touch()
    if world.rank < members:
        assert fence(members, world.size)
        assert late.exists()


def test_share_gives_everybody_what_rank_0_has(world: World) -> None:
    assert world.share({"from": world.rank}) == {"from": 0}


def test_collect_gives_everybody_what_all_have(world: World) -> None:
    assert world.collect(world.rank**2) == [rank**2 for rank in range(world.size)]


class Forgetful(MPI.Intracomm):
    """As Open MPI with ULFM where a rank dies: a call returns without what that one has to give."""

    lost: str
    """The call."""

    def Bcast(self, buf: Any, root: int = 0) -> None:
        if self.lost != "Bcast":
            super().Bcast(buf, root)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        super().Allgather(sendbuf, recvbuf)
        if self.lost == "Allgather":
            recvbuf[-1] = 0

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        super().Allgatherv(sendbuf, recvbuf)
        gathered, counts, _ = recvbuf
        gathered[-counts[-1] :] = 0


@pytest.mark.parametrize("lost", ["Allgather", "Allgatherv"])
def test_a_rank_that_has_given_nothing_is_missing(world: World, lost: str) -> None:
    comm = Forgetful(world.comm)
    comm.lost = lost
    with pytest.raises(RankMissingError, match=f"without what rank {RANKS - 1} gave"):
        collect(comm, "here")


def test_a_rank_0_that_has_given_nothing_is_missing(world: World) -> None:
    comm = Forgetful(world.comm)
    comm.lost = "Bcast"
    if world.rank:
        with pytest.raises(RankMissingError, match="without what rank 0 gave"):
            share(comm, None)


class Failing(MPI.Intracomm):
    """As Open MPI with ULFM where a rank dies: a call fails, with whatever error."""

    def Bcast(self, buf: Any, root: int = 0) -> None:
        raise MPI.Exception(MPI.ERR_OTHER)


def test_an_error_of_mpis_says_that_a_rank_has_died(world: World) -> None:
    failing = dataclasses.replace(world, comm=Failing(world.comm))
    with pytest.raises(RankMissingError, match=r"all ranks has failed \(.*\): one has died"):
        failing.share("hello")


@pytest.mark.parametrize("members", [(), (1, 2), (3, 1), (3,), tuple(range(RANKS))])
def test_a_group_has_its_members_in_order(world: World, members: tuple[int, ...]) -> None:
    group = world.split({"some": members}).get("some")
    if world.rank not in members:
        assert group is None
        return
    assert group is not None
    assert group.Get_rank() == members.index(world.rank)
    assert group.allgather(world.rank) == list(members)
    group.Free()


def test_a_rank_may_be_in_several_groups(world: World) -> None:
    groups = {"players": (0, 1), "all": range(world.size), "env": (1, 2, 3)}
    own = world.split(groups)
    assert list(own) == [name for name, ranks in groups.items() if world.rank in ranks]
    for name, comm in own.items():
        assert comm.allgather(world.rank) == list(groups[name])
        comm.Free()


def test_each_link_hears_only_its_own(world: World) -> None:
    first, second = world.open_link(), world.open_link()
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    first.send(after, LearnResult("first", world.rank))
    second.send(after, LearnResult("second", world.rank))
    assert take(second, 1) == [(before, LearnResult("second", before))]
    assert take(first, 1) == [(before, LearnResult("first", before))]
    for link in (first, second):
        flush(link)


def test_the_library_says_its_name_in_one_line() -> None:
    name = library_version()
    assert name.isprintable()
    assert name.startswith(("Open MPI", "MPICH", "Intel", "MVAPICH", "CRAY"))
