"""Shards that earlier versions wrote: they must be read for ever.

`tests/golden/block_v1.h5` and `shard_v2.h5` were written once. If this test fails, the format has
changed: raise `SCHEMA_VERSION`, keep reading these files, and store another one beside them.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from fakes.store import write_shard
from hpcdi.store.block import Block, checksum, open_block
from hpcdi.store.inspect import inspect
from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import read_block, read_shard, survey
from hpcdi.types import ITEM_DTYPE, Columns, ColumnSpec, RowView, ShardRef

GOLDEN = Path(__file__).parent.parent / "golden" / "block_v1.h5"
GOLDEN_2 = GOLDEN.with_name("shard_v2.h5")
CRC32 = 0x690C4706
MAX_BYTES = 20_000


def golden_block() -> Block:
    """What is in the file: two items of 3 and 2 transitions, each with one row after them."""
    rows = 7
    columns: Columns = {
        "observation/image": np.arange(rows * 6, dtype="<u1").reshape(rows, 2, 3),
        "observation/speed": np.arange(rows, dtype="<f4") / 4,
        "action": np.array([0, 1, 0, -1, 1, 1, -1], dtype="<i8"),
        "reward": np.array([0.5, 1.0, -2.0, 0.0, 1e300, np.inf, np.nan], dtype="<f8"),
        "terminated": np.array([0, 0, 1, 0, 0, 0, 0], dtype=bool),
        "bootstrap_offset": np.array([1, 1, 1, 0, 1, 1, 0], dtype="<i4"),
        "empty": np.zeros((rows, 0), dtype="<f4"),
    }
    items = np.zeros(2, dtype=ITEM_DTYPE)
    items["item_start"], items["item_len"] = [0, 4], [3, 2]
    items["item_id"] = [(2 << 40) + 7, (2 << 40) + 8]
    items["policy_version"], items["env_id"], items["episode_id"] = [10, 11], [3, 0], [5, 6]
    facts = {"collector_rank": 2, "task_id": "task_1", "sealed_at": 1.7e9}
    views = (RowView("next_speed", "observation/speed", "bootstrap_offset"),)
    return Block(columns, items, facts, views, tail_rows=1)


def write_golden() -> None:
    """Write the file of today's version, once."""
    write_shard(RunLayout(GOLDEN_2.parent), GOLDEN_2.name, golden_block())


@pytest.fixture(scope="module")
def golden() -> Path:
    return GOLDEN


def test_it_reads_to_the_same_values(golden: Path) -> None:
    expected = golden_block()
    block, crc32 = open_block(golden)
    assert crc32 == CRC32 == checksum(block.datasets())
    assert list(block.columns) == list(expected.columns)
    for name, column in expected.columns.items():
        assert block.columns[name].dtype == column.dtype
        np.testing.assert_array_equal(block.columns[name], column, strict=True)
    assert block.items.tolist() == expected.items.tolist()
    assert (block.views, block.tail_rows) == (expected.views, 1)
    assert block.facts.items() >= expected.facts.items()


def test_it_is_read_by_offsets_too(golden: Path) -> None:
    specs = []
    with h5py.File(golden, "r") as file:
        for name, column in golden_block().datasets().items():
            offset = file[name].id.get_offset() if column.size else 0
            specs.append(ColumnSpec(name, column.dtype.str, column.shape, offset))
    ref = ShardRef(golden.name, golden.stat().st_size, 7, CRC32, tuple(specs))
    columns = read_shard(RunLayout(golden.parent), ref)
    for name, column in golden_block().columns.items():
        np.testing.assert_array_equal(columns[name], column, strict=True)


@pytest.mark.parametrize("golden", [GOLDEN, GOLDEN_2])
def test_every_version_reads_to_the_same_block(golden: Path) -> None:
    block, expected = read_block(golden), golden_block()
    for name, column in expected.columns.items():
        np.testing.assert_array_equal(block.columns[name], column, strict=True)
    assert block.items.tolist() == expected.items.tolist()
    assert (block.views, block.tail_rows) == (expected.views, 1)
    assert block.facts.items() >= expected.facts.items()
    ((ref, surveyed),) = survey(golden, golden.name).blocks
    assert ref.crc32 == CRC32
    assert surveyed.items.tolist() == expected.items.tolist()
    columns = read_shard(RunLayout(golden.parent), ref)
    for name, column in expected.columns.items():
        np.testing.assert_array_equal(columns[name], column, strict=True)
    with h5py.File(golden) as file:
        assert file["action"][:].tolist() == expected.columns["action"].tolist()


@pytest.mark.parametrize("golden", [GOLDEN, GOLDEN_2])
def test_it_is_inspected_without_errors(golden: Path) -> None:
    report = inspect(golden)
    assert report.errors == []
    assert "5 transitions in 2 items, 7 rows, policy versions 10 to 11" in "\n".join(report.lines)


def test_todays_blocks_have_the_same_checksum_and_shape(tmp_path: Path) -> None:
    ref = write_shard(RunLayout(tmp_path), "x.h5", golden_block(), fsync=False)
    assert ref.crc32 == CRC32
    assert ref.n_bytes < MAX_BYTES


@pytest.mark.parametrize("golden", [GOLDEN, GOLDEN_2])
def test_it_is_small(golden: Path) -> None:
    assert golden.stat().st_size < MAX_BYTES
