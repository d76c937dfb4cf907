"""Policies in every space: encoders of observations, distributions of actions, whole runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, distributions

from fakes.serial_runs import serial_run, train
from fakes.spaces import simple_spaces
from hpcdi.config.algorithms import (
    ActorCriticModelConfig,
    DQNConfig,
    DQNModelConfig,
    PPOConfig,
)
from hpcdi.config.fields import section, setting, to_mapping
from hpcdi.config.policy import ModelConfig
from hpcdi.dataclass import dataclass
from hpcdi.env.contract import read_spaces
from hpcdi.env.create import create_env_manager, get_env_cls
from hpcdi.env.probe import look_at
from hpcdi.errors import PolicyError
from hpcdi.policy.create import create_policy, get_policy_cls
from hpcdi.policy.distributions import ActionDistribution
from hpcdi.policy.networks import ImpalaCNN, MultiEncoder, NatureCNN, encoder_of
from hpcdi.policy.spaces import with_spaces
from hpcdi.types import Leaf, Spaces
from hpcdi.worker import SampleSerialCollector
from hpcdi.worker.dict_form import columns_of_samples

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def model_of(*leaves: Leaf, **settings: Any) -> ModelConfig:
    hidden = {"encoder_hidden_size_list": (16, 8), **settings}
    return ModelConfig(obs_leaves=leaves, action_shape=3, **hidden)


# ----------------------------------------------------------------------------------------- encoders


@pytest.mark.parametrize(
    ("leaf", "kind"),
    [
        (Leaf("", (3, 40, 40), "uint8"), "NatureCNN"),
        (Leaf("", (40, 40, 3), "uint8"), "NatureCNN"),
        (Leaf("", (4, 40, 40, 3), "uint8"), "NatureCNN"), (Leaf("", (40, 40, 1)), "NatureCNN"),
        (Leaf("", (16, 16, 3), "uint8"), "ImpalaCNN"), (Leaf("", (7, 7, 3), "uint8"), "SmallCNN"),
        (Leaf("", (8, 8, 3), "uint8"), "SmallCNN"), (Leaf("", (1, 3, 5), "uint8"), "SmallCNN"),
        (Leaf("", (16,), "uint8"), "MLP"), (Leaf("", (9, 9), "uint8"), "MLP"),
        (Leaf("", (5,), "int64"), "MLP"), (Leaf("", (), "int64", (7,)), "MLP"),
        (Leaf("", (), "int64", (2,)), "MLP"), (Leaf("", ()), "MLP"),
        (Leaf("a", (5,)), "MultiEncoder"),
    ],
)  # fmt: skip
def test_auto_chooses_by_the_space(leaf: Leaf, kind: str) -> None:
    encoder = encoder_of(model_of(leaf))
    assert type(encoder).__name__ == kind
    given = torch.zeros(2, *leaf.shape)
    assert encoder({leaf.name: given} if leaf.name else given).shape == (2, 8)


@pytest.mark.parametrize("make", [NatureCNN, ImpalaCNN])
def test_channels_last_and_stacks_are_the_same_pictures(make: Any) -> None:
    last, first = (Leaf("", shape, "uint8") for shape in ((40, 44, 6), (6, 40, 44)))
    stack = Leaf("", (2, 40, 44, 3), "uint8")
    encoders = [make(model_of(leaf)) for leaf in (first, last, stack)]
    for encoder in encoders[1:]:
        encoder.load_state_dict(encoders[0].state_dict())
    picture = torch.randint(0, 256, (5, 6, 40, 44)).float()
    moved = picture.permute(0, 2, 3, 1)
    frames = torch.stack([moved[..., :3], moved[..., 3:]], dim=1)
    expected = encoders[0](picture)
    assert torch.equal(encoders[1](moved), expected)
    assert torch.equal(encoders[2](frames), expected)


def test_bytes_are_scaled_and_floats_are_not() -> None:
    of_bytes, of_floats = (
        NatureCNN(model_of(Leaf("", (1, 36, 36), d))) for d in ("uint8", "float32")
    )
    of_floats.load_state_dict(of_bytes.state_dict())
    picture = torch.randint(0, 256, (2, 1, 36, 36)).float()
    assert torch.equal(of_bytes(picture), of_floats(picture / 255))


@pytest.mark.parametrize("size", [0, 3])
def test_discrete_numbers_are_told_apart_whatever_their_start(size: int) -> None:
    leaf = Leaf("", (2,), "int64", counts=(3, 4), starts=(5, 0))
    first = encoder_of(model_of(leaf, embedding_size=size))[0]
    seen = first(torch.tensor([[5.0, 0.0], [7.0, 3.0]]))
    if size:
        table = first.embedding.weight
        expected = torch.cat([table[[0, 2]], table[[3, 6]]], dim=1)
    else:
        expected = torch.tensor([[1.0, 0, 0, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0, 1]])
    assert torch.equal(seen, expected)
    assert first.out_features == expected.shape[1]


PARTS = (
    Leaf("camera", (40, 40, 3), "uint8"), Leaf("arm/angle", (2,)), Leaf("gear", (), "int64", (3,)),
    Leaf("0", (2, 2), "int8", (2, 2, 2, 2)),
)  # fmt: skip


def test_several_arrays_meet_in_the_hidden_layers() -> None:
    encoder = encoder_of(model_of(*PARTS, leaf_encoders={"camera": "impala_cnn"}, layer_norm=True))
    assert isinstance(encoder, MultiEncoder)
    assert isinstance(encoder.parts[0], ImpalaCNN)
    assert encoder.layers[0].in_features == 16 + 2 + 3 + 4
    batch = {leaf.name: torch.zeros(2, *leaf.shape) for leaf in PARTS}
    before = encoder(batch)
    for leaf in PARTS:  # each of them matters
        changed = {**batch, leaf.name: batch[leaf.name] + 1}
        assert not torch.allclose(encoder(changed), before)


def test_encoders_that_do_not_fit() -> None:
    with pytest.raises(PolicyError, match=r"leaf_encoders: \['eye'\] are none of \['camera'"):
        encoder_of(model_of(*PARTS, leaf_encoders={"eye": "mlp"}))
    with pytest.raises(PolicyError, match=r"nature_cnn takes one array, .*camera: uint8"):
        encoder_of(model_of(*PARTS, encoder="nature_cnn"))


@pytest.mark.parametrize(
    ("leaves", "model", "path"),
    [
        (PARTS, {"encoder": "mlp"}, "encoder"),
        ((Leaf("", (4,)),), {"encoder": "nature_cnn"}, "encoder"),
        ((Leaf("", (10, 10, 3), "uint8"),), {"encoder": "nature_cnn"}, "encoder"),
        (PARTS, {"leaf_encoders": {"eye": "mlp"}}, "leaf_encoders.eye"),
        (PARTS, {"leaf_encoders": {"gear": "impala_cnn"}}, "leaf_encoders.gear"),
    ],
)  # fmt: skip
def test_encoders_that_do_not_fit_are_told_before_a_run_begins(
    leaves: tuple[Leaf, ...], model: dict[str, Any], path: str
) -> None:
    """Without making a network: it failed on a learner, when the run had its folder."""
    spaces = Spaces(leaves, (Leaf("", (), "int64", (3,)),))
    _, problems = with_spaces(PPOConfig(model=ActorCriticModelConfig(**model)), spaces)
    assert [problem.path for problem in problems] == [f"model.{path}"]
    with pytest.raises(PolicyError, match=r"policy\.model\.(leaf_)?encoder"):
        encoder_of(model_of(*leaves, **model))


def test_what_the_value_alone_sees_may_have_an_encoder_of_its_own() -> None:
    model = {"value_only": ["god"], "leaf_encoders": {"god": "small_cnn"}, "share_encoder": False}
    leaves = (Leaf("god", (3, 10, 10), "uint8"), Leaf("own", (4,)))
    spaces = Spaces(leaves, (Leaf("", (), "int64", (2,)),))
    cfg, problems = with_spaces(PPOConfig(model=ActorCriticModelConfig(**model)), spaces)
    assert problems == []
    network = create_policy(cfg, ["collect"])._model
    assert [type(part).__name__ for part in network.encoder.parts] == ["Vector"]
    assert [type(part).__name__ for part in network.value_encoder.parts] == ["SmallCNN", "Vector"]


# ------------------------------------------------------------------------------------ distributions


MIXED = (
    Leaf("gear", (), "int64", (3,)), Leaf("steer", (2,), low=(-1.0, -2.0), high=(1.0, 2.0)),
    Leaf("slots", (2,), "int64", (2, 5)), Leaf("keys", (3,), "int8", (2, 2, 2)),
)  # fmt: skip


def drawn(leaves: tuple[Leaf, ...], rows: int, legal: Any = None) -> tuple[Any, list[Tensor], Any]:
    made = ActionDistribution(leaves)
    rng = np.random.default_rng(0)
    policy = [rng.standard_normal((rows, made.logits + made.means), dtype=np.float32)]
    if made.means:
        policy.append(rng.standard_normal(made.means, dtype=np.float32))
    return made, list(map(torch.from_numpy, policy)), made.sample(policy, rng, legal)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_discrete_component_has_the_shape_of_its_space(shape: tuple[int, ...]) -> None:
    """MultiDiscrete([3]) and MultiBinary(1) are arrays of 1: several environments had none."""
    made, policy, acted = drawn((Leaf("", shape, "int64", (3,)),), 5)
    best = made.best([part.numpy() for part in policy])["action"]
    greedy = made.greedy(policy)
    assert acted["action"].shape == best.shape == tuple(greedy.shape) == (5, *shape)
    assert best.tolist() == greedy.tolist()
    log_prob, _ = made.log_prob_entropy(policy, tensors(acted))
    np.testing.assert_allclose(log_prob.numpy(), acted["log_prob"], rtol=1e-5)


def tensors(columns: Any) -> dict[str, Any]:
    return {name: torch.from_numpy(column) for name, column in columns.items()}


def test_a_joint_probability_is_that_of_torchs_parts() -> None:
    made, policy, columns = drawn(MIXED, 50)
    batch, outputs = tensors(columns), policy[0]
    parts = torch.split(outputs, [3, 2, 5, 2, 2, 2, 2], dim=1)
    discrete = [distributions.Categorical(logits=part) for part in parts[:-1]]
    normal = distributions.Normal(parts[-1], policy[1].exp())
    action = {leaf.name: batch[leaf.column("action")] for leaf in MIXED}
    chosen = torch.cat([action["gear"][:, None], action["slots"], action["keys"]], dim=1)
    expected = normal.log_prob(batch["raw_action"]).sum(dim=1)
    expected = expected + sum(d.log_prob(chosen[:, k]) for k, d in enumerate(discrete))
    log_prob, entropy = made.log_prob_entropy(policy, batch)
    torch.testing.assert_close(log_prob, expected)
    torch.testing.assert_close(batch["log_prob"], expected)
    known = normal.entropy().sum(dim=1) + sum(d.entropy() for d in discrete)
    torch.testing.assert_close(entropy, known)
    assert (
        action["steer"]
        == (torch.tensor([1.0, 2]) * batch["raw_action"]).clamp(
            torch.tensor([-1.0, -2]), torch.tensor([1.0, 2])
        )
    ).all()
    best = made.greedy(policy)
    assert best["slots"][:, 1].equal(parts[2].argmax(dim=1))
    assert best["keys"].shape == (50, 3)


@pytest.mark.parametrize("leaves", [MIXED[:2], (Leaf("", (2,), "int64", (3, 4)),), MIXED])
def test_a_minibatch_may_have_no_rows(leaves: tuple[Leaf, ...]) -> None:
    """One of a learner that has less data than the others."""
    made, policy, columns = drawn(leaves, 3)
    none = {name: torch.from_numpy(column[:0]) for name, column in columns.items()}
    log_prob, entropy = made.log_prob_entropy([policy[0][:0], *policy[1:]], none)
    assert log_prob.shape == entropy.shape == (0,)


@pytest.mark.parametrize("leaves", [MIXED[:1], (Leaf("", (2,), "int64", (3, 4)),), MIXED])
def test_what_is_not_legal_has_no_probability(leaves: tuple[Leaf, ...]) -> None:
    count = ActionDistribution(leaves).logits
    rng = np.random.default_rng(1)
    legal = rng.random((2000, count)) < 0.5
    start = 0
    for each in ActionDistribution(leaves).counts:
        legal[np.arange(2000), start + rng.integers(0, each, 2000)] = True
        start += each
    made, policy, columns = drawn(leaves, 2000, legal)
    batch, mask = tensors(columns), torch.from_numpy(legal)
    log_prob, entropy = made.log_prob_entropy(policy, batch, mask)
    torch.testing.assert_close(log_prob, batch["log_prob"])
    assert (log_prob > -50).all(), "an illegal action was drawn"
    assert torch.isfinite(entropy).all()
    policy[0].requires_grad_(True)
    total = made.log_prob_entropy(policy, batch, mask)
    (total[0].sum() + total[1].sum()).backward()
    assert (policy[0].grad[:, :count][~mask] == 0).all()
    best = made.greedy(policy, mask)
    parts = best.items() if isinstance(best, dict) else [("", best)]
    chosen = {f"action/{name}".rstrip("/"): part for name, part in parts}
    at_best = made.log_prob_entropy(policy, {**batch, **chosen}, mask)[0]
    assert (at_best > -50).all()


def test_one_discrete_action_is_drawn_as_likely_as_it_is() -> None:
    leaves = (Leaf("", (2,), "int64", (2, 3)),)
    made = ActionDistribution(leaves)
    logits = np.log(np.array([[0.25, 0.75, 0.2, 0.3, 0.5]], np.float32)).repeat(20_000, axis=0)
    action = made.sample([logits], np.random.default_rng(0))["action"]
    assert action.shape == (20_000, 2)
    assert action[:, 0].mean() == pytest.approx(0.75, abs=0.02)
    shares = np.bincount(action[:, 1]) / len(action)
    np.testing.assert_allclose(shares, [0.2, 0.3, 0.5], atol=0.02)


def test_a_box_of_integers_gets_integers() -> None:
    leaf = Leaf("", (2,), "int64", low=(0.0, 0.0), high=(9.0, 9.0))
    made = ActionDistribution((leaf,), scales=False)
    mean, log_std = np.array([[3.7, 20.0]], np.float32), np.full(2, -math.inf, np.float32)
    columns = made.sample([mean, log_std], np.random.default_rng(0))
    assert columns["action"].tolist() == [[4.0, 9.0]]


def settings_of(kind: str, leaf: Leaf) -> Any:
    """Settings of an algorithm for actions of one Box."""
    cfg = get_policy_cls({"type": kind}).parse_config({"type": kind})
    filled, problems = with_spaces(cfg, Spaces((Leaf("", (1,)),), (leaf,)))
    assert problems == []
    return filled


@pytest.mark.parametrize("kind", ["ppo", "sac", "bc", "torch"])
@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("int32", -(2**31), 2**31 - 1), ("int32", 0, 2**31 - 1), ("uint32", 0, 2**32 - 1),
        ("int64", -(2**63), 2**63 - 1), ("uint64", 0, 2**64 - 1), ("int64", -(2**60) + 1, 5),
        ("int32", -100_000_007, 100_000_007), ("int8", -128, 127), ("bool", 0, 1),
        ("float16", -65504, 65504),
    ],
)  # fmt: skip
def test_an_action_at_a_bound_stays_within_it(kind: str, dtype: str, low: int, high: int) -> None:
    leaf = Leaf("", (1,), dtype, low=(float(low),), high=(float(high),))
    extreme = np.array([[-50.0], [50.0]], np.float32)
    if kind == "torch":
        action = ActionDistribution((leaf,)).greedy([torch.from_numpy(extreme)]).numpy()
    elif kind == "sac":
        actor = create_policy(settings_of(kind, leaf), ["collect"])
        action = actor.within_bounds(np.tanh(extreme))["action"]
    else:
        action = ActionDistribution((leaf,)).best([extreme])["action"]
    with np.errstate(all="raise"):
        least, most = (int(float(number)) for number in action.astype(dtype).ravel())
    assert low <= least < most <= high
    assert high - most <= (high - low) * 1e-6
    assert least - low <= (high - low) * 1e-6


@pytest.mark.parametrize("kind", ["ppo", "impala", "sac", "tqc", "td3", "iql", "bc"])
@pytest.mark.parametrize("is_dense", [True, False])
def test_what_is_stored_of_an_action_is_what_its_dtype_holds(kind: str, is_dense: bool) -> None:
    leaf = Leaf("", (2,), "float16", low=(-0.1,) * 2, high=(0.1,) * 2)
    cfg = settings_of(kind, leaf)
    learner = create_policy(cfg, ["collect", "eval"])
    actor = create_policy(cfg, ["collect", "eval"], gets_weights=True) if is_dense else learner
    if is_dense:
        parameters = {name: each.numpy() for name, each in learner._model.state_dict().items()}
        actor.collect_mode.load_state_dict({"model": parameters})
    for mode in (actor.collect_mode, actor.eval_mode):
        seen = {"observation": np.random.default_rng(0).random((50, 1), np.float32)}
        action = mode.get_attribute("columnar").act(seen, {})["action"]
        assert action.dtype == np.float32
        assert action.tolist() == action.astype(np.float16).tolist()


@pytest.mark.parametrize("bound", [0.001, 1.0, 20.0, 2000.0])
def test_actions_mean_the_same_in_every_unit(bound: float) -> None:
    """-1..1 of the distribution is between the bounds; a side without one stays in its unit."""
    low, high = (-bound, 0.0, -math.inf), (bound, 2 * bound, 3.4e38)
    leaf = Leaf("", (3,), "float32", low=low, high=high)
    mean, log_std = np.array([[0.5, -0.5, 7.0]], np.float32), np.full(3, -math.inf, np.float32)
    acted = ActionDistribution((leaf,)).sample([mean, log_std], np.random.default_rng(0))
    wanted = [[0.5 * bound, 0.5 * bound, 7.0]]
    np.testing.assert_allclose(acted["action"], wanted, rtol=1e-6)
    assert acted["raw_action"].tolist() == mean.tolist()
    greedy = ActionDistribution((leaf,)).greedy([torch.from_numpy(mean), torch.zeros(3)])
    np.testing.assert_allclose(greedy, wanted, rtol=1e-6)


@pytest.mark.parametrize("shape", [(8, 8, 3), (16, 16, 3), (40, 40, 3), (16,), (9, 9), (7, 7, 20)])
@pytest.mark.parametrize("name", ["", "ram"])
def test_bytes_are_never_fed_raw(shape: tuple[int, ...], name: str) -> None:
    """Of 0..255 they are divided by 255, of another bound by that: as floats from 0 to 1."""
    for high, most in (((), 255), ((4.0,), 4)):
        leaf = Leaf(name, shape, "uint8", high=high)
        bytes_ = torch.randint(0, most + 1, (3, *shape)).float()
        as_bytes = encoder_of(model_of(leaf)).eval()
        kind: dict[str, Any] = {} if name and type_of(leaf) == "mlp" else {"encoder": type_of(leaf)}
        if name and kind:
            kind = {"leaf_encoders": {name: type_of(leaf)}}
        as_floats = encoder_of(model_of(Leaf(name, shape), **kind)).eval()
        as_floats.load_state_dict(as_bytes.state_dict())
        seen = [{name: each} if name else each for each in (bytes_, bytes_ / most)]
        torch.testing.assert_close(as_bytes(seen[0]), as_floats(seen[1]))


@pytest.mark.parametrize("shape", [(3, 84, 84), (84, 84, 3)])
@pytest.mark.parametrize("most", [1, 255])
def test_pictures_are_divided_by_the_bound_of_their_space(
    shape: tuple[int, ...], most: int
) -> None:
    """Those with channels first were divided by 255 whatever it is."""
    box = gymnasium.spaces.Box(0, most, shape, np.uint8)
    cfg, problems = with_spaces(DQNConfig(), read_spaces(box, gymnasium.spaces.Discrete(2)))
    assert problems == []
    assert encoder_of(cfg.model)[0]._scale == most


def type_of(leaf: Leaf) -> str:
    kinds = {"SmallCNN": "small_cnn", "ImpalaCNN": "impala_cnn", "NatureCNN": "nature_cnn"}
    alone = encoder_of(model_of(Leaf("", leaf.shape, "uint8")))
    return kinds.get(type(alone).__name__, "mlp")


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_a_part_without_numbers_is_learnt_with(shape: tuple[int, ...]) -> None:
    seen = (Leaf("a", (2,)), Leaf("none", shape))
    none = Leaf("none", shape, low=(), high=())
    spaces = Spaces(seen, (Leaf("a", (), "int64", (2,)), none))
    both = {"observation": True, "reward": True}
    settings = {"type": "ppo", "normalize": both, "learn": {"epoch_per_collect": 1}}
    cfg, problems = with_spaces(get_policy_cls(settings).parse_config(settings), spaces)
    assert problems == []
    policy = create_policy(cfg, ["learn", "collect", "eval"])
    assert len(policy._model.normalizer.observation) == 1
    columns = {
        "observation/a": np.ones((6, 2), np.float32),
        "observation/none": np.zeros((6, *shape), np.float32),
    }
    acted = policy.collect_mode.get_attribute("columnar").act(columns, {})
    best = policy.eval_mode.get_attribute("columnar").act(columns, {})
    assert acted["action/none"].shape == best["action/none"].shape == (6, *shape)
    learnt = ("advantage", "return", "discounted_return")
    numbers = {name: np.arange(6, dtype=np.float32) for name in learnt}
    logs = policy.learn_mode.forward(tensors({**columns, **acted, **numbers}))
    assert math.isfinite(logs["total_loss"])


@pytest.mark.parametrize("is_normalised", [True, False])
def test_bytes_of_a_vector_are_normalised_or_scaled(is_normalised: bool) -> None:
    settings = {"type": "ppo", "normalize": {"observation": is_normalised}}
    spaces = Spaces((Leaf("", (16,), "uint8"),), (Leaf("", (), "int64", (2,)),))
    filled, problems = with_spaces(get_policy_cls(settings).parse_config(settings), spaces)
    assert problems == []
    (leaf,) = filled.model.obs_leaves
    assert leaf.dtype == ("float32" if is_normalised else "uint8")
    assert with_spaces(filled, spaces) == (filled, []), "of a run that is resumed"


def test_whole_numbers_of_a_dict_are_normalised_before_they_are_float32() -> None:
    """Also by dicts: far from 0 float32 does not tell them apart."""
    seen = gymnasium.spaces.Dict(
        a=gymnasium.spaces.Box(0, 2**62, (1,), np.int64),
        b=gymnasium.spaces.Box(0, 255, (2,), np.uint8),
    )
    settings = {"type": "ppo", "normalize": {"observation": True}}
    spaces = read_spaces(seen, gymnasium.spaces.Discrete(2))
    cfg, _ = with_spaces(get_policy_cls(settings).parse_config(settings), spaces)
    assert [leaf.dtype for leaf in cfg.model.obs_leaves] == ["int64", "float32"], "as ever"
    policy = create_policy(cfg, ["eval"], seed=np.random.SeedSequence(0))
    normalizer = policy._normalizer.observation[0]
    normalizer.count.fill_(100.0)
    normalizer.mean.fill_(2.0**40)
    normalizer.m2.fill_(25.0)
    numbers, pictures = 2**40 + np.arange(-4, 5), np.zeros((9, 2), np.uint8)
    columns = {"observation/a": numbers[:, None], "observation/b": pictures}
    by_columns = policy.eval_mode.get_attribute("columnar").act(columns, {})["action"]
    by_dicts = policy.eval_mode.forward(
        {at: {"a": numbers[at : at + 1], "b": pictures[at]} for at in range(9)}
    )
    assert [int(by_dicts[at]["action"]) for at in range(9)] == by_columns.tolist()
    assert len({*by_columns.tolist()}) == 2, "they are told apart"


def test_a_discrete_observation_of_very_many_values_says_what_to_set() -> None:
    spaces = Spaces((Leaf("", (), "int64", (2_000_000,)),), (Leaf("", (), "int64", (2,)),))
    for size, count in ((0, 1), (8, 0)):
        settings = {"type": "dqn", "model": {"embedding_size": size}}
        _, problems = with_spaces(get_policy_cls(settings).parse_config(settings), spaces)
        assert [each.path for each in problems] == ["model.embedding_size"] * count
    many = Spaces((Leaf("", (2,)),), (Leaf("", (), "int64", (2_000_000,)),))
    settings = {"type": "dqn"}
    _, (problem,) = with_spaces(get_policy_cls(settings).parse_config(settings), many)
    assert problem.path == "model.type"
    assert "MultiDiscrete" in problem.message


def test_who_takes_masks_of_such_actions_is_named() -> None:
    class Unmasked(DQNConfig):
        TAKES_MASKS = False

    spaces = simple_spaces((3,), "float32", 2, (), is_masked=True)
    _, (problem,) = with_spaces(Unmasked(type="mine"), spaces)
    assert problem.message == (
        "mine knows no action masks; c51, discrete_cql, discrete_sac, dqn, impala, ppo, qrdqn and "
        "r2d2 do"
    )


# --------------------------------------------------------------------------------------- whole runs

KEY: dict[str, Any] = {
    "type": "gymnasium", "env_id": "fakes.key_env:KeyEnv", "action_mask": "info",
    "collector_env_num": 4,
}  # fmt: skip


def policy_for(env: dict[str, Any], **settings: Any) -> Any:
    cls = get_policy_cls(settings)
    filled, problems = with_spaces(cls.parse_config(settings), get_spaces_of(env))
    assert problems == []
    return create_policy(filled, seed=np.random.SeedSequence(0))


def get_spaces_of(env: dict[str, Any]) -> Any:
    return look_at(get_env_cls(env).parse_config(env)).spaces


@pytest.mark.parametrize("kind", ["dqn", "c51", "ppo", "impala"])
def test_what_is_collected_is_masked_and_looks_ahead_in_each_array(kind: str) -> None:
    nstep = {"nstep": 3, "discount_factor": 0.9} if kind in ("dqn", "c51") else {}
    once = {"ppo": {"batch_size": 200, "epoch_per_collect": 1}, "impala": {"batch_size": 200}}
    built = policy_for(KEY, type=kind, learn=once.get(kind, {}), **nstep)
    seed = np.random.SeedSequence(0)
    segments: list[Any] = []
    with SampleSerialCollector(
        {}, env=create_env_manager(KEY, evaluate=False, seed=seed), policy=built.collect_mode
    ) as collector:
        columns = collector.collect_columns(200, 0, {"eps": 0.5}, keep=segments.append)
        assert collector._env.failures == 0, "an action was not possible"
    stored = {name for segment in segments for name in segment.columns}
    leaves = {"hands/0", "hands/1", "map", "place"}
    assert {name for name in stored if name.startswith("obs")} == {
        f"observation/{x}" for x in leaves
    }
    rows = np.arange(len(columns["reward"]))
    assert columns["action_mask"][rows, columns["action"]].all()
    if nstep:
        ahead = columns["bootstrap_offset"][:, None] / np.float32(12)
        left, after = (columns[f"{name}observation/hands/1"] for name in ("", "next_"))
        np.testing.assert_allclose(after, left - ahead, atol=1e-6)
        assert (columns["next_observation/map"] == columns["observation/map"]).all()
        alive = columns["bootstrap_discount"] > 0
        assert columns["next_action_mask"][alive].any(axis=1).all()
    batch = {name: torch.from_numpy(np.ascontiguousarray(c)) for name, c in columns.items()}
    logs = built.learn_mode.forward({**batch, "weight": torch.ones(len(rows))})
    assert np.isfinite(logs["total_loss"])
    # learnt under the masks that it was drawn by: before the first step the policy is the same
    assert logs.get("approx_kl", 0.0) == pytest.approx(0, abs=1e-5)
    assert logs.get("rho_mean", 1.0) == pytest.approx(1, abs=1e-5)


def test_lists_of_dicts_are_the_same_samples() -> None:
    """What the seeds' collectors make by dicts is learnt from as the columns are."""
    built = policy_for(KEY, type="dqn", nstep=2)
    manager = create_env_manager(KEY, evaluate=False, seed=np.random.SeedSequence(0))
    with SampleSerialCollector({}, env=manager, policy=built.collect_mode) as collector:
        samples = collector.collect(16, policy_kwargs={"eps": 1.0})
    columns = columns_of_samples(samples, 0.9)
    assert columns["observation/hands/1"].shape == columns["next_observation/hands/1"].shape
    assert columns["next_action_mask"].shape == (16, 5)
    assert np.isfinite(built.learn_mode.forward(samples)["total_loss"])


