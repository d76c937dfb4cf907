"""Shards: blocks on the shared file system, each written once by one writer."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hpcdi.errors import ShardError
from hpcdi.store.atomic import published
from hpcdi.store.block import (
    Block,
    checksum,
    encode,
    map_datasets,
    open_block,
    row_columns,
)
from hpcdi.store.disk_full import DiskPatience
from hpcdi.store.layout import RunLayout
from hpcdi.types import Columns, ShardRef
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER
from hpcdi.utils.threads import BackgroundThread

# A fresh file can be invisible or short to another NFS client until its attribute cache expires.
_READ_ATTEMPTS = 6
_FIRST_RETRY_S = 0.05
_FLUSH_LOOK_S = 0.1


def write_shard(layout: RunLayout, path: str, block: Block, *, fsync: bool = True) -> ShardRef:
    """Publish a block at `path` (relative to the run folder); returns the reference to announce.

    Raises:
        ShardError: the block cannot be stored, or the file system refuses it (full, quota, rights).
    """
    image, ref = encode(block, path)
    final = layout.inside(path)
    try:
        with published(final, fsync=fsync) as file:
            image.write_to(file)
    except OSError as error:
        raise ShardError(final, f"cannot be written: {error.strerror or error}") from error
    return ref


def read_shard(layout: RunLayout, ref: ShardRef) -> Columns:
    """Row columns of an announced shard: one read, the checksum verified, arrays without a copy.

    A file that is missing, short or refused is tried again for about 1.5 s (attribute caches of
    network file systems).

    Raises:
        ShardError: missing, short, unreadable, or its bytes are not those that were announced.
    """
    path = layout.inside(ref.path)
    datasets = map_datasets(_read_whole(path, ref.n_bytes), ref)
    if checksum(datasets) != ref.crc32:
        raise ShardError(path, "checksum differs from the announced one: the file is torn")
    return row_columns(datasets)


def read_block(path: str | Path) -> tuple[Block, int]:
    """A whole shard by its path alone, through HDF5, and its checksum, which is verified.

    Raises:
        ShardError: the file is missing, torn, or not one of ours.
    """
    block, crc32 = open_block(path)
    if checksum(block.datasets()) != crc32:
        raise ShardError(path, "checksum is wrong: the file is torn")
    return block, crc32


def _read_whole(path: Path, n_bytes: int) -> bytes:
    retry_s = _FIRST_RETRY_S
    for attempt in range(_READ_ATTEMPTS):
        try:
            image = path.read_bytes()
        except OSError as error:  # absent, or e.g. a stale file handle
            found = f"cannot be read: {error.strerror or error}"
        else:
            if len(image) == n_bytes:
                return image
            found = f"has {len(image)} of {n_bytes} bytes"
        if attempt + 1 < _READ_ATTEMPTS:
            wait_s(retry_s)
            retry_s *= 2
    raise ShardError(path, f"{found} (after {_READ_ATTEMPTS} attempts)")


class ShardWriter(Closing):
    """One thread that publishes blocks, so that the loop which fills them never waits for a disk.

    Args:
        layout: the run folder.
        announce: called on the writer's thread with each published shard and its block.
        fsync: force shards to disk before they are announced.
        depth: blocks that may be under way; `submit` waits when there are more (bounded memory).
        patience: with a disk that is full; None: that is an error.

    Attributes:
        waited_s: seconds that `submit` has waited.
        lost: blocks that found no room before the run had to end.
    """

    def __init__(
        self,
        layout: RunLayout,
        announce: Callable[[ShardRef, Block], None],
        *,
        fsync: bool = True,
        depth: int = 4,
        patience: DiskPatience | None = None,
    ) -> None:
        self.waited_s, self.lost = 0.0, 0
        self._is_open = True
        self._announce, self._patience = announce, patience
        self._write = partial(write_shard, layout, fsync=fsync)
        self._jobs: queue.Queue[tuple[str, Block] | threading.Event | None] = queue.Queue(
            maxsize=depth
        )
        self._thread = BackgroundThread(self._run, "shard-writer", self._drain)

    def submit(self, path: str, block: Block) -> None:
        """Hand a block over; it belongs to the writer from now on.

        Raises:
            ShardError: an earlier block could not be written, or the writer is closed.
        """
        self._thread.check()
        if not self._is_open:  # nobody would take it from the queue
            raise ShardError(path, "is not written: the writer is closed or has failed before")
        start = time.perf_counter()
        self._jobs.put((path, block))
        self.waited_s += time.perf_counter() - start

    def flush(self) -> None:
        """Wait until all that was handed over is published and announced.

        Raises:
            ShardError: a block could not be written.
        """
        done = threading.Event()
        if self._is_open:
            self._jobs.put(done)
        while self._is_open and not done.wait(_FLUSH_LOOK_S):
            pass
        self._thread.check()

    def close(self) -> None:
        """Publish what is under way and end the thread.

        Raises:
            ShardError: a block could not be written.
        """
        self._is_open = False
        if self._thread.is_alive:
            self._jobs.put(None)
            self._thread.join()
        self._thread.check()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if isinstance(job, threading.Event):
                job.set()
                continue
            path, block = job
            write = partial(self._write, path, block)
            ref = self._patience.write(write) if self._patience else write()
            if ref is not None:
                self._announce(ref, block)
                continue
            self.lost += 1
            LOGGER.warning("%s: %d transitions found no room and are lost", path, block.transitions)

    def _drain(self) -> None:
        """After a failure: nobody shall wait for room in the queue."""
        self._is_open = False
        while True:
            try:
                self._jobs.get_nowait()
            except queue.Empty:
                return
