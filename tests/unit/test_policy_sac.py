"""SAC: densities, targets, and what learns from what, against values computed in another way."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import AffineTransform, Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from fakes.spaces import simple_spaces
from hpcdi.errors import ConfigError
from hpcdi.policy.create import create_policy
from hpcdi.policy.sac import SACPolicy, squashed_normal
from hpcdi.policy.spaces import with_spaces

pytestmark = pytest.mark.usefixtures("one_torch_thread")

LOW, HIGH, TAU, RATE = (-2.0, 0.0), (2.0, 10.0), 0.25, 0.01
DISCOUNT = 0.9
BOUNDS = {"obs_shape": 3, "action_shape": [2], "action_low": LOW, "action_high": HIGH}


def policy(*modes: str, seed: int = 0, model: Any = None, learn: Any = None, **others: Any) -> Any:
    cfg = {
        "type": "sac", "discount_factor": DISCOUNT, **others,
        "model": {**BOUNDS, "encoder_hidden_size_list": [16], **(model or {})},
        "learn": {"tau": TAU, "learning_rate": RATE, **(learn or {})},
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


def noises(built: Any, count: int = 32) -> tuple[Tensor, Tensor]:
    """What the next update draws: for the present and for the next observation."""
    rng = copy.deepcopy(built._noise)
    drawn = rng.standard_normal((2, count, 2), dtype=np.float32)
    return torch.from_numpy(drawn[0]), torch.from_numpy(drawn[1])


def by_torch(output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Action and log-density by torch.distributions, in float64."""
    mean, log_std = output.detach().double().chunk(2, dim=1)
    normal = Normal(mean, log_std.clamp(-20, 2).exp())
    squashed = TransformedDistribution(Independent(normal, 1), [TanhTransform(cache_size=1)])
    action = torch.tanh(mean + normal.stddev * noise.double())
    return action, squashed.log_prob(action)


def critic(module: Any, number: int, observation: Tensor, action: Tensor) -> Tensor:
    """A critic's layers one by one, in float64, of actions between -1 and 1."""
    pair = torch.cat([observation.double(), action.double()], dim=1)
    one = module.critics[number]
    hidden = one.encoder[1]
    features = torch.relu(pair @ hidden.weight.double().T + hidden.bias.double())
    return (features @ one.output.weight.double().T + one.output.bias.double())[:, 0].detach()


def grown(**learn: Any) -> Any:
    """A learner whose targets have fallen behind."""
    built = policy("learn", learn=learn, priority=True)
    for seed in range(10, 14):
        built.learn_mode.forward(batch_of(seed))
    return built


def parameters(*modules: Any) -> list[Tensor]:
    return [p.detach().clone() for module in modules for p in module.parameters()]


# ----------------------------------------------------------------------------------------- density


def test_the_density_is_that_of_torch_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(200, 6, generator=generator) * torch.tensor([1.0] * 3 + [0.5] * 3)
    noise = torch.randn(200, 3, generator=generator)
    action, log_prob = squashed_normal(output, noise)
    expected_action, expected = by_torch(output, noise)
    keeps_digits = expected_action.abs().amax(dim=1) < 0.9999  # as torch's own inverse does
    torch.testing.assert_close(action.double(), expected_action, atol=1e-6, rtol=0)
    torch.testing.assert_close(
        log_prob.double()[keeps_digits], expected[keeps_digits], atol=2e-4, rtol=1e-5
    )


def test_the_density_integrates_to_one() -> None:
    noise = torch.linspace(-8, 8, 20_001).unsqueeze(1)
    output = torch.tensor([[0.3, -0.7]]).expand(len(noise), 2)
    action, log_prob = squashed_normal(output, noise)
    area = torch.trapezoid(log_prob.exp().double(), action[:, 0].double())
    assert area.item() == pytest.approx(1, abs=1e-3)


def test_large_actions_keep_their_digits() -> None:
    output = torch.tensor([[30.0, 0.0], [-30.0, 0.0]], requires_grad=True)
    _, log_prob = squashed_normal(output, torch.zeros(2, 1))
    # log(1 - tanh(30)^2) = log 4 - 60, which float32 loses in 1 - tanh^2
    expected = -0.5 * math.log(2 * math.pi) - (math.log(4) - 60)
    assert log_prob.tolist() == pytest.approx([expected] * 2, rel=1e-6)
    (gradient,) = torch.autograd.grad(log_prob.sum(), output)
    assert gradient[:, 0].tolist() == pytest.approx([2, -2])


