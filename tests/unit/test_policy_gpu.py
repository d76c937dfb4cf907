"""Learning on a GPU: it agrees with the CPU in float32, whatever is switched on."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.policies import (
    KINDS,
    data_of,
    distance,
    first,
    gradient,
    policy_of,
    with_scale,
)
from hpcdi.comm.gradients import share_state
from hpcdi.comm.group import allreduce_data, dist_finalize, dist_init, get_world_size
from hpcdi.policy.networks import learner_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

SWITCHES: list[tuple[dict[str, Any], float]] = [
    ({}, 1e-4),
    ({"accumulate": 3, "grad_clip_norm": 0.01}, 1e-4),
    ({"tf32": True}, 0.01),
    ({"precision": "bf16"}, 0.03),
    ({"precision": "fp16"}, 0.01),
    ({"precision": "bf16", "accumulate": 3, "grad_clip_norm": 0.01}, 0.03),
]


@pytest.fixture(autouse=True)
def _flags() -> Iterator[None]:
    """They are of the whole process."""
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("learn", "tolerance"), SWITCHES, ids=str)
def test_a_gpu_makes_the_step_that_the_cpu_makes(
    kind: str, learn: dict[str, Any], tolerance: float
) -> None:
    clipped = {"grad_clip_norm": learn.get("grad_clip_norm", 0.0)}
    slow = policy_of(kind, **clipped)
    fast = policy_of(kind, cuda=True, **{**clipped, **learn})
    if learn.get("precision") == "fp16":
        with_scale(fast, 1024.0)
    told = [first(learner._forward_learn(data_of(kind, count=256))) for learner in (slow, fast)]
    assert distance(gradient(fast._model), gradient(slow._model)) < tolerance
    assert told[1]["total_loss"] == pytest.approx(told[0]["total_loss"], rel=2 * tolerance)
    assert all(tensor.is_cuda for tensor in fast._model.state_dict().values())
    assert all(tensor.dtype == torch.float32 for tensor in fast._model.state_dict().values())


def test_images_too() -> None:
    pixels = torch.randint(0, 256, (2, 20, 1, 36, 36), dtype=torch.uint8)
    batch = {**data_of("dqn"), "observation": pixels[0], "next_observation": pixels[1]}
    slow = policy_of("dqn", obs_shape=[1, 36, 36])
    slow._forward_learn(batch)
    for learn, tolerance in SWITCHES[2:5]:
        fast = policy_of("dqn", obs_shape=[1, 36, 36], cuda=True, **learn)
        if learn.get("precision") == "fp16":
            with_scale(fast, 1024.0)
        fast._forward_learn(batch)
        assert distance(gradient(fast._model), gradient(slow._model)) < 2 * tolerance


def test_tf32_is_allowed_only_where_it_is_asked_for() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    policy_of("dqn", cuda=True)
    assert not torch.backends.cuda.matmul.allow_tf32
    policy_of("dqn", cuda=True, tf32=True)
    assert torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("kind", KINDS)
def test_steps_that_overflow_are_skipped_and_counted(kind: str) -> None:
    learner = policy_of(kind, cuda=True, precision="fp16")
    with_scale(learner, 2.0**40)
    before = copy.deepcopy(learner._model.state_dict())
    told = first(learner._forward_learn(data_of(kind)))
    assert told["skipped_steps"] == 1
    assert math.isfinite(told["total_loss"])
    now = learner._model.state_dict()
    assert all(torch.equal(now[name], before[name]) for name in before)


@pytest.mark.parametrize("kind", ["dqn", "discrete"])
@pytest.mark.parametrize("is_from_gpu", [True, False])
def test_states_go_from_one_device_to_the_other(
    kind: str, is_from_gpu: bool, tmp_path: Path
) -> None:
    old, new = (
        policy_of(kind, cuda=cuda, precision="bf16").learn_mode
        for cuda in (is_from_gpu, not is_from_gpu)
    )
    for seed in range(3):
        old.forward(data_of(kind, seed))
    torch.save(old.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True, map_location="cpu")
    new.load_state_dict(state)
    for name, tensor in old.state_dict()["model"].items():
        assert torch.equal(new.state_dict()["model"][name].cpu(), tensor.cpu())
    told = [first(mode.forward(data_of(kind, 3)))["total_loss"] for mode in (old, new)]
    assert told[0] == pytest.approx(told[1], rel=0.03)


def test_a_learner_uses_the_device_that_its_process_has_chosen() -> None:
    last = torch.cuda.device_count() - 1
    with torch.cuda.device(last):
        assert learner_device(cuda=True) == torch.device("cuda", last)
        assert next(policy_of("dqn", cuda=True)._model.parameters()).device.index == last
    assert learner_device(cuda=False) == torch.device("cpu")


def test_an_nccl_group_of_one_is_formed_and_left() -> None:
    for _ in range(2):
        assert dist_init("nccl", addr="127.0.0.1", port=0, rank=0, world_size=1) == (0, 1)
        assert torch.distributed.get_backend() == "nccl"
        policy = policy_of("dqn", cuda=True)
        share_state(policy._model)
        assert math.isfinite(policy.learn_mode.forward(data_of("dqn"))["total_loss"])
        assert allreduce_data(torch.ones(2, device="cuda"), "sum").tolist() == [1.0, 1.0]
        dist_finalize()
        assert not torch.distributed.is_initialized()
        assert get_world_size() == 1


@pytest.mark.slow
def test_a_compiled_network_learns_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fakes.compiled_policy", "cuda"], cwd=Path(__file__).parent.parent,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "agreed\n", done.stderr
