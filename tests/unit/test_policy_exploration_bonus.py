"""Exploration bonuses: what is not predicted yet; and rewards have it."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hpcdi.worker  # noqa: F401 (it gives policies their methods by dicts)
from hpcdi.config import algorithms
from hpcdi.config.policy import TorchPolicyConfig
from hpcdi.errors import ConfigError, PolicyError
from hpcdi.policy import exploration_bonus, gradient_step
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


TYPES = pytest.mark.parametrize("bonus_type", ["rnd", "icm"])


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
    first = error(novelty, batch["observation"])
    begun = [error(novelty, x).mean().item() for x in (batch["observation"], others)]
    told = [built.learn_mode.forward(batch) for _ in range(60)]
    now = [error(novelty, x).mean().item() for x in (batch["observation"], others)]
    measure = first.square().mean().sqrt().item()
    assert told[0]["bonus"] == pytest.approx(begun[0] / measure, rel=1e-4), "its own measure"
    assert told[0]["bonus_loss"] == pytest.approx(begun[0], rel=1e-4)
    assert now[0] < 0.1 * begun[0]
    assert now[1] > 5 * now[0], "what is far from it stays newer"
    assert all(torch.equal(target[n], p) for n, p in novelty.target.state_dict().items())
    assert {"bonus", "bonus_loss"} <= set(built.learn_mode.monitor_vars())
    learnt = {id(p) for p in built._step._parameters}
    assert not learnt & {id(b) for b in novelty.buffers()}, "it is no part of the policy's step"


@TYPES
def test_no_rows_have_no_bonus(bonus_type: str) -> None:
    told = policy("ppo", "learn", type=bonus_type)._bonus.learn(batch_of(count=0))
    assert told == {"bonus": 0, "bonus_loss": 0}


@TYPES
def test_a_weight_decay_leaves_nothing_new_that_is_known(bonus_type: str) -> None:
    learn = {"optimizer": {"weight_decay": 0.1}}
    cfg = {**KINDS["dqn"], "type": "dqn", "learn": learn, "exploration_bonus": {"type": bonus_type}}
    built = create_policy(cfg, ["learn"], seed=np.random.SeedSequence(0), gets_weights=True)
    decays = [step.optimizer.param_groups[0]["weight_decay"] for step in built._steps]
    assert sorted(decays) == [0, 0.1]


def test_errors_are_divided_by_their_root_mean_square() -> None:
    built = policy("dqn", "learn")
    errors = []
    for seed in range(4):
        errors.append(error(built._model.novelty, batch_of(seed)["observation"]))
        built.learn_mode.forward(batch_of(seed))
    measure = torch.cat(errors).square().mean().sqrt().item()
    observation = batch_of(9)["observation"]
    expected = error(built._model.novelty, observation) / measure
    found = built._model.novelty({"next_observation": observation})
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-5)


@TYPES
@pytest.mark.parametrize("kind", KINDS)
def test_the_bonus_is_about_one_at_first_where_observations_look_alike(
    kind: str, bonus_type: str
) -> None:
    """As pictures with a small moving part do: errors hardly differ."""
    built = policy(kind, "learn", type=bonus_type, learning_rate=1e-5)
    batch = batch_of()
    for name in ("observation", "next_observation"):
        batch[name] = 1 + 0.01 * batch[name]
    first = built._model.novelty(batch).mean().item()
    told = [built.learn_mode.forward(batch)["bonus"] for _ in range(3)]
    assert [first, *told] == pytest.approx([1] * 4, abs=0.35)


def test_the_curve_of_the_bonus_is_the_mean_over_all_learners_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Learners' rows on-policy differ, and one may have none."""
    monkeypatch.setattr(gradient_step, "allreduce_data", lambda _count, _op: 16.0)  # with 32 and 0
    told = {}
    for count in (32, 0):
        built = policy("ppo", "learn")
        bonus, batch = built._bonus, batch_of(count=count)
        told[count] = bonus.learn(batch)["bonus"]
    alone = policy("ppo", "learn")._model.novelty
    expected = alone.scaled(error(alone, batch_of()["observation"])).mean().item()
    assert sum(told.values()) / 2 == pytest.approx(expected, rel=1e-4)


