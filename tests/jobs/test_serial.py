"""`hpcdi serial` as a user starts it; on-policy runs over ranks; environments that hang or die."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest
from jobs import CARTPOLE, Ended, Running, temporary_files
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hpcdi.config.load import load
from hpcdi.store.checkpoints import names, newest_checkpoint
from hpcdi.store.inspect import inspect
from hpcdi.store.policies import read_policy

pytestmark = pytest.mark.job
Start = Callable[..., Running]

PPO = CARTPOLE.with_name("cartpole_ppo.yaml")
BATTLE = CARTPOLE.with_name("tictactoe_dqn.yaml")
ENDLESS = ("env.stop_value=1e9", "policy.other.replay_buffer.min_fill=200")
OFTEN = ("system.snapshot_s=0.05", "system.keep_snapshots=2")
RANDOM_RETURN = 30.0
"""Acting at random gives 22 in CartPole."""


@pytest.fixture
def serial(tmp_path: Path, started: list[Running]) -> Start:
    """Starts ``hpcdi serial`` with a run folder of its own, or one that there is."""

    def begin(*arguments: str | Path, run_dir: Path | None = None, resume: bool = False) -> Running:
        run_dir = run_dir or tmp_path / f"serial{len(started)}"
        where = "--resume" if resume else "--run-dir"
        line = [sys.executable, "-m", "hpcdi", "serial", *map(str, arguments), where, str(run_dir)]
        started.append(Running(line, run_dir, {}))
        return started[-1]

    return begin


def done(job: Running) -> Ended:
    ended = job.wait()
    assert ended.code == 0, ended.out + ended.err
    assert ended.run["state"] == "done"
    assert not temporary_files(ended.run_dir)
    report = inspect(ended.run_dir)
    assert not report.errors, report.errors
    return ended


# ------------------------------------------------------------------------------------ hpcdi serial


def test_dqn_learns_and_leaves_what_common_tools_read(serial: Start) -> None:
    ended = done(serial(CARTPOLE, "env.stop_value=60", "policy.eval.evaluator.eval_freq=100"))
    assert ended.err == ""
    for said in ("one process with 8 environments", "tensorboard --logdir", "solved: stop value"):
        assert said in ended.out
    evaluations = ended.run["figures"]["evaluations"]
    assert evaluations[0]["mean"] < RANDOM_RETURN < 60 <= evaluations[-1]["mean"]
    best = read_policy(ended.run_dir / "policies" / "best.safetensors")
    assert best.version == evaluations[-1]["policy_version"] == ended.run["figures"]["train_iter"]
    events = EventAccumulator(str(ended.run_dir / "tb"))
    events.Reload()
    assert {
        "learner_iter/total_loss", "learner_step/total_loss", "collector_step/reward_mean",
        "collector_iter/reward_mean", "evaluator_step/reward_mean", "evaluator_iter/reward_mean",
    } <= set(events.Tags()["scalars"])  # fmt: skip
    curve = events.Scalars("evaluator_iter/reward_mean")
    assert [(point.step, pytest.approx(point.value)) for point in curve] == [
        (one["policy_version"], one["mean"]) for one in evaluations
    ]


def test_ppo_learns(serial: Start) -> None:
    ended = done(serial(PPO, "env.stop_value=150"))
    assert "solved: stop value" in ended.out
    figures = ended.run["figures"]
    assert figures["train_iter"] * 64 * 8 <= figures["env_steps"] < 100_000
    assert figures["evaluations"][-1]["mean"] >= 150


def test_two_policies_learn_a_game_against_each_other(serial: Start) -> None:
    """A mean of 0.95 is at least 95 wins of 100 games: a draw is 0, a loss -1."""
    ended = done(serial(BATTLE, "policy.eval.evaluator.eval_freq=250"))
    assert "solved: stop value" in ended.out
    first, *_, last = ended.run["figures"]["evaluations"]
    assert first["mean"] < 0.8
    assert (last["episodes"], last["mean"] >= 0.95) == (200, True)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 85)], ids=["ctrl-c", "term"]
)
def test_a_signal_ends_the_run_with_a_checkpoint(serial: Start, number: int, code: int) -> None:
    job = serial(CARTPOLE, *ENDLESS)
    # its checkpoints are a minute apart: there is none yet
    job.until(lambda: "evaluation 1" in job.read())
    time.sleep(0.5)
    os.kill(job.process.pid, number)
    ended = job.wait(10)
    assert ended.code == code, ended.out + ended.err
    facts = ended.run
    said = f"received {signal.Signals(number).name}"
    assert (facts["state"], facts["reason"], facts["exit_code"]) == ("stopped", said, code)
    assert f"stopped: {said}" in ended.err
    assert f"go on with   hpcdi serial --resume {ended.run_dir}\n" in ended.err
    checkpoint, errors = newest_checkpoint(ended.run_dir / "snapshots")
    assert checkpoint is not None
    assert not errors
    assert checkpoint.facts["train_iter"] == facts["figures"]["train_iter"] > 0
    assert checkpoint.facts["env_steps"] == facts["figures"]["env_steps"]
    assert not temporary_files(ended.run_dir)


def test_a_killed_run_goes_on_from_its_newest_checkpoint(serial: Start) -> None:
    job = serial(CARTPOLE, *ENDLESS, *OFTEN)
    folder = job.run_dir / "snapshots"
    job.until(lambda: len(names(folder)) == 2 and names(folder)[0] > "iteration_000000050")
    os.kill(job.process.pid, signal.SIGKILL)
    assert job.wait(10).code == -signal.SIGKILL
    assert json.loads((job.run_dir / "run.json").read_text())["state"] == "running"
    checkpoint, _ = newest_checkpoint(folder)
    assert checkpoint is not None
    train_iter, env_steps = checkpoint.facts["train_iter"], checkpoint.facts["env_steps"]
    again = done(
        serial(f"policy.other.commander.max_train_iter={train_iter + 1}", run_dir=job.run_dir,
               resume=True)
    )  # fmt: skip
    assert f"resumed      {checkpoint.folder.name}: env step " in again.out
    figures = again.run["figures"]
    # updates come by twos or so: at 64 transitions each
    assert train_iter + 1 <= figures["train_iter"] <= train_iter + 8
    assert env_steps < figures["env_steps"] <= env_steps + 8 * (64 * 8)
    assert again.run["restarts"] == 1
    commander = load(job.run_dir / "config.yaml").config.policy.other.commander
    assert commander.max_train_iter == train_iter + 1, "the next restart has it, too"
    assert len(list((job.run_dir / "tb").iterdir())) == 2


def test_what_is_wrong_is_said_before_anything_starts(serial: Start, tmp_path: Path) -> None:
    ended = serial(CARTPOLE, "policy.lern.batch_size=64", "policy.nstep=three").wait()
    assert (ended.code, ended.out) == (2, "")
    assert "has 2 problems" in ended.err
    assert "policy.lern: unknown key; did you mean 'learn'?" in ended.err
    assert not ended.run_dir.exists()


def test_a_taken_folder_is_refused(serial: Start, tmp_path: Path) -> None:
    run_dir = tmp_path / "taken"
    run_dir.mkdir()
    (run_dir / "run.json").write_text('{"state": "done", "placement": [{"role": "coordinator"}]}')
    for resume, said in ((False, "holds another run (state 'done')"), (True, "no serial run")):
        given = [] if resume else [CARTPOLE]
        ended = serial(*given, run_dir=run_dir, resume=resume).wait()
        assert (ended.code, ended.out) == (2, "")
        assert said in ended.err
    assert [path.name for path in run_dir.iterdir()] == ["run.json"]


# ----------------------------------------------------------------------------- on-policy over ranks


def versions_of(run_dir: Path) -> dict[str, list[int]]:
    """Policy versions of each collector's shards, in order; each shard has one."""
    versions = defaultdict(list)
    for path in sorted((run_dir / "data").rglob("*.h5")):
        with h5py.File(path) as shard:
            (version,) = set(shard["policy_version"][:].tolist())
        versions[path.parts[-3]].append(version)
    return dict(versions)


