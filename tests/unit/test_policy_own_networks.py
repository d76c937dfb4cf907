"""A network of one's own, of 15 lines, learns with every algorithm; so does an encoder alone."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fakes.serial_runs import LIMIT, serial_run, train
from hpcdi.env.contract import Space, read_spaces
from hpcdi.errors import ConfigError, PolicyError
from hpcdi.policy.base import actor_of
from hpcdi.policy.create import create_policy, get_policy_cls
from hpcdi.policy.spaces import with_spaces

pytestmark = pytest.mark.usefixtures("one_torch_thread")
OWN = """
import math
from torch import nn
from hpcdi.policy.spaces import as_shape

class Own(nn.Module):
    def __init__(self, model, width=16):
        super().__init__()
        self.body = nn.Linear(math.prod(as_shape(model.obs_shape)), width)
        self.outputs = nn.Linear(width, math.prod(as_shape(model.action_shape)))
        self.value = nn.Linear(width, 1) if hasattr(model, "share_encoder") else None

    def forward(self, observation, state):
        features = self.body(observation.float().flatten(1)).tanh()
        outputs = self.outputs(features)
        return (outputs, self.value(features).squeeze(1)) if self.value else outputs, state

class Encoder(nn.Sequential):
    def __init__(self, model):
        size = math.prod(as_shape(model.obs_shape))
        super().__init__(nn.Flatten(), nn.Linear(size, 16), nn.ELU())
        self.out_features = 16
"""
REPLAY = ("policy.other.replay_buffer.min_fill=64",)
RUNS = {
    "dqn": ("cartpole_dqn", *REPLAY),
    "c51": ("cartpole_c51", *REPLAY),
    "rainbow": ("cartpole_rainbow", *REPLAY),
    "qrdqn": ("cartpole_dqn", "policy.type=qrdqn", *REPLAY),
    "ppo": ("cartpole_ppo",),
    "impala": ("cartpole_impala",),
    "discrete_sac": ("cartpole_discrete_sac", "policy.random_collect_size=64", *REPLAY),
    "sac": ("pendulum_sac", "policy.random_collect_size=64"),
    "td3": ("pendulum_td3", "policy.random_collect_size=64"),
    "r2d2": ("memory_len_r2d2", *REPLAY),
}


@pytest.fixture(autouse=True)
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_networks.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_networks", None)


@pytest.mark.parametrize("name", RUNS)
def test_a_network_of_ones_own(tmp_path: Path, name: str) -> None:
    """R2D2's must remember: there it is the encoder that is one's own."""
    config, *settings = RUNS[name]
    slot = "encoder=own_networks:Encoder" if name == "r2d2" else "type=own_networks:Own"
    few = ("env.collector_env_num=2", "env.evaluator_env_num=1", "policy.learn.batch_size=16")
    with serial_run(
        tmp_path, config, *few, *settings, f"policy.model.{slot}", f"{LIMIT}.max_train_iter=2"
    ) as run:
        train(run)
        (learner,) = run.learners
        policy = learner._training.policy  # type: ignore[attr-defined]
        kinds = {type(m).__name__ for m in policy.get_attribute("model").modules()}
        assert kinds & {"Own", "Encoder"}
        assert run.coordinator.groups.main.evaluations


TRAINED = """
import torch
from torch import nn

class Encoder(nn.Linear):
    def __init__(self, model):
        super().__init__(4, 8)
        nn.init.constant_(self.weight, 0.25), nn.init.constant_(self.bias, 0.5)

class Memory(nn.Module):
    def __init__(self, features, model):
        super().__init__()
        self.cell, self.out_features = nn.Linear(2 * features, features), features
        nn.init.constant_(self.cell.weight, 0.25), nn.init.constant_(self.cell.bias, 0.5)

    def initial_state(self, batch):
        return {"h": self.cell.weight.new_zeros(batch, self.out_features)}
"""
DISCRETE = {"action_shape": 3, "action_space": "discrete"}
BOX = {"action_shape": [1], "action_low": [-1.0], "action_high": [1.0]}


DROPPING = """
from torch import nn

class Own(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64), nn.Dropout(0.5))
        self.values = nn.Linear(64, 3)
        self.features[0].eval()  # its author's choice

    def forward(self, observation, state):
        return self.values(self.features(observation)), state
