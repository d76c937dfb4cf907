"""`hpcdi train`, from the command to its exit code and what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs import CARTPOLE, QUICK, Running, temporary_files
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hpcdi.launch.local import mpirun_command, rank_environment
from hpcdi.store.inspect import inspect
from hpcdi.store.policies import read_policy
from hpcdi.store.snapshots import load_state
from hpcdi.worker.coordinator.snapshot_keeper import STATE_FILE, STATE_KIND, STATE_VERSION

pytestmark = pytest.mark.job
Start = Callable[..., Running]

COUNT = (
    "env.env_id=hpcdi/Count-v0", "env.import_names=[hpcdi.env.toy]", "env.vectorization=sync",
    "env.stop_value=1e9", "policy.other.commander.max_env_step=20000",
    "policy.other.replay_buffer.min_fill=200",
)  # fmt: skip


def test_a_run_learns_and_leaves_a_whole_run_folder(start: Start) -> None:
    ended = start(CARTPOLE, *QUICK).wait()
    assert ended.code == 0, ended.out + ended.err
    assert "solved: stop value reached" in ended.out
    for said in ("run folder", "tensorboard --logdir", str(ended.run_dir / "data"), "evaluation 1"):
        assert said in ended.out
    assert ended.err == ""
    assert ended.run["state"] == "done"
    assert [place["role"] for place in ended.run["placement"]] == [
        "coordinator", "learner", "collector", "collector",
    ]  # fmt: skip
    assert ended.run["versions"]["torch"].startswith("2.")
    assert not temporary_files(ended.run_dir)
    report = inspect(ended.run_dir)
    assert not report.errors, report.errors
    assert read_policy(ended.run_dir / "policies" / "latest.safetensors").version > 0
    assert read_policy(ended.run_dir / "policies" / "best.safetensors").version > 0


def test_what_it_writes_is_for_common_tools(start: Start) -> None:
    ended = start(CARTPOLE, *QUICK).wait()
    shards = sorted((ended.run_dir / "data").rglob("*.h5"))
    with h5py.File(shards[0]) as first, h5py.File(shards[-1]) as last:
        assert first["observation"].shape[1:] == (4,)
        assert set(np.unique(first["terminated"][:])) <= {False, True}
        # two collectors never see the same random numbers
        rows = min(len(first["observation"]), len(last["observation"]), 100)
        assert not np.array_equal(first["observation"][:rows], last["observation"][:rows])
    events = EventAccumulator(str(ended.run_dir / "tb"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {
        "learner_iter/total_loss", "learner_step/total_loss", "collector_step/reward_mean",
        "collector_iter/reward_mean", "evaluator_step/reward_mean", "evaluator_iter/reward_mean",
        "perf/env_steps_per_s", "perf/train_iters_per_s", "perf/policy_lag",
    } <= tags  # fmt: skip
    logs = sorted((ended.run_dir / "log").glob("rank*.jsonl"))
    entries = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    assert {(entry["rank"], entry["role"]) for entry in entries} >= {
        (0, "coordinator"), (1, "learner"),
    }  # fmt: skip
    assert len(logs) == 4


@pytest.mark.parametrize(
    ("limit", "counter"),
    [("max_env_step=3000", "env_steps"), ("max_train_iter=50", "train_iter")],
)
def test_limits_end_the_run(start: Start, limit: str, counter: str) -> None:
    ended = start(
        CARTPOLE, "env.stop_value=1e9", f"policy.other.commander.{limit}",
        "policy.other.replay_buffer.min_fill=200",
    ).wait()  # fmt: skip
    assert ended.code == 0, ended.out + ended.err
    assert f"done: {limit.split('=')[0]} reached" in ended.out
    assert ended.run["figures"][counter] >= int(limit.split("=")[1])


def test_train_iterations_are_done_exactly(start: Start) -> None:
    ended = start(
        CARTPOLE, "env.stop_value=1e9", "policy.learn.learner.train_iterations=37",
        "policy.other.replay_buffer.min_fill=200",
    ).wait()  # fmt: skip
    assert ended.code == 0, ended.out + ended.err
    assert ended.run["figures"]["train_iter"] == 37
    assert read_policy(ended.run_dir / "policies" / "latest.safetensors").version == 37


def test_priorities_come_back_from_the_learner(start: Start) -> None:
    ended = start(
        CARTPOLE, "env.stop_value=1e9", "policy.priority=true", "policy.priority_IS_weight=true",
        "policy.other.commander.max_train_iter=300", "policy.other.replay_buffer.min_fill=200",
    ).wait()  # fmt: skip
    assert ended.code == 0, ended.out + ended.err
    newest = sorted((ended.run_dir / "snapshots").iterdir())[-1]
    state = load_state(newest / STATE_FILE, STATE_KIND, STATE_VERSION)
    masses = state["replay"]["partitions"]["rank1"]["buffer"]["index"]["mass"]
    assert len(np.unique(masses[masses > 0])) > 1000, "each drawn item has a priority of its own"
    assert state["counters"]["train_iter"] >= 300


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_no_dummy_step_reaches_the_data(start: Start, mode: str) -> None:
    """Every number of the counting environment's data can be foretold."""
    ended = start(CARTPOLE, *COUNT, f"env.autoreset={mode}").wait()
    assert ended.code == 0, ended.out + ended.err
    for path in (ended.run_dir / "data").rglob("*.h5"):
        with h5py.File(path) as shard:
            check_counting(shard)


