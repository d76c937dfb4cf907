"""A learner's checkpoints: what one holds, how one is taken up, who writes and what stays."""

from __future__ import annotations

import copy
import shutil
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpcdi import __version__
from hpcdi.config.roles import LearnerConfig
from hpcdi.errors import CheckpointError, ConfigError, PolicyFileError
from hpcdi.policy.create import create_policy
from hpcdi.roles.learner.checkpointing import (
    checkpoint_name,
    copied,
    is_random,
    learner_files,
    load_learner,
    with_policy_of,
)
from hpcdi.roles.learner.training import Training
from hpcdi.store.atomic import sweep_temporary
from hpcdi.store.checkpoints import checkpoint_names, load_tensors, open_checkpoint, save_checkpoint
from hpcdi.store.policies import PolicyImage, publish_policy, read_policy
from hpcdi.worker.learner import BaseLearner, create_learner
from hpcdi.worker.learner.learner_hook import LoadCkptHook

pytestmark = pytest.mark.usefixtures("one_torch_thread")

QUIET = {"log_show_after_iter": 0, "save_ckpt_after_iter": 0, "save_ckpt_after_run": False}
KINDS = pytest.mark.parametrize("kind", ["dqn", "ppo"])


def policy_of(kind: str = "dqn", hidden: int = 8, seed: int = 0) -> Any:
    model = {"obs_shape": 3, "action_shape": 2, "encoder_hidden_size_list": [hidden]}
    if kind == "ppo":
        model["action_space"] = "discrete"
    cfg = {"type": kind, "model": model, "learn": {"target_update_freq": 2, "batch_size": 8}}
    if kind == "ppo":
        cfg["learn"] = {"batch_size": 8, "epoch_per_collect": 2}
    return create_policy(cfg, ["learn"], seed=np.random.SeedSequence(seed)).learn_mode


def learner_of(folder: Path, policy: Any = None, rank: int = 0, **cfg: Any) -> BaseLearner:
    hook = {**QUIET, **cfg.pop("hook", {})}
    return BaseLearner(
        {"hook": hook, **cfg}, policy or policy_of(), dist_info=(rank, rank + 1), ckpt_dir=folder
    )


def batch_of(number: int, kind: str = "dqn") -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(number)
    made = {
        "observation": rng.standard_normal((16, 3)), "action": rng.integers(0, 2, 16),
        "n_step_return": rng.standard_normal(16), "bootstrap_discount": np.full(16, 0.9),
        "next_observation": rng.standard_normal((16, 3)), "log_prob": np.full(16, -0.7),
        "value": rng.standard_normal(16), "advantage": rng.standard_normal(16),
        "return": rng.standard_normal(16), "weight": np.ones(16),
    }  # fmt: skip
    return {
        name: torch.from_numpy(column if name == "action" else column.astype(np.float32))
        for name, column in made.items()
    }


def learn(learner: BaseLearner, iterations: int) -> None:
    for _ in range(iterations):
        learner.train(batch_of(learner.train_iter), envstep=100 * learner.train_iter)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other)


# ---------------------------------------------------------------------------------- what one holds


def test_a_function_among_the_last_hooks_is_no_obstacle(tmp_path: Path) -> None:
    learner = learner_of(tmp_path)
    learner._hooks["after_run"].append(lambda _learner: None)  # type: ignore[arg-type]
    learner.save_checkpoint("own")
    assert "own" in checkpoint_names(tmp_path)


