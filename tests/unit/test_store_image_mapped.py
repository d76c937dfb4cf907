"""Reads by way of pages: the bytes of the file, and an error instead of a SIGBUS."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdi.store import image
from hpcdi.store.image import MappedFile
from hpcdi.types import Array

CONTENT = np.random.default_rng(0).integers(0, 256, 50_000, dtype=np.uint8)


@pytest.fixture(params=["by pages", "old system", "no mapping"], name="path")
def _path(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file, where the system can give its pages, and where it cannot."""
    if request.param == "old system":
        monkeypatch.setattr(image, "_POPULATE_READ", 12_345)  # no such advice: EINVAL
    if request.param == "no mapping":
        monkeypatch.setattr(image.mmap, "mmap", _refuse)
    path = tmp_path / "file"
    path.write_bytes(CONTENT.tobytes())
    return path


def _refuse(*_args: object, **_more: object) -> None:
    raise OSError("No such device")


def filled(file: MappedFile, start: int, count: int) -> Array:
    array = np.zeros(count, np.uint8)
    file.fill(array, start)
    return array


def test_arrays_hold_what_the_file_holds(path: Path) -> None:
    @settings(deadline=None, max_examples=50)
    @given(st.integers(0, len(CONTENT)), st.integers(0, len(CONTENT)))
    def check(start: int, stop: int) -> None:
        start, stop = sorted((start, stop))
        assert (filled(file, start, stop - start) == CONTENT[start:stop]).all()

    with MappedFile(path) as file:
        check()


def test_threads_fill_parts_together(path: Path) -> None:
    array = np.zeros_like(CONTENT)
    with MappedFile(path) as file, ThreadPoolExecutor(4) as pool:
        starts = range(0, len(CONTENT), 777)
        list(pool.map(lambda start: file.fill(array[start : start + 777], start), starts))
    assert (array == CONTENT).all()


@pytest.mark.parametrize(("start", "count"), [(49_999, 2), (50_000, 1), (90_000, 9), (0, 50_001)])
def test_what_is_behind_the_end_is_an_error(path: Path, start: int, count: int) -> None:
    with MappedFile(path) as file, pytest.raises(OSError, match="the file ends at byte"):
        filled(file, start, count)


def test_of_an_empty_file_nothing_can_be_read(path: Path) -> None:
    path.write_bytes(b"")
    with MappedFile(path) as file, pytest.raises(OSError, match="ends at byte 0"):
        filled(file, 0, 1)


def test_a_file_that_is_cut_while_it_is_open_is_an_error_not_a_signal(path: Path) -> None:
    with MappedFile(path) as file:
        assert (filled(file, 40_000, 100) == CONTENT[40_000:40_100]).all()
        os.truncate(path, 8192)
        with pytest.raises(OSError, match="ends at byte 8192"):
            filled(file, 0, 50_000)
        assert (filled(file, 0, 8192) == CONTENT[:8192]).all()


@pytest.mark.parametrize("path", ["by pages"], indirect=True)
def test_pages_are_used_where_the_system_has_the_call(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) < (5, 14):
        pytest.skip("NOT TESTED: pages; this Linux is older than 5.14")
    with MappedFile(path) as file:
        monkeypatch.setattr(image.os, "preadv", _fail)
        assert (filled(file, 5, 20_000) == CONTENT[5:20_005]).all()


def _fail(*_args: object) -> None:
    pytest.fail("it was read by a system call")
