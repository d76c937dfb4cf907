"""QR-DQN against the paper's algorithm written as loops; and what noisy layers do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcdi.policy import networks
from hpcdi.policy.create import create_policy
from hpcdi.policy.exploration import ladder
from hpcdi.policy.qrdqn import quantile_huber
from hpcdi.worker.collector import create_parallel_collector

pytestmark = pytest.mark.usefixtures("one_torch_thread")
ACTIONS, QUANTILES = 3, 5


def policy(type_: str, *modes: str, model: Any = None, **settings: Any) -> Any:
    shape = {"obs_shape": 4, "action_shape": ACTIONS, "encoder_hidden_size_list": [16]}
    cfg = {"type": type_, "model": {**shape, **(model or {})}, **settings}
    return create_policy(cfg, modes, seed=np.random.SeedSequence(0))


def batch_of(seed: int = 0, count: int = 12) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    columns = {
        "observation": rng.standard_normal((count, 4)), "action": rng.integers(0, ACTIONS, count),
        "n_step_return": 2 * rng.standard_normal(count), "weight": rng.random(count),
        "bootstrap_discount": np.where(rng.random(count) < 0.3, 0.0, 0.9),
        "next_observation": rng.standard_normal((count, 4)),
    }  # fmt: skip
    return {k: torch.from_numpy(v if k == "action" else v.astype("f4")) for k, v in columns.items()}


def loss_by_loops(theta: Any, target: Any, kappa: float) -> float:
    """Algorithm 1 of Dabney et al. 2018, for one transition."""
    total = 0.0
    for i, quantile in enumerate(theta):
        middle = (2 * i + 1) / (2 * len(theta))
        for sample in target:
            u = sample - quantile
            huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
            total += abs(middle - (u < 0)) * huber / kappa / len(target)
    return total


@pytest.mark.parametrize("kappa", [0.5, 1.0])
def test_the_quantile_huber_loss_is_that_of_the_paper(kappa: float) -> None:
    rng = np.random.default_rng(0)
    theta, target = rng.standard_normal((2, 6, 7)).astype("f4")
    found = quantile_huber(torch.from_numpy(theta), torch.from_numpy(target[:, :4]), kappa)
    expected = [loss_by_loops(*row, kappa) for row in zip(theta, target[:, :4], strict=True)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize(("double", "dueling"), [(False, False), (True, True)])
def test_the_update_is_that_of_the_paper(double: bool, dueling: bool) -> None:
    built = policy(
        "qrdqn", "learn", model={"num_quantiles": QUANTILES, "dueling": dueling},
        learn={"double": double, "learning_rate": 0.05}, priority=True,
    )  # fmt: skip
    for seed in range(5):  # the target network falls behind
        built.learn_mode.forward(batch_of(seed))
    batch = batch_of(9)

    def quantiles(network: Any, name: str) -> Any:
        with torch.no_grad():
            return network(batch[name], {})[0].reshape(-1, ACTIONS, QUANTILES).numpy()

    now = quantiles(built._model, "observation")
    online, target = (quantiles(n, "next_observation") for n in (built._model, built._target))
    expected = []
    for row in range(len(batch["action"])):
        best = (online if double else target)[row].mean(axis=1).argmax()
        moved = (
            float(batch["n_step_return"][row])
            + float(batch["bootstrap_discount"][row]) * (target[row, best])
        )
        expected.append(loss_by_loops(now[row, int(batch["action"][row])], moved, 1.0))
    told = built.learn_mode.forward(batch)
    np.testing.assert_allclose(told["priority"], expected, rtol=1e-4)
    assert told["total_loss"] == pytest.approx(np.mean(expected), rel=1e-4)


# ------------------------------------------------------------------------------------ noisy layers

RAINBOW = {"noisy": True, "dueling": True}


@pytest.mark.parametrize("type_", ["dqn", "c51", "qrdqn"])
def test_noise_explores_and_evaluations_have_none(type_: str) -> None:
    built = policy(type_, "learn", "collect", "eval", model=RAINBOW)
    with torch.no_grad():
        for name, parameter in built._model.named_parameters():
            if name.endswith("sigma"):
                parameter.mul_(20)
    same = {"observation": np.ones((1, 4), np.float32)}
    act, evaluate = built.act, built.eval_mode.get_attribute("columnar").act
    drawn = {int(act(same, {"eps": 0.0})["action"][0]) for _ in range(60)}
    assert len(drawn) > 1
    assert len({int(evaluate(same, {})["action"][0]) for _ in range(20)}) == 1
    noise = [m.noise_out for m in built._model.modules() if isinstance(m, networks.NoisyLinear)]
    assert len(noise) == 3, "the hidden layer, value and advantage"
    assert all((part == 0).all() for part in noise)


def test_noise_is_learnt_and_not_saved() -> None:
    built = policy("c51", "learn", model=RAINBOW)
    before = {name: value.clone() for name, value in built._model.state_dict().items()}
    built.learn_mode.forward(batch_of())
    after = built.learn_mode.state_dict()["model"]
    assert not any("noise" in name for name in after)
    sigmas = [name for name in after if name.endswith("sigma")]
    assert sigmas
    assert all((after[name] != before[name]).any() for name in sigmas)


def test_a_resumed_learner_draws_the_same_noise() -> None:
    first = policy("dqn", "learn", model=RAINBOW)
    first.learn_mode.forward(batch_of(0))
    again = policy("dqn", "learn", model=RAINBOW)
    again.learn_mode.load_state_dict(first.learn_mode.state_dict())
    logs = [one.learn_mode.forward(batch_of(1))["total_loss"] for one in (first, again)]
    assert logs[0] == logs[1]


# ---------------------------------------------------------------------------------- Ape-X's ladder


def test_the_ladder_is_that_of_the_paper() -> None:
    rates = ladder(0.4, 7.0, np.arange(4), 4)
    np.testing.assert_allclose(rates, [0.4, 0.4 ** (1 + 7 / 3), 0.4 ** (1 + 14 / 3), 0.4**8])


def test_each_environment_of_all_collectors_has_its_rung() -> None:
    """Two collectors of 2,000 environments: the more to the right, the fewer act at random."""
    other = {"eps": {"start": 0.4, "end": 0.4, "ladder": 7}}
    shares = []
    for number in (0, 1):
        built = policy("dqn", "collect", "command", other=other)
        built.set_attribute("collector", (number, 2))
        setting = built.command_mode.get_setting_collect({"envstep": 0})
        assert setting == {"eps": 0.4}
        same = np.ones((2000, 4), np.float32)
        best = built.act_greedily({"observation": same})["action"]
        others = built.act({"observation": same}, setting)["action"] != best
        shares += [float(part.mean()) for part in np.split(others, 2)]
    rates = [0.4 ** (1 + 7 * middle) * (1 - 1 / ACTIONS) for middle in (1 / 8, 3 / 8)]
    assert shares[:2] == pytest.approx(rates, abs=0.05)
    assert shares[0] > shares[1] > shares[2] >= shares[3]


def test_rungs_are_of_all_environments_though_few_are_ready_at_first() -> None:
    env = {
        "type": "gymnasium", "import_names": ["hpcdi.env.toy"], "env_id": "hpcdi/Count-v0",
        "collector_env_num": 4,
    }  # fmt: skip
    other = {"eps": {"start": 1.0, "end": 1.0, "ladder": 7}}
    model = {"obs_shape": 2, "action_shape": ACTIONS}
    made = []

    def make_policy(_cfg: Any, modes: list[str], seed: np.random.SeedSequence) -> Any:
        made.append(
            create_policy({"type": "dqn", "model": model, "other": other}, modes, seed=seed)
        )
        return made[-1]

    cfg = {"env": env, "policy": {}, "number": (1, 2), "make_policy": make_policy}
    with create_parallel_collector({"type": "zergling", **cfg}):
        (acting,) = made
        assert acting.get_attribute("collector") == (1, 2)
        assert acting.get_attribute("collector_rows") == 4
