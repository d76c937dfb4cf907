"""The step that all learners make: precision, accumulation, clipping, compiling, their states."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fakes.policies import (
    KINDS,
    data_of,
    distance,
    first,
    gradient,
    policy_of,
    with_scale,
)
from hpcdi.config.policy import StepConfig
from hpcdi.errors import ConfigError
from hpcdi.policy.dqn import DQNPolicy
from hpcdi.policy.gradient_step import Follower, GradientStep, cut, forward_of, mean_share
from hpcdi.policy.ppo import PPOPolicy

pytestmark = pytest.mark.usefixtures("one_torch_thread")

TESTS = Path(__file__).parent.parent
CPU = torch.device("cpu")
# -------------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize(
    ("count", "parts", "sizes"),
    [(6, 1, [6]), (6, 3, [2, 2, 2]), (7, 3, [3, 2, 2]), (2, 5, [1, 1]), (0, 1, [0]), (0, 4, [0])],
)
def test_columns_are_cut_into_parts_that_hold_all_in_order(
    count: int, parts: int, sizes: list[int]
) -> None:
    columns = {"a": torch.arange(count), "b": torch.arange(2 * count).reshape(count, 2)}
    pieces = cut(columns, parts)
    assert [len(piece["a"]) for piece in pieces] == sizes
    for name, column in columns.items():
        assert torch.equal(torch.cat([piece[name] for piece in pieces]), column)


def test_shares_add_up_to_the_mean() -> None:
    values = torch.tensor([1.0, 2.0, 3.0, 10.0])
    assert mean_share(values, 4).item() == 4.0
    assert mean_share(values[:1], 4).item() + mean_share(values[1:], 4).item() == 4.0
    assert mean_share(values[:0], 4).item() == 0.0


def test_a_target_follows_with_its_buffers_too() -> None:
    network, target = (nn.BatchNorm1d(2) for _ in range(2))
    network(torch.randn(8, 2))
    nn.init.constant_(network.bias, 4.0)
    Follower(target, network).follow(0.25)
    assert target.bias.tolist() == [1.0, 1.0]
    assert torch.equal(target.running_mean, network.running_mean)
    assert target.num_batches_tracked == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parts", [2, 3, 7, 20])
def test_parts_give_the_whole_batchs_gradient(kind: str, parts: int) -> None:
    """20 samples in parts that are not all of one size, weighted ones too."""
    whole, cut_up = policy_of(kind), policy_of(kind, accumulate=parts)
    batch = data_of(kind)
    told = [first(learner._forward_learn(batch)) for learner in (whole, cut_up)]
    torch.testing.assert_close(gradient(cut_up._model), gradient(whole._model), rtol=0, atol=1e-6)
    priorities = [info.pop("priority", np.zeros(0)) for info in told]
    np.testing.assert_allclose(*priorities, atol=1e-6)
    assert told[1] == pytest.approx(told[0], abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_needs_less_memory_than_the_batch(kind: str) -> None:
    """The network never sees more than a part at a time."""
    learner, seen = policy_of(kind, accumulate=4), []
    learner._model.encoder.register_forward_hook(lambda _m, given, _out: seen.append(given[0]))
    learner._forward_learn(data_of(kind))
    assert {len(given) for given in seen} == {5}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_clipped_is_the_whole_gradient(kind: str) -> None:
    free, clipped = (policy_of(kind, accumulate=3, grad_clip_norm=limit) for limit in (0.0, 0.01))
    for learner in (free, clipped):
        learner._forward_learn(data_of(kind))
    full = gradient(free._model)
    assert full.norm() > 0.02
    torch.testing.assert_close(
        gradient(clipped._model), full * (0.01 / full.norm()), rtol=1e-3, atol=1e-7
    )


def test_the_norm_is_measured_where_asked_for_or_clipped() -> None:
    network = nn.Linear(2, 1, bias=False)
    for limit, measured, expected in ((0, False, 0), (0, True, 5), (1, False, 5), (9, True, 5)):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
        step = GradientStep(network, optimizer, StepConfig(grad_clip_norm=float(limit)), CPU)
        step.gradients({"x": torch.tensor([[3.0, 4.0]])}, lambda part: network(part["x"]).sum())
        assert step.apply(measured=measured).item() == pytest.approx(expected)
        assert network.weight.grad.norm().item() == pytest.approx(1 if limit == 1 else 5, rel=1e-4)


# ---------------------------------------------------------------------------------------- precision

TOLERANCE = {"bf16": 0.03, "fp16": 0.004}  # 8 and 11 bits of mantissa


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_lower_precision_gives_nearly_the_same_step(
    kind: str, precision: str, accumulate: int
) -> None:
    plain = policy_of(kind)
    low = policy_of(kind, precision=precision, accumulate=accumulate)
    if precision == "fp16":
        with_scale(low, 1024.0)
    told = [first(learner._forward_learn(data_of(kind))) for learner in (plain, low)]
    apart = distance(gradient(low._model), gradient(plain._model))
    assert 0 < apart < TOLERANCE[precision], "0 would say that nothing was computed in it"
    assert told[1]["total_loss"] == pytest.approx(told[0]["total_loss"], rel=TOLERANCE[precision])
    assert all(tensor.dtype == torch.float32 for tensor in low._model.state_dict().values())
    assert ("skipped_steps" in told[1]) == (precision == "fp16")


@pytest.mark.parametrize("precision", TOLERANCE)
def test_images_too(precision: str) -> None:
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (2, 8, 1, 36, 36), dtype=np.uint8))
    batch = {**data_of("dqn", count=8), "observation": pixels[0], "next_observation": pixels[1]}
    plain, low = (
        policy_of("dqn", obs_shape=[1, 36, 36], precision=p) for p in ("float32", precision)
    )
    if precision == "fp16":
        with_scale(low, 1024.0)
    for learner in (plain, low):
        learner._forward_learn(batch)
    assert distance(gradient(low._model), gradient(plain._model)) < 2 * TOLERANCE[precision]


@pytest.mark.parametrize("precision", TOLERANCE)
def test_the_loss_falls_as_it_does_in_float32(precision: str) -> None:
    ends = []
    for each in ("float32", precision):
        learner = policy_of("dqn", precision=each, learning_rate=1e-2, target_update_freq=1000)
        losses = [learner._forward_learn(data_of("dqn"))["total_loss"] for _ in range(150)]
        ends.append(losses[-1] / losses[0])
    assert max(ends) < 0.05


class Stateful(nn.Module):
    """Counts its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, observation: Any, state: Any) -> Any:
        return self.layer(observation), {"count": state["count"] + 1}


