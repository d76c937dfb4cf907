"""Blocks in files: what is in the file is what was given, byte by byte."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.store import write_shard
from hpcdi.errors import ShardError
from hpcdi.store.block import Block, block_rows, checksum, row_bytes
from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import read_block, read_shard
from hpcdi.types import ITEM_DTYPE, Array, Columns, RowView, ShardRef

QUICK = settings(deadline=None, max_examples=30)
DTYPES = ["?", "u1", "<i4", "<i8", "<f4", "<f8"]
NAMES = ["observation", "obs/image", "obs/deep/er", "action", "with space", "größe"]
ITEM_NAMES = list(ITEM_DTYPE.names or ())


def make_items(lengths: list[int], tail_rows: int = 0) -> Array:
    """Table of items that lie one behind the other."""
    items = np.zeros(len(lengths), dtype=ITEM_DTYPE)
    items["item_len"] = lengths
    items["item_start"] = np.cumsum([0, *lengths])[: len(lengths)] + tail_rows * np.arange(
        len(lengths)
    )
    for number, name in enumerate(ITEM_NAMES[2:]):
        items[name] = 1000 * number + np.arange(len(lengths))
    return items


def random_column(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    """Any bytes at all, where the dtype allows them (NaN with any payload, for instance)."""
    if dtype == "?":
        return rng.random(shape) < 0.5
    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(rng.bytes(n_bytes), dtype=dtype).reshape(shape)


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    lengths = draw(st.lists(st.integers(1, 5), max_size=4))
    tail_rows = draw(st.integers(0, 1))
    rows = sum(lengths) + tail_rows * len(lengths)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    columns: Columns = {}
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1)):
        shape = (rows, *draw(st.lists(st.integers(0, 3), max_size=2)))
        columns[name] = random_column(rng, draw(st.sampled_from(DTYPES)), shape)
    facts = draw(
        st.dictionaries(
            st.sampled_from(["task_id", "seed", "sealed_at", "eval"]),
            st.one_of(
                st.integers(-(2**63), 2**63 - 1),
                st.floats(allow_nan=False),
                st.booleans(),
                st.text(st.characters(exclude_categories=["C"]), max_size=20),
            ),
        )
    )
    views = (RowView("next", "observation", "offset"),) if draw(st.booleans()) else ()
    return Block(columns, make_items(lengths, tail_rows), facts, views, tail_rows)


def assert_same(got: Columns, expected: Columns) -> None:
    assert list(got) == list(expected)
    for name, column in expected.items():
        assert got[name].dtype == column.dtype
        assert got[name].shape == column.shape
        assert got[name].tobytes() == column.tobytes()


def stored(folder: Path, block: Block) -> tuple[Path, ShardRef]:
    """A block in a shard of its own."""
    return folder / "1.h5", write_shard(RunLayout(folder), "1.h5", block, fsync=False)


@QUICK
@given(blocks())
def test_a_block_comes_back(tmp_path_factory: pytest.TempPathFactory, block: Block) -> None:
    path, ref = stored(tmp_path_factory.mktemp("block"), block)
    got = read_block(path)
    assert_same(got.columns, block.columns)
    assert_same(read_shard(RunLayout(path.parent), ref), block.columns)
    assert got.items.tolist() == block.items.tolist()
    assert (got.views, got.tail_rows, got.facts) == (block.views, block.tail_rows, block.facts)
    assert (ref.path, ref.rows, ref.views) == ("1.h5#0", block.rows, block.views)
    assert ref.crc32 == checksum(block.datasets())
    assert ref.row_bytes() == row_bytes(block.columns)


@QUICK
@given(blocks())
def test_plain_h5py_reads_exactly_the_rows(
    tmp_path_factory: pytest.TempPathFactory, block: Block
) -> None:
    path, ref = stored(tmp_path_factory.mktemp("block"), block)
    with h5py.File(path, "r") as file:
        assert dict(file.attrs).items() >= {"format": b"hpcdi-block", "schema_version": 3}.items()
        for spec, (name, array) in zip(ref.columns, block.datasets().items(), strict=True):
            dataset = file[name]
            assert dataset.dtype == array.dtype == np.dtype(spec.dtype)
            assert (dataset.compression, dataset.fletcher32) == (None, False)
            if array.size:
                assert dataset.shape == array.shape == spec.shape
                assert dataset[...].tobytes() == array.tobytes()
                assert dataset.id.get_chunk_info(0).byte_offset == spec.offset


def test_rows_and_transitions_are_two_things() -> None:
    block = Block({"reward": np.zeros(7)}, make_items([2, 3], tail_rows=1), tail_rows=1)
    assert (block.rows, block.transitions) == (7, 5)
    assert Block({}, make_items([])).rows == 0


def test_columns_that_do_not_lie_in_one_piece_are_stored_so(tmp_path: Path) -> None:
    column = np.arange(12.0).reshape(3, 4).T[::2]
    path, _ = stored(tmp_path, Block({"x": column}, make_items([2])))
    assert read_block(path).columns["x"].tolist() == column.tolist()


def test_facts_cannot_harm_what_readers_rely_on(tmp_path: Path) -> None:
    facts = {"format": "mine", "crc32": 5, "columns": "[]", "tail_rows": 9, "schema_version": 99}
    path, _ = stored(tmp_path, Block({"x": np.arange(3)}, make_items([3]), facts))
    block = read_block(path)
    assert block.columns["x"].tolist() == [0, 1, 2]
    assert (block.tail_rows, block.facts) == (0, facts)


ROWS = np.zeros(3)


@pytest.mark.parametrize(
    ("columns", "items", "facts", "message"),
    [
        ({"a": ROWS, "b": np.zeros(4)}, None, {}, "differ in length: {'a': 3, 'b': 4}"),
        ({"a": np.array([None] * 3)}, None, {}, "column 'a' is object; a shard holds numbers"),
        ({"a": np.array(["x"] * 3)}, None, {}, "column 'a' is <U1; a shard holds numbers only"),
        ({"a": np.zeros(3, "S2")}, None, {}, "column 'a' is |S2; a shard holds numbers only"),
        ({"a": np.zeros(3, "M8[s]")}, None, {}, "a shard holds numbers only"),
        ({"item_len": ROWS}, None, {}, "the names ['item_len'] belong to the item table"),
        ({"a": ROWS}, np.zeros(3), {}, "the item table has dtype float64, not"),
        ({"a": ROWS, "a/b": ROWS}, None, {}, "cannot be stored as HDF5"),
        ({"": ROWS}, None, {}, "cannot be stored as HDF5"),
        ({".": ROWS}, None, {}, "cannot be stored as HDF5"),
        ({"a": ROWS}, None, {"seed": object()}, "cannot be stored as HDF5"),
    ],
)
def test_what_cannot_be_stored_is_refused(
    tmp_path: Path, columns: Columns, items: Any, facts: dict[str, Any], message: str
) -> None:
    block = Block(columns, make_items([3]) if items is None else items, facts)
    with pytest.raises(ShardError) as caught:
        stored(tmp_path, block)
    assert "1.h5: " in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("block_bytes", "bytes_of_row", "partition_size", "rows"),
    [
        (1 << 20, 16, 1 << 20, 1 << 16),
        (1 << 20, 16, 1000, 250),  # a quarter of the partition
        (1 << 20, 1 << 21, 1000, 1),  # never less than one
        (1 << 20, 0, 1000, 250),
        (4096, 16, 1, 1),
    ],
)
def test_rows_of_a_full_block(
    block_bytes: int, bytes_of_row: int, partition_size: int, rows: int
) -> None:
    assert block_rows(block_bytes, bytes_of_row, partition_size) == rows


def test_bytes_of_a_row() -> None:
    assert row_bytes({"a": np.zeros((5, 2, 3), "f4"), "b": np.zeros(5, bool)}) == 25
    assert row_bytes({}) == 0


def test_h5dump_reads_a_block(tmp_path: Path) -> None:
    program = shutil.which("h5dump")
    if program is None:
        pytest.skip("h5dump is not installed: apt-get install hdf5-tools")
    columns = {"obs/speed": np.array([1.5, -2.0]), "done": np.array([False, True])}
    path, _ = stored(tmp_path, Block(columns, make_items([2])))
    result = subprocess.run(
        [program, "-d", "/obs/speed", str(path)], capture_output=True, text=True, check=True
    )
    assert "H5T_IEEE_F64LE" in result.stdout
    assert "1.5, -2" in result.stdout
