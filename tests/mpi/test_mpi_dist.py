"""The learners' process group, formed from MPI ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from link_contract import RANKS
from serial_probe import Actor, Manager, return_of

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the ranks share few cores

import torch
import torch.distributed

from hpcdi.comm.dist import (
    allreduce,
    allreduce_data,
    broadcast,
    dist_finalize,
    dist_init,
    get_rank,
    get_world_size,
)
from hpcdi.comm.world import World, open_world
from hpcdi.errors import CommError
from hpcdi.worker import SampleSerialCollector

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


def test_numbers_and_tensors_are_combined(world: World) -> None:
    assert allreduce_data(3, "sum") == 3, "alone, before there is a group"
    group = world.subgroup(True)
    assert group is not None
    dist_init("gloo", timeout=LIMIT_S, group=group)
    ranks = range(world.size)
    assert allreduce_data(2**40 + world.rank, "sum") == sum(2**40 + rank for rank in ranks)
    assert allreduce_data(0.5 * world.rank, "avg") == sum(0.5 * rank for rank in ranks) / len(ranks)
    x = torch.tensor([1.0, float(world.rank)])
    assert allreduce_data(x, "sum") is x
    assert x.tolist() == [len(ranks), sum(ranks)]
    assert allreduce_data(x, "avg") is x
    assert x.tolist() == [len(ranks), sum(ranks)]
    counts = torch.tensor([world.rank, 1])
    allreduce_data(counts, "sum")
    assert counts.tolist() == [sum(ranks), len(ranks)]
    with pytest.raises(CommError, match="not 'max'"):
        allreduce_data(1, "max")
    dist_finalize()
    group.Free()


class Curves:
    """Keeps what is drawn."""

    def __init__(self) -> None:
        self.points: dict[str, tuple[float, int]] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.points[tag] = (value, step)

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Nothing is open."""


def test_serial_collectors_count_what_all_ranks_do(world: World) -> None:
    group = world.subgroup(True)
    assert group is not None
    dist_init("gloo", timeout=LIMIT_S, group=group)
    shares = [4 * (rank + 1) for rank in range(world.size)]
    curves, env = Curves(), Manager((2, 2))
    with SampleSerialCollector({}, env, Actor().mode, curves) as made:
        assert len(made.collect(shares[world.rank], 3)) == shares[world.rank], "each its own"
        assert sum(env.life) == shares[world.rank]
        assert made.envstep == sum(shares)
        assert curves.points["collector_iter/total_envstep_count"] == (sum(shares), 3)
        assert curves.points["collector_step/episode_count"] == (sum(shares) / 2, sum(shares))
        assert curves.points["collector_step/avg_envstep_per_episode"] == (2.0, sum(shares))
        own = [return_of(episode, 2) for episode in range(world.rank + 1)]
        assert curves.points["collector_iter/reward_max"] == (max(own), 3), "of its own episodes"
        made.collect(4, random_collect=True, record_random_collect=False)
        assert made.envstep == sum(shares)
    dist_finalize()
    group.Free()
