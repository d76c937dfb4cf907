"""`hpcdi serial` in this process: what a run leaves, how it goes on, how it ends."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
import torch

from fakes.serial_runs import (
    BATTLE,
    DQN,
    FOREIGN,
    LEAGUE,
    LIMIT,
    PPO,
    ROOT,
    resume,
    serial,
    serial_run,
    train,
)
from fakes.small_disk import mounted
from hpcdi.cli import main
from hpcdi.comm.messages import StopRequest
from hpcdi.config.load import load
from hpcdi.errors import ConfigError, LaunchError, ShardError
from hpcdi.roles.coordinator.coordinator import Coordinator
from hpcdi.roles.coordinator.groups import Group
from hpcdi.roles.coordinator.snapshots import resume_from
from hpcdi.roles.fault import tear
from hpcdi.run import run_folder
from hpcdi.run.resume import read_newest
from hpcdi.run.serial import LocalRun
from hpcdi.store.atomic import write_text
from hpcdi.store.checkpoints import checkpoint_names, newest_checkpoint, open_checkpoint
from hpcdi.store.inspect import inspect
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import read_policy
from hpcdi.store.rows import transitions
from hpcdi.store.shards import read_block, survey

pytest.importorskip("pettingzoo")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of PettingZoo
    pytest.mark.usefixtures("same_process_state"),
]

FIVE = f"{LIMIT}.max_train_iter=5"
RUNS = {
    "dqn": ("cartpole_dqn", (*DQN, "policy.priority=true")),
    "ppo": ("cartpole_ppo", PPO),
    "battle": BATTLE,
    "league": LEAGUE,
    "dicts": (FOREIGN, ()),
}
ALL_RUNS = pytest.mark.parametrize("kind", RUNS)


@pytest.fixture
def go(tmp_path: Path) -> Callable[..., tuple[int, Path]]:
    """Trains by the command's function, in a folder of its own; gives exit code and folder."""

    def start(name: str, *overrides: str) -> tuple[int, Path]:
        run_dir = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        config = str(ROOT / "configs" / f"{name}.yaml")
        return serial(config, overrides, str(run_dir)), run_dir

    return start


@pytest.fixture
def done(kept: Callable[[str], Path], tmp_path: Path) -> Path:
    """The folder of a run that is done, after four iterations."""
    return shutil.copytree(kept("dqn"), tmp_path / "run")


def iterations(run_dir: Path) -> list[int]:
    """Train iterations of all snapshots, oldest first; the first is of the run's beginning."""
    folder = run_dir / "snapshots"
    return [open_checkpoint(folder / name).facts["train_iter"] for name in checkpoint_names(folder)]


def facts_of(run_dir: Path) -> dict[str, Any]:
    return dict(json.loads((run_dir / "run.json").read_text()))


