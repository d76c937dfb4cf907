"""A run whose disk is full for a while, or for good: a real one, of some megabytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import CARTPOLE, Running, is_learning, temporary_files
from small_disk import SmallDisk, mounted

from hpcdi.store.inspect import inspect

pytestmark = pytest.mark.job
Start = Callable[..., Running]

STEPS = 200_000
LIMITED = ("env.stop_value=1e9", f"policy.other.commander.max_env_step={STEPS}")
QUIET = ("policy.other.commander.eval_interval=1000", "system.snapshot_s=1")


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


def test_collectors_pause_and_go_on_by_themselves(
    start: Start, disk: SmallDisk, run_dir: Path
) -> None:
    job = start(CARTPOLE, *LIMITED, *QUIET, run_dir=run_dir)
    job.until(lambda: is_learning(job))
    disk.fill()
    job.until(lambda: job.read().count("the disk is full") == 2)
    job.until(lambda: "snapshot" in job.read() and "could not be written" in job.read())
    disk.free()
    ended = job.wait()
    assert ended.code == 0, ended.out + ended.err
    assert ended.run["state"] == "done"
    assert ended.err.count("the disk is full") == 2, "each collector says it once"
    assert ended.err.count("there is room on the disk again") == 2
    assert re.search(r"No space left on device \(.*B are free there\)", ended.err)
    figures = ended.run["figures"]
    assert figures["blocks_lost"] == 0
    assert all(figures["ranks"][rank]["blocks_lost"] == 0 for rank in ("2", "3"))
    report = inspect(ended.run_dir)
    assert not report.errors
    assert f"{figures['blocks']} shards" in "\n".join(report.lines)
    assert not temporary_files(ended.run_dir)


def test_a_disk_that_stays_full_ends_the_run_which_goes_on_when_there_is_room(
    start: Start, resume: Start, disk: SmallDisk, run_dir: Path
) -> None:
    job = start(CARTPOLE, *LIMITED, *QUIET, "system.storage.disk_patience_s=2", run_dir=run_dir)
    job.until(lambda: is_learning(job) and any((run_dir / "snapshots").glob("snapshot_*")))
    disk.fill()
    ended = job.wait()
    assert ended.code == 1, ended.out + ended.err
    assert "FAILED: rank" in ended.out
    assert "the disk has been full for 2s (system.storage.disk_patience_s)" in ended.out
    assert re.search(r"No space left on device \(.*B are free there\)", ended.out)
    assert "--resume" in ended.out
    assert "did not end in order" not in ended.out + ended.err
    report = inspect(ended.run_dir)
    assert not report.errors
    assert not temporary_files(ended.run_dir)
    disk.free()
    again = resume(
        run_dir, "env.stop_value=5", "policy.other.commander.eval_interval=0.5"
    ).wait()  # fmt: skip
    assert again.code == 0, again.out + again.err
    assert "resumed" in again.out
    assert again.run["reason"].startswith("stop value reached")
    assert not inspect(run_dir).errors
