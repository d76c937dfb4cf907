"""Files appear whole: after an error, a full disk, or a kill in the middle."""

from __future__ import annotations

import json
import os
import platform
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hpcdi.store.atomic import (
    clock_of,
    published,
    sweep_temporary,
    temporary_beside,
    write_json,
    write_text,
    written_aside,
)

SIZE = 300_000

WRITER = """
import sys
from hpcdi.store.atomic import published
path, size = sys.argv[1], int(sys.argv[2])
for number in range(1, 100_000):
    with published(path, fsync=False) as file:
        file.write(bytes([number % 256]) * (size // 2))
        file.write(bytes([number % 256]) * (size - size // 2))
    if number == 1:
        print("going", flush=True)
"""

HALF_WRITER = """
import sys
from hpcdi.store.atomic import published
with published(sys.argv[1]) as file:
    file.write(b"new" * 100_000)
    file.flush()
    print("half", flush=True)
    sys.stdin.read()
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("fsync", [True, False])
def test_a_new_file_appears_with_its_folders(tmp_path: Path, fsync: bool) -> None:
    path = tmp_path / "a" / "b" / "x.bin"
    with published(path, fsync=fsync) as file:
        file.write(b"hello")
        file.write(b" world")
        assert not path.exists()
    assert path.read_bytes() == b"hello world"
    assert names(path.parent) == ["x.bin"]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"a long old text")
    with path.open("rb") as reader:
        with published(path) as file:
            file.write(b"new")
            assert path.read_bytes() == b"a long old text"
        assert reader.read() == b"a long old text"  # who had it open keeps what he had
    assert path.read_bytes() == b"new"


def test_a_link_in_the_place_of_what_is_written_aside_leads_nowhere(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("somebody else's")
    aside, probe = temporary_beside(tmp_path / "x.bin"), temporary_beside(tmp_path / "clock")
    for link in (aside, probe):
        link.symlink_to(other)
    with written_aside(tmp_path / "x.bin") as place:
        place.write_text("mine")
    assert clock_of(tmp_path) > 1.6e9
    assert (other.read_text(), (tmp_path / "x.bin").read_text()) == ("somebody else's", "mine")
    assert names(tmp_path) == ["other", "x.bin"]


def test_what_is_not_finished_is_hidden(tmp_path: Path) -> None:
    """No reader that lists *.h5 sees it."""
    with published(tmp_path / "x.h5") as file:
        file.write(b"1")
        (aside,) = tmp_path.iterdir()
        assert aside.name.startswith(".x.h5")
        assert list(tmp_path.glob("*.h5")) == []


def fail_in_the_middle(path: Path, error: type[BaseException]) -> None:
    with published(path) as file:
        file.write(b"half of it")
        raise error("planted")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("old", [None, b"old"])
def test_an_error_in_the_middle_leaves_what_was_there(
    tmp_path: Path, error: type[BaseException], old: bytes | None
) -> None:
    path = tmp_path / "x.bin"
    if old is not None:
        path.write_bytes(old)
    with pytest.raises(error, match="planted"):
        fail_in_the_middle(path, error)
    assert names(tmp_path) == (["x.bin"] if old is not None else [])
    if old is not None:
        assert path.read_bytes() == old


@contextmanager
def file_size_limit(n_bytes: int) -> Iterator[None]:
    """As a full disk does it: a write stops short first, and only the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("fsync", [True, False])
def test_a_write_that_stops_short_is_an_error(tmp_path: Path, fsync: bool) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"old")

    def write() -> None:
        with file_size_limit(10_000), published(path, fsync=fsync) as file:
            file.write(b"n" * 20_000)

    with pytest.raises(OSError, match="File too large"):
        write()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["x.bin"]


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError), published(tmp_path / "file" / "x.bin"):  # noqa: PT011
        pytest.fail("there is nothing to write to")


def test_text_and_json(tmp_path: Path) -> None:
    write_text(tmp_path / "x.yaml", "größe: 1\n")
    assert (tmp_path / "x.yaml").read_bytes() == "größe: 1\n".encode()
    value = {"path": Path("a/b"), "n": np.int64(3), "x": np.float32(0.5), "none": None}
    write_json(tmp_path / "x.json", value)
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text) == {"path": "a/b", "n": 3, "x": 0.5, "none": None}
    assert text.endswith("}\n")


# ------------------------------------------------------------------------------------------ kill -9


@contextmanager
def writer(script: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes; it has said that it is at work."""
    command = [sys.executable, "-c", script, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline(), "the writer ended before it began"
        yield process
    finally:
        process.kill()
        process.communicate()


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    assert process.wait(30) == -signal.SIGKILL


@pytest.mark.parametrize("old", [None, b"old"])
def test_killed_in_the_middle(tmp_path: Path, old: bytes | None) -> None:
    path = tmp_path / "x.bin"
    if old is not None:
        path.write_bytes(old)
    with writer(HALF_WRITER, str(path)) as process:
        kill(process)
        left = tmp_path / f".x.bin.tmp-{platform.node()}-{process.pid}"
    assert left.stat().st_size > 0
    assert (path.read_bytes() if path.exists() else None) == old
    assert sweep_temporary(tmp_path) == [left]
    assert names(tmp_path) == (["x.bin"] if old is not None else [])


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_moment(tmp_path: Path, seed: int) -> None:
    """The file is one of the versions that were written, from its first byte to its last."""
    path = tmp_path / "x.bin"
    with writer(WRITER, str(path), str(SIZE)) as process:
        time.sleep(random.Random(seed).uniform(0.0, 0.03))
        kill(process)
    content = path.read_bytes()
    assert len(content) == SIZE
    assert content == content[:1] * SIZE
    sweep_temporary(tmp_path)
    assert names(tmp_path) == ["x.bin"]


def test_sweeping_takes_temporary_files_only(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    keep = [tmp_path / "x.h5", tmp_path / ".hidden", tmp_path / "data" / "y.tmp-1"]
    remove = [tmp_path / ".a.h5.tmp-12", tmp_path / "data" / ".b.h5.tmp-34"]
    for path in keep + remove:
        path.write_bytes(b"")
    assert sweep_temporary(tmp_path) == sorted(remove)
    assert all(path.exists() for path in keep)
    assert not any(path.exists() for path in remove)
    assert sweep_temporary(tmp_path) == []
    assert sweep_temporary(tmp_path / "no such folder") == []


def test_fsync_comes_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All bytes have left the process when they are forced to disk."""
    path = tmp_path / "x.bin"
    seen: list[tuple[int, bool]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        seen.append((os.fstat(descriptor).st_size, path.exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with published(path) as file:
        file.write(b"12345")
    assert seen == [(5, False)]
    with published(path, fsync=False) as file:
        file.write(b"1")
    assert len(seen) == 1