@pytest.mark.parametrize(("kind", "takers"), [("dqn", "impala and ppo"), ("sac", "impala and ppo")])
def test_who_cannot_act_in_a_space_says_who_can(kind: str, takers: str) -> None:
    cls = get_policy_cls({"type": kind})
    spaces = Spaces((Leaf("", (3,)),), (Leaf("", (2,), "int64", (2, 3)),))
    _, problems = with_spaces(cls.parse_config({"type": kind}), spaces)
    said = "are MultiDiscrete or MultiBinary, MultiDiscrete(2, 3)"
    assert [str(p) for p in problems] == [
        f"type: {kind} takes actions that are {'Discrete' if kind == 'dqn' else 'a Box'}, and this "
        f"environment's {said}; {takers} would"
    ]


@pytest.mark.parametrize(
    "memory",
    ["none", pytest.param("lstm", marks=pytest.mark.slow)],
)
def test_ppo_solves_what_needs_a_dict_and_masks(tmp_path: Path, memory: str) -> None:
    """With a memory the map is shown but once in an episode."""
    settings = (
        f"env.kwargs.hides={str(memory != 'none').lower()}", f"policy.model.memory={memory}",
        "policy.model.memory_size=32",
        f"policy.collect.unroll_len={16 if memory != 'none' else 1}",
        "env.env_id=fakes.key_env:KeyEnv", "env.action_mask=info", "env.stop_value=0.95",
        "env.evaluator_env_num=10", "policy.model.encoder_hidden_size_list=[32,32]",
        "policy.collect.n_sample=32", "policy.learn.batch_size=128",
        "policy.learn.epoch_per_collect=4", "policy.learn.learning_rate=0.003",
        "policy.learn.entropy_weight=0.01", "policy.eval.every=10 iterations",
        "policy.other.commander.max_env_step=60000", "seed=1",
    )  # fmt: skip
    with serial_run(tmp_path, "cartpole_ppo", *settings) as run:
        assert "stop value reached" in train(run)


