"""Runs that are killed or told to end, and go on from their newest snapshot."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
from jobs import (
    CARTPOLE,
    ENDLESS,
    ONE_COLLECTOR,
    TWO_LEARNERS,
    Ended,
    Running,
    hpcdi,
    logged,
    max_train_iter,
    transitions,
    typed_mpirun,
)
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hpcdi.cli import main
from hpcdi.config.load import load
from hpcdi.store.checkpoints import checkpoint_names, open_checkpoint
from hpcdi.store.layout import RunLayout

pytestmark = pytest.mark.job
Start = Callable[..., Running]

OFTEN = (*ENDLESS, "system.snapshot_s=0.5", "policy.eval.every=1 seconds")


def facts_of(run_dir: Path) -> list[dict[str, Any]]:
    """Facts of the snapshots that are there, oldest first."""
    folder = run_dir / "snapshots"
    return [dict(open_checkpoint(folder / name).facts) for name in checkpoint_names(folder)]


def until_snapshot(job: Running, number: int) -> None:
    """Wait until a snapshot, or a later one, is there."""
    folder = job.run_dir / "snapshots"
    job.until(lambda: max(checkpoint_names(folder), default="") >= f"snapshot_{number:06d}")


def curves(folder: Path) -> dict[str, list[int]]:
    """Tag -> steps of its points, in the order in which TensorBoard draws them."""
    events = EventAccumulator(str(folder), {"scalars": 0}, purge_orphaned_data=False).Reload()
    return {tag: [point.step for point in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_a_run_that_is_killed_goes_on_with_one_learner_less_after_a_torn_snapshot(
    start: Start, resume: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`status`, `tail` and `eval` tell the truth while it runs, when it is dead, and when done."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    job = start(CARTPOLE, *OFTEN, TWO_LEARNERS, ONE_COLLECTOR, variables={"TMPDIR": str(temporary)})
    run_dir = job.run_dir
    until_snapshot(job, 3)
    job.until((run_dir / "policies" / "best.safetensors").is_file)
    status_file = RunLayout(run_dir).status_file
    job.until(lambda: json.loads(status_file.read_text())["env_steps"] > 0)
    code, told = status(run_dir)
    assert (code, told["state"], told["why"]) == (0, "running", "")
    assert told["progress"]["env_steps"] > 0
    assert told["next"][0].startswith("hpcdi tail ")
    assert hpcdi("eval", run_dir, "--json", "--episodes", "2").code == 0
    busy = resume(run_dir, **typed_mpirun(4)).wait()
    assert busy.code == 2
    assert busy.err.count(f"the run folder {run_dir} is in use: by process") == 1, "rank 0 alone"

    job.kill_everything()
    code, told = status(run_dir)
    assert (code, told["state"]) == (1, "dead")
    assert "is gone; its last status is" in told["why"]
    assert told["next"][-1] == f"hpcdi train --resume {run_dir}"
    assert json.loads((run_dir / "run.json").read_text())["state"] == "running"  # its own word
    followed = hpcdi("tail", run_dir, "-f", "-n", 5)
    assert (followed.code, "hpcdi tail: the run is dead" in followed.err) == (1, True)
    check_refusals(run_dir, tmp_path, capfd)

    older, newest = checkpoint_names(run_dir / "snapshots")[-2:]
    torn = run_dir / "snapshots" / newest / "learner.pt"
    torn.write_bytes(torn.read_bytes()[:-100])
    before = open_checkpoint(run_dir / "snapshots" / older).facts
    goal = before["train_iter"] + 300
    ended = resume(
        run_dir, "-n", "3", "policy.learn.learner.learner_num=1", max_train_iter(goal)
    ).wait()
    ended.check(0, "done")
    assert f"resumed      {older}" in ended.out
    assert "learner.pt is not what was written" in ended.err
    assert "restart 1" in ended.out
    assert len(ended.run["placement"]) == 3
    assert ended.run["figures"]["train_iter"] >= goal
    assert ended.run["figures"]["env_steps"] == transitions(run_dir) > before["env_steps"]
    kept = load(run_dir / "config.yaml").config
    assert kept.policy.other.commander.max_train_iter == goal, "the next restart has it, too"
    assert not (run_dir / "run.lock").exists()
    check_curves(ended, before["train_iter"])
    code, told = status(run_dir)
    assert (code, told["state"], told["restarts"]) == (0, "done", 1)
    assert told["next"] == [f"hpcdi eval {run_dir}"]


def status(run_dir: Path) -> tuple[int, dict[str, Any]]:
    asked = hpcdi("status", run_dir, "--json")
    assert asked.out, asked.err
    return asked.code, json.loads(asked.out)


def check_refusals(run_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What does not fit the run is refused before anything starts, and changes nothing."""
    before = (run_dir / "run.json").read_bytes()
    text = CARTPOLE.read_text().replace("nstep: 5", "nstep: 3").replace("seed: 0", "seed: 7")
    (tmp_path / "other.yaml").write_text(text.replace("128, 128", "64"))
    given = ["train", "--resume", str(run_dir)]
    for arguments, said in (
        ([*given, "policy.learn.batch_sise=8"], ["did you mean 'batch_size'"]),
        (
            [*given, str(tmp_path / "other.yaml")],
            [
                "policy.nstep: 5 in the run, 3 now",
                "policy.model.encoder_hidden_size_list: [128, 128] in the run, [64] now",
            ],
        ),
        (["train", "--resume", str(tmp_path / "nowhere")], ["holds no run: --resume takes"]),
    ):
        assert main(arguments) == 2
        err = capfd.readouterr().err
        assert all(words in err for words in said), err
        assert "seed" not in err
    assert (run_dir / "run.json").read_bytes() == before


