"""Collectors that wait until they are needed, in a whole job."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest
from jobs import CARTPOLE, ENDLESS, ONE_COLLECTOR, Running, block_counts, hpcdi

pytestmark = [pytest.mark.job, pytest.mark.slow]
Start = Callable[..., Running]


def collectors(job: Running) -> dict[str, Any]:
    path = job.run_dir / "status.json"
    return dict(json.loads(path.read_text()).get("collectors", {})) if path.exists() else {}


def until_these_collect(job: Running, count: int) -> set[str]:
    """Wait until so many collectors, and no other ones, publish five blocks or more each."""
    began = block_counts(job.run_dir)

    def grown(by: int) -> set[str]:
        now = block_counts(job.run_dir)
        return {name for name in now if now[name] >= began.get(name, 0) + by}

    def is_so() -> bool:
        nonlocal began
        if len(grown(1)) > count:  # the others have not ended yet
            began = block_counts(job.run_dir)
        return len(grown(5)) == count

    job.until(is_so)
    return grown(5)


def test_collectors_wait_until_one_dies_or_more_are_wanted(start: Start) -> None:
    job = start(
        CARTPOLE, *ENDLESS, "--collectors-max", "3", ONE_COLLECTOR,
        "system.storage.seal_seconds=0.2",
    )  # fmt: skip
    job.until_learning()
    assert "3 collectors of 8 environments (2 of them wait until they are needed)" in job.read()
    job.until(lambda: collectors(job) == {"working": 1, "there": 3, "wanted": 1})
    (first,) = until_these_collect(job, 1)
    assert "1 of 3 work, 2 wait until needed" in hpcdi("status", job.run_dir).out

    # one dies: another begins
    job.kill_rank(int(first.removeprefix("rank")))
    (second,) = until_these_collect(job, 1)
    assert second != first

    # more, then fewer, then too many
    asked = hpcdi("scale", job.run_dir, 2)
    assert (asked.code, asked.out.splitlines()[0]) == (0, "2 of 2 collectors work")
    assert first not in until_these_collect(job, 2)
    assert hpcdi("scale", job.run_dir, 1).code == 0
    until_these_collect(job, 1)
    refused = hpcdi("scale", job.run_dir, 5)
    assert refused.code == 2
    assert "has 3 collector ranks, and none can be added while it runs" in refused.err

    job.send_signal(signal.SIGTERM)
    ended = job.wait()
    ended.check(85, "stopped")
    assert ended.run["figures"]["blocks_lost"] == 0
