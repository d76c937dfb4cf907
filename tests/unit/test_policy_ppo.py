"""PPO: acting, both data forms, and parameters on their way between modes."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from fakes.env_managers import shape_of
from fakes.spaces import simple_spaces
from hpcdi.errors import ConfigError
from hpcdi.policy.create import create_policy
from hpcdi.policy.ppo import PPOPolicy
from hpcdi.policy.spaces import with_spaces
from hpcdi.roles.collector.recorder import Recorder
from hpcdi.store.block import transition_rows
from hpcdi.types import Array, Columns, Spaces, Step
from hpcdi.worker.dict_envs import BaseEnvTimestep

pytestmark = pytest.mark.usefixtures("one_torch_thread")

DISCRETE: dict[str, Any] = {"obs_shape": 4, "action_shape": 3, "action_space": "discrete"}
CONTINUOUS: dict[str, Any] = {
    "obs_shape": 4, "action_shape": [2], "action_space": "continuous",
    "action_low": [-0.5, -2.0], "action_high": [0.5, 2.0],
}  # fmt: skip
BOTH = pytest.mark.parametrize("model", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
OBSERVATION = np.random.default_rng(0).standard_normal((50, 4), dtype=np.float32)


def policy(*modes: str, model: Any = None, seed: int = 0, **settings: Any) -> PPOPolicy:
    cfg = {
        "type": "ppo",
        "model": {**(model or DISCRETE), "encoder_hidden_size_list": [8]},
        "discount_factor": 0.5,
        **settings,
    }
    built = create_policy(cfg, modes, seed=np.random.SeedSequence(seed))
    assert isinstance(built, PPOPolicy)
    return built


def actor(built: PPOPolicy, mode: str = "collect") -> Any:
    return getattr(built, f"{mode}_mode").get_attribute("columnar")


def trained(model: Any = None) -> PPOPolicy:
    """A policy that is not near uniform any more."""
    built = policy("learn", "collect", "eval", model=model)
    with torch.no_grad():
        built._model.policy.weight.mul_(200)
        if built._model.log_std is not None:
            built._model.log_std.copy_(torch.tensor([-0.5, 0.7]))
    return built


def distribution(built: PPOPolicy, observation: Array) -> Any:
    (heads, *_), _ = built._model(torch.from_numpy(observation), {})
    if built._model.log_std is None:
        return torch.distributions.Categorical(logits=heads.detach())
    normal = torch.distributions.Normal(heads.detach(), built._model.log_std.detach().exp())
    return torch.distributions.Independent(normal, 1)


def equal(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


# ------------------------------------------------------------------------------------------ acting


@BOTH
def test_what_is_collected_with_an_action(model: dict[str, Any]) -> None:
    built = trained(model)
    outputs = actor(built).act({"observation": OBSERVATION}, {})
    sampled = outputs.get("raw_action", outputs["action"])
    expected = distribution(built, OBSERVATION).log_prob(torch.from_numpy(sampled))
    np.testing.assert_allclose(outputs["log_prob"], expected, rtol=1e-4, atol=1e-5)
    values = built._model(torch.from_numpy(OBSERVATION), {})[0][-1].detach()
    np.testing.assert_allclose(outputs["value"], values, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        built.infer({"observation": OBSERVATION})[-1], values, rtol=1e-5, atol=1e-6
    )
    assert outputs["log_prob"].dtype == outputs["value"].dtype == np.float32
    assert all(len(column) == 50 for column in outputs.values())


@BOTH
def test_an_evaluation_computes_no_values(model: dict[str, Any]) -> None:
    built = trained(model)
    mean = built.greedy(built._model(torch.from_numpy(OBSERVATION), {})[0])[0].detach()
    with patch.object(built._model.value, "forward", side_effect=AssertionError):
        action = actor(built, "eval").act({"observation": OBSERVATION}, {})["action"]
    np.testing.assert_array_equal(action, mean)


def test_discrete_actions_are_drawn_by_their_probabilities() -> None:
    built = trained()
    outputs = actor(built).act({"observation": np.repeat(OBSERVATION[:1], 40_000, axis=0)}, {})
    assert outputs.keys() == {"action", "log_prob", "value"}
    assert outputs["action"].dtype == np.int64
    shares = np.bincount(outputs["action"], minlength=3) / 40_000
    probs = distribution(built, OBSERVATION[:1]).probs[0].numpy()
    np.testing.assert_allclose(shares, probs, atol=0.01)
    assert probs.max() - probs.min() > 0.1, "the seed should give different probabilities"


def test_actions_that_cannot_be_are_never_drawn() -> None:
    built = policy("collect")
    with torch.no_grad():
        built._model.policy.bias.copy_(torch.tensor([-200.0, 0.0, -200.0]))
    outputs = actor(built).act({"observation": np.repeat(OBSERVATION[:1], 20_000, axis=0)}, {})
    assert (outputs["action"] == 1).all()
    np.testing.assert_allclose(outputs["log_prob"], 0, atol=1e-6)


def test_continuous_actions_are_normal_and_the_environments_are_within_bounds() -> None:
    built = trained(CONTINUOUS)
    outputs = actor(built).act({"observation": np.repeat(OBSERVATION[:1], 40_000, axis=0)}, {})
    raw, action = outputs["raw_action"], outputs["action"]
    normal = distribution(built, OBSERVATION[:1]).base_dist
    mean, deviation = normal.loc[0], normal.scale[0]
    np.testing.assert_allclose(raw.mean(axis=0), mean, atol=0.05)
    np.testing.assert_allclose(raw.std(axis=0), deviation, rtol=0.03)
    assert np.array_equal(action, np.clip(raw, -1.0, 1.0) * np.float32([0.5, 2.0]))
    assert (raw != action).any()
    assert (raw.dtype, action.dtype, action.shape) == (np.float32, np.float32, (40_000, 2))


def test_continuous_actions_have_the_environments_shape() -> None:
    bounds = {"action_low": [-1.0] * 6, "action_high": [1.0] * 6}
    for shape, limits in (
        ([2, 3], bounds),
        ([], {"action_low": [0], "action_high": [1]}),
        ([2], {}),
    ):
        model = {"obs_shape": 4, "action_space": "continuous", "action_shape": shape, **limits}
        built = policy("collect", "eval", model=model)
        outputs = actor(built).act({"observation": OBSERVATION}, {})
        assert outputs["action"].shape == outputs["raw_action"].shape == (50, *shape)
        assert outputs["log_prob"].shape == (50,)
        assert actor(built, "eval").act({"observation": OBSERVATION}, {})["action"].shape == (
            50,
            *shape,
        )


def test_without_bounds_the_environment_gets_what_was_sampled() -> None:
    model = {**CONTINUOUS, "action_low": [], "action_high": []}
    outputs = actor(policy("collect", model=model)).act({"observation": OBSERVATION}, {})
    assert np.array_equal(outputs["action"], outputs["raw_action"])


@BOTH
def test_evaluating_takes_the_mode_of_the_distribution(model: dict[str, Any]) -> None:
    built = trained(model)
    outputs = actor(built, "eval").act({"observation": OBSERVATION}, {})
    modes = distribution(built, OBSERVATION).mode
    if model is CONTINUOUS:
        modes = modes.clamp(-1, 1) * torch.tensor([0.5, 2.0])
    np.testing.assert_allclose(outputs["action"], modes, rtol=1e-4, atol=1e-5)
    assert outputs.keys() == {"action"}


@BOTH
def test_the_form_by_environments_equals_the_columns(model: dict[str, Any]) -> None:
    one, other = policy("collect", "eval", model=model), policy("collect", "eval", model=model)
    for mode in ("collect", "eval"):
        data = {7: OBSERVATION[0], 2: OBSERVATION[1]}
        outputs = getattr(one, f"{mode}_mode").forward(data)
        columns = actor(other, mode).act({"observation": OBSERVATION[:2]}, {})
        assert list(outputs) == [7, 2]
        for row, env in enumerate((7, 2)):
            assert outputs[env].keys() == columns.keys()
            assert all(np.array_equal(outputs[env][k], columns[k][row]) for k in columns)


@BOTH
def test_seeds_of_network_and_actions(model: dict[str, Any]) -> None:
    first, again, other = (policy("collect", model=model, seed=seed) for seed in (1, 1, 2))
    assert equal(first._state_dict_collect()["model"], again._state_dict_collect()["model"])
    assert not equal(first._state_dict_collect()["model"], other._state_dict_collect()["model"])
    drawn = [[actor(p).act({"observation": OBSERVATION}, {})["action"].tolist() for _ in (0, 1)]
             for p in (first, again, other)]  # fmt: skip
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0][0] != drawn[0][1]


def test_random_numbers_are_the_same_whichever_modes_there_are() -> None:
    torch.manual_seed(1)
    alone = policy("collect")
    torch.manual_seed(2)
    among = policy("learn", "collect", "eval")
    actions = [
        actor(p).act({"observation": OBSERVATION}, {})["action"].tolist() for p in (alone, among)
    ]
    assert actions[0] == actions[1]


def test_a_new_policy_is_near_uniform_and_its_weights_are_orthogonal() -> None:
    built = policy("learn", model={**DISCRETE, "obs_shape": 8})
    weight = built._model.encoder[1].weight
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(8), atol=1e-5, rtol=0)
    head = built._model.policy.weight
    torch.testing.assert_close(head @ head.T, 1e-4 * torch.eye(3), atol=1e-8, rtol=0)
    assert built._model.value.weight.norm().item() == pytest.approx(1)
    biases = [p for name, p in built._model.named_parameters() if name.endswith("bias")]
    assert biases
    assert all((bias == 0).all() for bias in biases)


def test_images_may_share_their_encoder() -> None:
    image = {"obs_shape": [1, 36, 36], "action_shape": 3, "action_space": "discrete"}
    counts = []
    for shared in (True, False):
        built = policy("collect", model={**image, "share_encoder": shared})
        counts.append(len(built._state_dict_collect()["model"]))
        seen = {"observation": np.zeros((2, 1, 36, 36), np.uint8)}
        outputs = actor(built).act(seen, {})
        assert outputs["value"].tolist() == built.infer(seen)[-1].tolist()
    assert counts[0] < counts[1]


# -------------------------------------------------------------------------------------- parameters


@BOTH
def test_parameters_go_from_learner_to_collector_and_evaluator(model: dict[str, Any]) -> None:
    learner = policy("learn", seed=3, model=model).learn_mode
    for mode in ("collect", "eval"):
        methods = getattr(policy(mode, seed=4, model=model), f"{mode}_mode")
        methods.load_state_dict({"model": learner.state_dict()["model"]})
        assert methods.state_dict().keys() == {"model"}
        assert equal(methods.state_dict()["model"], learner.state_dict()["model"])


@BOTH
def test_a_learner_goes_on_as_if_it_had_not_been_stopped(model: dict[str, Any]) -> None:
    batches = [batch_of(collected(model, seed)) for seed in range(4)]
    learn = {"batch_size": 16, "epoch_per_collect": 2, "schedule": {"iterations": 8}}
    whole, first = (policy("learn", model=model, learn=learn) for _ in (0, 1))
    second = policy("learn", seed=9, model=model, learn=learn)
    logs = [whole.learn_mode.forward(batch) for batch in batches]
    again = [first.learn_mode.forward(batch) for batch in batches[:2]]
    state = first.learn_mode.state_dict()
    assert state.keys() == {"model", "optimizer", "updates", "iterations", "rng"}
    second.learn_mode.load_state_dict(state)
    again += [second.learn_mode.forward(batch) for batch in batches[2:]]
    assert again == logs
    assert equal(whole._state_dict_learn()["model"], second._state_dict_learn()["model"])


# ------------------------------------------------------------------------------------------- data

ENVS, LENGTH = 3, 8


def recorded(built: PPOPolicy, seed: int) -> tuple[list[dict[str, Array]], Any]:
    """Steps of three environments whose episodes end by chance, and the segment cut of them."""
    rng = np.random.default_rng(seed)
    recorder = Recorder(shape_of(ENVS), LENGTH, actor(built))
    observation = rng.standard_normal((ENVS, 4), dtype=np.float32)
    steps = []
    for _ in range(LENGTH):
        outputs = actor(built).act({"observation": observation}, {})
        successor, following = rng.standard_normal((2, ENVS, 4)).astype(np.float32)
        terminated, truncated = rng.random((2, ENVS)) < 0.15
        ended = terminated | truncated
        reward = rng.standard_normal(ENVS).astype(np.float32)
        following = np.where(ended[:, None], following, successor)
        live = np.ones(ENVS, bool)
        after = {"observation": successor}
        step = Step(after, reward, terminated, truncated, ended, live)
        columns = {
            "observation": observation, "reward": reward, "terminated": terminated,
            "truncated": truncated, **outputs,
        }  # fmt: skip
        recorder.record(columns, live, step)
        steps.append({
            "observation": observation, "successor": successor, "reward": reward,
            "terminated": terminated, "truncated": truncated, **outputs,
        })  # fmt: skip
        observation = following
    segment = recorder.cut({"observation": observation}, 0)
    assert segment is not None
    return steps, segment.copy()


def collected(model: Any, seed: int = 0) -> Columns:
    segment = recorded(policy("collect", model=model), seed)[1]
    rows = transition_rows(segment.items)
    return {name: column[rows] for name, column in segment.columns.items()}


def batch_of(columns: Columns) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(column) for name, column in columns.items()}


@BOTH
def test_columns_that_reach_a_learner(model: dict[str, Any]) -> None:
    columns = collected(model)
    extra = {"raw_action"} if model is CONTINUOUS else set()
    assert columns.keys() == extra | {
        "observation", "action", "reward", "terminated", "truncated", "log_prob", "value",
        "advantage", "return",
    }  # fmt: skip
    floats = ("reward", "log_prob", "value", "advantage", "return")
    assert all(columns[name].dtype == np.float32 for name in floats)
    assert np.allclose(columns["return"], columns["advantage"] + columns["value"])


def samples_of(built: PPOPolicy, steps: list[dict[str, Array]]) -> list[dict[str, Any]]:
    """The same steps through the per-transition form, environment by environment."""
    mode, samples = built.collect_mode, []
    for env in range(ENVS):
        piece = []
        for step in steps:
            kept = ("action", "raw_action", "log_prob", "value")
            outputs = {name: step[name][env] for name in kept if name in step}
            terminated, truncated = bool(step["terminated"][env]), bool(step["truncated"][env])
            info = {"terminated": terminated, "truncated": truncated}
            timestep = BaseEnvTimestep(
                step["successor"][env], step["reward"][env], terminated or truncated, info
            )
            piece.append(mode.process_transition(step["observation"][env], outputs, timestep))
            if timestep.done:
                samples += mode.get_train_sample(piece)
                piece = []
        samples += mode.get_train_sample(piece) if piece else []
    return samples


@BOTH
def test_a_list_of_dicts_is_and_learns_as_columns_do(model: dict[str, Any]) -> None:
    built = policy("collect", model=model)
    steps, segment = recorded(built, seed=5)
    rows = transition_rows(segment.items)
    columns = {name: column[rows] for name, column in segment.columns.items()}
    samples = samples_of(built, steps)
    ended = columns["terminated"] | columns["truncated"]
    assert columns["terminated"].any()
    assert columns["truncated"].any()
    assert not ended.all()
    for name, key in (("observation", "obs"), ("advantage", "adv"), ("return", "return"),
                      ("value", "value"), ("log_prob", "log_prob"), ("action", "action"),
                      ("terminated", "done"), ("truncated", "truncated")):  # fmt: skip
        stacked = np.stack([np.asarray(sample[key]) for sample in samples])
        np.testing.assert_allclose(stacked, columns[name], rtol=1e-5, atol=1e-6, err_msg=name)
    marked = [{**sample, "data_id": f"item {k}"} for k, sample in enumerate(samples)]
    by_column = policy("learn", model=model).learn_mode.forward(batch_of(columns))
    by_sample = policy("learn", model=model).learn_mode.forward(marked)
    assert by_column == pytest.approx(by_sample, rel=1e-3, abs=1e-4)


def test_rewards_as_arrays_of_one_are_numbers() -> None:
    built = policy("collect")
    steps = recorded(built, 0)[0]
    numbers = samples_of(built, steps)
    arrays = samples_of(built, [{**s, "reward": s["reward"][:, None]} for s in steps])
    assert [s["adv"] for s in arrays] == [s["adv"] for s in numbers]
    assert {np.shape(s["adv"]) for s in arrays} == {np.shape(s["return"]) for s in arrays} == {()}
    assert {s["reward"].shape for s in arrays} == {(1,)}


def test_samples_have_the_keys_that_users_know() -> None:
    built = policy("collect", model=CONTINUOUS)
    sample = samples_of(built, recorded(built, 0)[0])[0]
    assert sample.keys() == {
        "obs", "next_obs", "action", "raw_action", "log_prob", "value", "reward", "done",
        "truncated", "adv", "return",
    }  # fmt: skip


def test_truncation_is_bootstrapped_and_termination_is_not() -> None:
    built = policy("collect")
    last = {"observation": OBSERVATION[:1]}
    value = built.infer(last)[-1][0]
    for terminated, expected in ((True, 1.0), (False, 1.0 + 0.5 * value)):
        transitions = {
            "reward": np.ones(1, np.float32), "terminated": np.array([terminated]),
            "truncated": np.array([not terminated]), "value": np.zeros(1, np.float32),
        }  # fmt: skip
        made = actor(built).train_columns(transitions, np.array([1], np.int32), last)
        assert made.views == ()
        assert made.columns["return"].tolist() == [pytest.approx(expected, rel=1e-6)]
    assert abs(value) > 1e-3


def test_learning_is_logged_by_minibatch() -> None:
    built = policy("learn", learn={"batch_size": 10, "epoch_per_collect": 2})
    (again,) = [policy("learn", learn={"batch_size": 10, "epoch_per_collect": 2})]
    logs = built.update(batch_of(collected(DISCRETE)))
    assert len(logs) == 2 * math.ceil(ENVS * LENGTH / 10)
    log = again.learn_mode.forward(batch_of(collected(DISCRETE)))  # one iteration, whose log is
    assert log == {name: pytest.approx(np.mean([one[name] for one in logs])) for name in log}
    assert set(built.learn_mode.monitor_vars()) <= log.keys()


# ---------------------------------------------------------------------------- settings, attributes


def test_attributes_that_workers_ask_for() -> None:
    built = policy("learn", "collect", "eval", learn={"batch_size": 7}, collect={"n_sample": 5})
    expected = {
        "batch_size": 7, "n_sample": 5, "unroll_len": 1, "on_policy": True, "device": "cpu",
        "n_episode": None,
    }  # fmt: skip
    for mode in (built.learn_mode, built.collect_mode, built.eval_mode):
        assert {name: mode.get_attribute(name) for name in expected} == expected
    assert built.learn_mode.get_attribute("columnar") is True


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"on_policy": False}, "on_policy: PPO learns from its present policy's data"),
        ({"priority": True}, "priority: is for replay buffers"),
        ({"nstep": 3}, "nstep: is not PPO's; collect.gae_lambda"),
        ({"learn": {"clip_ratio": 0}}, "learn.clip_ratio: must be above 0"),
        ({"learn": {"clip_ration": 0.2}}, "unknown key; did you mean 'clip_ratio'"),
        ({"collect": {"gae_lambda": 1.5}}, "collect.gae_lambda: must be at most 1"),
        ({"model": {"encoder_hidden_size_list": []}}, "model.encoder_hidden_size_list: needs at"),
        ({"model": {"activation": "sine"}}, "model.activation: must be one of 'tanh', 'relu'"),
        ({"model": {"action_low": [0.0]}}, "model.action_low: has not as many numbers"),
        ({"model": {"action_space": "discrete", "action_shape": [2]}}, "action_shape: is a number"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        create_policy({"type": "ppo", **settings}, ["command"])


def filled(model: dict[str, Any], spaces: Spaces) -> tuple[Any, list[str]]:
    cfg = PPOPolicy.parse_config({"type": "ppo", "model": model})
    made, problems = with_spaces(cfg, spaces)
    return made.model, [str(problem) for problem in problems]


def test_shapes_and_bounds_come_from_the_environment() -> None:
    model, problems = filled({}, simple_spaces((4,), "float32", 2, ()))
    assert (model.obs_shape, model.action_shape, model.action_space) == ((4,), 2, "discrete")
    assert problems == []
    spaces = simple_spaces((3,), "float32", None, (2,), (-1.0, -2.0), (1.0, 2.0))
    model, problems = filled({"obs_shape": 3, "action_shape": 2}, spaces)
    assert (model.action_shape, model.action_space) == ((2,), "continuous")
    assert (model.action_low, model.action_high) == ((-1.0, -2.0), (1.0, 2.0))
    assert problems == []


def test_settings_that_contradict_the_environment() -> None:
    given = {"obs_shape": 5, "action_shape": 3, "action_low": [-2.0], "action_high": [1.0]}
    _, problems = filled(given, simple_spaces((4,), "float32", None, (1,), (-1.0,), (1.0,)))
    assert problems == [
        "model.obs_shape: is (5,), the environment's is (4,)",
        "model.action_shape: is 3, the environment's is (1,)",
        "model.action_low: is (-2.0,), the environment's is (-1.0,)",
    ]
    _, problems = filled({"action_space": "continuous"}, simple_spaces((4,), "float32", 2, ()))
    assert problems == ["model.action_space: is continuous, the environment's are discrete"]
