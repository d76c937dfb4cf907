"""TD3: targets, delay, and what learns from what, against values computed in another way."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcdi.errors import PolicyError
from hpcdi.policy.create import create_policy

pytestmark = pytest.mark.usefixtures("one_torch_thread")

LOW, HIGH, TAU, DISCOUNT = (-2.0, 0.0), (2.0, 10.0), 0.25, 0.9
MIDDLE, HALF = torch.tensor([0.0, 5.0]), torch.tensor([2.0, 5.0])
MODEL = {
    "obs_shape": 3, "action_shape": [2], "action_low": LOW, "action_high": HIGH,
    "encoder_hidden_size_list": [16],
}  # fmt: skip
DDPG = {"critics": 1, "policy_delay": 1, "target_noise": 0.0}


def policy(*modes: str, seed: int = 0, learn: Any = None, **others: Any) -> Any:
    cfg = {
        "type": "td3", "discount_factor": DISCOUNT, "model": MODEL, **others,
        "learn": {"tau": TAU, "learning_rate": 0.01, **(learn or {})},
    }  # fmt: skip
    return create_policy(cfg, modes, seed=np.random.SeedSequence(seed))


def batch_of(seed: int = 0, count: int = 32) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    columns = {
        "observation": rng.standard_normal((count, 3)), "n_step_return": rng.standard_normal(count),
        "action": rng.uniform(LOW, HIGH, (count, 2)), "weight": rng.random(count),
        "bootstrap_discount": np.where(rng.random(count) < 0.3, 0.0, DISCOUNT),
        "next_observation": rng.standard_normal((count, 3)),
    }  # fmt: skip
    return {name: torch.from_numpy(column.astype(np.float32)) for name, column in columns.items()}


def critic(module: Any, number: int, observation: Tensor, action: Tensor) -> Tensor:
    """A critic's layers one by one, in float64, of actions between -1 and 1."""
    pair = torch.cat([observation.double(), action.double()], dim=1)
    one = module.critics[number]
    hidden = one.encoder[1]
    features = torch.relu(pair @ hidden.weight.double().T + hidden.bias.double())
    return (features @ one.output.weight.double().T + one.output.bias.double())[:, 0].detach()


def grown(updates: int = 5, **learn: Any) -> Any:
    """A learner whose targets have fallen behind."""
    built = policy("learn", learn=learn, priority=True)
    for seed in range(10, 10 + updates):
        built.learn_mode.forward(batch_of(seed))
    return built


def parameters(module: Any) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


# ------------------------------------------------------------------------------------------ update


@pytest.mark.parametrize("learn", [{"target_noise": 0.4}, DDPG], ids=["td3", "ddpg"])
def test_the_critics_learn_the_least_value_of_a_smoothed_action(learn: dict[str, Any]) -> None:
    built, batch = grown(**learn), batch_of()
    drawn = copy.deepcopy(built._noise).standard_normal((32, 2), dtype=np.float32)
    noise = np.clip(learn["target_noise"] * drawn, -0.5, 0.5)
    assert (abs(noise) == 0.5).any() == (learn["target_noise"] > 0), "or clipping is not tested"
    with torch.no_grad():
        best = built._target_actor(batch["next_observation"], {})[0].tanh()
    action = (best + torch.from_numpy(noise)).clamp(-1, 1)
    numbers = range(learn.get("critics", 2))
    following = [
        critic(built._target_critics, k, batch["next_observation"], action) for k in numbers
    ]
    target = batch["n_step_return"] + batch["bootstrap_discount"] * torch.stack(following).amin(0)
    taken = (batch["action"] - MIDDLE) / HALF
    values = [critic(built._critics, k, batch["observation"], taken) for k in numbers]
    told = built.learn_mode.forward(batch)
    loss = sum(((value - target) ** 2).mean().item() for value in values)
    assert told["total_loss"] == pytest.approx(loss, rel=1e-4)
    assert told["q_value"] == pytest.approx(torch.stack(values).mean().item(), rel=1e-4)
    error = torch.stack([(value - target).abs() for value in values]).mean(0)
    np.testing.assert_allclose(told["priority"], error.numpy(), rtol=2e-4, atol=1e-5)


