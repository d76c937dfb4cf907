"""`hpcdi export`: the file acts as the policy does, on any number of observations; or is not."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes.serial_runs import COUNT, DQN, PPO, RUNS, SMALL, files_of, policy_file
from hpcdi.cli import main
from hpcdi.policy import programs
from hpcdi.policy.create import create_policy
from hpcdi.policy.dqn import DQNPolicy
from hpcdi.policy.networks import Greedy
from hpcdi.run.experiment import load_experiment
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import read_policy
from hpcdi.utils.registry import POLICY_REGISTRY

pytest.importorskip("pettingzoo")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of PettingZoo
    pytest.mark.usefixtures("same_process_state"),
]

HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript"))
BAD = "exported_badly"


@pytest.fixture
def export(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Exports; gives what is said."""

    def run(path: Path, *arguments: str) -> str:
        code = main(["export", str(path), *arguments])
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        return out

    return run


def mode_of(run_dir: Path) -> Any:
    """The eval mode of a run's best policy."""
    compiled, _ = load_experiment(str(run_dir / "config.yaml"), (), over_ranks=None)
    mode = create_policy(compiled.config.policy, ["eval"]).eval_mode
    mode.load_state_dict({"model": read_policy(RunLayout(run_dir).best_policy).state_dict()})
    return mode


def own_actions(mode: Any, observations: Any) -> Any:
    outputs = mode.forward(dict(enumerate(observations)))
    return np.stack([output["action"] for output in outputs.values()])


SHAPES = {
    "dqn": ((4,), "int64 [batch]", "values       float32 [batch, 2]"),
    "ppo": ((4,), "int64 [batch]", "value        float32 [batch]"),
    "pendulum": ((3,), "float32 [batch, 1]", "value        float32 [batch]"),
    "battle": ((3, 3, 2), "int64 [batch]", "values       float32 [batch, 9]"),
}