def test_what_a_checkpoint_holds(tmp_path: Path) -> None:
    learner = learner_of(tmp_path)
    learn(learner, 5)
    learner.save_checkpoint()
    assert checkpoint_names(tmp_path) == ["iteration_000000005"]
    checkpoint = open_checkpoint(tmp_path / "iteration_000000005")
    facts = {name: fact for name, fact in checkpoint.facts.items() if name != "saved_at"}
    assert facts == {
        "train_iter": 5, "collector_envstep": 400, "policy_type": "dqn",
        "hpcdi_version": __version__,
    }  # fmt: skip
    image = read_policy(checkpoint.file("policy.safetensors"))
    assert image.version == 5
    assert same(image.state_dict(), dict(learner.policy.state_dict()["model"]))
    held = load_tensors(checkpoint.file("learner.pt"))
    counted = {"updates", "iterations", "rng"}
    assert held["policy"].keys() == {"target_model", "optimizer", *counted}, "weights are apart"
    assert (held["train_iter"], held["collector_envstep"]) == (5, 400)


@pytest.mark.parametrize(
    ("given", "train_iter", "name"),
    [
        (None, 7, "iteration_000000007"),
        ("iteration_100.pth.tar", 7, "iteration_000000100"),
        ("ckpt_best.pth.tar", 7, "ckpt_best"),
        ("ckpt_best", 7, "ckpt_best"),
        ("lr0.1.pth", 7, "lr0.1"),
        ("iteration_last", 7, "iteration_last"),
    ],
)
def test_names(given: str | None, train_iter: int, name: str) -> None:
    assert checkpoint_name(given, train_iter) == name


@pytest.mark.parametrize("given", ["", ".tar", "../x", "a/b.pth.tar", ".hidden"])
def test_names_that_lead_elsewhere(given: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be that of a folder"):
        learner_of(tmp_path).save_checkpoint(given)


def test_a_name_for_those_without_one(tmp_path: Path) -> None:
    learner = learner_of(tmp_path)
    assert learner.ckpt_name is None
    learner.ckpt_name = "mine.pth.tar"
    learner.save_checkpoint()
    learner.save_checkpoint("other")
    learner.ckpt_name = None
    learner.save_checkpoint()
    assert checkpoint_names(tmp_path) == ["iteration_000000000", "mine", "other"]


def test_the_name_of_the_next_checkpoint_ends_with_it(tmp_path: Path) -> None:
    hook = {"save_ckpt_after_iter": 1}
    learner = learner_of(tmp_path, ckpt_format="pth.tar", hook=hook)
    learner.ckpt_name = "mine.pth.tar"
    learner.save_checkpoint("other.pth.tar")
    assert learner.ckpt_name is None, "as in DI-engine"
    learner.ckpt_name = "mine.pth.tar"
    learner.save_checkpoint()
    learn(learner, 2)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        "iteration_1.pth.tar", "iteration_2.pth.tar", "mine.pth.tar", "other.pth.tar"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["model.pth", "x.pt", "a.b.ckpt", "best.pth.tar", "iteration_007.pth.tar"]
)
def test_a_file_has_just_the_name_that_it_was_given(tmp_path: Path, name: str) -> None:
    learner = learner_of(tmp_path, ckpt_format="pth.tar")
    learn(learner, 1)
    learner.save_checkpoint(name)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [name]
    again = learner_of(tmp_path, hook={"load_ckpt_before_run": str(tmp_path / name)})
    again.call_hook("before_run")
    assert again.train_iter == 1
    policy = Parts()
    of_run = Training(LearnerConfig(), policy, ckpt_dir=tmp_path)  # of a run, which writes none
    of_run.load_checkpoint(tmp_path / name)
    assert of_run.train_iter == 1
    assert same(policy.loaded, dict(learner.policy.state_dict()))


def test_where_checkpoints_are_by_default(tmp_path: Path) -> None:
    folders = [
        BaseLearner({}, None, None, None, "exp", instance).ckpt_dir
        for instance in ("learner", "learner1")
    ]
    assert folders == [Path("exp/ckpt"), Path("exp/ckpt_learner1")]
    assert create_learner({"type": "base"}, ckpt_dir=tmp_path).ckpt_dir == tmp_path


# -------------------------------------------------------------------------------------- taken up


