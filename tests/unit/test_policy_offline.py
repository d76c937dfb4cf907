"""CQL and IQL: their losses, against the papers' equations, and what they prefer of given data."""

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

DISCRETE = {"obs_shape": 3, "action_shape": 4}
BOX = {"obs_shape": 3, "action_shape": [2], "action_low": [-1, 0], "action_high": [3, 5]}
MIDDLE, HALF = torch.tensor([1, 2.5]), torch.tensor([2, 2.5])
SPACES = {"discrete_cql": DISCRETE, "cql": BOX, "iql": BOX}


def policy(kind: str, *modes: str, **learn: Any) -> Any:
    model = {**SPACES[kind], "encoder_hidden_size_list": [16]}
    cfg = {"type": kind, "discount_factor": 0.9, "model": model, "learn": learn}
    return create_policy(cfg, modes or ["learn"], seed=np.random.SeedSequence(0))


def batch_of(kind: str, count: int = 32) -> dict[str, Tensor]:
    """One-step tasks: an action is worth more the nearer it is to 1, or to the box's upper end."""
    rng = np.random.default_rng(0)
    if kind == "discrete_cql":
        action = rng.integers(0, 3, count)  # never 3
        reward = np.where(action == 1, 1.0, 0.0)
    else:
        raw = rng.uniform(-1, 1, (count, 2))
        action, reward = np.array([1, 2.5]) + np.array([2, 2.5]) * raw, raw.sum(axis=1)
    columns = {
        "observation": rng.standard_normal((count, 3)), "n_step_return": reward,
        "bootstrap_discount": np.zeros(count), "weight": np.ones(count),
        "next_observation": rng.standard_normal((count, 3)),
    }  # fmt: skip
    floats = {name: torch.from_numpy(column.astype("f4")) for name, column in columns.items()}
    return {
        **floats,
        "action": torch.from_numpy(action if kind == "discrete_cql" else action.astype("f4")),
    }


def test_discrete_cql_adds_what_exceeds_the_values_of_the_data() -> None:
    batch = batch_of("discrete_cql")
    plain, _, _ = policy("discrete_cql", cql_weight=0.0).losses(batch)
    cql = policy("discrete_cql", cql_weight=2.0)
    losses, value, _ = cql.losses(batch)
    values, _ = cql._model(batch["observation"], {})
    excess = values.exp().sum(dim=1).log() - value  # eq. 4
    torch.testing.assert_close(losses, plain + 2 * excess)
    batch["action_mask"] = torch.tensor([True, True, True, False]).expand(32, 4)
    masked, _, _ = cql.losses(batch)
    excess = values[:, :3].exp().sum(dim=1).log() - value
    torch.testing.assert_close(masked, plain + 2 * excess)


def test_cql_weighs_values_by_the_density_of_the_actions_that_were_drawn() -> None:
    cql = policy("cql", cql_weight=3.0, cql_actions=5)
    batch, rng = batch_of("cql", 4), np.random.default_rng(1)
    uniform = torch.from_numpy(rng.uniform(-1, 1, (4, 5, 2)).astype("f4"))
    noise = torch.from_numpy(rng.standard_normal((4, 5, 2)).astype("f4"))
    taken = torch.zeros(4, 2)
    values, target = cql._critics(batch["observation"], taken), torch.zeros(4)
    found = cql.critic_losses(
        {**batch, "uniform_actions": uniform, "noise_of_actions": noise}, values, target
    )
    mean, log_std = cql._model(batch["observation"], {})[0].chunk(2, dim=1)
    for row in range(4):
        terms = []
        seen = batch["observation"][row : row + 1]
        for k in range(5):
            terms.append(cql._critics(seen, uniform[row, k : k + 1])[:, 0] + 2 * math.log(2))
            raw = mean[row] + log_std[row].exp() * noise[row, k]
            density = torch.distributions.Normal(mean[row], log_std[row].exp())
            log_prob = density.log_prob(raw) - (1 - raw.tanh().square()).log()  # type: ignore[no-untyped-call]
            terms.append(cql._critics(seen, raw.tanh()[None])[:, 0] - log_prob.sum())
        lowered = torch.stack(terms).exp().mean(dim=0).log()
        expected = (values[:, row].square() + 3 * (lowered - values[:, row])).sum()
        assert found[row].item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-4)


def test_iql_has_the_losses_of_its_paper() -> None:
    batch, learn = batch_of("iql"), {"expectile": 0.9, "beta": 5.0, "most_weight": 2.0}
    iql = policy("iql", **learn)
    actor, scaled = copy.deepcopy(iql._model), (batch["action"] - MIDDLE) / HALF
    seen = batch["observation"]
    with torch.no_grad():
        value = iql._targets(seen, scaled).amin(dim=0)
        lack = value - iql._value(seen, {})[0][:, 0]
        values = iql._critics(seen, scaled)
        mean, log_std = actor(seen, {})[0].chunk(2, dim=1)
    info = iql.learn_mode.forward(batch)
    expectile = ((lack < 0).float() - 0.9).abs() * lack.square()  # eq. 5
    assert info["value_loss"] == pytest.approx(expectile.mean().item(), rel=1e-5)
    with torch.no_grad():
        advantage = value - iql._value(seen, {})[0][:, 0]  # as that is after its step
    weight = (5 * advantage).exp().clamp(max=2.0)
    away = ((scaled - mean.tanh()) / log_std.exp()).square()
    log_prob = -(0.5 * away + log_std + 0.5 * math.log(2 * math.pi)).sum(dim=1)
    assert info["actor_loss"] == pytest.approx(-(weight * log_prob).mean().item(), rel=1e-5)
    td = (values - batch["n_step_return"]).square().sum(dim=0)  # eq. 6, at an end
    assert info["critic_loss"] == pytest.approx(td.mean().item(), rel=1e-5)


@pytest.mark.parametrize("kind", SPACES)
def test_what_is_learnt_is_acted_by_and_kept(kind: str) -> None:
    batch = batch_of(kind)
    batch["observation"][:] = 0.5  # one state
    learn = {"learning_rate": 0.02, **({} if kind == "iql" else {"cql_weight": 0.5})}
    learner = policy(kind, "learn", "eval", **learn)
    for _ in range(60):
        info = learner.learn_mode.forward(batch)
    assert all(math.isfinite(value) for value in info.values())
    seen = {"observation": batch["observation"].numpy()}
    action = learner.eval_mode.get_attribute("columnar").act(seen, {})["action"]
    if kind == "discrete_cql":
        assert set(action.tolist()) == {1}
    else:
        assert (action > MIDDLE.numpy()).all()
    again = policy(kind, "learn", **learn)
    again.learn_mode.load_state_dict(copy.deepcopy(learner.learn_mode.state_dict()))
    for one in (learner, again):
        one.learn_mode.forward(batch)
    for (name, first), second in zip(
        learner._model.state_dict().items(), again._model.state_dict().values(), strict=True
    ):
        assert torch.equal(first, second), name


def test_an_extra_loss_of_iql_sees_the_actions_that_are_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    iql, batch, seen = policy("iql", extra_loss={"type": "torch.nn:Identity"}), batch_of("iql"), {}

    def extra_loss(part: Any, outputs: Any) -> Any:
        seen.update(part)
        return outputs.mean(0 * outputs.log_prob), {}

    iql._extra._compute = extra_loss
    iql.learn_mode.forward(batch)
    assert all(torch.equal(seen[name], column) for name, column in batch.items())
