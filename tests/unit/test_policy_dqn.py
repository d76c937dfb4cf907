"""DQN: both data forms, acting, and parameters on their way between modes."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from hpcdi.policy.base import TrainColumns
from hpcdi.policy.create import create_policy
from hpcdi.types import RowView
from hpcdi.worker.dict_envs import BaseEnvTimestep

pytestmark = pytest.mark.usefixtures("one_torch_thread")

GAMMA = 0.5


def policy(*modes: str, seed: int = 0, **settings: Any) -> Any:
    cfg = {
        "type": "dqn",
        "model": {"obs_shape": 4, "action_shape": 3, "encoder_hidden_size_list": [8]},
        "discount_factor": GAMMA,
        **settings,
    }
    return create_policy(cfg, modes, seed=np.random.SeedSequence(seed))


def equal(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


# ------------------------------------------------------------------------------------------ acting

OBSERVATION = np.random.default_rng(0).standard_normal((50, 4), dtype=np.float32)


def test_greedy_is_the_best_value_of_the_network() -> None:
    built = policy("eval")
    actions = built.act({"observation": OBSERVATION}, {})["action"]
    values = built._model(torch.from_numpy(OBSERVATION), {})[0]
    assert actions.tolist() == values.argmax(dim=1).tolist()
    assert len(set(actions.tolist())) > 1, "the seed should give different actions"
    assert not values.requires_grad


def test_exploring_takes_eps_from_the_setting() -> None:
    built = policy("collect")
    greedy = built.act({"observation": OBSERVATION}, {"eps": 0.0})["action"]
    assert (built.act({"observation": OBSERVATION}, {"eps": 0.0})["action"] == greedy).all()
    assert (built.act({"observation": OBSERVATION}, {"eps": 1.0})["action"] != greedy).mean() > 0.4


@pytest.mark.parametrize("mode", ["collect", "eval"])
def test_the_form_by_environments_equals_the_columns(mode: str) -> None:
    built = policy(mode)
    data = {7: OBSERVATION[0], 2: OBSERVATION[1]}
    kwargs = {"eps": 0.0} if mode == "collect" else {}
    outputs = getattr(built, f"{mode}_mode").forward(data, **kwargs)
    actions = built.act({"observation": OBSERVATION[:2]}, {})["action"]
    assert outputs == {7: {"action": actions[0]}, 2: {"action": actions[1]}}


def test_seeds_of_network_and_exploration() -> None:
    first, again, other = policy("collect"), policy("collect"), policy("collect", seed=1)
    assert equal(first._state_dict_collect()["model"], again._state_dict_collect()["model"])
    assert not equal(first._state_dict_collect()["model"], other._state_dict_collect()["model"])
    seen = {"observation": OBSERVATION}
    explored = [p.act(seen, {"eps": 1.0})["action"].tolist() for p in (first, again, other)]
    assert explored[0] == explored[1] != explored[2]


# -------------------------------------------------------------------------------------- parameters


def test_parameters_go_from_learner_to_collector_and_evaluator() -> None:
    learner = policy("learn", seed=3).learn_mode
    for mode in ("collect", "eval"):
        taker = policy(mode, seed=4)
        methods = getattr(taker, f"{mode}_mode")
        before = taker.act({"observation": OBSERVATION}, {})["action"]
        methods.load_state_dict({"model": learner.state_dict()["model"]})
        assert equal(methods.state_dict()["model"], learner.state_dict()["model"])
        assert (taker.act({"observation": OBSERVATION}, {})["action"] != before).any()


@pytest.mark.parametrize("target_update_freq", [100, 4])
def test_a_learner_goes_on_as_if_it_had_not_been_stopped(target_update_freq: int) -> None:
    batches = [columnar_batch(seed) for seed in range(6)]
    learn = {"target_update_freq": target_update_freq, "learning_rate": 0.1}
    whole, first = policy("learn", learn=learn), policy("learn", learn=learn)
    second = policy("learn", seed=9, learn=learn)
    losses = [whole.learn_mode.forward(batch)["total_loss"] for batch in batches]
    again = [first.learn_mode.forward(batch)["total_loss"] for batch in batches[:3]]
    second.learn_mode.load_state_dict(first.learn_mode.state_dict())
    again += [second.learn_mode.forward(batch)["total_loss"] for batch in batches[3:]]
    assert again == losses


def test_state_dicts_have_the_seeds_keys() -> None:
    built = policy("learn", "collect", "eval")
    assert built.learn_mode.state_dict().keys() == {
        "model", "target_model", "optimizer", "updates", "iterations", "rng",
    }  # fmt: skip
    assert built.collect_mode.state_dict().keys() == {"model"}
    assert built.eval_mode.state_dict().keys() == {"model"}


def test_parameters_alone_set_the_target_too() -> None:
    giver, taker = policy("learn", seed=1).learn_mode, policy("learn").learn_mode
    taker.load_state_dict({"model": giver.state_dict()["model"]})
    state = taker.state_dict()
    assert equal(state["model"], giver.state_dict()["model"])
    assert equal(state["target_model"], giver.state_dict()["model"])


def test_parameters_of_another_network_are_refused() -> None:
    other = policy(
        "learn", model={"obs_shape": 4, "action_shape": 3, "encoder_hidden_size_list": [9]}
    )
    with pytest.raises(RuntimeError, match="size mismatch"):
        policy("collect").collect_mode.load_state_dict(other.learn_mode.state_dict())


def test_all_modes_in_one_process_share_the_network() -> None:
    built = policy("learn", "collect", "eval")
    before = built.act({"observation": OBSERVATION}, {})["action"]
    for seed in range(30):
        built.learn_mode.forward(columnar_batch(seed))
    for mode in (built.collect_mode, built.eval_mode):
        assert equal(mode.state_dict()["model"], built.learn_mode.state_dict()["model"])
    assert (built.act({"observation": OBSERVATION}, {})["action"] != before).any()


# ------------------------------------------------------------------------------------------- data


def columnar_batch(seed: int, size: int = 16) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    columns = {
        "observation": rng.standard_normal((size, 4), dtype=np.float32),
        "next_observation": rng.standard_normal((size, 4), dtype=np.float32),
        "action": rng.integers(0, 3, size),
        "n_step_return": rng.standard_normal(size, dtype=np.float32),
        "bootstrap_discount": np.where(rng.random(size) < 0.3, 0.0, GAMMA).astype(np.float32),
        "weight": rng.random(size, dtype=np.float32),
    }
    return {name: torch.from_numpy(column) for name, column in columns.items()}


def as_samples(batch: dict[str, torch.Tensor], weight: str) -> list[dict[str, Any]]:
    columns = {name: tensor.numpy() for name, tensor in batch.items()}
    return [
        {
            "obs": columns["observation"][k],
            "next_obs": columns["next_observation"][k],
            "action": columns["action"][k],
            "reward": columns["n_step_return"][k],
            "done": columns["bootstrap_discount"][k] == 0.0,
            "value_gamma": np.float32(GAMMA),
            weight: columns["weight"][k],
            "data_id": f"item {k}",  # metadata of the buffer rides along
        }
        for k in range(len(columns["action"]))
    ]


@pytest.mark.parametrize("weight", ["IS", "weight"])
def test_a_list_of_dicts_learns_as_columns_do(weight: str) -> None:
    settings: dict[str, Any] = {"priority": True, "priority_IS_weight": True}
    columns, samples = policy("learn", **settings), policy("learn", **settings)
    for seed in range(3):
        batch = columnar_batch(seed)
        by_column = columns.learn_mode.forward(batch)
        by_sample = samples.learn_mode.forward(as_samples(batch, weight))
        np.testing.assert_array_equal(by_column.pop("priority"), by_sample.pop("priority"))
        assert by_column == by_sample
    assert equal(columns.learn_mode.state_dict()["model"], samples.learn_mode.state_dict()["model"])


def test_samples_without_discount_or_weight_take_the_configured_ones() -> None:
    batch = columnar_batch(0)
    batch["weight"] = torch.ones(16)
    plain = as_samples(batch, "IS")
    for sample in plain:
        del sample["IS"], sample["value_gamma"]
    assert policy("learn").learn_mode.forward(plain) == policy("learn").learn_mode.forward(batch)


@pytest.mark.parametrize("given", [True, False])
def test_priorities_are_given_where_configured(given: bool) -> None:
    info = policy("learn", priority=given).learn_mode.forward(columnar_batch(0))
    assert ("priority" in info) == given
    assert all(isinstance(value, float) for name, value in info.items() if name != "priority")


def timestep(done: bool, **info: Any) -> BaseEnvTimestep:
    return BaseEnvTimestep(np.ones(4), 1.5, done, info)


@pytest.mark.parametrize(
    ("step", "done", "truncated"),
    [
        (timestep(False, terminated=False, truncated=False), False, False),
        (timestep(True, terminated=True, truncated=False), True, False),
        (timestep(True, terminated=False, truncated=True), False, True),
        (timestep(True), True, False),  # a manager that knows one kind of end only
    ],
)
def test_only_termination_is_done(step: BaseEnvTimestep, done: bool, truncated: bool) -> None:
    mode = policy("collect").collect_mode
    made = mode.process_transition(np.zeros(4), {"action": np.int64(2)}, step)
    assert (made["done"], made["truncated"]) == (done, truncated)
    assert (made["reward"], made["action"]) == (1.5, 2)
    assert made["next_obs"] is step.obs


@pytest.mark.parametrize("done", [False, True])
def test_samples_of_a_piece_look_n_steps_ahead(done: bool) -> None:
    built = policy("collect", nstep=2)
    piece = [
        {
            "obs": np.float32(k), "next_obs": np.float32(k + 1), "action": k,
            "reward": np.float32(2**k), "done": done and k == 2, "truncated": False,
        }
        for k in range(3)
    ]  # fmt: skip
    samples = built.collect_mode.get_train_sample(piece)
    assert [sample["reward"] for sample in samples] == [1 + 0.5 * 2, 2 + 0.5 * 4, 4]
    assert [sample["next_obs"] for sample in samples] == [2, 3, 3]
    assert [bool(sample["done"]) for sample in samples] == [False, done, done]
    assert [sample["value_gamma"] for sample in samples] == [0.25, 0.25, 0.5]
    assert [sample["obs"] for sample in samples] == [0, 1, 2]


@pytest.mark.parametrize("n", [1, 2])
def test_returns_of_rewards_as_arrays_of_one(n: int) -> None:
    row = {"obs": np.float32(0), "next_obs": np.float32(1), "action": 1, "done": False}
    piece = [{**row, "reward": np.array([2.0**k], np.float32)} for k in range(3)]
    samples = policy("collect", nstep=n).collect_mode.get_train_sample(piece)
    expected = [1, 2, 4] if n == 1 else [1 + 0.5 * 2, 2 + 0.5 * 4, 4]
    assert [sample["reward"].tolist() for sample in samples] == [[each] for each in expected]
    assert {sample["reward"].dtype for sample in samples} == {np.dtype(np.float32)}


def test_columns_that_are_stored_beside_transitions() -> None:
    transitions = {
        "reward": np.array([1, 2, 4, 8], dtype=np.float32),
        "terminated": np.array([False, False, True, False]),
    }
    made = policy("collect", nstep=2).train_columns(
        transitions,
        np.array([3, 1], dtype=np.int32),
        {"observation": np.zeros((2, 4), np.float32)},
    )
    assert made.views == (RowView("next_observation", "observation", "bootstrap_offset"),)
    assert {name: column.tolist() for name, column in made.columns.items()} == {
        "n_step_return": [2.0, 4.0, 4.0, 8.0],
        "bootstrap_discount": [0.25, 0.0, 0.0, 0.5],
        "bootstrap_offset": [2, 2, 1, 1],
    }


# ------------------------------------------------------------------------------------ one update


def learner(table: list[list[float]], **settings: Any) -> Any:
    """A policy whose network is a table: one-hot states -> values."""
    weights, priority = settings.pop("use_weights", False), settings.pop("give_priority", True)
    learn = {
        "learning_rate": 0.1, "target_update_freq": 1000, "double": False, "loss": "mse", **settings
    }  # fmt: skip
    model = {
        "obs_shape": len(table), "action_shape": max(2, len(table[0])),
        "type": "fakes.networks:Linear", "kwargs": {"table": table},
    }  # fmt: skip
    return policy(
        "learn", model=model, learn=learn, priority=priority,
        priority_IS_weight=weights,
    )  # fmt: skip


def transition(
    state: int, action: int, n_step_return: float, discount: float, after: int, states: int = 2
) -> dict[str, torch.Tensor]:
    return {
        "observation": torch.eye(states)[[state]],
        "action": torch.tensor([action]),
        "n_step_return": torch.tensor([n_step_return]),
        "bootstrap_discount": torch.tensor([discount]),
        "next_observation": torch.eye(states)[[after]],
        "weight": torch.ones(1),
    }


def joined(*rows: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


def test_td_error_is_the_distance_to_return_plus_discounted_best_value() -> None:
    table = [[1.0, 2.0], [5.0, 3.0]]
    batch = joined(transition(0, 1, 0.5, 0.9, 1), transition(1, 0, -1.0, 0.0, 0))
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
            q._model.table.copy_(torch.tensor([[0.0, 0.0], [2.0, 3.0]]))
        assert q.update(batch)["priority"].tolist() == [value]


@pytest.mark.parametrize(("error", "huber"), [(0.5, 0.125), (-3.0, 2.5), (0.0, 0.0)])
def test_losses(error: float, huber: float) -> None:
    batch = transition(0, 0, error, 0.0, 0)
    table = [[0.0, 0.0], [0.0, 0.0]]
    assert learner(table, loss="huber").update(batch)["total_loss"] == pytest.approx(huber)
    assert learner(table, loss="mse").update(batch)["total_loss"] == pytest.approx(error**2)


@pytest.mark.parametrize(("use_weights", "loss"), [(True, 2.5), (False, 5.0)])
def test_importance_weights_count_only_where_configured(use_weights: bool, loss: float) -> None:
    batch = joined(transition(0, 0, 1.0, 0.0, 0), transition(1, 0, 3.0, 0.0, 0))
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
    change = (q._model.table.detach() - 1.0).tolist()
    assert change == [[0.0, pytest.approx(0.1, rel=1e-3)], [0.0, 0.0]]  # Adam: one learning rate


def test_gradients_are_clipped_by_their_norm() -> None:
    batch = transition(0, 0, 1000.0, 0.0, 0)
    for norm, expected in ((0.5, 0.5), (0.0, 2000.0)):
        q = learner([[0.0, 0.0], [0.0, 0.0]], grad_clip_norm=norm)
        q.update(batch)
        assert q._model.table.grad.norm().item() == pytest.approx(expected, rel=1e-4)


def test_the_target_is_renewed_after_so_many_updates() -> None:
    q = learner([[0.0, 0.0], [0.0, 0.0]], target_update_freq=3)
    batch = transition(0, 0, 1.0, 0.0, 0)
    is_same = []
    for _ in range(4):
        q.update(batch)
        is_same.append(torch.equal(q._model.table, q._target.table))
    assert is_same == [False, False, True, False]
    assert not q._target.table.requires_grad


def test_the_batch_is_left_as_it_was() -> None:
    batch = transition(0, 0, 1.0, 0.9, 1)
    before = {name: tensor.clone() for name, tensor in batch.items()}
    learner([[0.0, 0.0], [0.0, 0.0]]).update(batch)
    assert all(torch.equal(batch[name], before[name]) for name in before)


# ------------------------------------------------------------------------------------ many updates


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("loss", ["huber", "mse"])
def test_values_of_one_state_that_leads_to_itself(double: bool, loss: str) -> None:
    """Reward 1 for ever: the value is 1 / (1 - discount); action 1 ends it with 0.5."""
    q = learner(
        [[0.0, 0.0]], double=double, loss=loss, learning_rate=0.05, target_update_freq=10
    )  # fmt: skip
    batch = joined(transition(0, 0, 1.0, 0.5, 0, states=1), transition(0, 1, 0.5, 0.0, 0, 1))
    for _ in range(400):
        info = q.update(batch)
    np.testing.assert_allclose(q._model.table.detach().squeeze(0), [2.0, 0.5], atol=0.01)
    assert info["priority"].max() < 0.02


@pytest.mark.parametrize("is_masked", [False, True])
def test_columns_that_an_algorithm_may_ask_for_where_transitions_are_dicts(is_masked: bool) -> None:
    built, seen = policy("collect"), {}

    def train_columns(transitions: Any, *_: Any) -> TrainColumns:
        seen.update(transitions)
        assert len(transitions) == len(seen)
        assert "value" not in transitions
        return TrainColumns({})

    row = np.arange(4, dtype=np.float32)
    obs = {"observation": row, "action_mask": [1, 0]} if is_masked else row
    given = {"obs": obs, "next_obs": obs, "action": 1, "aux": {"x": 2}, "reward": 3, "done": 0}
    with patch.object(built, "train_columns", train_columns):
        samples = built.collect_mode.get_train_sample([given, given])
    assert samples == [given, given]
    mask = {"action_mask": ((2, 2), "b")} if is_masked else {}
    assert {name: (column.shape, column.dtype.kind) for name, column in seen.items()} == mask | {
        "observation": ((2, 4), "f"), "terminated": ((2,), "b"), "reward": ((2,), "f"),
        "action": ((2,), "i"), "aux/x": ((2,), "i"), "done": ((2,), "i"),
    }  # fmt: skip
