"""Objects that are closed once."""

from __future__ import annotations

import contextlib
from typing import Self


class Closing:
    """Mix-in for objects with a `close()`: the with-statement, and `__del__` as a last resort.

    The predecessor's API promises a ``__del__`` that closes; code here uses ``with``.
    """

    def close(self) -> None:
        """Release resources. Idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __del__(self) -> None:
        # the object may be half-built, or the interpreter shutting down: an error helps nobody
        with contextlib.suppress(AttributeError, TypeError, ImportError):
            self.close()
