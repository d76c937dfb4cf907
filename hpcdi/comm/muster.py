"""Ranks that wait for each other with a limit, and say for whom they wait.

For programs that look whether the machine is in order: there a rank that does not come is a result,
not an accident.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from hpcdi.comm.wire import pack, unpack
from hpcdi.utils.backoff import Backoff
from hpcdi.utils.watchdog import Watch

T = TypeVar("T")
R = TypeVar("R")


class Muster:
    """Ranks report to rank 0, which answers them all; nobody blocks in MPI while it waits.

    Args:
        comm: communicator of all ranks; a duplicate is taken (collective).
        watch: told for whom this rank waits.
        name: how missing ranks are called.
    """

    def __init__(self, comm: MPI.Intracomm, watch: Watch, name: Callable[[list[int]], str]) -> None:
        self._comm = comm.Dup()
        self._watch, self._name = watch, name
        self._round = 0

    def gather(self, value: T, answer: Callable[[list[T]], R]) -> R:
        """What rank 0 makes of everybody's `value`, on every rank (collective).

        Args:
            value: this rank's report.
            answer: called on rank 0 with the reports in the order of ranks.
        """
        self._round += 1
        if self._comm.rank:
            self._watch.rest()
            packed = pack(value)
            sending = self._comm.Isend([packed, MPI.BYTE], 0, self._round)
            answered: R = self._next()[1]
            sending.Wait()
            return answered
        reports = {0: value}
        while missing := [rank for rank in range(self._comm.size) if rank not in reports]:
            self._watch.wait_for(self._name(missing))
            rank, report = self._next()
            reports[rank] = report
        made = answer([reports[rank] for rank in range(self._comm.size)])
        packed = pack(made)
        for sending in [
            self._comm.Isend([packed, MPI.BYTE], rank, self._round)
            for rank in range(1, self._comm.size)
        ]:
            sending.Wait()
        return made

    def _next(self) -> tuple[int, Any]:
        """Source and content of the next message of this round."""
        backoff = Backoff(longest_s=10e-3)
        status = MPI.Status()
        while True:
            message = self._comm.Improbe(MPI.ANY_SOURCE, self._round, status)
            if message is not None:
                packed = np.empty(status.Get_count(MPI.BYTE), np.uint8)
                message.Recv([packed, MPI.BYTE])
                return status.Get_source(), unpack(packed)
            backoff.nap()