@KINDS
def test_a_learner_goes_on_as_if_it_had_not_stopped(tmp_path: Path, kind: str) -> None:
    """Bit by bit: optimizer, target network, schedules and torch's random numbers are there."""
    first = learner_of(tmp_path, policy_of(kind))
    for number in range(5):
        first.train(batch_of(number))
    torch.rand(3)
    first.save_checkpoint("here")
    expected = torch.rand(2)
    for number in range(5, 9):
        first.train(batch_of(number))
    torch.manual_seed(99)
    path = tmp_path / "here"
    again = learner_of(tmp_path, policy_of(kind, seed=7), hook={"load_ckpt_before_run": str(path)})
    again.call_hook("before_run")
    assert again.train_iter == 5
    assert torch.equal(torch.rand(2), expected)
    for number in range(5, 9):
        again.train(batch_of(number))
    assert same(first.policy.state_dict(), again.policy.state_dict())


def load_hook(path: Path, **ext_args: Any) -> dict[str, Any]:
    given = {"load_path": str(path), **ext_args}
    return {"mine": {"type": "load_ckpt", "position": "before_run", "ext_args": given}}


@pytest.mark.parametrize("what", ["checkpoint", "file"])
@pytest.mark.parametrize("load_last_iter", [None, True, False])
def test_weights_alone_or_all(tmp_path: Path, what: str, load_last_iter: bool | None) -> None:
    first = learner_of(tmp_path)
    learn(first, 3)
    first.save_checkpoint("here")
    path = tmp_path / "here" / ("policy.safetensors" if what == "file" else ".")
    ext_args = {} if load_last_iter is None else {"load_last_iter": load_last_iter}
    again = learner_of(tmp_path, policy_of(seed=7), hook=load_hook(path, **ext_args))
    fresh = same(again.policy.state_dict()["optimizer"], policy_of().state_dict()["optimizer"])
    assert fresh
    again.call_hook("before_run")
    goes_on = load_last_iter or (load_last_iter is None and what == "checkpoint")
    assert again.train_iter == (3 if goes_on else 0)
    whole = what == "checkpoint" and bool(goes_on)
    assert again.collector_envstep == (200 if whole else 0)
    states = first.policy.state_dict(), again.policy.state_dict()
    assert same(states[0]["model"], states[1]["model"])
    assert same(states[0]["optimizer"], states[1]["optimizer"]) is whole
    if not whole:
        assert same(states[1]["target_model"], states[1]["model"]), "it begins anew"


@pytest.mark.parametrize("way", ["hook", "key"])
def test_a_program_of_ones_own_goes_back_to_a_checkpoint(tmp_path: Path, way: str) -> None:
    """Nothing was loaded, without a word, since the learner had done iterations."""
    learner_of(tmp_path).save_checkpoint("here")  # a key must name one that is there
    hook = {"load_ckpt_before_run": str(tmp_path / "here")} if way == "key" else {}
    learner = learner_of(tmp_path, hook=hook)
    learn(learner, 1)
    best = copied(learner.policy.state_dict())
    learner.save_checkpoint("here")
    learn(learner, 2)
    if way == "key":
        learner.call_hook("before_run")
    else:
        LoadCkptHook(ext_args={"load_path": tmp_path / "here"})(learner)
    assert learner.train_iter == 1
    assert same(copied(learner.policy.state_dict()), best)


def test_a_learner_that_has_begun_is_left_as_it_is(tmp_path: Path) -> None:
    """In a run: it may be resumed."""
    first = learner_of(tmp_path)
    first.save_checkpoint("here")
    hook = {**QUIET, "load_ckpt_before_run": str(tmp_path / "here")}
    again = BaseLearner(LearnerConfig(hook=hook), policy_of(), ckpt_dir=tmp_path)
    learn(again, 2)
    before = {k: v.clone() for k, v in again.policy.state_dict()["model"].items()}
    again.call_hook("before_run")
    assert again.train_iter == 2
    assert same(dict(again.policy.state_dict()["model"]), before)


