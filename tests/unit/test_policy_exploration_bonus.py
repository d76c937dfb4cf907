"""Random network distillation: the bonus is what is not predicted yet, and rewards have it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcdi.errors import ConfigError
from hpcdi.policy.base import actor_of
from hpcdi.policy.create import create_policy
from hpcdi.policy.returns import gae

pytestmark = pytest.mark.usefixtures("one_torch_thread")

WEIGHT, GAMMA, LAMBDA = 0.5, 0.9, 0.8
BONUS = {"type": "rnd", "weight": WEIGHT, "learning_rate": 0.01, "features": 8}
DISCRETE = {"obs_shape": 4, "action_shape": 3, "encoder_hidden_size_list": [16]}
KINDS: dict[str, dict[str, Any]] = {
    "ppo": {
        "model": {**DISCRETE, "action_space": "discrete"}, "collect": {"gae_lambda": LAMBDA}
    },
    "dqn": {"model": DISCRETE, "learn": {"loss": "mse"}, "priority": True},
}  # fmt: skip


def policy(kind: str, *modes: str, seed: int = 0, **bonus: Any) -> Any:
    settings = {"discount_factor": GAMMA, "exploration_bonus": {**BONUS, **bonus}}
    cfg = {"type": kind, **KINDS[kind], **settings}
    return create_policy(cfg, modes, seed=np.random.SeedSequence(seed), gets_weights=True)


def batch_of(seed: int = 0, count: int = 32) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    columns = {
        "observation": rng.standard_normal((count, 4)), "n_step_return": rng.standard_normal(count),
        "bootstrap_discount": np.full(count, GAMMA), "weight": np.ones(count),
        "next_observation": rng.standard_normal((count, 4)), "advantage": np.ones(count),
        "return": np.ones(count), "value": np.ones(count), "log_prob": np.full(count, -1.0),
    }  # fmt: skip
    batch = {k: torch.from_numpy(v.astype("f4")) for k, v in columns.items()}
    return {**batch, "action": torch.from_numpy(rng.integers(0, 3, count))}


def error(novelty: Any, observation: Any) -> Any:
    """The mean square of the difference, layer by layer in float64."""

    def out(network: Any) -> Any:
        hidden, last = network.encoder[1], network.output
        first = observation @ hidden.weight.double().T + hidden.bias.double()
        act = {"Tanh": torch.tanh, "ReLU": torch.relu}[type(network.encoder[2]).__name__]
        return act(first) @ last.weight.double().T + last.bias.double()

    observation = torch.as_tensor(observation).double()
    return (out(novelty.predictor) - out(novelty.target)).square().mean(dim=1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_bonus_falls_where_it_is_learnt(kind: str) -> None:
    built, batch = policy(kind, "learn"), batch_of()
    novelty = built._model.novelty
    others = torch.full((32, 4), 9.0)
    target = copy.deepcopy(novelty.target.state_dict())
    begun = [error(novelty, x).mean().item() for x in (batch["observation"], others)]
    told = [built.learn_mode.forward(batch) for _ in range(60)]
    now = [error(novelty, x).mean().item() for x in (batch["observation"], others)]
    assert told[0]["bonus"] == pytest.approx(begun[0], rel=1e-4), "nothing to divide it by yet"
    assert told[0]["bonus_loss"] == pytest.approx(begun[0], rel=1e-4)
    assert now[0] < 0.1 * begun[0]
    assert now[1] > 5 * now[0], "what is far from it stays newer"
    assert all(torch.equal(target[n], p) for n, p in novelty.target.state_dict().items())
    assert {"bonus", "bonus_loss"} <= set(built.learn_mode.monitor_vars())
    learnt = {id(p) for p in built._step._parameters}
    assert not learnt & {id(b) for b in novelty.buffers()}, "it is no part of the policy's step"


def test_errors_are_divided_by_their_deviation() -> None:
    built = policy("dqn", "learn")
    errors = []
    for seed in range(4):
        errors.append(error(built._model.novelty, batch_of(seed)["observation"]))
        built.learn_mode.forward(batch_of(seed))
    deviation = torch.cat(errors).std(correction=0).item()
    observation = batch_of(9)["observation"]
    expected = error(built._model.novelty, observation) / deviation
    torch.testing.assert_close(
        built._model.novelty(observation).double(), expected, rtol=1e-3, atol=1e-5
    )


def test_a_replay_batch_is_learnt_from_with_the_bonus_of_now() -> None:
    built, plain = policy("dqn", "learn"), policy("dqn", "learn")
    for seed in range(3):
        for each in (built, plain):
            each.learn_mode.forward(batch_of(seed))
    batch = batch_of(7)
    bonus = built._model.novelty(batch["next_observation"])
    plain._bonus = None
    found = built.learn_mode.forward(batch)
    moved = {**batch, "n_step_return": batch["n_step_return"] + WEIGHT * bonus}
    expected = plain.learn_mode.forward(moved)
    np.testing.assert_allclose(found["priority"], expected["priority"], rtol=1e-5)


def test_advantages_have_the_bonus_of_what_follows() -> None:
    """Within an item the next observation is the next row's; after it, the one given."""
    built = policy("ppo", "learn", "collect")
    for seed in range(3):
        built.learn_mode.forward(batch_of(seed))
    rng = np.random.default_rng(0)
    item_len = np.array([3, 2], np.int32)
    observation = rng.standard_normal((5, 4)).astype("f4")
    after = rng.standard_normal((2, 4)).astype("f4")
    following = np.stack([*observation[1:3], after[0], observation[4], after[1]])
    transitions = {
        "observation": observation, "reward": rng.standard_normal(5).astype("f4"),
        "terminated": np.arange(5) == 2, "value": rng.standard_normal(5).astype("f4"),
    }  # fmt: skip
    actor = actor_of(built.collect_mode)
    given = {name: column.copy() for name, column in transitions.items()}
    made = actor.train_columns(transitions, item_len, {"observation": after}).columns
    bonus = built._model.novelty(torch.from_numpy(following)).numpy()
    expected = gae(
        transitions["reward"] + WEIGHT * bonus, transitions["terminated"], transitions["value"],
        built.infer({"observation": after})[-1], item_len, GAMMA, LAMBDA,
    )  # fmt: skip
    np.testing.assert_allclose(made["advantage"], expected.advantage, rtol=1e-4, atol=1e-5)
    for name, column in given.items():
        np.testing.assert_array_equal(transitions[name], column)  # what is stored stays


@pytest.mark.parametrize("kind", KINDS)
def test_a_learner_goes_on_as_if_it_had_not_been_stopped(kind: str) -> None:
    whole, first, second = (policy(kind, "learn", seed=seed) for seed in (0, 0, 5))
    told = [whole.learn_mode.forward(batch_of(seed)) for seed in range(6)]
    again = [first.learn_mode.forward(batch_of(seed)) for seed in range(3)]
    second.learn_mode.load_state_dict(copy.deepcopy(first.learn_mode.state_dict()))
    again += [second.learn_mode.forward(batch_of(seed)) for seed in range(3, 6)]
    for one, other in zip(told, again, strict=True):
        for name in ("bonus", "bonus_loss"):
            assert one[name] == other[name]


def test_who_has_no_rewards_takes_no_bonus() -> None:
    with pytest.raises(ConfigError, match=r"exploration_bonus.type: bc has no rewards to add it"):
        create_policy({"type": "bc", "exploration_bonus": {"type": "rnd"}}, ["learn"])
