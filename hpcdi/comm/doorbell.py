"""A doorbell: wakes a process of this node that waits for a message without using its core.

It is a pipe. Whoever is told its name and inode opens it by Linux's ``/proc``, so that no file is
left behind, and nobody rings at a process of the same number in another container. A bell is no
message: it may come before the message, late, or get lost, so that whoever waits looks again.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import Self

from hpcdi.utils.backoff import Backoff
from hpcdi.utils.lifetime import Closing

_MOST = 4096
"""Bells that are heard at once."""
_SPIN_S = 50e-6
_RUNG_S = 200e-6
"""Probes after a bell, which may overtake its message."""
_POLL_S, _IDLE_POLL_S = 2e-3, 20e-3
"""Longest sleeps for a bell, which may get lost: at first, and after `_IDLE_S`."""
_IDLE_S = 1.0
_NAP_S, _LONGEST_NAP_S = 50e-6, 1e-3
_PATIENCE_S = 50e-3
"""Naps grow after it: what takes longer may be noticed later."""


class Doorbell(Closing):
    """This process's own; `lines` tells others of it."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)

    def lines(self) -> dict[str, str]:
        """Returns its name and inode, as `Ringer.of` takes them."""
        return {
            "bell": f"/proc/{os.getpid()}/fd/{self._read}",
            "inode": str(os.fstat(self._read).st_ino),
        }

    def wait(self, timeout: float) -> bool:
        """Sleep until it rings, at most so many seconds (whole ms); returns whether it has."""
        return bool(self._poll.poll(max(0.0, 1e3 * timeout)))

    def ring(self) -> None:
        """Wake this process's own thread that waits."""
        _ring(self._write)

    def hear(self) -> int:
        """Returns how often it has rung since the last call."""
        if not self._poll.poll(0):  # cheaper than an exception of os.read
            return 0
        with contextlib.suppress(BlockingIOError):
            return len(os.read(self._read, _MOST))
        return 0

    def close(self) -> None:
        """Close it. Idempotent."""
        ends, self._read, self._write = (self._read, self._write), -1, -1
        for end in ends:
            if end >= 0:
                os.close(end)


class Ringer(Closing):
    """Another process's doorbell, to be rung."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def of(cls, name: str, inode: str) -> Self | None:
        """Returns the doorbell of this name; None: it is not on this node, or in no sight."""
        try:
            descriptor = os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        if str(os.fstat(descriptor).st_ino) != inode:
            os.close(descriptor)
            return None
        return cls(descriptor)

    def ring(self) -> None:
        """Wake the process; does nothing where it is gone, or has many bells to hear."""
        _ring(self._descriptor)

    def close(self) -> None:
        """Close it. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _ring(descriptor: int) -> None:
    """Ring, unless the bell is closed, its process gone, or has many bells to hear."""
    if descriptor < 0:
        return
    try:  # not by contextlib.suppress: this is done for each message
        os.write(descriptor, b"!")
    except (BlockingIOError, BrokenPipeError):
        return


class Waiting:
    """How a loop spends its time that probes for a message: it spins, then sleeps.

    Args:
        bell: this process's; None: there is none.
        spins: False: it sleeps at once.
    """

    def __init__(self, bell: Doorbell | None, *, spins: bool = True) -> None:
        self._bell, self._began = bell, time.monotonic()
        self._spins_until = self._began + (_SPIN_S if spins else 0.0)
        self._short, self._growing = Backoff(_NAP_S, _NAP_S), Backoff(_NAP_S, _LONGEST_NAP_S)

    def pause(self, *, rings: bool, at_most_s: float = float("inf")) -> None:
        """Return at once, or sleep.

        Args:
            rings: whether the bell is rung for all that is waited for; else it naps.
            at_most_s: longest sleep.
        """
        now = time.monotonic()
        if now < self._spins_until:
            return
        waited_s = now - self._began
        if rings and self._bell is not None:
            self._bell.wait(min(_POLL_S if waited_s < _IDLE_S else _IDLE_POLL_S, at_most_s))
            if self._bell.hear():
                self._spins_until = time.monotonic() + _RUNG_S
        else:
            (self._short if waited_s < _PATIENCE_S else self._growing).nap(at_most_s)
