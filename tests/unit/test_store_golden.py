"""A block that an earlier version wrote: it must be read for ever.

`tests/golden/block_v1.h5` was written once. If this test fails, the format has changed: raise
`SCHEMA_VERSION`, keep reading this file, and store another one beside it.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from fakes.old_shards import encode
from hpcdi.store.block import Block, checksum, open_block
from hpcdi.store.inspect import inspect
from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import read_shard
from hpcdi.types import ITEM_DTYPE, Columns, ColumnSpec, RowView, ShardRef

GOLDEN = Path(__file__).parent.parent / "golden" / "block_v1.h5"
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
    """Write the file, once."""
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_bytes(encode(golden_block(), "block_v1.h5")[0])


@pytest.fixture(scope="module")
def golden() -> Path:
    if not GOLDEN.exists():
        write_golden()
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


def test_it_is_inspected_without_errors(golden: Path) -> None:
    report = inspect(golden)
    assert report.errors == []
    assert "5 transitions in 2 items, 7 rows, policy versions 10 to 11" in "\n".join(report.lines)


def test_todays_blocks_have_the_same_checksum_and_shape() -> None:
    _, ref = encode(golden_block(), "x.h5")
    assert ref.crc32 == CRC32
    assert ref.n_bytes < MAX_BYTES


def test_it_is_small(golden: Path) -> None:
    assert golden.stat().st_size < MAX_BYTES
