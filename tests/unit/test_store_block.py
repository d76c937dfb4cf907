"""Blocks as HDF5 images: what is in the file is what was given, byte by byte."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.old_shards import encode, map_datasets
from hpcdi.errors import ShardError
from hpcdi.store.block import (
    Block,
    block_rows,
    checksum,
    open_block,
    row_bytes,
    row_columns,
)
from hpcdi.types import ITEM_DTYPE, Array, Columns, RowView

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


@QUICK
@given(blocks())
def test_an_image_maps_to_what_was_given(block: Block) -> None:
    image, ref = encode(block, "data/1.h5")
    mapped = map_datasets(bytes(image), ref)
    assert_same(mapped, block.datasets())
    assert_same(row_columns(mapped), block.columns)
    assert all(not array.flags.writeable for array in mapped.values())  # the image's own bytes
    assert (ref.path, ref.n_bytes, ref.rows) == ("data/1.h5", image.size, block.rows)
    assert ref.views == block.views
    assert ref.crc32 == checksum(mapped)
    assert ref.row_bytes() == row_bytes(block.columns)


@QUICK
@given(blocks())
def test_plain_h5py_reads_exactly_the_rows(block: Block) -> None:
    image, ref = encode(block, "1.h5")
    with h5py.File(io.BytesIO(bytes(image)), "r") as file:
        attributes = dict(file.attrs)  # texts are stored in place: h5py gives them as bytes
        for spec, (name, array) in zip(ref.columns, block.datasets().items(), strict=True):
            dataset = file[name]
            assert dataset.shape == array.shape == spec.shape
            assert dataset.dtype == array.dtype == np.dtype(spec.dtype)
            assert (dataset.chunks, dataset.compression, dataset.fletcher32) == (None, None, False)
            assert dataset[...].tobytes() == array.tobytes()
            if array.size:
                assert dataset.id.get_offset() == spec.offset
                assert bytes(image)[spec.offset : spec.offset + array.nbytes] == array.tobytes()
    assert attributes["format"] == b"hpcdi-block"
    assert attributes["schema_version"] == 1
    assert (attributes["rows_used"], attributes["tail_rows"]) == (block.rows, block.tail_rows)
    assert json.loads(attributes["columns"]) == list(block.datasets())
    for name, fact in block.facts.items():
        assert attributes[name] == (fact.encode() if isinstance(fact, str) else fact)
    joined = b"".join(array.tobytes() for array in block.datasets().values())
    assert attributes["crc32"] == zlib.crc32(joined)


@QUICK
@given(blocks())
def test_a_file_alone_gives_the_whole_block(
    tmp_path_factory: pytest.TempPathFactory, block: Block
) -> None:
    path = tmp_path_factory.mktemp("block") / "1.h5"
    image, ref = encode(block, "1.h5")
    path.write_bytes(bytes(image))
    got, crc32 = open_block(path)
    assert crc32 == ref.crc32 == checksum(got.datasets())
    assert_same(got.columns, block.columns)
    assert got.items.tolist() == block.items.tolist()
    assert (got.views, got.tail_rows) == (block.views, block.tail_rows)
    for name, value in block.facts.items():
        assert got.facts[name] == value
        assert type(got.facts[name]) is type(value)


def test_rows_and_transitions_are_two_things() -> None:
    block = Block({"reward": np.zeros(7)}, make_items([2, 3], tail_rows=1), tail_rows=1)
    assert (block.rows, block.transitions) == (7, 5)
    assert Block({}, make_items([])).rows == 0


def test_columns_that_do_not_lie_in_one_piece_are_stored_so() -> None:
    column = np.arange(12.0).reshape(3, 4).T[::2]
    image, ref = encode(Block({"x": column}, make_items([2])), "1.h5")
    assert map_datasets(bytes(image), ref)["x"].tolist() == column.tolist()


def test_facts_cannot_harm_what_readers_rely_on(tmp_path: Path) -> None:
    facts = {"format": "mine", "crc32": 5, "columns": "[]", "tail_rows": 9, "schema_version": 99}
    image, ref = encode(Block({"x": np.arange(3)}, make_items([3]), facts), "1.h5")
    (tmp_path / "1.h5").write_bytes(bytes(image))
    block, crc32 = open_block(tmp_path / "1.h5")
    assert crc32 == ref.crc32
    assert block.columns["x"].tolist() == [0, 1, 2]
    assert block.tail_rows == 0


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
        ({"a": ROWS}, None, {"seed": None}, "cannot be stored as HDF5"),
        ({"a": ROWS}, None, {"seed": {}}, "cannot be stored as HDF5"),
    ],
)
def test_what_cannot_be_stored_is_refused(
    columns: Columns, items: Any, facts: dict[str, Any], message: str
) -> None:
    block = Block(columns, make_items([3]) if items is None else items, facts)
    with pytest.raises(ShardError) as caught:
        encode(block, "data/rank00002/7.h5")
    assert str(caught.value).startswith("data/rank00002/7.h5: ")
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
    path = tmp_path / "1.h5"
    columns = {"obs/speed": np.array([1.5, -2.0]), "done": np.array([False, True])}
    path.write_bytes(bytes(encode(Block(columns, make_items([2])), "1.h5")[0]))
    result = subprocess.run(
        [program, "-d", "/obs/speed", str(path)], capture_output=True, text=True, check=True
    )
    assert "H5T_IEEE_F64LE" in result.stdout
    assert "1.5, -2" in result.stdout
