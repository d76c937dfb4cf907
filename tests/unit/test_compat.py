"""DI-engine's form of policies, environments and configurations in hpcdi's runs, without DI-engine.

`make ding` runs DI-engine's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes.collectors import Port, do
from fakes.ding_form import SEQUENCE
from fakes.spaces import simple_spaces
from hpcdi.cli import main
from hpcdi.config.compiled import compile_config
from hpcdi.env.create import create_env_manager
from hpcdi.env.probe import look_at
from hpcdi.errors import ConfigError, PolicyError
from hpcdi.policy.create import create_policy
from hpcdi.utils.nested import share_tensors
from hpcdi.worker.collector import ZerglingParallelCollector
from hpcdi.worker.dict_policy import columnar_policy
from hpcdi.worker.ding import convert, reader

FORM = Path(__file__).parent.parent / "fakes" / "ding_form_config.py"
pytestmark = pytest.mark.usefixtures("one_torch_thread", "same_process_state")


@pytest.fixture(scope="module")
def form() -> tuple[dict[str, Any], list[str]]:
    """The configuration's file, read in a process of its own."""
    return reader.read(FORM)


# ------------------------------------------------------------------------------------ configuration


def test_a_configuration_becomes_an_experiment(form: tuple[dict[str, Any], list[str]]) -> None:
    config = compile_config(form[0]).config
    assert config.exp_name == "form_seed0"
    env, policy = config.env, config.policy
    assert (env.collector_env_num, env.evaluator_env_num, env.evaluator_episode_num) == (2, 1, 1)
    assert (env.stop_value, env.manager.type, env.manager.max_retry) == (1000.0, "subprocess", 3)
    assert (env.ding["type"], env.ding["length"]) == ("fakes.ding_form:Env", 7)
    assert (policy.collect.n_sample, policy.collect.unroll_len) == (2, SEQUENCE)
    assert (policy.learn.batch_size, policy.learn.update_per_collect) == (4, 2), "its default"
    assert policy.learn.learner.hook["log_show_after_iter"] == 7
    assert policy.eval.every == "3 iterations", "over ranks too"
    buffer = policy.other.replay_buffer
    assert (buffer.type, buffer.replay_buffer_size, buffer.max_use) == ("advanced", 128, 9)
    assert policy.ding["model"] == {"obs_shape": 3, "action_shape": 2}
    assert config.system.import_path == (), "the file is in a package"


def test_what_is_not_as_it_was_is_said(form: tuple[dict[str, Any], list[str]]) -> None:
    for note in (
        "exp_name 'form/seed0' is now 'form_seed0'",
        "policy.collect.n_sample 4 of all 2 environments is now 2 of each",
        "env.manager.shared_memory is dropped",
        "policy.learn.learner.hook.odd is dropped",
        "create_config.replay_buffer.type 'deque' is now 'advanced'",
    ):
        assert any(note in said for said in form[1]), note
    assert len(form[1]) == 5


def test_settings_of_either_part_of_a_configuration_are_read_or_said_to_be_dropped() -> None:
    """Those of ``main_config`` are over those of ``create_config``, and these over a class's."""
    buffer = {"replay_buffer_size": 500, "max_use": 3}
    settings = {
        "learn": {"learner": {"train_iterations": 7, "hook": {"save_ckpt_after_iter": 5}}},
        "collect": {"n_sample": 2, "collector": {"deepcopy_obs": True}},
        "eval": {"evaluator": {"eval_freq": 0, "figure_path": "x"}},
        "other": {"replay_buffer": {"max_use": 4}},
    }
    experiment, notes = convert.converted(
        {"env": {**WITH_ENVS, "manager": {"max_retry": 2}}, "policy": settings},
        {
            "env": {"type": "a:B"}, "policy": {"type": "a:C"},
            "env_manager": {"type": "subprocess", "step_timeout": 5, "max_retry": 7, "odd": 1},
            "replay_buffer": {"type": "advanced", **buffer}, "evaluator": {"type": "metric"},
            "learner": {
                "type": "mine", "import_names": ["mine"],
                "hook": {"save_ckpt_after_iter": 3, "log_show_after_iter": 8},
            },
        },
        {"on_policy": False, **settings,
         "other": {"replay_buffer": {"max_use": 4, "replay_buffer_size": 9, "alpha": 0.5}}},
    )  # fmt: skip
    manager = {"type": "subprocess", "step_timeout": 5, "max_retry": 2}
    assert experiment["env"]["manager"] == manager
    assert experiment["policy"]["eval"] == {"every": "1 iterations"}, "as evaluators take 0"
    replay = {"type": "advanced", "replay_buffer_size": 9, "max_use": 4, "alpha": 0.5}
    assert experiment["policy"]["other"]["replay_buffer"] == replay | {"replay_buffer_size": 500}
    assert experiment["policy"]["learn"]["learner"] == {
        "hook": {"save_ckpt_after_iter": 5, "log_show_after_iter": 8}
    }
    for note in (
        "env.manager.odd is dropped",
        "policy.learn.learner.train_iterations is dropped",
        "policy.collect.collector.deepcopy_obs is dropped",
        "policy.eval.evaluator.figure_path is dropped",
        "create_config.evaluator.type 'metric' is now 'interaction'",
        "create_config.learner.type 'mine' is now 'base'",
    ):
        assert any(note in said for said in notes), note


