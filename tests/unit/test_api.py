"""`hpcdi.train` and `hpcdi.load`, in this process: over ranks they do what the command does."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import hpcdi
from fakes.interrupting_env import SMALL, Walk
from fakes.named_masks import LEGAL, Named, Nameless
from fakes.processes import python
from fakes.serial_runs import FOREIGN, LIMIT
from hpcdi import api
from hpcdi.cli import main
from hpcdi.config.compiled import compile_config, repeats_as
from hpcdi.config.load import load, read_mapping
from hpcdi.config.policy import TorchPolicyConfig
from hpcdi.env.create import get_env_cls
from hpcdi.errors import ConfigError, EnvError, EnvValueError, LaunchError, PolicyError
from hpcdi.policy.spaces import with_spaces
from hpcdi.roles.collector.mpi_fs_collector import MPIFileSystemCollector
from hpcdi.run import beginnings, kept_costs
from hpcdi.run.beginnings import settings_of
from hpcdi.run.own_code import named
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import PolicyImage, publish_policy
from hpcdi.types import Leaf, Spaces
from hpcdi.utils.nested import unflatten
from hpcdi.worker.coordinator.commanders import create_parallel_commander

pytestmark = pytest.mark.usefixtures("same_process_state", "away")
HERE = np.array([0.0], np.float32)


def small(env: Any = Walk, **others: Any) -> hpcdi.Run:
    return hpcdi.train(env, "ppo", **{"settings": SMALL, "max_env_step": 128, **others})


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder in which runs may be left."""
    monkeypatch.chdir(tmp_path)