def watched(path: Path) -> list[tuple[int, float]]:
    lines = [line.split() for line in path.read_text().splitlines()]
    return [(int(count), float(largest)) for count, largest in lines]


@pytest.mark.parametrize("ranks", [3, 4])
def test_ppo_solves_cartpole_by_batches_that_its_present_policy_made(
    start: Start, tmp_path: Path, ranks: int
) -> None:
    ended = done(
        start(
            PPO, "-n", str(ranks), "policy.type=watching_ppo", "policy.import_names=[watching]",
            variables={"WATCHED_AT": str(tmp_path / "watched")},
        )
    )  # fmt: skip
    assert "solved: stop value reached" in ended.out
    assert ended.err == ""
    batches = watched(tmp_path / "watched")
    assert 0 <= len(batches) - ended.run["figures"]["train_iter"] <= 1
    assert max(largest for _, largest in batches) < 1e-4, batches
    full = (ranks - 2) * 64 * 8
    sizes = [count for count, _ in batches]
    assert max(sizes) <= full
    assert len(set(sizes)) > 1
    # where no evaluation takes a collector away, or cuts its piece short, a batch is of all
    evaluations = ended.out.count("evaluation ")
    assert sum(count > 0.9 * full for count in sizes) >= len(sizes) - 4 * (evaluations + 1)
    versions = versions_of(ended.run_dir)
    assert len(versions) == ranks - 2
    for own in versions.values():
        assert own == sorted(own)
        # one by each; a second one where an evaluation has cut the first short
        assert len(own) - len(set(own)) <= evaluations + 1