def test_every_learner_of_a_group_loads_and_the_first_takes_the_random_numbers(
    tmp_path: Path,
) -> None:
    first = learner_of(tmp_path)
    learn(first, 2)
    torch.manual_seed(5)
    first.save_checkpoint("here")
    expected, weights = torch.rand(2), []
    for rank in (0, 1):
        torch.manual_seed(40 + rank)
        own = torch.rand(2)
        torch.manual_seed(40 + rank)
        hook = {"load_ckpt_before_run": str(tmp_path / "here")}
        again = learner_of(tmp_path, policy_of(seed=rank), rank=rank, hook=hook)
        torch.manual_seed(40 + rank)
        again.call_hook("before_run")
        assert again.train_iter == 2
        weights.append(dict(again.policy.state_dict()["model"]))
        assert torch.equal(torch.rand(2), expected if rank == 0 else own)
    assert same(weights[0], weights[1])


# -------------------------------------------------------------------------- what cannot be loaded


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize("file", ["learner.pt", "policy.safetensors", "manifest.json"])
def test_a_torn_checkpoint_is_named(tmp_path: Path, file: str) -> None:
    first = learner_of(tmp_path)
    first.save_checkpoint("here")
    again = learner_of(tmp_path, hook={"load_ckpt_before_run": str(tmp_path / "here")})
    tear(tmp_path / "here" / file)
    said = "is no whole checkpoint" if file == "manifest.json" else f"is torn: {file} is not what"
    with pytest.raises(CheckpointError, match=rf"here: {said}"):
        again.call_hook("before_run")
    assert again.train_iter == 0


def test_a_torn_policy_file_is_named(tmp_path: Path) -> None:
    learner_of(tmp_path).save_checkpoint("here")
    path = tmp_path / "here" / "policy.safetensors"
    again = learner_of(tmp_path, hook={"load_ckpt_before_run": str(path)})
    tear(path)
    with pytest.raises(PolicyFileError, match=r"policy\.safetensors: "):
        again.call_hook("before_run")


@pytest.mark.parametrize("other", ["ppo", "wide"])
def test_a_policy_of_another_kind_is_refused(tmp_path: Path, other: str) -> None:
    learner_of(tmp_path).save_checkpoint("here")
    policy = policy_of("ppo") if other == "ppo" else policy_of(hidden=9)
    again = learner_of(tmp_path, policy, hook={"load_ckpt_before_run": str(tmp_path / "here")})
    said = "holds a policy of type 'dqn' that does not fit the present one, of type"
    with pytest.raises(CheckpointError, match=rf"{said} '{'ppo' if other == 'ppo' else 'dqn'}'"):
        again.call_hook("before_run")


def test_a_snapshot_says_of_which_policy_it_is(tmp_path: Path) -> None:
    """Though its facts are those of a run: it has a learner's files, and no type."""
    first = learner_of(tmp_path)
    files = learner_files(first)
    folder = save_checkpoint(tmp_path, "snapshot", files, {"train_iter": 0}, keep=None)
    again = learner_of(tmp_path, policy_of("ppo"))
    said = r"of type 'dqn' that does not fit the present one, of type 'ppo': Error[^\n\t]*$"
    with pytest.raises(CheckpointError, match=said):
        again.load_checkpoint(folder)


def nothing(path: Path) -> None:
    shutil.rmtree(path)


def a_folder_of_nothing(path: Path) -> None:
    (path / "manifest.json").unlink()


def some_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("text")


@pytest.mark.parametrize(
    ("done", "said"),
    [
        (nothing, "there is no '.*here': name a checkpoint's folder or a .safetensors file"),
        (a_folder_of_nothing, "is a folder, but no whole checkpoint: it has no manifest.json"),
        (some_file, "is neither a checkpoint's folder nor a .safetensors or .pth.tar file"),
    ],
)
def test_what_is_not_there_is_told_before_anything_starts(
    tmp_path: Path, done: Callable[[Path], None], said: str
) -> None:
    learner_of(tmp_path).save_checkpoint("here")
    hook = {"load_ckpt_before_run": str(tmp_path / "here")}
    learner = learner_of(tmp_path, hook=hook)
    done(tmp_path / "here")
    with pytest.raises(ConfigError, match=rf"hook.load_ckpt_before_run: .*{said}"):
        BaseLearner.parse_config({"hook": hook})
    with pytest.raises(CheckpointError, match=said):  # it went away in between
        learner.call_hook("before_run")