def same(one: Any, other: Any) -> bool:
    """Whether two trees of tensors, arrays and plain data are equal bit by bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    return bool(one == other)


def state_of(run: LocalRun) -> dict[str, Any]:
    """All that a run has come to."""
    groups = run.coordinator.groups
    return {
        "policies": [learner._training.policy.state_dict() for learner in run.learners],  # type: ignore[attr-defined]
        "groups": {
            group.name: (
                group.env_steps, group.episodes, group.train_iter, group.best,
                [part.buffer.state_dict() for part in group.replay.partitions.values()],
            )
            for group in groups
        },
        "torch": torch.get_rng_state(),
    }  # fmt: skip


def told(run: LocalRun) -> list[dict[str, Any]]:
    """Its evaluations, without the time that they took."""
    return [{**each, "took_s": 0} for each in run.coordinator.figures()["evaluations"]]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any, Any]]:
    """A run of `RUNS` with the seed 3, made once: its folder (read only), state, evaluations."""
    made: dict[str, tuple[Path, Any, Any]] = {}

    def play(kind: str) -> tuple[Path, Any, Any]:
        if kind not in made:
            name, overrides = RUNS[kind]
            root = tmp_path_factory.mktemp(kind)
            with serial_run(root, name, *overrides, FIVE, "seed=3") as run:
                train(run)
                made[kind] = root, state_of(run), told(run)
        return made[kind]

    return play


def run_of(run: LocalRun) -> Group:
    """The record of the main group."""
    return run.coordinator.groups.main


# ------------------------------------------------------------------------------- what a run leaves


def test_a_run_folder(go: Callable[..., Any], capfd: pytest.CaptureFixture[str]) -> None:
    code, run_dir = go("cartpole_dqn", *DQN, FIVE)
    out, err = capfd.readouterr()
    assert (code, err) == (0, "")
    assert out.startswith("hpcdi: cartpole_dqn is starting, one process\nhpcdi ")
    for said in (
        "cartpole_dqn, one process with 4 environments", f"run folder   {run_dir}",
        "evaluation 1: mean return", "done: max_train_iter reached: 5 of 5",
        "5 train iterations", "best evaluation: ", "policies/best.safetensors",
    ):  # fmt: skip
        assert said in out, said
    assert "resume with" not in out
    facts = facts_of(run_dir)
    assert (facts["state"], facts["exit_code"]) == ("done", 0)
    assert facts["figures"]["train_iter"] == 5
    assert [place["role"] for place in facts["placement"]] == ["serial"]
    assert read_policy(run_dir / "policies" / "latest.safetensors").version == 5
    assert iterations(run_dir) == [0, 5]
    assert checkpoint_names(run_dir / "checkpoints") == ["ckpt_best", "ckpt_final"]
    report = inspect(run_dir)
    assert not report.errors, report.errors
    told = "\n".join(report.lines)
    for said in ("ckpt_final: checkpoint at train iteration", "snapshot at train iteration 5"):
        assert told.count(said) == 1
    assert "samples drawn per transition" in out
    assert {path.parent.parent.name for path in run_dir.rglob("data/*/*/*.h5")} == {"rank00002"}
    shards = [b for p in run_dir.rglob("data/*/*/*.h5") for _, b in survey(p, p.name).blocks]
    assert facts["figures"]["env_steps"] == sum(block.transitions for block in shards)
    assert facts["figures"]["episodes"] == sum(block.facts["episodes"] for block in shards)


def test_a_policy_that_is_good_enough_solves_it(
    go: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    code, _ = go("cartpole_dqn", *DQN, "env.stop_value=5", "policy.eval.every=2 iterations")
    assert code == 0
    assert "solved: stop value reached: mean return" in capfd.readouterr().out


# -------------------------------------------------------------------------- learners' checkpoints

HOOK = "policy.learn.learner.hook"


def test_checkpoints_of_learners_stand_apart_from_snapshots(tmp_path: Path) -> None:
    """In a league each group has its own; the best one is the main group's, which is judged."""
    name, overrides = RUNS["league"]
    more = (f"{HOOK}.save_ckpt_after_iter=2", "policy.learn.learner.keep_checkpoints=2")
    with serial_run(tmp_path, name, *overrides, f"{LIMIT}.max_train_iter=8", *more) as run:
        train(run)
        main, other = (learner.train_iter for learner in run.learners)  # type: ignore[attr-defined]
    for folder, count, best in (("checkpoints", main, ["ckpt_best"]), ("checkpoints1", other, [])):
        last = [f"iteration_{number:09d}" for number in range(2, count + 1, 2)][-2:]
        assert checkpoint_names(tmp_path / folder) == [*best, "ckpt_final", *last]
        final = read_policy(tmp_path / folder / "ckpt_final" / "policy.safetensors")
        assert final.version == count > 0
    assert iterations(tmp_path)[-1] == main
    final = read_policy(tmp_path / "checkpoints" / "ckpt_final" / "policy.safetensors")
    newest = read_policy(tmp_path / "policies" / "latest.safetensors")
    assert same(final.state_dict(), newest.state_dict())


def test_a_run_begins_with_a_checkpoint_and_its_restart_does_not(tmp_path: Path) -> None:
    name, overrides = RUNS["dqn"]
    first, second = tmp_path / "first", tmp_path / "second"
    with serial_run(first, name, *overrides, FIVE) as run:
        train(run)
    load = f"{HOOK}.load_ckpt_before_run={first / 'checkpoints' / 'ckpt_final'}"
    settings = (load, "seed=9", f"{LIMIT}.max_train_iter=7")
    with serial_run(second, name, *overrides, *settings) as run:
        train(run)
        assert run_of(run).train_iter == 7
        assert run_of(run).env_steps < 5 * 64, "two updates were enough"
    more = f"{LIMIT}.max_train_iter=8"
    with serial_run(second, name, *overrides, load, "seed=9", more, restarts=1) as run:
        resume(run, second)
        train(run)
        assert run_of(run).train_iter == 8


