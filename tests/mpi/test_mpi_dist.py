"""The learners' process group, formed from MPI ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from link_contract import RANKS

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the ranks share few cores

import torch
import torch.distributed

from hpcdi.comm.dist import (
    allreduce,
    broadcast,
    dist_finalize,
    dist_init,
    get_rank,
    get_world_size,
)
from hpcdi.comm.world import World, open_world

pytestmark = pytest.mark.mpi(RANKS)

LIMIT_S = 50.0


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The group sets the interface of gloo where all are on one host; a test leaves no trace."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "to be restored")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "HPCDI_MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    yield
    dist_finalize()


@pytest.fixture
def world() -> World:
    return open_world()


@pytest.mark.parametrize("members", [(1, 2), (3,), tuple(range(RANKS))])
def test_the_members_average_and_share_among_themselves(
    world: World, members: tuple[int, ...]
) -> None:
    group = world.subgroup(world.rank in members)
    if group is None:
        assert (get_rank(), get_world_size()) == (0, 1)
        x = torch.tensor([float(world.rank)])
        allreduce(x)
        assert x.item() == world.rank
        return
    place = (members.index(world.rank), len(members))
    assert dist_init("gloo", timeout=LIMIT_S, group=group) == place
    assert (get_rank(), get_world_size()) == place
    x = torch.tensor([float(world.rank), 10.0 * world.rank])
    allreduce(x)
    mean = sum(members) / len(members)
    assert x.tolist() == [mean, 10 * mean]
    for source, rank in enumerate(members):
        y = torch.tensor([world.rank, -world.rank])
        broadcast(y, source)
        assert y.tolist() == [rank, -rank]
    dist_finalize()
    group.Free()


def test_a_group_can_be_left_and_formed_anew_by_others(world: World) -> None:
    """So that learners can go on when one has gone."""
    for members in ((0, 1, 2), (1, 2), (1, 2, 3)):
        group = world.subgroup(world.rank in members)
        if group is not None:
            assert dist_init("gloo", timeout=LIMIT_S, group=group)[1] == len(members)
            assert dist_init("gloo", group=group) == (get_rank(), len(members))
            x = torch.ones(3)
            allreduce(x)
            assert x.tolist() == [1.0, 1.0, 1.0]
            dist_finalize()
            dist_finalize()
            assert not torch.distributed.is_initialized()
            group.Free()
        world.comm.Barrier()


def test_variables_of_another_job_are_not_believed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is started from within another one inherits its RANK and addresses."""
    for name, value in (
        ("RANK", "7"),
        ("WORLD_SIZE", "9"),
        ("MASTER_ADDR", "nowhere.invalid"),
        ("MASTER_PORT", "1"),
    ):
        monkeypatch.setenv(name, value)
    group = world.subgroup(True)
    assert group is not None
    assert dist_init("gloo", timeout=LIMIT_S, group=group) == (world.rank, world.size)
    dist_finalize()
    group.Free()


def test_the_address_of_the_first_learner_can_be_given(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCDI_MASTER_ADDR", "localhost")
    group = world.subgroup(True)
    assert group is not None
    assert dist_init("gloo", timeout=LIMIT_S, group=group) == (world.rank, world.size)
    dist_finalize()
    group.Free()