# ---------------------------------------------------------------------------- when, and what stays


def test_by_the_iteration_and_at_the_end(tmp_path: Path) -> None:
    hook = {"save_ckpt_after_iter": 2, "save_ckpt_after_run": True}
    learner = learner_of(tmp_path, hook=hook, keep_checkpoints=2)
    learn(learner, 7)
    learner.save_checkpoint("ckpt_best.pth.tar")
    learner.call_hook("after_run")
    assert checkpoint_names(tmp_path) == ["ckpt_best", "ckpt_final", "iteration_000000004",
                               "iteration_000000006"]  # fmt: skip
    iterations = [
        open_checkpoint(tmp_path / n).facts["train_iter"] for n in checkpoint_names(tmp_path)
    ]
    assert iterations == [7, 7, 4, 6]


def test_the_best_and_the_last_are_written_anew(tmp_path: Path) -> None:
    learner = learner_of(tmp_path, keep_checkpoints=1)
    for iterations in (1, 2):
        learn(learner, iterations)
        for name in ("ckpt_best", "ckpt_final", None):
            learner.save_checkpoint(name)
    assert checkpoint_names(tmp_path) == ["ckpt_best", "ckpt_final", "iteration_000000003"]
    for name in checkpoint_names(tmp_path):
        assert open_checkpoint(tmp_path / name).facts["train_iter"] == 3
    assert sweep_temporary(tmp_path) == []


def test_defaults_are_the_seeds(tmp_path: Path) -> None:
    cfg = BaseLearner.parse_config({"hook": {"save_ckpt_after_iter": 5}})
    assert cfg.hook == {
        "load_ckpt_before_run": "", "log_show_after_iter": 100, "save_ckpt_after_iter": 5,
        "save_ckpt_after_run": True,
    }  # fmt: skip
    off = BaseLearner.parse_config({"hook": {"log_show_after_iter": "", "save_ckpt_after_run": 0}})
    assert (off.hook["log_show_after_iter"], off.hook["save_ckpt_after_run"]) == (0, False)
    assert BaseLearner.parse_config({"hook": off.hook}).hook == off.hook


def test_only_the_first_learner_of_a_group_writes(tmp_path: Path) -> None:
    learner = learner_of(tmp_path, rank=1, hook={"save_ckpt_after_run": True})
    learner.save_checkpoint("mine")
    learner.call_hook("after_run")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="must be that of a folder"):
        learner.save_checkpoint("a/b")


