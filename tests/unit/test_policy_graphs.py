"""Updates as CUDA graphs are the updates that are launched one by one."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fakes.policies import data_of, distance
from hpcdi.policy.create import create_policy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

WEIGHTED = {"priority": True, "priority_IS_weight": True}
DISCRETE = {"obs_shape": 4, "action_shape": 3, "encoder_hidden_size_list": [32]}
BOX = {"obs_shape": 4, "action_shape": [2], "action_low": [-1.0, -2.0], "action_high": [1.0, 2.0]}
PICTURES = {"obs_shape": [4, 84, 84], "action_shape": 3, "encoder": "nature_cnn"}
LEVERS = {
    "obs_shape": 4, "action_shape": 7, "action_space": "multi_discrete",
    "action_leaves": [{"name": "", "shape": (2,), "dtype": "int64", "counts": (3, 4)}],
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "pictures": {"type": "dqn", "model": PICTURES},
    "discrete": {"type": "ppo", "model": DISCRETE | {"action_space": "discrete"}},
    "continuous": {"type": "ppo", "model": BOX | {"action_space": "continuous"}},
    "multi_discrete": {"type": "ppo", "model": LEVERS},
    "dqn": {"model": DISCRETE | {"dueling": True, "noisy": True}, "double": True, **WEIGHTED},
    "c51": {"model": DISCRETE},
    "qrdqn": {"model": DISCRETE, **WEIGHTED},
    "discrete_sac": {"model": DISCRETE, **WEIGHTED},
    "sac": {"model": BOX, **WEIGHTED},
    "tqc": {"model": BOX, **WEIGHTED},
    "td3": {"model": BOX},
    "iql": {"model": BOX, **WEIGHTED},
    "cql": {"model": BOX},
    "discrete_cql": {"model": DISCRETE},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "float32": {},
    "parts, clipped": {"accumulate": 3, "grad_clip_norm": 0.1},
    "bf16": {"precision": "bf16"},
}
SCHEDULE = [{"key": "learning_rate", "end": 1e-4, "iterations": 10}]


class Waiting(nn.Module):
    """A network that waits for the GPU in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, observation: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Returns values [batch, 3]."""
        output = self.layer(observation)
        return (output if output.sum().item() > 0 else output + 0), state


def waiting(_model: Any) -> nn.Module:
    """The factory."""
    return Waiting()


def learner(kind: str, *, graphs: bool | None, **learn: Any) -> Any:
    """A policy in learn mode; equal ones but for its graphs."""
    cfg = {key: value for key, value in KINDS[kind].items() if key != "double"}
    learn = {"learning_rate": 1e-2, "cuda_graphs": graphs, **learn}
    if "double" in KINDS[kind]:
        learn["double"] = True
    if cfg.get("type") == "ppo":
        learn |= {"batch_size": 12, "epoch_per_collect": 2}
    cfg = {"type": kind, **cfg, "cuda": True, "learn": learn}
    return create_policy(cfg, ("learn",), seed=np.random.SeedSequence(0))


def batch_of(kind: str, seed: int, count: int = 24) -> dict[str, Tensor]:
    """A batch, on the device."""
    rng = np.random.default_rng(seed)
    if KINDS[kind].get("type") == "ppo":
        columns = data_of("discrete" if kind == "multi_discrete" else kind, seed, count)
        if kind == "multi_discrete":
            levers = [columns["action"], torch.from_numpy(rng.integers(0, 4, count))]
            columns["action"] = torch.stack(levers, dim=1)
            columns["log_prob"] -= math.log(4)
        return {name: column.cuda() for name, column in columns.items()}
    floats = {
        "observation": (count, 4), "next_observation": (count, 4), "n_step_return": (count,)
    }  # fmt: skip
    batch = {
        name: torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
        for name, shape in floats.items()
    }
    batch["bootstrap_discount"] = torch.full((count,), 0.9)
    batch["weight"] = torch.from_numpy(rng.random(count).astype(np.float32))
    if kind == "pictures":
        for name in ("observation", "next_observation"):
            batch[name] = torch.randint(0, 256, (256, 4, 84, 84), dtype=torch.uint8)[:count]
    if "action_low" in KINDS[kind]["model"]:
        batch["action"] = torch.from_numpy(rng.uniform(-1, 1, (count, 2)).astype(np.float32))
    else:
        batch["action"] = torch.from_numpy(rng.integers(0, 3, count))
    return {name: column.cuda() for name, column in batch.items()}


def flat(policy: Any) -> Tensor:
    """All that it has learnt, with its targets and its optimizers' states."""
    networks = [part for part in vars(policy).values() if isinstance(part, nn.Module)]
    tensors = [tensor for network in networks for tensor in network.state_dict().values()]
    for step in policy._steps:
        for state in step.optimizer.state.values():
            tensors += list(state.values())
    return torch.cat([tensor.detach().float().flatten().cpu() for tensor in tensors])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_replayed_update_is_the_same_update(kind: str, variant: str) -> None:
    learn = {**VARIANTS[variant], "schedule": SCHEDULE}
    plain, fast = (learner(kind, graphs=graphs, **learn) for graphs in (False, None))
    for number in range(16):
        batch = batch_of(kind, number, 24 if number % 3 else 7)
        torch.cuda.empty_cache()  # what nobody holds is gone
        told = [each._forward_learn(batch) for each in (plain, fast)]
        assert told[0].keys() == told[1].keys()
        for name, value in told[0].items():
            assert told[1][name] == pytest.approx(value, rel=1e-3, abs=1e-5), (number, name)
        assert distance(flat(fast), flat(plain)) < 1e-4, number
    assert not plain._replayed
    assert fast._replayed
    assert all(replayed.graphs for replayed in fast._replayed)


