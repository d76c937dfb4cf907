"""`hpcdi serial` as a user starts it: it learns, is ended or killed, and goes on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import CARTPOLE, CONFIGS, ENDLESS, PPO, Running, max_train_iter, transitions
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hpcdi.cli import main
from hpcdi.config.load import load
from hpcdi.store.checkpoints import checkpoint_names, newest_checkpoint
from hpcdi.store.inspect import inspect
from hpcdi.store.policies import read_policy

pytestmark = [pytest.mark.job, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
Start = Callable[..., Running]

RANDOM_RETURN = 30.0
"""Acting at random gives 22 in CartPole."""


@pytest.fixture
def serial(tmp_path: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """Runs ``hpcdi serial`` to its end in this process; returns what run.json says."""
    import torch

    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.getsignal(number) for number in numbers}
    threads = torch.get_num_threads()

    def run(config: Path, *overrides: str) -> dict[str, Any]:
        run_dir = tmp_path / "run"
        assert main(["serial", str(config), *overrides, "--run-dir", str(run_dir)]) == 0
        assert not inspect(run_dir).errors
        return dict(json.loads((run_dir / "run.json").read_text()))

    yield run
    torch.set_num_threads(threads)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_dqn_learns_and_leaves_what_common_tools_read(
    serial: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    facts = serial(
        CARTPOLE, "env.stop_value=60", "policy.eval.every=20 iterations",
        "system.tensorboard.tags=ding",
    )  # fmt: skip
    said = capfd.readouterr()
    assert said.err == ""
    for words in ("one process with 8 environments", "tensorboard --logdir", "solved: stop value"):
        assert words in said.out
    evaluations = facts["figures"]["evaluations"]
    assert evaluations[0]["mean"] < RANDOM_RETURN < 60 <= evaluations[-1]["mean"]
    best = read_policy(tmp_path / "run" / "policies" / "best.safetensors")
    assert best.version == evaluations[-1]["policy_version"] == facts["figures"]["train_iter"]
    events = EventAccumulator(str(tmp_path / "run" / "tb"))
    events.Reload()
    assert {
        f"{part}_{axis}/{figure}"
        for part, figure in (
            ("learner", "total_loss_avg"),
            ("collector", "reward_mean"),
            ("evaluator", "reward_mean"),
        )
        for axis in ("iter", "step")
    } <= set(events.Tags()["scalars"])
    curve = events.Scalars("evaluator_iter/reward_mean")
    assert [(point.step, pytest.approx(point.value)) for point in curve] == [
        (one["policy_version"], one["mean"]) for one in evaluations
    ]


@pytest.mark.slow
def test_ppo_learns(serial: Callable[..., Any]) -> None:
    facts = serial(PPO, "env.stop_value=150")
    assert facts["reason"].startswith("stop value")
    figures = facts["figures"]
    # a rollout is 64 steps of 8 environments; those that begin an episode make no transition
    assert 0.9 * figures["train_iter"] * 64 * 8 <= figures["env_steps"] < 100_000
    assert figures["evaluations"][-1]["mean"] >= 150


@pytest.mark.slow
def test_a_policy_learns_a_game_against_itself(serial: Callable[..., Any]) -> None:
    """A mean of 0.9 is at least 90 wins of 100 games: a draw is 0, a loss -1."""
    more = ("policy.eval.every=250 iterations", "env.stop_value=0.9")
    facts = serial(CONFIGS / "tictactoe_dqn.yaml", *more)
    assert facts["reason"].startswith("stop value")
    first, *_, last = facts["figures"]["evaluations"]
    assert first["mean"] < last["mean"]
    assert (last["episodes"], last["mean"] >= 0.9) == (200, True)


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_and_ctrl_c_ends_it_in_order(
    start: Start, resume: Start
) -> None:
    job = start(
        CARTPOLE, *ENDLESS, "policy.other.replay_buffer.min_fill=200", "system.snapshot_s=0.05",
        verb="serial",
    )  # fmt: skip
    folder = job.run_dir / "snapshots"
    job.until(lambda: max(checkpoint_names(folder), default="") > "snapshot_000003")
    os.kill(job.process.pid, signal.SIGKILL)
    assert job.wait().code == -signal.SIGKILL
    assert json.loads((job.run_dir / "run.json").read_text())["state"] == "running"
    checkpoint, _ = newest_checkpoint(folder)
    assert checkpoint is not None

    job = resume(job.run_dir, verb="serial")
    job.until(lambda: max(checkpoint_names(folder)) > checkpoint.folder.name)
    job.send_signal(signal.SIGINT)
    ended = job.wait()
    ended.check(130, "stopped")
    assert f"resumed      {checkpoint.folder.name}: env step " in ended.out
    assert "stopped: received SIGINT" in ended.err
    assert f"resume with  hpcdi serial --resume {ended.run_dir}\n" in ended.err
    checkpoint, errors = newest_checkpoint(folder)
    assert checkpoint is not None
    assert not errors
    assert checkpoint.facts["train_iter"] == ended.run["figures"]["train_iter"] > 0
    assert checkpoint.facts["env_steps"] == ended.run["figures"]["env_steps"]

    figures = ended.run["figures"]
    held = json.loads((job.run_dir / "status.json").read_text())["buffer"]["held"]
    for verb in ("train", "serial"):  # each reads the other's snapshot, buffer and all
        goal = figures["train_iter"] + 20
        ended = resume(job.run_dir, max_train_iter(goal), verb=verb).wait()
        ended.check(0, "done")
        assert "  resumed      snapshot_" in ended.out
        before, figures = figures, ended.run["figures"]
        assert figures["train_iter"] >= goal
        assert figures["env_steps"] == transitions(job.run_dir) >= before["env_steps"]
        commander = load(job.run_dir / "config.yaml").config.policy.other.commander
        assert commander.max_train_iter == goal, "the next restart has it, too"
        assert not inspect(job.run_dir).errors
        now = json.loads((job.run_dir / "status.json").read_text())["buffer"]["held"]
        assert now >= held, "nothing that the other had is lost"
        held = now
    assert figures["train_iter"] <= goal + 8  # of the serial run: updates come by twos or so
    assert ended.run["restarts"] == 3
