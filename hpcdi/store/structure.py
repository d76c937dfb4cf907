"""HDF5's structure without its arrays: h5py makes it in memory, the arrays' bytes go to disk by us.

An array's bytes in the file are its bytes in memory, so h5py is given the shapes alone, and says
where every array belongs. HDF5 itself never writes to a disk: it does not survive a full one (seen
with HDF5 2.0: a file that cannot be closed crashes the process later).
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import IO, Any, Self

import h5py
import numpy as np

from hpcdi.store.hdf5 import LIBVER, write_attributes
from hpcdi.types import Array, Columns
from hpcdi.utils.disk import reserve_space

ALIGNMENT = 64
LARGEST_CHUNK_BYTES = (1 << 32) - 1
"""Of HDF5's file formats that common tools read: an array that grows is one chunk."""

Piece = tuple[int, bytes | memoryview]
"""Where in a file bytes belong, and the bytes."""
Extent = tuple[np.dtype[Any], tuple[int, ...]]
"""Dtype and shape of an array."""


def write_arrays(file: IO[bytes], arrays: Columns, attributes: Mapping[str, Any]) -> None:
    """Write an HDF5 file of arrays, by '/'-joined name, and attributes into an empty file.

    Raises:
        OSError: the disk has no room for it; seen before anything is written where it can tell.
        TypeError: HDF5 has no such dtype or attribute. ValueError: it refuses a name.
    """
    structure, pieces = _SparseFile(), list[Piece]()
    with _opened(structure, "w") as hdf5:
        write_attributes(hdf5, attributes)
        for name, values in arrays.items():
            array = np.asarray(values, order="C")
            offset = _reserve(hdf5, name, array.dtype, array.shape)
            pieces += [(offset, bytes_of(array))] if array.size else []
    reserve_space(file.fileno(), structure.size)
    for offset, piece in (*structure.pieces, *pieces):
        file.seek(offset)
        file.write(piece)
    file.truncate(structure.size)


def aligned(place: int) -> int:
    """Returns the first place from here on at which an array may begin."""
    return -(-place // ALIGNMENT) * ALIGNMENT


def bytes_of(array: Array) -> memoryview:
    """The bytes of an array that lies in one piece."""
    return array.reshape(-1).view(np.uint8).data


class GrowingStructure:
    """HDF5 structure of a file whose arrays grow, each in a place that is laid out for all of it.

    An array is one chunk of the largest size that it may get, which HDF5 allocates at once: its
    rows lie in one piece, and only the number of rows that readers see changes.

    Args:
        arrays: dtype and largest shape of each, in the order in which they lie in the file, all of
            them behind the structure.
        attributes: of the file.

    Attributes:
        offsets: where each array lies; 0 where its rows have no bytes.
        size: bytes of the file.

    Raises:
        TypeError: HDF5 has no such dtype or attribute. ValueError: it refuses a name.
    """

    def __init__(self, arrays: Mapping[str, Extent], attributes: Mapping[str, Any]) -> None:
        self._growing = [name for name, (_, shape) in arrays.items() if math.prod(shape)]
        self._file, self.offsets = _SparseFile(), dict.fromkeys(arrays, 0)
        with _opened(self._file, "w") as file:
            write_attributes(file, attributes)
            for name, (dtype, shape) in arrays.items():
                _reserve(file, name, dtype, shape, grows=name in self._growing)
        self._end = self._file.size
        with _opened(self._file, "r+") as file:
            for name in self._growing:
                dataset = file[name].id
                dataset.set_extent((1, *dataset.shape[1:]))
                self.offsets[name] = int(dataset.get_chunk_info(0).byte_offset)
        self.size = self._file.size

    @classmethod
    def read(cls, head: bytes, size: int, names: Sequence[str]) -> Self:
        """The structure of a file that is there.

        Args:
            head: its bytes up to the first array.
            size: of the file.
            names: of arrays that grow.
        """
        structure = cls.__new__(cls)
        structure.offsets, structure.size, structure._end = {}, size, len(head)
        structure._file = _SparseFile()
        structure._file.write(head)
        structure._file.truncate(size)
        structure._growing = list(names)
        return structure

    def resized(self, rows: Mapping[str, int]) -> Piece:
        """Let readers see so many rows of each array; returns what is to be written for it.

        Raises:
            KeyError, OSError, ValueError: what was read is no such structure.
        """
        with _opened(self._file, "r+") as file:
            for name in self._growing:
                dataset = h5py.h5d.open(file.id, name.encode())  # a fifth of the time of file[name]
                dataset.set_extent((rows[name], *dataset.shape[1:]))
        head = bytearray(self._end)  # where an array became shorter, HDF5 has cleared its rows
        self._file.seek(0)
        self._file.readinto(head)
        self._file.pieces = [(0, bytes(head))]
        return self._file.pieces[0]


def _opened(file: _SparseFile, mode: str) -> h5py.File:
    return h5py.File(file, mode, libver=LIBVER, alignment_threshold=1, alignment_interval=ALIGNMENT)


def _reserve(
    file: h5py.File, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], *, grows: bool = False
) -> int:
    """Make a dataset, but write nothing into it; returns where its bytes belong.

    If it `grows`, it has no rows now, and room for all of its shape as soon as it has one.

    Raises:
        TypeError: HDF5 has no such dtype. ValueError: it refuses the name.
    """
    if "\0" in name:
        raise ValueError(f"the name {name!r} holds a zero byte")
    how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if grows:
        how.set_chunk(shape)
    else:
        how.set_layout(h5py.h5d.CONTIGUOUS)
    how.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    how.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    how.set_obj_track_times(False)
    parents, _, leaf = name.rpartition("/")
    group = file.require_group(parents) if parents else file
    space = h5py.h5s.create(h5py.h5s.SCALAR)
    if shape:
        space = h5py.h5s.create_simple((0, *shape[1:]) if grows else shape, shape)
    dataset = h5py.h5d.create(
        group.id, leaf.encode(), h5py.h5t.py_create(dtype, logical=True), space, how
    )
    return int(dataset.get_offset()) if math.prod(shape) and not grows else 0


class _SparseFile(io.RawIOBase):
    """A file in memory that keeps what is written to it, and holds zeros where nothing was."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0
        self.pieces: list[Piece] = []
        self._at = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place: of the file (0), from here (1), or from the end (2)."""
        self._at = offset + (0, self._at, self.size)[whence]
        return self._at

    def tell(self) -> int:
        """Where reading and writing goes on."""
        return self._at

    def write(self, data: Any) -> int:
        """Keep a copy of data."""
        piece = bytes(data)
        self.pieces.append((self._at, piece))
        self._at += len(piece)
        self.size = max(self.size, self._at)
        return len(piece)

    def readinto(self, buffer: Any) -> int:
        """Give back what was written."""
        view = memoryview(buffer).cast("B")
        start, count = self._at, min(len(view), self.size - self._at)
        view[:count] = bytes(count)
        for offset, piece in self.pieces:
            low, high = max(offset, start), min(offset + len(piece), start + count)
            if low < high:
                view[low - start : high - start] = piece[low - offset : high - offset]
        self._at += count
        return count

    def truncate(self, size: int | None = None) -> int:
        """Set the size of the file."""
        self.size = self._at if size is None else size
        return self.size
