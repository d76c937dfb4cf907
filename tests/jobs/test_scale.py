"""Collectors that wait until they are wanted, and environments that come back, in whole jobs."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import CARTPOLE, Running, is_learning, temporary_files
from test_faults import CHILDREN, children_of
from test_status import hpcdi

from hpcdi.store.inspect import inspect

pytestmark = pytest.mark.job
Start = Callable[..., Running]

LONG = (
    "env.stop_value=1e9", "policy.other.commander.max_env_step=1e9",
    "system.storage.seal_seconds=0.2",
)  # fmt: skip


def collecting(run_dir: Path) -> dict[str, int]:
    """Number of shards of each collector."""
    return {path.name: len(list(path.glob("*/*.h5"))) for path in (run_dir / "data").glob("rank*")}


def grows(job: Running, ranks: set[str]) -> None:
    """Wait until these collectors, and for a while no other ones, publish shards."""
    before = collecting(job.run_dir)

    def has_grown() -> bool:
        now = collecting(job.run_dir)
        return {name for name, count in now.items() if count > before.get(name, 0) + 1} >= ranks

    job.until(has_grown)


def collectors(job: Running) -> dict[str, Any]:
    path = job.run_dir / "status.json"
    return dict(json.loads(path.read_text()).get("collectors", {})) if path.exists() else {}


def test_collectors_wait_until_one_dies_or_more_are_wanted(start: Start) -> None:
    job = start(
        CARTPOLE, *LONG, "--collectors-max", "4", "policy.collect.collector.collector_num=1",
    )  # fmt: skip
    job.until(lambda: is_learning(job))
    assert "4 collectors of 8 environments (3 of them wait until they are wanted)" in job.read()
    job.until(lambda: collectors(job).get("there") == 4)
    assert collectors(job) == {"working": 1, "there": 4, "wanted": 1}
    (first,) = collecting(job.run_dir)
    assert "1 of 4 work, 3 wait until wanted" in hpcdi("status", job.run_dir).stdout

    # one dies: another begins
    placement = json.loads((job.run_dir / "run.json").read_text())["placement"]
    os.kill(placement[int(first.removeprefix("rank"))]["pid"], signal.SIGKILL)
    job.until(lambda: len(collecting(job.run_dir)) == 2)
    (second,) = collecting(job.run_dir).keys() - {first}
    grows(job, {second})

    # more, then fewer, then too many
    asked = hpcdi("scale", job.run_dir, 3)
    assert (asked.returncode, asked.stdout.splitlines()[0]) == (0, "3 of 3 collectors work")
    job.until(lambda: len(collecting(job.run_dir)) == 4)
    grows(job, collecting(job.run_dir).keys() - {first})
    assert hpcdi("scale", job.run_dir, 1).returncode == 0
    job.until(lambda: collectors(job)["working"] == 1)
    time.sleep(2.0)  # their tasks end
    before = collecting(job.run_dir)
    time.sleep(2.0)
    now = collecting(job.run_dir)
    assert sum(now[name] > count for name, count in before.items()) == 1
    refused = hpcdi("scale", job.run_dir, 5)
    assert refused.returncode == 2
    assert "has 4 collector ranks, and none can be added while it runs" in refused.stderr

    job.process.send_signal(signal.SIGTERM)
    ended = job.wait()
    assert ended.code == 85, ended.out + ended.err
    assert ended.run["figures"]["blocks_lost"] == 0
    assert not inspect(ended.run_dir).errors
    assert not temporary_files(ended.run_dir)


def test_environments_that_are_all_retired_come_back(start: Start) -> None:
    job = start(
        CARTPOLE, *LONG, *CHILDREN, "env.manager.max_retry=0", "env.manager.retry_window_s=4",
        "policy.other.commander.eval_interval=1000",
    )  # fmt: skip
    job.until(lambda: is_learning(job))
    pid = json.loads((job.run_dir / "run.json").read_text())["placement"][2]["pid"]
    job.until(lambda: "rank00002" in collecting(job.run_dir))
    for child in children_of(pid):
        os.kill(child, signal.SIGKILL)
    job.until(lambda: "rank 2 has no environments left; others do its work" in job.read())
    job.until(lambda: collectors(job).get("there") == 1)
    grows(job, {"rank00003"})
    job.until(lambda: collectors(job).get("there") == 2)
    grows(job, {"rank00002", "rank00003"})
    job.process.send_signal(signal.SIGTERM)
    ended = job.wait()
    assert ended.code == 85, ended.out + ended.err
    assert ended.run["figures"]["ranks"]["2"]["envs_retired"] == 2
