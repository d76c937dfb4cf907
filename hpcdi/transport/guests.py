"""Guests: collectors that are no ranks of the job, by the run folder that both see.

A guest has a rank all the same, which no one has had before and no one will have after it. By it
rank 0 knows it as it knows a rank, its blocks lie where those of a rank would, and its number is in
the names of all that it makes. Two links, one at each end, carry the messages in files::

    guest    GuestLink ──to_run.000001──►   GuestHost ──► coordinator (rank 0)
                       ◄─to_guest.000001──            ◄──
                       ◄─policies/latest.safetensors   what it asks a learner for
                       ──beat──►                        each second; too long none: it is lost

A guest writes as long as its folder is there. Rank 0 moves that away before it counts what a lost
guest has left: nothing can come after that, be it from one that was only frozen.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from hpcdi.comm.failure import abort_job
from hpcdi.comm.link import Link
from hpcdi.comm.messages import (
    Goodbye,
    Leave,
    Message,
    PolicyRequest,
    PolicyUpdate,
    RankLost,
    Stop,
    StopRequest,
    WorkerFailed,
    WorkerReady,
)
from hpcdi.dataclass import dataclass
from hpcdi.errors import EXIT_REQUEUE, CommError
from hpcdi.store.atomic import TEMPORARY_MARK
from hpcdi.store.files import names_in, open_descriptor, open_file
from hpcdi.store.layout import RunLayout, rank_name
from hpcdi.transport.mailbox import Inbox, Outbox
from hpcdi.types import is_guest
from hpcdi.utils.backoff import Backoff
from hpcdi.utils.log import LOGGER

TO_RUN, TO_GUEST, BEAT = "to_run", "to_guest", "beat"
_BEAT = struct.Struct("<Q")  # a number that rises
_BEAT_S = 1.0
"""Seconds between two heart-beats, and between two looks at them."""
_LOOK_S = 0.1
"""Seconds between two looks for messages."""
_STOP_S = 5.0
"""A guest that was ordered to end, and whose heart-beat fails for so long, is lost."""
RUN_SILENT_S = 60.0
"""A guest ends by itself where rank 0 has said nothing for so long."""

Answer = Callable[[int, PolicyRequest], PolicyUpdate | None]
"""Answers a request to a learner of that rank; None: there is no newer policy yet."""


@dataclass
class _Guest:
    """One guest, as rank 0's link knows it.

    Attributes:
        folder: folder of its messages.
        inbox: messages from it.
        outbox: messages to it.
        beat_at: when its heart-beat last changed.
        patience_s: seconds without a change after which it is lost.
        beat: what its heart-beat said last.
        has_come: it has said that it is ready.
    """

    folder: Path
    inbox: Inbox
    outbox: Outbox
    beat_at: float
    patience_s: float
    beat: bytes = b""
    has_come: bool = False

    def admits(self, message: Message) -> bool:
        """Returns whether to hand a message to rank 0: from the guest's `WorkerReady` on."""
        self.has_come |= isinstance(message, WorkerReady) and message.role == "collector"
        return self.has_come


