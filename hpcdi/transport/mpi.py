"""Transport by messages, also across nodes: a learner asks a block's collector for its rows.

The rows are those arrays that the collector has made: MPI takes them from there, and puts them into
memory of the learner's; nothing is copied beside. They are written to a shard behind, as those that
`shared` lends.
"""

from __future__ import annotations

import math

from hpcdi.comm.messages import Rows, RowsRequest
from hpcdi.config.schema import StorageConfig
from hpcdi.errors import ShardError
from hpcdi.store.layout import RunLayout
from hpcdi.transport.files import FileTransport
from hpcdi.transport.shared import are_too_many
from hpcdi.types import SHARED, Columns, ShardRef


class MpiTransport(FileTransport):
    """See `base.Transport`.

    Args:
        layout: the run folder.
        storage: settings of shards; None: the usual ones.
    """

    def __init__(self, layout: RunLayout, storage: StorageConfig | None = None) -> None:
        super().__init__(layout, storage)
        self._lent: dict[str, tuple[Columns, int]] = {}  # and their bytes; the oldest first

    def lend(self, name: str, columns: Columns) -> str:
        """See `base.Transport.lend`."""
        path = f"{SHARED}{name}"
        self._lent[path] = columns, sum(column.nbytes for column in columns.values())
        while are_too_many(
            [size for _, size in self._lent.values()], keep_data=self._storage.keep_data
        ):
            del self._lent[next(iter(self._lent))]
        return path

    def request(self, shard: ShardRef) -> RowsRequest | None:
        """See `base.Transport.request`: a collector is asked for what it lends."""
        return RowsRequest(shard.path) if shard.is_shared else None

    def answer(self, request: RowsRequest) -> Rows:
        """See `base.Transport.answer`."""
        lent = self._lent.get(request.path)
        if lent is None:
            return Rows(request.path, {}, "is not lent any more")
        columns, _ = lent
        return Rows(request.path, columns)

    def fetch(self, shard: ShardRef, rows: Rows | None = None) -> Columns:
        """See `base.Transport.fetch`: lent rows as they came; others from their shard."""
        if not shard.is_shared:
            return super().fetch(shard)
        if rows is None or rows.error:
            raise ShardError(shard.path, rows.error if rows is not None else "was not asked for")
        columns = {}
        for spec in shard.columns:
            column = rows.columns.get(spec.name)
            if column is None or (column.dtype.str, column.size) != (
                spec.dtype,
                math.prod(spec.shape),
            ):
                raise ShardError(shard.path, f"has come without its column {spec.name}")
            columns[spec.name] = column.reshape(spec.shape)
        return columns
