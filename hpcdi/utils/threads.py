"""Background threads: daemons whose errors are not lost. Only this file starts threads.

They are daemons because a live ordinary thread keeps the interpreter, and so the whole MPI job,
from ending after an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundThread:
    """Runs a function on a thread of its own; what it raises is kept for whoever asks.

    Args:
        target: the function.
        name: of the thread, for stack dumps.
        on_failure: called on the thread after `target` has raised.
    """

    def __init__(
        self, target: Callable[[], None], name: str, on_failure: Callable[[], None] | None = None
    ) -> None:
        self._target, self._on_failure = target, on_failure
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise, once, what ended the function."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def join(self) -> None:
        """Wait for the function to end; from within it: do nothing."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether the function is still running."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._target()
        except BaseException as error:  # raised where `check` is called
            self._failure = error
            if self._on_failure is not None:
                self._on_failure()
