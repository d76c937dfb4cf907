"""Faults on purpose in whole jobs: what a run bears, and how it ends by what it does not bear."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import CARTPOLE, Running, is_learning, temporary_files

from hpcdi.store.inspect import inspect

pytestmark = pytest.mark.job
Start = Callable[..., Running]

ALLOWED = {"HPCDI_ALLOW_FAULTS": "1"}
LIMITED = (
    "env.stop_value=1e9", "policy.other.commander.max_env_step=30000",
    "policy.other.commander.eval_interval=1000",
)  # fmt: skip
CHILDREN = ("env.manager.type=subprocess", "env.manager.step_timeout=1", "env.collector_env_num=2")


def test_a_run_bears_a_torn_shard_a_full_disk_and_a_hung_environment(start: Start) -> None:
    faults = (
        "fault=[{kind: torn_shard, rank: 2, at_step: 2000}, "
        "{kind: enospc, rank: 3, after_s: 2, seconds: 2}, "
        "{kind: env_hang, rank: 3, at_step: 1000}]"
    )
    job = start(CARTPOLE, *LIMITED, *CHILDREN, faults, variables=ALLOWED)
    ended = job.wait()
    assert ended.code == 0, ended.out + ended.err
    for kind in ("torn_shard", "enospc", "env_hang"):
        assert ended.err.count(f"a fault on purpose: {kind}") == 1, ended.err
    # torn: named, counted, skipped
    assert ended.run["figures"]["blocks_lost"] == 1
    assert "rank 1 lost a block" in ended.err
    assert "1 block could not be read; the log says why" in ended.out
    (torn,) = inspect(ended.run_dir).errors
    assert "data/rank00002/" in str(torn)
    # full: waited for
    assert ended.err.count("[rank 3 collector] warning: the disk is full") == 1
    assert ended.err.count("[rank 3 collector] warning: there is room on the disk again") == 1
    # hung: made anew
    assert "environment 0 failed (step took longer than 1 s) and is made anew" in ended.err
    assert ended.run["figures"]["ranks"]["3"]["env_failures"] == 1
    assert "1 environment failure" in ended.out
    assert not temporary_files(ended.run_dir)


@pytest.mark.parametrize(("role", "rank"), [("collector", 3), ("learner", 1), ("coordinator", 0)])
def test_an_error_on_purpose_ends_the_run_with_its_rank(start: Start, role: str, rank: int) -> None:
    at = {"coordinator": 1, "learner": 20, "collector": 500}[role]
    ended = start(
        CARTPOLE, *LIMITED, "fault.kind=raise", f"fault.rank={rank}", f"fault.at_step={at}",
        variables=ALLOWED,
    ).wait()  # fmt: skip
    assert ended.code == 1, ended.out + ended.err
    assert f"hpcdi: rank {rank} ({role}, host" in ended.err
    assert "InjectedFault: a fault on purpose, at step" in ended.run["reason"]


def test_a_learner_that_hangs_is_named(start: Start) -> None:
    job = start(
        CARTPOLE, "env.stop_value=1e9", "system.coordinator.stop_timeout_s=5", "fault.kind=hang",
        "fault.role=learner", "fault.at_step=20", variables=ALLOWED,
    )  # fmt: skip
    job.until(lambda: "a fault on purpose: hang, at step 20" in job.read())
    os.kill(job.process.pid, signal.SIGTERM)
    ended = job.wait(60)
    assert "ranks [1] did not end within 5 s" in ended.err, ended.err
    assert ended.code == 1, "a learner's part of the last snapshot is missing"


@pytest.mark.parametrize(("kind", "code"), [("kill", -signal.SIGKILL), ("raise", 1)])
def test_a_serial_run_has_them_too(tmp_path: Path, kind: str, code: int) -> None:
    ended = subprocess.run(
        [
            sys.executable, "-m", "hpcdi", "serial", str(CARTPOLE), f"fault.kind={kind}",
            "fault.role=serial", "fault.at_step=3000", "--run-dir", str(tmp_path / "run"),
        ],
        env={**os.environ, **ALLOWED}, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert f"a fault on purpose: {kind}, at step 3" in ended.stderr


def children_of(pid: int) -> list[int]:
    """Environments' processes of a rank: children of its fork server."""
    found = []
    for server in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split())
    return found


def test_killed_environments_are_made_anew_then_retired_and_the_run_ends_without_any(
    start: Start,
) -> None:
    job = start(
        CARTPOLE, *CHILDREN, "env.stop_value=1e9", "env.manager.max_retry=1",
        "policy.other.commander.max_env_step=1e9",
        "policy.other.commander.eval_interval=1000",
    )  # fmt: skip
    job.until(lambda: is_learning(job))
    pids = [p["pid"] for p in json.loads((job.run_dir / "run.json").read_text())["placement"]]

    def kill_until(rank: int, said: str) -> None:
        """Kill an environment of a rank again and again, until that is said or all ends."""

        def is_said() -> bool:
            if said in job.read() or job.process.poll() is not None:
                return True
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, IndexError):
                os.kill(children_of(pids[rank])[0], signal.SIGKILL)
            time.sleep(0.2)
            return False

        job.until(is_said)

    kill_until(2, "(its process was killed by SIGKILL) and is made anew")
    kill_until(2, "and is retired; 1 of 2 environments go on")
    kill_until(2, "rank 2 has no environments left; others do its work")
    time.sleep(1.0)
    assert job.process.poll() is None, "the other collector goes on"
    kill_until(3, "FAILED")
    ended = job.wait()
    assert ended.code == 1, ended.out + ended.err
    assert "FAILED: no collector has environments left; rank 3: all 2 environments" in ended.out
    assert "was killed by SIGKILL" in ended.run["reason"]
    assert "4 environments retired" in ended.out
    assert not inspect(ended.run_dir).errors
