"""Transport by shards on the shared file system: blocks are appended, announced, read in place."""

from __future__ import annotations

from collections.abc import Callable

from hpcdi.comm.messages import Rows, RowsRequest
from hpcdi.config.schema import StorageConfig
from hpcdi.store.block import Block
from hpcdi.store.disk_full import DiskPatience
from hpcdi.store.layout import RunLayout, block_name, split_name
from hpcdi.store.shards import ShardWriter, read_block, read_shard
from hpcdi.transport.base import Announce, Lend
from hpcdi.types import Columns, ShardRef


class FileTransport:
    """See `base.Transport`.

    Args:
        layout: the run folder.
        storage: settings of shards; None: the usual ones.
        before: called before each block is written, on the thread that writes it.
    """

    lend: Lend | None = None
    """See `base.Transport.lend`: a block is read once it is written, not before."""
    lends_open = False

    def __init__(
        self,
        layout: RunLayout,
        storage: StorageConfig | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self._layout, self._storage = layout, storage or StorageConfig()
        self._before = before

    def publisher(self, announce: Announce, patience: DiskPatience | None = None) -> ShardWriter:
        """See `base.Transport.publisher`: one thread that writes shards."""
        storage = self._storage
        return ShardWriter(
            self._layout,
            announce,
            fsync=storage.fsync,
            file_bytes=storage.file_bytes,
            patience=patience,
            before=self._before,
        )

    def request(self, shard: ShardRef) -> RowsRequest | None:  # noqa: ARG002
        """See `base.Transport.request`: nobody is asked."""
        return None

    def answer(self, request: RowsRequest) -> Rows:
        """See `base.Transport.answer`: this collector lends nothing by messages."""
        return Rows(request.path, {}, "is not lent by messages")

    def fetch(self, shard: ShardRef, rows: Rows | None = None) -> Columns:  # noqa: ARG002
        """See `base.Transport.fetch`: a read of each column."""
        return read_shard(self._layout, shard)

    def fetch_named(self, path: str) -> Block:
        """See `base.Transport.fetch_named`."""
        shard, number = split_name(path)
        file = str(self._layout.inside(shard))
        return read_block(file if number is None else block_name(file, number))
