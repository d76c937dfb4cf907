"""The process group of one process: joining and leaving it, its collectives, shares of sizes."""

from __future__ import annotations

import copy
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed

from hpcdi.comm.group import local_device
from hpcdi.config.compat import ConfigDict
from hpcdi.errors import CommError
from hpcdi.worker.dist import (
    DDPContext,
    Reduction,
    allgather,
    allreduce,
    allreduce_async,
    allreduce_data,
    allreduce_with_indicator,
    broadcast,
    broadcast_object,
    dist_finalize,
    dist_init,
    dist_mode,
    gather_objects,
    get_group,
    get_rank,
    get_world_size,
    reduce_data,
    simple_group_split,
    synchronize,
    to_ddp_config,
)


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is known from outside, and the group is left after a test that fails."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    yield
    dist_finalize()


def test_finalize_may_be_called_at_any_time() -> None:
    dist_finalize()
    dist_init("gloo", rank=0, world_size=1)
    dist_finalize()
    dist_finalize()
    assert not torch.distributed.is_initialized()
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


# ------------------------------------------------------------------------------------- collectives


@pytest.fixture(params=[False, True], ids=["no group", "group of one"])
def _alone(request: pytest.FixtureRequest) -> None:
    if request.param:
        dist_init("gloo", rank=0, world_size=1)


@pytest.mark.usefixtures("_alone")
class TestAlone:
    def test_there_is_one_member(self) -> None:
        assert (get_rank(), get_world_size()) == (0, 1)
        x = torch.tensor([2.0, 4.0])
        allreduce(x)
        broadcast(x)
        assert x.tolist() == [2.0, 4.0]

    def test_numbers_and_tensors_come_back_as_they_are(self) -> None:
        x = torch.tensor([1.5, 2.0])
        for value in (3, 0.5, np.float32(2.5), np.int64(7), True):
            assert reduce_data(value, 0) == value
            assert allreduce_data(value, "sum") == value
            assert allreduce_data(value, "avg") == value
        assert reduce_data(x, 0) is x
        assert allreduce_data(x, "avg") is x
        assert x.tolist() == [1.5, 2.0]

    def test_objects_and_lists(self) -> None:
        assert broadcast_object({"a": 1}) == {"a": 1}
        assert gather_objects("own") == ["own"]
        room = [torch.zeros(2)]
        allgather(room, torch.tensor([1.0, 2.0]))
        assert room[0].tolist() == [1.0, 2.0]
        with pytest.raises(CommError, match="tensors for 2 members, and there is 1"):
            allgather([torch.zeros(2), torch.zeros(2)], torch.zeros(2))

    @pytest.mark.parametrize(("indicator", "mean"), [(0.0, 0.0), (1.0, 6.0), (2.0, 3.0)])
    def test_who_gives_nothing_has_no_part_in_the_mean(self, indicator: float, mean: float) -> None:
        grad = torch.full((2, 3), 6.0 if indicator else 0.0)
        allreduce_with_indicator(grad, torch.tensor(indicator))
        assert grad.tolist() == [[mean] * 3] * 2

    def test_an_indicator_may_be_a_whole_number(self) -> None:
        grad = torch.full((2,), 6.0)
        allreduce_with_indicator(grad, torch.tensor([1]))
        assert grad.tolist() == [6.0, 6.0]

    def test_a_mean_under_way_is_there_at_once(self) -> None:
        x = torch.tensor([2.0])
        begun = allreduce_async("x", x)
        assert begun.wait() is x
        assert begun.wait() is x
        synchronize()
        assert x.item() == 2.0

    def test_groups(self) -> None:
        assert get_group(1) is None
        assert get_group() is None
        assert simple_group_split(1, 0, 1) is None
        for size in (0, 2, -1):
            with pytest.raises(
                CommError, match=f"1 learners cannot be split into groups of {size}"
            ):
                get_group(size)
        for world_size, num_groups in ((4, 2), (1, 2), (1, 0)):
            with pytest.raises(CommError, match=f"into {num_groups} equal groups"):
                simple_group_split(world_size, 0, num_groups)


@pytest.mark.parametrize("value", ["3", None, [1.0], {}])
def test_what_is_no_number(value: Any) -> None:
    with pytest.raises(TypeError, match=f"not a number or a tensor: {type(value).__name__}"):
        reduce_data(value, 0)
    with pytest.raises(TypeError, match="not a number or a tensor"):
        allreduce_data(value, "sum")


