"""Policies that learn, and data for them, by kind: "dqn", or PPO's "discrete" and "continuous"."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hpcdi.errors import PolicyError
from hpcdi.policy.create import create_policy

KINDS = ("dqn", "discrete", "continuous")


def policy_of(
    kind: str, seed: int = 0, *, obs_shape: Any = 4, cuda: bool = False, **learn: Any
) -> Any:
    """A policy in learn mode: DQN is double, dueling and weighted.

    Equal seeds give equal weights. Unless `learn` says otherwise PPO makes one pass.
    """
    model: dict[str, Any] = {"obs_shape": obs_shape, "encoder_hidden_size_list": [32]}
    cfg: dict[str, Any]
    if kind == "dqn":
        model |= {"action_shape": 3, "dueling": True}
        cfg = {"type": "dqn", "priority": True, "priority_IS_weight": True}
    else:
        model |= {"action_shape": 3 if kind == "discrete" else [2], "action_space": kind}
        cfg = {"type": "ppo"}
        learn = {"epoch_per_collect": 1, "entropy_weight": 0.01, **learn}
    cfg |= {"cuda": cuda, "model": model, "learn": learn}
    return create_policy(cfg, ("learn",), seed=np.random.SeedSequence(seed))


def data_of(kind: str, seed: int = 0, count: int = 20, spread: float = 0.1) -> dict[str, Tensor]:
    """A batch as a learner's feed gives it.

    Args:
        kind: of the policy.
        seed: of the numbers.
        count: samples.
        spread: how far PPO's policy was from a uniform, or standard normal, one.
    """
    rng = np.random.default_rng(seed)

    def floats(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))

    observation, discrete = floats(count, 4), torch.from_numpy(rng.integers(0, 3, count))
    if kind == "dqn":
        return {
            "observation": observation, "action": discrete, "n_step_return": floats(count),
            "bootstrap_discount": torch.full((count,), 0.9), "next_observation": floats(count, 4),
            "weight": torch.from_numpy(rng.random(count).astype(np.float32)),
        }  # fmt: skip
    columns = {
        "observation": observation, "value": floats(count), "advantage": 2 + floats(count),
        "return": floats(count),
    }  # fmt: skip
    if kind == "discrete":
        return {**columns, "action": discrete, "log_prob": spread * floats(count) - math.log(3)}
    raw = floats(count, 2)
    near = -0.5 * raw.square().sum(dim=1) - math.log(2 * math.pi)
    log_prob = near + spread * floats(count)
    return {**columns, "action": raw.clamp(-1, 1), "raw_action": raw, "log_prob": log_prob}


def returns_of(kind: str) -> str:
    """Name of the column that values are to become."""
    return "n_step_return" if kind == "dqn" else "return"


def first(told: Any) -> dict[str, Any]:
    """Scalars of the first update, of what a policy returns."""
    scalars: dict[str, Any] = told if isinstance(told, dict) else told[0]
    return scalars


def gradient(network: nn.Module) -> Tensor:
    """Of all parameters, flat, on the CPU."""
    return torch.cat([p.grad.detach().flatten().cpu() for p in network.parameters()])


def distance(found: Tensor, expected: Tensor) -> float:
    """How far apart, relative to the length of what is expected."""
    return float((found - expected).norm() / expected.norm())


def with_scale(policy: Any, scale: float) -> None:
    """Set what fp16 multiplies losses by."""
    state = policy._step.state_dict()
    policy._step.load_state_dict({**state, "scaler": {**state["scaler"], "scale": scale}})


def check_dicts_are_refused(policy: Any, kind: str) -> None:
    """Check that a policy which learns from sequences says so to samples as dicts."""
    row = {"obs": np.zeros(3, np.float32), "action": 0, "reward": 1.0, "done": False}
    sample = {**row, "next_obs": row["obs"], "truncated": False}
    said = f"{kind} learns from sequences, .* as hpcdi train and hpcdi serial do"
    with pytest.raises(PolicyError, match=said):
        policy.collect_mode.get_train_sample([sample])
    with pytest.raises(PolicyError, match=said):
        policy.learn_mode.forward([sample])
