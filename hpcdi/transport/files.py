"""Blocks travel as shards on the shared file system: written once, announced, read whole."""

from __future__ import annotations

from pathlib import Path

from hpcdi.store.block import Block
from hpcdi.store.disk_full import DiskPatience
from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import ShardWriter, read_block, read_shard
from hpcdi.transport.base import Announce
from hpcdi.types import Columns, ShardRef


class FileTransport:
    """See `base.Transport`.

    Args:
        layout: the run folder.
        fsync: force shards to disk before they are announced.
    """

    def __init__(self, layout: RunLayout, *, fsync: bool = True) -> None:
        self._layout, self._fsync = layout, fsync

    def publisher(self, announce: Announce, patience: DiskPatience | None = None) -> ShardWriter:
        """See `base.Transport.publisher`: one thread that writes shards."""
        return ShardWriter(self._layout, announce, fsync=self._fsync, patience=patience)

    def fetch(self, shard: ShardRef) -> Columns:
        """See `base.Transport.fetch`: one read, no copy."""
        return read_shard(self._layout, shard)

    def fetch_named(self, path: str) -> Block:
        """See `base.Transport.fetch_named`."""
        return load_block(self._layout.inside(path))


def load_block(path: str | Path) -> Block:
    """Returns the block of a shard anywhere, of a run that has ended perhaps.

    Raises:
        ShardError: the shard is missing, torn, or not one of ours.
    """
    return read_block(path)[0]
