"""The Q-learning update, number by number on tables, and that it finds known values."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hpcdi.policy.q_learning import QLearner, QUpdate

pytestmark = pytest.mark.usefixtures("one_torch_thread")

PLAIN = QUpdate(
    learning_rate=0.1, target_update_freq=1000, double=False, loss="mse", grad_clip_norm=0.0,
    use_weights=False, give_priority=True,
)  # fmt: skip


def learner(table: list[list[float]], **settings: Any) -> QLearner:
    """A learner whose network is a table: one-hot states -> values."""
    network = nn.Linear(len(table), len(table[0]), bias=False)
    with torch.no_grad():
        network.weight.copy_(torch.tensor(table).T)
    return QLearner(network, dataclasses.replace(PLAIN, **settings), torch.device("cpu"))


def transition(
    state: int, action: int, n_step_return: float, discount: float, after: int, states: int = 2
) -> dict[str, Tensor]:
    return {
        "observation": torch.eye(states)[[state]],
        "action": torch.tensor([action]),
        "n_step_return": torch.tensor([n_step_return]),
        "bootstrap_discount": torch.tensor([discount]),
        "next_observation": torch.eye(states)[[after]],
        "weight": torch.ones(1),
    }


def batch_of(*rows: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


# --------------------------------------------------------------------------------------- one update


def test_td_error_is_the_distance_to_return_plus_discounted_best_value() -> None:
    table = [[1.0, 2.0], [5.0, 3.0]]
    batch = batch_of(transition(0, 1, 0.5, 0.9, 1), transition(1, 0, -1.0, 0.0, 0))
    info = learner(table).update(batch)
    errors = [0.5 + 0.9 * 5.0 - 2.0, -1.0 - 5.0]
    np.testing.assert_allclose(info["priority"], np.abs(errors), rtol=1e-6)
    assert info["priority"].dtype == np.float32
    assert info["total_loss"] == pytest.approx(np.mean(np.square(errors)), rel=1e-6)
    assert info["q_value"] == pytest.approx((2.0 + 5.0) / 2)
    assert info["cur_lr"] == 0.1


def test_double_chooses_by_the_network_and_values_by_the_target() -> None:
    batch = transition(0, 0, 0.0, 1.0, 1)
    for double, value in ((True, 1.0), (False, 10.0)):
        q = learner([[0.0, 0.0], [10.0, 1.0]], double=double)  # the target keeps this table
        with torch.no_grad():
            q.network.weight.copy_(torch.tensor([[0.0, 0.0], [2.0, 3.0]]).T)
        assert q.update(batch)["priority"].tolist() == [value]


@pytest.mark.parametrize(("error", "huber"), [(0.5, 0.125), (-3.0, 2.5), (0.0, 0.0)])
def test_losses(error: float, huber: float) -> None:
    batch = transition(0, 0, error, 0.0, 0)
    table = [[0.0, 0.0], [0.0, 0.0]]
    assert learner(table, loss="huber").update(batch)["total_loss"] == pytest.approx(huber)
    assert learner(table, loss="mse").update(batch)["total_loss"] == pytest.approx(error**2)


@pytest.mark.parametrize(("use_weights", "loss"), [(True, 2.5), (False, 5.0)])
def test_importance_weights_count_only_where_configured(use_weights: bool, loss: float) -> None:
    batch = batch_of(transition(0, 0, 1.0, 0.0, 0), transition(1, 0, 3.0, 0.0, 0))
    batch["weight"] = torch.tensor([0.5, 0.5])
    q = learner([[0.0, 0.0], [0.0, 0.0]], use_weights=use_weights)
    assert q.update(batch)["total_loss"] == pytest.approx(loss)


def test_weights_are_not_asked_for_where_not_configured() -> None:
    batch = transition(0, 0, 1.0, 0.0, 0)
    del batch["weight"]
    q = learner([[0.0, 0.0], [0.0, 0.0]], give_priority=False)
    assert q.update(batch).keys() == {"total_loss", "q_value", "cur_lr"}


def test_only_the_value_of_the_action_taken_moves() -> None:
    q = learner([[1.0, 1.0], [1.0, 1.0]])
    q.update(transition(0, 1, 5.0, 0.0, 0))
    change = (q.network.weight.detach().T - 1.0).tolist()
    assert change == [[0.0, pytest.approx(0.1, rel=1e-3)], [0.0, 0.0]]  # Adam: one learning rate


def test_gradients_are_clipped_by_their_norm() -> None:
    batch = transition(0, 0, 1000.0, 0.0, 0)
    for norm, expected in ((0.5, 0.5), (0.0, 2000.0)):
        q = learner([[0.0, 0.0], [0.0, 0.0]], grad_clip_norm=norm)
        q.update(batch)
        assert q.network.weight.grad.norm().item() == pytest.approx(expected, rel=1e-4)


def test_the_target_is_renewed_after_so_many_updates() -> None:
    q = learner([[0.0, 0.0], [0.0, 0.0]], target_update_freq=3)
    batch = transition(0, 0, 1.0, 0.0, 0)
    is_same = []
    for _ in range(4):
        q.update(batch)
        is_same.append(torch.equal(q.network.weight, q.target.weight))
    assert is_same == [False, False, True, False]
    assert not q.target.weight.requires_grad


def test_the_batch_is_left_as_it_was() -> None:
    batch = transition(0, 0, 1.0, 0.9, 1)
    before = {name: tensor.clone() for name, tensor in batch.items()}
    learner([[0.0, 0.0], [0.0, 0.0]]).update(batch)
    assert all(torch.equal(batch[name], before[name]) for name in before)


# ------------------------------------------------------------------------------------ many updates


def test_the_loss_falls_on_a_fixed_batch() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    settings = dataclasses.replace(PLAIN, learning_rate=1e-2)
    q = QLearner(network, settings, torch.device("cpu"))
    batch = {
        "observation": torch.randn(32, 4),
        "action": torch.randint(0, 3, (32,)),
        "n_step_return": torch.randn(32),
        "bootstrap_discount": torch.full((32,), 0.9),
        "next_observation": torch.randn(32, 4),
    }
    losses = [q.update(batch)["total_loss"] for _ in range(200)]
    assert losses[-1] < 0.05 * losses[0]


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("loss", ["huber", "mse"])
def test_values_of_one_state_that_leads_to_itself(double: bool, loss: str) -> None:
    """Reward 1 for ever: the value is 1 / (1 - discount); action 1 ends it with 0.5."""
    q = learner(
        [[0.0, 0.0]], double=double, loss=loss, learning_rate=0.05, target_update_freq=10
    )  # fmt: skip
    batch = batch_of(transition(0, 0, 1.0, 0.5, 0, states=1), transition(0, 1, 0.5, 0.0, 0, 1))
    for _ in range(400):
        info = q.update(batch)
    np.testing.assert_allclose(q.network.weight.detach().squeeze(1), [2.0, 0.5], atol=0.01)
    assert info["priority"].max() < 0.02
