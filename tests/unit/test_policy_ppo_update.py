"""The PPO update, number by number, and that it finds what is better."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fakes.networks import Table as TableOf
from hpcdi.config.algorithms import PPOLearnConfig
from hpcdi.policy.create import create_policy
from hpcdi.policy.distributions import ActionDistribution, log_prob_entropy
from hpcdi.policy.minibatches import Joint, minibatches
from hpcdi.policy.ppo import Losses, ppo_losses
from hpcdi.types import Leaf

pytestmark = pytest.mark.usefixtures("one_torch_thread")

UPDATES: dict[str, Any] = {
    "batch_size": 8, "learning_rate": 0.01, "epoch_per_collect": 2, "value_weight": 0.5,
    "entropy_weight": 0.01, "clip_ratio": 0.2, "value_clip": False, "adv_norm": False,
    "grad_clip_norm": 0.0,
}  # fmt: skip
PLAIN = PPOLearnConfig(**UPDATES)
STATES, ACTIONS = 3, 2
DISCRETE = ActionDistribution((Leaf("", (), "int64", counts=(ACTIONS,)),))
Minibatch = dict[str, Tensor]


def Table(heads: Any, values: Any, log_std: Any = None) -> TableOf:
    return TableOf(None, heads, values, log_std)


def losses_of(table: TableOf, batch: Minibatch, cfg: PPOLearnConfig) -> Losses:
    output, _ = table(batch["observation"], {})
    return ppo_losses(DISCRETE, output, batch, cfg, Joint.of(batch["advantage"]))


def settings(**changed: Any) -> PPOLearnConfig:
    return dataclasses.replace(PLAIN, **changed)


def columns_of(*columns: Tensor) -> Minibatch:
    names = ("observation", "action", "log_prob", "value", "advantage", "return")
    return dict(zip(names, columns, strict=True))


def minibatch(count: int = 6, seed: int = 0, *, spread: float = 0.3) -> Minibatch:
    rng = np.random.default_rng(seed)
    floats = rng.standard_normal((4, count)).astype(np.float32)
    return columns_of(
        torch.eye(STATES)[torch.from_numpy(rng.integers(0, STATES, count))],
        torch.from_numpy(rng.integers(0, ACTIONS, count)),
        torch.from_numpy(spread * floats[0] - math.log(ACTIONS)),
        torch.from_numpy(floats[1]),
        torch.from_numpy(floats[2]),
        torch.from_numpy(floats[3]),
    )


def by_hand(table: TableOf, batch: Minibatch, cfg: PPOLearnConfig) -> dict[str, float]:
    """The losses by plain arithmetic, transition by transition."""
    advantage = batch["advantage"].double().numpy()
    if cfg.adv_norm:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gains, errors, entropies, kls, clipped = [], [], [], [], []
    for k, given in enumerate(advantage):
        state = int(batch["observation"][k].argmax())
        logits = table.table[state].tolist()
        total = sum(math.exp(x) for x in logits)
        probs = [math.exp(x) / total for x in logits]
        ratio = probs[int(batch["action"][k])] / math.exp(batch["log_prob"][k].item())
        limited = min(max(ratio, 1 - cfg.clip_ratio), 1 + cfg.clip_ratio)
        gains.append(min(ratio * given, limited * given))
        value, old = table.worth[state].item(), batch["value"][k].item()
        near = old + min(max(value - old, -cfg.clip_ratio), cfg.clip_ratio)
        target = batch["return"][k].item()
        error = (value - target) ** 2
        errors.append(max(error, (near - target) ** 2) if cfg.value_clip else error)
        entropies.append(-sum(p * math.log(p) for p in probs))
        kls.append(ratio - 1 - math.log(ratio))
        clipped.append(abs(ratio - 1) > cfg.clip_ratio)
    policy, value, entropy = -np.mean(gains), np.mean(errors), np.mean(entropies)
    total = policy + cfg.value_weight * value - cfg.entropy_weight * entropy
    return {
        "total": total, "policy": policy, "value": value, "entropy": entropy,
        "approx_kl": np.mean(kls), "clipfrac": np.mean(clipped),
    }  # fmt: skip


# ----------------------------------------------------------------------------------------- losses


@pytest.mark.parametrize("adv_norm", [False, True])
@pytest.mark.parametrize("value_clip", [False, True])
@pytest.mark.parametrize("clip_ratio", [0.05, 0.2, 0.5])
def test_losses_are_those_by_hand(adv_norm: bool, value_clip: bool, clip_ratio: float) -> None:
    table = Table([[0.3, -0.2], [1.0, 0.0], [-0.5, 0.5]], [0.5, -1.0, 0.2])
    cfg = settings(adv_norm=adv_norm, value_clip=value_clip, clip_ratio=clip_ratio)
    for seed in range(5):
        batch = minibatch(12, seed)
        losses = {k: v.item() for k, v in losses_of(table, batch, cfg)._asdict().items()}
        assert losses == pytest.approx(by_hand(table, batch, cfg), rel=1e-4, abs=1e-6)


def test_kl_is_near_the_true_one_and_zero_for_the_policy_itself() -> None:
    """k3 is unbiased: over many samples of the old policy it becomes KL(old, new)."""
    old, new = torch.tensor([[0.2, -0.3]]), [[0.6, -0.4]]
    draws = torch.distributions.Categorical(logits=old)
    torch.manual_seed(0)
    action = draws.sample((40_000,)).squeeze(1)
    ones = torch.ones(len(action))
    batch = columns_of(ones.unsqueeze(1), action, draws.log_prob(action), ones, ones, ones)
    divergence = torch.distributions.kl_divergence(
        draws, torch.distributions.Categorical(logits=torch.tensor(new))
    )
    moved = losses_of(Table(new, [0.0]), batch, PLAIN)
    assert moved.approx_kl.item() == pytest.approx(divergence.item(), rel=0.05)
    same = losses_of(Table(old.tolist(), [0.0]), batch, PLAIN)
    assert same.approx_kl.item() == pytest.approx(0, abs=1e-6)
    assert same.clipfrac.item() == 0


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_the_policy_moves_towards_what_was_better(advantage: float) -> None:
    table = Table([[0.0, 0.0]], [0.0])
    one = torch.ones(1)
    batch = columns_of(
        torch.ones(1, 1), torch.tensor([1]), one * math.log(0.5), one, one * advantage, one
    )
    losses_of(table, batch, settings(entropy_weight=0.0)).total.backward()
    downhill = -table.table.grad[0]
    assert torch.sign(downhill).tolist() == [-advantage, advantage]


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [(1.3, 1.0, False), (1.3, -1.0, True), (0.7, -1.0, False), (0.7, 1.0, True), (1.1, 1.0, True)],
)
def test_nothing_is_gained_beyond_the_limit(ratio: float, advantage: float, moves: bool) -> None:
    table = Table([[0.0, 0.0]], [0.0])
    one = torch.ones(1)
    old = one * math.log(0.5 / ratio)
    batch = columns_of(torch.ones(1, 1), torch.tensor([0]), old, one, one * advantage, one)
    cfg = settings(entropy_weight=0.0, value_weight=0.0)
    losses_of(table, batch, cfg).total.backward()
    assert bool(table.table.grad.abs().max() > 0) == moves


@pytest.mark.parametrize(("value_clip", "moves"), [(True, False), (False, True)])
def test_values_are_held_near_the_old_ones_where_configured(value_clip: bool, moves: bool) -> None:
    """The value 0.5 is farther than 0.2 from the old one, on the way to the return of 1."""
    table = Table([[0.0, 0.0]], [0.5])
    one = torch.ones(1)
    batch = columns_of(torch.ones(1, 1), torch.tensor([0]), one * math.log(0.5), 0 * one, one, one)
    losses_of(table, batch, settings(value_clip=value_clip)).total.backward()
    assert bool(table.worth.grad.abs().max() > 0) == moves


def test_a_single_transition_has_no_deviation_to_divide_by() -> None:
    losses = losses_of(Table([[0.0, 0.0]] * 3, [0.0] * 3), minibatch(1), settings(adv_norm=True))
    assert all(math.isfinite(value.item()) for value in losses)


# ------------------------------------------------------------------------------------ distributions


def test_discrete_log_prob_and_entropy_are_torchs() -> None:
    heads, action = torch.randn(20, 5), torch.randint(0, 5, (20,))
    expected = torch.distributions.Categorical(logits=heads)
    log_prob, entropy = log_prob_entropy([heads], action)
    torch.testing.assert_close(log_prob, expected.log_prob(action))
    torch.testing.assert_close(entropy, expected.entropy())


def test_of_several_components_nothing_is_copied_to_a_device_at_each_update() -> None:
    """A CUDA graph copies nothing; what acting has copied is there for updates, too."""
    made = ActionDistribution((Leaf("", (2,), "int64", counts=(3, 4)),))
    outputs = torch.zeros(5, 7, device="meta", requires_grad=True)
    with torch.inference_mode():
        made.greedy([outputs])
    (place,) = made._places.values()
    action = torch.zeros(5, 2, dtype=torch.int64, device="meta")
    log_prob, entropy = made.log_prob_entropy([outputs], {"action": action})
    (log_prob + entropy).sum().backward()
    assert outputs.grad is not None
    assert made._place_on(outputs.device) is place


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2)])
def test_continuous_log_prob_and_entropy_are_torchs(shape: tuple[int, ...]) -> None:
    size = math.prod(shape)
    log_std = torch.linspace(-1, 1, size)
    heads, action = torch.randn(20, size), torch.randn(20, *shape)
    expected = torch.distributions.Normal(heads, log_std.exp())
    log_prob, entropy = log_prob_entropy([heads, log_std], action)
    flat = action.reshape(20, size)
    torch.testing.assert_close(log_prob, expected.log_prob(flat).sum(dim=1))
    torch.testing.assert_close(entropy, expected.entropy().sum(dim=1))


# ---------------------------------------------------------------------------------------- updates


def learner(seed: int = 0, table: dict[str, Any] | None = None, **changed: Any) -> Any:
    """A policy whose network is a `Table`, of zeros if none is given."""
    table = table or {"heads": [[0.0] * ACTIONS] * STATES, "values": [0.0] * STATES}
    kind = "continuous" if "log_std" in table else "discrete"
    model = {
        "obs_shape": len(table["heads"]), "action_shape": 1 if kind == "continuous" else ACTIONS,
        "action_space": kind, "type": "fakes.networks:Table", "kwargs": table,
    }  # fmt: skip
    cfg = {"type": "ppo", "model": model, "learn": {**UPDATES, **changed}}
    return create_policy(cfg, ["learn"], seed=np.random.SeedSequence(seed))


def columns(count: int = 20, seed: int = 0, **kwargs: Any) -> dict[str, Tensor]:
    return {**minibatch(count, seed, **kwargs), "weight": torch.ones(count)}  # as a feed adds them


@pytest.mark.parametrize(
    ("count", "sizes"), [(8, [8]), (9, [5, 4]), (20, [7, 7, 6]), (16, [8, 8]), (1, [1])]
)
def test_each_pass_sees_every_transition_once(count: int, sizes: list[int]) -> None:
    numbered = {**columns(count), "advantage": torch.arange(count, dtype=torch.float32)}
    parts = minibatches(numbered, 8, 2, np.random.default_rng(0))
    seen = [part["advantage"] for part, _ in parts]
    assert [len(part) for part in seen] == sizes * 2
    passes = torch.cat(seen).reshape(2, count)
    assert (passes.sort(dim=1).values == torch.arange(count)).all()
    if count > 8:
        assert (passes[0] != passes[1]).any(), "each pass has an order of its own"


def test_rows_stay_together_when_they_are_shuffled() -> None:
    count = 20
    marks = torch.arange(count, dtype=torch.float32)
    names = ("log_prob", "value", "advantage", "return")
    marked = {**dict.fromkeys(names, marks), "action": marks}
    for part, _ in minibatches(marked, 8, 2, np.random.default_rng(0)):
        assert all(torch.equal(column, part["action"]) for column in part.values())


def test_logs_are_of_each_minibatch_in_python_numbers() -> None:
    built = learner()
    logs = built.update(columns(20))
    assert len(logs) == 6 == built._updates
    assert logs[0].keys() >= {
        "total_loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac", "cur_lr"
    }  # fmt: skip
    assert all(type(value) is float for log in logs for value in log.values())
    assert logs[0]["entropy"] == pytest.approx(math.log(ACTIONS))
    assert [log["cur_lr"] for log in logs] == [0.01] * 6


def test_equal_seeds_are_equal_to_the_bit_and_others_are_not() -> None:
    first, again, other = learner(1), learner(1), learner(2)
    logs = [built.update(columns(20)) for built in (first, again, other)]
    assert logs[0] == logs[1] != logs[2]
    assert torch.equal(first._model.table, again._model.table)
    assert not torch.equal(first._model.table, other._model.table)


@pytest.mark.parametrize(("limit", "expected"), [(0.5, 0.5), (0.0, None)])
def test_gradients_are_clipped_by_their_norm(limit: float, expected: float | None) -> None:
    built = learner(grad_clip_norm=limit, epoch_per_collect=1)
    steep = {**columns(8), "return": torch.full((8,), 100.0)}
    told = built.update(steep)[0]["grad_norm"]
    squares = [parameter.grad.square().sum() for parameter in built._model.parameters()
               if parameter.grad is not None]  # fmt: skip
    applied = torch.stack(squares).sum().sqrt().item()
    assert told > 10
    assert applied == pytest.approx(told if expected is None else expected, rel=1e-4)


def test_an_update_ends_before_the_policy_goes_too_far() -> None:
    free, held = learner(epoch_per_collect=10), learner(epoch_per_collect=10, target_kl=0.003)
    batch = columns(20, spread=0.0)  # log-probabilities of the policy itself
    told = free.update(batch)
    first = next(k for k, log in enumerate(told) if log["approx_kl"] > 0.003)
    logs = held.update(batch)
    assert 0 < first < len(told) - 1
    assert len(logs) == first + 1
    assert held._updates == first, "the minibatch that tells so is not learnt from"
    assert logs[-1]["approx_kl"] > 0.003
    assert logs[-1]["grad_norm"] == 0


def test_data_of_a_strange_policy_are_not_learnt_from_where_there_is_a_limit() -> None:
    built = learner(target_kl=0.01)
    before = built._model.table.clone()
    logs = built.update(columns(20, spread=2.0))
    assert (len(logs), built._updates) == (1, 0)
    assert torch.equal(built._model.table, before)


def test_the_learning_rate_falls_to_its_end_and_stays() -> None:
    schedule = {"key": "learning_rate", "end": 0.1, "iterations": 3}
    built = learner(learning_rate=0.4, schedule=schedule, epoch_per_collect=1)
    rates = [built.learn_mode.forward(columns(8))["cur_lr"] for _ in range(5)]
    assert rates == pytest.approx([0.4, 0.3, 0.2, 0.1, 0.1])
    assert built._step.optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


def test_continuous_actions_are_learnt_from_before_they_are_clipped() -> None:
    """The clipped action would have the policy believe it had done what it was better not to."""
    table = {"heads": [[0.0]] * STATES, "values": [0.0] * STATES, "log_std": [0.0]}
    built = learner(table=table, epoch_per_collect=1, value_weight=0.0)
    one = torch.ones(1)
    batch = {
        "observation": torch.eye(STATES)[:1], "action": torch.zeros(1, 1),
        "value": one, "return": one,
        "raw_action": torch.full((1, 1), 3.0), "advantage": one,
        "log_prob": torch.distributions.Normal(0.0, 1.0).log_prob(torch.tensor([3.0])),
    }  # fmt: skip
    log = built.update(batch)[0]
    assert log["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert built._model.table[0].item() > 0
    assert built._model.log_std.item() > 0


def test_the_batch_is_left_as_it_was() -> None:
    batch = columns(20)
    before = {name: tensor.clone() for name, tensor in batch.items()}
    learner().update(batch)
    assert all(torch.equal(batch[name], before[name]) for name in before)


def test_a_bandit_is_solved() -> None:
    """Of two actions the second gives 1 and the first 0; values find the mean."""
    table = {"heads": [[0.0, 0.0]], "values": [0.0]}
    built = learner(table=table, learning_rate=0.05, batch_size=64)
    rng = np.random.default_rng(0)
    for _ in range(60):
        with torch.no_grad():
            log_probs = torch.log_softmax(built._model.table, dim=1)[0]
        action = torch.from_numpy((rng.random(256) < log_probs[1].exp().item()).astype(np.int64))
        reward = action.float()
        value = torch.full((256,), built._model.worth.item())
        batch = {
            "observation": torch.ones(256, 1), "action": action, "log_prob": log_probs[action],
            "value": value, "advantage": reward - value, "return": reward,
        }  # fmt: skip
        built.update(batch)
    assert torch.softmax(built._model.table, dim=1)[0, 1].item() > 0.97
    assert built._model.worth.item() == pytest.approx(1.0, abs=0.1)
