"""Ranks that die while the others go on: MPI's User Level Failure Mitigation (ULFM).

Open MPI 5 has it, under ``mpirun --with-ft ulfm``. A rank that is killed by a signal is known to
all others within milliseconds: their next probe raises. One that leaves by ``_exit`` without
MPI_Finalize is not noticed, so hpcdi's own ranks always go by a signal (`failure.die_alone`).
Without ULFM nothing here is ever called: the launcher ends the job when a rank dies.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from mpi4py import MPI

_CLASSES = {
    getattr(MPI, name)
    for name in ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED", "ERR_IN_STATUS")
    if hasattr(MPI, name)
}


class FailureWatch:
    """Which ranks of a communicator have died.

    Args:
        comm: the communicator; its errors must be returned, as mpi4py has it.

    Attributes:
        lost: ranks that have died.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self.lost: set[int] = set()
        self._comm = comm
        self._new: list[int] = []
        self._graves: list[Any] = []  # memory that MPI may still look at: requests of the dead

    def learn_from(self, error: MPI.Exception) -> None:
        """A call has failed because a rank has died.

        All that have died are acknowledged: probing for any source works again.

        Raises:
            MPI.Exception: the error is of another kind.
        """
        if error.Get_error_class() not in _CLASSES:
            raise error
        failed, group = self._comm.Get_failed(), self._comm.Get_group()
        ranks = set(MPI.Group.Translate_ranks(failed, list(range(failed.Get_size())), group))
        self._comm.Ack_failed(failed.Get_size())
        failed.Free()
        group.Free()
        self._new += sorted(ranks - self.lost)
        self.lost |= ranks

    def take_new(self) -> list[int]:
        """Ranks that have died since the last call."""
        new, self._new = self._new, []
        return new

    def bury(self, waiting: deque[Any]) -> None:
        """What was under way to or from a dead rank will never come."""
        self._graves += waiting
        waiting.clear()