"""


@pytest.mark.parametrize("name", ["dqn", "discrete_sac"])
def test_a_policy_that_learns_too_acts_without_dropout(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that only acts; batch normalisation learnt from what was acted by, and took no row."""
    (tmp_path / "dropping.py").write_text(DROPPING)
    monkeypatch.syspath_prepend(tmp_path)
    settings = {"type": name, "model": {"obs_shape": 4, "action_shape": 3, "type": "dropping:Own"}}
    built, alone = (create_policy(settings, modes) for modes in (None, ["eval"]))
    sys.modules.pop("dropping")
    network = built._model
    before = {part: part.training for part in network.modules()}
    alone.eval_mode.load_state_dict(built.eval_mode.state_dict())
    for _ in range(3):
        seen = {"observation": np.random.default_rng(0).standard_normal((32, 4)).astype("f4")}
        acted = actor_of(built.eval_mode).act(seen, {})["action"]
        assert acted.tolist() == actor_of(alone.eval_mode).act(seen, {})["action"].tolist()
        one = {"observation": seen["observation"][:1]}
        actor_of(built.collect_mode).act(one, {"eps": 0.0})
    assert network.features[1].num_batches_tracked == 0
    assert {part: part.training for part in network.modules()} == before


@pytest.fixture
def _trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "trained.py").write_text(TRAINED)
    yield
    sys.modules.pop("trained", None)


@pytest.mark.usefixtures("_trained")
@pytest.mark.parametrize("init", ["", "orthogonal"])
@pytest.mark.parametrize(
    ("name", "actions", "slot"),
    [
        ("ppo", DISCRETE, "encoder"),
        ("ppo", DISCRETE, "memory"),
        ("impala", DISCRETE, "encoder"),
        ("bc", DISCRETE, "encoder"),
        ("dqn", {"action_shape": 3}, "encoder"),
        ("sac", BOX, "encoder"),
    ],
)
def test_parts_of_ones_own_keep_their_weights(
    name: str, actions: dict[str, Any], slot: str, init: str
) -> None:
    """Which may have been trained before; layers around them are drawn as ever."""
    part = f"trained:{slot.title()}"
    settings = {"type": name, "model": {"obs_shape": 4, "init": init, **actions, slot: part}}
    if name == "impala" or slot == "memory":
        settings["collect"] = {"unroll_len": 5}
    learner = create_policy(settings, ["learn"])
    networks = [learner._model, *([learner._critics] if name == "sac" else [])]
    for network in networks:
        parts = [m for m in network.modules() if type(m).__module__ == "trained"]
        assert parts
        for parameter in (each for one in parts for each in one.parameters()):
            assert parameter.eq(0.25 if parameter.ndim > 1 else 0.5).all()
        around = {*network.modules()} - {inner for one in parts for inner in one.modules()}
        biases = [m.bias for m in around if isinstance(m, torch.nn.Linear)]
        assert biases
        assert all(bias.eq(0).all() == (init != "" or name in ("ppo", "impala")) for bias in biases)


@pytest.mark.usefixtures("_trained")
@pytest.mark.parametrize("name", ["sac", "tqc", "td3", "cql", "iql"])
def test_critics_have_their_vectors_encoded_by_ones_own(name: str) -> None:
    """An encoder takes observations alone; it was called with actions, too, and had no place."""
    settings = {"type": name, "model": {"obs_shape": 4, **BOX, "encoder": "trained:Encoder"}}
    learner = create_policy(settings, ["learn"])
    vectors = {each: torch.randn(8, 4) for each in ("observation", "next_observation")}
    ones = {each: torch.ones(8) for each in ("n_step_return", "bootstrap_discount", "weight")}
    info = learner.learn_mode.forward({**vectors, **ones, "action": torch.zeros(8, 1)})
    assert math.isfinite(info["total_loss"])


MISFITS = """
import torch
from torch import nn

class Misfit(nn.Module):
    def __init__(self, model, kind):
        super().__init__()
        self.kind, self.first = kind, nn.Linear(4, 2)

    def forward(self, observation, state):
        logits = self.first(observation)
        made = {
            "too many": torch.cat([logits, logits[:, :1]], dim=1),
            "a pair": (logits, logits[:, 0]),
            "no value": logits,
            "value [batch, 1]": (logits, logits[:, :1]),
            "text": "values",
        }
        return made[self.kind], state

def raises(model, kind):
    return nn.Linear(9, 2)

def broken(model, kind):
    return {}["nothing"]
"""