def check_counting(shard: h5py.File) -> None:
    starts, lengths = shard["item_start"][:], shard["item_len"][:]
    steps, episode = shard["observation"][:].T
    for start, length in zip(starts, lengths, strict=True):
        rows = slice(start, start + length)
        # within an item the observation counts up, and so does the bootstrap row after it
        np.testing.assert_array_equal(
            steps[start : start + length + 1], steps[start] + np.arange(length + 1)
        )
        assert len(set(episode[start : start + length + 1])) == 1
        np.testing.assert_array_equal(shard["reward"][rows], steps[rows] + 1)
        ended = steps[rows] + 1 == 5
        even = episode[rows] % 2 == 0
        np.testing.assert_array_equal(shard["terminated"][rows], ended & even)
        np.testing.assert_array_equal(shard["truncated"][rows], ended & ~even)


def test_a_foreign_policy_runs_transition_by_transition(start: Start) -> None:
    result = start(Path(__file__).parent / "foreign.yaml").wait()
    assert result.code == 0, result.out + result.err
    assert result.run["figures"]["train_iter"] >= 100


def test_ranks_started_by_mpirun_take_their_roles(start: Start) -> None:
    command = [*mpirun_command(4), sys.executable, "-m", "hpcdi"]
    variables = {k: v for k, v in rank_environment({}).items() if not k.startswith("HPCDI")}
    ended = start(CARTPOLE, *QUICK, command=command, variables=variables).wait()
    assert ended.code == 0, ended.out + ended.err
    assert ended.out.count("solved") == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("sead=1", "sead: unknown key; did you mean 'seed'?"),
        ("policy.cuda=true", "policy.cuda is true, but no rank sees a GPU"),
    ],
)
def test_what_cannot_be_run_is_said_once(wrong: str, said: str, start: Start) -> None:
    command = [*mpirun_command(4), sys.executable, "-m", "hpcdi"]
    variables = {k: v for k, v in rank_environment({}).items() if not k.startswith("HPCDI")}
    variables |= {"CUDA_VISIBLE_DEVICES": ""}
    ended = start(CARTPOLE, wrong, command=command, variables=variables).wait()
    assert ended.code == 2
    assert ended.err.count(said) == 1
    assert not ended.run_dir.exists()


def test_a_wrong_pmi_plugin_is_recognised() -> None:
    """What srun without the right --mpi looks like: several tasks, each a world of its own."""
    slurm = {"SLURM_NTASKS": "4", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}
    variables = rank_environment({**os.environ, **slurm})
    ended = subprocess.run(
        [sys.executable, "-m", "hpcdi", "train", str(CARTPOLE)],
        env=variables, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "srun --mpi=pmix python -m hpcdi train" in ended.stderr
