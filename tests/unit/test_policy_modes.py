"""The mode contract: fields in the seeds' order, modes on demand, attributes, building by type."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from fakes.spaces import simple_spaces
from hpcdi.errors import ConfigError, PolicyError, UnknownTypeError
from hpcdi.policy.base import Policy
from hpcdi.policy.create import create_policy, get_policy_cls
from hpcdi.policy.dqn import DQNPolicy
from hpcdi.policy.ppo import PPOPolicy
from hpcdi.policy.spaces import with_spaces

pytestmark = pytest.mark.usefixtures("one_torch_thread")

MODES = ("learn", "collect", "eval", "command")
SETTINGS = {
    "type": "dqn",
    "model": {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [8]},
    "learn": {"batch_size": 7},
    "collect": {"n_sample": 5},
}


def policy(*modes: str, **settings: Any) -> Policy:
    return create_policy({**SETTINGS, **settings}, modes)


@pytest.mark.parametrize(
    ("mode", "fields"),
    [
        (
            "learn",
            "forward reset info monitor_vars get_attribute set_attribute state_dict "
            "load_state_dict",
        ),
        (
            "collect",
            "forward process_transition get_train_sample reset get_attribute set_attribute "
            "state_dict load_state_dict",
        ),
        ("eval", "forward reset get_attribute set_attribute state_dict load_state_dict"),
        ("command", "get_setting_learn get_setting_collect get_setting_eval"),
    ],
)
def test_modes_are_named_tuples_of_bound_methods_in_the_seeds_order(mode: str, fields: str) -> None:
    methods = getattr(policy(mode), f"{mode}_mode")
    assert methods._fields == tuple(fields.split())
    assert all(callable(method) for method in methods)


@pytest.mark.parametrize("enabled", MODES)
def test_a_mode_that_was_not_enabled_says_so(enabled: str) -> None:
    built = policy(enabled)
    for mode in MODES:
        if mode != enabled:
            with pytest.raises(PolicyError, match=rf"with modes \('{enabled}',\), not.*'{mode}'"):
                getattr(built, f"{mode}_mode")


def test_all_modes_are_enabled_where_none_is_named() -> None:
    built = create_policy(SETTINGS)
    assert repr(built) == "DQNPolicy(modes=['learn', 'collect', 'eval', 'command'])"
    assert built.learn_mode.info() == repr(built)


def test_modes_are_enabled_in_any_order() -> None:
    """A mode may rely on what one before it has made."""
    for wanted in (["collect", "learn"], ["eval", "collect"], ["command", "eval", "learn"]):
        built = create_policy(SETTINGS, wanted)
        assert all(getattr(built, f"{mode}_mode") for mode in wanted)


def test_an_unknown_mode() -> None:
    with pytest.raises(PolicyError, match=r"no policy mode \['lern'\]; there are \('learn'"):
        policy("lern")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 7),
        ("n_sample", 5),
        ("unroll_len", 1),
        ("on_policy", False),
        ("device", "cpu"),
        ("n_episode", None),
    ],
)
def test_attributes_that_workers_ask_for(name: str, value: Any) -> None:
    built = policy("learn", "collect", "eval")
    for mode in (built.learn_mode, built.collect_mode, built.eval_mode):
        assert mode.get_attribute(name) == value


def test_attributes_are_set_and_got() -> None:
    mode = policy("collect").collect_mode
    mode.set_attribute("temperature", 0.5)
    assert mode.get_attribute("temperature") == 0.5
    assert mode.get_attribute("cfg").collect.n_sample == 5
    with pytest.raises(NotImplementedError, match="DQNPolicy has no attribute 'humidity'"):
        mode.get_attribute("humidity")


def test_columnar_is_an_actor_for_collectors_and_true_for_learners() -> None:
    assert policy("learn").learn_mode.get_attribute("columnar") is True
    built = policy("collect")
    assert built.collect_mode.get_attribute("columnar") is built
    everything = policy("learn", "collect", "eval")
    assert everything.learn_mode.get_attribute("columnar") is True
    evaluating = everything.eval_mode.get_attribute("columnar")
    observation = np.random.default_rng(0).standard_normal((9, 4), dtype=np.float32)
    seen = {"observation": observation}
    actions = [evaluating.act(seen, {"eps": 1.0})["action"].tolist() for _ in range(9)]
    assert all(each == actions[0] for each in actions), "evaluating does not explore"


def test_resets_and_monitored_scalars() -> None:
    built = policy("learn", "collect", "eval")
    for mode in (built.learn_mode, built.collect_mode, built.eval_mode):
        assert mode.reset() is None
        assert mode.reset([0, 1]) is None
    assert built.learn_mode.monitor_vars() == ["total_loss", "q_value", "cur_lr"]


@pytest.mark.parametrize("mode", ["learn", "collect", "eval"])
def test_the_base_class_computes_nothing(mode: str) -> None:
    with pytest.raises(NotImplementedError):
        Policy(None, [mode])


def test_settings_of_a_policy_that_commands_nothing() -> None:
    mode = Policy(None, ["command"]).command_mode
    info = {"envstep": 3}
    assert [mode.get_setting_learn(info), mode.get_setting_collect(info)] == [{}, {}]
    assert mode.get_setting_eval(info) == {}


def test_command_mode_gives_the_exploration_rate_of_the_run() -> None:
    eps = {"type": "linear", "start": 1.0, "end": 0.2, "decay": 100}
    mode = policy("command", other={"eps": eps}).command_mode
    assert mode.get_setting_collect({"envstep": 0}) == {"eps": 1.0}
    assert mode.get_setting_collect({"envstep": 50}) == {"eps": pytest.approx(0.6)}
    assert mode.get_setting_collect({}) == {"eps": 1.0}
    assert mode.get_setting_eval({"envstep": 50}) == {}


def test_command_mode_needs_no_torch() -> None:
    """Nor the workers, nor where they are there; PPO's asks for nothing."""
    cfgs = [SETTINGS, {"type": "ppo_command"}]
    code = f"""
import sys
from hpcdi.policy.create import create_policy

def asked():
    modes = [create_policy(cfg, ["command"]).command_mode for cfg in {cfgs!r}]
    return [mode.get_setting_collect({{"envstep": 0}}) for mode in modes]

print(asked(), "hpcdi.worker" in sys.modules)
import hpcdi.policy.exploration, hpcdi.worker
print(asked(), "torch" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[{'eps': 0.95}, {}] False\n" * 2


# ------------------------------------------------------------------------------- by configuration


def test_types_that_name_dqn() -> None:
    frozen = DQNPolicy.parse_config(SETTINGS)
    assert get_policy_cls({"type": "dqn_command"}) is get_policy_cls(frozen) is DQNPolicy
    assert get_policy_cls({"type": "ppo_command"}) is get_policy_cls({"type": "ppo"}) is PPOPolicy
    assert create_policy(frozen, ["command"]).get_attribute("cfg") is frozen


def test_a_type_or_a_module_that_there_is_not() -> None:
    with pytest.raises(UnknownTypeError, match=r"no policy of type 'dqm'.*did you mean 'dqn'"):
        create_policy({"type": "dqm"}, ["command"])
    with pytest.raises(ConfigError, match="no module 'no_such_module'"):
        create_policy({"type": "x", "import_names": ["no_such_module"]}, ["command"])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"model": {"encoder_hidden_size_list": []}}, "model.encoder_hidden_size_list: needs at"),
        ({"on_policy": True}, "on_policy: DQN learns from a replay buffer"),
        ({"priority_IS_weight": True}, "priority_IS_weight: has a meaning only with priority"),
        ({"nstep": 0}, "nstep: must be at least 1"),
        ({"discount_factor": 1.5}, "discount_factor: must be at most 1"),
        ({"learn": {"loss": "l1"}}, "learn.loss: must be one of 'huber', 'mse'"),
        ({"learn": {"batchsize": 2}}, "learn.batchsize: unknown key; did you mean 'batch_size'"),
        ({"other": {"eps": {"decay": 0}}}, "other.eps.decay: must be at least 1"),
        (
            {"collect": {"unroll_len": 2}},
            "collect.unroll_len: is the length of sequences for a memory, and model.memory is none",
        ),
    ],
)
def test_wrong_settings(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        policy("command", **settings)


def test_default_config_is_the_seeds_mapping() -> None:
    cfg = DQNPolicy.default_config()
    assert cfg.cfg_type == "DQNPolicyDict"
    assert cfg.other.eps.type == "exp"
    assert DQNPolicy.parse_config(cfg) == DQNPolicy.Config()


def test_computing_modes_need_the_shapes() -> None:
    with pytest.raises(PolicyError, match="with_spaces"):
        create_policy({"type": "dqn"}, ["collect"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device() -> None:
    with pytest.raises(PolicyError, match=r"policy.cuda is true, but torch sees no CUDA device"):
        policy("learn", cuda=True)


# ------------------------------------------------------------------------------------- with_spaces


def spaces_of(
    model: dict[str, Any], shape: tuple[int, ...], actions: int | None, dtype: str = "float32"
) -> Any:
    cfg = DQNPolicy.parse_config({"type": "dqn", "model": model})
    filled, problems = with_spaces(cfg, simple_spaces(shape, dtype, actions, ()))
    return (filled.model.obs_shape, filled.model.action_shape), [str(p) for p in problems]


@pytest.mark.parametrize(
    "model", [{}, {"obs_shape": 4}, {"obs_shape": [4]}, {"obs_shape": 4, "action_shape": 2}]
)
def test_empty_shapes_are_taken_from_the_environment(model: dict[str, Any]) -> None:
    assert spaces_of(model, (4,), 2) == (((4,), 2), [])


def test_shapes_that_contradict_the_environment() -> None:
    _, problems = spaces_of({"obs_shape": [3], "action_shape": 5}, (4, 2), 2)
    assert problems == [
        "model.obs_shape: is (3,), the environment's is (4, 2)",
        "model.action_shape: is 5, the environment's is 2",
    ]


def test_dqn_needs_discrete_actions() -> None:
    _, problems = spaces_of({}, (4,), None)
    assert len(problems) == 1
    assert problems[0].startswith("type: dqn takes actions that are Discrete, and this")
    assert problems[0].endswith(
        "environment's are a Box, float32 []; cql, impala, iql, ppo, sac, td3 and tqc would"
    )


# --------------------------------------------------------------------------------------- evaluating


@pytest.mark.parametrize("sample", [False, True])
def test_evaluation_takes_the_likeliest_action_or_draws_one(sample: bool) -> None:
    model = {**SETTINGS["model"], "action_space": "discrete"}
    built = create_policy({"type": "ppo", "model": model, "eval": {"sample": sample}}, ["eval"])
    mode, same = built.eval_mode, np.zeros((200, 4), np.float32)
    actions = mode.get_attribute("columnar").act({"observation": same}, {})
    assert list(actions) == ["action"]
    assert len(set(actions["action"].tolist())) == 1 + sample
    by_env = mode.forward(dict(enumerate(same)))
    assert len({int(output["action"]) for output in by_env.values()}) == 1 + sample


def test_where_nothing_can_be_drawn_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"eval\.sample: dqn has no distribution"):
        policy("eval", eval={"sample": True})


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"eval": {"every": "often"}}, "eval.every: is 'often', not a number and one of env_steps"),
        (
            {"eval": {"every": "1e4 env_steps"}, "other": {"commander": {"eval_interval": 3}}},
            "other.commander.eval_interval: eval.every says how often to evaluate (1e4 env_steps)",
        ),
    ],
)
def test_how_often_to_evaluate_is_said_once(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy("eval", **settings)
    assert str(caught.value.problems[0]).startswith(problem)