def test_what_hpcdi_has_no_run_for_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        convert.converted(
            {"env": {"collector_env_num": 1}},
            {"env": {}, "collector": {"type": "sample_1v1"}, "reward_model": {}}, {},
        )  # fmt: skip
    assert [problem.path for problem in caught.value.problems] == [
        "create_config.reward_model", "main_config.policy", "create_config.policy",
        "create_config.env.type", "main_config.env.evaluator_env_num",
        "create_config.collector.type",
    ]  # fmt: skip


def test_a_collector_of_episodes() -> None:
    """Each of a policy over ranks makes that many, a share of each environment."""
    main_config = {"env": WITH_ENVS | {"collector_env_num": 8}, "policy": {}}
    create = {"env": {"type": "a:B"}, "policy": {"type": "a:C"}, "collector": {"type": "episode"}}
    collect = {"n_episode": 20, "collector": {"get_train_sample": True}}
    policy = {"on_policy": True, "learn": {}, "collect": collect}
    experiment, notes = convert.converted(main_config, create, policy)
    assert experiment["policy"]["collect"] == {"n_sample": 3000, "unroll_len": 1, "n_episode": 24}
    assert any("n_episode 20" in note for note in notes)
    collector = {"type": "episode", **collect.pop("collector")}  # type: ignore[dict-item]
    elsewhere, _ = convert.converted(main_config, create | {"collector": collector}, policy)
    assert elsewhere == experiment
    collect["collector"] = {"get_train_sample": True, "reward_shaping": True}
    with pytest.raises(ConfigError, match=r"collector\.reward_shaping: hpcdi's runs shape no"):
        convert.converted(main_config, create, policy)
    with pytest.raises(ConfigError) as caught:
        convert.converted(
            main_config, create, {"on_policy": False, "learn": {}, "collect": {"n_episode": 1}}
        )
    assert [problem.path for problem in caught.value.problems] == [
        "policy.collect.collector.get_train_sample", "create_config.collector.type",
    ]  # fmt: skip


WITH_ENVS = {"collector_env_num": 1, "evaluator_env_num": 1}


@pytest.mark.parametrize(
    ("kind", "main_config", "path", "words"),
    [
        (kind, {"env": {}, "policy": {"collect": {"data_type": "hdf5"}}},
         "create_config.policy.type", f"'{kind}' learns from a data set alone")
        for kind in ("bc", "cql", "discrete_cql", "td3_bc", "dt", "edac", "ibc")
    ] + [
        ("dqfd_command", {}, "create_config.policy.type", "'dqfd' learns from an expert"),
        ("sql", {"env": WITH_ENVS, "policy": {"collect": {"model_path": "expert.pth"}}},
         "main_config.policy.collect.model_path", "an offline or imitation algorithm needs it"),
        ("sac", {"env": WITH_ENVS, "policy": {}, "reward_model": {"type": "gail"}},
         "main_config.reward_model", "hpcdi has no run with it"),
        ("ppo_offpolicy", {"env": WITH_ENVS, "policy": {}, "reward_model": {"type": "trex"}},
         "main_config.reward_model", "hpcdi has no run with it"),
    ],
)  # fmt: skip
def test_offline_and_imitation_are_refused_by_name(
    kind: str, main_config: dict[str, Any], path: str, words: str
) -> None:
    """In one sentence: a run would train them online, or as plain DQN."""
    create = {"env": {"type": "any"}, "policy": {"type": kind}}
    with pytest.raises(ConfigError) as caught:
        convert.converted(main_config, create, {})
    (problem,) = caught.value.problems
    assert problem.path == path
    assert words in problem.message


def test_nothing_of_it_is_imported_before_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x_dt_config.py"
    file.write_text("main_config = {}\ncreate_config = {'policy': {'type': 'dt'}}\n")
    assert main(["train", str(file), "-n", "4"]) == 2
    assert "'dt' learns from a data set alone" in capsys.readouterr().err