def check_curves(ended: Ended, snapshot_iter: int) -> None:
    """Logs and curves go on where the snapshot was, and never run back."""
    first = logged(ended.run_dir, 1, "scalars")
    iterations = [entry["train_iter"] for entry in first]
    back = [k for k in range(1, len(iterations)) if iterations[k] < iterations[k - 1]]
    assert len(back) <= 1
    assert all(entry >= snapshot_iter for k in back for entry in iterations[k:])
    assert [entry["restart"] for entry in first] == sorted(entry["restart"] for entry in first)
    assert {entry["restart"] for entry in first} == {0, 1}
    for tag, steps in curves(ended.run_dir / "tb").items():
        assert steps == sorted(steps), f"{tag} runs back"


@pytest.mark.slow
def test_a_script_that_is_started_again_and_again_comes_to_its_end(
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As Slurm requeues it: the same command line each time, and no hand on it."""
    run_dir, temporary = tmp_path / "run", tmp_path / "tmp"
    temporary.mkdir()
    never = (*ENDLESS, ONE_COLLECTOR, "system.snapshot_s=1e9", "policy.eval.every=1 seconds")

    def again(number: int, goal: float = 1e9) -> Running:
        script = {
            "SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": str(number), "TMPDIR": str(temporary),
        }  # fmt: skip
        return start(CARTPOLE, *never, max_train_iter(goal), run_dir=run_dir, variables=script)

    job = again(0)
    job.until(lambda: any((run_dir / "data").rglob("*.h5")))
    job.kill_everything()
    published = list((run_dir / "data").rglob("*.h5"))

    job = again(1)  # from its very beginning, and nothing that was published is lost
    log = run_dir / "log" / "rank00001.jsonl"
    job.until(lambda: any(line["restart"] == 1 for line in logged(run_dir, 1, '"scalars"')))
    job.send_signal(signal.SIGUSR2)
    ended = job.wait()
    ended.check(85, "stopped")
    assert "restart 1" in ended.out
    assert "resumed      snapshot_000001: env step 0, train iteration 0, " in ended.out
    assert " transitions published after it are taken, too" in ended.out
    assert all(path.exists() for path in published)
    assert log.exists()
    reached = facts_of(run_dir)[-1]
    assert reached["train_iter"] == ended.run["figures"]["train_iter"]

    goal = reached["train_iter"] + 100
    ended = again(2, goal).wait()
    ended.check(0, "done")
    assert "resumed      snapshot_00000" in ended.out
    assert ended.run["restarts"] == 2
    assert ended.run["restarts_without_progress"] == 0
    assert ended.run["figures"]["train_iter"] >= goal
    assert ended.run["figures"]["env_steps"] == transitions(run_dir)
    assert not list(temporary.glob("*")), "also what the killed job had left"

    before = (run_dir / "run.json").read_bytes()
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    given = ["train", str(CARTPOLE), *never, "--run-dir", str(run_dir)]
    assert main([*given, max_train_iter(goal)]) == 0
    assert "is done already (max_train_iter reached" in capfd.readouterr().out
    assert main([*given, "seed=1"]) == 2
    err = capfd.readouterr().err
    assert "holds a run of another experiment" in err
    assert "seed: 0 in the run, 1 now" in err
    assert (run_dir / "run.json").read_bytes() == before
    assert not (run_dir / "run.lock").exists()


SAME = (
    "system.deterministic=true", "system.snapshot_rounds=3", "system.storage.fsync=false",
    "policy.model.encoder_hidden_size_list=[16]", "policy.learn.update_per_collect=20",
    "policy.eval.every=60 iterations", "env.stop_value=1e9", "env.evaluator_env_num=4",
    "policy.priority=true", TWO_LEARNERS,
)  # fmt: skip


@pytest.mark.slow
def test_a_deterministic_run_is_the_same_to_the_bit_ended_killed_and_resumed_or_not(
    start: Start, resume: Start
) -> None:
    job = start(CARTPOLE, *SAME)
    until_snapshot(job, 2)
    job.send_signal(signal.SIGTERM)
    job.wait().check(85, "stopped")
    reached = max(checkpoint_names(job.run_dir / "snapshots"))
    job = resume(job.run_dir)
    until_snapshot(job, int(reached.removeprefix("snapshot_")) + 1)
    job.kill_everything()
    goal = facts_of(job.run_dir)[-1]["train_iter"] + 70
    ended = resume(job.run_dir, max_train_iter(goal)).wait()
    ended.check(0, "done")
    whole = start(CARTPOLE, *SAME, max_train_iter(goal)).wait()
    whole.check(0, "done")
    assert whole.run["figures"]["train_iter"] == goal
    for name in ("env_steps", "train_iter", "episodes"):
        assert ended.run["figures"][name] == whole.run["figures"][name], name
    assert weights(ended) == weights(whole)
    stored = [transitions(each.run_dir) for each in (whole, ended)]
    assert stored[0] == stored[1], "what was made again has replaced what was there"


STACKED = (
    "-n", "3", "env.env_id=hpcdi/Stacked-v0", "env.import_names=[fakes.environments]",
    "system.deterministic=true", "system.storage.fsync=false", "env.stop_value=1e9",
    "policy.model.encoder_hidden_size_list=[16]", "policy.learn.update_per_collect=50",
    "policy.eval.every=1000 iterations", "env.evaluator_env_num=2", "policy.priority=true",
    "policy.other.replay_buffer.min_fill=500", max_train_iter(100),
)  # fmt: skip


@pytest.mark.slow
def test_frames_that_are_stored_once_teach_the_same_to_the_bit(start: Start) -> None:
    """Beside a run whose shards hold each observation whole."""
    whole = start(CARTPOLE, *STACKED).wait()
    once = start(CARTPOLE, *STACKED, "policy.other.replay_buffer.frames=[observation]").wait()
    for ended in (whole, once):
        ended.check(0, "done")
    assert weights(once) == weights(whole)
    columns, frames = ({}, {})
    for ended, found in ((whole, columns), (once, frames)):
        for path in (ended.run_dir / "data").rglob("*.h5"):
            with h5py.File(path) as shard:
                columns_of = (name for name in shard if isinstance(shard[name], h5py.Dataset))
                found[path.name] = {name: shard[name].shape for name in columns_of}
    assert all(shapes["observation"][1:] == (4, 4) for shapes in columns.values())
    assert all(shapes["observation_frames"][1:] == (4,) for shapes in frames.values())
    assert not any("observation" in shapes for shapes in frames.values())


def weights(ended: Ended) -> dict[str, bytes]:
    """Of the last policy, to the bit."""
    file = ended.run_dir / "checkpoints" / "ckpt_final" / "policy.safetensors"
    return {name: tensor.tobytes() for name, tensor in load_file(file).items()}
