"""Runs that give the same numbers each time, cut off in the middle or not."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from jobs import CARTPOLE, Ended, Running, kill, temporary_files
from safetensors.numpy import load_file

from hpcdi.store.checkpoints import names
from hpcdi.store.inspect import inspect

pytestmark = pytest.mark.job
Start = Callable[..., Running]

SAME = (
    "system.deterministic=true", "system.snapshot_rounds=3", "system.storage.fsync=false",
    "policy.model.encoder_hidden_size_list=[16]", "policy.learn.update_per_collect=50",
    "policy.eval.evaluator.eval_freq=150", "env.stop_value=1e9", "env.evaluator_env_num=4",
)  # fmt: skip


def weights(ended: Ended) -> dict[str, bytes]:
    """Of the last policy, to the bit."""
    assert ended.code == 0, ended.out + ended.err
    file = ended.run_dir / "checkpoints" / "ckpt_final" / "policy.safetensors"
    return {name: tensor.tobytes() for name, tensor in load_file(file).items()}


def facts(ended: Ended) -> dict[str, Any]:
    figures = ended.run["figures"]
    return {name: figures[name] for name in ("env_steps", "train_iter", "episodes")}


def limit(iterations: int) -> str:
    return f"policy.other.commander.max_train_iter={iterations}"


def test_two_runs_are_equal_to_the_bit(start: Start) -> None:
    one, other = (start(CARTPOLE, *SAME, limit(500)).wait() for _ in range(2))
    assert one.run["figures"]["train_iter"] == 500
    assert weights(one) == weights(other)
    assert facts(one) == facts(other)


@pytest.mark.parametrize(
    ("way", "iterations", "settings"),
    [
        ("kill", 500, ()),
        ("signal", 200, ("policy.learn.learner.learner_num=2", "policy.priority=true")),
    ],
    ids=["killed", "two learners, prioritized, ended by the queue"],
)
def test_a_run_that_is_cut_off_and_resumed_is_equal_to_one_that_is_not(
    start: Start, resume: Start, way: str, iterations: int, settings: tuple[str, ...]
) -> None:
    given = (*SAME, *settings, limit(iterations))
    whole = start(CARTPOLE, *given).wait()
    job = start(CARTPOLE, *given)
    job.until(lambda: "snapshot_000002" in names(job.run_dir / "snapshots"), 60)
    if way == "kill":
        kill(job)
    else:
        os.kill(job.process.pid, signal.SIGTERM)
        assert job.wait().code == 85
    ended = resume(job.run_dir).wait()
    assert "resumed      snapshot_" in ended.out
    assert weights(ended) == weights(whole)
    assert facts(ended) == facts(whole)
    assert ended.run["figures"]["train_iter"] == iterations
    assert not temporary_files(ended.run_dir)
    assert not inspect(ended.run_dir).errors
    shards = [len(list((each.run_dir / "data").rglob("*.h5"))) for each in (whole, ended)]
    assert shards[0] == shards[1], "what was made again has replaced what was there"


def test_another_seed_gives_other_numbers(start: Start) -> None:
    one, other = (start(CARTPOLE, *SAME, limit(40), f"seed={seed}").wait() for seed in (0, 1))
    assert weights(one) != weights(other)
