"""Files that are torn, missing or foreign: every reader says so, by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import h5py
import numpy as np
import pytest

from fakes.store import write_shard
from hpcdi.errors import ShardError, StoreError
from hpcdi.store import shards
from hpcdi.store.block import Block
from hpcdi.store.inspect import inspect
from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import read_block, read_shard
from hpcdi.types import ITEM_DTYPE, ShardRef

SHARD = "data/rank00002/20250101T00/000001.h5"
COLUMNS = {
    "observation": np.arange(20, dtype="f4").reshape(5, 4),
    "info/image": np.arange(30, dtype="u1").reshape(5, 3, 2),
    "action": np.arange(5, dtype="i8"),
    "reward": np.arange(5, dtype="f8"),
    "terminated": np.array([0, 0, 1, 0, 1], dtype=bool),
}


def make_block() -> Block:
    items = np.ones(2, dtype=ITEM_DTYPE)
    items["item_start"], items["item_len"] = [0, 3], [3, 2]
    return Block(COLUMNS, items)


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path)


@pytest.fixture
def ref(layout: RunLayout) -> ShardRef:
    """A block on disk, alone in its shard."""
    return write_shard(layout, SHARD, make_block())


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long a reader would have waited between its attempts."""
    waited: list[float] = []
    monkeypatch.setattr(shards, "wait_s", waited.append)
    return waited


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x01
    path.write_bytes(data)


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("name", [*COLUMNS, *(ITEM_DTYPE.names or ())])
def test_a_flipped_bit_in_any_column_is_noticed(
    layout: RunLayout, ref: ShardRef, name: str, place: str
) -> None:
    path = layout.inside(SHARD)
    spec = next(spec for spec in ref.columns if spec.name == name)
    n_bytes = int(np.prod(spec.shape)) * np.dtype(spec.dtype).itemsize
    flip(path, spec.offset + (0 if place == "first" else n_bytes - 1))
    with pytest.raises(ShardError, match="checksum differs from the announced one") as caught:
        read_shard(layout, ref)
    assert caught.value.path == path
    (error,) = inspect(path).errors
    assert error == f"{path}: checksum of block 0 is wrong: the file is torn"


def test_a_right_file_of_another_shard_is_refused(layout: RunLayout, ref: ShardRef) -> None:
    with pytest.raises(ShardError, match="checksum differs"):
        read_shard(layout, dataclasses.replace(ref, crc32=ref.crc32 ^ 1))


# ----------------------------------------------------------------------- missing, short, unreadable


@pytest.mark.parametrize("length", [0, 1, 100, 600])
def test_a_truncated_file(
    layout: RunLayout, ref: ShardRef, waits: list[float], length: int
) -> None:
    path = layout.inside(SHARD)
    path.write_bytes(path.read_bytes()[:length])
    have = path.stat().st_size
    with pytest.raises(ShardError) as caught:
        read_shard(layout, ref)
    said = f"cannot be read: ends at byte {have}, before what it should hold (after 6 attempts)"
    assert str(caught.value) == f"{path}: {said}"
    with pytest.raises(ShardError, match="cannot be read"):
        read_block(path)
    assert len(inspect(path).errors) == 1


def test_a_missing_file(layout: RunLayout, ref: ShardRef, waits: list[float]) -> None:
    path = layout.inside(SHARD)
    path.unlink()
    with pytest.raises(ShardError, match="No such file") as caught:
        read_shard(layout, ref)
    assert caught.value.path == path
    assert sum(waits) == pytest.approx(1.55)  # what the docstring promises
    with pytest.raises(ShardError, match="cannot be read"):
        read_block(path)
    assert inspect(path).errors == [f"{path}: does not exist"]


def test_a_file_that_the_system_refuses(
    layout: RunLayout, ref: ShardRef, waits: list[float]
) -> None:
    """As a stale handle of NFS; here, a folder of that name."""
    path = layout.inside(SHARD)
    path.unlink()
    path.mkdir()
    with pytest.raises(ShardError, match=r"cannot be read: Is a directory \(after 6 attempts\)"):
        read_shard(layout, ref)


def test_a_file_that_comes_late_is_read(
    layout: RunLayout, ref: ShardRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Absent at first, then short, then empty, then whole: as another NFS client may see it."""
    path = layout.inside(SHARD)
    whole = path.read_bytes()
    path.unlink()
    seen = iter([whole[:10], bytes(len(whole)), whole])
    monkeypatch.setattr(shards, "wait_s", lambda _: path.write_bytes(next(seen)))
    assert read_shard(layout, ref).keys() == COLUMNS.keys()
    assert next(seen, None) is None


def test_a_path_out_of_the_run_folder_is_refused(layout: RunLayout, ref: ShardRef) -> None:
    with pytest.raises(StoreError, match="leads out of the run folder"):
        read_shard(layout, dataclasses.replace(ref, path="../x.h5"))


# ------------------------------------------------------------------------------------ foreign files


def foreign_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)


def test_an_hdf5_file_of_somebody_else(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    foreign_hdf5(path)
    with pytest.raises(ShardError, match="is an HDF5 file, but not a shard of hpcdi"):
        read_block(path)
    assert inspect(path).errors == [f"{path}: is an HDF5 file, but not one of hpcdi"]


@pytest.mark.parametrize("content", [b"", b"text", b"\x89HDF\r\n\x1a\n", b"\x00" * 9000])
def test_a_file_that_is_no_hdf5(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.h5"
    path.write_bytes(content)
    with pytest.raises(ShardError, match="cannot be read"):
        read_block(path)
    (error,) = inspect(path).errors
    assert error.startswith(f"{path}: cannot be read as HDF5")