def test_a_disk_that_is_full_is_told_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learner_of(tmp_path)
    learner.save_checkpoint("ckpt_best")

    def full(*_args: Any, **_kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hpcdi.store.checkpoints.os.fsync", full)
    learn(learner, 1)
    learner.save_checkpoint("ckpt_best")
    record, *_ = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "no checkpoint could be written: " in record.getMessage()
    assert "No space left on device" in record.getMessage()
    assert open_checkpoint(tmp_path / "ckpt_best").facts["train_iter"] == 0, "the one before"


# --------------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@KINDS
@pytest.mark.parametrize("way", [(True, False), (False, True)], ids=["gpu to cpu", "cpu to gpu"])
def test_from_a_gpu_and_to_one(tmp_path: Path, kind: str, way: tuple[bool, bool]) -> None:
    learners = []
    for cuda in way:
        mode = policy_of(kind)
        cfg = mode.get_attribute("cfg")
        mode = create_policy(
            {"type": kind, "cuda": cuda, "model": vars(cfg.model), "learn": {"batch_size": 8}},
            ["learn"],
        ).learn_mode
        hook = {"load_ckpt_before_run": str(tmp_path / "here")} if learners else {}
        learners.append(learner_of(tmp_path, mode, hook=hook))
        if len(learners) == 1:
            learn(learners[0], 3)
            learners[0].save_checkpoint("here")
    learners[1].call_hook("before_run")
    one, other = (learner.policy.state_dict()["model"] for learner in learners)
    assert all(torch.equal(one[name].cpu(), other[name].cpu()) for name in one)
    learn(learners[1], 1)
    assert learners[1].train_iter == 4


def test_the_best_of_a_run_over_ranks_holds_weights_alone(tmp_path: Path) -> None:
    """A collector judged them; what it writes can be begun with, evaluated and exported."""
    writer, again = learner_of(tmp_path / "a"), learner_of(tmp_path / "b", policy_of(seed=1))
    learn(writer, 3)
    image = PolicyImage.of(writer.policy.state_dict()["model"], 3)
    folder = save_checkpoint(
        tmp_path / "checkpoints", "ckpt_best",
        {"policy.safetensors": partial(publish_policy, image=image)}, {"train_iter": 3}, keep=None,
    )  # fmt: skip
    load_learner(again, folder)
    assert same(again.policy.state_dict()["model"], writer.policy.state_dict()["model"])
    assert again.train_iter == 0


class WithCallbacks(BaseLearner):
    """A learner whose callbacks have a state of this rank."""

    states: Any = {}  # noqa: RUF012

    def callback_state(self) -> dict[str, Any]:
        return {"Counting": {"rank": self.rank}}

    def load_callback_state(self, states: Any) -> None:
        self.states = states


def test_each_learner_of_a_group_keeps_the_states_of_its_callbacks(tmp_path: Path) -> None:
    def learner(rank: int) -> WithCallbacks:
        return WithCallbacks(
            {"hook": QUIET}, policy_of(), dist_info=(rank, rank + 1), ckpt_dir=tmp_path
        )

    writers: dict[str, Any] = {}
    for rank in (0, 1):
        writers |= learner_files(learner(rank))
    folder = save_checkpoint(tmp_path, "snapshot", writers, {"train_iter": 0}, keep=None)
    for rank, of_rank in ((0, 0), (1, 1), (2, 0)):
        again = learner(rank)
        load_learner(again, folder)
        assert again.states == {"Counting": {"rank": of_rank}}, "of a new one the first one's"


def cql_of(seed: int) -> Any:
    model = {
        "obs_shape": 3, "action_shape": [2], "action_low": [-1, -1], "action_high": [1, 1],
        "encoder_hidden_size_list": [8],
    }  # fmt: skip
    seeds = np.random.SeedSequence(seed)
    return create_policy({"type": "cql", "model": model}, ["learn"], seed=seeds).learn_mode


def test_learners_of_a_group_keep_their_own_random_numbers(tmp_path: Path) -> None:
    """In a snapshot of the run; one that was not there has those that it started with.

    Generators of any name: CQL has a second one, for the actions whose values it lowers.
    """
    writers: dict[str, Any] = {}
    learners = [learner_of(tmp_path, cql_of(rank), rank=rank) for rank in (0, 1)]
    for learner in learners:
        writers |= learner_files(learner)
    assert set(writers) == {"policy.safetensors", "learner.pt", "learner_1.pt"}
    folder = save_checkpoint(tmp_path, "snapshot", writers, {"train_iter": 0}, keep=None)
    for rank in (0, 1, 2):
        again = learner_of(tmp_path, cql_of(7), rank=rank)
        before = again.policy.state_dict()
        load_learner(again, folder)
        expected = before if rank == 2 else learners[rank].policy.state_dict()
        for name in ("rng", "drawing"):
            assert again.policy.state_dict()[name] == expected[name]
        assert same(again.policy.state_dict()["model"], learners[0].policy.state_dict()["model"])


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("rng", 3, True),
        ("drawing", np.random.default_rng(0).bit_generator.state, True),
        ("drawing", {"a": np.random.default_rng(0).bit_generator.state}, True),  # of a team
        ("part", {"of": np.random.default_rng(0).bit_generator.state, "weight": 1}, False),
        ("extra", {}, False),
        ("updates", 3, False),
    ],
)
def test_what_is_a_generator(name: str, value: Any, expected: bool) -> None:
    assert is_random(name, value) is expected


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_policy_of_another_run_keeps_the_iterations(tmp_path: Path, has_begun: bool) -> None:
    """By which schedules go; and random numbers."""
    folders = []
    for number, iterations in enumerate((1, 3)):
        learner = learner_of(tmp_path, policy_of(seed=number))
        learn(learner, iterations)
        files = learner_files(learner) if number or has_begun else {}
        facts = {"train_iter": iterations if number or has_begun else 0, "env_steps": 0}
        folders.append(save_checkpoint(tmp_path, f"of_{number}", files, facts, keep=None))
    own, donor = map(open_checkpoint, folders)
    given = save_checkpoint(tmp_path, "given", with_policy_of(own, donor), own.facts, keep=None)
    again = learner_of(tmp_path, policy_of(seed=7))
    load_learner(again, given)
    state = again.policy.state_dict()
    assert again.train_iter == state["iterations"] == int(has_begun)
    assert state["updates"] == 3
    assert same(state["model"], learner.policy.state_dict()["model"])