def test_an_end_is_not_valued_and_a_cut_is() -> None:
    batch = batch_of()
    ends = batch["bootstrap_discount"] == 0
    for rows, matters in ((ends, False), (~ends, True)):
        moved = torch.where(rows[:, None], torch.tensor(7.0), batch["next_observation"])
        losses = [
            grown().learn_mode.forward({**batch, "next_observation": following})["total_loss"]
            for following in (batch["next_observation"], moved)
        ]
        assert (losses[0] != losses[1]) == matters


def test_the_actor_climbs_the_first_critics_value() -> None:
    built, batch = grown(), batch_of()
    actor = copy.deepcopy(built._model)
    told = built.learn_mode.forward(batch)  # the sixth: with the actor
    action = actor(batch["observation"], {})[0].tanh()
    pair = torch.cat([batch["observation"], action], dim=1)
    loss = -built._critics.critics[0](pair, {})[0].mean()
    assert told["actor_loss"] == pytest.approx(loss.item(), rel=1e-4)
    expected = torch.autograd.grad(loss, list(actor.parameters()))
    for found, of_loss in zip(built._model.parameters(), expected, strict=True):
        torch.testing.assert_close(found.grad, of_loss, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("delay", [1, 3])
def test_actor_and_targets_wait_for_the_critics(delay: int) -> None:
    built = policy("learn", learn={"policy_delay": delay})
    others = (built._model, built._target_actor, built._target_critics)
    for update in range(1, 7):
        before = [parameters(module) for module in others]
        critics = parameters(built._critics)
        told = built.learn_mode.forward(batch_of(update))
        is_turn = update % delay == 0
        assert ("actor_loss" in told) == is_turn
        assert not same(critics, parameters(built._critics))
        for module, old in zip(others, before, strict=True):
            assert same(old, parameters(module)) != is_turn
        if is_turn:
            networks = (built._model, built._critics)
            for old, target, network in zip(before[1:], others[1:], networks, strict=True):
                for was, now, of in zip(
                    old, target.parameters(), network.parameters(), strict=True
                ):
                    torch.testing.assert_close(now.detach(), (1 - TAU) * was + TAU * of.detach())


def test_the_actor_may_wait_long_for_its_extra_loss() -> None:
    """A policy_delay above 100 was taken for an update that has no place for one."""
    learn = {"policy_delay": 101, "extra_loss": {"type": "torch.nn:Identity"}}
    made = policy("learn", learn=learn, model={**MODEL, "encoder_hidden_size_list": [2]})
    made._extra._compute = lambda _part, outputs: (outputs.mean(outputs.output[:, 0]), {})
    batch = batch_of(count=2)
    told = [made.learn_mode.forward(batch) for _ in range(101)]
    assert ["extra_loss" in each for each in told] == [False] * 100 + [True]


def test_an_update_without_a_place_for_an_extra_loss_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the delay: in the first iteration from the 100th on that must have asked."""
    made = policy("learn", learn={"policy_delay": 30, "extra_loss": {"type": "torch.nn:Identity"}})
    monkeypatch.setattr(made, "update", lambda _batch: {})
    made._iterations = 118
    made.learn_mode.forward(batch_of(count=2))
    with pytest.raises(PolicyError, match="td3 has no place for an extra loss"):
        made.learn_mode.forward(batch_of(count=2))


def test_gradients_go_only_where_they_belong() -> None:
    """The actor's loss leaves those of the critics as their own loss made them."""
    built, batch = grown(), batch_of()
    at_critics = copy.deepcopy(built)
    at_critics._cfg.learn.__dict__["policy_delay"] = 100  # the same without the actor's turn
    built.learn_mode.forward(batch)
    at_critics.learn_mode.forward(batch)
    for found, expected in zip(
        built._critics.parameters(), at_critics._critics.parameters(), strict=True
    ):
        assert torch.equal(found.grad, expected.grad)
    for target in (built._target_actor, built._target_critics):
        assert all(p.grad is None for p in target.parameters())


def test_weights_count_where_configured() -> None:
    weighted: dict[str, Any] = {"priority": True, "priority_IS_weight": True}
    batch = batch_of()
    ones = {**batch, "weight": torch.ones(32)}
    losses = [
        policy("learn", **weighted).learn_mode.forward(b)["total_loss"] for b in (batch, ones)
    ]
    assert losses[1] == pytest.approx(policy("learn").learn_mode.forward(batch)["total_loss"])
    assert losses[0] < 0.8 * losses[1]


# ------------------------------------------------------------------------------------ acting, state


def test_actions_are_explored_by_noise_within_bounds() -> None:
    observation = np.tile(np.float32([0.5, -1.0, 2.0]), (5_000, 1))
    seen, one = {"observation": observation}, {"observation": observation[:1]}
    best = policy("eval").act_greedily(one)["action"][0]
    still = policy("collect", collect={"noise": 0.0}).act(one, {})["action"][0]
    np.testing.assert_allclose(still, best, rtol=1e-6)
    action = policy("collect", collect={"noise": 0.1}).act(seen, {})["action"]
    assert action.dtype == np.float32
    np.testing.assert_allclose(action.mean(axis=0), best, atol=0.03)
    np.testing.assert_allclose(action.std(axis=0), 0.1 * HALF.numpy(), rtol=0.05)
    wild = policy("collect", collect={"noise": 3.0}).act(seen, {})["action"]
    assert (wild.min(axis=0) == LOW).all()
    assert (wild.max(axis=0) == HIGH).all()


def test_the_actor_is_evaluated_and_exported() -> None:
    built = policy("collect", "eval")
    observation = np.random.default_rng(0).standard_normal((9, 3), dtype=np.float32)
    raw = built._model(torch.from_numpy(observation), {})[0].detach()
    expected = (MIDDLE + HALF * raw.tanh()).numpy()
    evaluating = built.eval_mode.get_attribute("columnar")
    greedy = evaluating.act({"observation": observation}, {})["action"]
    np.testing.assert_allclose(greedy, expected, rtol=1e-5)
    (exported,) = built.eval_mode.get_attribute("export_module")(torch.from_numpy(observation))
    np.testing.assert_array_equal(exported.detach().numpy(), greedy)


@pytest.mark.parametrize("stop_after", [3, 4])
def test_a_learner_goes_on_as_if_it_had_not_been_stopped(stop_after: int) -> None:
    whole, first, second = policy("learn"), policy("learn"), policy("learn", seed=5)
    told = [whole.learn_mode.forward(batch_of(seed)) for seed in range(8)]
    again = [first.learn_mode.forward(batch_of(seed)) for seed in range(stop_after)]
    second.learn_mode.load_state_dict(copy.deepcopy(first.learn_mode.state_dict()))
    again += [second.learn_mode.forward(batch_of(seed)) for seed in range(stop_after, 8)]
    assert again == told
    for name in ("_model", "_critics", "_target_actor", "_target_critics"):
        assert same(parameters(getattr(whole, name)), parameters(getattr(second, name)))


def test_weights_alone_are_the_actors_and_its_targets() -> None:
    giver, taker = policy("learn", seed=1), policy("learn")
    taker.learn_mode.load_state_dict({"model": giver.learn_mode.state_dict()["model"]})
    for name in ("_model", "_target_actor"):
        assert same(parameters(getattr(taker, name)), parameters(giver._model))
    assert math.isfinite(taker.learn_mode.forward(batch_of())["total_loss"])
