"""C51: projection, loss and choice of actions, against the paper's algorithm written as loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcdi.errors import ConfigError
from hpcdi.policy.c51 import project
from hpcdi.policy.create import create_policy
from hpcdi.policy.programs import PROGRAMS

pytestmark = pytest.mark.usefixtures("one_torch_thread")

ACTIONS, ATOMS, V_MIN, V_MAX = 3, 7, -2.0, 4.0
Z = np.linspace(V_MIN, V_MAX, ATOMS)


def policy(*modes: str, learn: Any = None, model: Any = None, **settings: Any) -> Any:
    shape = {"obs_shape": 4, "action_shape": ACTIONS, "encoder_hidden_size_list": [16]}
    cfg = {
        "type": "c51", "learn": learn or {}, **settings,
        "model": {**shape, "n_atom": ATOMS, "v_min": V_MIN, "v_max": V_MAX, **(model or {})},
    }  # fmt: skip
    return create_policy(cfg, modes, seed=np.random.SeedSequence(0))


def batch_of(seed: int = 0, count: int = 12, discount: float = 0.9) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    columns = {
        "observation": rng.standard_normal((count, 4)), "action": rng.integers(0, ACTIONS, count),
        "n_step_return": 2 * rng.standard_normal(count), "weight": rng.random(count),
        "bootstrap_discount": np.where(rng.random(count) < 0.3, 0.0, discount),
        "next_observation": rng.standard_normal((count, 4)),
    }  # fmt: skip
    return {k: torch.from_numpy(v if k == "action" else v.astype("f4")) for k, v in columns.items()}


def projected(reward: float, discount: float, probabilities: Any) -> Any:
    """Algorithm 1 of Bellemare et al. 2017, for one transition, as it is printed."""
    mass, step = np.zeros(ATOMS), (V_MAX - V_MIN) / (ATOMS - 1)
    for z, p in zip(Z, probabilities, strict=True):
        moved = min(max(reward + discount * z, V_MIN), V_MAX)
        b = round((moved - V_MIN) / step, 5)
        lower, upper = math.floor(b), math.ceil(b)
        if lower == upper:  # which the printed one forgets
            mass[lower] += p
        else:
            mass[lower] += p * (upper - b)
            mass[upper] += p * (b - lower)
    return mass


def probabilities_of(network: Any, observation: Tensor) -> Any:
    """[batch, actions, atoms]."""
    with torch.no_grad():
        logits = network(observation, {})[0].reshape(-1, ACTIONS, ATOMS)
        return torch.exp(logits - torch.logsumexp(logits, 2, keepdim=True)).double().numpy()


# -------------------------------------------------------------------------------------- projection


@pytest.mark.parametrize(
    ("reward", "discount"),
    [(0.3, 0.9), (-1.7, 0.99), (50.0, 0.9), (-50.0, 0.9), (0.0, 1.0), (1.0, 0.0), (4.0, 0.0)],
)
def test_the_projection_is_that_of_the_paper(reward: float, discount: float) -> None:
    given = np.random.default_rng(0).dirichlet(np.ones(ATOMS), 5).astype("f4")
    atoms = torch.linspace(V_MIN, V_MAX, ATOMS)
    found = project(reward + discount * atoms.expand(5, -1), torch.from_numpy(given), atoms)
    expected = [projected(reward, discount, row) for row in given]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)
    assert (found >= 0).all()
    np.testing.assert_allclose(found.sum(dim=1).numpy(), 1, atol=1e-6)


def test_the_mean_is_kept_within_the_atoms() -> None:
    given = torch.softmax(torch.randn(9, ATOMS, generator=torch.Generator().manual_seed(0)), dim=1)
    atoms = torch.linspace(V_MIN, V_MAX, ATOMS)
    moved = 0.3 + 0.5 * atoms.expand(9, -1)
    found = project(moved, given, atoms)
    torch.testing.assert_close((found * atoms).sum(1), (given * moved).sum(1))


@pytest.mark.parametrize("atoms", [2, 51, 101])
def test_returns_that_are_atoms_stay_there(atoms: int) -> None:
    z = torch.linspace(-10, 10, atoms)
    np.testing.assert_allclose(project(z[None], torch.eye(atoms)[:1], z)[0], torch.eye(atoms)[0])
    given = torch.full((1, atoms), 1 / atoms)
    torch.testing.assert_close(project(z[None], given, z), given, atol=1e-5, rtol=0)


# ------------------------------------------------------------------------------------------ loss


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
def test_the_loss_is_the_cross_entropy_with_the_projected_target(
    double: bool, dueling: bool
) -> None:
    built = policy("learn", learn={"double": double, "learning_rate": 0.05}, priority=True,
                   model={"dueling": dueling})  # fmt: skip
    for seed in range(5):  # the target network falls behind
        built.learn_mode.forward(batch_of(seed))
    batch = batch_of(9)
    now = probabilities_of(built._model, batch["observation"])
    online = probabilities_of(built._model, batch["next_observation"])
    target = probabilities_of(built._target, batch["next_observation"])
    expected, values = [], []
    for row in range(len(batch["action"])):
        best = int(((online if double else target)[row] @ Z).argmax())
        mass = projected(
            float(batch["n_step_return"][row]), float(batch["bootstrap_discount"][row]),
            target[row, best],
        )  # fmt: skip
        taken = now[row, int(batch["action"][row])]
        expected.append(-(mass * np.log(taken)).sum())
        values.append(taken @ Z)
    told = built.learn_mode.forward(batch)
    np.testing.assert_allclose(told["priority"], expected, rtol=1e-4)
    assert told["total_loss"] == pytest.approx(np.mean(expected), rel=1e-4)
    assert told["q_value"] == pytest.approx(np.mean(values), rel=1e-4)
    choices = (online @ Z).argmax(1) != (target @ Z).argmax(1)
    assert choices.any(), "or double is not tested"


def test_only_the_network_learns_and_only_of_the_action_taken() -> None:
    built = policy("learn", learn={"grad_clip_norm": 0.0})
    batch = {**batch_of(), "action": torch.zeros(12, dtype=torch.int64)}
    built.learn_mode.forward(batch)
    gradient = built._model.advantage.bias.grad.reshape(ACTIONS, ATOMS)
    assert (gradient[0] != 0).any()
    assert (gradient[1:] == 0).all()
    assert all(p.grad is None and not p.requires_grad for p in built._target.parameters())


def test_importance_weights_count() -> None:
    settings: dict[str, Any] = {"priority": True, "priority_IS_weight": True}
    batch = batch_of()
    told = policy("learn", **settings).learn_mode.forward(batch)
    mean = (batch["weight"].numpy() * told["priority"]).mean()
    assert told["total_loss"] == pytest.approx(mean, rel=1e-5)


def test_the_distribution_of_a_coin_that_ends_the_episode() -> None:
    """Half of the returns are -1, half 3: the distribution is learnt, not its mean of 1."""
    built = policy("learn", learn={"learning_rate": 0.02})
    observation = torch.ones(40, 4)
    batch = {
        "observation": observation, "next_observation": observation, "weight": torch.ones(40),
        "action": torch.zeros(40, dtype=torch.int64), "bootstrap_discount": torch.zeros(40),
        "n_step_return": torch.tensor([-1.0, 3.0]).repeat(20),
    }  # fmt: skip
    for _ in range(300):
        built.learn_mode.forward(batch)
    found = probabilities_of(built._model, observation[:1])[0, 0]
    np.testing.assert_allclose(found, [0, 0.5, 0, 0, 0, 0.5, 0], atol=0.02)


# ----------------------------------------------------------------------------------- acting, config


def test_the_action_of_the_largest_mean_is_chosen_among_legal_ones() -> None:
    built = policy("eval")
    observation = np.random.default_rng(1).standard_normal((60, 4), dtype=np.float32)
    means = probabilities_of(built._model, torch.from_numpy(observation)) @ Z
    actions = built.act_greedily({"observation": observation})["action"]
    assert actions.tolist() == means.argmax(1).tolist()
    assert len(set(actions.tolist())) > 1
    legal = np.ones((60, ACTIONS), bool)
    legal[np.arange(60), actions] = False
    other = built.act_greedily({"observation": observation, "action_mask": legal})["action"]
    assert other.tolist() == np.where(legal, means, -np.inf).argmax(1).tolist()
    exported = built.eval_mode.get_attribute("export_module")(torch.from_numpy(observation))
    assert exported[0].tolist() == actions.tolist()
    np.testing.assert_allclose(exported[1].detach().numpy(), means, atol=1e-5)


@pytest.mark.parametrize("dueling", [False, True])
def test_it_is_exported_for_any_number_of_observations(dueling: bool) -> None:
    built = policy("eval", model={"dueling": dueling})
    program = PROGRAMS["torch"].trace(built.eval_mode.get_attribute("export_module"), (4,), None)
    act = PROGRAMS["torch"].load(program.data)
    for count in (1, 7):
        observation = np.random.default_rng(count).standard_normal((count, 4), dtype=np.float32)
        assert (
            act({"observation": observation})["action"].tolist()
            == built.act_greedily({"observation": observation})["action"].tolist()
        )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"model": {"v_min": 10.0}}, "model.v_min: is not below model.v_max"),
        ({"model": {"n_atom": 1}}, "model.n_atom: must be at least 2"),
        ({"learn": {"loss": "huber"}}, "learn.loss: must be one of 'cross_entropy'"),
        ({"on_policy": True}, "on_policy: "),
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        create_policy({"type": "c51", **wrong}, ("command",))
