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
from typing import Any, Literal, Self, TypeVar

from mpi4py import MPI

from hpcdi.comm.doorbell import Waiting
from hpcdi.comm.solver_protocol import SolverLost
from hpcdi.utils.backoff import probed
from hpcdi.utils.watchdog import WAITING

T = TypeVar("T")
_LOOK_S = 20e-3
"""From one look at the group to the next."""
_LAST_S = 2.0
"""For what the program's other ranks send as it ends."""


class CoupledComm(MPI.Intracomm):
    """The solver's ranks from 1 on, after this process; its messages end at `deadline`.

    So do those of its copies and parts, but one of `Idup`; in collective calls and waits for
    requests nothing can be looked at.
    """

    deadline = math.inf
    """By `time.monotonic`."""
    has_ended: Callable[[], bool] = staticmethod(lambda: False)
    """Returns whether the program has; raises `SolverLost` where the group is lost."""
    _looked_s, _over_s = 0.0, math.inf
    _of: CoupledComm | None = None  # what this was made of

    def Get_attr(self, keyval: int) -> Any:
        """Of MPI's own attributes: this program's number among the job's is 0."""
        return 0 if keyval == MPI.APPNUM else super().Get_attr(keyval)

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """See MPI_Send."""
        self._wait(self.Isend(buf, dest, tag))

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """See MPI_Ssend."""
        self._wait(self.Issend(buf, dest, tag))

    def Rsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """See MPI_Rsend."""
        self._wait(self.Irsend(buf, dest, tag))

    def Recv(
        self,
        buf: Any,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        """See MPI_Recv."""
        self._wait(self.Irecv(buf, source, tag), status)

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        """See MPI_Sendrecv."""
        receiving = self.Irecv(recvbuf, source, recvtag)
        self.Send(sendbuf, dest, sendtag)
        self._wait(receiving, status)

    def Probe(
        self,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Literal[True]:
        """See MPI_Probe."""
        self._until(lambda: self.Iprobe(source, tag, status) or None)
        return True

    def Mprobe(
        self,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> MPI.Message:
        """See MPI_Mprobe."""
        return self._until(lambda: self.Improbe(source, tag, status))

    # ---- messages of mpi4py's: any object; the class and its program read each other's pickles

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object."""
        self._wait(self.Isend(_as_bytes(obj), dest, tag))

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object, and wait until it is being received."""
        self._wait(self.Issend(_as_bytes(obj), dest, tag))

    def recv(
        self,
        buf: Any = None,  # noqa: ARG002 (mpi4py's signature)
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        """Returns an object that was sent; `buf` is not needed."""
        request = self.mprobe(source, tag).irecv()

        def received() -> tuple[bool, Any] | None:
            tested = request.test(status)
            return tested if tested[0] else None

        return self._until(received)[1]

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        """Send an object, and return one that was sent."""
        sending = self.Isend(_as_bytes(sendobj), dest, sendtag)
        received = self.recv(recvbuf, source, recvtag, status)
        self._wait(sending)
        return received

    def mprobe(
        self,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> MPI.Message:
        """Returns the message that has an object."""
        return self._until(lambda: self.improbe(source, tag, status))

    probe = Probe

    # ---- communicators

    def Dup(self, info: MPI.Info | None = None) -> Self:
        """See MPI_Comm_dup."""
        return self._made(super().Dup(info))

    def Dup_with_info(self, info: MPI.Info) -> Self:
        """See MPI_Comm_dup_with_info."""
        return self._made(super().Dup_with_info(info))

    def Clone(self) -> Self:
        """See MPI_Comm_dup; it has no attributes."""
        return self._made(super().Clone())

    def Split(self, color: int = 0, key: int = 0) -> Self:
        """See MPI_Comm_split."""
        return self._made(super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Self:
        """See MPI_Comm_split_type."""
        return self._made(super().Split_type(split_type, key, info))

    def Create(self, group: MPI.Group) -> Self:
        """See MPI_Comm_create."""
        return self._made(super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Self:
        """See MPI_Comm_create_group."""
        return self._made(super().Create_group(group, tag))

    def _made(self, comm: MPI.Comm) -> Self:
        made = type(self)(comm)
        made._of = self._of or self
        return made

    def _wait(self, request: MPI.Request, status: MPI.Status | None = None) -> None:
        self._until(lambda: probed(lambda: request.Test(status) or None))

    def _until(self, look: Callable[[], T | None]) -> T:
        """Returns what is seen as soon as it is."""
        self._over_s, waiting = math.inf, Waiting(None)
        while (seen := look()) is None:
            self._pause(waiting)
        return seen

    def _pause(self, waiting: Waiting) -> None:
        now, whole = time.monotonic(), self._of or self
        if now > whole.deadline:
            raise SolverLost("it did not answer in time")
        if now > self._over_s:
            raise SolverLost("its program has ended")
        if now - self._looked_s > _LOOK_S:
            self._looked_s = now
            if whole.has_ended():
                self._over_s = min(self._over_s, now + _LAST_S)
        with WAITING:  # for which `deadline` is the limit
            waiting.pause(rings=False)


def _as_bytes(obj: Any) -> tuple[bytes, MPI.Datatype]:
    """Returns an object as mpi4py sends it."""
    return MPI.pickle.dumps(obj), MPI.BYTE