def test_whole_numbers_in_a_tensor_have_no_average() -> None:
    x = torch.tensor([1, 2])
    with pytest.raises(CommError, match=r"torch\.int64 cannot hold an average"):
        allreduce_data(x, "avg")
    assert allreduce_data(x, "sum") is x


@pytest.fixture
def _group_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")


@pytest.mark.usefixtures("_group_of_one")
class TestJoining:
    def test_a_function_runs_inside_the_group_and_gives_its_value(self) -> None:
        @dist_mode
        def work(a: int, *, b: int) -> tuple[int, bool]:
            """Its own words."""
            return a + b, torch.distributed.is_initialized()

        assert work(1, b=2) == (3, True)
        assert not torch.distributed.is_initialized()
        assert (work.__name__, work.__doc__) == ("work", "Its own words.")

    def test_the_group_is_left_on_an_error_too(self) -> None:
        @dist_mode
        def work() -> None:
            assert torch.distributed.is_initialized()
            raise ValueError("own error")

        for _ in range(2):
            with pytest.raises(ValueError, match="own error"):
                work()
            assert not torch.distributed.is_initialized()

    def test_a_context_says_where_it_is(self) -> None:
        with DDPContext(backend="gloo") as place:
            assert place == (get_rank(), get_world_size()) == (0, 1)
        assert not torch.distributed.is_initialized()

    def test_a_context_within_another_leaves_nothing(self) -> None:
        with DDPContext():
            with DDPContext():
                pass
            assert torch.distributed.is_initialized()
        assert not torch.distributed.is_initialized()


def test_a_function_that_does_not_know_its_place() -> None:
    with pytest.raises(CommError, match="does not know its rank"):
        dist_mode(lambda: None)()


class Waiting:
    """Stands for a reduction that torch is still busy with."""

    def __init__(self, error: str = "") -> None:
        self.error = error
        self.waits = 0

    def wait(self) -> None:
        self.waits += 1
        if self.error:
            raise RuntimeError(self.error)


def begun(name: str, work: Waiting) -> Reduction:
    return Reduction(name, torch.ones(1), work)


def test_all_are_waited_for_though_one_fails() -> None:
    works = [Waiting(), Waiting("Connection closed by peer."), Waiting()]
    made = [begun(f"layer {number}", work) for number, work in enumerate(works)]
    with pytest.raises(CommError, match=r"in vain for the mean of 'layer 1': .* by peer\. A"):
        synchronize()
    assert [work.waits for work in works] == [1, 1, 1]
    synchronize()
    assert made[0].wait() is made[0].tensor
    with pytest.raises(CommError, match="the mean of 'layer 1' is lost"):
        made[1].wait()
    assert [work.waits for work in works] == [1, 1, 1], "each is waited for once"


def test_leaving_loses_what_is_under_way_and_says_so() -> None:
    made = begun("late", Waiting())
    dist_finalize()
    synchronize()
    with pytest.raises(CommError, match=r"'late' is lost: .* before dist_finalize"):
        made.wait()


CONFIG = {
    "env": {"n_sample": 9},
    "policy": {
        "batch_size": 7,
        "learn": {"batch_size": 64, "update_per_collect": 3},
        "collect": {"n_sample": 33, "n_episode": None, "unroll_len": 1},
        "other": {"batch_size": 5},
    },
}


@pytest.mark.parametrize("kind", [dict, ConfigDict])
def test_shares_of_a_configuration(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcdi.worker.dist.get_world_size", lambda: 4)
    given = kind(copy.deepcopy(CONFIG))
    shared = to_ddp_config(given)
    assert given == CONFIG, "it is a copy that was changed"
    assert type(shared) is kind
    expected: Any = copy.deepcopy(CONFIG)
    expected["policy"]["batch_size"] = 2
    expected["policy"]["learn"]["batch_size"] = 16
    expected["policy"]["collect"]["n_sample"] = 9
    assert shared == expected
    assert isinstance(shared["policy"]["learn"]["batch_size"], int)


@pytest.mark.parametrize("policy", [{}, {"learn": {}}, {"collect": {}}, {"learn": None}])
def test_what_is_not_there_is_not_shared(policy: dict[str, Any]) -> None:
    assert to_ddp_config({"policy": policy}) == {"policy": policy}


def test_one_learner_has_the_whole() -> None:
    assert to_ddp_config(CONFIG) == CONFIG