# ------------------------------------------------------------------------------------------ update


def test_the_critics_learn_the_soft_target() -> None:
    built, batch = grown(), batch_of()
    _, next_noise = noises(built)
    alpha = built._temperature.number.exp().item()
    output = built._model(batch["next_observation"], {})[0]
    action, log_prob = by_torch(output, next_noise)
    following = [critic(built._targets, k, batch["next_observation"], action) for k in (0, 1)]
    assert not torch.equal(*following)
    soft = torch.minimum(*following) - alpha * log_prob
    target = batch["n_step_return"] + batch["bootstrap_discount"] * soft
    middle, half = torch.tensor([0.0, 5.0]), torch.tensor([2.0, 5.0])
    taken = (batch["action"] - middle) / half
    values = [critic(built._critics, k, batch["observation"], taken) for k in (0, 1)]
    told = built.learn_mode.forward(batch)
    loss = sum(((value - target) ** 2).mean().item() for value in values)
    assert told["critic_loss"] == pytest.approx(loss, rel=1e-4)
    assert told["q_value"] == pytest.approx(((values[0] + values[1]) / 2).mean().item(), rel=1e-4)
    error = sum((value - target).abs() for value in values) / 2
    np.testing.assert_allclose(told["priority"], error.numpy(), rtol=2e-4, atol=1e-5)


def test_an_end_is_not_valued_and_a_cut_is() -> None:
    """By `bootstrap_discount` alone: next observations of ends do not matter, others do."""
    batch = batch_of()
    ends = batch["bootstrap_discount"] == 0
    for rows, matters in ((ends, False), (~ends, True)):
        moved = torch.where(rows[:, None], torch.tensor(7.0), batch["next_observation"])
        losses = [
            grown().learn_mode.forward({**batch, "next_observation": following})["critic_loss"]
            for following in (batch["next_observation"], moved)
        ]
        assert (losses[0] != losses[1]) == matters


