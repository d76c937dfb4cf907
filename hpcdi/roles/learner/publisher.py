"""Publishing a learner's policies: to collectors that ask, and to disk now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hpcdi.comm.messages import PolicyRequest, PolicyUpdate
from hpcdi.store.disk_full import or_warn
from hpcdi.store.policies import PolicyImage, publish_policy
from hpcdi.types import MAIN


class PolicyFile:
    """The newest policy on disk, written now and then.

    Args:
        path: of the file.
        every_s: seconds between two writes.
        fsync: force it to disk.

    Attributes:
        every_s: see above.
    """

    def __init__(self, path: Path, every_s: float, *, fsync: bool = True) -> None:
        self._path, self.every_s, self._fsync = path, every_s, fsync
        self._written = (-1, float("-inf"))  # version, and when

    def is_due(self) -> bool:
        """Returns whether it is time to write."""
        return time.monotonic() - self._written[1] >= self.every_s

    def write(self, image: PolicyImage | None) -> None:
        """Write a policy, unless it is the one on disk; a full disk is only a warning."""
        if image is not None and image.version != self._written[0]:
            write = partial(publish_policy, self._path, image, fsync=self._fsync)
            is_written = or_warn("policy file", write)
            version = image.version if is_written else self._written[0]
            self._written = (version, time.monotonic())


class PolicyPublisher:
    """Answers collectors' requests; packs a policy only when somebody waits for it.

    A collector has at most one request open, so a slow one skips versions and nobody waits for it.

    Args:
        send: sends an answer to a rank.
        file: takes the newest policy now and then; None: nothing is written.
        player: name of the group whose policies they are.

    Attributes:
        file: see above.
        published: policies so far.
    """

    def __init__(
        self,
        send: Callable[[int, PolicyUpdate], None],
        file: PolicyFile | None,
        player: str = MAIN,
    ) -> None:
        self.published = 0
        self.file = file
        self._ordered_s: float | None = None  # between two writes
        self._send, self._player = send, player
        self._lock = threading.Lock()  # requests come on one thread, policies on another
        self._image: PolicyImage | None = None
        self._train_iter = 0
        self._waiting: set[int] = set()
        self._at_once: set[int] = set()  # those of them that wait for the present policy

    def forget(self, rank: int) -> None:
        """Drop the request of a collector that died."""
        with self._lock:
            self._waiting.discard(rank)
            self._at_once.discard(rank)

    def request(self, rank: int, request: PolicyRequest) -> None:
        """Take a collector's request (on the communication thread).

        It is for the present policy, at once, which comes empty where the collector has that one;
        or for any that is newer than the collector's.
        """
        with self._lock:
            image = self._image
            is_newer = image is not None and image.version > request.have_version
            is_newest = image is not None and image.version >= self._train_iter
            if image is None or not (is_newest if request.at_once else is_newer):
                self._waiting.add(rank)
                self._at_once |= {rank} if request.at_once else set()
                return
            self._waiting.discard(rank)
            self._at_once.discard(rank)
            self._send_policy(rank, image.version, image.data if is_newer else b"")

    def is_awaited(self, train_iter: int) -> bool:
        """Returns whether a collector waits for this version, and takes no older one.

        Args:
            train_iter: version of the learner's present policy.
        """
        self._train_iter = train_iter
        return bool(self._at_once)

    def is_wanted(self, train_iter: int) -> bool:
        """Returns whether this version is newer than the last, and wanted by a collector or file.

        Args:
            train_iter: version of the learner's present policy.
        """
        self._train_iter = train_iter
        is_newer = self._image is None or self._image.version < train_iter
        return is_newer and (bool(self._waiting) or self._is_file_due())

    def publish(self, state_dict: Mapping[str, Any], train_iter: int) -> None:
        """Send a policy to the collectors that wait; write it to disk if that is due."""
        image = PolicyImage.of(state_dict, train_iter)
        with self._lock:
            self._image, self._train_iter = image, train_iter
            waiting, self._waiting, self._at_once = self._waiting, set(), set()
            for rank in waiting:
                self._send_policy(rank, image.version, image.data)
        self.published += 1
        if self._is_file_due():
            self.write_file()

    def write_every(self, every_s: float) -> None:
        """Write the newest policy to disk every so many seconds from now on."""
        self._ordered_s = every_s
        if self.file is not None:
            self.file.every_s = every_s

    def write_to(self, file: PolicyFile | None) -> None:
        """Write to another file from now on, or to none, as often as `write_every` has said."""
        self.file = file
        if self._ordered_s is not None:
            self.write_every(self._ordered_s)

    def write_file(self) -> None:
        """Write the newest policy to disk."""
        if self.file is not None:
            self.file.write(self._image)

    def _is_file_due(self) -> bool:
        return self.file is not None and self.file.is_due()

    def _send_policy(self, rank: int, version: int, data: bytes) -> None:
        self._send(rank, PolicyUpdate.of(version, data, self._player))