def test_a_checkpoint_that_is_not_there_is_told_before_a_folder_is_made(tmp_path: Path) -> None:
    config = str(ROOT / "configs" / "cartpole_dqn.yaml")
    with pytest.raises(ConfigError, match=rf"{HOOK}\.load_ckpt_before_run: there is no 'no/such'"):
        serial(config, (f"{HOOK}.load_ckpt_before_run=no/such",), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_another_network_ends_a_run_that_begins_with_it(
    done: Path, go: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    load = f"{HOOK}.load_ckpt_before_run={done / 'checkpoints' / 'ckpt_final'}"
    code, other = go("cartpole_dqn", *DQN, load, "policy.model.encoder_hidden_size_list=[9]")
    err = capfd.readouterr().err
    assert code == 1
    assert "ckpt_final: it holds a policy of type 'dqn' that does not fit" in err
    assert facts_of(other)["state"] == "failed"
    shutil.rmtree(other / "snapshots")
    again = (f"{other / 'config.yaml'}", ("system.auto_resume=true",), str(other))
    assert serial(*again) == 1, "it begins anew"
    facts = facts_of(other)
    assert (facts["state"], facts["restarts"], facts["restarts_without_progress"]) == (
        "failed",
        1,
        1,
    )


# -------------------------------------------------------------------------------------- repetition


@ALL_RUNS
def test_the_same_seed_is_the_same_run(
    tmp_path: Path, first: Callable[[str], tuple[Path, Any, Any]], kind: str
) -> None:
    _, state, evaluations = first(kind)
    name, overrides = RUNS[kind]
    for seed in (3, 4):
        torch.rand(seed)  # foreign policies take torch's own random numbers
        with serial_run(tmp_path / str(seed), name, *overrides, FIVE, f"seed={seed}") as run:
            train(run)
            if seed == 3:
                assert same(state, state_of(run))
                assert evaluations == told(run)
            else:
                assert not same(state["policies"], state_of(run)["policies"])


def test_a_deterministic_run_repeats_what_came_after_a_snapshot(tmp_path: Path) -> None:
    name, overrides = RUNS["dqn"]
    settings = ("system.deterministic=true", "system.snapshot_rounds=3", "system.keep_snapshots=9")
    settings = (*overrides, *settings, f"{LIMIT}.max_train_iter=11")
    with serial_run(tmp_path, name, *settings) as run:
        train(run)
        whole = state_of(run)
    newest = checkpoint_names(tmp_path / "snapshots")[-2:]
    for lost in newest:
        shutil.rmtree(tmp_path / "snapshots" / lost)
    torch.manual_seed(99)
    with serial_run(tmp_path, name, *settings, restarts=1) as run:
        said = resume(run, tmp_path, repeats=True)
        assert newest[0] > said
        assert run_of(run).train_iter < 9
        train(run)
        again = state_of(run)
    assert same(whole["policies"], again["policies"])
    assert same(whole["groups"]["main"][:3], again["groups"]["main"][:3])


def test_a_deterministic_run_that_cannot_repeat_keeps_what_it_has_published(tmp_path: Path) -> None:
    name, overrides = RUNS["dqn"]
    settings = ("system.deterministic=true", "system.snapshot_rounds=3", "system.keep_snapshots=9")
    settings = (*overrides, *settings, f"{LIMIT}.max_train_iter=7")
    with serial_run(tmp_path, name, *settings) as run:
        train(run)
    for lost in checkpoint_names(tmp_path / "snapshots")[1:]:
        shutil.rmtree(tmp_path / "snapshots" / lost)
    for changed in ("policy.learn.learning_rate=0.01", "system.deterministic=false"):
        with serial_run(tmp_path, name, *settings, changed, restarts=1) as run:
            assert "transitions published after it are taken, too" in resume(
                run, tmp_path, repeats=True
            )
    with serial_run(tmp_path, name, *settings, f"{LIMIT}.max_train_iter=9", restarts=1) as run:
        assert "after it are removed: the run repeats them" in resume(run, tmp_path, repeats=True)


def test_a_deterministic_run_with_another_setting_plays_no_round_twice_and_repeats_itself_again(
    tmp_path: Path, go: Callable[..., tuple[int, Path]]
) -> None:
    settings = ("system.deterministic=true", "system.snapshot_rounds=3", "system.keep_snapshots=9")
    code, root = go(*RUNS["dqn"][:1], *RUNS["dqn"][1], *settings, f"{LIMIT}.max_train_iter=7")

    def goes_on(keeps: int, iterations: int, *changed: str) -> tuple[int, dict[str, bytes]]:
        for lost in checkpoint_names(root / "snapshots")[keeps:]:
            shutil.rmtree(root / "snapshots" / lost)
        overrides = (*changed, f"{LIMIT}.max_train_iter={iterations}")
        return serial(None, overrides, resume=str(root)), observed(root)

    first = observed(root)
    other, kept = goes_on(1, 10, "policy.learn.learning_rate=0.01")
    assert first.items() <= kept.items(), "what it had published stays"
    rows = [{row.tobytes() for row in np.frombuffer(kept[n], "f4").reshape(-1, 4)} for n in kept]
    assert len(rows) == 2
    assert not set.intersection(*rows), "not the same rounds"
    weights = read_policy(RunLayout(root).latest_policy).state_dict()
    again, repeated = goes_on(-2, 10)
    assert (code, other, again) == (0, 0, 0)
    assert same(weights, read_policy(RunLayout(root).latest_policy).state_dict())
    assert b"".join(repeated[n] for n in sorted(repeated)) == b"".join(
        kept[n] for n in sorted(kept)
    )


def observed(root: Path) -> dict[str, bytes]:
    """The observations of each shard, by its name."""
    found = {}
    for path in (root / "data").rglob("*.h5"):
        with h5py.File(path) as shard:
            found[path.name] = shard["observation"][:].tobytes()
    return found


# ------------------------------------------------------------------------------------------ resume


@ALL_RUNS
def test_a_run_goes_on_where_it_was(
    tmp_path: Path, first: Callable[[str], tuple[Path, Any, Any]], kind: str
) -> None:
    root, before, _ = first(kind)
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    name, overrides = RUNS[kind][0], (*RUNS[kind][1], "seed=3")
    torch.manual_seed(99)
    with serial_run(tmp_path, name, *overrides, FIVE, restarts=1) as run:
        said = resume(run, tmp_path)
        assert said.startswith("snapshot_00000")
        assert train(run).startswith("max_train_iter reached: ")
        assert same(before, state_of(run)), "it has reached its limit already"
    with serial_run(tmp_path, name, *overrides, f"{LIMIT}.max_train_iter=8", restarts=2) as run:
        resume(run, tmp_path)
        assert train(run).startswith("max_train_iter reached: ")
        after = state_of(run)
        assert run_of(run).train_iter >= 8
    shown = json.loads((tmp_path / "status.json").read_text())
    assert shown["phase"] == "finished"
    assert after["groups"]["main"][0] > before["groups"]["main"][0]
    assert not same(before["policies"], after["policies"])


def test_what_was_published_after_a_snapshot_counts(tmp_path: Path) -> None:
    with serial_run(tmp_path, "cartpole_dqn", *DQN, FIVE) as run:
        train(run)
        steps = run_of(run).env_steps
    shutil.rmtree(tmp_path / "snapshots" / checkpoint_names(tmp_path / "snapshots")[-1])
    with serial_run(tmp_path, "cartpole_dqn", *DQN, FIVE, restarts=1) as run:
        said = resume(run, tmp_path)
        assert f"{steps} transitions published after it are taken, too" in said
        assert run_of(run).env_steps == steps


def test_blocks_that_are_torn_cost_their_items(tmp_path: Path) -> None:
    small = ("system.storage.block_bytes=4096",)
    with serial_run(tmp_path, "cartpole_dqn", *DQN, *small, FIVE) as run:
        train(run)
        steps = run_of(run).env_steps
    resumed = read_newest(RunLayout(tmp_path))
    assert resumed is not None
    blocks = resumed.state["groups"]["main"]["replay"]["partitions"]["rank1"]["blocks"]
    assert sum(block["end_id"] - block["first_id"] for block in blocks) == steps
    lost = sorted(blocks, key=lambda block: block["first_id"])[1]
    lost_items = lost["end_id"] - lost["first_id"]
    tear(RunLayout(tmp_path).inside(lost["path"]), resumed.published[lost["path"]].shard)
    with serial_run(tmp_path, "cartpole_dqn", *DQN, *small, FIVE, restarts=1) as run:
        assert "1 blocks are missing or damaged" in resume(run, tmp_path)
        assert run_of(run).env_steps == steps
        train(run)
        (part,) = run_of(run).replay.partitions.values()
        assert part.buffer.count() == run_of(run).env_steps - lost_items


def test_data_that_a_snapshot_names_are_on_disk(tmp_path: Path) -> None:
    """Also what was learnt from while its block was open: killed then, nothing is missing."""
    settings = (*DQN, f"{LIMIT}.max_train_iter=40", "system.snapshot_s=1e-9")
    with serial_run(tmp_path, "cartpole_dqn", *settings, "system.keep_snapshots=99") as run:
        train(run)
    layout = RunLayout(tmp_path)
    names = checkpoint_names(layout.snapshots_dir)
    assert len(names) > 3
    for name in names[1:]:
        snapshot = open_checkpoint(layout.snapshots_dir / name)
        resumed = resume_from(layout, snapshot)
        (part,) = resumed.state["groups"]["main"]["replay"]["partitions"].values()
        held = sum(block["end_id"] - block["first_id"] for block in part["blocks"])
        assert held == snapshot.facts["env_steps"]
        assert all(block["path"] in resumed.published for block in part["blocks"])


def test_a_restart_meets_other_random_numbers(tmp_path: Path) -> None:
    """Else it would collect again what it has collected before."""
    seen = []
    name, overrides = RUNS["dqn"]
    for number, restarts in enumerate((0, 1, 1)):
        one = (f"{LIMIT}.max_env_step=64", "policy.eval.every=null")
        with serial_run(tmp_path / str(number), name, *overrides, *one, restarts=restarts) as run:
            train(run)
        shards = sorted((tmp_path / str(number)).rglob("data/*/*/*.h5"))
        blocks = [block for path in shards for block in [read_block(path)]]
        seen.append([block.columns["observation"] for block in blocks])
    assert same(seen[1], seen[2])
    assert not same(seen[0], seen[1])


def test_a_torn_checkpoint_is_passed_over(tmp_path: Path) -> None:
    name, overrides = RUNS["dqn"]
    with serial_run(tmp_path, name, *overrides, FIVE) as run:
        train(run)
    with serial_run(tmp_path, name, *overrides, f"{LIMIT}.max_train_iter=9", restarts=1) as run:
        resume(run, tmp_path)
        train(run)
    assert iterations(tmp_path) == [5, 9]
    torn = tmp_path / "snapshots" / "snapshot_000003" / "learner.pt"
    torn.write_bytes(torn.read_bytes()[:-5])
    with serial_run(tmp_path, name, *overrides, f"{LIMIT}.max_train_iter=9", restarts=2) as run:
        assert resume(run, tmp_path).startswith("snapshot_000002: ")
        assert run_of(run).train_iter == 5
        train(run)
    checkpoint, errors = newest_checkpoint(tmp_path / "snapshots")
    assert checkpoint is not None
    assert (checkpoint.facts["train_iter"], errors) == (9, [])


def test_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    name, overrides = RUNS["dqn"]
    with serial_run(tmp_path, name, *overrides, restarts=1):
        assert read_newest(RunLayout(tmp_path)) is None


@pytest.mark.slow
def test_checkpoints_come_by_time(tmp_path: Path) -> None:
    name, overrides = RUNS["dqn"]
    keep = ("system.snapshot_s=1e-9", "system.keep_snapshots=3")
    many = f"{LIMIT}.max_train_iter=40"  # a snapshot begins once the one before is written
    with serial_run(tmp_path, name, *overrides, many, *keep) as run:
        train(run)
    found = iterations(tmp_path)
    assert len(found) == len(set(found)) == 3
    assert (found[-1], found) == (40, sorted(found))


def test_the_command_goes_on(done: Path, capfd: pytest.CaptureFixture[str]) -> None:
    left = done / "snapshots" / ".snapshot_000006.tmp-elsewhere-1"
    left.mkdir()
    before = facts_of(done)
    config = load(done / "config.yaml").to_mapping()
    capfd.readouterr()
    evaluated = json.loads((done / "status.json").read_text())["evaluations"]
    assert main(["serial", "--resume", str(done), f"{LIMIT}.max_train_iter=8"]) == 0
    out, err = capfd.readouterr()
    assert err == f"hpcdi: note: resumed with {LIMIT}.max_train_iter: 4.0 in the run, 8.0 now\n"
    shown = [int(number) for number in re.findall(r" evaluation (\d+):", out)]
    assert shown[0] == evaluated + 1, "it goes on counting, as status does"
    assert shown[-1] == json.loads((done / "status.json").read_text())["evaluations"]
    for said in (", restart 1", "resumed      snapshot_000002: env step", "8 train iter"):
        assert said in out, said
    after = facts_of(done)
    assert (after["state"], after["restarts"]) == ("done", 1)
    assert after["figures"]["train_iter"] == 8
    assert after["started"] == before["started"]
    assert after["figures"]["env_steps"] > before["figures"]["env_steps"]
    assert not left.exists()
    config["policy"]["other"]["commander"]["max_train_iter"] = 8
    assert load(done / "config.yaml").to_mapping() == config
    assert iterations(done) == [4, 8]


def test_overrides_stand_before_or_after_resume(done: Path) -> None:
    for number, line in enumerate(
        (["a", "--resume", "r", "b"], ["--resume", "r", "a", "b"], ["a", "b", "--resume", "r"])
    ):
        words = {
            "a": f"{LIMIT}.max_train_iter={6 + number}", "b": "policy.learn.learning_rate=1e-4",
            "r": str(done),
        }  # fmt: skip
        assert main(["serial", *(words.get(word, word) for word in line)]) == 0
        assert facts_of(done)["figures"]["train_iter"] == 6 + number


@pytest.mark.parametrize("override", ["policy.lern.batch_size=3", "policy.learn.batch_size=none"])
def test_a_wrong_override_changes_nothing(
    done: Path, capfd: pytest.CaptureFixture[str], override: str
) -> None:
    before = (done / "run.json").read_text()
    assert main(["serial", "--resume", str(done), override]) == 2
    assert "has 1 problem" in capfd.readouterr().err
    assert (done / "run.json").read_text() == before


def write_facts(run_dir: Path, **facts: Any) -> None:
    known = facts_of(run_dir) if (run_dir / "run.json").exists() else {}
    (run_dir / "run.json").write_text(json.dumps({**known, **facts}))


@pytest.mark.parametrize("held", ["nothing", "no folder", "text"])
def test_a_folder_that_is_no_run(tmp_path: Path, held: str) -> None:
    path = tmp_path / "run"
    if held != "no folder":
        path.mkdir()
    if held == "text":
        (path / "run.json").write_text("text")
    said = "is damaged" if held == "text" else "holds no run: --resume takes the run folder"
    with pytest.raises(LaunchError, match=said):
        serial(None, resume=str(path))
    assert not (path / "log").exists()


def test_nothing_to_train(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="name an experiment's YAML file"):
        serial()


HOLD = """
import sys
from pathlib import Path
from hpcdi.run.run_lock import RunLock
from hpcdi.store.layout import RunLayout

with RunLock(RunLayout(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_run_that_is_still_running(done: Path) -> None:
    assert not (done / "run.lock").exists()
    before = facts_of(done)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(done)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as job:
        assert job.stdout
        assert job.stdout.readline() == b"held\n"
        with pytest.raises(LaunchError, match=f"is in use: by process {job.pid} on host"):
            serial(None, resume=str(done))
        assert facts_of(done) == before
        job.kill()
    more = (f"{LIMIT}.max_train_iter=6",)
    assert serial(None, more, resume=str(done)) == 0
    assert not (done / "run.lock").exists()


def test_a_run_whose_process_has_died(done: Path) -> None:
    """Killed, it could not say so; nor can a process on another host be asked."""
    more = (f"{LIMIT}.max_train_iter=6",)
    # process 1 is not ours: numbers come again
    for said in ({"pid": 2**22 + 1}, {"pid": 1}, {"pid": os.getppid(), "host": "elsewhere"}):
        write_facts(done, state="running", **{"host": platform.node(), **said})
        assert serial(None, more, resume=str(done)) == 0
    facts = facts_of(done)
    assert (facts["restarts"], facts["pid"], facts["host"]) == (3, os.getpid(), platform.node())
    done.rename(done.with_name("moved"))
    write_text(done / "mine" / "x", "now that the run is over, anybody may make that folder")


def test_a_run_without_a_checkpoint_stays_what_it_was(
    done: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for path in (done / "snapshots").rglob("manifest.json"):
        path.unlink()
    before = facts_of(done)
    capfd.readouterr()
    for _ in range(2):
        assert main(["serial", "--resume", str(done)]) == 1
        err = capfd.readouterr().err
        assert err.count("there is no whole snapshot to resume from") == 1
        assert "Traceback" not in err
        assert facts_of(done) == before


def test_a_checkpoint_of_another_network_is_refused(
    done: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = facts_of(done)
    capfd.readouterr()
    other = "policy.model.encoder_hidden_size_list=[9]"
    assert main(["serial", "--resume", str(done), other]) == 2
    err = capfd.readouterr().err
    assert f"the snapshots of {done} are of other networks" in err
    assert "encoder_hidden_size_list" in err
    assert "Traceback" not in err
    assert facts_of(done) == before
    more = f"{LIMIT}.max_train_iter=6"
    assert main(["serial", "--resume", str(done), more]) == 0, "as it was, it goes on"
    assert facts_of(done)["restarts"] == 1


def test_a_taken_folder(done: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in done.rglob("*")}
    config = str(ROOT / "configs" / "cartpole_dqn.yaml")
    with pytest.raises(LaunchError, match="holds another run"):
        serial(config, (), str(done))
    assert before == {path: path.stat().st_mtime_ns for path in done.rglob("*")}


# ---------------------------------------------------------------------------------------- its ends


@pytest.mark.parametrize("random", [0, 10**6])
def test_a_stop_leaves_a_snapshot(tmp_path: Path, random: int) -> None:
    """Also while it begins at random; a signal says it once."""
    settings = (*DQN, f"policy.random_collect_size={random}")
    with serial_run(tmp_path, "cartpole_dqn", *settings) as run:

        def ask() -> StopRequest | None:
            return StopRequest("received SIGINT", 130) if run_of(run).env_steps >= 200 else None

        outcome = run.play(ask)
        assert (outcome.state, outcome.reason, outcome.exit_code) == (
            "stopped", "received SIGINT", 130,
        )  # fmt: skip
        assert (run_of(run).train_iter == 0) is bool(random)
        env_steps = run_of(run).env_steps
    newest, _ = newest_checkpoint(tmp_path / "snapshots")
    assert newest is not None
    assert newest.facts["env_steps"] == env_steps, "with the rollout that was under way"
    with serial_run(tmp_path, "cartpole_dqn", *settings, restarts=1) as run:
        resume(run, tmp_path)
        assert run_of(run).env_steps == env_steps
        assert run.play(lambda: StopRequest("received SIGINT", 130)).exit_code == 130
        (part,) = run_of(run).replay.partitions.values()
        assert part.buffer.count() >= env_steps


class BrokenEnv(gymnasium.Env[Any, Any]):
    """Every step raises."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        raise ValueError("planted: no such step")


@pytest.fixture
def broken_env() -> Iterator[str]:
    gymnasium.register("test/Broken-v0", entry_point=BrokenEnv)
    yield "test/Broken-v0"
    gymnasium.registry.pop("test/Broken-v0")


def test_an_environment_that_fails_ends_the_run(
    go: Callable[..., Any], capfd: pytest.CaptureFixture[str], broken_env: str
) -> None:
    code, run_dir = go(
        "cartpole_dqn", *DQN, f"env.env_id={broken_env}", "env.vectorization=sync"
    )  # fmt: skip
    out, err = capfd.readouterr()
    assert code == 1, out + err
    facts = facts_of(run_dir)
    assert (facts["state"], facts["exit_code"]) == ("failed", 1)
    often = "EnvError: an environment failed stepping, 6 times in a row: ValueError: planted: no"
    assert facts["reason"].startswith(often)
    assert err.count(f"FAILED: {often}") == 1
    assert err.count("all 4 are re-created") == 1, "shown once"
    said = "an environment failed (ValueError: planted: no such step)"
    assert f"warning: 5 times: {said}\n" in err
    log = (run_dir / "log" / "rank00000.jsonl").read_text()
    assert log.count("all 4 are re-created") == 5
    assert err.count("Traceback (most recent call last):") == 1


@pytest.mark.slow
def test_an_environment_that_cannot_even_be_reset_ends_the_run_and_the_process(
    tmp_path: Path,
) -> None:
    """It printed FAILED, and then the process never ended."""
    program = "import fakes.unresettable; from hpcdi.cli import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "serial", str(ROOT / "configs" / "cartpole_dqn.yaml"),
         "env.env_id=test/Unresettable-v0", "env.vectorization=sync", "env.manager.max_retry=1",
         "--run-dir", str(tmp_path / "run")],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "FAILED: EnvError" in done.stderr


def test_a_bug_ends_the_run_with_its_traceback_once(
    go: Callable[..., Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(self: Any, *_args: Any) -> Any:
        raise RuntimeError("planted in the policy")

    monkeypatch.setattr("hpcdi.policy.acting.dqn.DQNActing.act", act)
    code, run_dir = go("cartpole_dqn", *DQN)
    _, err = capfd.readouterr()
    assert code == 1
    assert err.count("Traceback (most recent call last):") == 1
    assert err.count("FAILED: RuntimeError: planted in the policy") == 1
    facts = facts_of(run_dir)
    assert (facts["state"], facts["reason"]) == ("failed", "RuntimeError: planted in the policy")
    log = (run_dir / "log" / "rank00000.jsonl").read_text()
    assert "planted in the policy" in log


def test_a_file_system_that_fails_ends_the_run_to_be_started_again(
    go: Callable[..., Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[str] = []
    close, end = Coordinator.close, run_folder.end
    monkeypatch.setattr(Coordinator, "close", lambda self: (did.append("close"), close(self)))
    monkeypatch.setattr(run_folder, "end", lambda *to: (did.append("end"), end(*to)))

    def refuse(*_: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr("hpcdi.store.shard_file._write", refuse)
    code, run_dir = go("cartpole_dqn", *DQN, FIVE)
    facts = facts_of(run_dir)
    assert (code, facts["state"], facts["exit_code"]) == (85, "stopped", 85)
    assert facts["reason"].startswith("ShardError: ")
    err = capfd.readouterr().err
    assert "000001.h5: cannot be written: Stale file handle" in err
    assert "resume with  hpcdi serial --resume" in err
    # another test's may be collected, and closed, meanwhile
    assert "close" in did[: did.index("end")], "the other roles are closed, too"


def test_a_run_that_fails_before_its_first_snapshot_goes_on_with_what_it_has_collected(
    go: Callable[..., Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def update(self: Any, *_args: Any) -> Any:
        raise RuntimeError("planted in the policy")

    with monkeypatch.context() as patched:
        patched.setattr("hpcdi.policy.dqn.DQNPolicy.update", update)
        code, run_dir = go("cartpole_dqn", *DQN, FIVE)
    steps = facts_of(run_dir)["figures"]["env_steps"]
    assert code == 1
    assert steps >= 32
    assert main(["serial", "--resume", str(run_dir)]) == 0
    said = f"snapshot_000001: env step 0, train iteration 0, 1 blocks; {steps} transitions"
    assert said in capfd.readouterr().out
    figures = facts_of(run_dir)["figures"]
    assert (figures["train_iter"], figures["env_steps"] > steps) == (5, True)


def test_a_full_disk_is_told_and_does_not_end_the_run(
    go: Callable[..., Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_state(*_args: Any, **_kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hpcdi.roles.coordinator.snapshots.save_state", save_state)
    code, run_dir = go("cartpole_dqn", *DQN, FIVE, "system.snapshot_s=1e-9")
    _, err = capfd.readouterr()
    assert code == 0
    assert err.count("snapshot_000001 could not be written: ") == 1
    assert "No space left on device" in err
    assert facts_of(run_dir)["state"] == "done"
    assert list((run_dir / "snapshots").iterdir()) == []
    assert (run_dir / "policies" / "best.safetensors").exists()


def test_a_run_on_a_full_disk_ends_and_counts_what_is_in_shards(tmp_path: Path) -> None:
    """Its collector cannot hand over more blocks: rank 0, which waits with it, hears nothing."""
    settings = (*PPO, "system.storage.disk_patience_s=0.3", f"{LIMIT}.max_train_iter=40")
    with mounted(tmp_path / "disk", "4m") as disk:
        no_end = threading.Timer(20.0, disk.free)

        def fill() -> None:
            if run_of(run).train_iter >= 3 and no_end.ident is None:
                disk.fill()
                no_end.start()

        with serial_run(disk.root, "cartpole_ppo", *settings) as run:
            outcome = run.play(fill)
            no_end.cancel()
            group = run_of(run)
            blocks = [b for file in disk.root.rglob("0*.h5") for _, b in survey(file, "x").blocks]
            assert (outcome.state, outcome.exit_code) == ("stopped", 85)
            assert "the disk has been full for " in outcome.reason
            assert any("found no room on the disk" in line for line in run.coordinator.summary())
            assert group.env_steps == sum(int(b.items["item_len"].sum()) for b in blocks)
            assert group.episodes == sum(int(b.facts["episodes"]) for b in blocks)


@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_a_run_whose_shards_cannot_be_written_counts_what_is_in_them(
    tmp_path: Path, kind: str
) -> None:
    data, kept = tmp_path / "data", tmp_path / "kept"

    def break_data() -> None:
        if run_of(run).train_iter >= 3 and not kept.exists():
            run.collector.store()
            data.rename(kept)
            data.touch()

    name, overrides = RUNS[kind]
    limit = f"{LIMIT}.max_train_iter=40"
    with (
        pytest.raises(ShardError, match="Not a directory"),
        serial_run(tmp_path, name, *overrides, limit) as run,
    ):
        run.play(break_data)
    blocks = [b for file in kept.rglob("0*.h5") for _, b in survey(file, "x").blocks]
    figures = run.coordinator.figures()
    assert figures["env_steps"] == sum(int(b.items["item_len"].sum()) for b in blocks) > 0
    assert figures["episodes"] == sum(int(b.facts["episodes"]) for b in blocks)


def test_wrong_settings_are_told_before_a_folder_is_made(tmp_path: Path) -> None:
    config = str(ROOT / "configs" / "cartpole_dqn.yaml")
    with pytest.raises(ConfigError, match="did you mean 'seed'"):
        serial(config, ("sead=1",), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------------------------ how it learns


def test_it_begins_at_random(tmp_path: Path) -> None:
    """The policy would always do the same in the same state."""
    greedy = (
        "policy.other.eps.start=0",
        "policy.random_collect_size=400",
        "env.collector_env_num=4",
    )
    for name in ("cartpole_dqn", FOREIGN):
        settings = greedy if name != FOREIGN else greedy[1:]
        root = tmp_path / Path(name).stem
        with serial_run(root, name, *(DQN if name != FOREIGN else ()), *settings,
                        f"{LIMIT}.max_env_step=400", "policy.eval.every=null") as run:  # fmt: skip
            assert train(run).startswith("max_env_step reached: ")
        blocks = [read_block(path) for path in sorted(root.rglob("data/*/*/*.h5"))]
        actions = np.concatenate([transitions(block)["action"] for block in blocks])
        assert len(actions) >= 400
        assert 0.4 < actions.mean() < 0.6


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ("policy.eval.every=4 iterations", [4, 8, 9]),
        ("policy.eval.every=260 env_steps", [5, 9]),
        ("policy.eval.every=1000 seconds", [9]),
    ],
)
def test_one_key_says_how_often_it_is_evaluated(
    tmp_path: Path, every: str, expected: list[int]
) -> None:
    """What was learnt since the last time is evaluated at the end; an iteration is 64 steps."""
    with serial_run(tmp_path, "cartpole_dqn", *DQN, every, f"{LIMIT}.max_train_iter=9") as run:
        train(run)
        evaluations = run_of(run).evaluations
    versions = [evaluation.policy_version for evaluation in evaluations]
    assert len(versions) == len(expected)
    assert all(abs(got - want) <= 1 for got, want in zip(versions, expected, strict=True))
    assert versions[-1] == 9
    assert all(evaluation.episodes == 2 for evaluation in evaluations)


def test_the_goal_of_a_serial_evaluator_counts(tmp_path: Path) -> None:
    more = ("policy.eval.evaluator.stop_value=1", "policy.eval.evaluator.n_episode=5")
    with serial_run(tmp_path, "cartpole_dqn", *DQN, *more, "env.stop_value=1e9", FIVE) as run:
        assert train(run).startswith("stop value reached")
        assert run_of(run).evaluations[-1].episodes == 6, "the same number of each environment"


def test_it_learns_as_often_as_it_is_told(tmp_path: Path) -> None:
    more = "policy.learn.update_per_collect=5"
    with serial_run(tmp_path, "cartpole_dqn", *DQN, more, f"{LIMIT}.max_train_iter=18") as run:
        train(run)
        assert 18 <= run_of(run).train_iter <= 20
        assert run_of(run).env_steps < 5 * (64 + 8)


def test_priorities_come_back_before_the_next_batch(tmp_path: Path) -> None:
    on = ("policy.priority=true", "policy.priority_IS_weight=true")
    with serial_run(tmp_path, "cartpole_dqn", *DQN, *on, f"{LIMIT}.max_train_iter=20") as run:
        train(run)
        (part,) = run_of(run).replay.partitions.values()
        masses = part.buffer.state_dict()["index"]["mass"]
        assert len(np.unique(masses[masses > 0])) > 100
        assert run_of(run).priorities_stale == 0


@pytest.mark.parametrize("keeps", [True, False])
def test_what_is_learnt_from_once_is_stored_to_be_kept(tmp_path: Path, keeps: bool) -> None:
    more = (f"{LIMIT}.max_train_iter=6", f"system.storage.keep_data={keeps}")
    with serial_run(tmp_path, "cartpole_ppo", *PPO, *more) as run:
        train(run)
        assert run_of(run).train_iter == 6
        assert run_of(run).replay.samples_drawn() == (env_steps := run_of(run).env_steps)
    shards = tmp_path.rglob("data/*/*/*.h5")
    blocks = [block for path in shards for _, block in survey(path, path.name).blocks]
    assert sum(block.transitions for block in blocks) == (env_steps if keeps else 0)


@pytest.mark.parametrize("said_by", ["command", "job"])
def test_it_ends_before_its_time_limit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    said_by: str,
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    ends_in_s = 20 if said_by == "job" else 9000
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + ends_in_s))
    words = ["--time-limit", "0:20"] if said_by == "command" else []
    config = str(ROOT / "configs" / "cartpole_dqn.yaml")
    long = f"{LIMIT}.max_env_step=2000"  # it would end there, if late
    assert main(["serial", config, *DQN, long, "--run-dir", str(tmp_path / "run"), *words]) == 85
    assert "the time limit is near" in capsys.readouterr().err
    assert checkpoint_names(RunLayout(tmp_path / "run").snapshots_dir)


def test_a_small_ring_keeps_the_newest_items(tmp_path: Path) -> None:
    """Blocks are sealed early, by age, and rows that they did not need are others'."""
    more = ("policy.other.replay_buffer.replay_buffer_size=400", "system.storage.seal_seconds=1e-6")
    with serial_run(tmp_path, "cartpole_dqn", *DQN, *more, f"{LIMIT}.max_env_step=2000") as run:
        train(run)
        (part,) = run_of(run).replay.partitions.values()
        assert part.buffer.count() == 400
        assert run_of(run).env_steps >= 2000