@pytest.mark.parametrize(
    ("policy", "model", "said"),
    [
        ("dqn", "Misfit:too many", r"returns float32 \[2, 3\] .* must return \[2, 2\]"),
        ("dqn", "Misfit:a pair", r"returns \(float32 \[2, 2\], float32 \[2\]\) .* \[2, 2\]"),
        ("c51", "Misfit:no value", r"must return \[2, 102\]"),
        ("dqn", "Misfit:text", "returns a str"),
        ("ppo", "Misfit:no value", r"must return \(logits \[2, 2\], value \[2\]\)"),
        ("impala", "Misfit:value [batch, 1]", r"float32 \[2, 1\]\) .* value \[2\]\)"),
        ("r2d2", "Misfit:no value", "has no memory"),
        ("dqn", "raises:", r"fails with 2 observations float32 \[2, 4\] and a state \{\}"),
        ("dqn", "Misfit", r"misfits:Misfit raises TypeError\(.*'kind'.*policy\.model\.kwargs"),
        ("dqn", "broken:", r"raises KeyError\('nothing'\) in .*misfits\.py:\d+"),
        ("dqn", "Misft", "did you mean 'misfits:Misfit'"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_when_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, model: str, said: str
) -> None:
    (tmp_path / "misfits.py").write_text(MISFITS)
    monkeypatch.syspath_prepend(tmp_path)
    name, _, kind = model.partition(":")
    spaces = {"obs_shape": 4, "action_shape": 2} | ACTIONS.get(policy, {})
    own = {"type": f"misfits:{name}", "kwargs": {"kind": kind} if ":" in model else {}}
    with pytest.raises((PolicyError, ConfigError), match=said):
        create_policy({"type": policy, "model": {**spaces, **own}}, ["collect"])


WHOLE = """
import torch
from torch import nn

class Whole(nn.Module):
    def __init__(self, model, first, floats):
        super().__init__()
        self.first, self.floats, self.table = first, floats, nn.Embedding(16, 2)

    def forward(self, observation, state):
        parts = observation if isinstance(observation, dict) else {"": observation}
        return sum(self.of(name, part) for name, part in parts.items()), state

    def of(self, name, part):
        if name in self.floats:
            assert part.dtype == torch.float32
            return part[:, :2]
        assert part.dtype == torch.int64 and (part >= self.first).all()
        return self.table(part - self.first).reshape(len(part), -1, 2).sum(1)
"""


@pytest.mark.parametrize(
    ("space", "first", "box"),
    [
        (spaces.Discrete(5, start=3), 3, []),
        (spaces.MultiDiscrete([2, 3], start=[4, 4]), 4, []),
        (spaces.Box(0, 10, (4,), np.int64), 0, [""]),
        (spaces.Dict(a=spaces.Box(0, 9, (4,), np.int64), b=spaces.Discrete(3, start=1)), 0, ["a"]),
    ],
)
@pytest.mark.parametrize("is_normalised", [False, None])
def test_a_network_is_looked_at_with_what_a_run_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, space: Any, first: int, box: list[str],
    is_normalised: bool | None,
) -> None:  # fmt: skip
    """It got zeros where values are counted from others, and float32 in place of whole numbers."""
    (tmp_path / "whole_numbers.py").write_text(WHOLE)
    monkeypatch.syspath_prepend(tmp_path)
    floats = [] if is_normalised is False else box
    own = {"type": "whole_numbers:Whole", "kwargs": {"first": first, "floats": floats}}
    given = {"type": "dqn", "model": own, "normalize": {"observation": is_normalised}}
    known = read_spaces(space, spaces.Discrete(2))
    cfg, problems = with_spaces(get_policy_cls(given).parse_config(given), known)
    assert problems == []
    assert with_spaces(cfg, known) == (cfg, []), "of a run that is resumed"
    policy = create_policy(cfg, ["eval"])
    seen = Space.of_observations(space).zeros(3)
    for name, column in seen.items():
        column += 4 if name == "observation" and first else 1
    acted = actor_of(policy.eval_mode).act(seen, {})
    assert acted["action"].shape == (3,)


@pytest.mark.parametrize("slot", ["encoder", "memory"])
def test_a_part_that_does_not_say_its_size_is_refused(slot: str) -> None:
    """As a whole network that is named as one; it was an AttributeError."""
    spaces = {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}
    settings = {"type": "ppo", "model": {**spaces, slot: "torch.nn:Identity"}}
    if slot == "memory":
        settings["collect"] = {"unroll_len": 4}
    with pytest.raises(PolicyError, match=rf"model.{slot}: .*Identity has no attribute out_feat"):
        create_policy(settings, ["collect"])


ACTIONS = {kind: {"action_space": "discrete"} for kind in ("ppo", "impala")}
