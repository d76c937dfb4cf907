"""Shards to which blocks are appended: what is whole is read, what is not does not exist."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdi.errors import ShardError
from hpcdi.store import shard_file
from hpcdi.store.block import Block
from hpcdi.store.inspect import inspect
from hpcdi.store.layout import RunLayout, split_name
from hpcdi.store.shard_file import GrowingShard, ShardLayout, ShardReader
from hpcdi.store.shards import (
    Appender,
    absent,
    read_block,
    read_blocks,
    read_shard,
    survey,
    withdraw,
)
from hpcdi.types import ITEM_DTYPE, RowView, ShardRef

FOLDER = "data/rank00002/20250101T00"
ROOM = 1 << 20


def path_of(number: int) -> str:
    return f"{FOLDER}/{number:06d}.h5"


def make_block(number: int, items: int = 2, width: int = 2, tail_rows: int = 1) -> Block:
    """Items of three transitions, whose values tell block and row."""
    rows = items * (3 + tail_rows)
    table = np.zeros(items, ITEM_DTYPE)
    table["item_start"], table["item_len"] = np.arange(items) * (3 + tail_rows), 3
    table["item_id"], table["policy_version"] = 100 * number + np.arange(items), number
    columns = {
        "obs/x": 1000.0 * number + np.arange(rows * width, dtype="f4").reshape(rows, width),
        "terminated": np.arange(rows) % 2 == 0,
        "ahead": np.ones(rows, np.uint16),
        "nothing": np.zeros((rows, 0), "f4"),
    }
    facts = {"task_id": "t", "block_id": (2 << 40) + number, "sealed_at": 1.5 + number}
    return Block(columns, table, facts, (RowView("next", "obs/x", "ahead"),), tail_rows)


def assert_same(found: Block | ShardError, block: Block) -> None:
    assert isinstance(found, Block)
    assert list(found.columns) == list(block.columns)
    for name, column in block.columns.items():
        np.testing.assert_array_equal(found.columns[name], column, strict=True)
    assert found.items.tolist() == block.items.tolist()
    assert (found.facts, found.views) == (block.facts, block.views)
    assert found.tail_rows == block.tail_rows


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path)


@pytest.fixture
def appender(layout: RunLayout) -> Appender:
    return Appender(layout, ROOM, fsync=False)


def write(appender: Appender, *blocks: Block) -> list[ShardRef]:
    return [appender.write(path_of(number), block) for number, block in enumerate(blocks, 1)]


def files_of(refs: list[ShardRef]) -> list[str]:
    return [split_name(ref.path)[0] for ref in refs]


def test_blocks_are_appended_and_each_is_read_alone(layout: RunLayout, appender: Appender) -> None:
    blocks = [make_block(number, items) for number, items in ((1, 2), (2, 5), (3, 1), (4, 3))]
    refs = write(appender, *blocks)
    assert [ref.path for ref in refs] == [f"{path_of(1)}#{slot}" for slot in range(4)]
    path = layout.inside(path_of(1))
    for ref, block, found in zip(refs, blocks, read_blocks(path), strict=True):
        columns = read_shard(layout, ref)
        assert list(columns) == list(block.columns)
        assert (columns["obs/x"] == block.columns["obs/x"]).all()
        assert (ref.rows, ref.views) == (block.rows, block.views)
        assert_same(found, block)
        assert_same(read_block(layout.root / ref.path), block)
    found = survey(path, path_of(1))
    assert [ref for ref, _ in found.blocks] == refs
    assert [block.items.tolist() for _, block in found.blocks] == [
        block.items.tolist() for block in blocks
    ]
    assert not inspect(path).errors
    with pytest.raises(ShardError, match="holds no such block"):
        read_block(f"{path}#4")


def test_a_shard_that_grows_while_it_is_looked_at_is_not_damaged(
    layout: RunLayout, appender: Appender, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender.write(path_of(1), make_block(1, 1))
    path = layout.inside(path_of(1))
    before, shard = path.read_bytes(), ShardReader(path, path_of(1))
    appender.write(path_of(1), make_block(2, 1))
    shard.check_structure()
    after = path.read_bytes()
    size = next(k for k in range(len(after)) if before[k] != after[k])
    half = after[: size + 8] + before[size + 8 : shard.layout.table] + after[shard.layout.table :]
    path.write_bytes(half)  # the first array is longer already
    with pytest.raises(ShardError, match="common tools "):
        shard.check_structure()
    monkeypatch.setattr(shard_file, "wait_s", lambda _: path.write_bytes(after))
    shard.check_structure()


def test_common_tools_read_a_shard_as_one_table_at_any_moment(
    layout: RunLayout, appender: Appender
) -> None:
    rows = items = 0
    for number in (1, 2, 3):
        block = make_block(number, number)
        appender.write(path_of(number), block)
        rows, items = rows + block.rows, items + len(block.items)
        with h5py.File(layout.inside(path_of(1))) as file:
            assert file["obs/x"].shape == (rows, 2)
            assert file["item_start"].shape == (items,)
            assert len(file["hpcdi/blocks"]) == number
            start = file["item_start"][:]
            assert (file["obs/x"][:][start, 0] // 1000 == file["policy_version"][:]).all()
            np.testing.assert_array_equal(file["obs/x"][-block.rows :], block.columns["obs/x"])
    whole = read_block(layout.inside(path_of(1)))
    with h5py.File(layout.inside(path_of(1))) as file:
        for name, column in whole.datasets().items():
            if column.size:
                np.testing.assert_array_equal(file[name][:], column, strict=True)
    assert whole.facts == {"task_id": "t"}, "which all blocks share"


@pytest.mark.parametrize("other", ["columns", "shape", "dtype", "views", "tail", "folder"])
def test_a_block_of_another_kind_begins_a_shard(appender: Appender, other: str) -> None:
    first, second = make_block(1), make_block(2)
    if other == "columns":
        second.columns["more"] = second.columns["terminated"]
    elif other == "shape":
        second = make_block(2, width=3)
    elif other == "dtype":
        second.columns["ahead"] = second.columns["ahead"].astype("u4")
    elif other == "views":
        second = Block(second.columns, second.items, second.facts, (), 1)
    elif other == "tail":
        second = make_block(2, tail_rows=0)
    one = appender.write(path_of(1), first)
    folder = "data/rank00002/20250101T01/2.h5" if other == "folder" else path_of(2)
    two = appender.write(folder, second)
    assert files_of([one, two]) == [path_of(1), folder]


def test_a_full_shard_is_followed_by_one_with_twice_the_room(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdi.store.shards.SMALLEST_BYTES", 2000)
    appender = Appender(layout, 6000, fsync=False)
    blocks = [make_block(number, items=10, width=4) for number in range(1, 21)]
    refs = write(appender, *blocks)
    own = 40 * (16 + 1 + 2)
    held = [files_of(refs).count(path) for path in dict.fromkeys(files_of(refs))]
    assert held == [2000 // own, 4, 6000 // own, 6000 // own], "2, 4, 7, 7"
    assert [read_shard(layout, ref)["obs/x"][0, 0] // 1000 for ref in refs] == list(range(1, 21))
    large = make_block(21, items=1000)
    assert appender.write(path_of(21), large).path == f"{path_of(21)}#0", "a shard of its own"


def test_a_shard_without_a_free_record_is_full(
    appender: Appender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_file, "SLOTS", 2)
    refs = write(appender, *(make_block(number) for number in range(1, 6)))
    assert files_of(refs) == [path_of(n) for n in (1, 1, 3, 3, 5)]


def test_a_new_process_begins_a_shard(layout: RunLayout, appender: Appender) -> None:
    write(appender, make_block(1))
    ref = Appender(layout, ROOM, fsync=False).write(path_of(2), make_block(2))
    assert files_of([ref]) == [path_of(2)]


def test_a_shard_that_was_removed_is_followed_by_another(
    layout: RunLayout, appender: Appender
) -> None:
    write(appender, make_block(1))
    layout.inside(path_of(1)).unlink()
    assert files_of([appender.write(path_of(2), make_block(2))]) == [path_of(2)]


def test_a_link_in_the_place_of_a_shard_is_not_written_through(
    layout: RunLayout, appender: Appender
) -> None:
    write(appender, make_block(1))
    path, other = layout.inside(path_of(1)), layout.root / "other"
    path.rename(other)
    path.symlink_to(other)
    before = other.read_bytes()
    with pytest.raises(ShardError, match="cannot be written: Too many levels of symbolic links"):
        appender.write(path_of(2), make_block(2))
    assert other.read_bytes() == before


# ------------------------------------------------------------------------------ torn, damaged, full


def table_of(layout: RunLayout) -> tuple[Path, ShardLayout]:
    path = layout.inside(path_of(1))
    return path, ShardReader(path, path_of(1)).layout


def test_a_block_whose_record_is_torn_at_any_byte_does_not_exist(
    layout: RunLayout, appender: Appender
) -> None:
    blocks = [make_block(number) for number in (1, 2)]
    write(appender, *blocks)
    path, where = table_of(layout)
    whole = path.read_bytes()
    at = where.table + where.slot_bytes
    record = whole[at : at + where.slot_bytes].rstrip(b"\0")
    for count in range(len(record)):
        with path.open("r+b") as file:
            file.seek(at)
            file.write(record[:count].ljust(where.slot_bytes, b"\0"))
        found = survey(path, path_of(1))
        assert [ref.path for ref, _ in found.blocks] == [f"{path_of(1)}#0"], count
        assert len(found.damaged) == bool(count)
    assert absent(layout, [f"{path_of(1)}#0", f"{path_of(1)}#1"]) == [f"{path_of(1)}#1"]
    path.write_bytes(whole)
    assert len(survey(path, path_of(1)).blocks) == 2


def test_a_flipped_byte_costs_one_block(layout: RunLayout, appender: Appender) -> None:
    """Wherever it is: in its record, its items, its rows; the others are read as before."""
    blocks = [make_block(number) for number in (1, 2, 3)]
    refs = write(appender, *blocks)
    path, where = table_of(layout)
    whole = bytearray(path.read_bytes())
    record = where.table + where.slot_bytes
    places = [record, record + 9, record + 60]
    places += [spec.offset for spec in refs[1].columns if np.prod(spec.shape)]
    for place in places:
        whole[place] ^= 1
        path.write_bytes(whole)
        first, damaged, last = read_blocks(path)
        assert isinstance(damaged, ShardError), place
        assert_same(first, blocks[0])
        assert_same(last, blocks[2])
        assert len(inspect(path).errors) == 1
        if place >= refs[1].columns[0].offset:
            with pytest.raises(ShardError, match="checksum differs"):
                read_shard(layout, refs[1])
        assert read_shard(layout, refs[2]).keys() == blocks[2].columns.keys()
        whole[place] ^= 1


@pytest.mark.parametrize("name", ITEM_DTYPE.names or ())
def test_a_survey_verifies_the_table_of_items(
    layout: RunLayout, appender: Appender, name: str
) -> None:
    """It reads no rows, so that the checksum of a whole block says nothing to it."""
    refs = write(appender, *(make_block(number) for number in (1, 2, 3)))
    path = layout.inside(path_of(1))
    spec = next(spec for spec in refs[1].columns if spec.name == name)
    n_bytes = int(np.prod(spec.shape)) * np.dtype(spec.dtype).itemsize
    whole = path.read_bytes()
    for place in (spec.offset, spec.offset + n_bytes - 1):
        torn = bytearray(whole)
        torn[place] ^= 1
        path.write_bytes(torn)
        found = survey(path, path_of(1))
        assert [ref for ref, _ in found.blocks] == [refs[0], refs[2]]
        (error,) = found.damaged
        assert str(error) == f"{path}: checksum of the items of block 1 is wrong"
        assert absent(layout, [ref.path for ref in refs]) == [refs[1].path]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_damage_anywhere_is_told_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    layout = RunLayout(tmp_path_factory.mktemp("run"))
    blocks = [make_block(number) for number in (1, 2, 3)]
    write(Appender(layout, 2000, fsync=False), *blocks)
    path, where = table_of(layout)
    whole = bytearray(path.read_bytes())
    used = where.table + 3 * where.slot_bytes  # behind it, all is empty for long
    start = data.draw(st.one_of(st.integers(0, used), st.integers(used, len(whole) - 1)))
    length = data.draw(st.integers(1, 40))
    whole[start : start + length] = data.draw(st.binary(min_size=length, max_size=length))
    path.write_bytes(whole)
    try:
        found = list(read_blocks(path))
    except ShardError:
        return
    for slot, block in enumerate(found[:3]):
        if isinstance(block, Block):
            assert_same(block, blocks[int(block.facts["block_id"]) - (2 << 40) - 1])
        else:
            assert str(path) in str(block), slot


def test_structure_that_is_damaged_hides_no_block_from_a_run(
    layout: RunLayout, appender: Appender
) -> None:
    """HDF5 cannot open the file any more; the layout and the records have their own checksums."""
    refs = write(appender, make_block(1), make_block(2))
    path, _ = table_of(layout)
    whole = bytearray(path.read_bytes())
    whole[0:48] = bytes(48)
    path.write_bytes(whole)
    assert [ref for ref, _ in survey(path, path_of(1)).blocks] == refs
    assert read_shard(layout, refs[1])["terminated"][0]
    assert len(inspect(path).errors) == 1


def test_a_shard_without_its_layout_is_told(layout: RunLayout, appender: Appender) -> None:
    write(appender, make_block(1))
    path, _ = table_of(layout)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"hpcdi-shard ", b"hpcdi-shirt "))
    said = f"{path}: has no layout of its blocks any more: the file is torn"
    with pytest.raises(ShardError, match=re.escape(said)):
        read_block(path)
    assert [str(error) for error in survey(path, "x").damaged] == inspect(path).errors == [said]
    path.write_bytes(whole.replace(b'"schema_version": 3', b'"schema_version": 9'))
    assert "its layout cannot be read: its checksum is wrong" in str(survey(path, "x").damaged[0])


@pytest.mark.parametrize("has_layout", [True, False])
def test_a_shard_of_another_format_is_refused(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch, has_layout: bool
) -> None:
    """Whether its layout says so, or the attributes of a file that has none."""
    path = layout.inside(path_of(1))
    if has_layout:
        with monkeypatch.context() as other:
            other.setattr(shard_file, "FORMAT", 4)
            write(Appender(layout, ROOM, fsync=False), make_block(1))
    else:
        path.parent.mkdir(parents=True)
        with h5py.File(path, "w") as file:
            file.attrs["format"], file.attrs["schema_version"] = np.bytes_(b"hpcdi-block"), 4
    with pytest.raises(ShardError, match="is a shard of format 4; this hpcdi reads format 3"):
        read_block(path)
    assert len(survey(path, "x").damaged) == len(inspect(path).errors) == 1


@pytest.mark.parametrize("fails_at", range(8))
def test_a_disk_that_is_full_in_mid_append_costs_nothing(
    layout: RunLayout, appender: Appender, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """A write, to any column or of the record, stops half-way; later there is room again."""
    blocks = [make_block(number) for number in (1, 2, 3)]
    refs = write(appender, blocks[0])
    real, calls = os.pwrite, 0

    def full(file: int, piece: memoryview, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls > fails_at:
            real(file, piece[: len(piece) // 2], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, piece, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(ShardError, match="No space left"):
            appender.write(path_of(2), blocks[1])
    path = layout.inside(path_of(1))
    assert_same(next(read_blocks(path)), blocks[0])
    assert absent(layout, [f"{path_of(1)}#0", f"{path_of(1)}#1"]) == [f"{path_of(1)}#1"]
    refs += [appender.write(path_of(number), blocks[number - 1]) for number in (2, 3)]
    assert files_of(refs) == [path_of(1)] * 3
    for found, block in zip(read_blocks(path), blocks, strict=True):
        assert_same(found, block)
    with h5py.File(path) as file:
        assert len(file["terminated"]) == sum(block.rows for block in blocks)


def test_facts_that_cannot_be_stored_are_refused(appender: Appender) -> None:
    good, bad = make_block(1), make_block(2)
    bad.facts["seed"] = object()
    with pytest.raises(ShardError, match="cannot be stored"):
        appender.write(path_of(1), bad)
    appender.write(path_of(1), good)
    with pytest.raises(ShardError, match="cannot be stored"):
        appender.write(path_of(2), bad)
    bad.facts["seed"] = "x" * 5000
    with pytest.raises(ShardError, match="too many"):
        appender.write(path_of(2), bad)


# --------------------------------------------------------------------------------------- taken back


@pytest.mark.parametrize("left", [0, 1, 2])
def test_blocks_that_are_taken_back_are_gone_for_everybody(
    layout: RunLayout, appender: Appender, left: int
) -> None:
    blocks = [make_block(number) for number in (1, 2, 3)]
    refs = write(appender, *blocks)
    path = layout.inside(path_of(1))
    withdraw(layout, [ref.path for ref in refs[left:]])
    if not left:
        assert not path.exists()
        return
    for found, block in zip(read_blocks(path), blocks[:left], strict=True):
        assert_same(found, block)
    with h5py.File(path) as file:
        assert len(file["obs/x"]) == sum(block.rows for block in blocks[:left])
        np.testing.assert_array_equal(file["obs/x"][:4], blocks[0].columns["obs/x"][:4])
        assert len(file["hpcdi/blocks"]) == left
    assert not inspect(path).errors


@pytest.mark.parametrize("left", [0, 1])
def test_blocks_are_taken_back_from_a_shard_that_is_a_link_in_its_folder(
    layout: RunLayout, appender: Appender, left: int
) -> None:
    refs = write(appender, make_block(1), make_block(2))
    path = layout.inside(path_of(1))
    path.symlink_to(path.rename(path.with_name("moved")).name)
    withdraw(layout, [ref.path for ref in refs[left:]])
    write(Appender(layout, ROOM, fsync=False), make_block(1 + left))  # the run repeats it
    assert len(list(read_blocks(path))) == 1
    assert path.is_symlink() == bool(left)


def test_a_short_run_leaves_no_large_file(layout: RunLayout) -> None:
    appender = Appender(layout, 1 << 26, fsync=False)
    write(appender, make_block(1))
    state = layout.inside(path_of(1)).stat()
    assert state.st_size < 4 * shard_file.SMALLEST_BYTES
    assert 512 * state.st_blocks < 1 << 18, "most of it is a hole"


def test_a_growing_shard_knows_what_it_takes(layout: RunLayout) -> None:
    first = make_block(1)
    shard = GrowingShard(layout.inside(path_of(1)), path_of(1), first, 0, fsync=False)
    shard.create(first)
    assert not shard.takes(make_block(2)), "one block alone was asked for"


def test_a_shard_has_at_most_as_many_rows_of_a_column_as_hdf5_can_hold(layout: RunLayout) -> None:
    """HDF5 refuses an array that grows beyond 4 GiB; ``file_bytes`` may be more."""
    width, first = 1 << 20, make_block(1)
    wide = {"obs/x": np.zeros((first.rows, width), np.uint8)}
    first = dataclasses.replace(first, columns=wide, views=())
    shard = GrowingShard(layout.inside(path_of(1)), path_of(1), first, 9 << 30, fsync=False)
    shard.create(first)
    _, table = table_of(layout)
    assert table.capacity()[0] == ((1 << 32) - 1) // width
