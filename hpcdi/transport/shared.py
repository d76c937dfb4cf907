"""Transport within a node: a sealed block is lent by shared memory, and written to a shard behind.

The memory is a file without a name (memfd): others open it by Linux's ``/proc``, and it ends with
the processes that have it, however they end. Nothing of it is left behind, and no size of
``/dev/shm`` limits it.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Collection

import numpy as np

from hpcdi.comm.messages import Rows
from hpcdi.config.schema import StorageConfig
from hpcdi.errors import ShardError
from hpcdi.store.layout import RunLayout
from hpcdi.store.structure import aligned, bytes_of
from hpcdi.transport.files import FileTransport
from hpcdi.types import SHARED, Columns, ShardRef
from hpcdi.utils.log import LOGGER

_KEPT = 8
"""Blocks that stay lent: more than the publisher has under way, so others lie in shards.

Each is submitted before the next is lent, see `hpcdi.store.builder.BlockBuilder.fill`.
"""
_MOST_KEPT, _MOST_KEPT_BYTES = 256, 1 << 27
"""That stay lent where they may not lie in shards, see `hpcdi.config.schema.blocks_are_stored`."""


class SharedMemoryTransport(FileTransport):
    """See `base.Transport`.

    Args:
        layout: the run folder.
        storage: settings of shards; None: the usual ones.
    """

    def __init__(self, layout: RunLayout, storage: StorageConfig | None = None) -> None:
        super().__init__(layout, storage)
        self._lent: deque[tuple[int, int]] = deque()  # descriptors and sizes

    def lend(self, name: str, columns: Columns) -> str | None:
        """See `base.Transport.lend`: columns are copied into new memory, if there is some."""
        try:
            descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        except OSError as error:
            LOGGER.info("%s is not lent by memory: %s", name, error)
            return None
        at = 0
        try:
            for column in columns.values():
                rest = memoryview(bytes_of(column))
                end = at + len(rest)
                while rest:
                    rest = rest[os.pwrite(descriptor, rest, end - len(rest)) :]
                at = aligned(end)
        except OSError as error:
            LOGGER.info("%s is not lent by memory: %s", name, error)
            os.close(descriptor)
            return None
        self._lent.append((descriptor, at))
        while are_too_many([size for _, size in self._lent], keep_data=self._storage.keep_data):
            os.close(self._lent.popleft()[0])
        return f"{SHARED}/proc/{os.getpid()}/fd/{descriptor}#{os.fstat(descriptor).st_ino}"

    def fetch(self, shard: ShardRef, rows: Rows | None = None) -> Columns:
        """See `base.Transport.fetch`: lent memory in place; others from their shard."""
        if not shard.is_shared:
            return super().fetch(shard, rows)
        path, _, inode = shard.path.removeprefix(SHARED).partition("#")
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ShardError(shard.path, f"is not lent any more: {error.strerror}") from error
        try:
            state = os.fstat(descriptor)
            if str(state.st_ino) != inode:
                raise ShardError(shard.path, "is not lent any more")
            memory = (
                mmap.mmap(descriptor, state.st_size, prot=mmap.PROT_READ) if state.st_size else b""
            )
        except OSError as error:
            raise ShardError(shard.path, f"cannot be mapped: {error.strerror}") from error
        finally:
            os.close(descriptor)
        columns, at = {}, 0
        for spec in shard.columns:
            if not spec.n_bytes:
                columns[spec.name] = np.empty(spec.shape, spec.dtype)
                continue
            end = at + spec.n_bytes
            if end > len(memory):
                raise ShardError(shard.path, f"is too short for its column {spec.name}")
            columns[spec.name] = np.ndarray(spec.shape, spec.dtype, memory, at)
            at = aligned(end)
        return columns


def are_too_many(sizes: Collection[int], *, keep_data: bool) -> bool:
    """Returns whether the oldest of the blocks that are lent must go.

    Args:
        sizes: bytes of each.
        keep_data: whether all of them follow in shards, to be kept.
    """
    if len(sizes) <= _KEPT or keep_data:
        return len(sizes) > _KEPT
    return len(sizes) > _MOST_KEPT or sum(sizes) > _MOST_KEPT_BYTES
