"""Transport within one process: open blocks are lent, and written to shards afterwards."""

from __future__ import annotations

from hpcdi.comm.messages import Rows
from hpcdi.config.schema import StorageConfig
from hpcdi.store.layout import RunLayout
from hpcdi.transport.files import FileTransport
from hpcdi.types import Columns, ShardRef


class MemoryTransport(FileTransport):
    """See `base.Transport`: one object, which a collector and a learner share.

    Args:
        layout: the run folder.
        storage: settings of shards; None: the usual ones.
    """

    lends_open = True

    def __init__(self, layout: RunLayout, storage: StorageConfig | None = None) -> None:
        super().__init__(layout, storage)
        self._lent: dict[str, Columns] = {}

    def lend(self, name: str, columns: Columns) -> str:
        """See `base.Transport.lend`."""
        self._lent[name] = columns
        return name

    def fetch(self, shard: ShardRef, rows: Rows | None = None) -> Columns:
        """See `base.Transport.fetch`: lent rows, once, without a copy; others from their shard."""
        lent = self._lent.pop(shard.path, None)
        return lent if lent is not None else super().fetch(shard, rows)
