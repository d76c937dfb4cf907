"""Single files of the store, written in one go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdi.store.block import Block
from hpcdi.store.image import Draft, Image
from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import Appender
from hpcdi.types import Columns, ShardRef


def image_of(arrays: Columns, attributes: Mapping[str, Any]) -> Image:
    """The HDF5 image of arrays and of attributes of the file."""
    with Draft() as draft:
        draft.add(arrays)
        return draft.finish(attributes)


def write_shard(layout: RunLayout, path: str, block: Block, *, fsync: bool = True) -> ShardRef:
    """A block in a shard of its own at `path`, relative to the run folder."""
    return Appender(layout, 0, fsync=fsync).write(path, block)
