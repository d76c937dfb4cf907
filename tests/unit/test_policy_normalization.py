"""Running normalisation: what the statistics are of, who uses which, and that they stay."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from fakes.policies import data_of
from fakes.spaces import simple_spaces
from hpcdi.errors import ConfigError, PolicyError
from hpcdi.policy.acting.base import RewardTracker
from hpcdi.policy.base import Policy, TrainColumns
from hpcdi.policy.create import create_policy, get_policy_cls
from hpcdi.policy.normalization import (
    DISCOUNTED,
    Moments,
    Normalizer,
    packed_moments,
)
from hpcdi.policy.spaces import with_spaces
from hpcdi.roles.collector.loop import PolicyAgent
from hpcdi.types import Leaf, Spaces, Step
from hpcdi.utils.registry import POLICY_REGISTRY

pytestmark = pytest.mark.usefixtures("one_torch_thread")

BOTH = {"observation": True, "reward": True}


def policy(kind: str, *modes: str, obs_shape: Any = 4, **settings: Any) -> Any:
    model = {"obs_shape": obs_shape, "action_shape": 3, "encoder_hidden_size_list": [8]}
    if kind == "ppo":
        model["action_space"] = "discrete"
        settings = {"learn": {"epoch_per_collect": 1}, **settings}
    cfg = {"type": kind, "normalize": BOTH, "model": model, **settings}
    return create_policy(cfg, modes or ("learn",), seed=np.random.SeedSequence(0))


def batch(kind: str, seed: int, scale: float = 50.0, shift: float = 3e3) -> dict[str, torch.Tensor]:
    made = data_of("dqn" if kind == "dqn" else "discrete", seed)
    made["observation"] = made["observation"] * scale + shift
    made[DISCOUNTED] = torch.arange(len(made["action"]), dtype=torch.float32) * (seed + 1)
    return made


def statistics(model: Any) -> Normalizer:
    found = model.normalizer
    assert isinstance(found, Normalizer)
    return found


@pytest.mark.parametrize("cuts", [[50], [1, 2, 50], [0, 60, 60]])
def test_moments_of_parts_are_those_of_all(cuts: list[int]) -> None:
    rows = np.random.default_rng(0).standard_normal((100, 3)) * [1e-3, 1, 1e4] + [5, 0, 1e6]
    moments = Moments((3,))
    assert moments.deviation.tolist() == [1, 1, 1]
    for part in np.split(rows, cuts):
        moments.merge(packed_moments(torch.from_numpy(part)))
    assert moments.count == 100
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.deviation, np.sqrt(rows.var(axis=0) + 1e-8), rtol=1e-9)


def test_on_policy_an_update_sees_its_data_as_their_policy_did() -> None:
    learner, seen = policy("ppo"), []
    learner.update = lambda columns: seen.append(columns["observation"]) or {"total_loss": 0.0}
    batches = [batch("ppo", seed) for seed in range(2)]
    for each in batches:
        learner.learn_mode.forward(each)
    assert torch.equal(seen[0], batches[0]["observation"].clamp(-10, 10))  # there were none
    rows = batches[0]["observation"].double()
    expected = (rows.mean(0), (rows.var(0, correction=0) + 1e-8).sqrt())
    torch.testing.assert_close(
        seen[1], ((batches[1]["observation"] - expected[0]) / expected[1]).float().clamp(-10, 10),
        rtol=1e-4, atol=1e-4,
    )  # fmt: skip
    assert statistics(learner._model).observation[0].count == 40  # each transition once
    np.testing.assert_allclose(
        statistics(learner._model).returns.deviation,
        np.sqrt(np.concatenate([np.arange(20), np.arange(20) * 2]).var() + 1e-8),
    )


def test_a_replay_learner_scales_what_is_stored_as_it_is() -> None:
    learner, seen = policy("dqn"), []
    learner.update = lambda columns: seen.append(columns) or {"total_loss": 0.0}
    given = batch("dqn", 1)
    learner.learn_mode.forward(given)
    scale, rows = np.arange(20).std() * 2, given["observation"]
    torch.testing.assert_close(seen[0]["n_step_return"], given["n_step_return"] / scale)
    for name in ("observation", "next_observation"):
        expected = (given[name] - rows.mean(0)) / rows.std(0, correction=0)
        torch.testing.assert_close(seen[0][name], expected.clamp(-10, 10), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_a_loaded_learner_goes_on_to_the_digit(kind: str) -> None:
    whole, first, second = (policy(kind) for _ in range(3))
    for one in (whole, first):
        one.learn_mode.forward(batch(kind, 0))
    second.learn_mode.load_state_dict(first.learn_mode.state_dict())
    for one in (whole, second):
        one.learn_mode.forward(batch(kind, 1))
    of_whole, of_second = (one.learn_mode.state_dict()["model"] for one in (whole, second))
    assert of_whole["normalizer.observation.0.m2"].dtype == torch.float64
    assert all(torch.equal(of_whole[name], of_second[name]) for name in of_whole)


@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_who_acts_and_what_is_exported_uses_the_version_s_statistics(kind: str) -> None:
    learner = policy(kind)
    learner.learn_mode.forward(batch(kind, 0))
    actor = policy(kind, "collect", "eval")
    actor.eval_mode.load_state_dict({"model": learner.learn_mode.state_dict()["model"]})
    raw = batch(kind, 2)["observation"]
    normal = statistics(learner._model)({"observation": raw})["observation"]
    expected = learner._model(normal, {})[0]
    expected = expected[0] if kind == "ppo" else expected
    seen = {"observation": raw.numpy()}
    acted = actor.eval_mode.get_attribute("columnar").act(seen, {})["action"]
    assert acted.tolist() == expected.argmax(dim=1).tolist()
    exported = actor.get_attribute("export_module")(raw)
    assert exported[0].tolist() == acted.tolist()
    if kind == "ppo":
        kept = actor.collect_mode.get_attribute("columnar").act(seen, {})
        np.testing.assert_allclose(kept["value"], exported[1].detach(), rtol=1e-5)


def test_arrays_of_a_dict_have_statistics_each_and_pictures_none() -> None:
    leaves = [
        {"name": "arm", "shape": [2], "dtype": "float32"},
        {"name": "camera", "shape": [40, 40, 3], "dtype": "uint8"},
        {"name": "mode", "shape": [], "dtype": "int64", "counts": [3]},
    ]
    model = {"obs_leaves": leaves, "action_shape": 2, "encoder_hidden_size_list": [8]}
    made = create_policy({"type": "dqn", "normalize": BOTH, "model": model}, ("learn",))
    normalizer = statistics(made._model)  # type: ignore[attr-defined]
    columns = {
        "observation/arm": torch.tensor([[0.0, 5.0], [2.0, 7.0]]),
        "observation/camera": torch.full((2, 40, 40, 3), 7, dtype=torch.uint8),
        "observation/mode": torch.tensor([0, 2]),
        DISCOUNTED: torch.tensor([1.0, 3.0]),
    }
    normalizer.learn(columns)
    seen = normalizer.batch(columns)
    assert seen["observation/arm"].tolist() == [[-1, -1], [1, 1]]
    assert seen["observation/camera"].dtype == torch.uint8
    assert normalizer(columns)["observation/arm"].tolist() == [[-1, -1], [1, 1]]
    assert normalizer(columns)["observation/mode"].tolist() == [0, 2]


def test_filler_behind_sequences_counts_nothing() -> None:
    """Nor do rows behind a sequence, which are there for bootstrap values."""
    built = policy(
        "r2d2", obs_shape=1, collect={"unroll_len": 2, "stride": 2}, learn={"burn_in": 0}
    )
    normalizer = statistics(built._model)
    rows = torch.tensor([[1.0, 3.0, 8e9], [5.0, 8e9, 9e9]])
    normalizer.learn(
        {
            "observation": rows.unsqueeze(2), DISCOUNTED: rows,
            "sequence_len": torch.tensor([[9, 0, 0], [2, 0, 0]]),
            "bootstrap_offset": torch.tensor([[1, 1, 1], [1, 0, 0]]),
        }
    )  # fmt: skip
    assert (normalizer.observation[0].count, normalizer.observation[0].mean.item()) == (3, 3)


def test_discounted_returns_follow_each_environment() -> None:
    class Acts:
        def act(self, _observation: Any, _setting: Any) -> Any:
            return {}

        def train_columns(self, transitions: Any, *_rest: Any) -> TrainColumns:
            return TrainColumns({"seen": transitions["reward"]})

    def step(live: Any, ended: Any, failed: Any) -> Step:
        reward, over, no = np.array([1, 2, 4], np.float32), np.array(ended, bool), np.zeros(3, bool)
        failing = None if failed is None else np.array(failed, bool)
        return Step({}, reward, over, no, over, np.array(live, bool), failing)

    learner = policy("ppo", discount_factor=0.5)
    normalizer = statistics(learner._model)
    tracker = RewardTracker(learner._cfg, normalizer, Acts())
    agent = PolicyAgent(tracker)  # type: ignore[arg-type]
    steps = [
        step([1, 1, 1], [0, 1, 0], None),
        step([1, 1, 0], [0, 0, 0], [0, 0, 1]),  # the last one failed
        step([1, 1, 1], [0, 0, 0], None),
    ]
    made = [agent.follow(one)[DISCOUNTED] for one in steps]
    assert made[0].tolist() == [1, 2, 4]
    assert made[1][:2].tolist() == [1.5, 2]
    assert made[2].tolist() == [1.75, 3, 4]
    normalizer.returns.merge(packed_moments(torch.tensor([[0.0], [8.0]])))  # type: ignore[union-attr]
    kept = tracker.train_columns({"reward": np.array([8, 400], np.float32)}, None, None)  # type: ignore[arg-type]
    assert kept.columns["seen"].tolist() == [2, 10]


def test_what_cannot_be_normalised_is_refused_at_once() -> None:
    cls: Any = get_policy_cls({"type": "dqn"})
    cfg = cls.parse_config({"type": "dqn", "normalize": {"observation": True}})
    pictures = Spaces((Leaf("", (84, 84, 4), "uint8"),), (Leaf("", (), "int64", (2,)),))
    _, problems = with_spaces(cfg, pictures)
    assert [problem.path for problem in problems] == ["normalize.observation"]
    assert "which encoders scale themselves" in problems[0].message
    numbers = simple_spaces((4,), "float32", 2, ())
    assert not with_spaces(cfg, numbers)[1]
    where_any = cls.parse_config({"type": "dqn", "normalize": {"observation": None}})
    for spaces, is_normalised in ((pictures, False), (numbers, True)):
        filled, problems = with_spaces(where_any, spaces)
        assert (filled.normalize.observation, problems) == (is_normalised, [])
    with pytest.raises(ConfigError, match="normalize: unknown key"):  # it needs a policy in torch
        Policy({"normalize": {"observation": True}}, ())


def test_samples_without_returns_and_infinite_values_are_named() -> None:
    given = batch("dqn", 0)
    endless = {**given, "observation": given["observation"].clone()}
    endless["observation"][3, 1] = torch.inf
    with pytest.raises(PolicyError, match="is infinite, and has no mean; clip it"):
        policy("dqn").learn_mode.forward(endless)
    del given[DISCOUNTED]
    with pytest.raises(PolicyError, match="samples have no 'discounted_return'"):
        policy("dqn").learn_mode.forward(given)


@pytest.mark.parametrize(("nstep", "most"), [(1, 10.0), (3, 1e4)])
def test_a_reward_after_many_zeros_is_clipped_also_off_policy(nstep: int, most: float) -> None:
    cfg = POLICY_REGISTRY.settings("dqn")()
    chosen = dataclasses.replace(cfg.normalize, reward=True)
    cfg, _ = with_spaces(
        dataclasses.replace(cfg, normalize=chosen, nstep=nstep),
        simple_spaces((4,), "float32", 2, ()),
    )
    normalizer = Normalizer(cfg)
    normalizer.learn({DISCOUNTED: torch.zeros(2000)})
    made = normalizer.batch({"n_step_return": torch.tensor([1.0, -1.0])})["n_step_return"]
    assert made.tolist() == pytest.approx([most, -most])