ECHO: dict[str, Any] = {"type": "gymnasium", "env_id": "fakes.echo_env:EchoEnv"}


def test_ppo_acts_in_every_part_of_a_space() -> None:
    """The environment refuses actions that are not of its own space."""
    built = policy_for(ECHO, type="ppo")
    manager = create_env_manager(ECHO, evaluate=False, seed=np.random.SeedSequence(0))
    with SampleSerialCollector({}, env=manager, policy=built.collect_mode) as collector:
        columns = collector.collect_columns(64)
        assert manager.failures == 0
        samples = collector.collect(16)
        assert manager.failures == 0
    parts = {name for name in columns if name.startswith("action")}
    assert parts == {"action/arm/angle", "action/gear/0", "action/gear/1", "action/slots"}
    assert columns["raw_action"].shape == (len(columns["reward"]), 2)
    batch = {name: torch.from_numpy(np.ascontiguousarray(c)) for name, c in columns.items()}
    assert np.isfinite(built.learn_mode.forward(batch)["total_loss"])
    assert np.isfinite(built.learn_mode.forward(samples)["total_loss"])
    observations = {0: samples[0]["obs"], 1: samples[1]["obs"]}
    action = built.eval_mode.forward(observations)[1]["action"]
    assert set(action) == {"arm", "gear", "slots"}


