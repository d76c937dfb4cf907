"""Messages from one process to another by a file that one appends to and the other reads.

One writes, one reads, on hosts that share nothing but the folder::

    <name>.000001   size, crc32, message | size, crc32, message | 0, all ones
    <name>.000002   size, crc32, message | ...

A message whose bytes are not all there yet is waited for; also where the file is long enough, and
its size is still zeros, as a client of NFS may see what another one writes. A file that is large
enough ends with a size of 0 and ones; the reader removes it, and goes on with the next one. Each
look opens the file anew: that is when NFS asks the server how long it is.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections import deque
from pathlib import Path

import numpy as np

from hpcdi.comm.codec import from_bytes, to_bytes
from hpcdi.comm.messages import Message
from hpcdi.errors import CommError
from hpcdi.store.atomic import refuse_if_full
from hpcdi.store.checksum import crc32_of
from hpcdi.store.files import open_file

_HEAD = struct.Struct("<QI")  # bytes of the message, their crc32
_OVER = 0xFFFFFFFF
_END = _HEAD.pack(0, _OVER)
_FILE_BYTES = 4 << 20
_LARGEST_BYTES = 1 << 30


def _file(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}.{number:06d}"


class Outbox:
    """The writer's end.

    Args:
        folder: of the mailbox; it is there.
        name: of the mailbox.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._number, self._size = 1, 0  # the file, and the bytes that are written for good
        self._waiting: deque[bytes] = deque()

    def post(self, message: Message) -> None:
        """Take a message; `flush` writes it."""
        body = to_bytes(message).tobytes()
        self._waiting.append(_HEAD.pack(len(body), crc32_of(body)) + body)

    def flush(self) -> bool:
        """Write what was posted; returns whether all of it is written: the disk may be full.

        Raises:
            FileNotFoundError: the folder is gone.
        """
        while self._waiting or self._size >= _FILE_BYTES:
            is_over = self._size >= _FILE_BYTES
            try:
                self._append(_END if is_over else self._waiting[0])
            except FileNotFoundError:
                raise
            except OSError:
                return False
            if is_over:
                self._number, self._size = self._number + 1, 0
            else:
                self._waiting.popleft()
        return True

    def _append(self, frame: bytes) -> None:
        """Append bytes to the file.

        Raises:
            OSError: nobody knows how many of them are written; they are to be appended once more.
        """
        path = _file(self._folder, self._name, self._number)
        refuse_if_full(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor, end = os.open(path, flags, 0o600), self._size + len(frame)
        try:
            if os.fstat(descriptor).st_size != self._size:  # NFS may say at `close` what went wrong
                os.ftruncate(descriptor, self._size)
            at = os.lseek(descriptor, self._size, os.SEEK_SET)
            while at < end:
                at += os.write(descriptor, frame[at - end :])
        finally:
            os.close(descriptor)
        self._size = end


class Inbox:
    """The reader's end; see `Outbox`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._number, self._offset = 1, 0  # the file, and how far it was read

    def move(self, folder: Path) -> None:
        """The folder has another name from now on."""
        self._folder = folder

    def take(self) -> list[Message]:
        """Returns the messages that have come whole since the last call, in order.

        Raises:
            CommError: what has come is damaged.
        """
        messages: list[Message] = []
        while True:
            path = _file(self._folder, self._name, self._number)
            try:
                with open_file(path, 2 * _LARGEST_BYTES) as file:
                    file.seek(self._offset)
                    unread = file.read()
            except OSError:  # nothing was written yet, or the file system is away
                return messages
            n_bytes, is_over = self._read(unread, path, messages)
            self._offset += n_bytes
            if not is_over:
                return messages
            with contextlib.suppress(OSError):  # whoever removes the folder removes it, too
                path.unlink()
            self._number, self._offset = self._number + 1, 0

    def _read(self, unread: bytes, path: Path, messages: list[Message]) -> tuple[int, bool]:
        """Read whole messages; returns how many bytes these are, and whether the file is over."""
        at = 0
        while len(unread) - at >= _HEAD.size:
            size, crc32 = _HEAD.unpack_from(unread, at)
            body = unread[at + _HEAD.size : at + _HEAD.size + size]
            if size == 0:  # the end, or zeros
                return at, crc32 == _OVER
            if size > _LARGEST_BYTES:
                raise CommError(f"{path} announces a message of {size} bytes: it is damaged")
            if len(body) < size:
                break
            if crc32_of(body) != crc32:
                raise CommError(f"{path} holds a message whose checksum is wrong")
            message = from_bytes(np.frombuffer(body, np.uint8))
            if not isinstance(message, Message):
                raise CommError(f"{path} holds a {type(message).__name__}, and no message")
            messages.append(message)
            at += _HEAD.size + size
        return at, False
