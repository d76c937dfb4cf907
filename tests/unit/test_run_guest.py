"""`hpcdi join` up to the moment at which it collects, and its script for Slurm."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import hpcdi
from hpcdi import cli
from hpcdi.comm.messages import PolicyRequest
from hpcdi.errors import EXIT_REQUEUE, EXIT_USAGE
from hpcdi.run import latest
from hpcdi.run.guest import NewestPolicies
from hpcdi.run.run_lock import RunLock
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import PolicyImage, publish_policy

ROLES = ("coordinator", "learner", "collector")


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunLayout]:
    """A run that calls itself running, of this process."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))  # no queue
    monkeypatch.setattr("hpcdi.commands.join.limit_threads", set)  # of the tests' own process
    found = RunLayout(tmp_path / "run")
    found.root.mkdir()
    configure(found)
    state(found, "running", *ROLES)
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)}
    yield found
    for number, handler in handlers.items():
        signal.signal(number, handler)


def state(layout: RunLayout, word: str, *roles: str) -> None:
    placement = [{"rank": rank, "role": role} for rank, role in enumerate(roles)]
    layout.run_file.write_text(json.dumps({
        "state": word, "pid": os.getpid(), "host": os.uname().nodename, "placement": placement,
    }))  # fmt: skip


def configure(layout: RunLayout, **settings: Any) -> None:
    mapping = {"env": {"env_id": "CartPole-v1"}, **settings}
    layout.config_file.write_text(json.dumps(mapping))  # JSON is YAML


def welcome(layout: RunLayout, version: str = hpcdi.__version__) -> None:
    layout.guests_dir.mkdir()
    layout.welcome_file.write_text(json.dumps({"hpcdi": version, "restarts": 0, "ranks": 3}))


def join(layout: RunLayout, *arguments: str) -> int:
    return cli.main(["join", str(layout.root), "--wait", "0.01", *arguments])


def test_on_policy_runs_take_none(layout: RunLayout, capsys: pytest.CaptureFixture[str]) -> None:
    configure(layout, policy={"type": "ppo"})
    assert join(layout) == EXIT_USAGE
    assert "takes no guests: ppo learns on-policy" in capsys.readouterr().err
    code = cli.main(["submit", str(layout.root), "--guests", "0-3", "--print"])
    assert code == EXIT_USAGE
    assert "takes no guests: ppo learns on-policy" in capsys.readouterr().err


def test_a_run_in_one_process_takes_none(
    layout: RunLayout, capsys: pytest.CaptureFixture[str]
) -> None:
    state(layout, "running", "serial")
    assert join(layout) == EXIT_USAGE
    assert "a run in one process, whose roles take turns" in capsys.readouterr().err


def test_another_version_is_refused(layout: RunLayout, capsys: pytest.CaptureFixture[str]) -> None:
    welcome(layout, "0.0.1")
    with RunLock(layout):
        assert join(layout) == EXIT_USAGE
    assert "is of hpcdi 0.0.1, and this is" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["done", "failed", "stopped"])
def test_a_run_that_is_over(
    layout: RunLayout, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that was stopped may come back: it is waited for, here for a moment."""
    state(layout, word, *ROLES)
    assert join(layout) == 0
    assert f"run is {word}: nothing to join" in capsys.readouterr().out


def test_a_run_that_has_died(layout: RunLayout, capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(layout.run_file.read_text())
    layout.run_file.write_text(json.dumps({**facts, "pid": 1 << 30}))
    assert join(layout) == 0
    assert "is dead: nothing to join" in capsys.readouterr().out


def test_a_run_that_latest_shows_and_that_was_moved(
    layout: RunLayout, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    latest.point_to(layout)
    layout.root.rename(tmp_path / "moved")
    assert cli.main(["join", str(tmp_path / "latest")]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert f"there is no {layout.root}: it was moved or removed; name the run folder" in said


def test_a_damaged_run_is_not_joined(layout: RunLayout, capsys: pytest.CaptureFixture[str]) -> None:
    layout.run_file.write_text("{")
    assert join(layout) == EXIT_USAGE
    assert "run.json is damaged: " in capsys.readouterr().err


def test_a_signal_ends_the_wait(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcdi.run.guest.wait_s", lambda _s: os.kill(os.getpid(), signal.SIGUSR2))
    assert join(layout, "--wait", "60") == EXIT_REQUEUE


def test_policies_are_read_when_they_are_new(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdi.run.guest._POLICY_LOOK_S", 0.0)
    policies = NewestPolicies(layout, {1: "main"})
    assert policies.answer(1, PolicyRequest(-1)) is None
    for version in (0, 5):
        image = PolicyImage.of({"weight": torch.full((2,), float(version))}, version)
        publish_policy(layout.latest_policy, image)
        update = policies.answer(1, PolicyRequest(version - 1))
        assert update is not None
        assert (update.version, update.data.tobytes()) == (version, image.data)
        assert policies.answer(1, PolicyRequest(version)) is None
        same = policies.answer(1, PolicyRequest(version, at_once=True))
        assert same is not None, "as for another player's policy, by which a guest begins to act"
        assert (same.version, same.data.size) == (version, 0)
    layout.latest_policy.write_bytes(b"torn")
    assert policies.answer(1, PolicyRequest(5)) is None


def test_the_script_of_guests(layout: RunLayout, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--guests", "0-31%8", "--partition", "preempt", "--time", "1:00:00", "--print"]
    assert cli.main(["submit", str(layout.root), *options]) == 0
    script = capsys.readouterr().out
    for option in ("array=0-31%8", "partition=preempt", "nodes=1", "ntasks-per-node=1", "requeue"):
        assert f"#SBATCH --{option}\n" in script
    assert f"RUN={layout.root}\n" in script
    assert '-m hpcdi join "$RUN" "$@" &' in script
    assert "next_job.json" not in script, "its jobs do not resume the run"
    assert not layout.submit_dir.exists()