def as_this_process() -> dict[str, str]:
    """Variables by which another one finds the same modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def test_a_class_is_trained_and_acts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP)
    before = [signal.getsignal(number) for number in numbers]
    run = small(seed=3)
    assert [signal.getsignal(number) for number in numbers] == before
    assert "evaluation 1" in capsys.readouterr().out
    assert (run.state, run.solved) == ("done", False)
    assert run.folder.parent == tmp_path / "runs" / "walk_ppo"
    assert run.config["seed"] == 3
    assert run.config["env"]["env_id"] == "fakes.interrupting_env:Walk"
    steps, returns = run.curve("curves/evaluation_return")
    assert returns.tolist() == run.returns.tolist()
    assert len(steps) == 2
    with pytest.raises(KeyError, match="there are curves/"):
        run.curve("loss")
    assert sum(len(episode) for episode in run.episodes(unfinished=True)) == 128
    assert run.report(tmp_path / "r.html").read_text().startswith("<!doctype html>")

    assert run.policy.act(HERE) in (3, 4)
    with pytest.raises(EnvValueError, match=r"observation: .* the space says float32 \[1\]"):
        run.policy.act(np.zeros(3))
    for number in (np.nan, np.inf):
        with pytest.raises(EnvValueError, match=f"observation: {number}, and a policy acts on"):
            run.policy.act(np.array([number], np.float32))
    capsys.readouterr()
    assert main(["eval", str(run.folder), "--episodes", "4", "--json"]) == 0
    assert f'"return_mean": {run.policy.evaluate(episodes=4).mean}' in capsys.readouterr().out
    assert run.policy.evaluate({"env_id": Walk, "kwargs": {"length": 5}}, 3).lengths

    again = hpcdi.train(resume=run, max_env_step=256)
    assert again.folder == run.folder
    assert again.figures["env_steps"] == 256


class Boasting(Walk):
    """States returns that are no numbers."""

    def step(self, action: Any) -> Any:
        *step, _ = super().step(action)
        return *step, {"eval_episode_return": self.np_random.choice([np.inf, np.nan])}


def test_a_stated_return_that_is_not_finite_is_none(tmp_path: Path) -> None:
    """By an infinite one a run was solved; by NaN nobody could read its status."""
    run = small(Boasting, run_dir=tmp_path / "run")
    assert run.reason == "max_env_step reached: 128 of 128"
    assert len(run.returns) == 2
    assert np.isfinite(run.returns).all()


def test_a_policy_that_draws_its_actions_is_evaluated_alike(kept: Callable[[str], Path]) -> None:
    policy = hpcdi.load(kept("ppo"), settings={"policy.eval.sample": True})
    assert policy.evaluate(episodes=5).returns == policy.evaluate(episodes=5).returns


def test_a_policy_of_dicts_is_evaluated(tmp_path: Path) -> None:
    parameters = {"weight": torch.zeros(2, 4), "bias": torch.tensor([0.0, 1.0])}
    file = tmp_path / "p.safetensors"
    publish_policy(file, PolicyImage.of(parameters, 1))
    policy = hpcdi.load(file, config=FOREIGN)
    policy.reset()
    assert max(policy.evaluate(episodes=3).returns) <= 11
    with pytest.raises(PolicyError, match="in the environments of a run only: use evaluate"):
        policy.act(np.zeros(4, np.float32))


def test_an_interrupted_run_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Walk, "interrupts_at", 50)
    with pytest.raises(KeyboardInterrupt, match=r"received SIGINT; go on by hpcdi.train\(resume"):
        small(run_dir=tmp_path / "run", max_env_step=1e6)
    run = hpcdi.Run(tmp_path / "run")
    assert run.state == "stopped"
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)  # a notebook gets the run
    monkeypatch.setattr(Walk, "interrupts_at", 50)
    assert hpcdi.train(resume=run).state == "stopped"
    assert hpcdi.train(resume=str(run.folder), max_env_step=256).state == "done"


def test_a_function_is_written_into_the_run_folder(tmp_path: Path) -> None:
    length = 3

    def make() -> Walk:
        return Walk(length)

    run = small(make, run_dir=tmp_path / "run")
    (module,) = (run.folder / "code").iterdir()
    assert run.config["env"]["env_id"] == f"{module.stem}:make"
    with pytest.raises(LaunchError, match="holds another run"):
        small(make, run_dir=run.folder)
    assert len(list((run.folder / "code").iterdir())) == 1
    script = f"import hpcdi; print(hpcdi.load({str(run.folder)!r}).make_env().unwrapped._length)"
    done = python("-c", script, env=as_this_process())
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_a_memory_lasts_an_episode(tmp_path: Path) -> None:
    settings = {**SMALL, "policy.model.memory": "lstm", "policy.collect.unroll_len": 8}
    run = hpcdi.train(Walk, "ppo", settings=settings, max_env_step=64, run_dir=tmp_path / "run")
    policy = run.policy

    def state() -> float:
        return float(sum(s.abs().sum() for s in policy._actor.states.read(np.arange(1)).values()))

    assert state() == 0
    policy.act(HERE)
    once = state()
    policy.act(HERE)
    assert state() not in (0, once)
    policy.reset()
    policy.act(HERE)
    assert state() == pytest.approx(once)


def test_masks_are_heard(kept: Callable[[str], Path]) -> None:
    pytest.importorskip("pettingzoo")
    policy = hpcdi.load(kept("battle"))
    board = np.zeros((3, 3, 2), np.int8)
    for place in (2, 7):
        mask = np.zeros(9, np.int8)
        mask[place] = 1
        assert policy.act(board, mask=mask) == place
        assert policy.act({"observation": board, "action_mask": mask}) == place


def choosing(env: str, where: str, mask: str, chosen: Any) -> tuple[Any, list[Any]]:
    """A policy that always takes the same action, and the masks that it has heard."""
    kwargs = {"where": where}
    cfg = {"type": "gymnasium", "env_id": env, "kwargs": kwargs, "action_mask": mask}
    config = SimpleNamespace(env=get_env_cls(cfg).parse_config(cfg))
    heard: list[Any] = []

    def choose(columns: Any, _settings: Any) -> Any:
        heard.append(columns["action_mask"][0].tolist())
        return chosen

    policy = hpcdi.Policy.__new__(hpcdi.Policy)
    policy._loaded = SimpleNamespace(config=config)  # type: ignore[assignment]
    policy.__dict__ |= {"_actor": SimpleNamespace(act=choose), "_team": None}
    return policy, heard


@pytest.mark.parametrize("where", ["info", "legal", "action_mask"])
def test_masks_are_heard_as_the_environment_returns_them(where: str) -> None:
    """By name, and under the key that env.action_mask names."""
    mask = "" if where == "action_mask" else where
    chosen = {"action/attack": np.array([1]), "action/move": np.array([2])}
    policy, heard = choosing("fakes.named_masks:Named", where, mask, chosen)
    observation, info = Named(where).reset()
    assert policy.act(observation, mask=info.get("action_mask")) == {"attack": 1, "move": 2}
    wrapped, _ = policy.make_env().reset(seed=0)
    policy.act(wrapped)
    at = observation if where == "info" else {"at": observation["at"]}
    policy.act(at, mask=LEGAL)
    assert heard == [[False, True, True, False, True]] * 3
    with pytest.raises(EnvValueError, match=r"\(mask\) has parts of the names \['moves'\]"):
        policy.act(at, mask={"moves": [1]})


def test_masks_by_any_name_are_heard_where_the_action_has_none() -> None:
    """Under the key that env.action_mask names; they go by the order of their own space."""
    chosen = {"action": np.array([[2, 1]])}
    policy, heard = choosing("fakes.named_masks:Nameless", "legal", "legal", chosen)
    assert policy.act(Nameless("legal").reset()[0]).tolist() == [2, 1]
    policy.act(policy.make_env().reset(seed=0)[0])
    assert heard == [[True, False, True, False, True]] * 2


def test_a_mask_that_nobody_hears_is_refused(kept: Callable[[str], Path]) -> None:
    policy = hpcdi.load(kept("dqn"))
    here = np.zeros(4, np.float32)
    assert policy.act(here) in (0, 1)
    with pytest.raises(PolicyError, match=r"has no masks of actions, .* env.action_mask"):
        policy.act(here, mask=[1, 0])


def test_players_of_a_team_act(tmp_path: Path) -> None:
    meet = {"type": "team", "env_id": "hpcdi.env.games:Meet"}
    run = small(meet, run_dir=tmp_path / "run")
    here, there = np.array([1, 5]), np.array([5, 1])
    env = run.policy.make_env()
    observation, _ = env.reset()
    observation["players"] = {"player_0": here, "player_1": there}
    both = run.policy.act(observation)
    assert run.policy.act({"player_1": there, "player_0": here}) == both
    assert run.policy.act({"player_1": there}) == {"player_1": both["player_1"]}
    with pytest.raises(EnvValueError, match="'fox' is no player; there are player_0, player_1"):
        run.policy.act({"fox": here})
    with pytest.raises(EnvValueError, match=r"give a dict.*player_0, player_1"):
        run.policy.act((here, there))


def test_players_that_have_numbers_learn_and_act(tmp_path: Path) -> None:
    """It was a TypeError."""
    env = {"type": "team", "env_id": "fakes.battle_envs:Numbers"}
    settings = {name: value for name, value in SMALL.items() if "epoch" not in name}
    run = hpcdi.train(
        env, "vdn", run_dir=tmp_path / "run",
        settings={**settings, f"{LIMIT}.max_train_iter": 4},
    )  # fmt: skip
    assert (run.state, len(run.returns) > 0) == ("done", True)
    assert len(run.curve("info/return/10")[0])
    episode = next(run.episodes())
    assert episode.observations["observation/players/10"].shape == (5, 1)
    seen = np.ones(1, np.float32)
    chosen = hpcdi.load(run.folder).act({10: seen, 3: seen})
    assert [*chosen] == [10, 3]
    assert all(action in range(4) for action in chosen.values())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"env": Walk()}, "is an environment already, and each rank makes its own: give its class"),
        ({"env": None}, "name an environment"),
        ({"env": "CartPole-v1", "ranks": 2}, "ranks=2: 1 trains in this process, 3 or more"),
        ({"env": "configs/cartpole_ppo.yaml", "policy": "dqn"}, "names its policy"),
        ({"env": Walk, "resume": "runs/x"}, "leave env, policy and run_dir out"),
    ],
)
def test_what_cannot_start_is_said(given: dict[str, Any], said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        hpcdi.train(**given)


def test_a_rank_starts_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    said = r"this process is one: start the script without mpirun[\s\S]* unset OMPI_COMM_WORLD_RANK"
    with pytest.raises(LaunchError, match=said):
        hpcdi.train("CartPole-v1", "ppo")


def test_wrong_settings_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        hpcdi.train(lambda: Walk(), "ppo", settings={"policy.lern.batch_size": 3}, exp_name="own")
    said = "the experiment own has 1 problem\n  - policy.lern: unknown key; did you mean 'learn'?"
    assert str(caught.value) == said
    assert caught.value._render_traceback_() == [f"ConfigError: {said}"]  # what a notebook shows
    given = {"data": ["runs/none/latest"], "policy.other.commander.offline_iterations": 1}
    with pytest.raises(ConfigError, match="runs/none/latest: is no folder of a run"):
        hpcdi.train(Walk, "dqn", settings=given, exp_name="own")
    assert not list(tmp_path.glob("runs/*/*"))
    with pytest.raises(ConfigError, match="is no setting: a type is no number"):
        hpcdi.train(Walk, "ppo", settings={"policy.nstep": int})


def test_what_an_environment_raises_ends_the_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"

    class Broken(Walk):
        def step(self, action: Any) -> Any:
            if (run_dir / "run.json").exists():
                sys.exit("no licence")
            return super().step(action)

    with pytest.raises(EnvError, match=r"all 2 environments are retired; .*no licence") as caught:
        small(Broken, run_dir=run_dir)
    assert caught.value.exit_code == 1
    assert hpcdi.Run(run_dir).state == "failed"


SCRIPT = """
import hpcdi
from hpcdi.run.own_code import named
from pathlib import Path

