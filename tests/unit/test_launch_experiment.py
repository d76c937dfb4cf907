"""Compiling an experiment against its environment."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcdi.config.compiled import compile_config
from hpcdi.config.league import OneVsOneCommanderConfig
from hpcdi.errors import EXIT_USAGE, ConfigError
from hpcdi.policy.create import create_policy
from hpcdi.run.experiment import load_experiment
from hpcdi.store.policies import PolicyImage, publish_policy

CONFIG = str(Path(__file__).parent.parent.parent / "configs" / "cartpole_dqn.yaml")


def problems(*overrides: str) -> dict[str, str]:
    """What is wrong, by path."""
    with pytest.raises(ConfigError) as caught:
        load_experiment(CONFIG, overrides)
    assert caught.value.exit_code == EXIT_USAGE
    return {problem.path: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("overrides", "obs_shape", "actions"),
    [
        ([], (4,), 2),
        (["env.env_id=Acrobot-v1"], (6,), 3),
        (["policy.model.obs_shape=4", "policy.model.action_shape=2"], (4,), 2),
        (["policy.model.obs_shape=[4]"], (4,), 2),
        (["env.env_id=hpcdi/Count-v0", "env.import_names=[hpcdi.env.toy]"], (2,), 2),
    ],
)
def test_shapes_come_from_the_environment(
    overrides: Sequence[str], obs_shape: tuple[int, ...], actions: int
) -> None:
    compiled, spaces = load_experiment(CONFIG, overrides)
    model = compiled.config.policy.model
    assert (model.obs_shape, model.action_shape) == (obs_shape, actions)
    assert (spaces.observation[0].shape, spaces.action[0].counts) == (obs_shape, (actions,))


def test_the_other_ranks_get_the_same_experiment() -> None:
    """As plain data, with what rank 0 has filled in."""
    compiled, _ = load_experiment(CONFIG, ["seed=5", "policy.other.eps.end=0.2"])
    assert compile_config(compiled.to_mapping()).config == compiled.config
    several = ["policy.type=ppo", "policy.nstep=1", "env.env_id=fakes.echo_env:EchoEnv"]
    path = str(Path(CONFIG).with_name("blackjack_ppo.yaml"))
    compiled, _ = load_experiment(path, several)
    model = compiled.config.policy.model
    assert (len(model.obs_leaves), len(model.action_leaves)) == (4, 4)
    assert compile_config(compiled.to_mapping()).config == compiled.config


def test_shapes_that_contradict_the_environment_are_all_told() -> None:
    found = problems("policy.model.obs_shape=5", "policy.model.action_shape=3")
    assert set(found) == {"policy.model.obs_shape", "policy.model.action_shape"}
    assert "(5,)" in found["policy.model.obs_shape"]
    assert "(4,)" in found["policy.model.obs_shape"]
    assert "the environment's is 2" in found["policy.model.action_shape"]


def test_the_source_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cartpole_dqn\.yaml has 1 problem"):
        load_experiment(CONFIG, ["policy.model.obs_shape=5"])


def test_actions_that_the_policy_cannot_take() -> None:
    found = problems("env.env_id=Pendulum-v1")
    assert "dqn takes actions that are Discrete" in found["policy.type"]


@pytest.mark.parametrize(
    ("env_id", "hints"),
    [
        ("ALE/Pong-v5", ["'ALE/Pong-v5'", "pip install 'hpcdi[atari]'"]),
        ("CartPole-v7", ["'CartPole-v7'"]),
        ("NoSuchThing-v0", ["'NoSuchThing-v0'"]),
    ],
)
def test_an_environment_that_is_not_here(env_id: str, hints: list[str]) -> None:
    found = problems(f"env.env_id={env_id}")
    assert set(found) == {"env.env_id"}
    assert all(hint in found["env.env_id"] for hint in hints)


def test_a_module_that_is_not_here() -> None:
    [(path, message)] = problems("env.import_names=[no_such_module]").items()
    assert path == "env.import_names"
    assert "no_such_module" in message
    assert "install it" in message


def test_everything_that_is_wrong_is_told_at_once() -> None:
    found = problems("sead=1", "policy.nstep=0", "policy.learn.batch_sise=3", "env.stop_value=high")
    assert set(found) == {"sead", "policy.nstep", "policy.learn.batch_sise", "env.stop_value"}
    assert "did you mean 'seed'" in found["sead"]
    assert "did you mean 'batch_size'" in found["policy.learn.batch_sise"]


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("policy.collect.serial_collector.type=episode", "'episode' is for your own code"),
        ("policy.eval.evaluator.type=metric", "'metric' is for your own code"),
        ("policy.eval.evaluator.render.render_freq=3", "hpcdi eval RUN --video films its policy"),
    ],
)
def test_what_a_run_in_one_process_cannot_do_is_said_at_once(override: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_experiment(CONFIG, [override], over_ranks=False)
    load_experiment(CONFIG, [override])  # over ranks nobody asks


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("policy.model.type=json:dumps", r"policy\.model\.type: json:dumps raises TypeError"),
        (
            "policy.model.encoder=json:nothing",
            r"policy\.model\.encoder: module .json. has no .nothing.",
        ),
        ("policy.learn.optimizer.dekay=1", r"policy\.learn\.optimizer: Adam cannot be made of"),
    ],
)
def test_parts_of_the_users_own_are_tried_before_anything_starts(
    override: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_experiment(CONFIG, [override])


def test_a_key_is_not_its_own_better_spelling() -> None:
    with pytest.raises(ConfigError) as caught:
        load_experiment(CONFIG.replace("dqn", "ppo"), ["policy.model.dueling=true"])
    assert "did you mean policy.model.dueling" not in str(caught.value)


def test_battles_need_their_collector_and_commander() -> None:
    pytest.importorskip("pettingzoo")
    league = str(Path(CONFIG).with_name("tictactoe_league.yaml"))
    load_experiment(league, [])
    of_two = str(Path(CONFIG).with_name("tictactoe_dqn.yaml"))  # it says neither: for both modes
    policy = load_experiment(of_two, [])[0].config.policy
    assert (policy.collect.collector.type, policy.other.commander.type) == ("marine", "one_vs_one")
    assert load_experiment(of_two, [], over_ranks=False)[0].config.policy == policy
    with pytest.raises(ConfigError) as caught:
        load_experiment(league, ["policy.collect.collector.type=zergling"])
    (problem,) = caught.value.problems
    assert problem.path == "policy.collect.collector.type"
    assert "2 players: it needs 'marine'" in problem.message
    load_experiment(league, [], over_ranks=False)
    found = problems("policy.other.commander.type=one_vs_one")
    assert "one player" in found["policy.other.commander.type"]


def test_a_leagues_players_are_looked_at_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, each by its own key; files lie in the present folder or beside the experiment.

    Policies of another network, and settings of no player at all, met the run when first drawn.
    """
    pytest.importorskip("pettingzoo")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    mine = Path(shutil.copy(Path(CONFIG).with_name("tictactoe_league.yaml"), tmp_path / "mine"))
    key = "policy.other.commander"
    small = ["policy.model.encoder_hidden_size_list=[8]"]
    policy = create_policy(load_experiment(str(mine), small)[0].config.policy, ["eval"])
    image = PolicyImage.of(policy.eval_mode.state_dict()["model"], 1)
    for folder in (tmp_path, mine.parent):
        publish_policy(folder / f"{folder.name}.safetensors", image)
    (tmp_path / "torn.safetensors").write_bytes(image.data[:-9])
    here = f"{tmp_path.name}.safetensors"
    (tmp_path / "x" / "first").mkdir(parents=True)
    shutil.copy(tmp_path / here, tmp_path / "x" / "first" / "p.safetensors")
    (tmp_path / "x" / "latest").symlink_to("first")  # another run tomorrow
    fine = [
        f"{key}.league.fixed={{a: random, b: {here}, c: 'fakes.battles:first_legal', "
        "d: x/latest/p.safetensors}",
        f"{key}.evaluate_against=mine.safetensors",
    ]
    for over_ranks in (True, False):
        config = load_experiment(str(mine), [*small, *fine], over_ranks=over_ranks)[0].config
        commander = config.policy.other.commander
        assert isinstance(commander, OneVsOneCommanderConfig)
        assert commander.league.fixed["b"] == str(tmp_path / here)
        assert commander.league.fixed["d"] == str(tmp_path / "x" / "first" / "p.safetensors")
        assert commander.evaluate_against == str(mine.parent / "mine.safetensors")
    wrong = {
        "b": (here, "parameter encoder.1.weight is (8, 18) in the file"),
        "c": ("fakes.battles:no", "no 'no'"),
        "d": ("fakes.battles:_LINES", "is no function"),
        "e": ("torn.safetensors", "torn.safetensors"),
        "f": ("no.safetensors", "there is no file 'no.safetensors', neither in the present folder"),
        "g": ("g" * 300, "cannot be read: File name too long"),
    }
    fixed = ", ".join(f"{name}: '{source}'" for name, (source, _) in wrong.items())
    several = [f"{key}.league.fixed={{{fixed}}}", f"{key}.evaluate_against=nonsense"]
    with pytest.raises(ConfigError) as caught:
        load_experiment(str(mine), several)
    found = {problem.path: problem.message for problem in caught.value.problems}
    assert "there is no file 'nonsense'" in found.pop(f"{key}.evaluate_against")
    assert found.keys() == {f"{key}.league.fixed.{name}" for name in wrong}
    for name, (_, said) in wrong.items():
        assert said in found[f"{key}.league.fixed.{name}"]
    load_experiment(str(mine), several, over_ranks=None)  # a saved policy is played all the same


def test_a_rollout_smaller_than_its_minibatch_is_noted() -> None:
    config = CONFIG.replace("dqn", "ppo")
    compiled, _ = load_experiment(config, ["policy.learn.batch_size=5000"])
    (note,) = compiled.notes
    assert "batch_size is 5,000, and a learner's rollout has 1,024 transitions" in note
    one = load_experiment(config, ["policy.learn.batch_size=5000", "env.collector_env_num=1"])[0]
    assert " x 1 environment x " in one.notes[0]
    assert load_experiment(config, [])[0].notes == ()


def test_more_environments_in_processes_than_open_files_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hpcdi.run.sizes.may_open_files", lambda: 64)
    several = ["env.collector_env_num=16", "env.evaluator_env_num=4"]
    load_experiment(CONFIG, several)  # in one process
    with pytest.raises(ConfigError, match=r"100 in all, and may have 64 .* 8 would do"):
        load_experiment(CONFIG, [*several, "env.manager.type=subprocess"])
