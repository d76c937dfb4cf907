"""One rank of a solver in Python: an environment that is an MPI program; see `solver_protocol`.

``hpcdi/env/mpi/native/hpcdi.c`` is the same for compiled ones. Importing this starts MPI.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
from collections.abc import Mapping
from typing import NoReturn, Self

from mpi4py import MPI

from hpcdi.comm.doorbell import Doorbell, Ringer, Waiting
from hpcdi.comm.failure import die_alone
from hpcdi.comm.solver_group import Receiving
from hpcdi.comm.solver_protocol import (
    ANSWER_TAG,
    ASSIGN_TAG,
    LAST_LINE,
    ORDER_TAG,
    SPACES_DIFFER,
    WORLD_TAG,
    Kind,
    Sizes,
    SolverMessage,
    SolverPlace,
    lines_of_numbers,
    pack,
    ranks_of,
)
from hpcdi.comm.world import communicator
from hpcdi.errors import EnvError
from hpcdi.types import Array
from hpcdi.utils.backoff import probed
from hpcdi.utils.host import is_crowded

if not MPI.Is_initialized():  # the class's module has imported it, when nothing was to start it
    MPI.Init_thread(MPI.THREAD_MULTIPLE)


class NotNeeded(Exception):
    """The job is over, and this rank has had nothing to do."""


class SolverRank:
    """One rank of a solver's group.

    Args:
        place: which ranks the group has.
        sizes: numbers in its observations and actions.
        bell: this process's.

    Attributes:
        environment: its number in the job.
        comm: of the group's ranks alone.
    """

    def __init__(self, place: SolverPlace, sizes: Sizes, bell: Doorbell) -> None:
        self._world, self._bell, self._rings = MPI.COMM_WORLD, bell, True
        self._sending = MPI.REQUEST_NULL
        self._held = b""
        self._spins = not is_crowded()
        self._number, self._has_dropped = 0, False
        self.environment = place.environment
        lines: dict[str, str] = {
            "pid": str(os.getpid()),
            "host": platform.node(),
            **bell.lines(),
            "observations": str(sizes.observations),
            "actions": str(sizes.actions),
            "spaces": sizes.spaces,
        }
        hello = SolverMessage(Kind.HELLO, lines=lines)
        self._send(self._world, place.collector, WORLD_TAG, hello)
        told = self._wait(Receiving(self._world, place.collector, WORLD_TAG, 0, is_single=True))
        if told.kind is Kind.END:
            raise NotNeeded
        go = told.lines
        _check(go, sizes)
        self._rings = go["rings"] == "1"
        self._collector = Ringer.of(go["bell"], go["inode"]) if "bell" in go else None
        from_group, tag = go["from_group"] == "1", 2 * place.environment
        pair = [place.collector, *place.ranks]
        self._pair = communicator(self._world, pair, tag + 1, from_group=from_group)
        self.comm = communicator(self._world, place.ranks, tag + 2, from_group=from_group)
        self._orders = Receiving(self._pair, 0, ORDER_TAG, sizes.actions)

    @classmethod
    def join(cls, place: SolverPlace, sizes: Sizes) -> Self:
        """Join the collector, when it is ready; as a spare rank, when that is needed.

        Raises:
            NotNeeded: it never was.
            EnvError: the collector expects other sizes.
        """
        bell = Doorbell()
        if place.assigner is not None:
            receiving = Receiving(MPI.COMM_WORLD, place.assigner, ASSIGN_TAG, 0, is_single=True)
            waiting = Waiting(bell)
            while (message := probed(receiving.take)) is None:
                waiting.pause(rings=False)
            if message.kind is not Kind.ASSIGN:
                raise NotNeeded
            told = message.lines
            ranks, collector = ranks_of(told["ranks"]), int(told["collector"])
            place = SolverPlace(int(told["environment"]), ranks, collector)
        return cls(place, sizes, bell)

    def receive(self) -> SolverMessage:
        """Wait, on all ranks, for the next order: RESET, STEP or END.

        Raises:
            EnvError: the collector has given the group up.
        """
        message = self._wait(self._orders)
        self._number = message.number
        if message.kind is Kind.END:
            self._orders.cancel()
        if message.kind is Kind.ABANDON:
            raise EnvError(f"hpcdi gives this group up: {message.lines.get('reason')}")
        return message

    def answer(
        self,
        observation: Array,
        reward: float = 0.0,
        *,
        terminated: bool = False,
        truncated: bool = False,
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        """Answer the order; called by the group's rank 0 alone.

        Args:
            observation: float64 [n].
            reward: of the step.
            terminated: the task has ended.
            truncated: the episode was cut.
            numbers: of its info.
        """
        lines, dropped = lines_of_numbers(numbers or {})
        if dropped and not self._has_dropped:
            self._has_dropped = True
            os.write(
                2,
                f"hpcdi: {dropped} numbers of an info find no room and are left out; there "
                "is no more word of it\n".encode(),
            )
        answer = SolverMessage(
            Kind.OBSERVATION, self._number, 0, observation, reward, terminated, truncated, lines
        )
        self._send(self._pair, 0, ANSWER_TAG, answer)

    def _send(self, comm: MPI.Intracomm, rank: int, tag: int, message: SolverMessage) -> None:
        self._sending.Wait()  # of the last message, which was received
        self._held = pack(message)
        self._sending = comm.Isend([self._held, MPI.BYTE], rank, tag)
        if tag == ANSWER_TAG and self._collector is not None:
            self._collector.ring()

    def _wait(self, receiving: Receiving) -> SolverMessage:
        """Wait for a message, with little use of the core."""
        waiting = Waiting(self._bell, spins=self._spins)
        while (message := probed(receiving.take)) is None:
            # a large answer that is on its way needs more turns of MPI's progress
            waiting.pause(rings=self._rings and self._sending.Test())
        self._bell.hear()
        return message


def _check(go: Mapping[str, str], own: Sizes) -> None:
    for what in ("observations", "actions"):
        if int(go[what]) not in (-1, getattr(own, what)):
            raise EnvError(
                f"this solver has {getattr(own, what)} {what}, and the experiment's configuration "
                f"says {go[what]}"
            )
    if go["spaces"] not in ("", own.spaces):
        raise EnvError(SPACES_DIFFER)


def die_if_it_aborts() -> None:
    """Have this rank die where it calls `Abort`, of whatever communicator.

    MPI's own call may end the job, or nothing. No type of mpi4py's can be changed but by what lies
    below it: a class that inherits has its method in communicators that hpcdi has made alone.
    """

    def abort(_comm: MPI.Comm, errorcode: int = 0) -> NoReturn:
        die(f"it calls Abort with code {errorcode}")

    (methods,) = gc.get_referents(MPI.Comm.__dict__)
    methods["Abort"] = abort
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(MPI.Comm))


def die(why: str) -> NoReturn:
    """Say why on standard error, then end this rank by a signal: so the others see its death."""
    os.write(2, f"{LAST_LINE}{why}\n".encode())
    die_alone()
    raise AssertionError("not reached")
