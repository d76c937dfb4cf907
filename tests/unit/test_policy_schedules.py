"""Optimizers by name, and settings that change while a run goes on."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch

from fakes.policies import data_of, first
from hpcdi.config.policy import LearnConfig, ScheduleConfig
from hpcdi.errors import ConfigError, GroupBrokenError, PolicyError
from hpcdi.policy import graphs
from hpcdi.policy.create import create_policy
from hpcdi.policy.gradient_step import GradientStep
from hpcdi.policy.ppo import PPOPolicy
from hpcdi.worker import BaseLearner

pytestmark = pytest.mark.usefixtures("one_torch_thread")

CONTINUOUS = {"action_shape": [2], "action_low": [-1, -1], "action_high": [1, 1]}
KINDS = {
    "dqn": {"action_shape": 3},
    "c51": {"action_shape": 3},
    "sac": CONTINUOUS,
    "td3": CONTINUOUS,
}


def policy(kind: str, **learn: Any) -> Any:
    model = {"obs_shape": 4, "encoder_hidden_size_list": [8], **KINDS[kind]}
    cfg = {"type": kind, "model": model, "learn": learn}
    return create_policy(cfg, ("learn",), seed=np.random.SeedSequence(0))


def batch_of(kind: str, seed: int = 0) -> dict[str, torch.Tensor]:
    batch = data_of("dqn", seed)
    if "action_low" in KINDS[kind]:
        batch["action"] = batch["observation"][:, :2].tanh()
    return batch


def rates_of(built: Any) -> set[float]:
    return {group["lr"] for step in built._steps for group in step.optimizer.param_groups}


# --------------------------------------------------------------------------------------- schedules


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"iterations": 4}, {0: 8.0, 1: 6.5, 2: 5.0, 4: 2.0, 9: 2.0}),
        ({"iterations": 2, "type": "exp"}, {0: 8.0, 2: 2 + 6 / math.e, 200: 2.0}),
    ],
)
def test_a_value_goes_from_its_start_to_its_end(
    settings: dict[str, Any], values: dict[int, float]
) -> None:
    schedule = ScheduleConfig(end=2.0, **settings)
    assert {at: schedule.value(8.0, at, 10**9) for at in values} == pytest.approx(values)
    over_steps = ScheduleConfig(
        end=2.0, env_steps=settings["iterations"], type=settings.get("type", "linear")
    )
    assert {at: over_steps.value(8.0, 10**9, at) for at in values} == pytest.approx(values)


@pytest.mark.parametrize("kind", KINDS)
def test_every_optimizer_of_an_algorithm_follows(kind: str) -> None:
    built = policy(kind, learning_rate=0.4, schedule={"end": 0.1, "iterations": 3})
    seen = []
    for _ in range(5):
        told = built.learn_mode.forward(batch_of(kind))
        assert rates_of(built) == {told["cur_lr"]}
        seen.append(told["cur_lr"])
    assert seen == pytest.approx([0.4, 0.3, 0.2, 0.1, 0.1])


def test_steps_of_the_run_come_from_the_learner() -> None:
    built = policy("dqn", learning_rate=0.4, schedule={"end": 0.0, "env_steps": 1000})
    learner = BaseLearner({"hook": {"save_ckpt_after_iter": 0}}, policy=built.learn_mode)
    rates = []
    for env_steps in (0, 250, 250, 2000):
        learner.train(batch_of("dqn"), env_steps)
        rates += rates_of(built)
    assert rates == pytest.approx([0.4, 0.3, 0.3, 0.0])


def test_ppos_clip_and_entropy_are_those_of_the_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = [
        {"key": "clip_ratio", "end": 0.1, "iterations": 2},
        {"key": "entropy_weight", "end": 0.0, "iterations": 4},
    ]
    cfg = {
        "type": "ppo", "model": {"obs_shape": 4, "action_shape": 3, "action_space": "discrete"},
        "learn": {
            "schedule": schedule, "clip_ratio": 0.3, "entropy_weight": 0.4, "epoch_per_collect": 1,
        },
    }  # fmt: skip
    built = create_policy(cfg, ("learn",), seed=np.random.SeedSequence(0))
    seen = []
    from hpcdi.policy import ppo

    losses = ppo.ppo_losses

    def watched(distribution: Any, output: Any, batch: Any, learn: Any, joint: Any) -> Any:
        seen.append((learn.clip_ratio, learn.entropy_weight))
        return losses(distribution, output, batch, learn, joint)

    monkeypatch.setattr(ppo, "ppo_losses", watched)
    for _ in range(4):
        first(built.learn_mode.forward(data_of("discrete")))
    np.testing.assert_allclose(seen, [(0.3, 0.4), (0.2, 0.3), (0.1, 0.2), (0.1, 0.1)])


def test_a_setting_that_a_graph_has_kept_ends_it_when_it_is_changed() -> None:
    """On a GPU a callback could change PPO's learning rate alone."""
    model = {"obs_shape": 4, "action_shape": 3, "action_space": "discrete"}
    built = create_policy({"type": "ppo", "model": model}, ["learn"])
    replayed = object.__new__(graphs.Replayed)  # which needs a GPU to be made
    recorded: Any = object()
    replayed.graphs, replayed._calls, replayed._is_recordable = {(1.0,): recorded}, {}, True
    replayed._compute = lambda columns, *_: (columns["x"],)
    built._replayed = [replayed]
    built.set_setting("policy.learn.learning_rate", 0.5)
    assert replayed.graphs
    built.set_setting("policy.learn.clip_ratio", 0.5)
    one = {"x": torch.ones(1)}
    assert [replayed(one, 1.0)[0] is one["x"] for _ in range(9)] == [True] * 9
    assert not replayed.graphs
    built._follow_schedules()
    assert (built._learn.learning_rate, built._learn.clip_ratio) == (0.5, 0.5)
    with pytest.raises(PolicyError, match=r"cannot be changed in a run; these can: .*clip_ratio"):
        built.set_setting("policy.learn.batch_size", 3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_goes_on_where_it_was(kind: str) -> None:
    learn = {"learning_rate": 0.02, "schedule": {"end": 0.0, "iterations": 7}}
    whole, before, after = (policy(kind, **learn) for _ in range(3))
    rates = [whole.learn_mode.forward(batch_of(kind, k))["cur_lr"] for k in range(6)]
    again = [before.learn_mode.forward(batch_of(kind, k))["cur_lr"] for k in range(3)]
    after.learn_mode.load_state_dict(copy.deepcopy(before.learn_mode.state_dict()))
    again += [after.learn_mode.forward(batch_of(kind, k))["cur_lr"] for k in range(3, 6)]
    assert again == rates
    assert len(set(rates)) == 6
    for one, other in zip(whole._model.parameters(), after._model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_batch_that_is_repeated_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a learner's death: in schedules, and in statistics of observations."""
    model = {"obs_shape": 4, "encoder_hidden_size_list": [8], **KINDS["dqn"]}
    learn = {"learning_rate": 0.1, "schedule": {"end": 0.0, "iterations": 10}}
    cfg = {"type": "dqn", "model": model, "learn": learn, "normalize": {"observation": True}}
    one, other = (
        create_policy(cfg, ("learn",), seed=np.random.SeedSequence(0)).learn_mode for _ in range(2)
    )
    one.forward(batch_of("dqn", 0))
    other.forward(batch_of("dqn", 0))

    def breaks(*_: Any) -> None:
        raise GroupBrokenError("a learner has died")

    with monkeypatch.context() as patch:
        patch.setattr(GradientStep, "gradients", breaks)
        with pytest.raises(GroupBrokenError):
            one.forward(batch_of("dqn", 1))
    told = [mode.forward(batch_of("dqn", 1)) for mode in (one, other)]
    assert told[0]["cur_lr"] == told[1]["cur_lr"] == pytest.approx(0.09)
    states = [mode.state_dict() for mode in (one, other)]
    assert [state["iterations"] for state in states] == [2, 2]
    for name, tensor in states[0]["model"].items():
        assert torch.equal(tensor, states[1]["model"][name]), name


# -------------------------------------------------------------------------------------- optimizers


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("optimizer", "cls", "options"),
    [
        ({}, torch.optim.Adam, {"eps": 1e-8, "fused": True}),
        ({"type": "AdamW", "weight_decay": 0.3}, torch.optim.AdamW, {"weight_decay": 0.3}),
        ({"type": "RMSprop", "alpha": 0.9}, torch.optim.RMSprop, {"alpha": 0.9}),
        ({"type": "SGD", "momentum": 0.5}, torch.optim.SGD, {"momentum": 0.5}),
        ({"type": "torch.optim:NAdam"}, torch.optim.NAdam, {}),
    ],
)
def test_optimizers_by_name_learn(
    kind: str, optimizer: dict[str, Any], cls: type, options: dict[str, Any]
) -> None:
    built = policy(kind, learning_rate=0.01, optimizer=optimizer)
    before = [p.detach().clone() for p in built._model.parameters()]
    for step in built._steps:
        assert type(step.optimizer) is cls
        assert {**step.optimizer.defaults, **options} == step.optimizer.defaults
    for seed in range(2):  # TD3's actor learns every second time
        built.learn_mode.forward(batch_of(kind, seed))
    after = list(built._model.parameters())
    assert all((a != b).any() for a, b in zip(before, after, strict=True))


def test_ppos_epsilon_is_its_own() -> None:
    model = {"obs_shape": 4, "action_shape": 3, "action_space": "discrete"}
    built = create_policy({"type": "ppo", "model": model}, ("learn",))
    assert isinstance(built, PPOPolicy)
    assert built._step.optimizer.defaults["eps"] == 1e-5


def test_what_an_optimizer_does_not_take_is_named() -> None:
    with pytest.raises(PolicyError, match=r"policy.learn.optimizer: .* cannot be made of"):
        policy("dqn", optimizer={"momentum": 0.9})
    with pytest.raises(PolicyError, match=r"cannot be made of .*does not support `differentiable`"):
        policy("dqn", optimizer={"differentiable": True})
    with pytest.raises(ConfigError, match="no module 'my_module_that_is_not'"):
        policy("dqn", optimizer={"type": "my_module_that_is_not:X"})


@pytest.mark.parametrize(
    ("learn", "said"),
    [
        ({"optimizer": {"type": "Adan"}}, "learn.optimizer.type: is 'Adan': none of Adam, AdamW"),
        ({"optimizer": {"lr": 0.1}}, "learn.optimizer.lr: is learn.learning_rate"),
        ({"schedule": {"end": 0.1}}, "iterations: either this or env_steps"),
        ({"schedule": {"iterations": 1, "env_steps": 1}}, "iterations: either this or env_steps"),
        ({"schedule": {"key": "clip_ratio", "iterations": 1}}, "'clip_ratio' has no schedules"),
        ({"schedule": [{"iterations": 1}, {"iterations": 2}]}, "'learning_rate' is there twice"),
        ({"schedule": {"end": -1.0, "iterations": 1}}, "end: must be at least 0"),
        ({"schedule": {"ends": 1.0, "iterations": 1}}, "did you mean 'end'"),
    ],
)
def test_settings_that_cannot_be(learn: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        create_policy({"type": "dqn", "learn": learn}, ("command",))


def test_without_schedules_nothing_is_copied() -> None:
    learn = LearnConfig()
    assert learn.at(5, 5) is learn