@pytest.mark.parametrize("kind", ["sac", "td3", "tqc", "cql", "iql", "bc"])
def test_a_scalar_is_learnt_as_a_vector_of_one(kind: str) -> None:
    rng = np.random.default_rng(0)
    columns = {
        name: torch.from_numpy(rng.uniform(-1, 1, 16).astype(np.float32))
        for name in ("observation", "next_observation", "action", "n_step_return")
    }
    columns |= {"weight": torch.ones(16), "bootstrap_discount": torch.full((16,), 0.9)}
    learnt = []
    for shape in ((), (1,)):
        spaces = simple_spaces(shape, "float32", None, shape, (-2.0,), (2.0,))
        settings = {"type": kind, "model": {"encoder_hidden_size_list": [16]}}
        cfg, problems = with_spaces(get_policy_cls(settings).parse_config(settings), spaces)
        assert not problems
        built = create_policy(cfg, ["learn"], seed=np.random.SeedSequence(0))
        batch = {n: c.view(16, *shape) if n.endswith(("ation", "action")) else c
                 for n, c in columns.items()}  # fmt: skip
        for _ in range(3):
            built.learn_mode.forward(batch)
        learnt.append(built.learn_mode.state_dict()["model"])
    for of_scalar, of_vector in zip(*(model.values() for model in learnt), strict=True):
        assert torch.equal(of_scalar, of_vector)