@TYPES
def test_a_replay_batch_is_learnt_from_with_the_bonus_of_now(bonus_type: str) -> None:
    built, plain = (policy("dqn", "learn", type=bonus_type) for _ in range(2))
    for seed in range(3):
        for each in (built, plain):
            each.learn_mode.forward(batch_of(seed))
    batch = batch_of(7)
    bonus = built._model.novelty(batch)
    plain._bonus = None
    found = built.learn_mode.forward(batch)
    moved = {**batch, "n_step_return": batch["n_step_return"] + WEIGHT * bonus}
    expected = plain.learn_mode.forward(moved)
    np.testing.assert_allclose(found["priority"], expected["priority"], rtol=1e-5)


@TYPES
def test_advantages_have_the_bonus_of_what_follows(bonus_type: str) -> None:
    """Within an item the next observation is the next row's; after it, the one given."""
    built = policy("ppo", "learn", "collect", type=bonus_type)
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
        "action": np.array([0, 2, 1, 1, 0]),
    }  # fmt: skip
    actor = actor_of(built.collect_mode)
    given = {name: column.copy() for name, column in transitions.items()}
    trained = actor.train_columns(transitions, item_len, {"observation": after})
    made = trained.columns
    seen = {**transitions, "next_observation": following}
    bonus = built._model.novelty({n: torch.from_numpy(c) for n, c in seen.items()}).numpy()
    reads = [(view.name, made[view.offset].tolist()) for view in trained.views]
    assert reads == ([] if bonus_type == "rnd" else [("next_observation", [1] * 5)])
    expected = gae(
        transitions["reward"] + WEIGHT * bonus, transitions["terminated"], transitions["value"],
        built.infer({"observation": after})[-1], item_len, GAMMA, LAMBDA,
    )  # fmt: skip
    np.testing.assert_allclose(made["advantage"], expected.advantage, rtol=1e-4, atol=1e-5)
    for name, column in given.items():
        np.testing.assert_array_equal(transitions[name], column)  # what is stored stays


@TYPES
@pytest.mark.parametrize("kind", KINDS)
def test_a_learner_goes_on_as_if_it_had_not_been_stopped(kind: str, bonus_type: str) -> None:
    seeds = (0, 0, 5)
    whole, first, second = (policy(kind, "learn", seed=seed, type=bonus_type) for seed in seeds)
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


def test_who_takes_one_is_named() -> None:
    """Also CQL's two, which the message left out; configs/README.md has the same list."""
    with pytest.raises(ConfigError) as refused:
        create_policy({"type": "impala", "exploration_bonus": {"type": "rnd"}}, ["learn"])
    named = str(refused.value).rpartition(";")[2]
    configs = (each for each in vars(algorithms).values() if isinstance(each, type))
    own = [each for each in configs if issubclass(each, TorchPolicyConfig) and "type" in vars(each)]
    takers = {each.type for each in own if each.TAKES_BONUS and not each.WHOLE_TEAMS}
    assert {"ppo", "cql", "discrete_cql"} < takers
    assert set(re.findall(r"\w+", named)) - {"and", "do"} == takers
    guide = (Path(__file__).parent.parent.parent / "configs" / "README.md").read_text()
    (said,) = re.findall(r"network\s+distillation \(Burda et al. 2018\), for (.*?)\. ", guide)
    assert set(re.findall(r"`(\w+)`", said)) == takers


def test_curiosity_is_of_one_step() -> None:
    settings = {"type": "dqn", "nstep": 3, "exploration_bonus": {"type": "icm"}}
    with pytest.raises(ConfigError, match=r"icm predicts what comes of one action.*nstep: 1"):
        create_policy(settings, ["learn"])


# ---------------------------------------------------------------------------------------- curiosity

BOX = {
    "obs_shape": 3, "action_shape": 1, "action_low": (-4.0,),
    "action_high": (2.0,), "encoder_hidden_size_list": [16],
}  # fmt: skip


def curious(kind: str, model: dict[str, Any], **settings: Any) -> Any:
    bonus = {**BONUS, "type": "icm"}
    cfg = {"type": kind, "model": model, "exploration_bonus": bonus, **settings}
    return create_policy(cfg, ["learn"], seed=np.random.SeedSequence(0))


