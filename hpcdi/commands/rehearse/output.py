"""What environments print, and what a run would warn of, kept from the terminal."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, Self

from hpcdi.commands.rehearse.facts import Printed
from hpcdi.utils.console import redirected
from hpcdi.utils.log import LOGGER

_SHOWN = 200  # characters of a line


class Output:
    """``with Output() as output:`` what is printed, by Python or in C, goes to a file."""

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        self._file: Any = self._stack.enter_context(tempfile.TemporaryFile())
        self._stack.enter_context(redirected(self._file.fileno(), 1, 2))
        text = self._stack.enter_context(
            open(os.dup(self._file.fileno()), "w", buffering=1, errors="replace")  # noqa: PTH123
        )
        self._stack.enter_context(contextlib.redirect_stdout(text))
        self._stack.enter_context(contextlib.redirect_stderr(text))
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def since(self, before: Printed | None = None) -> Printed:
        """Returns what was printed so far, after `before`; one that has no end is a line, too."""
        first = 0 if before is None else before.ends
        text = self._text()
        lines = text[first:].splitlines()
        shown = next((line.decode(errors="replace") for line in lines if line.strip()), "")
        return Printed(len(lines), len(text) - first, shown[:_SHOWN], len(text))

    def _text(self) -> bytes:
        sys.stdout.flush()
        descriptor = self._file.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


class _Collected(logging.Handler):
    def __init__(self, texts: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._texts, self._kinds = texts, set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        kind = str(getattr(record, "once", record.getMessage()))
        if kind not in self._kinds:
            self._kinds.add(kind)
            self._texts.append(record.getMessage())


@contextlib.contextmanager
def warnings_in(texts: list[str]) -> Iterator[None]:
    """Adds warnings of hpcdi to `texts`, of like ones the first, in place of showing them."""
    handler, propagates = _Collected(texts), LOGGER.propagate
    LOGGER.addHandler(handler)
    LOGGER.propagate = False
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.propagate = propagates
