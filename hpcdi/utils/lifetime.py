"""Life times: what is opened is closed, once."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Self


class Closing:
    """Mix-in for objects with an idempotent `close()`: with-statement and a last-resort `__del__`.

    The seeds' API promises a ``__del__`` that closes; code here uses ``with``.
    """

    def close(self) -> None:
        """Release what is held; calling it again does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A half-built object, or an interpreter that is going down: nobody could act on an error.
        with contextlib.suppress(AttributeError, TypeError, ImportError):
            self.close()