class Mine: ...

{}print(*named(Mine, lambda: Path("code")))
"""
BELOW = """
if __name__ == "__main__":
    from pathlib import Path

    from hpcdi.run.own_code import named

    class Mine: ...

    print(*named(Mine, lambda: Path("code")))
"""


@pytest.mark.parametrize(
    ("guard", "file", "said"),
    [
        ('if __name__ == "__main__":\n    ', "mine.py", "mine:Mine ('{}',)"),
        ("", "mine.py", "own_"),
        ('if __name__ == "__main__":\n    ', "json.py", "own_"),  # another module's name
        ('if __name__ == "__main__":\n    ', "-", "own_"),
    ],
)
def test_a_class_of_a_script_is_found(tmp_path: Path, guard: str, file: str, said: str) -> None:
    script = SCRIPT.format(guard)
    if file != "-":
        (tmp_path / file).write_text(script)
    done = python("-P", file, cwd=tmp_path, input=script)
    assert done.stdout.startswith(said.format(tmp_path)), done.stderr


def test_what_a_script_defines_below_its_guard_is_written(tmp_path: Path) -> None:
    """Who imports the script does not define it."""
    (tmp_path / "mine.py").write_text(BELOW)
    done = python("-P", "mine.py", cwd=tmp_path)
    assert done.stdout.startswith("own_"), done.stderr


def test_a_module_of_a_package_that_runs_as_the_script_is_imported_as_one(tmp_path: Path) -> None:
    package = tmp_path / "folder" / "package"
    package.mkdir(parents=True)
    (package / "train.py").write_text(SCRIPT.format('if __name__ == "__main__":\n    '))
    done = python("-m", "package.train", cwd=package.parent)
    assert done.stdout.split() == ["package.train:Mine", f"('{package.parent}',)"], done.stderr


def test_texts_of_a_files_callbacks_stay_as_they_are(tmp_path: Path) -> None:
    """Callbacks of the call come to them as settings, in which a reference is looked up."""
    file = tmp_path / "x.yaml"
    file.write_text("callbacks: [{type: 'own:Note', text: '\\${b}'}]\n")
    settings = api._callback_settings(["early_stop"], lambda: tmp_path, api._settings_in(file))
    made = read_mapping(file, [f"callbacks={api._as_yaml(settings['callbacks'])}"])
    assert made["callbacks"] == [{"type": "early_stop"}, {"type": "own:Note", "text": "${b}"}]
    before = {"system.import_path": "mods"}
    after = api._callback_settings(["early_stop"], lambda: tmp_path, before)
    assert after["system.import_path"] == ["mods"], "not letter by letter"


@pytest.mark.parametrize("how", [["folder"], ["-m", "pdb", "-c", "continue", "mine.py"]])
def test_a_script_that_nobody_can_import_is_written(tmp_path: Path, how: list[str]) -> None:
    """A folder that runs is `__main__` to itself, and pdb leaves no `__spec__` in a script."""
    (tmp_path / "folder").mkdir()
    for file in ("folder/__main__.py", "mine.py"):
        (tmp_path / file).write_text(SCRIPT.format('if __name__ == "__main__":\n    '))
    done = python(*how, cwd=tmp_path, input="q")
    assert done.stdout.startswith("own_"), (done.stdout, done.stderr)


REGISTERS = """
import gymnasium
import hpcdi
from hpcdi.api import _registration