def test_outputs_are_float32_in_any_precision() -> None:
    for precision in ("float32", "bf16", "fp16"):
        forward = forward_of(Stateful(), StepConfig(precision=precision), CPU)
        state = {"count": torch.zeros(4)}
        out, after = forward(torch.ones(4, 3), state)
        assert (out.dtype, out.shape) == (torch.float32, (4, 2))
        assert after["count"].tolist() == [1.0] * 4


def test_nothing_stands_between_where_nothing_is_switched_on() -> None:
    network = nn.Linear(3, 2)
    assert forward_of(network, StepConfig(), CPU) is network


def test_gradients_too_small_for_fp16_are_scaled() -> None:
    """Of a loss of 1e-8 the gradients in half precision would all be 0."""
    plain, low = policy_of("dqn"), policy_of("dqn", precision="fp16")
    with_scale(low, 2.0**30)
    batch = data_of("dqn")
    batch["weight"] = batch["weight"] * 1e-8
    for learner in (plain, low):
        learner._forward_learn(batch)
    assert distance(gradient(low._model), gradient(plain._model)) < TOLERANCE["fp16"]
    with_scale(low, 1.0)
    low._forward_learn(batch)
    assert (low._model.encoder[1].weight.grad == 0).float().mean() > 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_steps_that_overflow_are_skipped_and_counted(kind: str) -> None:
    learner = policy_of(kind, precision="fp16", grad_clip_norm=0.5)
    with_scale(learner, 2.0**40)
    before = copy.deepcopy(learner._model.state_dict())
    for skipped in (1, 2):
        told = first(learner._forward_learn(data_of(kind)))
        assert told["skipped_steps"] == skipped == learner._step.skipped_steps
        assert math.isfinite(told["total_loss"])
        assert told.get("grad_norm", 0) == 0
        now = learner._model.state_dict()
        assert all(torch.equal(now[name], before[name]) for name in before)
    assert learner._step.state_dict()["scaler"]["scale"] == 2.0**38
    with_scale(learner, 1024.0)
    assert first(learner._forward_learn(data_of(kind)))["skipped_steps"] == 2
    now = learner._model.state_dict()
    assert not any(torch.equal(now[name], before[name]) for name in before if "weight" in name)