def test_another_player_has_files_of_its_own(tmp_path: Path) -> None:
    """In a snapshot of a league: each of its learners finds its own."""
    writers: dict[str, Any] = {}
    learners = {}
    for agent, rank in ((0, 0), (1, 0), (1, 1)):
        seed = 2 * agent + rank
        learners[agent, rank] = learner_of(tmp_path, policy_of("ppo", seed=seed), rank=rank)
        writers |= learner_files(learners[agent, rank], agent)
    of_players = {"policy.safetensors", "learner.pt"}
    assert writers.keys() == {
        *of_players, *(f"agent1_{file}" for file in of_players), "agent1_learner_1.pt",
    }  # fmt: skip
    folder = save_checkpoint(tmp_path, "snapshot", writers, {"train_iter": 0}, keep=None)
    for (agent, rank), learner in learners.items():
        again = learner_of(tmp_path, policy_of("ppo", seed=7), rank=rank)
        load_learner(again, folder, agent=agent)
        state, expected = again.policy.state_dict(), learner.policy.state_dict()
        assert state["rng"] == expected["rng"]
        assert same(state["model"], learners[agent, 0].policy.state_dict()["model"])


def test_files_of_a_learner_hold_what_it_was_then(tmp_path: Path) -> None:
    """They are written while it goes on."""
    learner = learner_of(tmp_path)
    learn(learner, 2)
    then = copy.deepcopy(learner.policy.state_dict())
    files = learner_files(learner)
    learn(learner, 3)
    folder = save_checkpoint(tmp_path, "later", files, {"train_iter": 2}, keep=None)
    again = learner_of(tmp_path, policy_of(seed=3))
    load_learner(again, folder)
    assert same(again.policy.state_dict(), then)
    assert again.train_iter == 2


# -------------------------------------------------------------------------- the predecessor's files


@pytest.mark.parametrize("name", [None, "ckpt_best.pth.tar"])
def test_a_file_beside_the_folder_is_what_torch_loads(tmp_path: Path, name: str | None) -> None:
    learner = learner_of(tmp_path, ckpt_format="pth.tar")
    learner.train(batch_of(0), 70)
    learner.save_checkpoint(name)
    path = tmp_path / (name or "iteration_1.pth.tar")
    state = torch.load(path, weights_only=True)
    assert (state["last_iter"], state["last_step"]) == (1, 70)
    assert {"model", "optimizer", "target_model"} <= state.keys()
    for given in (path, tmp_path / "elsewhere.pth.tar"):
        shutil.copy(path, tmp_path / "elsewhere.pth.tar")
        again = learner_of(tmp_path, policy_of(seed=5), hook={"load_ckpt_before_run": str(given)})
        again.call_hook("before_run")
        assert (again.train_iter, again.collector_envstep) == (1, 70)
        for weights, saved in zip(
            again.policy.state_dict()["model"].values(), state["model"].values(), strict=True
        ):
            assert torch.equal(weights, saved)


