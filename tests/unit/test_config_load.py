"""Experiments from YAML files and overrides: reading, rules, messages, hints for unknown keys."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdi.config.compiled import Compiled, compile_config, restore_config
from hpcdi.config.fields import to_mapping
from hpcdi.config.load import load, read_mapping
from hpcdi.config.policy import PolicyConfig, TorchPolicyConfig
from hpcdi.config.schema import check_over_ranks
from hpcdi.config.team import TeamConfig
from hpcdi.config.words import dump
from hpcdi.errors import EXIT_USAGE, ConfigError
from hpcdi.run.environment import EXPERIMENT_VARIABLE, hand_over, take_handed_over
from hpcdi.types import Leaf

CONFIGS = Path(__file__).parent.parent.parent / "configs"
ENV = "env: {env_id: CartPole-v1}\n"
ENV_MAPPING = {"env": {"env_id": "CartPole-v1"}}
Load = Callable[..., Compiled]


@pytest.fixture
def load_text(tmp_path: Path) -> Load:
    """Loads an experiment from YAML text and overrides."""

    def load_it(text: str, *overrides: str) -> Compiled:
        path = tmp_path / "x.yaml"
        path.write_text(text)
        return load(path, overrides)

    return load_it


def problems_of(caught: pytest.ExceptionInfo[ConfigError]) -> dict[str, str]:
    return {problem.path: problem.message for problem in caught.value.problems}


# ------------------------------------------------------------------------------------------ files


def test_the_file_is_the_experiment(load_text: Load) -> None:
    config = load_text(ENV + "exp_name: mine\npolicy: {learn: {batch_size: 32}}").config
    assert (config.exp_name, config.seed) == ("mine", 0)
    assert config.policy.learn.batch_size == 32
    assert config.env.env_id == "CartPole-v1"


def test_numbers_may_be_written_as_people_write_them(load_text: Load) -> None:
    config = load_text(
        ENV + "policy: {learn: {learning_rate: 1e-3}, other: {replay_buffer: "
        "{replay_buffer_size: 1e6}, commander: {max_env_step: .inf}}}"
    ).config
    assert config.policy.learn.learning_rate == 0.001
    assert config.policy.other.replay_buffer.replay_buffer_size == 1_000_000
    assert config.policy.other.commander.max_env_step == math.inf


def test_a_missing_file_offers_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "cartpole.yaml").write_text(ENV)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "cartpol.yaml")
    text = str(caught.value)
    assert f"there is no file '{tmp_path / 'cartpol.yaml'}'" in text
    assert "there are cartpole.yaml" in text
    assert caught.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize("make", [os.mkfifo, lambda file: file.symlink_to("nowhere")])
def test_what_is_no_file_is_not_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "x.yaml")
    with pytest.raises(ConfigError, match="is no regular file, or a link to nowhere"):
        load(tmp_path / "x.yaml")


def test_of_a_folder_it_says_what_to_name(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(ENV)
    with pytest.raises(ConfigError, match=r"is a folder, no file; in .* there are mine.yaml"):
        load(tmp_path)
    (tmp_path / "config.yaml").write_text(ENV)
    names = rf"name {tmp_path}/config.yaml for a new run; .* `hpcdi train --resume {tmp_path}/`"
    with pytest.raises(ConfigError, match=names):  # not all commands have a --resume
        load(f"{tmp_path}/")


def test_a_missing_folder_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        load(tmp_path / "no" / "x.yaml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1, 2]", "the file must hold a mapping of settings"),
        (b"42", "int"),
        (b"env: {}\na: [1", "- line 2, column 6: expected ',' or ']'"),
        (b"seed: 1\nseed: 2", "- line 2, column 1: found duplicate key seed"),
        (b"\xff\xfe\x00", "the file is not text"),
        (b"seed: ${nope}", "Interpolation key 'nope' not found"),
        (b"seed: ${unclosed", "seed"),
    ],
)
def test_a_file_that_is_no_experiment_is_told(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path} has 1 problem\n")
    assert message in str(caught.value)
    assert "\n" not in caught.value.problems[0].message


def test_an_empty_file_says_what_is_required(load_text: Load) -> None:
    """Rules hold for parts that are left out, too."""
    with pytest.raises(ConfigError) as caught:
        load_text("")
    assert problems_of(caught) == {"env.env_id": "is required: the id of a gymnasium environment"}


def test_values_may_refer_to_others(load_text: Load) -> None:
    text = ENV + "seed: 16\npolicy: {learn: {batch_size: '${seed}'}}\nexp_name: run_${seed}"
    config = load_text(text, "seed=24").config
    assert config.policy.learn.batch_size == 24
    assert config.exp_name == "run_24"


def test_reading_does_not_check(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("anything: {goes: 1e-3}")
    assert read_mapping(tmp_path / "x.yaml", ["more=[1, 2]"]) == {
        "anything": {"goes": 0.001},
        "more": [1, 2],
    }


# -------------------------------------------------------------------------------------- overrides


def override(load_text: Load, text: str, path: str) -> Any:
    value: Any = load_text(ENV, text).config
    for name in path.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("seed=3", "seed", 3),
        ("seed=1e2", "seed", 100),
        ("exp_name=a=b", "exp_name", "a=b"),
        ("exp_name='12'", "exp_name", "12"),
        ("env.stop_value=.inf", "env.stop_value", math.inf),
        ("policy.learn.learning_rate=1e-3", "policy.learn.learning_rate", 0.001),
        ("policy.model.encoder_hidden_size_list=[8,9]", "policy.model.encoder_hidden_size_list",
         (8, 9)),
        ("policy.model.dueling=true", "policy.model.dueling", True),
        ("env.collector_episode_num=null", "env.collector_episode_num", None),
        ("env.collector_episode_num=", "env.collector_episode_num", None),
        ("env.kwargs.render_mode=rgb_array", "env.kwargs", {"render_mode": "rgb_array"}),
        ("policy.other.eps={type: linear}", "policy.other.eps.type", "linear"),
        ("env[env_id]=Acrobot-v1", "env.env_id", "Acrobot-v1"),
    ],
)  # fmt: skip
def test_overrides_are_yaml(load_text: Load, text: str, path: str, value: Any) -> None:
    got = override(load_text, text, path)
    assert got == value
    assert type(got) is type(value)


def test_the_last_override_counts(load_text: Load) -> None:
    assert load_text(ENV + "seed: 1", "seed=2", "seed=3").config.seed == 3


def test_an_override_of_one_key_leaves_its_neighbours(load_text: Load) -> None:
    text = ENV + "policy: {other: {eps: {start: 0.5, end: 0.2}}}"
    eps = load_text(text, "policy.other.eps.end=0.1").config.policy.other.eps
    assert (eps.start, eps.end) == (0.5, 0.1)


@pytest.mark.parametrize("text", ["env.kwargs={}", "env.kwargs={} env.kwargs.gap=4"])
def test_an_empty_mapping_leaves_nothing_of_the_file_s(load_text: Load, text: str) -> None:
    config = load_text("env: {env_id: CartPole-v1, kwargs: {wind: 3}}", *text.split()).config
    assert config.env.kwargs == ({"gap": 4} if "gap" in text else {})


@pytest.mark.parametrize(
    "text", ["seed", "=3", "", "seed: 3", ".seed=1", "seed.=1", "env..x=1", "x" * 300]
)
def test_malformed_overrides_are_named(load_text: Load, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(ENV, "seed=1", text)
    assert str(caught.value) == (
        f"the command line has 1 problem\n  - override {text!r} is not of the form key=value"
    )


@pytest.mark.parametrize("text", ["env.wrappers={type: a}", "env.wrappers[0].type=a"])
def test_an_override_that_makes_a_mapping_of_a_list_is_named(load_text: Load, text: str) -> None:
    with pytest.raises(ConfigError, match="give it whole") as caught:
        load_text("env: {env_id: CartPole-v1, wrappers: [{type: b}]}", "seed=1", text)
    assert caught.value.problems[0].message.startswith(f"override {text!r}: env.wrappers is a list")


@pytest.mark.parametrize("system", ["3", "{import_path: text}", "{import_path: 3}"])
def test_folders_of_modules_join_a_list_alone(tmp_path: Path, load_text: Load, system: str) -> None:
    (tmp_path / "my_module_of_a_test.py").touch()
    with pytest.raises(ConfigError, match=r"system(\.import_path)?: must be a"):
        load_text("env: {env_id: 'my_module_of_a_test:Walk'}\n" + f"system: {system}")


def test_all_malformed_overrides_are_told_at_once(load_text: Load) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(ENV, "seed", "a=[1,2", "b")
    messages = [problem.message for problem in caught.value.problems]
    assert len(messages) == 3
    assert messages[1].startswith("the value of override 'a=[1,2' is not YAML: ")


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("seed=true", "seed", "must be an integer, not True (true or false)"),
        ("seed=", "seed", "must be an integer, not empty"),
        ("seed=-1", "seed", "must be at least 0, not -1"),
        ("seed.x=1", "seed", "must be an integer, not a mapping"),
        ("sed=3", "sed", "unknown key; did you mean 'seed'?"),
        ("policy=", "policy", "must be a mapping of settings, not empty"),
        ("exp_name=12", "exp_name", "must be a string, not 12 (an integer)"),
        ("system.storage.seal_seconds=1" + "0" * 400, "system.storage.seal_seconds",
         "int too large to convert to float"),
    ],
)  # fmt: skip
def test_overrides_are_checked_like_the_file(
    load_text: Load, text: str, path: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(ENV, text)
    assert problems_of(caught) == {path: message}


# ------------------------------------------------------------------------------------- round trip


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("policy.model.obs_shape=[4,84,84]", "policy.model.action_shape=6", "exp_name='1e6'"),
        ("env.kwargs={a: null, b: [1, {c: 'yes'}]}", "env.stop_value=-.inf", "exp_name='null'"),
        ("policy.learn.learning_rate=1e-300", "policy.other.commander.type=naive"),
    ],
)
def test_a_compiled_experiment_loads_to_itself(
    tmp_path: Path, load_text: Load, overrides: tuple[str, ...]
) -> None:
    compiled = load_text(ENV, *overrides)
    path = tmp_path / "config.yaml"
    path.write_text(dump(compiled.to_mapping()))
    assert load(path).config == compiled.config
    assert compile_config(compiled.to_mapping()).config == compiled.config


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_an_experiment_is_handed_to_ranks_as_it_is(path: Path) -> None:
    """By `hpcdi train` in a variable, and by rank 0 in a message, without checks."""
    compiled = load(path, ["env.import_names=[]"])  # not all are installed
    policy = compiled.config.policy
    spaces = (Leaf("arm", (3,), "float32", low=(-math.inf,) * 3, high=(1.0,) * 3),)
    filled: PolicyConfig
    if isinstance(policy, TeamConfig):
        filled = replace(policy, observation=spaces)
    else:
        assert isinstance(policy, TorchPolicyConfig)
        filled = replace(policy, model=replace(policy.model, obs_leaves=spaces))
    config = replace(compiled.config, policy=filled, callbacks=({"pay": {1: "a", 2.5: 0}},))
    variables = {EXPERIMENT_VARIABLE: hand_over(to_mapping(config)), "HOME": "/"}
    mapping = take_handed_over(variables)
    assert mapping is not None
    assert restore_config(mapping) == config
    assert variables == {"HOME": "/"}, "children of a rank do not get it"
    assert take_handed_over(variables) is None


def test_an_experiment_that_no_variable_holds_is_read_by_ranks() -> None:
    many = {"env": {"kwargs": {"table": [math.sin(number) for number in range(20_000)]}}}
    assert hand_over(many) == ""


RATES = st.floats(0, 1e300, exclude_min=True)
NAMES = st.text(st.characters(exclude_categories=["C"], exclude_characters="/$\\"), min_size=1)


@settings(deadline=None, max_examples=8)
@given(st.lists(RATES, min_size=1, max_size=9), st.lists(NAMES, min_size=1, max_size=9))
@pytest.mark.slow
def test_any_number_and_any_name_survive(
    tmp_path_factory: pytest.TempPathFactory, rates: list[float], names: list[str]
) -> None:
    compiled = compile_config(
        {
            "exp_name": f"x{names[0]}",
            "env": {"env_id": names[0], "kwargs": {"rates": rates, "names": names}},
            "policy": {"learn": {"learning_rate": rates[0]}},
        }
    )
    path = tmp_path_factory.mktemp("any") / "config.yaml"
    path.write_text(dump(compiled.to_mapping()))
    assert load(path).config == compiled.config


# ------------------------------------------------------------------- keys in the wrong place


def problems_in(mapping: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        compile_config({**ENV_MAPPING, **mapping}, "x.yaml")
    assert caught.value.source == "x.yaml"
    return {problem.path: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("mapping", "path", "meant"),
    [
        ({"polcy": {}}, "polcy", "'policy'"),
        ({"policy": {"lern": {}}}, "policy.lern", "'learn'"),
        ({"policy": {"learn": {"batchsize": 3}}}, "policy.learn.batchsize", "'batch_size'"),
        # of keys that belong elsewhere the whole path
        ({"batch_size": 3}, "batch_size", "policy.learn.batch_size"),
        ({"policy": {"batch_size": 3}}, "policy.batch_size", "policy.learn.batch_size"),
        # 'learn' is like it, but the key itself stands elsewhere
        ({"policy": {"learner": {}}}, "policy.learner", "policy.learn.learner"),
        ({"policy": {"collector": {}}}, "policy.collector", "policy.collect.collector"),
        (
            {"system": {"replay_buffer_size": 5}},
            "system.replay_buffer_size",
            "policy.other.replay_buffer.replay_buffer_size",
        ),
        ({"fsync": False}, "fsync", "system.storage.fsync"),
    ],
)
def test_what_an_unknown_key_may_have_meant(mapping: dict[str, Any], path: str, meant: str) -> None:
    assert problems_in(mapping) == {path: f"unknown key; did you mean {meant}?"}


def test_a_key_that_stands_everywhere_is_no_hint() -> None:
    assert problems_in({"type": "dqn"}) == {
        "type": "unknown key; known here: callbacks, data, env, exp_name, fault, policy, seed, "
        "slurm, system"
    }


def test_problems_of_all_parts_come_together() -> None:
    found = problems_in(
        {
            "seed": -1,
            "exp_nam": "x",
            "env": {"env_id": 3, "collector_env_num": 0},
            "policy": {"learn": {"batch_size": "big"}, "model": {"obs_shape": "x"}},
            "system": {"storage": {"block_bytes": 1}, "transport": "tcp"},
        }
    )
    assert set(found) == {
        "seed",
        "exp_nam",
        "env.env_id",
        "env.collector_env_num",
        "policy.learn.batch_size",
        "policy.model.obs_shape",
        "system.storage.block_bytes",
        "system.transport",
    }
    assert found["env.env_id"] == "must be a string, not 3 (an integer)"  # and not: is required


def test_keys_of_the_predecessor_are_noted() -> None:
    compiled = compile_config(
        {
            **ENV_MAPPING,
            "system": {
                "communication_mode": "auto",
                "learner_gpu_num": 1,
                "coordinator": {"host": "auto", "port": "auto", "operator_server": {}},
            },
        }
    )
    assert [note.partition(" ")[0] for note in compiled.notes] == [
        "system.communication_mode",
        "system.learner_gpu_num",
        "system.coordinator.host",
        "system.coordinator.port",
        "system.coordinator.operator_server",
    ]


@pytest.mark.parametrize("kind", ["dqn", "dqn_command"])
def test_an_unknown_policy_type_is_told_before_its_settings(kind: str) -> None:
    found = problems_in({"policy": {"type": f"{kind}n", "learn": {"batch_size": -1}}})
    assert list(found) == ["policy.type"]
    assert f"did you mean '{kind}'?" in found["policy.type"]


# ------------------------------------------------------------------------- rules between components


def test_a_batch_cannot_be_larger_than_the_buffer() -> None:
    found = problems_in({"policy": {"learn": {"batch_size": 5000}}})
    assert found == {
        "policy.learn.batch_size": "a batch of 5000 cannot be sampled from a replay buffer of 4096 "
        "(policy.other.replay_buffer.replay_buffer_size)"
    }


@pytest.mark.parametrize(("size", "is_enough"), [(131, False), (132, True)])
def test_a_buffer_holds_four_of_the_smallest_blocks(size: int, is_enough: bool) -> None:
    mapping = {"policy": {"other": {"replay_buffer": {"replay_buffer_size": size}}}}
    if is_enough:
        compile_config({**ENV_MAPPING, **mapping})
    else:
        found = problems_in(mapping)
        path = "policy.other.replay_buffer.replay_buffer_size"
        assert found == {path: "must be at least 132, 4 x (policy.collect.n_sample + 1), not 131"}


@pytest.mark.parametrize(
    ("policy", "learners", "path", "said"),
    [
        (
            {"learn": {"batch_size": 1024}}, 8, "policy.learn.batch_size",
            "a batch of 1024 cannot be sampled from a replay buffer of 4096 that 8 learners share",
        ),
        (
            {"other": {"replay_buffer": {"thruput_controller": {"sample_min_limit_ratio": 80}}}}, 1,
            "policy.learn.batch_size",
            "a batch of 64 x 80 (sample_min_limit_ratio) cannot be sampled from a replay buffer of",
        ),
        (
            {"other": {"replay_buffer": {"replay_buffer_size": 263}}}, 2,
            "policy.other.replay_buffer.replay_buffer_size",
            "at least 264, 4 x (policy.collect.n_sample + 1) for each of 2 learners, not 263",
        ),
        (
            {
                "type": "r2d2", "model": {"memory": "gtrxl"},
                "other": {"replay_buffer": {"replay_buffer_size": 400}},
            }, 1, "policy.other.replay_buffer.replay_buffer_size",
            "at least 580, 4 x (policy.collect.n_sample + 1 + model.memory_len), not 400",
        ),
    ],
)  # fmt: skip
def test_each_learner_s_share_of_the_buffer_holds_a_batch_and_some_blocks(
    policy: Any, learners: int, path: str, said: str
) -> None:
    """Else it would wait for ever, or the first item would not fit into a block."""
    learn = {**policy.get("learn", {}), "learner": {"learner_num": learners}}
    with pytest.raises(ConfigError) as caught:  # noqa: PT012
        config = compile_config({**ENV_MAPPING, "policy": {**policy, "learn": learn}}).config
        raise ConfigError(check_over_ranks(config))
    (problem,) = caught.value.problems
    assert problem.path == path
    assert said in problem.message


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "/abs"])
def test_the_name_is_a_plain_folder_name(name: str) -> None:
    assert problems_in({"exp_name": name}) == {
        "exp_name": f"must be a plain folder name, not {name!r}"
    }


def test_a_run_s_environments_begin_their_next_episode() -> None:
    """Else each would play one, and the run would wait for ever."""
    env = {**ENV_MAPPING["env"], "manager": {"auto_reset": False}}
    assert list(problems_in({"env": env})) == ["env.manager.auto_reset"]


@pytest.mark.parametrize(
    ("algorithm", "head"), [("dqn", "actor_critic"), ("sac", "actor_critic"), ("ppo", "q")]
)
def test_a_head_of_other_algorithms_is_refused(algorithm: str, head: str) -> None:
    found = problems_in({"policy": {"type": algorithm, "model": {"head": head}}})
    assert list(found) == ["policy.model.head"]


def test_rules_wait_until_every_part_is_right() -> None:
    """Else they would judge the defaults that stand in for wrong values."""
    found = problems_in({"exp_name": "a/b", "policy": {"learn": {"batch_size": -5}}})
    assert list(found) == ["policy.learn.batch_size"]


def test_what_other_libraries_call_a_setting_is_told_by_our_name() -> None:
    with pytest.raises(ConfigError) as caught:
        load(CONFIGS / "cartpole_ppo.yaml", ["policy.learn.lr=1", "policy.learn.ent_coef=0"])
    said = str(caught.value)
    assert "policy.learn.lr: unknown key; did you mean 'learning_rate'?" in said
    assert "policy.learn.ent_coef: unknown key; did you mean 'entropy_weight'?" in said


@pytest.mark.parametrize("value", ["run #7", "#7", "[1, 2] # x", "[a #b, c]", "'a' # '"])
def test_an_override_that_a_comment_cuts_is_refused(load_text: Load, value: str) -> None:
    with pytest.raises(ConfigError, match=r"ends with a comment, ['\"]#") as caught:
        load_text(ENV, f"exp_name={value}")
    assert "quote the value" in str(caught.value)


@pytest.mark.parametrize("value", ["a\\b #7", "it's #7"])
def test_the_advice_for_a_value_with_a_comment_gives_that_value(
    load_text: Load, tmp_path: Path, value: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(ENV, f"exp_name={value}")
    (advice,) = shlex.split(str(caught.value).partition("the shell: ")[2])
    (tmp_path / "a.yaml").write_text(ENV)
    assert read_mapping(tmp_path / "a.yaml", [advice])["exp_name"] == value


@pytest.mark.parametrize("value", ["run#7", "'run #7'", '"run #7"', "'#'"])
def test_a_hash_that_begins_no_comment_is_text(tmp_path: Path, value: str) -> None:
    (tmp_path / "a.yaml").write_text(ENV)
    read = read_mapping(tmp_path / "a.yaml", [f"exp_name={value}"])
    assert read["exp_name"] == value.strip("'\"")


def test_names_may_be_written_as_numbers(load_text: Load) -> None:
    """They were no texts, and met code that takes texts: a traceback, or a failure later."""
    policy = load_text(f"{ENV}policy: {{model: {{leaf_encoders: {{0: mlp}}}}}}").config.policy
    assert isinstance(policy, TorchPolicyConfig)
    assert policy.model.leaf_encoders == {"0": "mlp"}
    league = "policy: {other: {commander: {type: one_vs_one, league: {players: {1: main}}}}}"
    with pytest.raises(ConfigError, match=r"league\.players: must begin with the main player"):
        load_text(ENV + league)
    with pytest.raises(ConfigError, match=r"policy\.model\.leaf_encoders"):  # two of one name
        load_text(
            f"{ENV}policy: {{model: {{leaf_encoders: {{0: mlp}}}}}}",
            "policy.model.leaf_encoders.0=mlp",
        )