@pytest.mark.parametrize("name", RUNS)
def test_what_is_written_acts_as_the_policy_does(
    kept: Callable[[str], Path],
    export: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir, (shape, action, value) = kept(name), SHAPES[name]
    before = files_of(run_dir)
    said = export(run_dir)
    file = tmp_path / f"{RUNS[name][0]}.pt2"
    assert list(tmp_path.iterdir()) == [file]
    assert files_of(run_dir) == before
    for words in (
        "the run's best policy, train iteration ", f"written      {file.name}, ",
        f"observation  float32 [batch, {', '.join(map(str, shape))}]\n",
        f"action       {action}\n", f"{value}\n",
        "checked      64 observations, largest difference of an action ",
    ):  # fmt: skip
        assert words in said, words
    masks = [torch.ones(1, 9, dtype=torch.bool)] if name == "battle" else []
    assert ("action_mask  bool [batch, 9]" in said) == bool(masks)
    module, mode = torch.export.load(file).module(), mode_of(run_dir)
    rng = np.random.default_rng(7)
    for batch in (1, 2, 37):
        given = rng.standard_normal((batch, *shape)).astype(np.float32) * 10
        legal = [mask.expand(batch, -1).clone() for mask in masks]
        actions, values, *_ = module(torch.from_numpy(given), *legal)
        own = own_actions(mode, given)
        assert actions.shape == own.shape
        np.testing.assert_allclose(actions.numpy(), own, rtol=1e-5, atol=1e-5)
        assert values.shape[0] == batch
        if "values" in value:
            assert torch.equal(values.argmax(dim=1), actions)


def larger(parameters: Mapping[str, torch.Tensor]) -> None:
    """Means far beyond any bounds."""
    parameters["policy.weight"].mul_(10_000)


def test_continuous_actions_keep_their_bounds(export: Callable[..., str], tmp_path: Path) -> None:
    policy = policy_file(tmp_path, "pendulum_ppo", *PPO, change=larger)
    file = tmp_path / "made" / "policy.pt2"
    export(policy, *PPO, "-o", str(file))
    given = np.random.default_rng(1).standard_normal((50, 3)).astype(np.float32)
    actions, *_ = torch.export.load(file).module()(torch.from_numpy(given))
    assert (actions.min(), actions.max()) == (-2.0, 2.0)
    assert (actions.abs() == 2.0).sum() > 40


def test_what_evaluations_draw_is_exported_as_the_likeliest(
    export: Callable[..., str], tmp_path: Path
) -> None:
    """Beside it plays the policy that takes the likeliest, too."""
    settings = (*PPO, "policy.eval.sample=true", "env.evaluator_env_num=1")
    policy = policy_file(tmp_path, "pendulum_ppo", *settings)
    said = export(policy, *settings, "-o", str(tmp_path / "p.pt2"), "--play", "1")
    assert "evaluations of this run drew theirs (policy.eval.sample)" in said
    assert "played       1 episodes: returns" in said


@pytest.mark.parametrize("dueling", ["true", "false"])
def test_a_fixed_number_of_observations(
    export: Callable[..., str], tmp_path: Path, dueling: str
) -> None:
    settings = (*DQN, f"policy.model.dueling={dueling}")
    policy = policy_file(tmp_path, "cartpole_dqn", *settings)
    said = export(policy, *settings, "-o", str(tmp_path), "--batch", "3")
    assert "observation  float32 [3, 4]\n" in said
    assert "values       float32 [3, 2]\n" in said
    module = torch.export.load(tmp_path / "cartpole_dqn.pt2").module()
    assert module(torch.zeros(3, 4))[0].shape == (3,)
    with pytest.raises((AssertionError, RuntimeError)):
        module(torch.zeros(4, 4))


def test_images(tmp_path: Path) -> None:
    """Of bytes; a whole environment of them is not needed to see it."""
    model = {"obs_shape": (4, 36, 36), "action_shape": 3, "encoder_hidden_size_list": [8]}
    mode = create_policy({"type": "dqn", "model": model}, ["eval"]).eval_mode
    module = mode.get_attribute("export_module")
    program = programs.PROGRAMS["torch"].trace(module, (4, 36, 36), None)
    assert program.signature[0] == ("observation", "float32 [batch, 4, 36, 36]")
    given = np.random.default_rng(0).integers(0, 256, (9, 4, 36, 36), dtype=np.uint8)
    act = programs.PROGRAMS["torch"].load(program.data)
    actions = act({"observation": given.astype(np.float32)})["action"]
    assert actions.tolist() == own_actions(mode, given).tolist()


@pytest.mark.parametrize("unbounded", [True, False])
def test_actions_of_several_axes(unbounded: bool) -> None:
    bounds = {} if unbounded else {"action_low": [-0.1] * 6, "action_high": [0.1, 9, 9, 9, 9, 9]}
    model = {
        "obs_shape": 5, "action_shape": (2, 3), "action_space": "continuous",
        "encoder_hidden_size_list": [8], **bounds,
    }  # fmt: skip
    mode = create_policy({"type": "ppo", "model": model}, ["eval"]).eval_mode
    state = mode.state_dict()["model"]
    mode.load_state_dict({"model": {**state, "policy.weight": state["policy.weight"] * 500}})
    given = torch.randn(20, 5)
    actions, value = mode.get_attribute("export_module")(given)
    own = own_actions(mode, given.numpy())
    assert (actions.shape, value.shape) == ((20, 2, 3), (20,))
    np.testing.assert_allclose(actions.detach().numpy(), own, rtol=1e-5, atol=1e-6)
    assert (np.abs(own).max() > 1) or not unbounded
    assert unbounded or (own.min() == np.float32(-0.1) and own[:, 0, 0].max() == np.float32(0.1))


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("blackjack_ppo", ("observation/0 float32 [batch]", "observation/2 float32 [batch]")),
        (
            "cartpole_novel_ppo_lstm",
            ("state/hidden float32 [batch, 64]", "state/value_cell float32"),
        ),
    ],
)
def test_several_arrays_and_a_memory(
    export: Callable[..., str], tmp_path: Path, config: str, words: tuple[str, ...], suffix: str
) -> None:
    """The command itself plays the written program beside the policy, three steps of episodes."""
    if suffix == ".onnx":
        pytest.importorskip("onnxscript")
    policy = policy_file(tmp_path, config, *SMALL)
    said = " ".join(export(policy, *SMALL, "-o", str(tmp_path / f"p{suffix}")).split())
    assert "checked 64 observations, largest difference of an action 0" in said
    for text in words:
        assert text in said, said


# -------------------------------------------------------------------------------- what is refused


class _Unlike(DQNPolicy):
    """It exports something else than it does."""

    def _get_export_module(self) -> torch.nn.Module:
        class Worst(torch.nn.Module):
            def __init__(self, network: torch.nn.Module) -> None:
                super().__init__()
                self.network = network

            def forward(self, observation: torch.Tensor) -> torch.Tensor:
                worst: torch.Tensor = self.network(observation, {})[0].argmin(dim=1)
                return worst

        return Worst(self._model)


