"""Shards on disk: written, announced, read; and the thread that writes them."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from fakes.store import write_shard
from hpcdi.errors import ShardError, StoreError
from hpcdi.store.block import Block
from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import ShardWriter, read_block, read_shard
from hpcdi.types import ITEM_DTYPE, ShardRef


def make_block(number: int, rows: int = 4) -> Block:
    """A block that can be told from others by its rows."""
    items = np.zeros(1, dtype=ITEM_DTYPE)
    items["item_len"] = rows
    columns = {"number": np.full(rows, number), "obs/x": np.arange(2.0 * rows).reshape(rows, 2)}
    return Block(columns, items, {"number": number})


def path_of(number: int) -> str:
    return f"data/rank00001/20250101T00/{number:06d}.h5"


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path)


def files_in(layout: RunLayout) -> list[str]:
    found = layout.root.rglob("*")
    return sorted(str(path.relative_to(layout.root)) for path in found if path.is_file())


@pytest.mark.parametrize("fsync", [True, False])
def test_a_shard_reads_to_its_row_columns(layout: RunLayout, fsync: bool) -> None:
    block = make_block(7)
    ref = write_shard(layout, path_of(1), block, fsync=fsync)
    columns = read_shard(layout, ref)
    assert list(columns) == ["number", "obs/x"]
    assert all((columns[name] == block.columns[name]).all() for name in columns)
    assert files_in(layout) == [path_of(1)]
    assert read_block(layout.inside(path_of(1))).facts["number"] == 7


def test_rows_of_a_shard_are_not_copied(layout: RunLayout) -> None:
    columns = read_shard(layout, write_shard(layout, path_of(1), make_block(1), fsync=False))
    assert not any(column.flags.owndata for column in columns.values())


def test_an_empty_block_can_be_stored(layout: RunLayout) -> None:
    block = Block({"x": np.zeros((0, 3))}, np.zeros(0, dtype=ITEM_DTYPE))
    columns = read_shard(layout, write_shard(layout, path_of(1), block, fsync=False))
    assert columns["x"].shape == (0, 3)


def test_a_file_system_that_refuses_is_named(layout: RunLayout) -> None:
    (layout.root / "data").write_text("a file where a folder should be")
    with pytest.raises(ShardError, match="cannot be written: ") as caught:
        write_shard(layout, path_of(1), make_block(1))
    assert caught.value.path == layout.root / path_of(1)


def test_nothing_is_written_outside_the_run_folder(layout: RunLayout) -> None:
    with pytest.raises(StoreError, match="leads out of the run folder"):
        write_shard(layout, "../x.h5", make_block(1))
    assert not (layout.root.parent / "x.h5").exists()


# -------------------------------------------------------------------------------------- the writer


class Announcements:
    """Takes announcements as a coordinator would, and reads each file at once."""

    def __init__(self, layout: RunLayout) -> None:
        self.numbers: list[int] = []
        self._layout = layout

    def __call__(self, ref: ShardRef, block: Block) -> None:
        columns = read_shard(self._layout, ref)
        assert (columns["number"] == block.facts["number"]).all()
        self.numbers.append(block.facts["number"])


@pytest.mark.parametrize("depth", [1, 4])
def test_shards_are_announced_in_order_when_they_are_whole(layout: RunLayout, depth: int) -> None:
    announced = Announcements(layout)
    with ShardWriter(layout, announced, fsync=False, depth=depth) as writer:
        for number in range(20):
            writer.submit(path_of(number), make_block(number))
    assert announced.numbers == list(range(20))
    assert files_in(layout) == [path_of(0)]


def test_submitting_waits_when_too_many_are_under_way(layout: RunLayout) -> None:
    gate, begun = threading.Event(), threading.Event()

    def announce(_ref: ShardRef, _block: Block) -> None:
        begun.set()
        assert gate.wait(30)

    opener = threading.Timer(0.05, gate.set)
    with ShardWriter(layout, announce, fsync=False, depth=1) as writer:
        writer.submit(path_of(1), make_block(1))
        assert begun.wait(30)
        writer.submit(path_of(2), make_block(2))  # waits in the queue
        assert not gate.is_set()
        opener.start()
        writer.submit(path_of(3), make_block(3))  # there is no room before the gate opens
        assert gate.is_set()
        assert writer.waited_s > 0
    opener.join()


def test_flushing_waits_until_everything_is_announced(layout: RunLayout) -> None:
    announced = Announcements(layout)
    with ShardWriter(layout, announced, fsync=False, depth=1) as writer:
        for number in range(3):
            writer.submit(path_of(number), make_block(number))
            writer.flush()
            assert announced.numbers == list(range(number + 1))
        writer.flush()


def test_flushing_tells_what_could_not_be_written(layout: RunLayout) -> None:
    (layout.root / "data").write_text("a file where a folder should be")
    writer = ShardWriter(layout, Announcements(layout), fsync=False)
    writer.submit(path_of(1), make_block(1))
    with pytest.raises(ShardError, match="cannot be written: "):
        writer.flush()


def test_a_closed_writer_takes_nothing(layout: RunLayout) -> None:
    writer = ShardWriter(layout, Announcements(layout))
    writer.close()
    with pytest.raises(ShardError, match="the writer is closed"):
        writer.submit(path_of(1), make_block(1))


def bad_block() -> Block:
    good = make_block(1)
    return Block({"objects": np.array([None] * 4)}, good.items)


def test_an_error_is_raised_at_close(layout: RunLayout) -> None:
    announced = Announcements(layout)
    writer = ShardWriter(layout, announced, fsync=False)
    writer.submit(path_of(1), make_block(1))
    writer.submit(path_of(2), bad_block())
    with pytest.raises(ShardError, match="column 'objects' is object"):
        writer.close()
    assert announced.numbers == [1]
    assert files_in(layout) == [path_of(1)]
    writer.close()  # it is raised once


def test_an_error_is_raised_at_the_next_submit_and_nobody_waits(layout: RunLayout) -> None:
    (layout.root / "data").write_text("a file where a folder should be")
    writer = ShardWriter(layout, Announcements(layout), fsync=False, depth=1)

    def submit_until_it_raises() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            writer.submit(path_of(1), make_block(1))

    with pytest.raises(ShardError, match="cannot be written"):
        submit_until_it_raises()
    for _ in range(3):  # more than the queue holds: it must not wait for a thread that is gone
        with pytest.raises(ShardError, match="has failed before"):
            submit_until_it_raises()
    writer.close()


def test_an_error_of_the_announcement_is_not_lost(layout: RunLayout) -> None:
    def announce(_ref: ShardRef, _block: Block) -> None:
        raise ConnectionError("planted")

    writer = ShardWriter(layout, announce, fsync=False)
    writer.submit(path_of(1), make_block(1))
    with pytest.raises(ConnectionError, match="planted"):
        writer.close()
    assert files_in(layout) == [path_of(1)]  # published all the same
