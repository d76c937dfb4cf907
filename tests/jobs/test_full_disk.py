"""A run whose disk is full for a while, or for good: a real one, of some megabytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import CARTPOLE, ENDLESS, ONE_COLLECTOR, Running, block_counts

from fakes.small_disk import SmallDisk, mounted

pytestmark = pytest.mark.job
Start = Callable[..., Running]

UNTIL_FULL = (*ENDLESS, "policy.eval.every=1000 seconds", "system.snapshot_s=1")
LIMITED = (*UNTIL_FULL, "policy.other.commander.max_env_step=300_000")
"""More steps than fit into the memory of collectors that wait for the disk."""
NO_SPACE = r"No space left on device \(.*B are free there\)"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted(tmp_path / "disk", "30m") as disk:
        yield disk


@pytest.fixture
def run_dir(tmp_path: Path, disk: SmallDisk) -> Path:
    """On that disk; what the job prints goes elsewhere."""
    (disk.root / "run").mkdir()
    (tmp_path / "run").symlink_to(disk.root / "run")
    return tmp_path / "run"


@pytest.mark.slow
def test_collectors_pause_and_go_on_by_themselves(
    start: Start, disk: SmallDisk, run_dir: Path
) -> None:
    job = start(CARTPOLE, *LIMITED, run_dir=run_dir)
    job.until_learning()
    disk.fill()
    job.until(lambda: job.read().count("the disk is full") == 2)
    job.until_said("could not be written")
    disk.free()
    ended = job.wait()
    ended.check(0, "done")
    assert ended.err.count("the disk is full") == 2, "each collector says it once"
    assert ended.err.count("the disk has free space again") == 2
    assert re.search(NO_SPACE, ended.err)
    figures = ended.run["figures"]
    assert figures["blocks_lost"] == 0
    assert all(figures["ranks"][rank]["blocks_lost"] == 0 for rank in ("2", "3"))
    assert sum(block_counts(run_dir).values()) == figures["blocks"]


@pytest.mark.slow
def test_one_that_stays_full_ends_the_run_which_is_resumed_when_there_is_room(
    start: Start, resume: Start, disk: SmallDisk, run_dir: Path
) -> None:
    job = start(
        CARTPOLE, *UNTIL_FULL, ONE_COLLECTOR, "system.storage.disk_patience_s=2", run_dir=run_dir
    )
    job.until_learning()
    job.until(lambda: any((run_dir / "snapshots").glob("snapshot_*")))
    disk.fill()
    ended = job.wait()
    assert ended.code == 85, ended.said
    assert "stopped: rank" in ended.out
    assert "the disk has been full for 2s (system.storage.disk_patience_s)" in ended.out
    assert re.search(NO_SPACE, ended.out)
    assert "--resume" in ended.out
    assert "did not end in order" not in ended.said
    ended.check_files()
    refused = resume(run_dir).wait()  # as a batch script does, again and again
    assert refused.code == 85, refused.said
    assert "cannot be written: No space left on device. Free some space" in refused.err
    assert "Traceback" not in refused.err
    disk.free()
    again = resume(run_dir, "env.stop_value=5", "policy.eval.every=0.5 seconds").wait()
    again.check(0, "done")
    assert "resumed" in again.out
    assert again.run["reason"].startswith("stop value reached")
