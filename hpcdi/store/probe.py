"""Probes of a file system: locks, blocks that other hosts see, time to disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

import h5py
import numpy as np

from hpcdi.errors import ShardError
from hpcdi.store.block import Block
from hpcdi.store.hdf5 import LIBVER
from hpcdi.store.layout import RunLayout, block_name
from hpcdi.store.shards import Appender, read_block
from hpcdi.types import ITEM_DTYPE
from hpcdi.utils.backoff import Backoff

_ROWS = 4096
_WIDTH = 64  # float32 of a row: a block of 1 MiB
_SHARD, _FILE_BYTES = "probe.h5", 1 << 24
_SYNCED_BYTES = 1_000_000


def lock_error(folder: Path) -> str:
    """Returns why HDF5 cannot lock files here; empty where it can. Leaves nothing behind."""
    path = folder / "lock.h5"
    try:
        with h5py.File(path, "w", locking=True, libver=LIBVER) as file:
            file["x"] = np.zeros(1)
    except OSError as error:
        return str(error)
    finally:
        path.unlink(missing_ok=True)
    return ""


def sync_s(folder: Path) -> float:
    """Returns the seconds to force 1 MB to disk, the median of five. Leaves nothing behind."""
    times = []
    path = folder / "sync"
    try:
        for _ in range(5):
            with path.open("wb") as file:
                file.write(os.urandom(_SYNCED_BYTES))
                start = time.perf_counter()
                file.flush()
                os.fsync(file.fileno())
                times.append(time.perf_counter() - start)
    finally:
        path.unlink(missing_ok=True)
    return float(np.median(times))


def write_probes(folder: Path, count: int) -> list[float]:
    """Append blocks of 1 MiB, which `await_probe` recognises, to a shard; returns seconds of each.

    Raises:
        ShardError: they cannot be written.
    """
    appender, times = Appender(RunLayout(folder), _FILE_BYTES, fsync=True), []
    items = np.zeros(1, ITEM_DTYPE)
    items["item_len"] = _ROWS
    for number in range(count):
        columns = {"x": np.full((_ROWS, _WIDTH), number, np.float32)}
        start = time.perf_counter()
        appender.write(_SHARD, Block(columns, items, {"number": number}))
        times.append(time.perf_counter() - start)
    return times


def await_probe(folder: Path, number: int, limit_s: float) -> float:
    """Returns the seconds until a block that another rank has published is seen here, whole.

    Raises:
        ShardError: it is not, within `limit_s`.
    """
    start = time.perf_counter()
    backoff = Backoff(longest_s=20e-3)
    path = folder / _SHARD
    while True:
        try:
            block = read_block(block_name(str(path), number))
        except ShardError as error:
            waited_s = time.perf_counter() - start
            if waited_s > limit_s:
                reason = error.reason if path.exists() else "no such file"
                raise ShardError(path, f"is not seen after {waited_s:.0f} s: {reason}") from error
            backoff.nap()
        else:
            waited_s = time.perf_counter() - start
            if block.facts["number"] != number or (block.columns["x"] != number).any():
                raise ShardError(path, "holds another block's data")
            return waited_s
