"""`hpcdi eval`: which policy it takes, what it says of it, what it refuses and leaves alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes.serial_runs import COUNT, DQN, ROOT, RUNS, files_of, policy_file
from fakes.videos import decode_mp4
from hpcdi.cli import main
from hpcdi.commands import film
from hpcdi.commands.saved_policy import find_policy
from hpcdi.store.checkpoints import save_checkpoint
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import PolicyImage, publish_policy, read_policy

pytest.importorskip("pettingzoo")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of PettingZoo
    pytest.mark.usefixtures("same_process_state"),
]


@pytest.fixture
def run_dir(kept: Callable[[str], Path], tmp_path: Path) -> Path:
    """A DQN run of CartPole, to be written to."""
    return Path(shutil.copytree(kept("dqn"), tmp_path / "run"))


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Evaluates; gives the JSON object, which is all that is printed."""

    def evaluate(path: Path, *arguments: str) -> dict[str, Any]:
        capsys.readouterr()
        code = main(["eval", str(path), *arguments, "--json"])
        out, err = capsys.readouterr()
        assert code == 0, err
        (line,) = out.splitlines()
        return dict(json.loads(line))

    return evaluate


# ------------------------------------------------------------------------------------ what it says


@pytest.mark.parametrize("name", RUNS)
def test_figures_of_a_run(
    kept: Callable[[str], Path], told: Callable[..., dict[str, Any]], name: str
) -> None:
    few = ["--episodes", "5"] * (name == "pendulum")  # they are long
    said = told(kept(name), *few)
    returns, lengths = np.array(said["returns"]), np.array(said["lengths"])
    count = 5 if few else 20
    assert len(returns) == len(lengths) == said["episodes"] == count, "more than its environments"
    for figure, value in (
        ("return_mean", returns.mean()), ("return_std", returns.std()),
        ("return_median", np.median(returns)), ("return_min", returns.min()),
        ("return_max", returns.max()), ("length_mean", lengths.mean()),
        ("steps_per_s", lengths.sum() / said["seconds"]),
    ):  # fmt: skip
        assert said[figure] == pytest.approx(value), figure
    if name in ("dqn", "ppo"):
        assert returns.tolist() == lengths.tolist(), "each step of CartPole is worth 1"
    elif name == "pendulum":
        assert (lengths == 200).all()
        assert (returns < 0).all()
    else:
        assert set(returns) <= {-1.0, 0.0, 1.0}
        assert (lengths >= 3).all()
        assert (lengths <= 9).all()
    assert said["train_iter"] == read_policy(Path(said["policy"])).version
    assert (said["stop_value"], said["stop_value_reached"]) == (1e9, False)
    assert (said["seed"], said["video"]) == (0, None)


