"""Gradients and state of several learners that form a group of MPI ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest

from fakes.link_contract import RANKS

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the ranks share few cores

import torch
from torch import nn

from hpcdi.comm.gradients import GradientSync, share_state
from hpcdi.comm.group import allreduce_data, dist_finalize, dist_init
from hpcdi.comm.world import World, open_world
from hpcdi.errors import CommError

pytestmark = [pytest.mark.mpi(RANKS), pytest.mark.usefixtures("one_torch_thread")]

LIMIT_S = 50.0
SHORT_S = 1.0
ROWS = 8
BUCKETS = pytest.mark.parametrize("bucket_bytes", [1, 400, 10**7])


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "to be restored")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "HPCDI_MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    yield
    dist_finalize()


Join = Callable[..., tuple[int, int] | None]


@pytest.fixture
def join() -> Iterator[Join]:
    """Puts the first n ranks in a group; gives rank and size, None to those outside."""
    world, groups = open_world(), []

    def joined(learners: int, limit_s: float = LIMIT_S) -> tuple[int, int] | None:
        group = world.split({"some": range(learners)}).get("some")
        if group is None:
            return None
        groups.append(group)
        return dist_init("gloo", timeout=limit_s, group=group)

    yield joined
    dist_finalize()
    for group in groups:
        group.Free()


class Net(nn.Module):
    """Two heads, of which a step may use one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh())
        self.left, self.right = nn.Linear(16, 3), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, heads: str = "lr") -> torch.Tensor:
        features = self.body(x)
        used = [head for name, head in (("l", self.left), ("r", self.right)) if name in heads]
        return torch.stack([head(features) for head in used]).sum(0)


