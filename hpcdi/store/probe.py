"""Probes of a file system: locks, shards that other hosts see, time to disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

import h5py
import numpy as np

from hpcdi.errors import ShardError
from hpcdi.store.block import Block
from hpcdi.store.hdf5 import LIBVER
from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import read_block, write_shard
from hpcdi.types import ITEM_DTYPE
from hpcdi.utils.backoff import Backoff

_ROWS = 4096
_WIDTH = 64  # float32 of a row: a shard of 1 MiB
_SYNCED_BYTES = 1_000_000


def mount_of(path: Path, mounts: str) -> tuple[str, str, str]:
    """Returns the file-system type, mount point and device (or export) of an absolute path.

    Args:
        path: links followed.
        mounts: text of ``/proc/mounts``; of several mounts on one point the last counts.
    """
    best = ("unknown", "", "")
    for line in mounts.splitlines():
        device, escaped, kind, *_ = line.split()
        point = escaped.encode().decode("unicode_escape")  # a blank is \040
        if path.is_relative_to(point) and len(point) >= len(best[1]):
            best = (kind, point, device)
    return best


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


def write_probe(folder: Path, number: int) -> None:
    """Publish a shard of 1 MiB that `await_probe` recognises."""
    items = np.zeros(1, ITEM_DTYPE)
    items["item_len"] = _ROWS
    columns = {"x": np.full((_ROWS, _WIDTH), number, np.float32)}
    write_shard(RunLayout(folder), _name(number), Block(columns, items, {"number": number}))


def await_probe(folder: Path, number: int, limit_s: float) -> float:
    """Returns the seconds until a shard that another rank has published is seen here, whole.

    Raises:
        ShardError: it is not, within `limit_s`.
    """
    start = time.perf_counter()
    backoff = Backoff(longest_s=20e-3)
    while True:
        try:
            block, _ = read_block(folder / _name(number))
        except ShardError as error:
            waited_s = time.perf_counter() - start
            if waited_s > limit_s:
                reason = error.reason if error.path.exists() else "no such file"
                raise ShardError(
                    error.path, f"is not seen after {waited_s:.0f} s: {reason}"
                ) from error
            backoff.nap()
        else:
            waited_s = time.perf_counter() - start
            if block.facts["number"] != number or (block.columns["x"] != number).any():
                raise ShardError(folder / _name(number), "holds another shard's data")
            return waited_s


def _name(number: int) -> str:
    return f"{number:06d}.h5"
