"""`hpcdi train` with two learners: they stay one, they end together, and no death is waited for."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from jobs import CARTPOLE, NOBODY_MAY_DIE, QUICK, Ended, Running, is_learning, temporary_files

from hpcdi.store.inspect import inspect
from hpcdi.store.policies import read_policy

pytestmark = pytest.mark.job
Start = Callable[..., Running]

PPO = CARTPOLE.with_name("cartpole_ppo.yaml")
TWO = ("policy.learn.learner.learner_num=2", "policy.collect.collector.collector_num=1")
TWO_EACH = ("policy.learn.learner.learner_num=2", "policy.collect.collector.collector_num=2")
ENDLESS = (*TWO, "env.stop_value=1e9", "policy.other.commander.max_env_step=1e9")


@dataclass(frozen=True)
class Watched:
    """What the learners of a watched policy have written down, a list each."""

    folder: Path

    @property
    def steps(self) -> list[list[str]]:
        """Hashes of the parameters, from before the first step on."""
        return self._lines("steps")

    @property
    def files(self) -> list[set[str]]:
        """Folders of the run that the learner has published something in."""
        return [{Path(line).parent.name for line in lines} for lines in self._lines("files")]

    def _lines(self, name: str) -> list[list[str]]:
        paths = [self.folder / f"{name}{learner}" for learner in range(2)]
        return [path.read_text().split() if path.exists() else [] for path in paths]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    """For jobs with the variable WATCHED."""
    folder = tmp_path / "watched"
    folder.mkdir()
    return Watched(folder)


def watch(policy: str, watched: Watched) -> tuple[list[str], dict[str, str]]:
    """Settings and variables of a job whose learners are watched."""
    settings = [f"policy.type=watched_{policy}", "policy.import_names=[planted]"]
    return settings, {"WATCHED": str(watched.folder)}


def check_steps(ended: Ended, watched: Watched) -> None:
    """Both have made the same steps, and have ended at the same iteration."""
    first, second = watched.steps
    assert len(set(first)) == len(first) > 20, "each step changes the parameters"
    assert first == second, "bit-equal before the first step and after every one"
    iterations = {ended.run["figures"]["ranks"][rank]["train_iter"] for rank in ("1", "2")}
    assert iterations == {ended.run["figures"]["train_iter"]}


def test_two_learners_of_dqn_are_one_to_the_bit(start: Start, watched: Watched) -> None:
    settings, variables = watch("dqn", watched)
    ended = start(CARTPOLE, *QUICK, *TWO, *settings, variables=variables).wait()
    assert ended.code == 0, ended.out + ended.err
    assert "solved: stop value reached" in ended.out
    assert ended.err == ""
    check_steps(ended, watched)
    assert len(watched.steps[0]) == ended.run["figures"]["train_iter"] + 1
    assert watched.files[0] >= {"policies", "checkpoints"}
    assert not watched.files[1] & {"policies", "checkpoints"}, "the first one writes for both"
    latest = read_policy(ended.run_dir / "policies" / "latest.safetensors")
    assert latest.version == ended.run["figures"]["train_iter"]
    assert not inspect(ended.run_dir).errors


def test_two_learners_of_ppo_are_one_to_the_bit(start: Start, watched: Watched) -> None:
    settings, variables = watch("ppo", watched)
    ended = start(
        PPO, *TWO_EACH, *settings, "env.stop_value=1e9", "policy.other.commander.max_train_iter=6",
        variables=variables,
    ).wait()  # fmt: skip
    assert ended.code == 0, ended.out + ended.err
    assert "done: max_train_iter reached" in ended.out
    check_steps(ended, watched)
    assert ended.run["figures"]["train_iter"] >= 6
    assert not watched.files[1] & {"policies", "checkpoints"}


def test_on_policy_each_learner_needs_a_collector(start: Start) -> None:
    refused = start(PPO, *TWO).wait()
    assert refused.code == 2
    assert "one to each learner on-policy; start it with -n 5 or more" in refused.err
    assert not refused.run_dir.exists()


def test_an_error_of_one_learner_is_told_before_what_the_other_says(
    start: Start, tmp_path: Path
) -> None:
    planted_at = tmp_path / "planted_at"
    ended = start(
        CARTPOLE, *ENDLESS, "policy.type=planted_second_learner", "policy.import_names=[planted]",
        variables={"PLANTED_AT": str(planted_at)},
    ).wait()  # fmt: skip
    lasted_s = time.time() - float(planted_at.read_text())
    assert ended.code == 1, ended.out + ended.err
    assert lasted_s < 10.0
    said = [line for line in ended.err.splitlines() if line]
    assert said[0].startswith("hpcdi: rank 2 (learner, host "), said[:3]
    first_error = next(line for line in said[2:] if not line.startswith(" "))
    assert first_error == "RuntimeError: planted in the learner"
    assert ended.run["state"] == "failed"
    assert "planted in the learner" in ended.run["reason"]
    assert not temporary_files(ended.run_dir)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 85)], ids=["ctrl-c", "term"]
)
def test_a_signal_ends_both_learners_in_order(start: Start, number: int, code: int) -> None:
    job = start(CARTPOLE, *ENDLESS)
    job.until(lambda: is_learning(job))
    os.kill(job.process.pid, number)
    ended = job.wait(20)
    assert ended.code == code, ended.out + ended.err
    assert ended.run["state"] == "stopped"
    assert ended.run["reason"] == f"received {signal.Signals(number).name}"
    ranks = ended.run["figures"]["ranks"]
    assert ranks["1"]["train_iter"] == ranks["2"]["train_iter"] >= 1
    assert not temporary_files(ended.run_dir)
    assert not inspect(ended.run_dir).errors


@pytest.mark.parametrize("rank", [1, 2])
def test_a_killed_learner_of_two_ends_the_job(start: Start, rank: int) -> None:
    job = start(CARTPOLE, *ENDLESS, *NOBODY_MAY_DIE)
    job.until(lambda: is_learning(job))
    placement = json.loads((job.run_dir / "run.json").read_text())["placement"]
    os.kill(placement[rank]["pid"], signal.SIGKILL)
    ended = job.wait(10)
    assert ended.code == 1, ended.out + ended.err
    assert ended.run["state"] == "failed"
    assert ended.run["exit_code"] == 1
    assert "was a rank killed?" in ended.err
    assert not inspect(ended.run_dir).errors
