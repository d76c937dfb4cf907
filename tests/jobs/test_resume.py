"""Runs over ranks that are cut off and gone on with."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import CARTPOLE, Ended, Running, kill, temporary_files
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hpcdi.config.load import load
from hpcdi.store.checkpoints import names, open_checkpoint
from hpcdi.store.inspect import inspect

pytestmark = pytest.mark.job
Start = Callable[..., Running]

PPO = CARTPOLE.with_name("cartpole_ppo.yaml")
OFTEN = (
    "system.snapshot_s=0.5", "env.stop_value=1e9", "policy.other.commander.max_env_step=1e9",
    "policy.other.commander.eval_interval=1",
)  # fmt: skip


def snapshots(run_dir: Path) -> list[dict[str, Any]]:
    """Facts of the snapshots that are there, oldest first."""
    folder = run_dir / "snapshots"
    return [dict(open_checkpoint(folder / name).facts) for name in names(folder)]


def has_learnt(job: Running, snapshot: str = "snapshot_000003") -> bool:
    folder = job.run_dir / "snapshots"
    return bool(names(folder)) and names(folder)[-1] >= snapshot


def logged(ended: Ended, rank: int, word: str) -> list[dict[str, Any]]:
    lines = (ended.run_dir / "log" / f"rank{rank:05d}.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if word in entry]


def curves(folder: Path) -> dict[str, list[int]]:
    """Tag -> steps of its points, in the order in which TensorBoard draws them."""
    events = EventAccumulator(str(folder), {"scalars": 0}, purge_orphaned_data=False).Reload()
    return {tag: [point.step for point in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_a_run_that_is_killed_goes_on(start: Start, resume: Start) -> None:
    """Counters, buffer and policy; shards that were published after the snapshot are used."""
    job = start(CARTPOLE, *OFTEN)
    job.until(lambda: has_learnt(job))
    kill(job)
    before = snapshots(job.run_dir)[-1]
    goal = before["train_iter"] + 300
    again = resume(job.run_dir, f"policy.other.commander.max_train_iter={goal}")
    ended = again.wait()
    assert ended.code == 0, ended.out + ended.err
    assert "restart 1" in ended.out
    run = ended.run
    assert run["restarts"] == 1
    assert run["state"] == "done"
    assert run["figures"]["train_iter"] >= goal
    assert run["figures"]["env_steps"] > before["env_steps"]
    kept = load(job.run_dir / "config.yaml").config
    assert kept.policy.other.commander.max_train_iter == goal, "the next restart has it, too"
    report = inspect(job.run_dir)
    assert not report.errors
    assert not temporary_files(job.run_dir)
    assert not (job.run_dir / "run.lock").exists()
    first = logged(ended, 1, "scalars")
    iterations = [entry["train_iter"] for entry in first]
    back = [k for k in range(1, len(iterations)) if iterations[k] < iterations[k - 1]]
    assert len(back) <= 1, "the log goes on where the snapshot was"
    assert all(entry >= before["train_iter"] for k in back for entry in iterations[k:])
    assert [entry["restart"] for entry in first] == sorted(entry["restart"] for entry in first)
    assert {entry["restart"] for entry in first} == {0, 1}
    for tag, steps in curves(job.run_dir / "tb").items():
        assert steps == sorted(steps), f"{tag} runs back"


def test_two_learners_go_on_and_so_does_one(start: Start, resume: Start) -> None:
    two = "policy.learn.learner.learner_num=2"
    job = start(CARTPOLE, *OFTEN, two)
    job.until(lambda: has_learnt(job))
    kill(job)
    reached = snapshots(job.run_dir)[-1]["train_iter"]
    for learners in (2, 1):
        goal = reached + 100
        again = resume(
            job.run_dir, "-n", str(3 + learners),
            f"policy.learn.learner.learner_num={learners}",
            f"policy.other.commander.max_train_iter={goal}",
        )  # fmt: skip
        ended = again.wait()
        assert ended.code == 0, ended.out + ended.err
        assert ended.run["figures"]["train_iter"] >= goal
        assert len(ended.run["placement"]) == 3 + learners
        reached = snapshots(job.run_dir)[-1]["train_iter"]
        assert reached >= goal
    assert ended.run["restarts"] == 2


def test_ppo_goes_on_from_its_last_iteration(start: Start, resume: Start) -> None:
    job = start(PPO, "policy.other.commander.max_train_iter=6", "env.stop_value=1e9")
    assert job.wait().code == 0
    assert snapshots(job.run_dir)[-1]["train_iter"] >= 6
    again = resume(job.run_dir, "policy.other.commander.max_train_iter=10")
    ended = again.wait()
    assert ended.code == 0, ended.out + ended.err
    assert ended.run["figures"]["train_iter"] >= 10


def test_a_torn_snapshot_is_passed_over(start: Start, resume: Start) -> None:
    job = start(CARTPOLE, *OFTEN)
    job.until(lambda: has_learnt(job))
    kill(job)
    older, newest = names(job.run_dir / "snapshots")[-2:]
    torn = job.run_dir / "snapshots" / newest / "learner.pt"
    torn.write_bytes(torn.read_bytes()[:-100])
    goal = open_checkpoint(job.run_dir / "snapshots" / older).facts["train_iter"] + 50
    again = resume(job.run_dir, f"policy.other.commander.max_train_iter={goal}")
    ended = again.wait()
    assert ended.code == 0, ended.out + ended.err
    assert f"resumed      {older}" in ended.out
    assert "learner.pt is not what was written" in ended.err


@pytest.mark.parametrize("way", ["usr2", "time limit"])
def test_the_queue_gets_a_snapshot_and_a_code_to_requeue_by(start: Start, way: str) -> None:
    slow = (
        "system.snapshot_s=1e9",
        "env.stop_value=1e9",
        "policy.other.commander.max_env_step=1e9",
    )
    limit = ("--time-limit", "0:44") if way == "time limit" else ()
    job = start(CARTPOLE, *slow, *limit)
    if way == "usr2":
        log = job.run_dir / "log" / "rank00001.jsonl"
        job.until(lambda: log.exists() and '"scalars"' in log.read_text())
        os.kill(job.process.pid, signal.SIGUSR2)
    began = time.monotonic()
    ended = job.wait(60)
    assert ended.code == 85, ended.out + ended.err
    assert ended.run["exit_code"] == 85
    assert ended.run["state"] == "stopped"
    assert time.monotonic() - began < 30
    first, facts = snapshots(job.run_dir)
    assert first["train_iter"] < facts["train_iter"]
    assert facts["train_iter"] == ended.run["figures"]["train_iter"]
    assert "go on with   hpcdi train --resume" in ended.out
    assert not temporary_files(job.run_dir)


def test_what_cannot_be_gone_on_with_is_left_alone(
    start: Start, resume: Start, tmp_path: Path
) -> None:
    job = start(CARTPOLE, *OFTEN)
    job.until(lambda: has_learnt(job, "snapshot_000001"))
    busy = resume(job.run_dir).wait()
    assert busy.code == 2
    assert f"the run folder {job.run_dir} is in use: by process" in busy.err
    taken = start(CARTPOLE, run_dir=job.run_dir).wait()
    assert taken.code == 2
    assert "is in use: by process" in taken.err
    kill(job)
    before = (job.run_dir / "run.json").read_bytes()
    other = resume(job.run_dir, "policy.learn.batch_sise=8").wait()
    assert other.code == 2
    assert "did you mean 'batch_size'" in other.err
    text = CARTPOLE.read_text().replace("nstep: 5", "nstep: 3").replace("seed: 0", "seed: 7")
    (tmp_path / "other.yaml").write_text(text.replace("128, 128", "64"))
    named = resume(job.run_dir, str(tmp_path / "other.yaml")).wait()
    assert named.code == 2
    assert "policy.nstep: 5 in the run, 3 now" in named.err
    assert "policy.model.encoder_hidden_size_list: [128, 128] in the run, [64] now" in named.err
    assert "seed" not in named.err
    assert (job.run_dir / "run.json").read_bytes() == before
    nothing = resume(tmp_path / "nowhere").wait()
    assert nothing.code == 2
    assert "holds no run over ranks" in nothing.err


def test_a_script_that_is_started_again_and_again_comes_to_its_end(
    start: Start, tmp_path: Path
) -> None:
    """As Slurm requeues it: the same command line each time, and no hand on it."""
    run_dir = tmp_path / "run"
    variables = {"SLURM_JOB_ID": "4711"}
    never = (*OFTEN, "system.snapshot_s=1e9")

    def again(number: int, goal: float = 1e9) -> Running:
        script = {**variables, "SLURM_RESTART_COUNT": str(number)}
        limit = f"policy.other.commander.max_train_iter={goal}"
        return start(CARTPOLE, *never, limit, run_dir=run_dir, variables=script)

    job = again(0)
    job.until(lambda: any((run_dir / "data").rglob("*.h5")))
    kill(job)
    published = list((run_dir / "data").rglob("*.h5"))
    job = again(1)  # from its very beginning, and nothing that was published is lost
    log = run_dir / "log" / "rank00001.jsonl"
    told = log.read_text().count('"scalars"')
    job.until(lambda: log.read_text().count('"scalars"') > told)
    os.kill(job.process.pid, signal.SIGTERM)
    ended = job.wait()
    assert ended.code == 85, ended.out + ended.err
    assert "restart 1" in ended.out
    assert "resumed      snapshot_000001: env step 0, train iteration 0, " in ended.out
    assert " transitions published after it are taken, too" in ended.out
    assert all(path.exists() for path in published)
    reached = snapshots(run_dir)[-1]
    assert reached["train_iter"] == ended.run["figures"]["train_iter"]
    assert not inspect(run_dir).errors
    goal = reached["train_iter"] + 100
    ended = again(2, goal).wait()
    assert ended.code == 0, ended.out + ended.err
    assert "resumed      snapshot_00000" in ended.out
    assert ended.run["restarts"] == 2
    assert ended.run["restarts_without_progress"] == 0
    assert ended.run["figures"]["train_iter"] >= goal
    before = (run_dir / "run.json").read_bytes()
    ended = again(3, goal).wait()
    assert ended.code == 0, ended.out + ended.err
    assert "is done already (max_train_iter reached" in ended.out
    other = start(CARTPOLE, *never, "seed=1", run_dir=run_dir, variables=variables).wait()
    assert other.code == 2
    assert "holds a run of another experiment" in other.err
    assert "seed: 0 in the run, 1 now" in other.err
    assert (run_dir / "run.json").read_bytes() == before
    assert not (run_dir / "run.lock").exists()
