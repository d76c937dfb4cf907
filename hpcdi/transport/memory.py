"""Blocks within a process: lent while they are open, written to shards behind the learner."""

from __future__ import annotations

from hpcdi.config.schema import StorageConfig
from hpcdi.store.layout import RunLayout
from hpcdi.transport.base import Lend
from hpcdi.transport.files import FileTransport
from hpcdi.types import Columns, ShardRef


class MemoryTransport(FileTransport):
    """See `base.Transport`: one object, which a collector and a learner share.

    Args:
        layout: the run folder.
        storage: settings of shards; None: the usual ones.
    """

    def __init__(self, layout: RunLayout, storage: StorageConfig | None = None) -> None:
        super().__init__(layout, storage)
        self._lent: dict[str, Columns] = {}

    @property
    def lend(self) -> Lend:
        """See `base.Transport.lend`."""
        return self._lent.__setitem__

    def fetch(self, shard: ShardRef) -> Columns:
        """See `base.Transport.fetch`: what was lent, once, without a copy; else a shard."""
        lent = self._lent.pop(shard.path, None)
        return lent if lent is not None else super().fetch(shard)