def test_what_people_read(kept: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(kept("dqn")), "env.stop_value=5", "--episodes", "3"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for said in (
        "policies/best.safetensors: the run's best policy, train iteration ",
        "config.yaml\n", "3 episodes in 2 of CartPole-v1, seed 0\n", "mean return ", " ± ",
        "median ", "min, max ", "mean length ", "steps/s\n", "stop value   5: reached\n",
    ):  # fmt: skip
        assert said in out, said


@pytest.mark.parametrize("name", ["dqn", "pendulum", "battle"])
def test_the_same_seed_gives_the_same_figures(
    kept: Callable[[str], Path], told: Callable[..., dict[str, Any]], name: str
) -> None:
    def episodes(*arguments: str) -> Any:
        said = told(kept(name), *arguments, "--episodes", "3")
        return said["returns"], said["lengths"]

    first = episodes("--seed", "3")
    torch.rand(5)
    assert episodes("--seed", "3") == first
    assert episodes("--seed", "4", "seed=3") != first
    if name == "dqn":
        assert episodes("seed=3") == first, "the experiment's, where none is given"
        assert episodes() == episodes("--seed", "0")


@pytest.mark.parametrize(
    ("arguments", "episodes"),
    [
        (["--episodes", "1"], 1),
        (["env.evaluator_episode_num=15"], 30),
        (["policy.eval.evaluator.n_episode=25"], 25),
        (["policy.eval.evaluator.n_episode=3"], 20),
        (["policy.eval.evaluator.type=metric"], 20),
    ],
)
def test_how_many_episodes(
    tmp_path: Path, told: Callable[..., dict[str, Any]], arguments: list[str], episodes: int
) -> None:
    file = policy_file(tmp_path, "cartpole_dqn", *COUNT)
    said = told(file, *COUNT, *arguments)
    assert said["returns"] == [15.0] * episodes
    assert said["lengths"] == [5] * episodes


def test_an_episode_that_failed_is_not_counted(
    tmp_path: Path, told: Callable[..., dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    file = policy_file(tmp_path, "cartpole_dqn", *COUNT)
    said = told(file, *COUNT, "env.kwargs.fail_at=7")
    assert "planted failure at step 7" in caplog.text
    assert (said["returns"], said["lengths"]) == ([15.0] * 20, [5] * 20)


def push_right(parameters: Mapping[str, torch.Tensor]) -> None:
    for tensor in parameters.values():
        tensor.zero_()
    parameters["advantage.bias"][1] = 1.0


def balance(parameters: Mapping[str, torch.Tensor]) -> None:
    """Push to where the pole falls: by its angle and how fast it turns."""
    for tensor in parameters.values():
        tensor.zero_()
    falls = torch.tensor([0.0, 0.0, 1.0, 1.0])
    parameters["encoder.1.weight"][0], parameters["encoder.1.weight"][1] = falls, -falls
    parameters["advantage.weight"][1, 0], parameters["advantage.weight"][1, 1] = 1.0, -1.0


def test_the_parameters_in_the_file_are_what_acts(
    tmp_path: Path, told: Callable[..., dict[str, Any]]
) -> None:
    few = (*DQN, "--episodes", "6")
    bad = told(policy_file(tmp_path / "bad", "cartpole_dqn", *DQN, change=push_right), *few)
    good = told(policy_file(tmp_path / "good", "cartpole_dqn", *DQN, change=balance), *few)
    assert 8 <= bad["return_min"] <= bad["return_max"] <= 11
    assert good["return_min"] > 100


@pytest.mark.parametrize(
    ("stop", "reached"), [(8, True), (15, True), (15.5, False), (".inf", None)]
)
def test_the_stop_value(
    tmp_path: Path, told: Callable[..., dict[str, Any]], stop: Any, reached: bool | None
) -> None:
    file = policy_file(tmp_path, "cartpole_dqn", *COUNT)
    said = told(file, *COUNT, f"env.stop_value={stop}")
    assert said["stop_value_reached"] is reached
    assert said["stop_value"] == (None if reached is None else stop)
    own = told(file, *COUNT, f"env.stop_value={stop}", "policy.eval.evaluator.stop_value=99")
    assert (own["stop_value"], own["stop_value_reached"]) == (99, False)


# ------------------------------------------------------------------------------ which policy it is


def test_of_a_run_the_best_policy_or_else_the_latest(
    run_dir: Path, told: Callable[..., dict[str, Any]], refused: Callable[..., str]
) -> None:
    layout = RunLayout(run_dir)
    model = read_policy(layout.best_policy).state_dict()
    publish_policy(layout.best_policy, PolicyImage.of(model, 11))
    publish_policy(layout.latest_policy, PolicyImage.of(model, 22))
    (run_dir.parent / "latest").symlink_to(run_dir.name)
    for path, arguments, version in (
        (run_dir, [], 11), (run_dir, ["--policy", "best"], 11),
        (run_dir.parent / "latest", [], 11), (run_dir, ["--policy", "latest"], 22),
    ):  # fmt: skip
        assert told(path, *arguments, "--episodes", "1")["train_iter"] == version
    layout.best_policy.unlink()
    assert told(run_dir, "--episodes", "1")["train_iter"] == 22
    assert "holds no best policy; there is --policy latest" in refused(
        "eval", run_dir, "--policy", "best"
    )
    layout.latest_policy.unlink()
    error = refused("eval", run_dir)
    assert "holds no policy; name one of " in error
    named = error.partition("name one of ")[2].strip().split(", ")
    assert [Path(each).name for each in named][:2] == ["ckpt_best", "ckpt_final"]
    for each in named:
        assert find_policy(each).config_file == layout.config_file
    for folder in (layout.checkpoints_dir, layout.snapshots_dir):
        shutil.rmtree(folder)
    assert "holds no policy: it has not saved any yet" in refused("eval", run_dir)


def test_of_a_checkpoint(
    run_dir: Path, told: Callable[..., dict[str, Any]], refused: Callable[..., str]
) -> None:
    image = read_policy(RunLayout(run_dir).best_policy)
    image = PolicyImage.of(image.state_dict(), 33)

    def write(path: Path) -> None:
        publish_policy(path, image)

    made = save_checkpoint(
        run_dir / "checkpoints", "iteration_000000033", {"policy.safetensors": write}, {}, keep=9
    )
    said = told(made)
    assert said["train_iter"] == 33
    assert said["config"] == str(run_dir / "config.yaml")
    assert said["returns"] == told(made / "policy.safetensors")["returns"]
    other = save_checkpoint(
        run_dir / "checkpoints", "iteration_000000034", {"policy1.safetensors": write}, {}, keep=9
    )
    error = refused("eval", other, code=1)
    assert "holds no policy.safetensors; name one of " in error
    assert "policy1.safetensors" in error
    file = made / "policy.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    assert "is torn: policy.safetensors is not what was written" in refused("eval", made, code=1)


@pytest.mark.parametrize("command", ["eval", "export"])
def test_a_torn_file_is_named(run_dir: Path, refused: Callable[..., str], command: str) -> None:
    file = RunLayout(run_dir).best_policy
    data = bytearray(file.read_bytes())
    data[-10] ^= 1
    file.write_bytes(data)
    error = refused(command, run_dir, code=1)
    assert f"{file}: checksum is wrong: the file is torn" in error


def test_a_file_elsewhere_needs_its_configuration(
    run_dir: Path, tmp_path: Path, told: Callable[..., dict[str, Any]], refused: Callable[..., str]
) -> None:
    file = Path(shutil.copy(RunLayout(run_dir).best_policy, tmp_path / "mine.safetensors"))
    said = refused("eval", file)
    assert "no config.yaml lies in the folders above" in said
    assert "--config FILE" in said
    found, own = told(file, "--config", str(run_dir / "config.yaml")), told(run_dir)
    assert (found["policy"], own["policy"]) == (str(file), str(RunLayout(run_dir).best_policy))
    assert found["returns"] == own["returns"]


@pytest.mark.parametrize("command", ["eval", "export"])
def test_what_is_no_policy(
    run_dir: Path, tmp_path: Path, refused: Callable[..., str], command: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    before = files_of(tmp_path)
    assert refused(command, Path("nowhere/run")).startswith(
        f"hpcdi {command}: there is no nowhere/run; name a run folder, a checkpoint's folder or a"
    )
    assert "is neither a run" in refused(command, run_dir / "policies")
    assert refused(command, tmp_path).endswith("did you mean run?")
    assert "config.yaml is no policy" in refused(command, run_dir / "config.yaml")
    file = RunLayout(run_dir).best_policy
    assert "is no run" in refused(command, file, "--policy", "best")
    assert "there is no file 'no.yaml'" in refused(command, file, "--config", "no.yaml")
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("command", ["eval", "export"])
def test_a_policy_that_does_not_fit(
    run_dir: Path, refused: Callable[..., str], command: str
) -> None:
    wider = refused(command, run_dir, "policy.model.encoder_hidden_size_list=[9]")
    assert "does not fit" in wider
    assert (
        "the parameter encoder.1.weight is (8, 4) in the file and (9, 4) by the configuration; name"
        in wider
    )
    deeper = refused(command, run_dir, "policy.model.encoder_hidden_size_list=[8, 2]")
    assert "it lacks the parameter encoder.3.weight (2, 8)" in deeper
    config = str(ROOT / "configs" / "pendulum_ppo.yaml")
    assert "it lacks the parameter" in refused(command, run_dir, "--config", config)
    wrong = refused(command, run_dir, "policy.model.dueling=true", "policy.lern=1", "env.seed=a")
    assert "has 2 problems" in wrong
    assert "policy.lern: unknown key; did you mean 'learn'?" in wrong
    assert "policy.model.obs_shape: is (4,), the environment's is (2,)" in refused(
        command, run_dir, *COUNT[:2]
    )


def test_a_parameter_that_nothing_knows(run_dir: Path, refused: Callable[..., str]) -> None:
    file = RunLayout(run_dir).best_policy
    image = read_policy(file)
    publish_policy(file, PolicyImage.of({**image.state_dict(), "new.bias": torch.zeros(3)}, 1))
    assert "the configuration has no parameter new.bias (3,)" in refused("eval", run_dir)


def test_a_policy_of_somebody_else(
    tmp_path: Path, told: Callable[..., dict[str, Any]], refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    config = str(ROOT / "tests" / "fakes" / "foreign_policy.yaml")
    right = {"weight": torch.zeros(2, 4), "bias": torch.tensor([0.0, 1.0])}
    publish_policy(tmp_path / "p.safetensors", PolicyImage.of(right, 1))
    said = told(tmp_path / "p.safetensors", "--config", config)
    assert said["return_max"] <= 11
    assert said["stop_value_reached"] is None
    error = refused("export", tmp_path / "p.safetensors", "--config", config, code=1)
    assert "policy of type 'foreign' cannot be exported" in error


# ------------------------------------------------------------------------ what it leaves, and films


def test_nothing_is_written(run_dir: Path, told: Callable[..., dict[str, Any]]) -> None:
    before = files_of(run_dir)
    told(run_dir, "policy.eval.evaluator.render.render_freq=1",
         f"policy.eval.evaluator.figure_path={run_dir}")  # fmt: skip
    assert files_of(run_dir) == before


@pytest.mark.parametrize("given", ["", "elsewhere"])
def test_a_film_of_one_episode(
    run_dir: Path, told: Callable[..., dict[str, Any]], given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pygame")
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.chdir(run_dir.parent)
    before = files_of(run_dir)
    arguments = ["--episodes", "2", "--seed", "5"]
    without = told(run_dir, *arguments)
    said = told(run_dir, *arguments, "--video", *[given] * bool(given))
    assert said["returns"] == without["returns"]
    file = Path(said["video"])
    folder = run_dir.parent / given if given else run_dir / "videos"
    assert list(folder.absolute().iterdir()) == [file.absolute()]
    assert file.stem == f"iter_{said['train_iter']:06d}_seed_5"
    frames = decode_mp4(file, 214, 320)  # 400 x 600, scaled down
    assert 8 <= len(frames) <= 500
    assert not np.array_equal(frames[0], frames[-1])
    after = {name: what for name, what in files_of(run_dir).items() if "videos/" not in name}
    assert after == before


def test_a_film_of_a_battle(kept: Callable[[str], Path], tmp_path: Path,
                            capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    pytest.importorskip("pygame")
    assert main(["eval", str(kept("battle")), "--video", str(tmp_path / "films")]) == 0
    out = capsys.readouterr().out
    (file,) = (tmp_path / "films").iterdir()
    assert f"{file}: " in out
    assert " pictures of an episode of return " in out


def test_a_setting_after_video_is_no_folder(
    run_dir: Path, told: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pygame")
    monkeypatch.chdir(run_dir.parent)
    said = told(run_dir, "--episodes", "1", "--video", "seed=9")
    assert (said["seed"], Path(said["video"]).parent) == (9, run_dir / "videos")


@pytest.mark.filterwarnings("ignore:.*render_mode")  # gymnasium's own word
def test_an_environment_that_draws_nothing(tmp_path: Path, refused: Callable[..., str]) -> None:
    file = policy_file(tmp_path, "cartpole_dqn", *COUNT)
    before = files_of(tmp_path)
    error = refused("eval", file, *COUNT, "--video", code=1)
    assert "hpcdi/Count-v0 cannot be filmed (" in error
    assert "render_mode" in error
    assert "; without: " in error
    assert "leave --video out" in error
    assert files_of(tmp_path) == before


@pytest.mark.usefixtures("env_helpers")
@pytest.mark.parametrize("manager", ["base", "subprocess"])
def test_an_environment_that_draws_without_being_told_to(
    tmp_path: Path,
    told: Callable[..., dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
    manager: str,
) -> None:
    pytest.importorskip("imageio_ffmpeg")
    draws = (*DQN, "env.env_id=fakes.drawing_env:Draws", f"env.manager={{type: {manager}}}")
    file = policy_file(tmp_path, "cartpole_dqn", *draws)
    said = told(file, *draws, "--video", str(tmp_path / "films"), "--episodes", "1")
    assert Path(said["video"]).is_file()
    assert not caplog.records, "no failure is shown"


def test_a_film_that_nothing_encodes(
    run_dir: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pygame")

    def missing(*_: Any) -> Any:
        raise ModuleNotFoundError("No module named 'PIL'")

    monkeypatch.setattr(film, "encode_video", missing)
    error = refused("eval", run_dir, "--video", "--episodes", "1")
    assert (
        "nothing here encodes a film (No module named 'PIL'): pip install 'hpcdi[video]'" in error
    )
    assert not (run_dir / "videos").exists()


def test_a_film_that_has_no_place(run_dir: Path, refused: Callable[..., str]) -> None:
    pytest.importorskip("pygame")
    (run_dir / "videos").write_text("in the way")
    error = refused("eval", run_dir, "--video", "--episodes", "1")
    assert "cannot be written: " in error