class Mine: ...

{registers}
{guard}print(_registration({{"env.env_id": "Mine-v0"}}, []) or "known")
"""
GUARD = 'if __name__ == "__main__":\n    '
MINE = 'gymnasium.register("Mine-v0", entry_point=Mine)'
OTHERS = 'gymnasium.register("Mine-v0", "gymnasium.envs.classic_control:CartPoleEnv")'
VECTORS = 'gymnasium.register("Mine-v0", vector_entry_point=Mine)'


@pytest.mark.parametrize(
    ("registers", "guard", "file", "said"),
    [
        (MINE, GUARD, "mine.py", "['mine']"),
        (VECTORS, GUARD, "mine.py", "['mine']"),
        (MINE.replace("Mine)", '"__main__:Mine")'), GUARD, "mine.py", "['mine']"),
        (OTHERS, GUARD, "mine.py", "['mine']"),
        ("from envs.walks import walk", GUARD, "mine.py", "['envs']"),
        ("from envs.walks import walk", "", "mine.py", "['envs']"),
        ("from envs.walks import walk", "", "-", "['envs']"),
        (MINE, "", "mine.py", None),  # who imports it would train, too
        (MINE, "", "-", None),
        ("", f"{GUARD}{MINE}; ", "mine.py", None),
        ("import envs.apart", GUARD, "mine.py", "['mine']"),  # which imports what registers
        ("import envs.apart", "", "mine.py", None),
    ],
)
def test_an_id_that_is_registered_here_is_known_elsewhere_or_refused(
    tmp_path: Path, registers: str, guard: str, file: str, said: str | None
) -> None:
    """It trained in one process, and nobody could evaluate or resume the run; ranks failed."""
    package = tmp_path / "envs"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import gymnasium\ngymnasium.register('Mine-v0', 'envs.walks:Walk')\n"
    )
    (package / "walks.py").write_text("walk = 1\n")
    if "apart" in registers:
        (package / "__init__.py").write_text("")
        (package / "apart.py").write_text(
            "import gymnasium\ngymnasium.register('Mine-v0', 'envs.walks:Walk')\n"
        )
    script = REGISTERS.format(registers=registers, guard=guard)
    if file != "-":
        (tmp_path / file).write_text(script)
    done = python(file, cwd=tmp_path, input=script)
    if said is None:
        assert "env.env_id: 'Mine-v0' is registered in this process alone" in done.stderr
    else:
        assert f"{{'env.import_names': {said}, " in done.stdout, done.stderr
        assert f"'system.import_path': ['{tmp_path}']" in done.stdout


@pytest.mark.parametrize(
    ("env", "settings"),
    [("{env_id: '???'}", {"env.env_id": "CartPole-v1"}), ("{env_id: '${x.id}'}", {"x.id": "Mine"})],
)
def test_what_settings_fill_in_a_file_is_read_with_them(
    tmp_path: Path, env: str, settings: dict[str, str]
) -> None:
    (tmp_path / "x.yaml").write_text(f"exp_name: x\nenv: {env}\npolicy: {{type: ppo}}\n")
    given = api._settings_in(tmp_path / "x.yaml", tuple(api._overrides(settings)))
    assert [given["env.env_id"]] == list(settings.values())


def test_ids_that_others_know_are_left_as_they_are() -> None:
    known = {"env.env_id": "CartPole-v1"}, {"env.env_id": "CartPole"}, {"env.env_id": "own:Class"}
    unknown = {"env.env_id": "Nobody-v0"}, {"env.env_id": "a:Nobody-v0"}, {"env.env_id": 3}, {}
    others = {"env.env_id": "CartPole-v1", "env.type": "envpool"}
    for settings in (*known, *unknown, others):
        assert api._registration(settings, []) == {}


def test_a_run_of_an_id_of_a_script_is_evaluated_and_resumed(tmp_path: Path) -> None:
    registers = "gymnasium.register('Mine-v0', 'fakes.interrupting_env:Walk')"
    train = f"hpcdi.train('Mine-v0', 'ppo', settings={SMALL}, max_env_step=64, run_dir='run')"
    (tmp_path / "mine.py").write_text(f"import gymnasium, hpcdi\n{registers}\n{GUARD}{train}\n")
    elsewhere = as_this_process()
    done = python("mine.py", cwd=tmp_path, env=elsewhere)
    assert done.returncode == 0, done.stderr
    commands = ["eval", "run", "--episodes", "1"], ["serial", "--resume", "run"]
    for words in ([*commands[0]], [*commands[1], f"{LIMIT}.max_env_step=96"]):
        done = python("-m", "hpcdi", *words, cwd=tmp_path, env=elsewhere)
        assert done.returncode == 0, done.stderr


def test_an_experiments_file_names_an_id_of_the_script(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("exp_name: x\nenv: {type: gymnasium, env_id: Mine-v0}\npolicy: {type: ppo}\n")
    gymnasium.register("Mine-v0", lambda: Walk())
    try:
        with pytest.raises(ConfigError, match="'Mine-v0' is registered in this process alone"):
            hpcdi.train(str(file), max_env_step=64, run_dir=tmp_path / "run")
        assert not (tmp_path / "run").exists()
    finally:
        gymnasium.registry.pop("Mine-v0")


def test_numbers_among_the_keys_of_an_environments_arguments_stay_numbers() -> None:
    kwargs = {1: 2, "a": 3, "deep": {np.int64(4): 5, np.float64(0.5): 6}}
    env = {"env_id": "CartPole-v1", "kwargs": kwargs}
    experiment = api._experiment(env, None, {}, SimpleNamespace(name=""))
    with contextlib.ExitStack() as stack:
        made = read_mapping(api._written(experiment, stack))
    assert made["env"]["kwargs"] == {1: 2, "a": 3, "deep": {4: 5, 0.5: 6}}
    config = compile_config({**made, "system": {"deterministic": True}}).config
    assert repeats_as(config, 1)
    assert kept_costs.kept(config) is None


def test_a_class_of_a_folder_that_is_no_package_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain_folder_of_a_test").mkdir()
    (tmp_path / "plain_folder_of_a_test" / "walk.py").write_text("class Mine: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("plain_folder_of_a_test.walk")
    found = named(module.Mine, lambda: tmp_path)
    assert found == ("plain_folder_of_a_test.walk:Mine", (str(tmp_path),))


def test_folders_and_schedules_of_the_call_are_heard(tmp_path: Path) -> None:
    """A folder of its own does not take the place of that of the class."""
    env = {"env_id": Walk, "schedule": {"kwargs.length": {"values": [2, 3], "when": "callback"}}}
    settings = {**SMALL, "system.import_path": [str(tmp_path)]}
    run = hpcdi.train(env, "ppo", settings=settings, max_env_step=128)
    config = read_mapping(run.folder / "config.yaml")
    assert str(tmp_path) in config["system"]["import_path"]
    assert str(Path(__file__).parents[1]) in config["system"]["import_path"]
    assert config["exp_name"] == "walk_ppo"
    assert list(config["env"]["schedule"]) == ["kwargs.length"]


def test_folders_in_sections_and_limits_in_minutes_are_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is no list of folders is refused by its name."""
    asked: list[Any] = []

    class Heard(Exception): ...

    def start(request: Any, *, over_ranks: bool) -> Any:
        asked.append(load(request.config, request.overrides).config.system.import_path)
        asked.append(request.time_limit)
        raise Heard

    monkeypatch.setattr(api, "start", start)
    settings = {**SMALL, "system": {"import_path": [str(tmp_path)]}}
    with pytest.raises(Heard):
        small(settings=settings, run_dir=tmp_path / "run", time_limit=90)
    assert {str(tmp_path), str(Path(__file__).parents[1])} <= {*asked[0]}
    assert asked[1] == "90"
    for wrong in ("folder", 3):
        with pytest.raises(ConfigError, match=r"system\.import_path: must be a list"):
            small(settings={**SMALL, "system.import_path": wrong})