@pytest.mark.parametrize("name", [None, "mine.pth.tar"])
def test_after_a_run_the_file_has_the_predecessors_name(tmp_path: Path, name: str | None) -> None:
    """The folder is called ckpt_final, as everywhere."""
    learner = learner_of(tmp_path, ckpt_format="pth.tar", hook={"save_ckpt_after_run": True})
    learner.train(batch_of(0), 70)
    learner.ckpt_name = name
    learner.call_hook("after_run")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"ckpt_final", name or "iteration_1.pth.tar"}
    learner.save_checkpoint("ckpt_final.pth.tar")
    assert (tmp_path / "ckpt_final.pth.tar").is_file(), "as asked for"


def test_the_predecessors_name_finds_our_folder(tmp_path: Path) -> None:
    learner = learner_of(tmp_path, ckpt_format="folder")
    learner.train(batch_of(0), 70)
    learner.save_checkpoint("ckpt_best.pth.tar")
    assert not (tmp_path / "ckpt_best.pth.tar").exists()
    again = learner_of(tmp_path, policy_of(seed=5))
    load_learner(again, tmp_path / "ckpt_best.pth.tar")
    assert again.train_iter == 1


def test_files_that_are_no_policys(tmp_path: Path) -> None:
    torch.save({"weights": torch.ones(1)}, tmp_path / "other.pth.tar")
    with pytest.raises(CheckpointError, match="it has no key 'model'"):
        learner_of(tmp_path).load_checkpoint(tmp_path / "other.pth.tar")


def test_a_hook_that_loads_is_made_before_there_is_something_to_load(tmp_path: Path) -> None:
    hook = LoadCkptHook("mine", 20, position="before_run", ext_args={"load_path": "no/such"})
    with pytest.raises(CheckpointError, match="there is no 'no/such'"):
        hook(learner_of(tmp_path))
    LoadCkptHook("none", 20, position="before_run", ext_args={"load_path": ""})(None)


class Parts:
    """Its state has no `model`."""

    def __init__(self) -> None:
        self.loaded: Any = None

    def forward(self, _data: Any) -> dict[str, float]:
        return {"total_loss": 0.0}

    def state_dict(self) -> dict[str, Any]:
        return {"actor": {"w": torch.ones(1)}, "seen": deque([np.float64(1)], 3)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state


def test_a_state_without_a_model_is_taken_up_again(tmp_path: Path) -> None:
    learner = learner_of(tmp_path, Parts(), ckpt_format="pth.tar")
    learner.train([])
    learner.save_checkpoint("parts.pth.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["parts.pth.tar"], "no folder: no weights"
    path, policy = tmp_path / "parts.pth.tar", Parts()
    again = learner_of(tmp_path, policy)
    again.load_checkpoint(path)
    assert (policy.loaded, again.train_iter) == (policy.state_dict(), 1)
    with pytest.raises(CheckpointError, match="it has no key 'model'"):
        again.load_checkpoint(path, load_last_iter=False)


def test_what_was_copied_stays_as_it_was() -> None:
    """A snapshot is written while the learner goes on."""
    mean, seen, names = np.zeros(2), deque([torch.zeros(1)], 2), {1}
    held = copied({"mean": mean, "seen": seen, "names": names})
    mean += 1
    seen[0] += 1
    seen.append(torch.ones(1))
    names.add(2)
    assert (held["mean"].tolist(), held["names"]) == ([0.0, 0.0], {1})
    assert (held["seen"], held["seen"].maxlen) == (deque([torch.zeros(1)]), 2)
