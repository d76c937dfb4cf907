"""Where an environment lives: in this process (`LocalSeat`), or in a child of it (`ChildSeat`).

A seat is asked for something, and answers later; environments in child processes work at the same
time when all are asked before the first has to answer::

    for seat in seats: seat.ask(command)
    for seat in seats: seat.answer()
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Protocol

from hpcdi.env.board import Board, Layout
from hpcdi.env.runner import Command, ObjectRunner, Runner
from hpcdi.errors import ConfigError


class EnvFailure(Exception):
    """An environment failed; a pool handles it.

    Args:
        cause: one line.
        detail: the traceback, where there is one.
        is_gone: whether the environment must be made anew.
    """

    def __init__(self, cause: str, detail: str = "", is_gone: bool = False) -> None:
        super().__init__(cause)
        self.cause, self.detail, self.is_gone = cause, detail, is_gone

    @classmethod
    def of(cls, error: BaseException) -> EnvFailure:
        """The failure that an exception of the environment is."""
        lines = traceback.format_exception(error)
        return cls(_one_line(error), "".join(lines).rstrip())


def _one_line(error: BaseException) -> str:
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Memory(Protocol):
    """Makes the board that the seats of one pool share."""

    def board(self) -> Board:
        """Its arrays."""
        ...

    def close(self) -> None:
        """Release it."""
        ...


class LocalMemory:
    """A board of this process."""

    def __init__(self, layout: Layout) -> None:
        self._board = Board.local(layout)

    def board(self) -> Board:
        """Its arrays."""
        return self._board

    def close(self) -> None:
        """Nothing to release."""


class Seat(Protocol):
    """One environment, which does one command after the other."""

    def ask(self, command: Command) -> None:
        """Begin a command; a failure shows in `answer`."""
        ...

    def answer(self) -> Any:
        """What the command gave.

        Raises:
            EnvFailure: it failed, or took too long.
        """
        ...

    def attach(self, memory: Any, row: int) -> None:
        """Use a row of a board."""
        ...

    def retire(self) -> None:
        """The environment is not used any more; it has failed too often to be waited for."""
        ...

    def begin_close(self) -> None:
        """Ask the environment to close."""
        ...

    def close(self, patience_s: float) -> None:
        """See to it that it is closed within `patience_s`."""
        ...


class LocalSeat:
    """An environment in this process; it does a command when it is asked.

    Args:
        make: makes the environment.
        takes_objects: whether it is a battle environment.
    """

    def __init__(self, make: Callable[[], Any], *, takes_objects: bool) -> None:
        runner_cls = ObjectRunner if takes_objects else Runner
        self._runner = runner_cls(make, lambda: None)
        self._answer: Any = None
        self._failure: EnvFailure | None = None

    def ask(self, command: Command) -> None:
        """See `Seat.ask`."""
        try:
            self._answer = getattr(self._runner, command[0])(*command[1:])
        except ConfigError:  # no other try would help
            raise
        except Exception as error:  # whatever an environment raises is its failure
            self._failure = EnvFailure.of(error)
            self._failure.__cause__ = error

    def answer(self) -> Any:
        """See `Seat.answer`."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return self._answer

    def attach(self, memory: LocalMemory, row: int) -> None:
        """See `Seat.attach`."""
        self._runner.attach(memory.board(), row)

    def retire(self) -> None:
        """See `Seat.retire`; what it raises as it closes is one more failure of it."""
        self.ask(("shut",))
        self._failure = None

    def begin_close(self) -> None:
        """Nothing happens before `close`."""

    def close(self, _patience_s: float) -> None:
        """Close the environment."""
        self._runner.shut()
