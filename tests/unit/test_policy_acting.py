"""Acting without torch: the same actions, to 1e-6, as the same policy's of torch."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from hpcdi.policy.acting import network
from hpcdi.policy.acting.base import DensePolicy
from hpcdi.policy.base import actor_of
from hpcdi.policy.create import create_policy
from hpcdi.policy.torch_policy import TorchPolicy
from hpcdi.store.policies import PolicyImage
from hpcdi.types import Leaf

ROWS = 6
DISCRETE = {"obs_shape": 4, "action_shape": 3}
BOX = {"obs_shape": 4, "action_shape": 2, "action_low": [-1, 0], "action_high": [3, 5]}
SPACES: dict[str, dict[str, Any]] = {
    "dqn": DISCRETE,
    "c51": {**DISCRETE, "v_min": -5, "v_max": 20},
    "qrdqn": DISCRETE,
    "discrete_sac": DISCRETE,
    "sac": BOX,
    "tqc": BOX,
    "td3": BOX,
    "discrete_cql": DISCRETE,
    "cql": BOX,
    "iql": BOX,
    "bc": {**DISCRETE, "action_space": "discrete"},
    "ppo": {**DISCRETE, "action_space": "discrete"},
    "impala": {**BOX, "action_space": "continuous"},
}
SEVERAL = (
    Leaf("arm", (2, 3), "float32"),
    Leaf("bytes", (5,), "uint8", high=(200,)),
    Leaf("card", (), "int64", counts=(4,), starts=(2,)),
    Leaf("flags", (3,), "int8", counts=(2, 2, 2)),
)
BOTH = {"observation": True, "reward": True}


def settings(kind: str, model: dict[str, Any], **others: Any) -> dict[str, Any]:
    model = {**SPACES[kind], **model}
    for name in {"obs_leaves", "action_leaves"} & model.keys():
        model[name] = [dataclasses.asdict(leaf) for leaf in model[name]]
    return {"type": kind, "model": model, **others}


def pair(cfg: dict[str, Any]) -> tuple[Any, Any]:
    """A policy of torch, with weights that are no initial ones, and one that got its weights."""
    seed = np.random.SeedSequence(3)
    there = create_policy(cfg, ["collect", "eval"], seed=seed)
    here = create_policy(cfg, ["collect", "eval"], seed=seed, gets_weights=True)
    assert isinstance(there, TorchPolicy)
    assert isinstance(here, DensePolicy)
    generator = torch.Generator().manual_seed(0)
    for name, value in there._model.state_dict().items():
        drawn = torch.randn(value.shape, generator=generator).to(value.dtype)
        value.copy_(drawn.abs() * 9 + 1 if name.startswith("normalizer.") else value + drawn * 0.1)
    image = PolicyImage.of(there._model.state_dict(), 1)
    here.collect_mode.load_state_dict({"model": image.state_dict(as_arrays=True)})
    return there, here


def observation_of(policy: Any, rng: np.random.Generator) -> dict[str, Any]:
    leaves = policy._cfg.model.obs_leaves or (Leaf("", (4,), "float32"),)
    return {
        leaf.column("observation"): rng.integers(
            *((min(leaf.starts, default=0), min(leaf.starts, default=0) + min(leaf.counts))
              if leaf.counts else (0, 200)), (ROWS, *leaf.shape),
        ).astype(leaf.dtype)
        if np.dtype(leaf.dtype).kind in "iu"
        else rng.normal(size=(ROWS, *leaf.shape)).astype(leaf.dtype)
        for leaf in leaves
    }  # fmt: skip


def agree(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, column in expected.items():
        assert (found[name].dtype, found[name].shape) == (column.dtype, column.shape), name
        np.testing.assert_allclose(found[name], column, rtol=1e-5, atol=5e-6, err_msg=name)


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize(
    ("model", "others"),
    [
        ({}, {}),
        ({"activation": "tanh", "encoder_hidden_size_list": [7]}, {"normalize": BOTH}),
        ({"activation": "elu", "layer_norm": True}, {}),
        ({"activation": "silu", "obs_shape": None, "obs_leaves": SEVERAL}, {}),
        ({"obs_shape": None, "obs_leaves": SEVERAL}, {"normalize": {"observation": True}}),
        ({"obs_shape": (), "obs_leaves": SEVERAL[2:3]}, {}),
    ],
)
def test_actions_are_those_of_torch(
    kind: str, model: dict[str, Any], others: dict[str, Any]
) -> None:
    there, here = pair(settings(kind, model, **others))
    rng = np.random.default_rng(1)
    modes = ((p.collect_mode, p.eval_mode) for p in (there, here))
    for actors in zip(*modes, strict=True):
        expected, found = map(actor_of, actors)
        for _ in range(3):
            observation = observation_of(there, rng)
            agree(found.act(observation, {"eps": 0.3}), expected.act(observation, {"eps": 0.3}))


@pytest.mark.filterwarnings("error")
def test_far_below_zero_silu_is_zero_without_a_warning() -> None:
    found = network._silu(np.array([-200.0, 0.0, 200.0], np.float32))
    assert found.tolist() == [0, 0, 200]


@pytest.mark.parametrize("kind", SPACES)
def test_columns_to_learn_from_are_those_of_torch(kind: str) -> None:
    there, here = pair(
        settings(
            kind,
            {},
            normalize=BOTH,
            collect={"n_sample": 8, "unroll_len": 4 if kind == "impala" else 1},
        )
    )
    rng = np.random.default_rng(2)
    made = []
    for policy in (there, here):
        actor = actor_of(policy.collect_mode)
        outputs = actor.act({"observation": np.ones((ROWS, 4), np.float32)}, {})
        made.append((actor, outputs))
    reward, ended = rng.normal(size=ROWS).astype(np.float32), np.arange(ROWS) == 3
    last = {"observation": rng.normal(size=(2, 4)).astype(np.float32)}
    columns = []
    for actor, outputs in made:
        step = actor.step_columns(reward, np.ones(ROWS, bool), ended)
        transitions = {
            "reward": reward, "terminated": ended, "truncated": ~ended,
            "observation": np.ones((ROWS, 4), np.float32), **outputs, **step,
        }  # fmt: skip
        result = actor.train_columns(transitions, np.array([4, 2], np.int32), last)
        columns.append({**step, **result.columns})
        views = result.views
    agree(columns[1], columns[0])
    assert views == actor.train_columns(transitions, np.array([4, 2], np.int32), last).views


@pytest.mark.parametrize(("kind", "has_values"), [("ppo", True), ("impala", False)])
def test_values_are_collected_where_they_are_learnt_from(kind: str, has_values: bool) -> None:
    for policy in pair(settings(kind, {})):
        observation = {"observation": np.ones((ROWS, 4), np.float32)}
        assert ("value" in actor_of(policy.collect_mode).act(observation, {})) == has_values


@pytest.mark.parametrize("kind", ["dqn", "discrete_sac", "ppo"])
def test_masks_are_heeded(kind: str) -> None:
    there, here = pair(settings(kind, {}))
    legal = np.eye(3, dtype=bool)[np.arange(ROWS) % 3]
    observation = {"observation": np.ones((ROWS, 4), np.float32), "action_mask": legal}
    for policy in (there, here):
        for mode in (policy.collect_mode, policy.eval_mode):
            action = actor_of(mode).act(observation, {"eps": 0.5})["action"]
            np.testing.assert_array_equal(action, np.arange(ROWS) % 3)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("kind", ["dqn", "c51", "qrdqn"])
def test_values_of_dueling_networks(kind: str, dueling: bool) -> None:
    there, here = pair(settings(kind, {"dueling": dueling}))
    observation = {"observation": np.random.default_rng(0).normal(size=(ROWS, 4)).astype("f4")}
    expected = there.infer(observation)[0]
    np.testing.assert_allclose(here.infer(observation)[0], expected, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize(
    "leaves",
    [
        (Leaf("m", (), "int64", counts=(3,)), Leaf("x", (2,), "float32", low=(-1, 0), high=(1, 4))),
        (Leaf("", (2,), "int64", counts=(3, 2)),),
    ],
)
def test_actions_of_several_parts(leaves: tuple[Leaf, ...]) -> None:
    outputs = sum(sum(leaf.counts) or 2 for leaf in leaves)
    kind = "mixed" if len(leaves) > 1 else "multi_discrete"
    model = {"action_space": kind, "action_leaves": leaves, "action_shape": outputs}
    there, here = pair(settings("ppo", model))
    observation = {"observation": np.random.default_rng(0).normal(size=(ROWS, 4)).astype("f4")}
    for mode in ("collect_mode", "eval_mode"):
        expected, found = (
            actor_of(getattr(policy, mode)).act(observation, {}) for policy in (there, here)
        )
        agree(found, expected)


@pytest.mark.parametrize(
    "cfg",
    [
        settings("dqn", {"noisy": True}),
        settings("dqn", {"activation": "gelu"}),
        settings("dqn", {"obs_shape": (3, 40, 40)}),
        settings("ppo", {"memory": "lstm"}, collect={"unroll_len": 4}),
        settings("dqn", {"embedding_size": 2, "obs_leaves": SEVERAL[2:3], "obs_shape": ()}),
    ],
)
def test_other_networks_are_torch_s(cfg: dict[str, Any]) -> None:
    assert isinstance(create_policy(cfg, ["collect"], gets_weights=True), TorchPolicy)
