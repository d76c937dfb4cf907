"""Faults that a run survives: a torn shard, a full disk, environments that hang or are killed."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import CARTPOLE, ENDLESS, FAULTS_ALLOWED, Running, block_counts, logged

from hpcdi.store.inspect import inspect

pytestmark = [pytest.mark.job, pytest.mark.slow]
Start = Callable[..., Running]

CHILDREN = ("env.manager.type=subprocess", "env.manager.step_timeout=1", "env.collector_env_num=2")
NO_EVALUATION = "policy.eval.every=1000 seconds"


def test_a_torn_shard_a_full_disk_and_a_hung_environment(start: Start) -> None:
    faults = (
        "fault=[{kind: torn_shard, rank: 2, at_step: 2000}, "
        "{kind: enospc, rank: 3, after_s: 2, seconds: 2}, "
        "{kind: env_hang, rank: 3, at_step: 1000}]"
    )
    # by memory a learner would not see that a shard is torn
    settings = ("system.transport=files", *ENDLESS, NO_EVALUATION, *CHILDREN)
    job = start(CARTPOLE, *settings, faults, variables=FAULTS_ALLOWED)
    for words in ("rank 1 lost a block", "the disk has free space again", "environment 0 failed"):
        job.until_said(words)
    job.send_signal(signal.SIGTERM)
    ended = job.wait()
    assert ended.code == 85, ended.said
    for kind in ("torn_shard", "enospc", "env_hang"):
        assert ended.err.count(f"injected fault: {kind}") == 1, ended.err
    # torn: named, counted, skipped
    assert ended.run["figures"]["blocks_lost"] == 1
    assert "rank 1 lost a block" in ended.err
    assert "1 block could not be read; the log says why" in ended.out
    ended.check_files(damaged=1)
    (torn,) = inspect(ended.run_dir).errors
    assert "data/rank00002/" in str(torn)
    # full: waited for
    assert ended.err.count("[rank 3 collector] warning: the disk is full") == 1
    assert ended.err.count("[rank 3 collector] warning: the disk has free space again") == 1
    # hung: replaced
    assert "environment 0 failed (step took longer than 1 s) and is re-created" in ended.err
    assert ended.run["figures"]["ranks"]["3"]["env_failures"] == 1
    assert "1 environment failure" in ended.out


def kill_environments(pid: int) -> None:
    """Kill the environments of a rank: children of its fork server."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it is making new ones
        for server in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            for child in Path(f"/proc/{server}/task/{server}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)


def test_a_collector_without_environments_comes_back_and_without_any_the_run_ends(
    start: Start,
) -> None:
    job = start(
        CARTPOLE, *ENDLESS, *CHILDREN, NO_EVALUATION, "env.manager.max_retry=0",
        "env.manager.retry_window_s=4", "system.storage.seal_seconds=0.2",
    )  # fmt: skip
    job.until(lambda: block_counts(job.run_dir).keys() == {"rank00002", "rank00003"})
    job.until_learning()
    pids = [job.pid_of(rank) for rank in (2, 3)]

    def is_said_after_kills(pids: list[int], words: str) -> bool:
        if words in job.read():
            return True
        for pid in pids:
            kill_environments(pid)
        return False

    job.until(
        lambda: is_said_after_kills(pids[:1], "rank 2 has no environments left; others do its work")
    )
    before = block_counts(job.run_dir)
    job.until(lambda: block_counts(job.run_dir)["rank00003"] > before["rank00003"] + 1)
    job.until(lambda: bool(logged(job.run_dir, 0, "rank 2 may make its environments anew")))
    job.until(lambda: block_counts(job.run_dir)["rank00002"] > before["rank00002"] + 1)
    job.until(lambda: is_said_after_kills(pids, "FAILED"))
    ended = job.wait()
    ended.check(1, "failed")
    assert "FAILED: no collector has environments left; rank " in ended.out
    assert "was killed by SIGKILL" in ended.run["reason"]
    assert ended.run["figures"]["ranks"]["2"]["envs_retired"] == 4
    assert ended.run["figures"]["ranks"]["3"]["envs_retired"] == 2
