"""SAC of discrete actions against the paper's sums, written as loops over actions."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcdi.policy.create import create_policy

pytestmark = pytest.mark.usefixtures("one_torch_thread")

ACTIONS, DISCOUNT, TAU, RATE = 3, 0.9, 0.25, 0.01


def policy(*modes: str, seed: int = 0, learn: Any = None, **others: Any) -> Any:
    cfg = {
        "type": "discrete_sac", **others,
        "model": {"obs_shape": 4, "action_shape": ACTIONS, "encoder_hidden_size_list": [16]},
        "learn": {"tau": TAU, "learning_rate": RATE, **(learn or {})},
    }  # fmt: skip
    return create_policy(cfg, modes, seed=np.random.SeedSequence(seed))


def batch_of(seed: int = 0, count: int = 12, *, masked: bool = False) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    columns = {
        "observation": rng.standard_normal((count, 4)), "action": rng.integers(0, ACTIONS, count),
        "n_step_return": rng.standard_normal(count), "weight": rng.random(count),
        "bootstrap_discount": np.where(rng.random(count) < 0.3, 0.0, DISCOUNT),
        "next_observation": rng.standard_normal((count, 4)),
    }  # fmt: skip
    batch = {
        k: torch.from_numpy(v if k == "action" else v.astype("f4")) for k, v in columns.items()
    }
    if masked:
        legal = torch.from_numpy(rng.random((2, count, ACTIONS)) < 0.6)
        legal[0, torch.arange(count), batch["action"]] = True  # what was taken was legal
        legal[1, :, 0] |= ~legal[1].any(dim=1)
        legal[1, batch["bootstrap_discount"] == 0] = False  # nothing is, after an end
        batch |= {"action_mask": legal[0], "next_action_mask": legal[1]}
    return batch


def grown(**others: Any) -> Any:
    """A learner whose targets have fallen behind."""
    built = policy("learn", priority=True, **others)
    for seed in range(10, 14):
        built.learn_mode.forward(batch_of(seed))
    return built


def values_of(critics: Any, observation: Tensor) -> Any:
    """Of two critics, [2, batch, actions], float64."""
    with torch.no_grad():
        return np.stack([c(observation, {})[0].double().numpy() for c in critics.critics])


def probabilities(actor: Any, observation: Tensor, legal: Any) -> Any:
    """By a softmax over the legal actions alone, [batch, actions], float64."""
    with torch.no_grad():
        odds = np.exp(actor(observation, {})[0].double().numpy()) * legal
    total = odds.sum(axis=1, keepdims=True)
    return np.divide(odds, total, out=np.zeros_like(odds), where=total > 0)


def mean_of(probability: Any, term: Any) -> float:
    """``sum_a pi(a) term(a, pi(a))`` over the actions that there are, one by one."""
    return math.fsum(p * term(a, p) for a, p in enumerate(probability) if p > 0)


@pytest.mark.parametrize("masked", [False, True])
def test_the_update_is_that_of_the_paper(masked: bool) -> None:
    built, batch = grown(), batch_of(masked=masked)
    actor, alpha = copy.deepcopy(built._model), built._temperature.number.exp().item()
    everything = np.ones((len(batch["action"]), ACTIONS), bool)
    legal, following_legal = (
        batch[name].numpy() if masked else everything
        for name in ("action_mask", "next_action_mask")
    )
    values = values_of(built._critics, batch["observation"])
    targets = values_of(built._targets, batch["next_observation"]).min(axis=0)
    following = probabilities(actor, batch["next_observation"], following_legal)
    errors = []
    for row, action in enumerate(batch["action"].tolist()):
        soft = mean_of(following[row], lambda a, p, row=row: targets[row, a] - alpha * math.log(p))
        reward, discount = (float(batch[n][row]) for n in ("n_step_return", "bootstrap_discount"))
        errors.append(values[:, row, action] - (reward + discount * soft))  # eq. 5 and 10
    told = built.learn_mode.forward(batch)
    assert told["critic_loss"] == pytest.approx(np.square(errors).sum(axis=1).mean(), rel=1e-4)
    np.testing.assert_allclose(told["priority"], np.abs(errors).mean(axis=1), rtol=1e-4)

    least = values_of(built._critics, batch["observation"]).min(axis=0)  # after their step
    now = probabilities(actor, batch["observation"], legal)
    entropy = [-mean_of(p, lambda _, p: math.log(p)) for p in now]
    losses = [
        mean_of(now[row], lambda a, p, row=row: alpha * math.log(p) - least[row, a])
        for row in range(len(now))
    ]
    assert told["entropy"] == pytest.approx(np.mean(entropy), rel=1e-4)
    assert told["actor_loss"] == pytest.approx(np.mean(losses), rel=1e-4)  # eq. 12
    gradient = built._temperature.number.grad.item()
    missing = 0.98 * np.log(legal.sum(axis=1)).mean() - np.mean(entropy)  # of what is legal
    assert gradient == pytest.approx(-alpha * missing, rel=1e-3)  # eq. 11


def test_the_actor_learns_from_probabilities_alone() -> None:
    """Its gradient is that of the sum over actions, without one through the critics."""
    built, batch = grown(), batch_of()
    actor, alpha = copy.deepcopy(built._model), built._temperature.number.exp().item()
    built.learn_mode.forward(batch)
    log_prob = actor(batch["observation"], {})[0].log_softmax(dim=1)
    least = torch.from_numpy(values_of(built._critics, batch["observation"]).min(axis=0)).float()
    loss = (log_prob.exp() * (alpha * log_prob - least)).sum(dim=1).mean()
    expected = torch.autograd.grad(loss, list(actor.parameters()))
    for found, of_loss in zip(built._model.parameters(), expected, strict=True):
        torch.testing.assert_close(found.grad, of_loss, atol=1e-6, rtol=1e-4)


def test_actions_are_drawn_by_their_probabilities_and_legal() -> None:
    built = policy("collect", "eval")
    observation = np.tile(np.float32([[0.5, -1, 2, 0]]), (20_000, 1))
    legal = np.tile([True, False, True], (len(observation), 1))
    expected = probabilities(built._model, torch.from_numpy(observation[:1]), legal[:1])[0]
    drawn = built.act({"observation": observation, "action_mask": legal}, {})["action"]
    shares = np.bincount(drawn, minlength=ACTIONS) / len(drawn)
    np.testing.assert_allclose(shares, expected, atol=0.02)
    few = {"observation": observation[:3], "action_mask": legal[:3]}
    likeliest = built.eval_mode.get_attribute("columnar").act(few, {})["action"]
    assert likeliest.tolist() == [int(expected.argmax())] * 3


def test_a_learner_goes_on_as_if_it_had_not_been_stopped() -> None:
    whole, first, second = policy("learn"), policy("learn"), policy("learn", seed=5)
    told = [whole.learn_mode.forward(batch_of(seed)) for seed in range(6)]
    again = [first.learn_mode.forward(batch_of(seed)) for seed in range(3)]
    second.learn_mode.load_state_dict(copy.deepcopy(first.learn_mode.state_dict()))
    again += [second.learn_mode.forward(batch_of(seed)) for seed in range(3, 6)]
    assert again == told


def test_a_target_entropy_that_is_given_is_that_of_all_rows() -> None:
    built = policy("learn", learn={"target_entropy": 0.1})
    assert built.wanted_entropy(batch_of(masked=True)) == 0.1