def test_a_bound_of_one_lets_collectors_go_ahead(start: Start, tmp_path: Path) -> None:
    ended = done(
        start(
            PPO, "-n", "4", "env.stop_value=1e9", "policy.type=watching_ppo",
            "policy.import_names=[watching]", "policy.other.commander.max_train_iter=12",
            "policy.other.replay_buffer.max_staleness=1",
            variables={"WATCHED_AT": str(tmp_path / "watched")},
        )
    )  # fmt: skip
    differences = [largest for _, largest in watched(tmp_path / "watched")]
    assert len(differences) >= 12
    assert max(differences) > 1e-3, "some of it was made by the policy before"
    for own in versions_of(ended.run_dir).values():
        assert own == sorted(own)
        assert max(own.count(version) for version in own) <= 3


# ----------------------------------------------------------------- environments that hang, or crash

COUNT = (
    "env.env_id=hpcdi/Count-v0", "env.import_names=[hpcdi.env.toy]", "env.manager.type=subprocess",
    "env.manager.step_timeout=0.3", "env.collector_env_num=2", "env.evaluator_env_num=1",
    "policy.model.encoder_hidden_size_list=[8]", "policy.collect.n_sample=16",
    "env.stop_value=1e9", "policy.other.replay_buffer.min_fill=32",
    "policy.other.commander.max_env_step=120", "policy.other.commander.eval_interval=1000",
)  # fmt: skip
FAULTS = pytest.mark.parametrize(
    ("fault", "said"),
    [("hang_at", "step took longer than 0.3 s"), ("exit_at", "its process exited with code 7")],
    ids=["hangs", "exits"],
)


def check_replaced(ended: Ended, said: str) -> None:
    assert f"failed ({said}) and is made anew" in ended.err
    assert "Traceback" not in ended.err
    assert "done: max_env_step reached" in ended.out
    assert ended.run["figures"]["env_steps"] >= 120


@FAULTS
def test_a_broken_environment_is_replaced_in_one_process(
    serial: Start, fault: str, said: str
) -> None:
    check_replaced(done(serial(CARTPOLE, *COUNT, f"env.kwargs.{fault}=40")), said)


@FAULTS
def test_a_broken_environment_is_replaced_in_a_rank(start: Start, fault: str, said: str) -> None:
    check_replaced(done(start(CARTPOLE, "-n", "3", *COUNT, f"env.kwargs.{fault}=40")), said)
