"""Large reads of a file through mmap: in a half to a third of the time of read()."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np

from hpcdi.types import Array
from hpcdi.utils.lifetime import Closing

_POPULATE_READ = 22  # of madvise, since Linux 5.14; the mmap module has no name for it


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
        """The file's own bytes, uint8 [count], read-only; None where there are none such.

        To be used at once, after `fetch`: while much else is read they may have to be read again.
        """
        pages = self._pages[offset : offset + count] if self._pages is not None else None
        return pages if pages is not None and len(pages) == count else None

    def fetch(self, lent: Array, offset: int) -> None:
        """Have lent bytes, which begin at an offset, in memory; threads may do so together.

        Raises:
            OSError: they cannot be read.
        """
        if not _are_here(lent):
            self.fill(np.empty_like(lent), offset)
            raise OSError(f"{len(lent)} bytes from byte {offset} on can be read, but not mapped")


def _are_here(pages: Array) -> bool:
    """Populate all pages of mapped bytes; returns True if they can be touched."""
    behind = pages.ctypes.data % mmap.PAGESIZE
    start, size = pages.ctypes.data - behind, len(pages) + behind
    call = ctypes.CDLL(None).madvise
    return bool(call(ctypes.c_void_p(start), ctypes.c_size_t(size), _POPULATE_READ) == 0)