def moved(seed: int, count: int = 64) -> dict[str, Tensor]:
    """One number moves by the action, one is noise, and one stays."""
    rng = np.random.default_rng(seed)
    before, action = rng.standard_normal((count, 3)), rng.uniform(-4, 2, (count, 1))
    after = np.stack([before[:, 0] + action[:, 0], rng.standard_normal(count), before[:, 2]], 1)
    columns = {"observation": before, "next_observation": after, "action": action}
    return {name: torch.from_numpy(column.astype("f4")) for name, column in columns.items()}


def test_the_bonus_is_the_error_of_the_predicted_features() -> None:
    """Pathak et al. 2017, eq. 6: of features, action and weights, written out."""
    novelty, columns = curious("sac", BOX)._model.novelty, moved(0)
    net = novelty.predictor

    def through(layers: Any, rows: Tensor) -> Tensor:
        return layers[2](torch.relu(layers[0](rows)))

    names = ("observation", "next_observation")
    features = [net.features(columns[name], {})[0] for name in names]
    features = [(f - f.mean(1, True)) / f.var(1, False, keepdim=True).sqrt() for f in features]
    scaled = (columns["action"] + 1) / 3  # of the bounds -4 and 2
    predicted = through(net.forward_model, torch.cat([features[0], scaled], dim=1))
    expected = (predicted - features[1]).square().mean(dim=1)
    torch.testing.assert_close(novelty(columns), expected, rtol=1e-3, atol=1e-4)


def test_features_are_learnt_by_the_inverse_model_alone() -> None:
    built = curious("sac", BOX)
    explorer, novelty = built._bonus, built._model.novelty
    net = explorer._predictor
    weights = list(net.features.parameters())
    given = torch.autograd.grad(novelty.loss(net, moved(0)).sum(), weights)
    with torch.no_grad():  # errors become others; what is learnt of features does not
        net.forward_model[2].weight.mul_(3)
    again = torch.autograd.grad(novelty.loss(net, moved(0)).sum(), weights)
    assert all(gradient.abs().max() > 0 for gradient in given)
    torch.testing.assert_close(again, given)
    begun = novelty.loss(net, moved(9)).mean().item()
    for seed in range(80):
        told = explorer.learn(moved(seed))
    assert told.keys() == {"bonus", "bonus_loss"}
    known = moved(9)
    assert novelty.loss(novelty.predictor, known).mean().item() < begun - 0.1
    before, after = exploration_bonus._features(novelty.predictor, known)
    found = novelty.predictor.inverse(torch.cat([before, after], dim=1)) * 3 - 1
    assert (found - known["action"]).square().mean() < 0.3 * known["action"].var()


@pytest.mark.parametrize("kind", ["discrete", "mixed"])
def test_actions_of_every_space_are_predicted_by(kind: str) -> None:
    leaves = ({"name": "turn", "shape": (2,), "dtype": "int64", "counts": (2, 3)},
              {"name": "push", "shape": (2,), "low": (-1.0, 0.0), "high": (1.0, 8.0)})  # fmt: skip
    model = {"obs_shape": 3, "action_shape": 7, "action_space": kind}
    model |= {"action_leaves": leaves} if kind == "mixed" else {}
    built, columns = curious("ppo", model), moved(0)
    turn = torch.from_numpy(np.random.default_rng(0).integers(0, (2, 3), (64, 2)))
    of_kind = {
        "discrete": {"action": turn.sum(dim=1)},
        "mixed": {"action/turn": turn, "action/push": columns["action"].expand(-1, 2)},
    }
    del columns["action"]
    first = built._bonus.learn({**columns, **of_kind[kind]})
    for _ in range(30):
        last = built._bonus.learn({**columns, **of_kind[kind]})
    assert last["bonus_loss"] < first["bonus_loss"] - 0.1


def test_samples_as_dicts_without_the_bonus_are_refused() -> None:
    here = np.zeros(4, np.float32)
    row = {"obs": here, "next_obs": here, "action": 0, "reward": np.float32(1), "done": False}
    (sample,) = policy("dqn", "collect").collect_mode.get_train_sample([row])
    assert sample["reward"] == 1, "the learner adds the bonus"
    acted = {**row, "value": np.float32(0), "log_prob": np.float32(-1)}
    with pytest.raises(PolicyError, match=r"policy\.exploration_bonus: .* by columns"):
        policy("ppo", "collect").collect_mode.get_train_sample([acted])