def test_the_environment_of_a_policy_is_that_of_evaluations(tmp_path: Path) -> None:
    """Without wrappers that only change rewards."""
    scaled = {"env_id": Walk, "wrappers": [{"type": "ScaleReward", "scale": 0.1}]}
    run = small(scaled, run_dir=tmp_path / "run")
    env = run.policy.make_env()
    env.reset(seed=0)
    total, is_over = 0.0, False
    while not is_over:
        _, reward, terminated, truncated, _ = env.step(4)
        total, is_over = total + reward, terminated or truncated
    assert total > 0.9, "to the right end, which pays 1"


class OwnCollector(MPIFileSystemCollector):
    made = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        OwnCollector.made += 1


def test_a_collector_rank_of_ones_own_serves_in_one_process() -> None:
    own = f"{OwnCollector.__module__}:OwnCollector"
    hpcdi.train(Walk, "ppo", settings={**SMALL, "system.comm_collector.type": own}, max_env_step=64)
    assert OwnCollector.made == 1


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("policy.other.replay_buffer", "replay_buffer.advanced_buffer:AdvancedReplayBuffer"),
        ("policy.collect.serial_collector", "collector:SampleSerialCollector"),
        ("policy.eval.evaluator", "collector:InteractionSerialEvaluator"),
    ],
)
def test_a_part_that_no_run_would_make_is_refused(path: str, own: str) -> None:
    with pytest.raises(ConfigError, match=rf"{path}.type: .* would never be made: a run has its"):
        hpcdi.train(Walk, "dqn", settings={f"{path}.type": f"hpcdi.worker.{own}"})
    part = {
        "exp_name": "own",
        "env": {"env_id": "CartPole-v1"},
        f"{path}.type": f"hpcdi.worker.{own}",
    }
    assert create_parallel_commander(unflatten(part, ".")), "in a program of one's own"