def test_the_actor_climbs_the_least_value_and_the_entropy() -> None:
    """By the gradient of the paper's eq. 9, through the critics as they are after their step."""
    built, batch = grown(grad_clip_norm=0.0), batch_of()
    noise, _ = noises(built)
    actor, alpha = copy.deepcopy(built._model), built._temperature.number.exp().item()
    told = built.learn_mode.forward(batch)
    action, log_prob = squashed_normal(actor(batch["observation"], {})[0], noise)
    values = [
        built._critics.critics[k](torch.cat([batch["observation"], action], 1), {})[0][:, 0]
        for k in (0, 1)
    ]
    loss = (alpha * log_prob - torch.minimum(*values)).mean()
    assert told["actor_loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert told["entropy"] == pytest.approx(-log_prob.mean().item(), rel=1e-4)
    expected = torch.autograd.grad(loss, list(actor.parameters()))
    for found, of_loss in zip(built._model.parameters(), expected, strict=True):
        torch.testing.assert_close(found.grad, of_loss, atol=1e-6, rtol=1e-4)


def test_gradients_go_only_where_they_belong() -> None:
    """The critics learn from their errors alone: the actor's loss leaves no gradient in them."""
    built, batch = grown(), batch_of()
    before = [p.clone() for p in built._critics.parameters()]
    values = built._values(batch["observation"], torch.zeros(32, 2)).sum()
    built.learn_mode.forward(batch)
    at_critics = [p.grad.clone() for p in built._critics.parameters()]
    assert any(
        (now != then).any() for now, then in zip(before, parameters(built._critics), strict=True)
    )
    built._step.gradients(
        {"observation": batch["observation"]},
        lambda part: (
            -built._values(
                part["observation"], built._forward(part["observation"], {})[0][:, :2]
            ).mean()
        ),
    )
    assert all(
        torch.equal(p.grad, then)
        for p, then in zip(built._critics.parameters(), at_critics, strict=True)
    )
    assert all(p.grad is None for p in built._targets.parameters())
    assert values.requires_grad


def test_targets_follow_by_their_share() -> None:
    built = grown()
    before = parameters(built._targets)
    built.learn_mode.forward(batch_of())
    for old, new, network in zip(
        before, parameters(built._targets), parameters(built._critics), strict=True
    ):
        torch.testing.assert_close(new, (1 - TAU) * old + TAU * network)
        assert not torch.equal(new, old)


@pytest.mark.parametrize(("target_entropy", "rises"), [(50.0, True), (-50.0, False)])
def test_the_temperature_rises_where_entropy_is_missing(target_entropy: float, rises: bool) -> None:
    built = policy("learn", learn={"target_entropy": target_entropy, "alpha": 0.3})
    before = built._temperature.number.item()
    assert math.exp(before) == pytest.approx(0.3)
    told = built.learn_mode.forward(batch_of())
    moved = built._temperature.number.item() - before
    assert (moved > 0) == rises
    assert abs(moved) == pytest.approx(RATE, rel=1e-3)  # Adam's first step
    gradient = built._temperature.number.grad.item()
    missing = -told["entropy"] + target_entropy
    assert gradient == pytest.approx(-0.3 * missing, rel=1e-3)  # d/dx of -e^x (log pi + H)


def test_a_weight_decay_is_of_networks_and_moves_no_temperature() -> None:
    optimizer = {"type": "Adam", "weight_decay": 0.5}
    built = policy("learn", learn={"optimizer": optimizer, "alpha": 0.01})
    before = built._temperature.number.item()
    told = built.learn_mode.forward(batch_of())
    assert told["entropy"] > built._target_entropy
    assert built._temperature.number.item() < before
    decays = [step.optimizer.param_groups[0]["weight_decay"] for step in built._steps]
    assert decays == [0.5, 0.5, 0]


def test_the_target_entropy_is_minus_the_components_and_alpha_may_stay() -> None:
    assert policy("learn")._target_entropy == -2
    built = policy("learn", learn={"auto_alpha": False, "alpha": 0.3})
    assert built.learn_mode.forward(batch_of())["alpha"] == pytest.approx(0.3)
    assert math.exp(built._temperature.number.item()) == pytest.approx(0.3)


def test_weights_count_where_configured() -> None:
    batch = batch_of()
    assert_equal = policy("learn").learn_mode.forward(batch)
    ones = {**batch, "weight": torch.ones(32)}
    weighted: dict[str, Any] = {"priority": True, "priority_IS_weight": True}
    losses = [
        policy("learn", **weighted).learn_mode.forward(b)["critic_loss"] for b in (batch, ones)
    ]
    assert losses[1] == pytest.approx(assert_equal["critic_loss"])
    assert losses[0] < 0.8 * losses[1]


@pytest.mark.parametrize("parts", [2, 5])
def test_a_batch_in_parts_is_the_batch(parts: int) -> None:
    whole, cut = grown(), grown()
    cut._critic_step._accumulate = cut._step._accumulate = parts
    told = [built.learn_mode.forward(batch_of()) for built in (whole, cut)]
    assert told[1]["total_loss"] == pytest.approx(told[0]["total_loss"], rel=1e-4)
    for one, other in zip(parameters(whole._model), parameters(cut._model), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


# ------------------------------------------------------------------------------------ acting, state


def test_actions_are_sampled_within_bounds_by_the_density() -> None:
    """Their share in a half is that of the squashed normal distribution, by torch's own."""
    built = policy("collect")
    observation = np.tile(np.float32([0.5, -1.0, 2.0]), (20_000, 1))
    action = built.act({"observation": observation}, {})["action"]
    assert action.dtype == np.float32
    assert ((action > LOW) & (action < HIGH)).all()
    mean, log_std = built._model(torch.from_numpy(observation[:1]), {})[0][0].chunk(2)
    base = Normal(mean, log_std.exp())
    scale = AffineTransform(torch.tensor([0.0, 5.0]), torch.tensor([2.0, 5.0]))
    actions = TransformedDistribution(base, [TanhTransform(), scale])
    below = actions.cdf(torch.tensor([0.5, 6.0])).detach().numpy()
    np.testing.assert_allclose((action < [0.5, 6.0]).mean(axis=0), below, atol=0.02)


def test_the_middle_is_evaluated_and_exported() -> None:
    built = policy("collect", "eval")
    observation = np.random.default_rng(0).standard_normal((9, 3), dtype=np.float32)
    mean = built._model(torch.from_numpy(observation), {})[0][:, :2].detach().numpy()
    expected = np.float32([0, 5]) + np.float32([2, 5]) * np.tanh(mean)
    evaluating = built.eval_mode.get_attribute("columnar")
    greedy = evaluating.act({"observation": observation}, {})["action"]
    np.testing.assert_allclose(greedy, expected, rtol=1e-5)
    (exported,) = built.eval_mode.get_attribute("export_module")(torch.from_numpy(observation))
    np.testing.assert_array_equal(exported.detach().numpy(), greedy)


def test_a_learner_goes_on_as_if_it_had_not_been_stopped() -> None:
    whole, first, second = policy("learn"), policy("learn"), policy("learn", seed=5)
    told = [whole.learn_mode.forward(batch_of(seed)) for seed in range(8)]
    again = [first.learn_mode.forward(batch_of(seed)) for seed in range(4)]
    second.learn_mode.load_state_dict(copy.deepcopy(first.learn_mode.state_dict()))
    again += [second.learn_mode.forward(batch_of(seed)) for seed in range(4, 8)]
    assert again == told
    for one, other in (("_model", "_model"), ("_critics", "_critics"), ("_targets", "_targets")):
        pairs = zip(
            parameters(getattr(whole, one)), parameters(getattr(second, other)), strict=True
        )
        assert all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize(("auto_alpha", "expected"), [(False, 0.1), (True, 0.3)])
def test_a_temperature_that_is_not_learnt_is_the_configured_one(
    auto_alpha: bool, expected: float
) -> None:
    """A resumed run may have another one; one that is learnt goes on from where it was."""
    first, again = (
        policy("learn", learn={"auto_alpha": auto_alpha, "alpha": alpha}) for alpha in (0.3, 0.1)
    )
    again.learn_mode.load_state_dict(first.learn_mode.state_dict())
    assert again.alpha.item() == pytest.approx(expected)


def test_weights_alone_are_the_actors() -> None:
    giver, taker = policy("learn", seed=1).learn_mode, policy("learn").learn_mode
    taker.load_state_dict({"model": giver.state_dict()["model"]})
    model = taker.state_dict()["model"]
    assert all(torch.equal(model[k], v) for k, v in giver.state_dict()["model"].items())


def test_images_and_networks_of_ones_own_learn() -> None:
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (8, 3, 36, 36), dtype=np.uint8))
    built = policy("learn", model={"obs_shape": [3, 36, 36], "encoder_hidden_size_list": [8]})
    batch = {**batch_of(count=8), "observation": images, "next_observation": images}
    before = parameters(built._critics.encoder)
    assert math.isfinite(built.learn_mode.forward(batch)["total_loss"])
    assert all(
        (a != b).any() for a, b in zip(before, parameters(built._critics.encoder), strict=True)
    )