def network(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def share(rank: int, step: int = 0) -> torch.Tensor:
    """A learner's rows of the joint batch."""
    maker = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(ROWS, 6, generator=maker)


def loss_of(net: Net, x: torch.Tensor, heads: str = "lr") -> torch.Tensor:
    return net(x, heads).square().mean()


def gradients(net: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in net.parameters() if p.grad is not None]


def assert_alike(net: nn.Module, values: list[torch.Tensor]) -> None:
    """Equal to the bit on all learners."""
    flat = torch.cat([value.detach().double().flatten() for value in values])
    low = flat.clone()
    torch.distributed.broadcast(low, 0)
    assert torch.equal(flat, low)
    everywhere = allreduce_data(int(torch.equal(flat, low)), "sum")
    assert everywhere == torch.distributed.get_world_size(), "on another learner"


def assert_is(net: nn.Module, expected: nn.Module, scale: float = 1.0) -> None:
    for (name, one), other in zip(net.named_parameters(), expected.parameters(), strict=True):
        assert one.grad is not None, name
        goal = other.grad * scale if other.grad is not None else torch.zeros_like(other)
        assert torch.allclose(one.grad, goal, rtol=1e-6, atol=1e-6), name


@pytest.mark.parametrize("learners", [2, 3, 4])
@BUCKETS
def test_it_is_the_gradient_of_the_joint_batch(
    join: Join, learners: int, bucket_bytes: int
) -> None:
    place = join(learners)
    if place is None:
        return
    net, whole = network(), network()
    sync = GradientSync(net.parameters(), bucket_bytes=bucket_bytes)
    for step in range(3):
        sync.zero()
        loss_of(net, share(place[0], step)).backward()
        sync.finish()
        whole.zero_grad()
        loss_of(whole, torch.cat([share(rank, step) for rank in range(learners)])).backward()
        assert_is(net, whole)
        assert_alike(net, gradients(net))
    sync.close()


@pytest.mark.parametrize("learners", [2, 4])
def test_learners_stay_alike_while_they_learn(join: Join, learners: int) -> None:
    place = join(learners)
    if place is None:
        return
    net, alone = network(seed=place[0]), network(seed=0)
    share_state(net)
    sync = GradientSync(net.parameters(), bucket_bytes=1000)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    other = torch.optim.Adam(alone.parameters(), 1e-2)
    for step in range(20):
        sync.zero()
        loss_of(net, share(place[0], step)).backward()
        sync.finish()
        optimizer.step()
        assert_alike(net, list(net.parameters()))
        alone.zero_grad()
        loss_of(alone, torch.cat([share(rank, step) for rank in range(learners)])).backward()
        other.step()
    for one, expected in zip(net.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(one, expected, atol=1e-4)


@BUCKETS
def test_parts_of_a_batch_add_up_to_it(join: Join, bucket_bytes: int) -> None:
    rank, _ = join(RANKS) or (0, 0)
    net, whole = network(), network()
    sync = GradientSync(net.parameters(), bucket_bytes=bucket_bytes)
    for step in range(2):
        sync.zero()
        parts = share(rank, step).split([3, 3, 2])
        for part in parts:
            with sync.paused() if part is not parts[-1] else nullcontext():
                (loss_of(net, part) * len(part) / ROWS).backward()
        sync.finish()
        whole.zero_grad()
        loss_of(whole, torch.cat([share(r, step) for r in range(RANKS)])).backward()
        assert_is(net, whole)
        assert_alike(net, gradients(net))


@BUCKETS
def test_parameters_that_some_learners_do_not_use(join: Join, bucket_bytes: int) -> None:
    """Every learner another head, or none; nobody the right one in the last step."""
    rank, size = join(RANKS) or (0, 0)
    net = network()
    sync = GradientSync(net.parameters(), bucket_bytes=bucket_bytes)
    for heads in (["l", "r", "lr", ""], ["lr", "", "", "l"], ["l", "l", "", "l"]):
        sync.zero()
        if heads[rank]:
            loss_of(net, share(rank), heads[rank]).backward()
        sync.finish()
        whole = network()
        for other in range(size):
            if heads[other]:
                loss_of(whole, share(other), heads[other]).backward()
        assert_is(net, whole, 1 / size)
        assert_alike(net, gradients(net))


def test_other_messages_between_do_not_disturb(join: Join) -> None:
    """Though one learner has sent all of its buckets then, and another none."""
    rank, size = join(RANKS) or (0, 0)
    first, second = network(1), network(2)
    syncs = [GradientSync(net.parameters(), bucket_bytes=1) for net in (first, second)]
    for sync in syncs:
        sync.zero()
    for net, heads in ((first, "lr" if rank else "l"), (second, "r" if rank else "lr")):
        loss_of(net, share(rank), heads).backward()
        assert allreduce_data(rank, "sum") == sum(range(size))
    for sync in reversed(syncs):
        sync.finish()
    for net, seed, heads in ((first, 1, ("l", "lr")), (second, 2, ("lr", "r"))):
        whole = network(seed)
        for other in range(size):
            loss_of(whole, share(other), heads[other > 0]).backward()
        assert_is(net, whole, 1 / size)


class Torn(torch.autograd.Function):
    """A layer whose backward pass fails."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        raise ValueError("torn half-way")


def torn_loss(net: Net, x: torch.Tensor) -> torch.Tensor:
    features = Torn.apply(net.body(x))
    return (net.left(features) + net.right(features)).square().mean()


@pytest.mark.parametrize("torn_on", [range(RANKS), (1,)], ids=["all", "one"])
@BUCKETS
def test_a_step_that_fails_half_way_is_taken_by_nobody(
    join: Join, torn_on: range, bucket_bytes: int
) -> None:
    rank, _ = join(RANKS) or (0, 0)
    net, whole = network(), network()
    sync = GradientSync(net.parameters(), bucket_bytes=bucket_bytes)
    sync.zero()
    if rank in torn_on:
        with pytest.raises(ValueError, match="torn half-way"):
            torn_loss(net, share(rank)).backward()
    else:
        loss_of(net, share(rank)).backward()
        with pytest.raises(CommError, match=r"another learner gave this step up.*zero\(\)"):
            sync.finish()
    for step in range(3):
        sync.zero()
        loss_of(net, share(rank, step)).backward()
        sync.finish()
        whole.zero_grad()
        loss_of(whole, torch.cat([share(r, step) for r in range(RANKS)])).backward()
        assert_is(net, whole)
        assert_alike(net, gradients(net))


def test_an_error_after_the_backward_pass_is_noticed_by_all(join: Join) -> None:
    rank, _ = join(RANKS) or (0, 0)
    net = network()
    sync = GradientSync(net.parameters(), bucket_bytes=1)
    sync.zero()
    loss_of(net, share(rank)).backward()
    if rank != 2:
        with pytest.raises(CommError, match="gave this step up"):
            sync.finish()
    sync.zero()  # on rank 2 instead of finish()
    loss_of(net, share(rank)).backward()
    sync.finish()
    assert_alike(net, gradients(net))


@pytest.mark.parametrize("part", ["forward", "paused"])
def test_where_a_step_fails_decides_who_hears_of_it(join: Join, part: str) -> None:
    """Before there are gradients a step is begun anew, and the others need not know."""
    rank, _ = join(RANKS) or (0, 0)
    net, whole = network(), network()
    sync = GradientSync(net.parameters(), bucket_bytes=1)
    sync.zero()
    if rank == 3:
        with pytest.raises((ValueError, RuntimeError)), sync.paused():
            (torn_loss(net, share(rank)) if part == "paused" else net(torch.ones(1))).backward()
        sync.zero()
    loss_of(net, share(rank)).backward()
    if part == "paused" and rank != 3:
        with pytest.raises(CommError, match="gave this step up"):
            sync.finish()
        sync.zero()
        loss_of(net, share(rank)).backward()
    sync.finish()
    loss_of(whole, torch.cat([share(r) for r in range(RANKS)])).backward()
    assert_is(net, whole)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_gradients_that_others_take_away_keep_or_replace(join: Join) -> None:
    rank, size = join(RANKS) or (0, 0)
    net = network()
    sync = GradientSync(net.parameters(), bucket_bytes=300)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    kept: list[torch.Tensor] = []
    for step in range(4):
        optimizer.zero_grad(set_to_none=bool(step % 2))
        sync.zero()
        optimizer.zero_grad(set_to_none=bool(step % 2))
        before = [p.detach().clone() for p in net.parameters()]
        loss_of(net, share(rank, step)).backward(create_graph=step == 2)
        sync.finish()
        whole = network()
        with torch.no_grad():
            torch._foreach_copy_(list(whole.parameters()), before)
        for other in range(size):
            loss_of(whole, share(other, step)).backward()
        assert_is(net, whole, 1 / size)
        if step == 3:  # as clipping does
            nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
        kept = gradients(net)
        optimizer.step()
        assert_alike(net, [*net.parameters(), *kept])


def test_other_backward_passes_between_steps_are_left_alone(join: Join) -> None:
    """An actor's loss goes through the critic, whose step is over."""
    rank, _ = join(RANKS) or (0, 0)
    critic = network()
    sync = GradientSync(critic.parameters(), bucket_bytes=1)
    sync.zero()
    loss_of(critic, share(rank)).backward()
    sync.finish()
    first = [grad.clone() for grad in gradients(critic)]
    loss_of(critic, share(rank, 1)).backward()
    assert any(not torch.equal(a, b) for a, b in zip(first, gradients(critic), strict=True))
    sync.zero()
    loss_of(critic, share(rank)).backward()
    sync.finish()
    assert all(torch.equal(a, b) for a, b in zip(first, gradients(critic), strict=True))


def test_a_second_backward_pass_is_refused(join: Join) -> None:
    rank, _ = join(RANKS) or (0, 0)
    net = network()
    sync = GradientSync(net.parameters())
    with pytest.raises(CommError, match=r"finish\(\) without zero\(\)"):
        sync.finish()
    sync.zero()
    loss_of(net, share(rank)).backward()
    with pytest.raises(CommError, match=r"second backward pass .* paused\(\)"):
        loss_of(net, share(rank)).backward()


def test_parameters_of_several_dtypes_and_shapes(join: Join) -> None:
    rank, size = join(RANKS) or (0, 0)
    kinds = [((3, 5), torch.float32), ((), torch.float64), ((0, 2), torch.float32)]
    kinds += [((7,), torch.float16), ((2, 2), torch.float64), ((9,), torch.bfloat16)]
    weights = [nn.Parameter(torch.ones(shape, dtype=dtype)) for shape, dtype in kinds]
    image = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    weights.append(nn.Parameter(image))
    sync = GradientSync(weights, bucket_bytes=64)
    for _ in range(2):
        sync.zero()
        torch.stack([(w * (rank + 1)).sum().double() for w in weights]).sum().backward()
        sync.finish()
        for weight in weights:
            assert weight.grad is not None
            assert torch.equal(weight.grad, torch.full_like(weight, (size + 1) / 2))
            assert weight.grad.stride() == weight.stride()
    torch.optim.Adam([w for w in weights if w.dtype == torch.float32], fused=True).step()


def test_frozen_parameters_are_passed_over_until_they_thaw(join: Join) -> None:
    rank, size = join(RANKS) or (0, 0)
    net = network()
    net.body.requires_grad_(False)
    sync = GradientSync(net.parameters(), bucket_bytes=300)
    for is_thawed in (False, True, True):
        net.body.requires_grad_(is_thawed)
        sync.zero()
        loss_of(net, share(rank)).backward()
        sync.finish()
        assert all((p.grad is not None) == is_thawed for p in net.body.parameters())
        whole = network()
        for other in range(size):
            loss_of(whole, share(other)).backward()
        if is_thawed:
            assert_is(net, whole, 1 / size)
        assert_is(net.left, whole.left, 1 / size)
    net.left.requires_grad_(False)
    sync.zero()
    loss_of(net, share(rank)).backward()
    sync.finish()
    assert all(p.grad is None for p in net.left.parameters()), "an optimizer would move them"
    assert_is(net.right, whole.right, 1 / size)
    nothing = GradientSync([])
    nothing.zero()
    nothing.finish()


def test_learners_with_other_networks_are_told_so(join: Join) -> None:
    rank, _ = join(RANKS) or (0, 0)
    odd = rank == 2
    sync = GradientSync(nn.Linear(4, 3 if odd else 2).parameters())
    with pytest.raises(CommError, match=r"learner 2 has another network .*2 tensors against 2"):
        sync.zero()
    with pytest.raises(CommError, match=r"learner 2 has another network .*: 2 tensors against 1$"):
        share_state(nn.Linear(4, 2, bias=odd))


def test_state_is_shared_whatever_its_dtype(join: Join) -> None:
    rank, _ = join(RANKS) or (0, 0)

    def module(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        made = nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Linear(3, 3).double())
        made.register_buffer("mask", torch.rand(5) > 0.5)
        made.register_buffer("count", torch.tensor(2**40 + seed))
        made.register_buffer("turned", torch.rand(3, 4).t())
        made[0].weight.requires_grad_(False)
        made[1].running_mean.fill_(seed)
        return made

    net, expected = module(rank), module(0)
    addresses = [value.data_ptr() for value in net.state_dict().values()]
    share_state(net)
    for name, value in net.state_dict().items():
        assert torch.equal(value, expected.state_dict()[name]), name
    assert [value.data_ptr() for value in net.state_dict().values()] == addresses


def test_a_group_of_others_goes_on_with_the_same_object(join: Join) -> None:
    world = open_world()
    net = network()
    sync = GradientSync(net.parameters(), bucket_bytes=300)
    for learners in (1, 4, 2, 4, 3):
        place = join(learners)
        if place is not None:
            sync.zero()
            loss_of(net, share(world.rank)).backward()
            sync.finish()
            whole = network()
            for other in range(learners):
                loss_of(whole, share(other)).backward()
            assert_is(net, whole, 1 / learners)
        dist_finalize()
        world.comm.Barrier()
    assert not any(p._post_accumulate_grad_hooks for p in net.parameters())


@pytest.mark.parametrize("when", ["before the step", "within the step"])
def test_a_learner_that_leaves_is_not_awaited(join: Join, world: World, when: str) -> None:
    """The time limit is far away: the others see that its connections are closed."""
    rank, _ = join(RANKS) or (0, 0)
    net = network()
    sync = GradientSync(net.parameters(), bucket_bytes=1)
    for _ in range(2):
        sync.zero()
        loss_of(net, share(rank)).backward()
        sync.finish()
    if rank == 1:
        if when == "within the step":
            sync.zero()
            loss_of(net, share(rank)).backward()
        dist_finalize()
        if when == "within the step":
            with pytest.raises(CommError, match="group was left between"):
                sync.finish()
    else:
        sync.zero()
        loss_of(net, share(rank)).backward()
        with pytest.raises(CommError, match=f"learner {rank} of 4 waited in vain") as raised:
            sync.finish()
        assert "Timed out" not in str(raised.value)
        dist_finalize()
    world.comm.Barrier()


def test_a_learner_that_is_silent_is_not_awaited_for_ever(join: Join, world: World) -> None:
    rank, _ = join(RANKS, SHORT_S) or (0, 0)
    net = network()
    sync = GradientSync(net.parameters(), bucket_bytes=1)
    sync.zero()
    if rank:
        loss_of(net, share(rank)).backward()
        with pytest.raises(CommError, match=f"learner {rank} of 4 waited in vain .* hangs"):
            sync.finish()
        with pytest.raises(CommError, match="without zero"):
            sync.finish()
    world.comm.Barrier()
    dist_finalize()
    place = join(RANKS)
    assert place == (rank, RANKS)
    sync.zero()
    loss_of(net, share(rank)).backward()
    sync.finish()
    assert_alike(net, gradients(net))


@pytest.fixture
def world() -> World:
    return open_world()