@pytest.mark.parametrize("kind", ["dqn", "sac"])
def test_a_state_that_is_loaded_is_learnt_from(kind: str) -> None:
    plain, fast = (learner(kind, graphs=graphs) for graphs in (False, True))
    for number in range(6):
        plain._forward_learn(batch_of(kind, number))
        fast._forward_learn(batch_of(kind, 100 + number))
    fast.learn_mode.load_state_dict(copy.deepcopy(plain.learn_mode.state_dict()))
    for number in range(6):
        for each in (plain, fast):
            each._forward_learn(batch_of(kind, 10 + number))
        assert distance(flat(fast), flat(plain)) < 1e-4, number
    assert all(replayed.graphs for replayed in fast._replayed)
    state = fast.learn_mode.state_dict()["optimizer"]["param_groups"][0]
    assert state["lr"] == 1e-2
    assert not state["capturable"]


def test_what_cannot_be_recorded_is_launched_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    model = {"type": f"{__name__}:waiting", "obs_shape": 4, "action_shape": 3}
    seed = np.random.SeedSequence(0)
    plain, fast, unasked = (
        create_policy(
            {"type": "dqn", "cuda": True, "model": model, "learn": {"cuda_graphs": graphs}},
            ("learn",), seed=seed,
        )
        for graphs in (False, True, None)
    )  # fmt: skip
    assert not unasked._replayed
    for number in range(8):
        for each in (plain, fast):
            each._forward_learn(batch_of("dqn", number))
        assert distance(flat(fast), flat(plain)) < 1e-4, number
    told = [record for record in caplog.records if "cuda_graphs" in record.getMessage()]
    assert len(told) == 1


def test_optimizers_whose_steps_cannot_be_recorded_are_not() -> None:
    assert not learner("dqn", graphs=None, optimizer={"type": "SGD"})._replayed
    assert not learner("dqn", graphs=None, optimizer={"type": "Adam", "fused": False})._replayed
    assert not learner("dqn", graphs=None, precision="fp16")._replayed


def test_a_setting_that_is_changed_counts_from_then_on() -> None:
    """A graph keeps the numbers that it was recorded with, and only its learning rate follows."""
    plain, fast = (learner("discrete", graphs=graphs) for graphs in (False, None))
    for number in range(12):
        if number == 3:
            for each in (plain, fast):
                each.set_setting("policy.learn.learning_rate", 3e-3)
        if number == 6:
            assert all(replayed.graphs for replayed in fast._replayed)
            for each in (plain, fast):
                each.set_setting("policy.learn.entropy_weight", 0.5)
                each.set_setting("policy.learn.clip_ratio", 0.01)
        for each in (plain, fast):
            each._forward_learn(batch_of("discrete", number))
        assert distance(flat(fast), flat(plain)) < 1e-4, number
    assert not any(replayed.graphs for replayed in fast._replayed)
