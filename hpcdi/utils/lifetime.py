"""Objects that are closed once."""

from __future__ import annotations

import contextlib
import sys
from typing import Self


class Closing:
    """Mix-in for objects with a `close()`: the with-statement, and `__del__` as a last resort.

    The predecessor's API promises a ``__del__`` that closes; code here uses ``with``. What is alive
    when the interpreter shuts down is left to the system: no thread begins or ends any more, and
    whoever waits for one, as TensorBoard's writers do, waits for ever.
    """

    def close(self) -> None:
        """Release resources. Idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __del__(self) -> None:
        # the object may be half-built, or a module gone already: an error helps nobody
        with contextlib.suppress(AttributeError, TypeError, ImportError):
            if not sys.is_finalizing():
                self.close()