# ----------------------------------------------------------------------------------------- settings


def test_unbounded_and_discrete_actions_are_refused() -> None:
    cfg = SACPolicy.parse_config({"type": "sac"})
    unbounded = simple_spaces((3,), "float32", None, (2,), (-math.inf, 0.0), (math.inf, 1.0))
    _, problems = with_spaces(cfg, simple_spaces((3,), "float32", 2, ()))
    said = "sac takes actions that are a Box, and this environment's are Discrete, Discrete(2); "
    assert [str(problem) for problem in problems] == [
        f"type: {said}c51, discrete_cql, discrete_sac, dqn, impala, ppo, qrdqn and r2d2 would"
    ]
    _, problems = with_spaces(cfg, unbounded)
    assert any("bounded" in str(problem) for problem in problems)


def test_one_update_a_transition_unless_said() -> None:
    policy = SACPolicy.parse_config({"type": "sac"})
    assert (policy.replay_ratio, policy.learn.batch_size) == (256, 256)
    with pytest.raises(ConfigError, match="is infinite; null"):
        SACPolicy.parse_config({"type": "sac", "learn": {"replay_ratio": math.inf}})
    free = SACPolicy.parse_config({"type": "sac", "learn": {"replay_ratio": None}})
    assert (free.replay_ratio, free.usual_updates(37)) == (None, 37)