def test_a_run_that_was_moved_takes_its_code_along(tmp_path: Path) -> None:
    class Inside(Walk): ...

    run = small(Inside, run_dir=tmp_path / "run")
    moved = run.folder.rename(tmp_path / "moved")
    name = read_mapping(moved / "config.yaml")["env"]["env_id"]
    module, file = name.partition(":")[0], str(moved / "config.yaml")
    code = f"from hpcdi.config.load import load; load({file!r}); import {module}"
    done = python("-P", "-c", code, env=as_this_process())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("every", "evaluations"),
    [
        ("20000 env_steps", 12),
        ("2000 env_steps", 125),
        ("2e3 env_steps", 125),
        ("100000 env_steps", 3),
        ("500 iterations", 10),
        ("60 seconds", 10),
        (None, 10),
        (2000, 10),  # refused later, by its name
    ],
)
def test_a_run_waits_for_a_quarter_of_its_evaluations(every: Any, evaluations: int) -> None:
    settings = {**settings_of("ppo"), "policy.eval.every": every}
    assert beginnings.early_stop_of(settings)["evaluations"] == evaluations


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    lock = __import__("threading").Lock()
    with pytest.raises(LaunchError, match=r"cannot be written by cloudpickle either: .*lock"):
        named(lambda: lock, lambda: tmp_path)


