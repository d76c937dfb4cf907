"""TQC: what is left out, and losses of quantiles, against loops that are written out."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcdi.errors import ConfigError
from hpcdi.policy.create import create_policy
from hpcdi.policy.sac import squashed_normal
from hpcdi.policy.tqc import TQCPolicy

pytestmark = pytest.mark.usefixtures("one_torch_thread")

LOW, HIGH, DISCOUNT = (-2.0, 0.0), (2.0, 10.0), 0.9
CRITICS, QUANTILES, COUNT = 3, 5, 6


def policy(drop: int = 2, **others: Any) -> Any:
    model = {"obs_shape": 3, "action_shape": [2], "action_low": LOW, "action_high": HIGH}
    cfg = {
        "type": "tqc", "discount_factor": DISCOUNT, **others,
        "model": {**model, "encoder_hidden_size_list": [16], "num_quantiles": QUANTILES},
        "learn": {"critics": CRITICS, "drop_quantiles": drop, "learning_rate": 0.01},
    }  # fmt: skip
    built: Any = create_policy(cfg, ("learn",), seed=np.random.SeedSequence(0))
    for seed in range(10, 14):  # targets fall behind, critics differ
        built.learn_mode.forward(batch_of(seed))
    return built


def batch_of(seed: int = 0) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    columns = {
        "observation": rng.standard_normal((COUNT, 3)), "n_step_return": rng.standard_normal(COUNT),
        "action": rng.uniform(LOW, HIGH, (COUNT, 2)), "weight": rng.random(COUNT),
        "bootstrap_discount": np.where(rng.random(COUNT) < 0.3, 0.0, DISCOUNT),
        "next_observation": rng.standard_normal((COUNT, 3)),
    }  # fmt: skip
    return {name: torch.from_numpy(column.astype(np.float32)) for name, column in columns.items()}


def with_noise(built: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    drawn = copy.deepcopy(built._noise).standard_normal((2, COUNT, 2), dtype=np.float32)
    return {**batch, "noise": torch.from_numpy(drawn[0]), "next_noise": torch.from_numpy(drawn[1])}


def scaled(action: Tensor) -> Tensor:
    low, high = torch.tensor(LOW), torch.tensor(HIGH)
    return 2 * (action - low) / (high - low) - 1


def targets(built: Any, batch: dict[str, Tensor], drop: int) -> list[list[float]]:
    """The least quantiles of all critics together, one by one."""
    output = built._model(batch["next_observation"], {})[0]
    action, log_prob = squashed_normal(output, batch["next_noise"])
    each = built._targets(batch["next_observation"], action).detach().double().numpy()
    alpha = built._temperature.number.exp().item()
    made = []
    for row in range(COUNT):
        pooled = sorted(float(q) for critic in each for q in critic[row])
        kept = pooled[: len(pooled) - drop * CRITICS]
        reward = batch["n_step_return"][row].item()
        discount = batch["bootstrap_discount"][row].item()
        made.append([reward + discount * (z - alpha * log_prob[row].item()) for z in kept])
    return made


@pytest.mark.parametrize("drop", [0, 2])
def test_targets_leave_out_the_largest_quantiles_of_all_critics(drop: int) -> None:
    built = policy(drop)
    batch = with_noise(built, batch_of())
    expected = np.array(targets(built, batch, drop))
    assert expected.shape == (COUNT, CRITICS * (QUANTILES - drop))
    np.testing.assert_allclose(built.soft_target(batch).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_critics_have_the_quantile_huber_loss_and_the_actor_climbs_their_mean() -> None:
    """And priorities are errors of the means."""
    built, given = policy(priority=True), batch_of()
    batch = with_noise(built, given)
    quantiles = built._critics(batch["observation"], scaled(batch["action"])).detach().numpy()
    target = targets(built, batch, 2)
    loss = 0.0
    for row, critic in np.ndindex(COUNT, CRITICS):
        for m, theta in enumerate(quantiles[critic, row]):
            for y in target[row]:
                error = y - theta
                huber = error**2 / 2 if abs(error) <= 1 else abs(error) - 0.5
                share = abs((m + 0.5) / QUANTILES - (error < 0))
                loss += share * huber / (QUANTILES * len(target[row])) / COUNT
    told = built.learn_mode.forward(given)
    assert told["critic_loss"] == pytest.approx(loss, rel=1e-4)
    assert told["q_value"] == pytest.approx(quantiles.mean(), rel=1e-4, abs=1e-6)
    errors = np.abs(quantiles.mean(axis=(0, 2)) - np.mean(target, axis=1))
    np.testing.assert_allclose(told["priority"], errors, rtol=1e-4, atol=1e-5)

    losses, log_prob = built.improved(batch)
    action, _ = squashed_normal(built._model(batch["observation"], {})[0], batch["noise"])
    mean = built._critics(batch["observation"], action).mean(dim=(0, 2))
    torch.testing.assert_close(losses, built.alpha * log_prob - mean)


def test_something_must_be_left() -> None:
    settings = {"type": "tqc", "learn": {"drop_quantiles": 25}}
    with pytest.raises(ConfigError, match=r"drop_quantiles: leaves nothing of model.num_quantiles"):
        TQCPolicy.parse_config(settings)
