"""A shard that was written once, `tests/golden/shard_v3.h5`: today's code reads it.

If this test fails, the format has changed: raise `shard_file.FORMAT`, and write the file anew.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import numpy as np

from fakes.store import write_shard
from hpcdi.store.block import Block, checksum
from hpcdi.store.inspect import inspect
from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import read_block, read_shard, survey
from hpcdi.types import ITEM_DTYPE, NO_SEED, Columns, RowView

GOLDEN = Path(__file__).parent.parent / "golden" / "shard_v3.h5"
CRC32 = 0x7DFB504C
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
    items["episode_seed"], items["episode_resets"] = [1 << 31, NO_SEED], [4, 0]
    facts = {"collector_rank": 2, "task_id": "task_1", "sealed_at": 1.7e9}
    views = (RowView("next_speed", "observation/speed", "bootstrap_offset"),)
    return Block(columns, items, facts, views, tail_rows=1)


def write_golden() -> None:
    """Write the file of today's version, once."""
    write_shard(RunLayout(GOLDEN.parent), GOLDEN.name, golden_block())


def test_it_reads_to_the_same_block() -> None:
    block, expected = read_block(GOLDEN), golden_block()
    assert list(block.columns) == list(expected.columns)
    for name, column in expected.columns.items():
        np.testing.assert_array_equal(block.columns[name], column, strict=True)
    assert block.items.tolist() == expected.items.tolist()
    assert (block.views, block.tail_rows) == (expected.views, 1)
    assert block.facts.items() >= expected.facts.items()


def test_a_survey_of_it_and_its_places_do_too() -> None:
    expected = golden_block()
    ((ref, surveyed),) = survey(GOLDEN, GOLDEN.name).blocks
    assert ref.crc32 == CRC32 == checksum(expected.datasets())
    assert surveyed.items.tolist() == expected.items.tolist()
    columns = read_shard(RunLayout(GOLDEN.parent), ref)
    for name, column in expected.columns.items():
        np.testing.assert_array_equal(columns[name], column, strict=True)
    with h5py.File(GOLDEN) as file:
        assert file["action"][:].tolist() == expected.columns["action"].tolist()


def test_it_is_inspected_without_errors() -> None:
    report = inspect(GOLDEN)
    assert report.errors == []
    assert "5 transitions in 2 items, 7 rows, policy versions 10 to 11" in "\n".join(report.lines)


def test_it_was_written_by_no_run_and_is_read_in_any_place(tmp_path: Path) -> None:
    place = tmp_path / RunLayout(tmp_path).shard_path(2, 1)
    place.parent.mkdir(parents=True)
    shutil.copy(GOLDEN, place)
    assert inspect(place).errors == []


def test_todays_blocks_have_the_same_checksum_and_shape(tmp_path: Path) -> None:
    ref = write_shard(RunLayout(tmp_path), "x.h5", golden_block(), fsync=False)
    assert ref.crc32 == CRC32
    assert ref.n_bytes < MAX_BYTES


def test_it_is_small() -> None:
    assert GOLDEN.stat().st_size < MAX_BYTES