class GuestHost:
    """Rank 0's link, which carries messages of guests beside those of ranks; see `Link`.

    Args:
        link: to the ranks.
        layout: the run folder.
        timeout_s: without a heart-beat, after which a guest is lost.

    Raises:
        OSError: the folder of messages cannot be made.
    """

    def __init__(self, link: Link, layout: RunLayout, timeout_s: float) -> None:
        self._link, self._folder, self._timeout_s = link, layout.guests_dir, timeout_s
        self.rank, self.size, self.wake = link.rank, link.size, link.wake
        self._welcome = layout.welcome_file
        self._guests: dict[int, _Guest] = {}
        self._known: set[int] = set()  # all that have come: none comes twice, if its folder stays
        self._look_at = self._beats_due_at = float("-inf")
        self._last_messages: list[tuple[int, Message]] = []  # of guests that were sent away
        self._folder.mkdir()

    @property
    def ranks_may_die(self) -> bool:
        """See `Link`."""
        return self._link.ranks_may_die

    def send(self, rank: int, message: Message) -> None:
        """See `Link.send`; messages to guests that are gone are dropped."""
        if isinstance(message, Stop):  # nobody shall come any more
            with contextlib.suppress(OSError):  # gone already; or `close` removes its folder
                self._welcome.unlink()
        if not is_guest(rank):
            self._link.send(rank, message)
            return
        guest = self._guests.get(rank)
        if guest is None:
            return
        if isinstance(message, Leave):  # it has not said goodbye: the run ends without it
            self._last_messages += self._lose(rank, guest)
            return
        if isinstance(message, Stop):
            guest.patience_s = min(guest.patience_s, _STOP_S)
        guest.outbox.post(message)
        with contextlib.suppress(FileNotFoundError):
            guest.outbox.flush()

    def receive(self, timeout_s: float) -> list[tuple[int, Message]]:
        """See `Link.receive`."""
        arrived, now = self._link.receive(timeout_s), time.monotonic()
        arrived, self._last_messages = [*arrived, *self._last_messages], []
        return [*arrived, *self._look(now)] if now >= self._look_at else arrived

    def unsent(self) -> list[int]:
        """See `Link.unsent`."""
        return self._link.unsent()

    def close(self) -> None:
        """Let no guest write any more. Idempotent."""
        self._guests.clear()
        _remove(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _look(self, now: float) -> list[tuple[int, Message]]:
        self._look_at = now + _LOOK_S
        are_beats_due = now >= self._beats_due_at
        if are_beats_due:
            self._beats_due_at = now + _BEAT_S
            self._find_new_guests(now)
        arrived: list[tuple[int, Message]] = []
        for rank, guest in list(self._guests.items()):
            arrived += self._read(rank, guest)
            if rank in self._guests and are_beats_due:
                arrived += self._check_beat(rank, guest, now)
        return arrived

    def _find_new_guests(self, now: float) -> None:
        """Note the guests whose folders are new."""
        folders = list[Path]()
        with contextlib.suppress(OSError):  # the file system is away: the next look finds them
            names = names_in(self._folder)
            folders = [self._folder / name for name in names if name.startswith("rank")]
        for folder in folders:
            number = folder.name.removeprefix("rank")
            if number.isdecimal() and is_guest(int(number)) and int(number) not in self._known:
                self._known.add(int(number))
                inbox, outbox = Inbox(folder, TO_RUN), Outbox(folder, TO_GUEST)
                self._guests[int(number)] = _Guest(folder, inbox, outbox, now, self._timeout_s)

    def _read(self, rank: int, guest: _Guest) -> list[tuple[int, Message]]:
        """Returns what a guest has sent; after its last message it is forgotten."""
        arrived: list[tuple[int, Message]] = []
        if not guest.patience_s:  # it is lost: `_check_beat` moves its folder, as soon as it can
            return arrived
        try:
            for message in guest.inbox.take():
                if guest.admits(message):
                    arrived.append((rank, message))
                if isinstance(message, Goodbye | WorkerFailed):
                    self._forget(rank, guest)
                    return arrived
            guest.outbox.flush()
        except (CommError, FileNotFoundError) as error:
            LOGGER.warning("guest %d is sent away: %s", rank, error)
            arrived += self._lose(rank, guest, reads=False)
        return arrived

    def _check_beat(self, rank: int, guest: _Guest, now: float) -> list[tuple[int, Message]]:
        """Look at a guest's heart-beat; returns its last messages where it is lost."""
        try:
            with open_file(guest.folder / BEAT) as file:
                beat = file.read(64)
        except OSError:
            beat = guest.beat
        if beat != guest.beat:
            guest.beat, guest.beat_at = beat, now
        return [] if now - guest.beat_at < guest.patience_s else self._lose(rank, guest)

    def _lose(self, rank: int, guest: _Guest, *, reads: bool = True) -> list[tuple[int, Message]]:
        """Move a guest's folder away, so that it writes no more; then read what it has sent.

        While the folder cannot be moved, the guest is not lost: each look at its heart-beat tries.
        """
        aside = guest.folder.with_name(f".{guest.folder.name}{TEMPORARY_MARK}lost")
        try:
            with contextlib.suppress(FileNotFoundError):  # it is gone already
                guest.folder.rename(aside)
        except OSError:
            guest.patience_s = 0.0
            return []
        guest.inbox.move(aside)
        arrived: list[tuple[int, Message]] = []
        if reads:
            with contextlib.suppress(CommError):
                taken = guest.inbox.take()
                arrived = [(rank, message) for message in taken if guest.admits(message)]
        guest.folder = aside
        self._forget(rank, guest)
        if not guest.has_come or any(isinstance(m, Goodbye | WorkerFailed) for _, m in arrived):
            return arrived
        return [*arrived, (rank, RankLost())]

    def _forget(self, rank: int, guest: _Guest) -> None:
        del self._guests[rank]
        _remove(guest.folder)


class GuestLink:
    """A guest's link; see `Link`, and the module.

    What a guest asks a learner for comes from its policy's file. A request that the run should end,
    as of a signal, ends the guest alone.

    Args:
        layout: the run folder.
        rank: the guest's rank.
        size: number of the run's ranks.
        answer: answers its requests for policies.

    Attributes:
        exit_code: exit code of the guest's process, where it ends by itself; None: the run ends it.
        failure: the failure that it has reported.
    """

    ranks_may_die = False

    def __init__(self, layout: RunLayout, rank: int, size: int, answer: Answer) -> None:
        self.rank, self.size, self.wake = rank, size, threading.Event()
        self.exit_code: int | None = None
        self.failure: WorkerFailed | None = None
        self._answer = answer
        self._folder = layout.guests_dir / rank_name(rank)
        self._folder.mkdir()
        self._inbox, self._outbox = Inbox(self._folder, TO_GUEST), Outbox(self._folder, TO_RUN)
        self._arrived: list[tuple[int, Message]] = []
        self._asked: dict[int, PolicyRequest] = {}  # by learner
        self._beats, self._beat_at, self._look_at = 0, float("-inf"), float("-inf")
        self._heard_at = time.monotonic()
        self._is_ending = self._has_left = False
        (self._folder / BEAT).write_bytes(bytes(_BEAT.size))

    def send(self, rank: int, message: Message) -> None:
        """See `Link.send`."""
        match message:
            case PolicyRequest():
                self._asked[rank] = message
            case StopRequest():
                self._end(message.reason, message.exit_code)
            case _:
                self._outbox.post(message)
                self._flush()
        if isinstance(message, Goodbye | WorkerFailed):
            self._has_left = True
            self.failure = message if isinstance(message, WorkerFailed) else None
            code = self.failure.exit_code if self.failure is not None else self.exit_code or 0
            self._arrived.append((0, Leave(code)))

    def receive(self, timeout_s: float) -> list[tuple[int, Message]]:
        """See `Link.receive`."""
        deadline, backoff = time.monotonic() + timeout_s, Backoff(longest_s=0.02, wake=self.wake)
        while True:
            now = time.monotonic()
            if now >= self._look_at:
                self._look(now)
            if self._arrived or now >= deadline or self.wake.is_set():
                self.wake.clear()
                arrived, self._arrived = self._arrived, []
                return arrived
            backoff.nap(deadline - now)

    def unsent(self) -> list[int]:
        """See `Link.unsent`."""
        return [] if self._flush() else [0]

    def check_place(self) -> None:
        """Ends this process at once where the run has given it up: what it writes counts no more.

        Called before each block is written.
        """
        if self._has_left:
            return
        try:
            os.close(open_descriptor(self._folder / BEAT))  # to open it, NFS asks the server
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):
                self._leave_at_once()

    def _look(self, now: float) -> None:
        self._look_at = now + _LOOK_S
        self.check_place()
        if now - self._beat_at >= _BEAT_S:
            self._beat_at, self._beats = now, self._beats + 1
            with contextlib.suppress(OSError), (self._folder / BEAT).open("r+b") as file:
                file.write(_BEAT.pack(self._beats))
        self._flush()
        arrived = self._inbox.take()
        if arrived:
            self._heard_at = now
        elif now - self._heard_at > RUN_SILENT_S:
            self._end("the run is silent", None)
        self._arrived += [(0, message) for message in arrived]
        for rank, request in list(self._asked.items()):
            update = self._answer(rank, request)
            if update is not None:
                del self._asked[rank]
                self._arrived.append((rank, update))

    def _flush(self) -> bool:
        try:
            return self._outbox.flush()
        except FileNotFoundError:
            if not self._has_left:
                self._leave_at_once()
            return True

    def _end(self, reason: str, exit_code: int | None) -> None:
        """Have the guest end in order, once."""
        if not self._is_ending:
            self._is_ending = True
            self.exit_code = exit_code
            self._arrived.append((0, Stop(reason)))

    def _leave_at_once(self) -> None:
        sys.stderr.write(
            "hpcdi join: the run has given this guest up, or was started anew; what it has not "
            "published is lost. Join again\n"
        )
        abort_job(EXIT_REQUEUE)


def send_away(layout: RunLayout) -> None:
    """Let no guest of a run write any more, such as those of a start that is over."""
    _remove(layout.guests_dir)


def _remove(folder: Path) -> None:
    """Remove a folder of messages, at one moment for those who write to it."""
    aside = folder.with_name(f".{folder.name}{TEMPORARY_MARK}gone")
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
