"""The learners' process group, formed from MPI ranks."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fakes.link_contract import RANKS
from fakes.serial_parts import Actor, Battle, Manager, return_of

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the ranks share few cores

import torch
import torch.distributed

from hpcdi.comm.world import World, open_world
from hpcdi.errors import CommError
from hpcdi.worker import (
    BattleEpisodeSerialCollector,
    BattleSampleSerialCollector,
    EpisodeSerialCollector,
    SampleSerialCollector,
)
from hpcdi.worker.dist import (
    DDPContext,
    allgather,
    allreduce,
    allreduce_async,
    allreduce_data,
    allreduce_with_indicator,
    broadcast,
    dist_finalize,
    dist_init,
    dist_mode,
    get_group,
    get_rank,
    get_world_size,
    reduce_data,
    simple_group_split,
    synchronize,
    to_ddp_config,
)

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


@contextmanager
def joined(world: World, members: int) -> Iterator[range]:
    """The first ranks form a group; gives their numbers."""
    group = world.split({"some": range(members)}).get("some")
    if group is not None:
        dist_init("gloo", timeout=LIMIT_S, group=group)
    yield range(members)
    dist_finalize()
    if group is not None:
        group.Free()


@pytest.mark.parametrize("members", [(1, 2), (3,), tuple(range(RANKS))])
def test_the_members_average_and_share_among_themselves(
    world: World, members: tuple[int, ...]
) -> None:
    group = world.split({"some": members}).get("some")
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


def test_all_ranks_of_mpi_are_members_where_nothing_else_is_said(world: World) -> None:
    """As a comm learner of DI-engine's documents calls it, with ``multi_gpu``."""
    assert dist_init() == (world.rank, world.size)
    x = torch.tensor([float(world.rank)])
    allreduce(x)
    assert x.item() == (world.size - 1) / 2
    dist_finalize()


def test_a_group_can_be_left_and_formed_anew_by_others(world: World) -> None:
    """So that learners can go on when one has gone."""
    for members in ((0, 1, 2), (1, 2), (1, 2, 3)):
        group = world.split({"some": members}).get("some")
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
    group = world.split({"all": range(world.size)})["all"]
    assert group is not None
    assert dist_init("gloo", timeout=LIMIT_S, group=group) == (world.rank, world.size)
    world.comm.Barrier()  # who leaves at once closes connections that slower members still open
    dist_finalize()
    group.Free()