def test_tf32_leaves_the_cpu_alone() -> None:
    before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    exact, asked = policy_of("dqn"), policy_of("dqn", tf32=True)
    told = [learner._forward_learn(data_of("dqn"))["total_loss"] for learner in (exact, asked)]
    assert told[0] == told[1]
    assert torch.equal(gradient(exact._model), gradient(asked._model))
    assert before == (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)


# ------------------------------------------------------------------------------------------- states


def mode_of(kind: str, **learn: Any) -> Any:
    return policy_of(kind, **learn).learn_mode


@pytest.mark.parametrize("kind", ["dqn", "discrete"])
@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_a_state_goes_on_where_it_was_to_the_bit(kind: str, precision: str, tmp_path: Path) -> None:
    old, new = mode_of(kind, precision=precision), mode_of(kind, precision=precision)
    for seed in range(3):
        old.forward(data_of(kind, seed=seed))
    torch.save(old.state_dict(), tmp_path / "state.pt")
    new.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for seed in range(3, 6):
        told = [first(mode.forward(data_of(kind, seed=seed))) for mode in (old, new)]
        assert told[0]["total_loss"] == told[1]["total_loss"]
    states = [mode.state_dict() for mode in (old, new)]
    assert states[0].keys() == states[1].keys()
    assert states[0].get("scaler") == states[1].get("scaler")
    for name, tensor in states[0]["model"].items():
        assert torch.equal(tensor, states[1]["model"][name])


@pytest.mark.parametrize("kind", ["dqn", "discrete"])
def test_the_scaler_is_kept_and_only_with_fp16(kind: str) -> None:
    mode = mode_of(kind, precision="fp16")
    state = mode.state_dict()
    assert state["scaler"]["scale"] == 65536.0
    mode.load_state_dict({**state, "scaler": {**state["scaler"], "scale": 8.0}, "skipped_steps": 5})
    assert mode.state_dict()["scaler"]["scale"] == 8.0
    assert first(mode.forward(data_of(kind)))["skipped_steps"] == 5
    assert not mode_of(kind).state_dict().keys() & {"scaler", "skipped_steps"}


@pytest.mark.parametrize("kind", ["dqn", "discrete"])
@pytest.mark.parametrize(("saved", "loaded"), [("float32", "fp16"), ("fp16", "float32")])
def test_states_of_another_precision_load(kind: str, saved: str, loaded: str) -> None:
    old, new = mode_of(kind, precision=saved), mode_of(kind, precision=loaded)
    old.forward(data_of(kind))
    new.load_state_dict(copy.deepcopy(old.state_dict()))
    for name, tensor in old.state_dict()["model"].items():
        assert torch.equal(tensor, new.state_dict()["model"][name])
    assert new.state_dict()["updates"] == old.state_dict()["updates"]
    assert math.isfinite(first(new.forward(data_of(kind)))["total_loss"])


