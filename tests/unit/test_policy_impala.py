"""V-trace against a plain loop, and IMPALA's update."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hpcdi.worker  # noqa: F401 (it gives policies their methods by dicts)
from fakes.policies import check_dicts_are_refused
from hpcdi.policy.create import create_policy
from hpcdi.policy.impala import v_trace
from hpcdi.policy.returns import gae
from hpcdi.store.rows import SEQUENCE_LEN

pytestmark = pytest.mark.usefixtures("one_torch_thread")

LENGTHS = [4, 1, 3, 5]
ROWS = sum(LENGTHS)
ENDS = np.cumsum(LENGTHS) - 1


def numbers(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    terminated = np.zeros(ROWS, bool)
    terminated[ENDS[[1, 3]]] = True
    return {
        "ratio": np.exp(rng.standard_normal(ROWS)), "reward": rng.standard_normal(ROWS),
        "terminated": terminated, "value": rng.standard_normal(ROWS),
        "last_value": rng.standard_normal(len(LENGTHS)),
    }  # fmt: skip


def by_definition(given: Any, gamma: float, rho_clip: float, trace_clip: float) -> Any:
    """Espeholt et al. 2018, eq. 1, by its sums and products."""
    target, advantage = np.zeros(ROWS), np.zeros(ROWS)
    for number, (end, length) in enumerate(zip(ENDS, LENGTHS, strict=True)):
        rows = range(end - length + 1, end + 1)
        last = 0.0 if given["terminated"][end] else given["last_value"][number]

        def value_at(row: int, end: int = end, last: float = last) -> float:
            return float(given["value"][row]) if row <= end else last

        for start in rows:
            total, product = value_at(start), 1.0
            for t in range(start, end + 1):
                rho = min(rho_clip, given["ratio"][t])
                delta = rho * (given["reward"][t] + gamma * value_at(t + 1) - value_at(t))
                total += gamma ** (t - start) * product * delta
                product *= min(trace_clip, given["ratio"][t])
            target[start] = total
        for t in rows:
            after = target[t + 1] if t < end else last
            advantage[t] = given["reward"][t] + gamma * after - value_at(t)
    return target, advantage


def traced(given: Any, gamma: float, rho_clip: float, trace_clip: float) -> Any:
    tensors = (torch.from_numpy(given[name]) for name in
               ("ratio", "reward", "terminated", "value", "last_value"))  # fmt: skip
    return v_trace(*tensors, torch.tensor(LENGTHS), gamma, rho_clip, trace_clip)


@pytest.mark.parametrize(("rho_clip", "trace_clip"), [(1.0, 1.0), (2.0, 0.5), (1e9, 1e9)])
def test_v_trace_is_that_of_its_definition(rho_clip: float, trace_clip: float) -> None:
    for seed in range(3):
        given = numbers(seed)
        found = traced(given, 0.9, rho_clip, trace_clip)
        target, advantage = by_definition(given, 0.9, rho_clip, trace_clip)
        np.testing.assert_allclose(found.value, target, rtol=1e-9)
        np.testing.assert_allclose(found.advantage, advantage, rtol=1e-9)


def test_of_its_own_policy_v_trace_is_the_return() -> None:
    given = {**numbers(), "ratio": np.ones(ROWS)}
    returns = gae(
        given["reward"], given["terminated"], given["value"], given["last_value"],
        np.array(LENGTHS, np.int32), 0.9, 1.0,
    ).returns  # fmt: skip
    np.testing.assert_allclose(traced(given, 0.9, 1, 1).value, returns, rtol=1e-5)


def policy(memory: str = "none", **learn: Any) -> Any:
    return create_policy(
        {
            "type": "impala",
            "model": {
                "obs_shape": 3, "action_shape": 2, "action_space": "discrete", "memory": memory,
                "encoder_hidden_size_list": [8], "memory_size": 5,
            },
            "learn": {"batch_size": 6, **learn},
        },
        ["learn", "collect"],
    )  # fmt: skip


def batch_of(built: Any, seed: int = 0) -> dict[str, torch.Tensor]:
    """Transitions of items of `LENGTHS`, by the policy itself from states of its memory."""
    rng = np.random.default_rng(seed)
    actor = built.collect_mode.get_attribute("columnar")
    observation = rng.standard_normal((ROWS + 1, 3)).astype(np.float32)
    parts = []
    for row in range(ROWS):
        seen = {"observation": observation[[row]]}
        parts.append({**seen, **actor.act(seen, {})})
        if row in ENDS and hasattr(actor, "reset"):
            actor.reset([0])
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    given = numbers(seed)
    columns["reward"], columns["terminated"] = given["reward"].astype("f4"), given["terminated"]
    added = built.train_columns(
        columns, np.array(LENGTHS, np.int32), {"observation": observation[:1]}
    )
    assert [view.name for view in added.views] == ["next_observation"]
    columns |= added.columns
    columns["next_observation"] = observation[1:]
    return {name: torch.from_numpy(column) for name, column in columns.items()}


@pytest.mark.parametrize("memory", ["none", "lstm"])
@pytest.mark.parametrize("clip_ratio", [None, 0.2])
def test_its_own_data_have_weights_of_one(memory: str, clip_ratio: float | None) -> None:
    built = policy(memory, batch_size=100, clip_ratio=clip_ratio)
    log = built.learn_mode.forward(batch_of(built))
    assert log["rho_mean"] == pytest.approx(1, abs=1e-5)
    assert log["grad_norm"] > 0


def test_its_gradient_is_that_by_hand() -> None:
    built = policy(batch_size=100, entropy_weight=0.0, value_weight=0.25, grad_clip_norm=0.0)
    batch = batch_of(built)
    batch["log_prob"] = batch["log_prob"] + 0.3 * torch.randn(ROWS)  # an older policy's
    network = built._model
    (logits, value), _ = network(batch["observation"], {})
    log_prob = logits.log_softmax(dim=1).gather(1, batch["action"].unsqueeze(1)).squeeze(1)
    ratio = (log_prob - batch["log_prob"]).exp()
    (_, after), _ = network(batch["next_observation"][torch.from_numpy(ENDS)], {})
    given = {
        "ratio": ratio, "value": value, "last_value": after,
        "reward": batch["reward"], "terminated": batch["terminated"],
    }  # fmt: skip
    plain = {name: column.detach().double().numpy() for name, column in given.items()}
    plain["terminated"] = plain["terminated"] != 0
    target, advantage = (torch.from_numpy(each) for each in by_definition(plain, 0.99, 1.0, 1.0))
    weight = ratio.detach().clamp(max=1) * advantage
    loss = -(weight * log_prob).mean() + 0.25 * (target - value).square().mean()
    loss.backward()
    own = [parameter.grad.clone() for parameter in network.parameters()]
    log = built.learn_mode.forward(batch)
    assert log["total_loss"] == pytest.approx(loss.item(), rel=1e-4)
    for parameter, gradient in zip(network.parameters(), own, strict=True):
        torch.testing.assert_close(
            parameter.grad, gradient.to(parameter.dtype), rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_parts_of_a_batch_have_its_gradient(memory: str) -> None:
    whole, parts = policy(memory, batch_size=100), policy(memory, batch_size=100, accumulate=2)
    batch = batch_of(whole)
    for built in (whole, parts):
        built.learn_mode.forward(batch)
    for one, other in zip(whole._model.parameters(), parts._model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_a_batch_is_cut_into_minibatches_of_sequences() -> None:
    built = policy(epoch_per_collect=2)
    batch = batch_of(built)
    assert [length for length in batch[SEQUENCE_LEN].tolist() if length] == LENGTHS
    built.learn_mode.forward(batch)
    assert built._updates == 2 * 3


def test_samples_as_dicts_are_refused() -> None:
    check_dicts_are_refused(policy(), "impala")
