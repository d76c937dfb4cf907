"""An HDF5 file in two parts: its structure, which h5py makes, and its arrays, which lie in memory.

A contiguous dataset's bytes in the file are its array's bytes in memory. So h5py is given the
shapes alone, into a file that keeps only what is written to it, and says where every array belongs;
the arrays go to disk straight from where they are, once.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

import h5py
import numpy as np

from hpcdi.store.hdf5 import LIBVER, write_attributes
from hpcdi.types import Array, Columns

ALIGNMENT = 64


@dataclass(frozen=True)
class Image:
    """What a file will hold.

    Attributes:
        size: bytes of the file.
        pieces: offset and bytes of what is written, later ones over earlier ones; 0 elsewhere.
        offsets: where each array lies; 0 where it is empty.
    """

    size: int
    pieces: tuple[tuple[int, Any], ...]
    offsets: dict[str, int]

    def write_to(self, file: IO[bytes]) -> None:
        """Write it into an empty file."""
        for offset, piece in self.pieces:
            file.seek(offset)
            file.write(piece)
        file.truncate(self.size)

    def __bytes__(self) -> bytes:
        """The whole file."""
        buffer = io.BytesIO()
        self.write_to(buffer)
        return buffer.getvalue()


def image_of(arrays: Columns, attributes: Mapping[str, Any]) -> Image:
    """HDF5 image of arrays by '/'-joined name, and of attributes of the file.

    Raises:
        TypeError: HDF5 has no such dtype or attribute. ValueError: it refuses a name.
    """
    if any("\0" in name for name in arrays):
        raise ValueError("a name holds a zero byte")
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    structure, offsets = _Structure(), {}
    with h5py.File(
        structure, "w", libver=LIBVER, alignment_threshold=1, alignment_interval=ALIGNMENT
    ) as file:
        write_attributes(file, attributes)
        for name, array in arrays.items():
            offsets[name] = _reserve(file, name, array)
    filled = [(offsets[name], _bytes(array)) for name, array in arrays.items() if array.size]
    return Image(structure.size, (*structure.pieces, *filled), offsets)


def _reserve(file: h5py.File, name: str, array: Array) -> int:
    """Make a dataset, but write nothing into it; gives where its bytes belong."""
    how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    how.set_layout(h5py.h5d.CONTIGUOUS)
    how.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    how.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    how.set_obj_track_times(False)
    parents, _, leaf = name.rpartition("/")
    place = file.require_group(parents) if parents else file
    made = h5py.h5d.create(
        place.id, leaf.encode(), h5py.h5t.py_create(array.dtype, logical=True),
        h5py.h5s.create_simple(array.shape) if array.ndim else h5py.h5s.create(h5py.h5s.SCALAR),
        how,
    )  # fmt: skip
    return int(made.get_offset()) if array.size else 0


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


class _Structure(io.RawIOBase):
    """A file that keeps what is written to it, and holds zeros where nothing was."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0
        self.pieces: list[tuple[int, bytes]] = []
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
