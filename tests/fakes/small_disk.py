"""A real file system that is small, so that it can be full."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """A file system of some megabytes, mounted at `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._filler = root / "filler"

    def fill(self) -> None:
        """Leave no room at all."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def free(self) -> None:
        """Give the room back."""
        self._filler.unlink()

    def free_bytes(self) -> int:
        """What is left."""
        state = os.statvfs(self.root)
        return state.f_bavail * state.f_frsize


@contextlib.contextmanager
def mounted(root: Path, size: str) -> Iterator[SmallDisk]:
    """A tmpfs at a new folder; where this user may not mount one, the test is skipped.

    Args:
        root: the folder.
        size: as mount's option has it, e.g. ``"16m"``.
    """
    root.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "hpcdi-test", str(root)],
        capture_output=True, text=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"NOT TESTED: a full disk; no tmpfs can be mounted: {made.stderr.strip()}")
    try:
        yield SmallDisk(root)
    finally:
        subprocess.run(["umount", "--lazy", str(root)], check=True)


def assert_full(error: BaseException | None) -> None:
    """See that an error comes from the kernel, as on a full disk."""
    assert isinstance(error, OSError)
    assert error.errno == errno.ENOSPC
