"""Behaviour cloning: its loss for actions of all spaces, and that it finds what acts."""

from __future__ import annotations

import dataclasses
import math
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fakes.spaces import simple_spaces
from hpcdi.config.algorithms import BCConfig, BCModelConfig
from hpcdi.config.compat import parse
from hpcdi.errors import ConfigError, Problem
from hpcdi.policy.create import create_policy
from hpcdi.policy.spaces import with_spaces
from hpcdi.types import Leaf

pytestmark = pytest.mark.usefixtures("one_torch_thread")

LEAVES = (
    Leaf("gear", (), "int64", counts=(3,)),
    Leaf("push", (2,), "float32", low=(-1.0, 0.0), high=(3.0, 5.0)),
)
MIXED = {"action_shape": 5, "action_space": "mixed",
         "action_leaves": [dataclasses.asdict(leaf) for leaf in LEAVES]}  # fmt: skip


def policy(**model: Any) -> Any:
    shape = {"obs_shape": 4, "encoder_hidden_size_list": [32]}
    cfg = {"type": "bc", "learn": {"learning_rate": 0.01}, "model": {**shape, **model}}
    return create_policy(cfg, ["learn", "eval"], seed=np.random.SeedSequence(0))


def seen(count: int = 64) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).standard_normal((count, 4), np.float32))


def test_the_loss_is_the_negative_logarithm_of_the_actions_probability() -> None:
    bc, observation = policy(**MIXED), seen(8)
    gear, raw = torch.arange(8) % 3, torch.linspace(-1, 1, 16).reshape(8, 2)
    push = torch.tensor([1.0, 2.5]) + torch.tensor([2.0, 2.5]) * raw
    batch = {"observation": observation, "action/gear": gear, "action/push": push}
    output, _ = bc._model(observation, {})
    expected = torch.nn.functional.cross_entropy(output[:, :3], gear, reduction="none")
    away = (raw - output[:, 3:]).square() + math.log(2 * math.pi)
    expected = expected + 0.5 * away.sum(dim=1)
    found = bc.learn_mode.forward(batch)["total_loss"]
    assert found == pytest.approx(expected.mean().item(), rel=1e-5)


def test_drawn_actions_of_a_box_are_refused_once_the_environment_says_what_they_are() -> None:
    """The rule was asked before; the first evaluation failed."""
    cfg = parse(BCConfig, {"type": "bc", "eval": {"sample": True}}, "an experiment")
    _, problems = with_spaces(
        cfg, simple_spaces((4,), "float32", None, (2,), (-1.0,) * 2, (1.0,) * 2)
    )
    assert [problem.path for problem in problems] == ["eval.sample"]
    filled, problems = with_spaces(cfg, simple_spaces((4,), "float32", 3, ()))
    assert (problems, filled.model.action_shape) == ([], 3)


def test_rules_of_the_model_count_once_it_is_filled() -> None:
    @dataclasses.dataclass(frozen=True)
    class Model(BCModelConfig):
        def problems(self) -> Iterator[Problem]:
            if self.action_space == "discrete":
                yield Problem("action_space", "is one that this network has no outputs for")

    cfg = dataclasses.replace(BCConfig(), model=Model())
    _, problems = with_spaces(cfg, simple_spaces((4,), "float32", 3, ()))
    assert [problem.path for problem in problems] == ["model.action_space"]


def test_a_network_of_ones_own_is_asked_for_a_number_of_outputs() -> None:
    asked = []

    def make(model: Any) -> Any:
        asked.append(model.action_shape)
        return Own(model)

    class Own(torch.nn.Linear):
        def __init__(self, model: Any) -> None:
            super().__init__(model.obs_shape, model.action_shape)

        def forward(self, observation: Tensor, state: Any) -> Any:
            return super().forward(observation), state

    module = types.ModuleType("bc_own")
    vars(module)["make"] = make
    bounds = {"action_low": [-1.0] * 4, "action_high": [1.0] * 4}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "bc_own", module)
        box = {"action_shape": (2, 2), "action_space": "continuous", **bounds}
        cfg = {"type": "bc", "model": {"obs_shape": 4, "type": "bc_own:make", **box}}
        bc = create_policy(cfg, ["eval"])
    acted = bc.eval_mode.get_attribute("columnar").act({"observation": seen(3).numpy()}, {})
    assert (asked, acted["action"].shape) == ([4], (3, 2, 2))


def test_it_learns_to_act_as_data_do_among_legal_actions() -> None:
    bc, observation = policy(action_shape=3, action_space="discrete"), seen()
    legal = torch.ones(64, 3, dtype=torch.bool)
    legal[:, 2] = False
    action = (observation[:, 0] > 0).long()
    batch = {"observation": observation, "action": action, "action_mask": legal}
    losses = [bc.learn_mode.forward(batch)["total_loss"] for _ in range(80)]
    assert losses[-1] < 0.1 < losses[0]
    actor = bc.eval_mode.get_attribute("columnar")
    acted = actor.act({"observation": observation.numpy(), "action_mask": legal.numpy()}, {})
    assert (acted["action"] == action.numpy()).mean() > 0.95


def test_a_boxs_actions_are_learnt_in_their_own_units() -> None:
    bounds = {"action_low": [-2.0], "action_high": [4.0]}
    bc, observation = policy(action_shape=(1,), action_space="continuous", **bounds), seen()
    action = observation[:, 1:2].clamp(-2, 3)
    for _ in range(150):
        bc.learn_mode.forward({"observation": observation, "action": action})
    acted = bc.eval_mode.get_attribute("columnar").act({"observation": observation.numpy()}, {})
    assert np.abs(acted["action"] - action.numpy()).mean() < 0.15


def test_it_draws_as_often_as_data_have_them() -> None:
    """Half of the data act one way: so does it, where the likeliest action is always the same."""
    model = {"obs_shape": 4, "action_shape": 3, "action_space": "discrete"}
    cfg = {"type": "bc", "learn": {"learning_rate": 0.01}, "model": model, "eval": {"sample": True}}
    learner = create_policy(cfg, ["learn"], seed=np.random.SeedSequence(0))
    ones = torch.ones(256, 4)
    batch = {"observation": ones, "action": torch.arange(256) % 2}
    for _ in range(60):
        learner.learn_mode.forward(batch)
    bc = create_policy(cfg, ["eval"], seed=np.random.SeedSequence(1))
    bc.eval_mode.load_state_dict(learner.learn_mode.state_dict())
    actor = bc.eval_mode.get_attribute("columnar")
    acted = actor.act({"observation": ones.numpy()}, {})
    assert acted.keys() == {"action"}
    assert np.bincount(acted["action"], minlength=3) / 256 == pytest.approx([0.5, 0.5, 0], abs=0.1)


def test_of_a_box_it_has_no_deviation_to_draw_by() -> None:
    with pytest.raises(ConfigError, match="of a Box, bc learns the mean alone"):
        create_policy(
            {"type": "bc", "model": {"obs_shape": 4, **MIXED}, "eval": {"sample": True}},
            ["eval"], seed=np.random.SeedSequence(0),
        )  # fmt: skip
