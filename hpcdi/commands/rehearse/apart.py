"""A stage of the rehearsal in a process of its own, whose output is kept from the terminal.

Environments may exit, crash, hang, print and warn.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Self, TypeVar

from hpcdi.commands.rehearse.facts import Printed, Stage
from hpcdi.env.arguments import OWN_PROCESS
from hpcdi.env.base import EnvFailure
from hpcdi.env.child_process import variables_of_a_child
from hpcdi.errors import ConfigError, HpcdiError
from hpcdi.utils.console import redirected
from hpcdi.utils.log import LOGGER

S = TypeVar("S", bound=Stage)
Tell = Callable[[Stage], None]
"""Told what is known so far."""
_EXIT_S = 10.0
_SHOWN = 200  # characters of a line that was printed


def apart(stage: Callable[..., None], facts: S, *arguments: Any, limit_s: float) -> S:
    """Run a stage in a new process; returns what it has measured, also where it dies.

    Args:
        stage: a function of a module, called with `facts`, which it fills, the arguments, and
            ``tell``, to be called before what may take long.
        facts: empty ones.
        arguments: of the stage.
        limit_s: seconds after which it is killed, for each thing that it tells of.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=_child, args=(theirs, stage, facts, arguments), name="hpcdi-rehearsal"
    )
    deadline = time.monotonic() + limit_s
    try:
        with variables_of_a_child():
            process.start()
        theirs.close()
        while ours.poll(max(0.0, deadline - time.monotonic())):
            try:
                facts, is_over = ours.recv()
            except EOFError:
                facts.trouble = f"its process {_end_of(process)} while {facts.doing}"
                return facts
            if is_over:
                return facts
            deadline = time.monotonic() + limit_s
        facts.trouble = f"it was not over after {limit_s:.0f} s, while {facts.doing}"
        return facts
    finally:
        ours.close()
        process.join(0.0 if time.monotonic() >= deadline else _EXIT_S)
        process.kill()
        process.join()
        process.close()


def _child(
    connection: Connection, stage: Callable[..., None], facts: Stage, arguments: tuple[Any, ...]
) -> None:
    OWN_PROCESS.append(os.getpid())
    run_stage(stage, facts, *arguments, tell=lambda known: connection.send((known, False)))
    connection.send((facts, True))
    connection.close()
    os._exit(0)  # whatever threads or handlers of the environment's would have it wait


def run_stage(
    stage: Callable[..., None], facts: Stage, *arguments: Any, tell: Tell = lambda _: None
) -> None:
    """Run a stage; what ends it early is its trouble."""
    try:
        stage(facts, *arguments, tell=tell)
    except ConfigError as error:  # all problems, in one line
        facts.trouble = " ".join(str(error).split())
    except HpcdiError as error:
        facts.trouble = str(error).partition("\n")[0]
    except BaseException as error:  # whatever an environment raises
        facts.trouble = EnvFailure.of(error).cause


def _end_of(process: BaseProcess) -> str:
    """Returns how a process has ended, as a part of a message."""
    process.join(_EXIT_S)
    code = process.exitcode
    if code is None:
        return "closed its pipe"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


# ----------------------------------------------------------------------------- what it prints


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
        sys.stdout.flush()
        descriptor = self._file.fileno()
        text = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        lines = text[first:].splitlines()
        shown = next((line.decode(errors="replace") for line in lines if line.strip()), "")
        return Printed(len(lines), len(text) - first, shown[:_SHOWN], len(text))


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
