"""The checksum of files: one number, whoever takes it."""

from __future__ import annotations

import subprocess
import sys
import zlib

import numpy as np
import pytest

from hpcdi.store.checksum import crc32_of, crc32_of_array

BYTES = np.random.default_rng(0).integers(0, 256, 100_003, dtype=np.uint8)
WITHOUT_ISAL = """
import sys
sys.modules["isal"] = None
from hpcdi.store.checksum import crc32_of
print(crc32_of.__module__, crc32_of(b"123456789"))
"""


def test_it_is_the_published_one() -> None:
    assert crc32_of(b"123456789") == 0xCBF43926  # the check value of CRC-32/ISO-HDLC


@pytest.mark.parametrize("size", [0, 1, 7, 64, 4096, 100_003])
def test_it_is_that_of_zlib(size: int) -> None:
    """So files of those who have ISA-L are read by those who have not."""
    data = BYTES[:size].tobytes()
    assert crc32_of(data) == zlib.crc32(data)
    assert crc32_of(data, 12345) == zlib.crc32(data, 12345)


@pytest.mark.parametrize(
    "array",
    [
        BYTES[:96].view(np.float32).reshape(4, 6),
        BYTES[:96].reshape(8, 12)[:, ::3],
        np.float32(3.5) + np.zeros(()),
        np.zeros((0, 3)),
        np.array([(1, 2.5), (3, 4.5)], dtype=[("a", np.int32), ("b", np.float64)]),
    ],
    ids=["rows", "every third column", "a number", "nothing", "records"],
)
def test_an_array_is_its_bytes(array: np.ndarray) -> None:
    assert crc32_of_array(array) == zlib.crc32(array.tobytes())
    assert crc32_of_array(array, 7) == zlib.crc32(array.tobytes(), 7)


def test_zlib_does_where_there_is_nothing_faster() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ISAL], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["zlib", str(0xCBF43926)]
