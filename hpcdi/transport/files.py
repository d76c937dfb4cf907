"""Blocks travel as shards on the shared file system: written once, announced, read whole."""

from __future__ import annotations

from hpcdi.store.disk_full import DiskPatience
from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import ShardWriter, read_shard
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