@pytest.mark.parametrize(
    ("algorithm", "memory"),
    [
        *((each, "none") for each in sorted(beginnings._OF) if each != "r2d2"),
        *((each, "gru") for each in ("r2d2", "impala", *sorted(beginnings._WITH_MEMORY))),
    ],
)
def test_beginnings_are_experiments(algorithm: str, memory: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"env: {{env_id: X-v0}}\npolicy: {{type: {algorithm}}}\n")
    settings = settings_of(algorithm, remembers=memory != "none")
    settings |= {} if memory == "none" else {"policy.model.memory": memory}
    overrides = [f"{path}={api._as_yaml(value)}" for path, value in settings.items()]
    policy = load(file, overrides).config.policy
    assert isinstance(policy, TorchPolicyConfig)
    assert policy.type == algorithm
    box, one_of, picture = (
        Leaf("", (3,)),
        Leaf("", (), "int64", (5,)),
        Leaf("", (40, 40, 3), "uint8"),
    )
    parts = (Leaf("at", (3,)), Leaf("kind", (), "int64", (5,)))
    acts = Leaf("", (2,), low=(-1.0, -1.0), high=(1.0, 1.0)), Leaf("", (), "int64", (2,))
    for seen in ((box,), (one_of,), (picture,), parts, parts[1:]):
        for act in acts:
            if ("discrete" if act.counts else "continuous") in policy.ACTIONS:
                assert with_spaces(policy, Spaces(seen, (act,)))[1] == []