def test_a_learner_that_goes_on_has_the_optimizer_that_it_is_given_now() -> None:
    old, new = policy_of("dqn"), policy_of("dqn", optimizer={"weight_decay": 0.5})
    old._forward_learn(data_of("dqn"))
    new.learn_mode.load_state_dict(copy.deepcopy(old.learn_mode.state_dict()))
    assert new._step.optimizer.param_groups[0]["weight_decay"] == 0.5
    other = policy_of("dqn", optimizer={"type": "RMSprop"})
    other.learn_mode.load_state_dict(copy.deepcopy(old.learn_mode.state_dict()))
    other._forward_learn(data_of("dqn"))


@pytest.mark.parametrize("kind", ["dqn", "discrete"])
def test_weights_alone_load(kind: str) -> None:
    """As policy files have them."""
    old, new = mode_of(kind), mode_of(kind, precision="fp16")
    old.forward(data_of(kind))
    new.load_state_dict({"model": old.state_dict()["model"]})
    for name, tensor in old.state_dict()["model"].items():
        assert torch.equal(tensor, new.state_dict()["model"][name])
    assert new.state_dict()["updates"] == 0
    assert new.state_dict()["scaler"]["scale"] == 65536.0


# ----------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize("kind", ["dqn", "discrete"])
def test_a_part_needs_a_sample(kind: str) -> None:
    mode_of(kind, batch_size=8, accumulate=8)
    with pytest.raises(ConfigError, match=r"learn\.accumulate: is above learn\.batch_size \(8\)"):
        mode_of(kind, batch_size=8, accumulate=9)


@pytest.mark.parametrize("kind", ["dqn", "discrete"])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"precision": "fp8"}, r"learn\.precision: must be one of 'float32', 'bf16', 'fp16'"),
        ({"accumulate": 0}, r"learn\.accumulate: must be at least 1"),
        ({"grad_clip_norm": -1.0}, r"learn\.grad_clip_norm: must be at least 0"),
        ({"compile": 3}, r"learn\.compile: "),
        ({"tf32": "maybe"}, r"learn\.tf32: "),
    ],
)
def test_settings_that_cannot_be(kind: str, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        mode_of(kind, **wrong)


def test_everything_is_off_by_default_but_ppos_clipping() -> None:
    off = dataclasses.asdict(StepConfig())
    assert off == {
        "precision": "float32", "accumulate": 1, "grad_clip_norm": 0.0, "compile": False,
        "cuda_graphs": None, "tf32": False,
    }  # fmt: skip
    for policy, norm in ((DQNPolicy, 0.0), (PPOPolicy, 0.5)):
        learn = policy.Config().learn
        assert {name: getattr(learn, name) for name in off} == {**off, "grad_clip_norm": norm}


def test_every_switch_says_what_it_is() -> None:
    for field in dataclasses.fields(StepConfig):
        assert len(field.metadata["about"]) > 25, field.name


# ---------------------------------------------------------------------------------------- compiling


@pytest.mark.slow
def test_a_compiled_network_learns_the_same_and_a_missing_compiler_is_named(tmp_path: Path) -> None:
    compiler, missing = os.environ.get("CXX", "g++"), str(tmp_path / "no-such-compiler")
    variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "CXX": missing}
    done = subprocess.run(
        [sys.executable, "-m", "fakes.compiled_policy", "cpu", compiler], cwd=TESTS,
        env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said, *rest = done.stdout.splitlines() or [""]
    assert "PolicyError: policy.learn.compile is true, but torch.compile cannot build" in said
    assert "no-such-compiler" in said
    assert "policy.learn.compile=false" in said
    if shutil.which(compiler) is None:
        pytest.skip("torch.compile needs a C++ compiler, and there is none here")
    assert rest == ["agreed"], done.stderr
