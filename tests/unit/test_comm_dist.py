"""The process group of one process, and what keeps a process from joining one."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import torch
import torch.distributed

from hpcdi.comm.dist import (
    allreduce,
    broadcast,
    dist_finalize,
    dist_init,
    get_rank,
    get_world_size,
    local_device,
)
from hpcdi.errors import CommError


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is known from outside, and the group is left after a test that fails."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    yield
    dist_finalize()


def test_one_process_is_a_group() -> None:
    assert dist_init("gloo", rank=0, world_size=1) == (0, 1)
    assert (get_rank(), get_world_size()) == (0, 1)
    x = torch.tensor([2.0, 4.0])
    allreduce(x)
    broadcast(x)
    assert x.tolist() == [2.0, 4.0]
    dist_finalize()
    assert not torch.distributed.is_initialized()


def test_without_a_group_there_is_one_member() -> None:
    assert (get_rank(), get_world_size()) == (0, 1)
    x = torch.tensor([3.0])
    allreduce(x)
    broadcast(x)
    assert x.tolist() == [3.0]


def test_finalize_may_be_called_at_any_time() -> None:
    dist_finalize()
    dist_init("gloo", rank=0, world_size=1)
    dist_finalize()
    dist_finalize()
    assert dist_init("gloo", rank=0, world_size=1) == (0, 1)


def test_joining_twice_is_joining_once() -> None:
    dist_init("gloo", rank=0, world_size=1)
    assert dist_init("gloo", rank=5, world_size=9) == (0, 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="nccl is right where there is a GPU")
def test_without_a_gpu_nccl_becomes_gloo() -> None:
    assert dist_init(rank=0, world_size=1) == (0, 1)
    assert torch.distributed.get_backend() == "gloo"


def test_rank_and_size_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert dist_init("gloo") == (0, 1)


@pytest.mark.parametrize(
    ("variables", "unknown"),
    [
        ({}, "rank"),
        ({"RANK": "0"}, "world_size"),
        ({"WORLD_SIZE": "2"}, "rank"),
        ({"RANK": "zero", "WORLD_SIZE": "2"}, "rank"),
        ({"RANK": "0", "WORLD_SIZE": ""}, "world_size"),
    ],
)
def test_who_does_not_know_its_place_is_told_how_to(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], unknown: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CommError, match=f"does not know its {unknown}: .*group=.*RANK and WORLD"):
        dist_init("gloo")


def test_several_processes_need_an_address() -> None:
    with pytest.raises(CommError, match="needs MPI, or addr and port of rank 0"):
        dist_init("gloo", rank=0, world_size=2)


def test_a_port_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "many")
    with pytest.raises(CommError, match=r"learner 0 of 2 could not join .*'many'"):
        dist_init("gloo", rank=0, world_size=2)


def test_a_member_that_does_not_come_is_not_awaited_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(CommError, match=r"learner 0 of 2 .*1/2 clients joined\. On a host"):
        dist_init("gloo", addr="127.0.0.1", port=port, rank=0, world_size=2, timeout=0.5)
    assert not torch.distributed.is_initialized()


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="counts this machine's devices")
def test_without_several_devices_all_learners_share_one() -> None:
    assert [local_device(learner) for learner in range(3)] == [0, 0, 0]
