"""An HDF5 file in two parts: its structure, which h5py makes, and its arrays, which lie in memory.

A contiguous dataset's bytes in the file are its array's bytes in memory. So h5py is given the
shapes alone, into a file that keeps only what is written to it, and says where every array belongs;
the arrays go to disk straight from where they are, once, and come back the same way.
"""

from __future__ import annotations

import ctypes
import io
import math
import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import h5py
import numpy as np

from hpcdi.store.checksum import crc32_joined, crc32_of_array
from hpcdi.store.hdf5 import LIBVER, write_attributes
from hpcdi.types import Array, Columns
from hpcdi.utils.disk import reserve_space
from hpcdi.utils.lifetime import Closing

ALIGNMENT = 64
THREADS = 2
"""That take checksums, or read, of several arrays at once."""

_PART_BYTES = 1 << 23  # of an array, that a thread reads
_POPULATE_READ = 22  # of madvise, since Linux 5.14; the mmap module has no name for it

Piece = tuple[int, Any]
"""Where in a file bytes belong, and the bytes."""
Extent = tuple[np.dtype[Any], tuple[int, ...]]
"""Dtype and shape of an array."""


@dataclass(frozen=True)
class Image:
    """Contents of a file to be written.

    Attributes:
        size: bytes of the file.
        pieces: what is written, later ones over earlier ones; 0 elsewhere.
        offsets: where each array lies; 0 where it is empty.
    """

    size: int
    pieces: tuple[Piece, ...]
    offsets: dict[str, int]

    def write_to(self, file: IO[bytes]) -> None:
        """Write it into an empty file, or one that has pieces of its draft."""
        write_pieces(file, self.pieces)
        file.truncate(self.size)

    def __bytes__(self) -> bytes:
        """The whole file."""
        whole = bytearray(self.size)
        for offset, piece in self.pieces:
            whole[offset : offset + len(piece)] = piece
        return bytes(whole)


class Draft:
    """An image in the making: arrays get their places one after the other.

    So large ones can be on their way to the disk while others, as their checksums, are not known.
    """

    def __init__(self) -> None:
        self._structure, self._pending = _Structure(), list[Piece]()
        self._offsets: dict[str, int] = {}
        self._file = h5py.File(
            self._structure, "w", libver=LIBVER, alignment_threshold=1, alignment_interval=ALIGNMENT
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, arrays: Columns) -> None:
        """Give arrays, by '/'-joined name, their places; they may still change until written.

        Raises:
            TypeError: HDF5 has no such dtype. ValueError: it refuses a name.
        """
        if any("\0" in name for name in arrays):
            raise ValueError("a name holds a zero byte")
        for name, given in arrays.items():
            array = np.asarray(given, order="C")
            self._offsets[name] = offset = _reserve(self._file, name, array.dtype, array.shape)
            if array.size:
                self._pending.append((offset, _bytes(array)))

    def pending(self) -> list[Piece]:
        """Arrays that were added since the last call; the image is without them."""
        pieces, self._pending = self._pending, []
        return pieces

    def finish(self, attributes: Mapping[str, Any]) -> Image:
        """The image, with attributes of the file; nothing can be added any more.

        Raises:
            TypeError: HDF5 has no such attribute.
        """
        write_attributes(self._file, attributes)
        self._file.close()
        structure = self._structure
        return Image(structure.size, (*structure.pieces, *self.pending()), self._offsets)


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
        if any("\0" in name for name in arrays):
            raise ValueError("a name holds a zero byte")
        self._growing = [name for name, (_, shape) in arrays.items() if math.prod(shape)]
        self._file, self.offsets = _Structure(), dict.fromkeys(arrays, 0)
        with h5py.File(
            self._file, "w", libver=LIBVER, alignment_threshold=1, alignment_interval=ALIGNMENT
        ) as file:
            write_attributes(file, attributes)
            for name, (dtype, shape) in arrays.items():
                _reserve(file, name, dtype, shape, grows=name in self._growing)
        self._end = self._file.size
        with h5py.File(
            self._file, "r+", libver=LIBVER, alignment_threshold=1, alignment_interval=ALIGNMENT
        ) as file:
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
        made = cls.__new__(cls)
        made._file, made.offsets, made.size, made._end = _Structure(), {}, size, len(head)
        made._file.write(head)
        made._file.truncate(size)
        made._growing = list(names)
        return made

    def resized(self, rows: Mapping[str, int]) -> Piece:
        """Let readers see so many rows of each array; returns what is to be written for it.

        Raises:
            KeyError, OSError, ValueError: what was read is no such structure.
        """
        with h5py.File(self._file, "r+", libver=LIBVER) as file:
            for name in self._growing:
                dataset = file[name].id
                dataset.set_extent((rows[name], *dataset.shape[1:]))
        head = bytearray(self._end)  # where an array became shorter, HDF5 has cleared its rows
        self._file.seek(0)
        self._file.readinto(head)
        self._file.pieces = [(0, bytes(head))]
        return self._file.pieces[0]


def write_pieces(file: IO[bytes], pieces: Sequence[Piece]) -> None:
    """Write pieces to their places in a file.

    Raises:
        OSError: where there is no room for them, before anything is written.
    """
    reserve_space(file.fileno(), max((offset + len(piece) for offset, piece in pieces), default=0))
    for offset, piece in pieces:
        file.seek(offset)
        file.write(piece)


