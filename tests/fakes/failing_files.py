"""A file system that fails for a while: reads of some files, and listings of some folders."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest


class FailingFiles:
    """Lets `os.open` and `os.scandir` fail on paths that contain a text; nobody waits for them.

    Args:
        monkeypatch: undoes it.
        where: part of a path.
        times: how many calls fail.
        number: with which error.

    Attributes:
        left: how many calls are still to fail.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, where: str, times: int, number: int = errno.ESTALE
    ) -> None:
        self.left, self._where, self._number = times, where, number
        monkeypatch.setattr(os, "open", self._failing(os.open))
        monkeypatch.setattr(os, "scandir", self._failing(os.scandir))
        monkeypatch.setattr("hpcdi.store.files.wait_s", lambda _: None)

    def _failing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(path: Any = ".", *args: Any, **named: Any) -> Any:
            if self.left > 0 and self._where in str(path):
                self.left -= 1
                raise OSError(self._number, os.strerror(self._number), str(path))
            return call(path, *args, **named)

        return called