def test_the_address_of_the_first_learner_can_be_given(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCDI_MASTER_ADDR", "localhost")
    group = world.split({"all": range(world.size)})["all"]
    assert group is not None
    assert dist_init("gloo", timeout=LIMIT_S, group=group) == (world.rank, world.size)
    world.comm.Barrier()  # who leaves at once closes connections that slower members still open
    dist_finalize()
    group.Free()


def test_numbers_and_tensors_are_combined(world: World) -> None:
    assert allreduce_data(3, "sum") == 3, "alone, before there is a group"
    group = world.split({"all": range(world.size)})["all"]
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


PAIR_AND_ALL = pytest.mark.parametrize("members", [2, RANKS])


@PAIR_AND_ALL
def test_the_first_member_gets_sums_and_the_others_keep_theirs(world: World, members: int) -> None:
    with joined(world, members) as ranks:
        if world.rank not in ranks:
            return
        for chosen in ranks:
            x = torch.tensor([1.0, float(world.rank)])
            assert reduce_data(x, chosen) is x
            is_chosen = world.rank == chosen
            assert x.tolist() == ([members, sum(ranks)] if is_chosen else [1.0, world.rank])
            assert reduce_data(world.rank, chosen) == (sum(ranks) if is_chosen else world.rank)
            assert reduce_data(2**60 + 1, chosen) == (2**60 + 1) * (members if is_chosen else 1)
            assert reduce_data(0.25, chosen) == (0.25 * members if is_chosen else 0.25)


@PAIR_AND_ALL
def test_every_member_gets_what_all_have(world: World, members: int) -> None:
    with joined(world, members) as ranks:
        if world.rank not in ranks:
            return
        room = [torch.zeros(2) for _ in ranks]
        allgather(room, torch.tensor([world.rank, 10.0]))
        assert [row.tolist() for row in room] == [[rank, 10.0] for rank in ranks]
        config = {"policy": {"learn": {"batch_size": 63}, "collect": {"n_sample": 1}}}
        shared = to_ddp_config(config)["policy"]
        assert shared["learn"]["batch_size"] == -(-63 // members)
        assert shared["collect"]["n_sample"] == 1


@PAIR_AND_ALL
def test_columns_of_a_table_are_tensors_too(world: World, members: int) -> None:
    with joined(world, members) as ranks:
        if world.rank not in ranks:
            return
        table = torch.arange(40.0).reshape(4, 10) + world.rank
        column, mean = torch.arange(0.0, 40.0, 10.0), sum(ranks) / members
        allreduce_data(table[:, 0], "avg")
        allreduce(table[:, 1])
        allreduce_async("column", table[:, 2]).wait()
        broadcast(table[:, 3], 1)
        allgather(list(table[:, 4 : 4 + members].T), table[:, 9])
        for place, added in enumerate((mean, mean, mean, 1.0)):
            assert table[:, place].tolist() == (column + place + added).tolist()
        for place, rank in enumerate(ranks, 4):
            assert table[:, place].tolist() == (column + 9 + rank).tolist()
        assert table[:, 9].tolist() == (column + 9 + world.rank).tolist()


@PAIR_AND_ALL
def test_means_of_those_that_contribute(world: World, members: int) -> None:
    with joined(world, members) as ranks:
        if world.rank not in ranks:
            return
        for givers in ((), (1,), tuple(ranks)):
            gives = world.rank in givers
            grad = torch.full((3,), 6.0 + world.rank if gives else 0.0)
            indicator = torch.tensor([int(gives)])
            allreduce_with_indicator(grad, indicator)
            assert indicator.item() == len(givers)
            mean = sum(6.0 + rank for rank in givers) / max(len(givers), 1)
            assert grad.tolist() == [mean] * 3


@PAIR_AND_ALL
def test_means_under_way_are_all_waited_for(world: World, members: int) -> None:
    with joined(world, members) as ranks:
        if world.rank not in ranks:
            return
        tensors = [torch.full((1000,), float(world.rank + number)) for number in range(20)]
        begun = [allreduce_async(str(number), x) for number, x in enumerate(tensors)]
        mean = sum(ranks) / members
        assert begun[7].wait() is tensors[7]
        assert tensors[7][0].item() == mean + 7
        del begun
        synchronize()
        assert [x.unique().tolist() for x in tensors] == [[mean + n] for n in range(20)]
        synchronize()


def test_leaving_in_order_waits_for_what_is_under_way(world: World) -> None:
    group = world.split({"all": range(world.size)})["all"]
    assert group is not None
    x = torch.full((10_000,), float(world.rank))
    with DDPContext(backend="gloo", timeout=LIMIT_S, group=group) as place:
        assert place == (world.rank, world.size)
        allreduce_async("x", x)
    assert not torch.distributed.is_initialized()
    assert x.unique().tolist() == [sum(range(world.size)) / world.size]
    group.Free()


def test_groups_of_neighbours(world: World) -> None:
    with joined(world, RANKS) as ranks:
        pair = get_group(2)
        x = torch.tensor([float(world.rank)])
        allreduce(x, group=pair)
        first = world.rank // 2 * 2
        assert x.item() == first + 0.5
        broadcast(x, first, group=pair)
        room = [torch.zeros(1), torch.zeros(1)]
        allgather(room, torch.tensor([float(world.rank)]), group=pair)
        assert [row.item() for row in room] == [first, first + 1]
        for num_groups, size in ((1, 4), (4, 1)):
            own = simple_group_split(RANKS, world.rank, num_groups)
            y = torch.tensor([float(world.rank)])
            allreduce(y, group=own)
            assert y.item() == (sum(ranks) / RANKS if size == 4 else world.rank)
        whole = get_group()
        allreduce(x, group=whole)
        with pytest.raises(CommError, match="4 learners cannot be split into groups of 3"):
            get_group(3)
        with pytest.raises(CommError, match=r"2 learners \(of 4\) cannot be split into 2"):
            simple_group_split(2, world.rank, 2)
        del pair, own, whole


@pytest.mark.parametrize("failing", [(), (1,)])
def test_a_decorated_function_runs_in_the_group_of_the_environment(
    world: World, monkeypatch: pytest.MonkeyPatch, failing: tuple[int, ...]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = world.comm.bcast(server.getsockname()[1], root=0)
    for name, value in (
        ("RANK", world.rank), ("WORLD_SIZE", world.size), ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", port), ("GLOO_SOCKET_IFNAME", "lo"),
    ):  # fmt: skip
        monkeypatch.setenv(name, str(value))

    @dist_mode
    def work(x: int) -> float:
        total = allreduce_data(x, "sum")
        if world.rank in failing:
            raise ValueError("own error")
        return float(total)

    if world.rank in failing:
        with pytest.raises(ValueError, match="own error"):
            work(world.rank)
    else:
        assert work(world.rank) == sum(range(world.size))
    assert not torch.distributed.is_initialized()
    world.comm.Barrier()


def test_who_waits_for_a_member_that_left_is_told(world: World) -> None:
    """Long before the time limit, though the errors are kept that hold what was in use."""
    group = world.split({"all": range(world.size)})["all"]
    assert group is not None
    dist_init("gloo", timeout=LIMIT_S, group=group)
    world.comm.Barrier()  # who leaves at once closes connections that slower members still open
    if world.rank == 2:
        dist_finalize()
    else:
        begun = [allreduce_async(name, torch.ones(5)) for name in ("first", "second")]
        with pytest.raises(CommError, match=f"learner {world.rank} of 4 waited in vain") as raised:
            synchronize()
        assert "Timed out" not in str(raised.value)
        for mean in begun:
            with pytest.raises(CommError, match="is lost"):
                mean.wait()
        dist_finalize()
    world.comm.Barrier()
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
    group = world.split({"all": range(world.size)})["all"]
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
        made.collect(4, random_collect=True, record_random_collect=False)  # its steps count, too
        assert made.envstep == sum(shares) + 4 * world.size
    dist_finalize()
    group.Free()


def test_other_collectors_wait_for_no_rank(world: World) -> None:
    """As with DI-engine: rank 0 may collect alone, between two collective calls of the learners."""
    group = world.split({"all": range(world.size)})["all"]
    assert group is not None
    dist_init("gloo", timeout=LIMIT_S, group=group)
    if world.rank == 0:
        modes = [Actor(player).mode for player in range(2)]
        with EpisodeSerialCollector({}, Manager((2, 2)), modes[0]) as made:
            assert (len(made.collect(2)), made.envstep) == (2, 4)
        for cls, amount in ((BattleEpisodeSerialCollector, 2), (BattleSampleSerialCollector, 4)):
            with cls({}, Battle((2, 2)), modes) as made:
                made.collect(amount)
                assert made.envstep == 4
    assert allreduce_data(world.rank, "sum") == sum(range(world.size))
    dist_finalize()
    group.Free()
