"""A stage of the rehearsal in a process of its own: environments may exit, crash or hang."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from hpcdi.commands.rehearse.facts import Stage
from hpcdi.env.base import EnvFailure
from hpcdi.env.child_process import variables_of_a_child
from hpcdi.errors import ConfigError, HpcdiError

S = TypeVar("S", bound=Stage)
Tell = Callable[[Stage], None]
"""Told what is known so far."""
_EXIT_S = 10.0


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


def _end_of(process: Any) -> str:
    process.join(_EXIT_S)
    code = process.exitcode
    if code is None:
        return "closed its pipe"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