@dataclass(frozen=True)
class OfTwoConfig(DQNConfig):
    """An algorithm that chooses between two actions at least."""

    @dataclass(frozen=True)
    class Model(DQNModelConfig):
        action_shape: int | None = setting(None, "number of actions", minimum=2)

    model: DQNModelConfig = section(Model, "the network")


def test_a_policy_sees_something_that_its_value_does_not_see_alone() -> None:
    spaces = Spaces((Leaf("a", (2,)), Leaf("b/c", (2,))), (Leaf("", (), "int64", (2,)),))
    for names, said in ((["b"], []), (["b", "a"], ["leaves the policy nothing to see"])):
        settings = {"type": "ppo", "model": {"value_only": names}}
        _, problems = with_spaces(get_policy_cls(settings).parse_config(settings), spaces)
        assert [each.message.partition(":")[0] for each in problems] == said


def test_settings_are_filled_by_what_can_be_read_again() -> None:
    """A run with one legal action ended well, and its config.yaml was refused from then on."""
    spaces = Spaces((Leaf("", (2,)),), (Leaf("", (), "int64", (1,)),))
    for kind in ("dqn", "c51", "qrdqn", "discrete_sac", "r2d2", "ppo", "impala", "bc"):
        policy_cls = get_policy_cls({"type": kind})
        filled, problems = with_spaces(policy_cls.parse_config({"type": kind}), spaces)
        assert problems == []
        assert policy_cls.parse_config(to_mapping(filled)) == filled
    _, problems = with_spaces(OfTwoConfig(), spaces)
    assert [*map(str, problems)] == ["model.action_shape: must be at least 2, not 1"]
