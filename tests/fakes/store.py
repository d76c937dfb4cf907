"""Single files of the store, written in one go."""

from __future__ import annotations

from hpcdi.store.block import Block
from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import Appender
from hpcdi.types import ShardRef


def write_shard(layout: RunLayout, path: str, block: Block, *, fsync: bool = True) -> ShardRef:
    """A block in a shard of its own at `path`, relative to the run folder."""
    return Appender(layout, 0, fsync=fsync).write(path, block)
