"""A disk that is full, for real: what waits for room, what is told and skipped, what is left."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fakes.small_disk import SmallDisk, assert_full, mounted
from fakes.store import write_shard
from hpcdi.errors import CheckpointError, LaunchError, ShardError, SnapshotError
from hpcdi.roles.learner.publisher import PolicyFile
from hpcdi.store.block import Block
from hpcdi.store.checkpoints import newest_checkpoint, save_checkpoint, save_tensors
from hpcdi.store.disk_full import DiskPatience, or_refuse, or_warn
from hpcdi.store.inspect import inspect
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import PolicyImage, publish_policy, read_policy
from hpcdi.store.shard_file import ShardReader
from hpcdi.store.shards import Appender, ShardWriter, read_block, survey
from hpcdi.store.state_file import load_state, save_state
from hpcdi.types import ITEM_DTYPE, ShardRef
from hpcdi.utils.disk import AppendFile, is_full, shortage
from hpcdi.utils.event_file import TensorBoardWriter
from hpcdi.utils.log import LOGGER, close_log, open_log, say

LIMIT_S = 30.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted(tmp_path / "disk", "8m") as disk:
        yield disk


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, "hpcdi")
    return lambda: [record.getMessage() for record in caplog.records]


def block_of(rows: int = 20_000) -> Block:
    items = np.zeros(1, dtype=ITEM_DTYPE)
    items["item_len"] = rows
    return Block({"value": np.arange(rows, dtype=np.int64)}, items)


def path_of(number: int) -> str:
    return f"data/rank00002/{number:06d}.h5"


def until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, "it has not come to be so"
        time.sleep(0.01)


def left_in(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


class Rank0:
    """Takes what a patience says."""

    def __init__(self, patience_s: float) -> None:
        self.reasons: list[str] = []
        self.waited = 0
        self.announced: list[ShardRef] = []
        self.patience = DiskPatience(patience_s, self.reasons.append, self._wait)

    def _wait(self) -> None:
        self.waited += 1

    def announce(self, ref: ShardRef, _block: Block) -> None:
        self.announced.append(ref)


# ------------------------------------------------------------------------------------------ shards


def test_what_is_full_is_known_by_its_cause(disk: SmallDisk) -> None:
    disk.fill()
    with pytest.raises(ShardError, match="No space left on device") as caught:
        write_shard(RunLayout(disk.root), path_of(1), block_of())
    assert_full(caught.value.__cause__)
    assert is_full(caught.value)
    assert not is_full(ShardError("x", "is torn"))
    assert shutil.disk_usage(disk.root).free == 0
    assert shortage(disk.root / path_of(1), caught.value) == "0 B are free there"
    assert left_in(disk.root) == ["filler"], "nothing torn, nothing temporary"


def test_shards_wait_for_room_and_none_is_lost(
    disk: SmallDisk, said: Callable[[], list[str]]
) -> None:
    layout, rank0 = RunLayout(disk.root), Rank0(3600.0)
    with ShardWriter(layout, rank0.announce, patience=rank0.patience) as writer:
        writer.submit(path_of(0), block_of())
        until(lambda: rank0.announced)
        disk.fill()
        for number in (1, 2, 3):
            writer.submit(path_of(number), block_of())
        until(lambda: rank0.waited >= 3)
        assert len(said()) == 1, "it is said once"
        assert left_in(disk.root / "data") == ["rank00002/000000.h5"]
        disk.free()
        until(lambda: len(rank0.announced) == 4)
    assert [ref.path for ref in rank0.announced] == [f"{path_of(0)}#{slot}" for slot in range(4)]
    for ref in rank0.announced:
        assert read_block(layout.root / ref.path).rows == ref.rows
    assert (writer.lost, rank0.reasons) == (0, [])
    paused, goes_on = said()
    assert f"{disk.root}/{path_of(1)}: cannot be written: No space left" in paused
    assert "(0 B are free there). Collecting pauses" in paused
    assert "system.storage.disk_patience_s" in paused
    assert "the disk has free space again" in goes_on


@pytest.mark.parametrize("note", ["", "n" * 120], ids=["its padding", "its text"])
def test_a_record_of_which_a_full_disk_took_a_part_does_not_exist(
    disk: SmallDisk, note: str
) -> None:
    """There is room in the page where the record begins, and none for the next page."""
    layout = RunLayout(disk.root)
    appender = Appender(layout, 1 << 20, fsync=False)
    block = dataclasses.replace(block_of(1), facts={"note": note})
    written = [appender.write(path_of(0), block)]  # the pages of its columns have room for more
    disk.fill()

    def until_full() -> None:
        while len(written) < 100:
            written.append(appender.write(path_of(0), block))

    with pytest.raises(ShardError, match="No space left on device"):
        until_full()
    path = layout.root / path_of(0)
    table = ShardReader(path, path_of(0)).layout
    torn = path.read_bytes()[table.table + len(written) * table.slot_bytes :][: table.slot_bytes]
    assert torn.strip(b"\0"), "a part of it is there"
    assert inspect(path).errors == []
    assert [ref for ref, _ in survey(path, path_of(0)).blocks] == written
    disk.free()
    written.append(appender.write(path_of(0), block))
    assert [ref for ref, _ in survey(path, path_of(0)).blocks] == written


def test_patience_ends_once_and_room_may_still_come(disk: SmallDisk) -> None:
    layout, rank0 = RunLayout(disk.root), Rank0(0.2)
    disk.fill()
    with ShardWriter(layout, rank0.announce, patience=rank0.patience) as writer:
        writer.submit(path_of(1), block_of())
        until(lambda: rank0.reasons)
        waited = rank0.waited
        until(lambda: rank0.waited > waited)
        disk.free()
    assert len(rank0.announced) == 1, "what was collected is published all the same"
    (reason,) = rank0.reasons
    assert "No space left on device (0 B are free there)" in reason
    assert "--resume" in reason


def test_a_write_that_finds_room_does_not_end_the_wait_of_a_larger_one(
    disk: SmallDisk, said: Callable[[], list[str]]
) -> None:
    """Policies are published while blocks wait: patience would never end."""
    layout, rank0 = RunLayout(disk.root), Rank0(0.5)
    disk.fill()
    with ShardWriter(layout, rank0.announce, patience=rank0.patience) as writer:
        writer.submit(path_of(1), block_of())
        until(lambda: rank0.waited)
        until(lambda: rank0.patience.write(disk.root.stat) and rank0.reasons)
        assert len(said()) == 1, "there is no space yet"
        disk.free()
    assert len(rank0.announced) == 1
    assert len(said()) == 2


def test_at_the_end_of_a_run_what_finds_no_room_is_lost_and_told(
    disk: SmallDisk, said: Callable[[], list[str]]
) -> None:
    layout, rank0 = RunLayout(disk.root), Rank0(3600.0)
    disk.fill()
    writer = ShardWriter(layout, rank0.announce, patience=rank0.patience)
    for number in (1, 2):
        writer.submit(path_of(number), block_of(5_000))
    until(lambda: rank0.waited)
    rank0.patience.hurry(0.3)
    writer.close()
    assert (writer.lost, rank0.announced) == (2, [])
    assert f"{path_of(2)}: 5000 transitions found no room and are lost" in said()[-1]
    assert left_in(disk.root) == ["filler"]


def test_another_error_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("in the way")
    rank0 = Rank0(3600.0)
    writer = ShardWriter(RunLayout(tmp_path), rank0.announce, patience=rank0.patience)
    writer.submit(path_of(1), block_of(10))
    with pytest.raises(ShardError, match="cannot be written"):
        writer.close()
    assert rank0.waited == 0


# --------------------------------------------------------------------- snapshots, policies, tensors


def test_a_snapshot_that_finds_no_room_leaves_the_one_before(disk: SmallDisk) -> None:
    def writers(value: int) -> dict[str, Callable[[Path], None]]:
        return {"learner.pt": partial(save_tensors, tree={"w": torch.full((300_000,), value)})}

    save_checkpoint(disk.root, "snapshot_1", writers(1), {"n": 1}, keep=1)
    disk.fill()
    with pytest.raises(CheckpointError, match="No space left on device") as caught:
        save_checkpoint(disk.root, "snapshot_2", writers(2), {"n": 2}, keep=1)
    assert is_full(caught.value)
    newest, torn = newest_checkpoint(disk.root)
    assert newest is not None
    assert (newest.facts["n"], torn) == (1, [])
    assert [path.name for path in disk.root.iterdir()].count("snapshot_1") == 1
    assert not [path for path in disk.root.iterdir() if ".tmp-" in path.name]


def test_state_that_finds_no_room_wherever_it_stops_leaves_the_one_before(disk: SmallDisk) -> None:
    """HDF5 itself would crash the process in the end: see `structure`."""
    path, filler = disk.root / "state.h5", disk.root / "more"
    save_state(path, "x", 1, {"n": 1})
    large = {f"array_{k}": np.zeros(500) for k in range(40)}
    for pages in range(39, -1, -1):  # 160,000 bytes of arrays do not fit
        filler.unlink(missing_ok=True)
        filler.write_bytes(bytes(disk.free_bytes() - 4096 * pages))
        with pytest.raises(SnapshotError, match="No space left on device") as caught:
            save_state(path, "x", 2, large)
        assert is_full(caught.value)
        assert load_state(path, "x", 1) == {"n": 1}
        assert not [each for each in disk.root.iterdir() if ".tmp-" in each.name]
    filler.unlink()
    save_state(path, "x", 2, large)


def test_a_policy_file_that_finds_no_room_is_told_and_tried_again(
    disk: SmallDisk, said: Callable[[], list[str]]
) -> None:
    def image(version: int) -> PolicyImage:
        return PolicyImage.of({"w": torch.zeros(1000)}, version)

    layout = RunLayout(disk.root)
    file = PolicyFile(layout.latest_policy, 0.0)
    file.write(image(1))
    disk.fill()
    file.write(image(2))
    assert read_policy(layout.latest_policy).version == 1
    assert "no policy file could be written" in said()[0]
    assert "0 B are free" in said()[0]
    disk.free()
    file.write(image(2))
    assert read_policy(layout.latest_policy).version == 2
    assert or_warn("policy", partial(publish_policy, layout.best_policy, image(3)))


# -------------------------------------------------------------------------------------------- logs


def test_log_lines_wait_for_room_and_are_whole(
    disk: SmallDisk, capsys: pytest.CaptureFixture[str]
) -> None:
    path = disk.root / "log" / "rank00000.jsonl"
    level, propagate = LOGGER.level, LOGGER.propagate
    open_log(path, 0, "coordinator")
    try:
        LOGGER.info("before")
        disk.fill()
        for number in range(300):
            LOGGER.info("while it is full %d %s", number, "x" * 100)
        held = [json.loads(line)["message"] for line in path.read_text().splitlines()]
        assert len(held) < 300, "the disk was full"
        disk.free()
        LOGGER.info("after")
    finally:
        close_log()
        LOGGER.setLevel(level)
        LOGGER.propagate = propagate
    told = [json.loads(line)["message"].split(" x")[0] for line in path.read_text().splitlines()]
    wanted = [f"while it is full {number}" for number in range(300)]
    assert told == ["before", *wanted, "after"]
    error = capsys.readouterr().err
    assert error.count("cannot be written: No space left on device; the run goes on") == 1
    assert error.count("can be written again") == 1


def test_of_log_lines_that_wait_too_many_are_dropped_and_counted(
    disk: SmallDisk, capsys: pytest.CaptureFixture[str]
) -> None:
    disk.fill()
    file = AppendFile(disk.root / "log", "the log", buffered_bytes=100)
    for number in range(30):
        file.add(b"%09d\n" % number)
    disk.free()
    file.add(b"the last\n")
    file.close()
    lines = (disk.root / "log").read_text().split()
    assert lines[:1] == [f"{30 - 10:09d}"]
    assert lines[-2:] == ["the", "last"]
    assert file.dropped == 20
    assert "can be written again, without 20 records" in capsys.readouterr().err


def test_curves_have_no_gap(disk: SmallDisk) -> None:
    folder = disk.root / "tb"
    writer = TensorBoardWriter(folder, flush_s=0.0)
    for step in range(100):
        if step == 20:
            disk.fill()
        if step == 80:
            disk.free()
        writer.add_scalar("x", float(step), step)
    writer.close()
    curves = EventAccumulator(str(folder), {"scalars": 0})
    curves.Reload()
    assert [event.step for event in curves.Scalars("x")] == list(range(100))


def test_curves_that_never_find_room_do_not_end_the_run(disk: SmallDisk) -> None:
    disk.fill()
    writer = TensorBoardWriter(disk.root / "tb", flush_s=0.0)
    for step in range(10):
        writer.add_scalar("x", float(step), step)
    writer.flush()
    writer.close()
    assert not any(path.stat().st_size for path in (disk.root / "tb").rglob("*"))


def test_a_quota_is_told_from_a_full_disk(tmp_path: Path) -> None:
    error = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(tmp_path / "x"))
    assert is_full(error)
    assert re.fullmatch(r"your quota is used up \(.* are free there\)", shortage(tmp_path, error))
    assert not is_full(OSError(errno.EACCES, "no rights"))


def test_no_more_files_are_told_from_no_more_bytes(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "8m,nr_inodes=4") as disk:
        for number in range(3):  # the folder itself is the fourth
            (disk.root / str(number)).touch()
        with pytest.raises(OSError, match="No space left") as caught:
            (disk.root / "one more").touch()
        assert shortage(disk.root, caught.value).startswith(
            "no more files can be made there: 0 inodes are free"
        )


def test_what_is_printed_into_a_file_on_a_full_disk_is_not_an_error(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.fill()
    told = 0
    with contextlib.suppress(OSError), (disk.root / "out.txt").open("w", buffering=1) as out:
        monkeypatch.setattr(sys, "stdout", out)
        for _ in range(3):
            say("a line")
            told += 1
        monkeypatch.undo()
    assert told == 3
    assert (disk.root / "out.txt").stat().st_size == 0


def test_space_is_no_advice_where_a_folder_has_been_moved() -> None:
    for number, advised in ((errno.ENOSPC, True), (errno.ENOENT, False)):
        with pytest.raises(LaunchError) as caught, or_refuse("it", if_full="Free some space"):
            raise OSError(number, os.strerror(number))
        assert ("Free some space" in str(caught.value)) == advised
