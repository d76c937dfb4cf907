"""Shards looked at without their rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fakes.store import write_shard
from hpcdi.store.block import Block
from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import read_shard, survey
from hpcdi.types import ITEM_DTYPE, RowView


def write(root: Path) -> tuple[Block, str]:
    items = np.zeros(2, dtype=ITEM_DTYPE)
    items["item_start"], items["item_len"], items["policy_version"] = [0, 4], [3, 2], [7, 8]
    columns = {
        "obs/image": np.arange(14, dtype=np.uint8).reshape(7, 2),
        "reward": np.arange(7, dtype=np.float32),
        "ahead": np.ones(7, dtype=np.uint16),
    }
    views = (RowView("next", "reward", "ahead"),)
    block = Block(columns, items, {"block_id": 5, "sealed_at": 1.5}, views, tail_rows=1)
    path = "data/rank00002/x/000001.h5"
    write_shard(RunLayout(root), path, block, fsync=False)
    return block, path


def test_a_survey_gives_what_was_announced(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    block, path = write(tmp_path)
    announced = write_shard(layout, "data/again.h5", block, fsync=False)
    ((ref, found),) = survey(layout.inside("data/again.h5"), "data/again.h5").blocks
    assert ref == announced
    assert (found.items == block.items).all()
    assert (found.facts, found.tail_rows, found.columns) == (block.facts, 1, {})
    rows = read_shard(layout, survey(layout.inside(path), path).blocks[0][0])
    assert rows.keys() == block.columns.keys()
    assert all((rows[name] == column).all() for name, column in block.columns.items())