def test_beginnings_with_given_data_count_iterations() -> None:
    chosen: dict[str, Any] = {"data": ["runs/x"]}
    for settings in (chosen, chosen | {"policy.other.commander.offline_iterations": float("inf")}):
        offline = api._experiment("CartPole-v1", "dqn", settings, _NoFolder())
        assert offline["policy.eval.every"] == "500 iterations"
        assert "policy.other.replay_buffer.min_fill" not in offline
    online = chosen | {"policy.other.commander.offline_iterations": 9}
    for settings in ({}, online):
        begun = api._experiment("CartPole-v1", "dqn", settings, _NoFolder())
        assert begun["policy.eval.every"] == "10000 env_steps"


@pytest.mark.parametrize("settings", [{"policy.type": "sac"}, {"policy": {"type": "sac"}}])
def test_an_algorithm_among_the_settings_begins_as_that_one(settings: dict[str, Any]) -> None:
    begun = api._experiment("Pendulum-v1", None, settings, _NoFolder())
    named = api._experiment("Pendulum-v1", "sac", {}, _NoFolder())
    assert begun | {"policy.type": "sac"} == named


@pytest.mark.parametrize(
    ("policy", "path", "others"),
    [
        ({"other": {"eps": {"end": 0.1}}}, "policy.other.eps.end", {"policy.other.eps.start"}),
        ({"other": {"eps": 0.1}}, "policy.other.eps", set()),
        ({"type": "ppo", "normalize": {}}, "policy.normalize", set()),
    ],
)
def test_sections_of_a_policy_change_what_it_begins_with(
    policy: dict[str, Any], path: str, others: set[str]
) -> None:
    begun = api._experiment("CartPole-v1", {"type": "dqn", **policy}, {}, _NoFolder())
    assert path in begun
    assert others <= begun.keys()
    assert not [key for key in unflatten(begun, ".") if "." in key], "a setting lies elsewhere"


class _NoFolder(api._CodeFolder):
    def __init__(self) -> None:
        super().__init__(None, contextlib.ExitStack(), is_there=False)


def test_a_run_without_curves_says_so(tmp_path: Path) -> None:
    RunLayout(tmp_path).run_file.write_text('{"state": "running"}')
    assert hpcdi.Run(tmp_path).state == "dead", "its process is gone"
    with pytest.raises(KeyError, match="the run has none yet"):
        hpcdi.Run(tmp_path).curve("loss")