def test_settings_of_the_policy_itself_are_refused_beside_it(
    form: tuple[dict[str, Any], list[str]],
) -> None:
    policy = {**form[0]["policy"], "nstep": 3, "priority_IS_weight": True}
    with pytest.raises(ConfigError) as caught:
        compile_config({**form[0], "policy": policy})
    assert sorted(problem.path for problem in caught.value.problems) == [
        "policy.nstep", "policy.priority_IS_weight",
    ]  # fmt: skip
    assert "policy.ding.nstep" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("main_config = {}", "create_config: is required"),
        ("main_config, create_config = {'a': print}, {}", "main_config.a: is <built-in function"),
        (
            "main_config, create_config = {'env': {'collector_env_num': 1, "
            "'evaluator_env_num': 1}, 'policy': {}}, "
            "{'env': {'type': 'any'}, 'policy': {'type': 'no_module:A'}}",
            "no_module cannot be imported",
        ),
        ("1 / 0", "could not be run as Python"),
    ],
)
def test_a_wrong_file_says_why(
    tmp_path: Path, text: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.py").write_text(text)
    assert main(["convert", str(tmp_path / "wrong.py")]) == 2
    err = capfd.readouterr().err
    assert said in err
    assert ("ZeroDivisionError" in err) is ("/ 0" in text)


def test_what_is_no_python_file_is_not_run(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "x.yaml").write_text("policy: {}")
    assert main(["convert", str(tmp_path / "x.yaml")]) == 2
    assert capsys.readouterr().err.endswith("x.yaml is no Python file (x.py) of DI-engine's\n")


def test_a_module_that_cannot_be_imported_any_more(tmp_path: Path, capfd: Any) -> None:
    """As environments of another version of their library."""
    (tmp_path / "moved.py").write_text("raise ImportError('it is in its own package now')")
    (tmp_path / "wrong.py").write_text(
        "main_config = {'env': {'collector_env_num': 1, 'evaluator_env_num': 1}, 'policy': {}}\n"
        "create_config = {'env': {'type': 'any'}, 'policy': {'type': 'moved:A'}}"
    )
    assert main(["convert", str(tmp_path / "wrong.py")]) == 2
    assert "moved cannot be imported: it is in its own package now" in capfd.readouterr().err


def test_other_commands_name_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", str(FORM), "--print"]) == 2
    assert f"hpcdi convert {FORM} -o FILE.yaml" in capsys.readouterr().err


# ------------------------------------------------------------------------------------- environments


def test_an_environment(form: tuple[dict[str, Any], list[str]]) -> None:
    cfg = compile_config({**form[0], "env": {**form[0]["env"], "manager": {"type": "base"}}}).config
    assert look_at(cfg.env).spaces == simple_spaces((3,), "float32", 2, ())
    for evaluates in (False, True):
        manager = create_env_manager(cfg.env, evaluate=evaluates, seed=np.random.SeedSequence(1))
        manager.launch()
        offsets = set()
        for _ in range(7 * 4):
            offsets |= set(manager.observation["observation"][:, 1].tolist())
            manager.step({"action": np.zeros(manager.env_num, dtype=np.int64)})
        episodes = manager.take_episodes()
        assert set(episodes.lengths) == {7}
        assert set(episodes.returns) == {7.0}
        assert set(episodes.stated) == {70.0}, "an evaluation counts what the environment states"
        assert evaluates or len(offsets) > 3, "each episode has a seed of its own"
        manager.close()


def test_an_environments_settings_are_over_its_classs_and_those_of_its_place() -> None:
    """A class may make other ones for each environment of a collector, and of an evaluation."""
    ding = {"type": "fakes.ding_form:Levels", "length": 4}
    cfg = {"type": "ding", "ding": ding, "collector_env_num": 3, "evaluator_env_num": 2}
    for evaluates, number, levels in ((False, 0, [10, 11, 12]), (True, 0, [10, 11]),
                                      (False, 1, [10, 11, 12]), (True, 1, [10, 11])):  # fmt: skip
        with create_env_manager(
            cfg, evaluate=evaluates, number=number, seed=np.random.SeedSequence(0)
        ) as manager:
            manager.launch()
            assert manager.observation["observation"].tolist() == [[0, n, 4] for n in levels]


# ----------------------------------------------------------------------------------------- policies


class WeightPort(Port):
    """Gives the weights of a policy."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self._model = policy.learn_mode.state_dict()["model"]

    def get_policy_update_info(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        update = super().get_policy_update_info(*args, **kwargs)
        return update and {**update, "model": self._model}


def test_sequences_travel_and_their_env_steps_are_counted(
    form: tuple[dict[str, Any], list[str]],
) -> None:
    """Episodes of 7 steps in sequences of 3: the seventh step makes no sample, and counts."""
    env = {**form[0]["env"], "manager": {"type": "base"}, "collector_episode_num": 4}
    config = compile_config({**form[0], "env": env}).config
    policy = columnar_policy(config.policy, ["learn"])
    port, seed = WeightPort(policy), np.random.SeedSequence(2)
    cfg = {"env": config.env, "policy": config.policy, "eval_flag": False, "seed": seed}
    with ZerglingParallelCollector(cfg, port) as made:
        do(made, port, "task", eps=0.5)
    steps = sum(int(segment.env_steps.sum()) for segment in port.segments)
    rows = sum(int(segment.items["item_len"].sum()) for segment in port.segments)
    assert rows == 4 * 2 * 2
    assert steps in range(4 * 2 * 6, 4 * 2 * 7 + 1), "all but those after the last sample"
    for segment in port.segments:
        assert segment.columns["prev_state[]/h"].shape[1:] == (SEQUENCE, 2)
        batch = {name: np.repeat(column[:1], 4, axis=0) for name, column in segment.columns.items()}
        batch["weight"] = np.ones(4, np.float32)
        learnt = policy.learn_mode.forward(share_tensors(batch))
        assert learnt["cur_lr"] == 0.01


def test_settings_of_the_run_go_over_the_policys_own(
    form: tuple[dict[str, Any], list[str]],
) -> None:
    given = {**form[0]["policy"], "learn": {"batch_size": 6}, "priority": True}
    inner = create_policy(given, ["learn"]).get_attribute("cfg")
    assert inner.learn.batch_size == 6, "get_attribute('cfg') is the run's"
    policy = create_policy(given, ["learn"])
    own = policy._inner._cfg
    assert (own.learn.batch_size, own.priority, own.learn.rate) == (6, True, 0.01)
    assert policy.get_attribute("state") == {0: 0, 1: 0}, "the policy's own attribute"


def test_state_dicts_go_round_and_weights_alone_leave_the_rest(
    form: tuple[dict[str, Any], list[str]],
) -> None:
    one, other = (
        create_policy(form[0]["policy"], seed=np.random.SeedSequence(seed)) for seed in (1, 2)
    )
    state = one.learn_mode.state_dict()
    other.learn_mode.load_state_dict({"model": state["model"]})
    other.learn_mode.load_state_dict(state)
    for name, weight in other.eval_mode.state_dict()["model"].items():
        assert torch.equal(weight, state["model"][name])
    assert one.command_mode.get_setting_collect({"envstep": 4}) == {"eps": 0.2}
    assert one.command_mode.get_setting_learn({"envstep": 4}) == {}


def test_weights_alone_are_the_target_networks_too(form: tuple[dict[str, Any], list[str]]) -> None:
    """Else it were random, and what is learnt from it."""
    ding = {**form[0]["policy"]["ding"], "type": "fakes.ding_form:WithTarget"}
    one, other, third = (
        create_policy({**form[0]["policy"], "ding": ding}, seed=np.random.SeedSequence(seed))
        for seed in (1, 2, 3)
    )
    state = one.learn_mode.state_dict()
    other.learn_mode.load_state_dict({"model": state["model"]})
    loaded = other.learn_mode.state_dict()
    third.learn_mode.load_state_dict(state)
    for name, weight in state["model"].items():
        assert torch.equal(loaded["target_model"][name], weight)
        whole = third.learn_mode.state_dict()
        assert torch.equal(whole["target_model"][name], state["target_model"][name])
        assert not torch.equal(whole["target_model"][name], weight)


def test_a_state_for_too_few_environments_is_explained(
    form: tuple[dict[str, Any], list[str]],
) -> None:
    policy = create_policy(form[0]["policy"], ["collect"])
    with pytest.raises(PolicyError, match=r"policy\.ding\.collect\.env_num must be env\.collector"):
        policy.collect_mode.forward({2: np.zeros(3)}, eps=0.1)


@pytest.mark.slow
def test_it_trains_in_one_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, limit = tmp_path / "run", "policy.other.commander.max_train_iter=6"
    assert main(["serial", str(FORM), "--run-dir", str(run), limit, "env.manager.type=base"]) == 0
    trained = capsys.readouterr()
    assert "6 train iterations" in trained.out
    assert "could not be written" not in trained.err, "items with lists are in the snapshot"
    assert main(["serial", "--resume", str(run), limit.replace("6", "8")]) == 0
    went_on = capsys.readouterr()
    assert "8 train iterations" in went_on.out
    assert "could not be written" not in went_on.err
