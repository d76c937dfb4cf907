"""The crc32 checksum of files, stored in them and in their announcements.

ISA-L, in the extra ``hpcdi[fast]``, is 4 times as fast as zlib and computes the same numbers.
"""

from __future__ import annotations

from typing import IO

import numpy as np

from hpcdi.types import Array

try:
    from isal.isal_zlib import crc32 as crc32_of
except ImportError:
    from zlib import crc32 as crc32_of

__all__ = ["crc32_of", "crc32_of_array", "crc32_of_file"]

_CHUNK = 1 << 20


def crc32_of_array(array: Array, crc32: int = 0) -> int:
    """Checksum of an array's bytes in C order, continuing from bytes with the checksum `crc32`."""
    if not array.size:
        return crc32
    return crc32_of(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, crc32)


def crc32_of_file(file: IO[bytes]) -> int:
    """Returns the checksum of what is left to read of a file."""
    crc32 = 0
    while chunk := file.read(_CHUNK):
        crc32 = crc32_of(chunk, crc32)
    return crc32
