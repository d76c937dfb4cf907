"""`hpcdi train`: what reaches the data, how long it goes on, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs import CARTPOLE, QUICK, TESTS, Running, max_train_iter

from hpcdi.cli import main
from hpcdi.store.policies import read_policy

pytestmark = pytest.mark.job
Start = Callable[..., Running]

COUNT = (
    "env.env_id=hpcdi/Count-v0", "env.import_names=[hpcdi.env.toy]", "env.vectorization=sync",
    "env.stop_value=1e9", "policy.other.commander.max_env_step=20000",
    "policy.other.replay_buffer.min_fill=200",
)  # fmt: skip


@pytest.mark.slow
def test_no_dummy_step_reaches_the_data_and_a_limit_ends_the_run(start: Start) -> None:
    """Every number of the counting environment's data can be foretold.

    Gymnasium's ``next_step`` mode has dummy steps; the others are tested without a job.
    """
    told = ("env.autoreset=next_step", "env.keep_infos=[missing]")
    ended = start(CARTPOLE, *COUNT, *told).wait()
    ended.check(0, "done")
    assert "done: max_env_step reached" in ended.out
    assert ended.run["figures"]["env_steps"] >= 20000
    shards = list((ended.run_dir / "data").rglob("*.h5"))
    assert shards
    for path in shards:
        with h5py.File(path) as shard:
            check_counting(shard)


def check_counting(shard: h5py.File) -> None:
    assert min(shard["episode_seed"]) >= 0
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
        assert np.isnan(shard["info/missing"][rows]).all()
        ended = steps[rows] + 1 == 5
        even = episode[rows] % 2 == 0
        np.testing.assert_array_equal(shard["terminated"][rows], ended & even)
        np.testing.assert_array_equal(shard["truncated"][rows], ended & ~even)


@pytest.mark.slow
def test_a_foreign_policy_does_exactly_its_train_iterations(start: Start) -> None:
    """It knows nothing of columns, and gets lists of dicts."""
    ended = start(
        TESTS / "fakes" / "foreign_policy.yaml", "policy.learn.learner.train_iterations=37"
    ).wait()
    ended.check(0, "done")
    assert ended.run["figures"]["train_iter"] == 37
    assert read_policy(ended.run_dir / "policies" / "latest.safetensors").version == 37


def test_what_cannot_be_run_is_refused_before_anything_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """On-policy, each of two learners needs a collector; and a key is spelt wrong."""
    run_dir = tmp_path / "run"
    few = ["policy.learn.learner.learner_num=2", "policy.collect.collector.collector_num=1"]
    ppo = str(CARTPOLE.with_name("cartpole_ppo.yaml"))
    for config, wrong, said in (
        (ppo, few, "one to each learner on-policy; start it with -n 5 or more"),
        (str(CARTPOLE), ["sead=1"], "sead: unknown key; did you mean 'seed'?"),
    ):
        assert main(["train", config, *wrong, "--run-dir", str(run_dir)]) == 2
        assert said in capfd.readouterr().err
        assert not run_dir.exists()


@pytest.mark.slow
def test_modules_in_the_present_folder_are_not_imported(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by the launcher nor by ranks and their children, in place of installed ones."""
    for module in ("isal", "random", "numba"):
        (tmp_path / f"{module}.py").write_text(f"raise RuntimeError('{module}.py was imported')")
    monkeypatch.chdir(tmp_path)
    job = start(CARTPOLE, *QUICK, "env.manager.type=subprocess", max_train_iter(3))
    ended = job.wait()
    assert "was imported" not in ended.said
    ended.check(0, "done")