class _Misshapen(DQNPolicy):
    """It exports actions of another shape."""

    def _get_export_module(self) -> torch.nn.Module:
        return Greedy(self._model, lambda values: (values,), ("action",))


class _Untraceable(DQNPolicy):
    """It exports what torch cannot."""

    def _get_export_module(self) -> torch.nn.Module:
        class ByData(torch.nn.Module):
            def forward(self, observation: torch.Tensor) -> torch.Tensor:
                return observation if observation.sum() > 0 else -observation

        return ByData()


@pytest.mark.parametrize(
    ("policy_cls", "said"),
    [
        (_Unlike, "was not written: read back, its actions differ from the policy's by up to 1"),
        (_Misshapen, "was not written: its actions are (64, 2), not (64,)"),
        (
            _Untraceable,
            "ByData cannot be exported: torch.export cannot trace it (Could not guard on d",
        ),
    ],
)
def test_what_does_not_act_as_the_policy_is_not_written(
    tmp_path: Path,
    refused: Callable[..., str],
    policy_cls: type,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(POLICY_REGISTRY._classes, BAD, policy_cls)
    settings = (*DQN, f"policy.type={BAD}")
    policy = policy_file(tmp_path / "run", "cartpole_dqn", *settings)
    there = tmp_path / "out.pt2"
    there.write_text("before")
    error = refused("export", policy, *settings, "-o", str(there), code=1)
    assert said in error
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out.pt2"}
    assert there.read_text() == "before"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "policy.bin"], "-o policy.bin: the file's name must end in .pt2 or .onnx"),
        (["-o", "p.onnx", "--format", "torch"], "-o p.onnx: the file's name must end in .pt2"),
        (["-o", "p", "--format", "onnx"], "-o p: the file's name must end in .onnx"),
        (["-o", "p.f90", "--to", "c"], "-o p.f90: the file's name must end in .c"),
        (["--to", "minari", "--play", "3"], "--play: only for --to torch or onnx or c or fortran"),
        (["--to", "fortran", "--batch", "5"], "--batch: only for --to torch or onnx"),
        (["--to", "c", "--returns", "5:"], "--returns: only for --to minari or parquet"),
        (["-o", "p.pt2", "--steps", ":9", "--player", "x"], "--steps, --player: only for --to min"),
        (
            ["--to", "parquet", "--policy", "best"],
            "--policy: only for --to torch or onnx or c or f",
        ),
    ],
)
def test_names_that_mislead(
    tmp_path: Path, refused: Callable[..., str], arguments: list[str], said: str
) -> None:  # fmt: skip
    assert said in refused("export", tmp_path, *arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(
    tmp_path: Path,
    refused: Callable[..., str],
) -> None:
    policy = policy_file(tmp_path, "cartpole_dqn", *COUNT)
    (tmp_path / "file").write_text("in the way")
    error = refused("export", policy, *COUNT, "-o", str(tmp_path / "file" / "p.pt2"))
    assert "p.pt2 cannot be written: " in error


@pytest.mark.skipif(HAS_ONNX, reason="onnx and onnxscript are installed")
def test_without_its_packages_onnx_says_what_to_install(
    tmp_path: Path,
    refused: Callable[..., str],
) -> None:
    policy = policy_file(tmp_path, "cartpole_dqn", *COUNT)
    before = files_of(tmp_path)
    for arguments in (["--format", "onnx"], ["-o", str(tmp_path / "policy.onnx")]):
        error = refused("export", policy, *COUNT, *arguments)
        assert "--to onnx needs the packages onnx and onnxscript" in error
        assert error.endswith("pip install 'hpcdi[onnx]'")
    assert files_of(tmp_path) == before


# ------------------------------------------------------------------------------------------- teams


def test_each_policy_of_a_team_is_a_file(export: Callable[..., str], tmp_path: Path) -> None:
    normalised = "policy.policies.listener.normalize.observation=true"
    policy = policy_file(tmp_path / "run", "speaker_listener_ppo", normalised)
    said = export(policy, normalised, "-o", str(tmp_path / "talk.pt2"), "--play", "3")
    assert said.count("  acts for     ") == 2
    assert "played       3 episodes: returns are equal" in said
    files = {path.name for path in tmp_path.glob("*.pt2")}
    assert files == {"talk_speaker.pt2", "talk_listener.pt2"}


def test_source_of_a_team_is_written_of_all_its_policies_or_of_none(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    """The first ones were written, then the one that has no such form was refused."""
    remembers = "policy.policies.prey.model.memory=gru", "policy.policies.prey.collect.unroll_len=4"
    policy = policy_file(tmp_path / "run", "pincer_mappo", *remembers)
    before = files_of(tmp_path)
    error = refused("export", policy, *remembers, "-o", str(tmp_path / "chase.c"), code=1)
    assert "a policy with a memory" in error
    assert files_of(tmp_path) == before


@pytest.mark.parametrize(
    ("config", "settings", "only_learnt"),
    [
        (
            "meet_mappo",
            ("policy.model.memory=gru", "policy.collect.unroll_len=4"),
            ("value", "value_encoder", "value_memory"),
        ),
        ("twostep_qmix", (), ("mixer",)),
    ],
)
def test_a_player_acts_alone_without_what_its_team_learns_by(
    export: Callable[..., str],
    tmp_path: Path,
    config: str,
    settings: tuple[str, ...],
    only_learnt: tuple[str, ...],
) -> None:
    policy, file = policy_file(tmp_path / "run", config, *settings), tmp_path / "player.pt2"
    said = export(policy, *settings, "-o", str(file), "--play", "3")
    assert "  acts for     player_0 (number 0), player_1 (number 1)" in said
    assert "played       3 episodes: returns are equal" in said
    assert "observation/number" in said
    assert "observation/state" not in said
    names = {part for name in torch.export.load(file).state_dict for part in name.split(".")}
    assert names.isdisjoint(only_learnt)
    assert "encoder" in names


# -------------------------------------------------------------------------------------------- ONNX


@pytest.mark.parametrize("name", ["dqn", "pendulum"])
def test_onnx_acts_as_the_policy_does(
    kept: Callable[[str], Path],
    export: Callable[..., str],
    tmp_path: Path,
    name: str,
) -> None:
    pytest.importorskip("onnxscript")
    onnx = pytest.importorskip("onnx")
    file = tmp_path / "policy.onnx"
    said = export(kept(name), "-o", str(file))
    assert "checked      64 observations, largest difference of an action " in said
    model = onnx.load(file)
    first = model.graph.input[0]
    assert first.name == "observation"
    assert first.type.tensor_type.shape.dim[0].dim_param == "batch"
    value = "values" if name == "dqn" else "value"
    told = [] if name == "dqn" else ["mean", "log_std"]
    assert [output.name for output in model.graph.output] == ["action", value, *told]
    given = np.random.default_rng(7).standard_normal((5, *SHAPES[name][0])).astype(np.float32)
    own = own_actions(mode_of(kept(name)), given)
    for run in (_by_reference, _by_onnxruntime):
        for batch in (given, given[:1]):
            actions, values, *_ = run(file, batch)
            np.testing.assert_allclose(actions, own[: len(batch)], rtol=1e-4, atol=1e-5)
            assert len(values) == len(batch)


def _by_reference(file: Path, given: Any) -> Any:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(str(file)).run(None, {"observation": given})


def _by_onnxruntime(file: Path, given: Any) -> Any:
    if importlib.util.find_spec("onnxruntime") is None:
        return _by_reference(file, given)
    import onnxruntime

    return onnxruntime.InferenceSession(file).run(None, {"observation": given})


@pytest.mark.parametrize(("kind", "suffix"), [("several", ".pt2"), ("discrete", ".onnx")])
def test_masks_memory_a_dict_and_starts_play_as_the_policy_does(
    export: Callable[..., str], tmp_path: Path, kind: str, suffix: str
) -> None:
    """Normalised, too; equal returns of equal seeds, and legal actions alone."""
    if suffix == ".onnx":
        pytest.importorskip("onnxscript")
    settings = (
        *SMALL, "env.env_id=fakes.masked_cards:Cards", f"env.kwargs={{kind: {kind}}}",
        "policy.normalize.observation=true", "env.import_names=[]", "env.wrappers=[]",
    )  # fmt: skip
    policy = policy_file(tmp_path, "cartpole_novel_ppo_lstm", *settings)
    file = str(tmp_path / f"p{suffix}")
    said = " ".join(export(policy, *settings, "-o", file, "--play", "20").split())
    assert "played 20 episodes: returns are equal to the policy's" in said
    size = 4 if kind == "discrete" else 7
    assert f"action_mask bool [batch, {size}]" in said
    assert f"logits float32 [batch, {size}]" in said
    assert "observation/pair/1 float32 [batch, 2]" in said
    assert "note" not in said
