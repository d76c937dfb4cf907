"""Gradients of one learner, and how parameters are laid out in buckets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hpcdi.comm.gradients import ALIGNMENT_BYTES, GradientSync, make_buckets, share_state
from hpcdi.comm.group import dist_finalize, dist_init

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(params=[False, True], ids=["no group", "group of one"])
def _alone(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param:
        dist_init("gloo", rank=0, world_size=1)
    yield
    dist_finalize()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def loss_of(net: nn.Module, rows: int = 5) -> torch.Tensor:
    return net(torch.arange(3.0 * rows).reshape(rows, 3).sin()).square().mean()


@pytest.mark.usefixtures("_alone")
def test_a_learner_alone_does_what_it_does_without() -> None:
    ours, plain = network(), network()
    sync = GradientSync(ours.parameters())
    for rows in (4, 5, 6):
        sync.zero()
        with sync.paused():
            loss_of(ours, 3).backward()
        loss_of(ours, rows).backward()
        sync.finish()
        plain.zero_grad()
        loss_of(plain, 3).backward()
        loss_of(plain, rows).backward()
        for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
            assert torch.equal(one.grad, other.grad)
    sync.close()
    sync.close()


@pytest.mark.usefixtures("_alone")
def test_a_learner_alone_has_no_hooks_and_no_buckets() -> None:
    net = network()
    sync = GradientSync(net.parameters())
    sync.zero()
    assert all(not p._post_accumulate_grad_hooks for p in net.parameters())
    loss_of(net).backward()
    own = [p.grad for p in net.parameters()]
    sync.finish()
    assert all(p.grad is grad for p, grad in zip(net.parameters(), own, strict=True))
    sync.zero()
    assert all(p.grad is None for p in net.parameters())
    sync.finish()
    sync.finish()
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.usefixtures("_alone")
def test_state_of_a_learner_alone_stays() -> None:
    net = network()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    share_state(net)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


DTYPES = (torch.float32, torch.float64, torch.float16, torch.bool, torch.int64)


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 5), max_size=3), st.sampled_from(DTYPES)), max_size=12
    ),
    st.integers(1, 2000),
)
def test_buckets_hold_everything_once(
    kinds: list[tuple[list[int], torch.dtype]], bucket_bytes: int
) -> None:
    tensors = [torch.ones(shape, dtype=dtype) for shape, dtype in kinds]
    buckets = make_buckets(tensors, bucket_bytes)
    held = [tensor for bucket in buckets for tensor in bucket.tensors]
    assert sorted(map(id, held)) == sorted(map(id, tensors))
    for bucket in buckets:
        assert bucket.memory.dim() == 1
        assert not bucket.memory.any()
        torch._foreach_copy_(bucket.views, bucket.tensors)
        assert bucket.memory.sum() == sum(tensor.numel() for tensor in bucket.tensors)
        assert bucket.memory[-1] == 0, "the spare element is nobody's"
        size = (bucket.memory.numel() - 1) * bucket.memory.element_size()
        assert len(bucket.tensors) == 1 or size <= bucket_bytes
        for tensor, view in zip(bucket.tensors, bucket.views, strict=True):
            assert (view.shape, view.dtype) == (tensor.shape, tensor.dtype)
            assert view.storage_offset() * view.element_size() % ALIGNMENT_BYTES == 0
    place = {id(tensor): position for position, tensor in enumerate(tensors)}
    lasts = [max(place[id(tensor)] for tensor in bucket.tensors) for bucket in buckets]
    assert lasts == sorted(lasts), "buckets are full one after the other"


def test_buckets_are_as_full_as_they_may_be() -> None:
    tensors = [torch.ones(16) for _ in range(7)]  # of 64 bytes
    assert [len(bucket.tensors) for bucket in make_buckets(tensors, 64)] == [1] * 7
    assert [len(bucket.tensors) for bucket in make_buckets(tensors, 191)] == [2, 2, 2, 1]
    assert [len(bucket.tensors) for bucket in make_buckets(tensors, 192)] == [3, 3, 1]
    large = make_buckets([*tensors, torch.ones(999)], 448)
    assert [len(bucket.tensors) for bucket in large] == [7, 1]


def test_views_have_the_strides_of_their_tensors() -> None:
    image = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)
    turned, spread = torch.ones(6, 7).t(), torch.ones(4, 1).expand(4, 3)
    (bucket,) = make_buckets([image, turned, spread], 10**6)
    assert [view.stride() for view in bucket.views] == [image.stride(), turned.stride(), (3, 1)]
