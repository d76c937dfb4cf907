"""Blocks in shards on the shared file system: one process writes a shard, any number read it.

`retention` decides when a shard is removed.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.dataclass import dataclass
from hpcdi.errors import ShardError, StoreError
from hpcdi.store.block import Block, check_block, checksum, row_columns
from hpcdi.store.disk_full import DiskPatience
from hpcdi.store.files import PAUSES_S, is_unreadable, patiently
from hpcdi.store.layout import RunLayout, block_name, shard_of, split_name
from hpcdi.store.shard_file import (
    SMALLEST_BYTES,
    GrowingShard,
    Record,
    ShardReader,
    read_ranges,
)
from hpcdi.types import Columns, ShardRef
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER
from hpcdi.utils.nested import concatenate_columns
from hpcdi.utils.threads import BackgroundThread

# A fresh file can be invisible or short to another NFS client until its attribute cache expires.
_TORN_ATTEMPTS = 3
_FLUSH_LOOK_S = 0.1


class Appender:
    """Appends blocks to the open shard, and begins the next one where a block does not fit in.

    Args:
        layout: the run folder.
        file_bytes: size of a full shard; 0: each has one block.
        fsync: force blocks to disk.
    """

    def __init__(self, layout: RunLayout, file_bytes: int, *, fsync: bool) -> None:
        self._layout, self._file_bytes, self._fsync = layout, file_bytes, fsync
        self._open: GrowingShard | None = None

    def write(self, path: str, block: Block) -> ShardRef:
        """Write a block; returns the reference to announce.

        Args:
            path: path of the new shard, if one has to begin: the open one is full, or lies in
                another folder (a collector has a folder for each hour).
            block: to be written.

        Raises:
            ShardError: it cannot be stored, or the file system refuses it.
        """
        check_block(block, path)
        final = self._layout.inside(path)
        shard = self._open
        try:
            if shard is not None and shard.path.parent == final.parent and shard.takes(block):
                with contextlib.suppress(FileNotFoundError):  # somebody has removed the file
                    return shard.append(block)
            shard = GrowingShard(final, path, block, self._next_bytes(), fsync=self._fsync)
            ref = shard.create(block)
        except OSError as error:
            raise ShardError(final, f"cannot be written: {error.strerror or error}") from error
        self._open = shard
        return ref

    def _next_bytes(self) -> int:
        """Returns the size of the next shard; it grows, so that a short run leaves a small file."""
        used_bytes = self._open.used_bytes if self._open is not None else 0
        return min(self._file_bytes, max(SMALLEST_BYTES, 2 * used_bytes))


def read_shard(layout: RunLayout, ref: ShardRef) -> Columns:
    """Returns row columns of an announced block, verified; arrays are views of one buffer.

    A file that is missing, short or refused is tried again for about 1.5 s, one with a wrong
    checksum twice: the client of a network file system may serve stale data from its cache.

    Raises:
        ShardError: missing, short, unreadable, or its bytes are not those that were announced.
    """
    path = layout.inside(ref.path)
    problem, torn = "", 0
    for pause_s in (*PAUSES_S, 0.0):
        try:
            datasets = read_ranges(path, ref.columns)
        except OSError as error:  # absent, or e.g. a stale file handle
            problem = f"cannot be read: {error.strerror or error}"
        else:
            if checksum(datasets) == ref.crc32:
                return row_columns(datasets)
            problem, torn = "checksum differs from the announced one: the file is torn", torn + 1
            if torn == _TORN_ATTEMPTS:
                raise ShardError(path, problem)
        wait_s(pause_s)
    raise ShardError(path, f"{problem} (after {1 + len(PAUSES_S)} attempts)")


def read_blocks(
    path: Path, number: int | None = None, only: Collection[str] | None = None
) -> Iterator[Block | ShardError]:
    """Yields the blocks of a shard, verified, or what is wrong with them.

    Args:
        path: the shard.
        number: number of the block; None: all blocks.
        only: names of row columns; nothing else is read, and they are not verified.

    Raises:
        ShardError: the file is missing, torn, or not one of ours.
    """
    shard = ShardReader(path, path.name)
    for slot, record in shard.records():
        if number not in (None, slot):
            continue
        try:
            if isinstance(record, ShardError):
                yield record
            elif only is None:
                yield shard.read(slot, record)
            else:
                yield shard.read_columns(slot, record, only)
        except ShardError as error:
            yield error


def facts_of(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yields the facts of a shard's blocks; their items and rows are not looked at.

    Raises:
        ShardError: the file is missing, torn, or not one of ours.
    """
    for _, record in ShardReader(path, path.name).records():
        if isinstance(record, Record):
            yield record.facts


def read_block(path: str | Path) -> Block:
    """Returns the block of a name like ``.../000001.h5#3``, or all blocks of a shard as one.

    Raises:
        ShardError: the file is missing, torn, not one of ours, or has no such block.
    """
    name, number = split_name(str(path))
    blocks: list[Block] = []
    for block in read_blocks(Path(name), number):
        if isinstance(block, ShardError):
            raise block
        blocks.append(block)
    if not blocks:
        raise ShardError(path, "holds no such block")
    return _joined(blocks)


def _joined(blocks: Sequence[Block]) -> Block:
    """Returns the blocks of one shard as one block, with the facts that they share."""
    first = blocks[0]
    if len(blocks) == 1:
        return first
    columns = concatenate_columns(block.columns for block in blocks)
    items = np.concatenate([block.items for block in blocks])
    starts = np.cumsum([0, *(block.rows for block in blocks[:-1])])
    items["item_start"] += np.repeat(starts, [len(block.items) for block in blocks])
    facts = {
        name: fact
        for name, fact in first.facts.items()
        if all(block.facts.get(name) == fact for block in blocks)
    }
    return Block(columns, items, facts, first.views, first.tail_rows)