class MappedFile(Closing):
    """A file that is read from the page cache, without a system call's copy.

    Touching a page that cannot be read (a broken disk, an unreachable server, a truncated file)
    would kill the process by SIGBUS. So all pages of a read are populated first by a call that
    reports failure; then, and where a system or file system has no such call, pread reads instead
    and raises its error.

    Args:
        path: a file that nobody writes to any more.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        self._pages: Array | None = None
        self._file = Path(path).open("rb")  # noqa: SIM115
        size = os.fstat(self._file.fileno()).st_size
        try:
            pages = np.frombuffer(
                mmap.mmap(self._file.fileno(), size, prot=mmap.PROT_READ), np.uint8
            )
        except (OSError, ValueError):  # some file systems map no files; no file is mapped if empty
            return
        if _are_here(pages[:1]):
            self._pages = pages

    def close(self) -> None:
        """Close the file; arrays that `lent` returned stay valid."""
        self._pages = None
        self._file.close()

    def fill(self, array: Array, offset: int) -> None:
        """Fill an array, uint8 [n], with the bytes from an offset on; threads may do so together.

        Raises:
            OSError: the file ends before that, or cannot be read.
        """
        pages = self.lent(offset, len(array))
        if pages is not None and _are_here(pages):
            np.copyto(array, pages)
            return
        view = array.data
        while view:
            count = os.preadv(self._file.fileno(), [view], offset)
            if not count:
                raise OSError(f"the file ends at byte {offset}, before all of an array was read")
            view, offset = view[count:], offset + count

    def lent(self, offset: int, count: int) -> Array | None:
        """The file's own bytes, uint8 [count], read-only; None where they are not mapped.

        To be used at once, after `fetch`: while much else is read they may have to be read again.
        """
        pages = self._pages[offset : offset + count] if self._pages is not None else None
        return pages if pages is not None and len(pages) == count else None

    def fetch(self, lent: Array, offset: int) -> None:
        """Read lent bytes, which begin at an offset, into memory; threads may do so together.

        Raises:
            OSError: they cannot be read.
        """
        if not _are_here(lent):
            self.fill(np.empty_like(lent), offset)
            raise OSError(f"{len(lent)} bytes from byte {offset} on can be read, but not mapped")


def read_arrays(
    path: str | Path, datasets: Mapping[str, h5py.Dataset], lent: bool = False
) -> tuple[Columns, dict[str, int]]:
    """Arrays of a file's datasets, and the crc32 of each; several are read at once.

    If `lent`, they may be the file's own pages, read-only: for who copies them at once.

    Raises:
        OSError: the file ends before an array does, or cannot be read.
    """
    with MappedFile(path) as file, ThreadPoolExecutor(THREADS) as pool:
        arrays = {name: _read(dataset, file, pool, lent) for name, dataset in datasets.items()}
        return (
            {name: array for name, (array, _) in arrays.items()},
            {name: _joined(parts) for name, (_, parts) in arrays.items()},
        )


def _joined(parts: Iterable[tuple[int, int]]) -> int:
    """The crc32 of bytes from the crc32 and the length of each part."""
    crc32 = 0
    for part, count in parts:
        crc32 = crc32_joined(crc32, part, count)
    return crc32


def _read(
    dataset: h5py.Dataset, file: MappedFile, pool: Executor, lent: bool
) -> tuple[Array, Iterable[tuple[int, int]]]:
    """A dataset's array, which a pool fills; and crc32 and length of each part when it is there."""
    offset = dataset.id.get_offset()
    if offset is None or dataset.dtype.hasobject:  # another tool laid it out: HDF5 reads it
        array = np.asarray(dataset[()])
        return array, [(crc32_of_array(array), array.nbytes)]
    pages = file.lent(offset, dataset.nbytes) if lent else None
    flat = pages if pages is not None else np.empty(dataset.nbytes, np.uint8)
    get = file.fetch if pages is not None else file.fill

    def read_part(start: int) -> tuple[int, int]:
        """Read a part; returns its crc32 and its length."""
        part = flat[start : start + _PART_BYTES]
        get(part, offset + start)
        return crc32_of_array(part), len(part)

    parts = pool.map(read_part, range(0, len(flat), _PART_BYTES))
    return flat.view(dataset.dtype).reshape(dataset.shape), parts


def _reserve(
    file: h5py.File, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], *, grows: bool = False
) -> int:
    """Make a dataset, but write nothing into it; returns where its bytes belong.

    If it `grows`, it has no rows now, and room for all of its shape as soon as it has one.
    """
    how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if grows:
        how.set_chunk(shape)
    else:
        how.set_layout(h5py.h5d.CONTIGUOUS)
    how.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    how.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    how.set_obj_track_times(False)
    parents, _, leaf = name.rpartition("/")
    place = file.require_group(parents) if parents else file
    space = h5py.h5s.create(h5py.h5s.SCALAR)
    if shape:
        space = h5py.h5s.create_simple((0, *shape[1:]) if grows else shape, shape)
    made = h5py.h5d.create(
        place.id, leaf.encode(), h5py.h5t.py_create(dtype, logical=True), space, how
    )
    return int(made.get_offset()) if math.prod(shape) and not grows else 0


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _are_here(pages: Array) -> bool:
    """Populate all pages of mapped bytes; returns True if they can be touched."""
    behind = pages.ctypes.data % mmap.PAGESIZE
    start, size = pages.ctypes.data - behind, len(pages) + behind
    call = ctypes.CDLL(None).madvise
    return bool(call(ctypes.c_void_p(start), ctypes.c_size_t(size), _POPULATE_READ) == 0)


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
