"""The communicator by which a collector speaks with a solver that is not changed.

Such a program couples itself to a controller by MPI, and finds the collector as rank 0 of what it
takes for its world. The class that stands in for the controller calls MPI as it would anywhere:
here every wait of it ends, by a time-out, a rank's death, or the program's end. Importing this
starts MPI.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Literal

from mpi4py import MPI

from hpcdi.comm.doorbell import Waiting
from hpcdi.comm.solver_protocol import SolverLost
from hpcdi.utils.backoff import probed
from hpcdi.utils.watchdog import WAITING

_LOOK_S = 20e-3
"""From one look at the group to the next."""
_LAST_S = 2.0
"""For what the program's other ranks send as it ends."""


class CoupledComm(MPI.Intracomm):
    """The solver's ranks from 1 on, after this process; blocking calls end at `deadline`."""

    deadline = math.inf
    """By `time.monotonic`."""
    has_ended: Callable[[], bool] = staticmethod(lambda: False)
    """Returns whether the program has; raises `SolverLost` where the group is lost."""
    _looked_s, _over_s = 0.0, math.inf

    def Get_attr(self, keyval: int) -> Any:
        """Of MPI's own attributes: this program's number among the job's is 0."""
        return 0 if keyval == MPI.APPNUM else super().Get_attr(keyval)

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """See MPI_Send."""
        self._wait(self.Isend(buf, dest, tag))

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """See MPI_Ssend."""
        self._wait(self.Issend(buf, dest, tag))

    def Recv(
        self,
        buf: Any,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        """See MPI_Recv."""
        self._wait(self.Irecv(buf, source, tag), status)

    def Probe(
        self,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Literal[True]:
        """See MPI_Probe."""
        waiting = self._begun()
        while not self.Iprobe(source, tag, status):
            self._pause(waiting)
        return True

    def _wait(self, request: MPI.Request, status: MPI.Status | None = None) -> None:
        waiting = self._begun()
        while probed(lambda: request.Test(status) or None) is None:
            self._pause(waiting)

    def _begun(self) -> Waiting:
        self._over_s = math.inf
        return Waiting(None)

    def _pause(self, waiting: Waiting) -> None:
        now = time.monotonic()
        if now > self.deadline:
            raise SolverLost("it did not answer in time")
        if now > self._over_s:
            raise SolverLost("its program has ended")
        if now - self._looked_s > _LOOK_S:
            self._looked_s = now
            if self.has_ended():
                self._over_s = min(self._over_s, now + _LAST_S)
        with WAITING:  # for which `deadline` is the limit
            waiting.pause(rings=False)