@dataclass(frozen=True)
class Survey:
    """What a shard holds, without its rows.

    Attributes:
        blocks: a reference to each, and a block with items alone.
        damaged: why others cannot be used.
    """

    blocks: list[tuple[ShardRef, Block]] = field(default_factory=list)
    damaged: list[StoreError] = field(default_factory=list)

    def leave_out(self, error: StoreError) -> None:
        """Note why blocks cannot be used.

        Raises:
            ShardError: they could not be read now, and may be whole.
        """
        if is_unreadable(error):
            advice = "try again; if it stays so, remove that file, and its blocks are left out"
            raise ShardError(error.path, f"{error.reason}: {advice}") from error.__cause__
        self.damaged.append(error)


def survey(
    path: Path, name: str, wanted: Callable[[str, Mapping[str, Any]], bool] = lambda *_: True
) -> Survey:
    """Look which blocks a shard holds; what cannot be read is tried again for about 1.5 s.

    Args:
        path: the file.
        name: its path in references.
        wanted: given a block's name and its facts, whether to look at it.

    Raises:
        ShardError: the file system fails.
    """
    result = Survey()
    try:
        shard = patiently(partial(ShardReader, path, name), path)
    except ShardError as error:
        result.leave_out(error)
        return result
    for slot, record in shard.records():
        if isinstance(record, ShardError):
            result.leave_out(record)
        elif wanted(block_name(name, slot), record.facts):
            try:
                result.blocks.append(patiently(partial(shard.survey, slot, record), path))
            except ShardError as error:
                result.leave_out(error)
    return result


def survey_in(
    layout: RunLayout, name: str, wanted: Callable[[str, Mapping[str, Any]], bool]
) -> Survey:
    """Look which blocks a shard of a run holds; see `survey`.

    A link that leads out of the run folder, or to itself, holds none, and is damage.

    Raises:
        ShardError: the file system fails.
    """
    try:
        path = layout.inside(name)
    except StoreError as error:
        return Survey(damaged=[error])
    return survey(path, name, wanted)


def absent(layout: RunLayout, names: Iterable[str]) -> list[str]:
    """Returns which blocks are missing, or unreadable now, by name; rows are not looked at."""
    by_shard: dict[str, set[str]] = {}
    for name in names:
        by_shard.setdefault(shard_of(name), set()).add(name)
    missing: set[str] = set()
    for shard, wanted in by_shard.items():
        missing |= wanted
        with contextlib.suppress(ShardError):
            result = survey_in(layout, shard, lambda name, _, wanted=wanted: name in wanted)  # type: ignore[misc]
            missing -= {ref.path for ref, _ in result.blocks}
    return sorted(missing)


def withdraw(layout: RunLayout, names: Iterable[str]) -> None:
    """Take back blocks of dead processes, and those after them in the same shards.

    Raises:
        OSError: a file cannot be changed. ShardError: it cannot be read.
    """
    first: dict[str, int] = {}
    for name in names:
        shard, number = split_name(name)
        first[shard] = min(number or 0, first.get(shard, number or 0))
    for shard, number in first.items():
        path = layout.inside(shard)
        if number == 0:
            path.unlink(missing_ok=True)
        else:
            ShardReader(path, shard).withdraw(number)
        if not path.exists():
            (layout.root / shard).unlink(missing_ok=True)  # it was a link to it


class ShardWriter(Closing):
    """One thread that publishes blocks, so that the loop which fills them never waits for a disk.

    Args:
        layout: the run folder.
        announce: called on the writer's thread with the reference to each published block.
        fsync: force blocks to disk before they are announced.
        file_bytes: of a full shard, after which the next one is begun.
        depth: blocks that may be under way; `submit` waits when there are more (bounded memory).
        patience: with a disk that is full; None: that is an error.
        before: called on the writer's thread before each block is written.

    Attributes:
        waited_s: seconds that `submit` has waited.
        lost: blocks that found no room before the run had to end, or could not be written.
    """

    def __init__(
        self,
        layout: RunLayout,
        announce: Callable[[ShardRef, Block], None],
        *,
        fsync: bool = True,
        file_bytes: int = 1 << 26,
        depth: int = 4,
        patience: DiskPatience | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self.waited_s, self.lost = 0.0, 0
        self._before = before
        self._is_open = True
        self._announce, self._patience = announce, patience
        self._write = Appender(layout, file_bytes, fsync=fsync).write
        self._jobs: queue.Queue[tuple[str, Block] | threading.Event | None] = queue.Queue(
            maxsize=depth
        )
        self._thread = BackgroundThread(self._run, "shard-writer", self._drain)

    def submit(self, path: str, block: Block) -> None:
        """Hand a block over; it belongs to the writer from now on.

        Args:
            path: of the shard that it begins, if it begins one.
            block: sealed.

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
            self._before()
            ref = self._patience.write(write) if self._patience else write()
            if ref is not None:
                self._announce(ref, block)
                continue
            self.lost += 1
            LOGGER.warning("%s: %d transitions found no room and are lost", path, block.transitions)

    def _drain(self) -> None:
        """After a failure: nobody shall wait for room in the queue."""
        self._is_open = False
        self.lost += 1
        while True:
            try:
                self.lost += isinstance(self._jobs.get_nowait(), tuple)
            except queue.Empty:
                return
